//! Those who were denied a lock and ask for it again and again, in the order in which they came (RFC 8881 §9.6).

use super::Owner;
use crate::spans::{LockKind, Span};
use crate::state::ClientId;
use std::time::Duration;
use types::{Timestamp, limits};

/// The turn of somebody who asked only once is kept for so long at least.
const PATIENCE_MIN: Duration = Duration::from_secs(2);
/// And nobody's for longer than this.
const PATIENCE_MAX: Duration = Duration::from_secs(90);

/// Who has not asked for so long is not told any more when the lock is free: clients that wait to be told ask every half
/// minute at least.
const SLEEP_MAX: Duration = Duration::from_secs(40);

/// Somebody who wants a lock.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) owner: Owner,
    pub(super) span: Span,
    pub(super) kind: LockKind,
    /// When it last asked.
    asked: Timestamp,
    /// How long after that it is believed to still want it: three times as long as between its last two attempts.
    patience: Duration,
    /// Whether it was told that the lock is free, and has not asked since.
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

/// Who waits for locks of one file, whoever came first in front.
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

    /// Everybody who came before `me` and still asks, in order.
    pub(super) fn before(&self, me: &Owner, now: Timestamp) -> impl Iterator<Item = &Waiter> {
        self.0.iter().take_while(move |w| w.owner != *me).filter(move |w| w.waits(now))
    }

    /// `me` was denied and will ask again. Without room it keeps no turn: the list makes waiting fair, not right.
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

    /// Those to be told that they can have their locks, as far as these go together, whoever came first in front.
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

    /// `me` does not wait for any of these bytes any more.
    pub(super) fn forget(&mut self, me: &Owner, span: Span) {
        self.0.retain(|w| w.owner != *me || !w.span.overlaps(span));
    }

    /// Forgets those of `gone`, and those who have not asked for long; tells of whom.
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
