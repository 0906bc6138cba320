//! The queue of lock-owners that wait for a lock on one file after the server denied their LOCK, in order of their
//! first LOCK (RFC 8881 §9.6).

use super::Owner;
use crate::spans::{LockKind, Span};
use crate::state::ClientId;
use std::time::Duration;
use types::{Timestamp, limits};

/// The shortest time for which a waiter keeps its position in the queue without a retry. This time applies to a waiter
/// that has sent only one LOCK.
const PATIENCE_MIN: Duration = Duration::from_secs(2);
/// The longest time for which a waiter keeps its position in the queue without a retry.
const PATIENCE_MAX: Duration = Duration::from_secs(90);

/// When a lock becomes free, the server notifies only the waiters whose last LOCK is at most this old. Clients that
/// wait for a notification retry at least every 30 seconds.
const SLEEP_MAX: Duration = Duration::from_secs(40);

/// A lock-owner that waits for a lock, with its byte range and lock kind.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) owner: Owner,
    pub(super) span: Span,
    pub(super) kind: LockKind,
    /// When the lock-owner last requested the lock.
    asked: Timestamp,
    /// How long after its last request (`asked`) the lock-owner keeps its priority over later waiters: three times
    /// the interval between its last two requests for the lock, at least `PATIENCE_MIN` and at most `PATIENCE_MAX`.
    patience: Duration,
    /// Whether the server has notified the lock-owner of a free lock since the lock-owner's last request.
    told: bool,
}

impl Waiter {
    fn waits(&self, now: Timestamp) -> bool {
        now.since(self.asked) <= self.patience
    }

    fn sleeps(&self, now: Timestamp) -> bool {
        !self.told && now.since(self.asked) <= SLEEP_MAX
    }
}

/// The waiters for locks of one file, in order of their first request.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting(Vec<Waiter>);

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn of_client(&self, client: ClientId) -> usize {
        self.0.iter().filter(|w| w.owner.0 == client).count()
    }

    /// Returns the waiters that requested their lock before `me` and have not lost their priority, in the order of
    /// these requests.
    pub(super) fn before(&self, me: &Owner, now: Timestamp) -> impl Iterator<Item = &Waiter> {
        self.0.iter().take_while(move |w| w.owner != *me).filter(move |w| w.waits(now))
    }

    /// Records that the server denied a lock to `me` and that `me` will retry. If the queue is full, `me` has no
    /// priority, which costs fairness but not correctness.
    pub(super) fn asked(&mut self, me: Owner, span: Span, kind: LockKind, now: Timestamp, full: bool) {
        if let Some(waiter) = self.0.iter_mut().find(|w| w.owner == me && w.span == span) {
            let between = now.since(waiter.asked);
            (waiter.kind, waiter.asked, waiter.told) = (kind, now, false);
            waiter.patience = (between * 3).clamp(PATIENCE_MIN, PATIENCE_MAX);
            return;
        }
        if !full && self.0.len() < limits::LOCK_WAITERS_PER_FILE_MAX {
            self.0.push(Waiter { owner: me, span, kind, asked: now, patience: PATIENCE_MIN, told: false });
        }
    }

    /// Returns the lock-owners to notify, in the order in which they requested their locks. The locks of these
    /// lock-owners are free now and do not conflict with each other.
    pub(super) fn wake(&mut self, is_free: impl Fn(&Waiter) -> bool) -> Vec<Owner> {
        let mut first: Vec<(Owner, Span, LockKind)> = Vec::new();
        let mut woken = Vec::new();
        for waiter in self.0.iter_mut().filter(|w| is_free(w)) {
            let clash = |(owner, span, kind): &(Owner, Span, LockKind)| {
                *owner != waiter.owner && span.overlaps(waiter.span) && kind.conflicts(waiter.kind)
            };
            if first.iter().any(clash) {
                continue;
            }
            first.push((waiter.owner.clone(), waiter.span, waiter.kind));
            if !std::mem::replace(&mut waiter.told, true) {
                woken.push(waiter.owner.clone());
            }
        }
        woken
    }

    /// Removes the waits of `me` that overlap `span`.
    pub(super) fn forget(&mut self, me: &Owner, span: Span) {
        self.0.retain(|w| w.owner != *me || !w.span.overlaps(span));
    }

    /// Removes the waiters of the client `gone`, and the waiters that have stopped retrying. Calls `forgotten` for each
    /// removed waiter.
    pub(super) fn tidy(&mut self, gone: Option<ClientId>, now: Option<Timestamp>, mut forgotten: impl FnMut(ClientId)) {
        self.0.retain(|w| {
            let stays = gone != Some(w.owner.0) && now.is_none_or(|now| w.waits(now) || w.sleeps(now));
            if !stays {
                forgotten(w.owner.0);
            }
            stays
        });
    }
}
