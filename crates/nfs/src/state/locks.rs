//! Byte-range locks of the server: which lock-owner holds which byte ranges of a file, and which lock-owners wait (RFC
//! 8881 §9, §18.10 to §18.12).
//!
//! Locks are advisory: READ and WRITE ignore them. All locks of one lock-owner on one file form one set of ranges,
//! whichever opens the lock-owner used. Each range is tagged with the stateid of its last LOCK (§9.5).

mod waiting;

use crate::spans::{Held, LockKind, Span, Spans};
use crate::state::stateids::{self, Form, Kind};
use crate::state::{ClientId, Effect, Result, State};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use types::{FileId, Timestamp, limits};
use waiting::Waiting;
use wire::nfs4::nfsstat4::*;
use wire::nfs4::{OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE, stateid4};

/// A lock-owner: a client and an opaque string of that client (§9.1.1).
type Owner = (ClientId, Bytes);
type Other = [u8; 12];

/// How a LOCK names its lock-owner (`locker4`).
#[derive(Clone, Copy, Debug)]
pub enum Locker<'a> {
    /// The LOCK names an open and a lock-owner, because it is the lock-owner's first LOCK under the open, or because
    /// the client has lost the lock stateid.
    Open {
        /// The stateid of the open.
        stateid: &'a stateid4,
        /// The lock-owner, an opaque string of the client.
        owner: &'a Bytes,
    },
    /// The LOCK names a lock stateid from an earlier LOCK, which identifies the lock-owner and the open.
    Held(&'a stateid4),
}

/// The lock that conflicts with a request (`LOCK4denied`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denied {
    /// The byte range of the conflicting lock.
    pub span: Span,
    /// The kind of the conflicting lock.
    pub kind: LockKind,
    /// The client that holds the conflicting lock.
    pub client: ClientId,
    /// The lock-owner that holds the conflicting lock.
    pub owner: Bytes,
}

/// The result of LOCK.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Locked {
    /// The server granted the lock; this is the lock stateid of the lock-owner and the open.
    Granted(stateid4),
    /// Another lock-owner holds a conflicting lock, or has waited longer for a conflicting lock.
    Denied(Denied),
}

/// The lock state of one lock-owner under one open, named by one lock stateid (§18.10.3).
#[derive(Clone, Debug)]
struct LockState {
    owner: Owner,
    file: FileId,
    /// The `other` field of the open under which the client requested the locks. CLOSE of this open releases the locks.
    open: Other,
    seqid: u32,
}

/// The locks of one file, and the lock-owners that wait for locks.
#[derive(Clone, Debug, Default)]
struct FileLocks {
    held: HeldBy,
    waiting: Waiting,
}

/// The locked ranges of one file, by lock-owner.
type HeldBy = BTreeMap<Owner, Spans<Other>>;

/// Returns the locks of other lock-owners that conflict with a lock of this kind on `span`.
fn conflicts<'a>(
    held: &'a HeldBy,
    me: &Owner,
    span: Span,
    kind: LockKind,
) -> impl Iterator<Item = (&'a Owner, &'a Held<Other>)> {
    let others = held.iter().filter(move |(owner, _)| *owner != me);
    others.flat_map(move |(owner, spans)| {
        let touched = spans.overlapping(span).iter();
        touched.filter(move |held| held.kind.conflicts(kind)).map(move |held| (owner, held))
    })
}

fn is_free(held: &HeldBy, me: &Owner, span: Span, kind: LockKind) -> bool {
    conflicts(held, me, span, kind).next().is_none()
}

impl FileLocks {
    fn conflicts(&self, me: &Owner, span: Span, kind: LockKind) -> impl Iterator<Item = (&Owner, &Held<Other>)> {
        conflicts(&self.held, me, span, kind)
    }

    fn is_free(&self, me: &Owner, span: Span, kind: LockKind) -> bool {
        is_free(&self.held, me, span, kind)
    }

    /// Returns a waiter with priority over `me`: this waiter requested a conflicting lock before `me`, and the server
    /// can grant the lock to this waiter now. A waiter whose lock is not free yet blocks no other waiter, so that
    /// waiters cannot deadlock.
    fn ahead(&self, me: &Owner, span: Span, kind: LockKind, now: Timestamp) -> Option<Denied> {
        let before = self.waiting.before(me, now);
        let mut conflicting = before.filter(|w| w.span.overlaps(span) && w.kind.conflicts(kind));
        let first = conflicting.find(|w| self.is_free(&w.owner, w.span, w.kind))?;
        let (client, owner) = first.owner.clone();
        Some(Denied { span: first.span, kind: first.kind, client, owner })
    }
}

/// All byte-range locks of the server.
#[derive(Clone, Debug, Default)]
pub struct Locks {
    by_other: HashMap<Other, LockState>,
    /// The lock stateids (`other`) by open and lock-owner; each pair has at most one lock stateid.
    by_open: HashMap<Other, BTreeMap<Bytes, Other>>,
    by_file: HashMap<FileId, FileLocks>,
    /// Number of lock stateids, locked ranges and waits for locks of each client and of all clients, which the server
    /// limits.
    used: Used,
    /// Number of locked ranges of all clients.
    held: usize,
    /// Files with bytes that were unlocked since the server last notified waiters.
    freed: BTreeSet<FileId>,
}

/// Counts of lock stateids, locked ranges and waits for locks (one sum of the three), by client and in total.
#[derive(Clone, Debug, Default)]
struct Used {
    by_client: HashMap<ClientId, usize>,
    all: usize,
}

fn count(used: &mut Used, client: ClientId, less: usize, more: usize) {
    let n = used.by_client.entry(client).or_default();
    let before = std::mem::replace(n, n.saturating_sub(less) + more);
    used.all = used.all + *n - before;
    if *n == 0 {
        used.by_client.remove(&client);
    }
}

impl Locks {
    /// Returns the number of locked ranges.
    pub(crate) fn len(&self) -> usize {
        self.held
    }

    /// Returns the number of denied LOCKs that clients keep retrying.
    pub(crate) fn waiting(&self) -> usize {
        self.by_file.values().map(|file| file.waiting.len()).sum()
    }

    /// Returns the number of lock stateids, locked ranges and waits of a client, which the server limits.
    pub(crate) fn of_client(&self, client: ClientId) -> usize {
        self.used.by_client.get(&client).copied().unwrap_or(0)
    }

    /// Returns whether `more` additional lock stateids, locked ranges or waits exceed the limit of this client or of
    /// all clients.
    fn full(&self, client: ClientId, more: usize) -> bool {
        self.of_client(client) + more > limits::LOCKS_PER_CLIENT_MAX || self.used.all + more > limits::LOCKS_MAX
    }

    fn get(&self, client: ClientId, stateid: &stateid4) -> Result<&LockState> {
        let state = self.by_other.get(&stateid.other).filter(|s| s.owner.0 == client).ok_or(NFS4ERR_BAD_STATEID)?;
        stateids::check_seqid(stateid.seqid, state.seqid)?;
        Ok(state)
    }

    pub(crate) fn test(&self, client: ClientId, stateid: &stateid4) -> Result<()> {
        self.get(client, stateid).map(|_| ())
    }

    /// Locks the bytes of `span` for the lock-owner of the stateid `other`, with this kind; `None` as the kind unlocks
    /// the bytes.
    fn set(&mut self, other: Other, span: Span, kind: Option<LockKind>) {
        let Some(state) = self.by_other.get(&other) else { return };
        let file = self.by_file.entry(state.file).or_default();
        let spans = file.held.entry(state.owner.clone()).or_default();
        let before = spans.len();
        spans.set(span, kind.map(|kind| (kind, other)));
        let after = spans.len();
        count(&mut self.used, state.owner.0, before, after);
        self.held = self.held - before + after;
        if kind != Some(LockKind::Write) {
            self.freed.insert(state.file);
        }
        if after == 0 {
            file.held.remove(&state.owner);
        }
        if file.held.is_empty() && file.waiting.is_empty() {
            self.by_file.remove(&state.file);
        }
    }

    /// Unlocks every range that is tagged with a lock stateid.
    fn release(&mut self, other: &Other) {
        let Some(state) = self.by_other.get(other) else { return };
        let Some(file) = self.by_file.get_mut(&state.file) else { return };
        let Some(spans) = file.held.get_mut(&state.owner) else { return };
        let before = spans.len();
        spans.remove_tag(*other);
        self.freed.insert(state.file);
        let after = spans.len();
        count(&mut self.used, state.owner.0, before, after);
        self.held = self.held - before + after;
        if after == 0 {
            file.held.remove(&state.owner);
        }
        if file.held.is_empty() && file.waiting.is_empty() {
            self.by_file.remove(&state.file);
        }
    }

    fn add(&mut self, other: Other, state: LockState) {
        count(&mut self.used, state.owner.0, 0, 1);
        self.by_open.entry(state.open).or_default().insert(state.owner.1.clone(), other);
        self.by_other.insert(other, state);
    }

    fn remove(&mut self, other: &Other) {
        self.release(other);
        let Some(state) = self.by_other.remove(other) else { return };
        count(&mut self.used, state.owner.0, 1, 0);
        self.unlist(&state.open, &state.owner.1);
    }

    fn unlist(&mut self, open: &Other, owner: &Bytes) {
        if let Some(owners) = self.by_open.get_mut(open) {
            owners.remove(owner);
            if owners.is_empty() {
                self.by_open.remove(open);
            }
        }
    }

    /// Removes the waits of a client whose record is removed. The caller also removes the client's opens, which
    /// releases the client's locks.
    pub(crate) fn forget_client(&mut self, client: ClientId) {
        if self.of_client(client) > 0 {
            self.tidy_waiting(Some(client), None);
        }
    }

    fn under(&self, open: &Other) -> Vec<Other> {
        self.by_open.get(open).into_iter().flat_map(BTreeMap::values).copied().collect()
    }

    /// Releases the locks under an open that has ended (§18.2.3).
    pub(crate) fn drop_open(&mut self, open: &Other) {
        self.under(open).iter().for_each(|other| self.remove(other));
    }

    /// Records that the server denied a LOCK of `me`. If `wait` is set, the lock-owner joins the queue of waiters;
    /// otherwise the lock-owner leaves the queue.
    fn note_denial(&mut self, me: Owner, file: FileId, span: Span, kind: LockKind, wait: bool, now: Timestamp) {
        let client = me.0;
        let full = self.full(client, 1);
        let Some(locks) = self.by_file.get_mut(&file) else { return };
        let before = locks.waiting.of_client(client);
        if wait {
            locks.waiting.asked(me, span, kind, now, full);
        } else {
            locks.waiting.forget(&me, span);
        }
        let after = locks.waiting.of_client(client);
        count(&mut self.used, client, before, after);
    }

    /// Removes a lock-owner from the queue of waiters after the server has granted the requested lock.
    fn stop_waiting(&mut self, me: &Owner, file: FileId, span: Span) {
        let Some(locks) = self.by_file.get_mut(&file) else { return };
        let before = locks.waiting.of_client(me.0);
        locks.waiting.forget(me, span);
        let after = locks.waiting.of_client(me.0);
        count(&mut self.used, me.0, before, after);
    }

    /// Removes all waiters that have stopped retrying, and all waiters of the client `gone`.
    pub(crate) fn tidy_waiting(&mut self, gone: Option<ClientId>, now: Option<Timestamp>) {
        let used = &mut self.used;
        self.by_file.retain(|_, file| {
            file.waiting.tidy(gone, now, |client| count(used, client, 1, 0));
            !file.held.is_empty() || !file.waiting.is_empty()
        });
    }
}

impl State {
    /// Queues a CB_NOTIFY_LOCK callback for each waiter whose lock is free now (§20.11).
    pub(crate) fn wake_lock_waiters(&mut self) {
        for file in std::mem::take(&mut self.locks.freed) {
            let Some(FileLocks { held, waiting }) = self.locks.by_file.get_mut(&file) else { continue };
            if waiting.is_empty() {
                continue;
            }
            let woken = waiting.wake(|waiter| is_free(held, &waiter.owner, waiter.span, waiter.kind));
            let free = |(client, owner)| Effect::LockFree { client, file, owner };
            self.effects.extend(woken.into_iter().map(free));
        }
    }

    /// Returns the lock state with this stateid.
    ///
    /// # Errors
    /// BAD_STATEID (special, unknown, of another client or another file, or not of locks), OLD_STATEID.
    fn find_lock(&self, client: ClientId, file: FileId, stateid: &stateid4) -> Result<&LockState> {
        match stateids::form(stateid, self.config.boot_epoch)? {
            Form::Ordinary(Kind::Lock) => {}
            _ => return Err(NFS4ERR_BAD_STATEID),
        }
        let state = self.locks.get(client, stateid)?;
        if state.file == file { Ok(state) } else { Err(NFS4ERR_BAD_STATEID) }
    }

    /// Returns the stateid of the open under which a lock stateid exists; I/O with the lock stateid uses this open
    /// (§9.1.2).
    ///
    /// # Errors
    /// BAD_STATEID (special, unknown, of another client or another file, or not of locks), OLD_STATEID.
    pub(crate) fn open_of_lock(&self, client: ClientId, file: FileId, stateid: &stateid4) -> Result<stateid4> {
        self.find_lock(client, file, stateid).map(|state| stateid4 { seqid: 0, other: state.open })
    }

    /// LOCK (§18.10). With `wait` the client retries a denied lock (`READW_LT`, `WRITEW_LT`), and has priority over
    /// later waiters.
    ///
    /// A conflicting lock of a client with an expired lease causes the removal of that client (§8.4.3).
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, OPENMODE (a write lock needs an open for writing, a read lock an open for reading),
    /// DELAY (the client, all clients at its address, or all clients of the server hold too many locks).
    pub fn lock(
        &mut self,
        client: ClientId,
        file: FileId,
        locker: Locker,
        (span, kind): (Span, LockKind),
        wait: bool,
        now: Timestamp,
    ) -> Result<Locked> {
        let (open, owner) = match locker {
            Locker::Open { stateid, owner } => (*stateid, owner.clone()),
            Locker::Held(stateid) => {
                let state = self.find_lock(client, file, stateid)?;
                (stateid4 { seqid: 0, other: state.open }, state.owner.1.clone())
            }
        };
        let open = self.find_open(client, file, &open)?;
        let needed = match kind {
            LockKind::Read => OPEN4_SHARE_ACCESS_READ,
            LockKind::Write => OPEN4_SHARE_ACCESS_WRITE,
        };
        if open.access & needed == 0 {
            return Err(NFS4ERR_OPENMODE);
        }
        let open = open.other();
        let me = (client, owner);
        if let Some(denied) = self.lock_in_the_way(&me, file, span, kind, now) {
            let owner = (client, Bytes::copy_from_slice(&me.1));
            self.locks.note_denial(owner, file, span, kind, wait, now);
            return Ok(Locked::Denied(denied));
        }
        self.grant_lock(open, me, file, span, kind).map(Locked::Granted)
    }

    /// Returns the lock or the waiter that prevents a lock of `me`. Clients with an expired lease do not count; the
    /// call removes these clients if nothing else prevents the lock.
    fn lock_in_the_way(
        &mut self,
        me: &Owner,
        file: FileId,
        span: Span,
        kind: LockKind,
        now: Timestamp,
    ) -> Option<Denied> {
        #[cfg(feature = "planted")]
        if types::planted::is_planted(types::planted::Planted::LockTable) {
            return None;
        }
        let mut lapsed = BTreeSet::new();
        let locks = self.locks.by_file.get(&file)?;
        for (owner, held) in locks.conflicts(me, span, kind) {
            if !self.is_lapsed(owner.0) {
                return Some(Denied { span: held.span, kind: held.kind, client: owner.0, owner: owner.1.clone() });
            }
            lapsed.insert(owner.0);
        }
        let ahead = locks.ahead(me, span, kind, now);
        if ahead.is_none() {
            lapsed.into_iter().for_each(|client| self.expel(client));
        }
        ahead
    }

    fn grant_lock(&mut self, open: Other, me: Owner, file: FileId, span: Span, kind: LockKind) -> Result<stateid4> {
        let known = self.locks.by_open.get(&open).and_then(|owners| owners.get(&me.1)).copied();
        let spans = self.locks.by_file.get(&file).and_then(|locks| locks.held.get(&me));
        let more = spans.map_or(1, |spans| spans.growth(span, false)) + usize::from(known.is_none());
        let all = (self.locks.used.all, limits::LOCKS_MAX);
        if self.locks.full(me.0, more) || self.is_share_full(me.0, |id| self.locks.of_client(id), all) {
            return Err(NFS4ERR_DELAY);
        }
        self.locks.stop_waiting(&me, file, span);
        let other = known.unwrap_or_else(|| {
            let other = self.new_other(Kind::Lock);
            let owner = (me.0, Bytes::copy_from_slice(&me.1));
            self.locks.add(other, LockState { owner, file, open, seqid: 0 });
            other
        });
        self.locks.set(other, span, Some(kind));
        self.step_lock(other)
    }

    fn step_lock(&mut self, other: Other) -> Result<stateid4> {
        let state = self.locks.by_other.get_mut(&other).ok_or(NFS4ERR_SERVERFAULT)?;
        state.seqid = stateids::next_seqid(state.seqid);
        Ok(stateid4 { seqid: state.seqid, other })
    }

    /// LOCKT (§18.11): returns the lock that conflicts with the requested lock. The lock-owner of the request need not
    /// hold any lock. Locks of clients with an expired lease do not count, because a LOCK removes such clients.
    pub fn test_lock(
        &self,
        client: ClientId,
        file: FileId,
        owner: &Bytes,
        span: Span,
        kind: LockKind,
    ) -> Option<Denied> {
        let me = (client, owner.clone());
        let mut conflicts = self.locks.by_file.get(&file)?.conflicts(&me, span, kind);
        let (owner, held) = conflicts.find(|(owner, _)| !self.is_lapsed(owner.0))?;
        Some(Denied { span: held.span, kind: held.kind, client: owner.0, owner: owner.1.clone() })
    }

    /// LOCKU (§18.12): the lock-owner of this stateid unlocks bytes of the file, including bytes that it locked under
    /// another open. Unlocking bytes that are not locked is no error.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID. LOCK_RANGE: the unlock would split a range, and the client's number of locks is
    /// already at the limit.
    pub fn unlock(&mut self, client: ClientId, file: FileId, stateid: &stateid4, span: Span) -> Result<stateid4> {
        let owner = &self.find_lock(client, file, stateid)?.owner;
        let spans = self.locks.by_file.get(&file).and_then(|locks| locks.held.get(owner));
        let more = spans.map_or(0, |spans| spans.growth(span, true));
        if more > 0 && self.locks.of_client(client) + more > limits::LOCKS_PER_CLIENT_MAX {
            return Err(NFS4ERR_LOCK_RANGE);
        }
        self.locks.set(stateid.other, span, None);
        self.step_lock(stateid.other)
    }

    /// FREE_STATEID of a lock stateid (§18.38).
    ///
    /// # Errors
    /// LOCKS_HELD if the lock-owner holds a range whose last LOCK was under the stateid, BAD_STATEID, OLD_STATEID.
    pub(crate) fn free_lock(&mut self, client: ClientId, stateid: &stateid4) -> Result<()> {
        let state = self.locks.get(client, stateid)?;
        let held = self.locks.by_file.get(&state.file).and_then(|locks| locks.held.get(&state.owner));
        if held.is_some_and(|spans| spans.iter().any(|h| h.tag == stateid.other)) {
            return Err(NFS4ERR_LOCKS_HELD);
        }
        self.locks.remove(&stateid.other);
        Ok(())
    }

    /// Returns all locks on a file, ordered by client and lock-owner.
    pub fn locks_on(&self, file: FileId) -> Vec<Denied> {
        let owners = self.locks.by_file.get(&file).into_iter().flat_map(|locks| &locks.held);
        let each = owners.flat_map(|(owner, spans)| spans.iter().map(move |held| (owner, held)));
        each.map(|(owner, h)| Denied { span: h.span, kind: h.kind, client: owner.0, owner: owner.1.clone() }).collect()
    }
}
