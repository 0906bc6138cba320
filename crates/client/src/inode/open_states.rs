//! The opens of a file in this client: their stateids and modes, the locks requested under them, and the errors that each
//! has yet to report.

#[cfg(test)]
mod tests;

use crate::compound::Caller;
use crate::{Error, Result};
use nfs::spans::{LockKind, Span, Spans};
use std::collections::BTreeMap;
use wire::nfs4::stateid4;

/// A lock to reclaim: its owner, its span and its kind.
pub(crate) type Wanted = (u64, Span, LockKind);

/// An open of the file at the mgr.
#[derive(Clone)]
pub(crate) struct Open {
    /// The open owner.
    pub(crate) key: u64,
    pub(super) stateid: stateid4,
    /// The caller that opened the file.
    pub(crate) caller: Caller,
    pub(super) read: bool,
    pub(super) write: bool,
    /// The error since the last report.
    error: Option<Error>,
    /// The locks requested under this open, by owner.
    locks: BTreeMap<u64, OwnerLocks>,
}

/// The locks of one owner under one open.
#[derive(Clone, Default)]
struct OwnerLocks {
    /// The mgr's stateid of the locks, once there were any.
    stateid: Option<stateid4>,
    spans: Spans<()>,
    /// The error of lost locks, until the owner acknowledges it by unlocking.
    lost: Option<Error>,
}

/// The opens of one file.
#[derive(Clone, Default)]
pub(super) struct OpenStates {
    opens: Vec<Open>,
}

/// Returns the stateid with seqid 0, which matches any seqid (RFC 8881 §8.2.2).
pub(super) fn any_age(stateid: stateid4) -> stateid4 {
    stateid4 { seqid: 0, ..stateid }
}

impl OwnerLocks {
    fn is(&self, lock: stateid4) -> bool {
        self.stateid.is_some_and(|stateid| stateid.other == lock.other)
    }
}

impl Open {
    /// Creates an open with this owner that reads, writes, or does both.
    pub(super) fn new(key: u64, caller: Caller, stateid: stateid4, (read, write): (bool, bool)) -> Self {
        Open { key, stateid, caller, read, write, error: None, locks: BTreeMap::new() }
    }

    /// Returns whether the open allows reading and writing.
    pub(super) fn is_for_both(&self) -> bool {
        self.read && self.write
    }

    /// Returns whether the mgr has lock state under the open.
    pub(super) fn has_locks(&self) -> bool {
        self.locks.values().any(|locks| locks.stateid.is_some())
    }

    /// Returns the lock stateid for I/O, if there are locks. For writing, prefers the stateid of exclusive locks.
    fn lock_of_io(&self, write: bool) -> Option<stateid4> {
        let held = self.locks.values().filter(|locks| !locks.spans.is_empty());
        let exclusive = |locks: &&OwnerLocks| locks.spans.iter().any(|held| held.kind == LockKind::Write);
        let best = held.clone().find(|locks| write && exclusive(locks));
        best.or_else(|| held.clone().next()).and_then(|locks| locks.stateid).map(any_age)
    }
}

/// Opens and their errors.
impl OpenStates {
    /// Adds an open.
    pub(super) fn add(&mut self, open: Open) {
        self.opens.push(open);
    }

    /// Removes an open.
    pub(super) fn remove(&mut self, key: u64) -> Option<Open> {
        let at = self.opens.iter().position(|open| open.key == key)?;
        Some(self.opens.remove(at))
    }

    /// Returns an open.
    pub(super) fn get(&self, key: u64) -> Option<&Open> {
        self.opens.iter().find(|open| open.key == key)
    }

    fn get_mut(&mut self, key: u64) -> Option<&mut Open> {
        self.opens.iter_mut().find(|open| open.key == key)
    }

    /// Returns the open with this stateid.
    pub(super) fn by_stateid(&self, stateid: stateid4) -> Option<&Open> {
        self.opens.iter().find(|open| open.stateid == stateid)
    }

    /// Returns all opens.
    pub(super) fn all(&self) -> &[Open] {
        &self.opens
    }

    /// Returns whether an open allows reading.
    pub(super) fn may_read(&self) -> bool {
        self.opens.iter().any(|open| open.read)
    }

    /// Returns whether an open allows writing.
    pub(super) fn may_write(&self) -> bool {
        self.opens.iter().any(|open| open.write)
    }

    /// Sets the new stateid of an open.
    pub(super) fn reopened(&mut self, key: u64, stateid: stateid4) {
        if let Some(open) = self.get_mut(key) {
            open.stateid = stateid;
        }
    }

    /// Returns a stateid that allows the I/O, and its caller. `delegation` is the stateid of the write delegation.
    pub(super) fn suitable(&self, write: bool, delegation: Option<stateid4>) -> Option<(stateid4, Caller)> {
        // The mgr refuses reads under a write-only open. Such an open is used only to look for holes, and only if there
        // is no other.
        let readable = !write && self.may_read();
        let mut fit = self.opens.iter().filter(|open| if readable { open.read } else { open.write });
        let locked = fit.clone().find_map(|open| Some((open.lock_of_io(write)?, open)));
        let first = fit.next()?;
        // The delegation first: bytes buffered under it must not reach the file once the mgr has revoked it, although a
        // lock may still be held.
        let delegated = delegation.filter(|_| write).map(|stateid| (stateid, first));
        let (stateid, open) = delegated.or(locked).unwrap_or((first.stateid, first));
        Some((stateid, open.caller.clone()))
    }

    /// Records that bytes were dropped, for every open that can write, until each has reported the error.
    pub(super) fn fail(&mut self, error: &Error) {
        for open in self.opens.iter_mut().filter(|open| open.write) {
            open.error.get_or_insert_with(|| error.clone());
        }
    }

    /// Returns the error that an open has not reported yet, once.
    pub(super) fn take_error(&mut self, key: u64) -> Result<()> {
        self.get_mut(key).and_then(|open| open.error.take()).map_or(Ok(()), Err)
    }

    /// Returns the error like [`OpenStates::take_error`], and keeps it for the next call.
    pub(super) fn see_error(&self, key: u64) -> Result<()> {
        self.get(key).and_then(|open| open.error.clone()).map_or(Ok(()), Err)
    }

    /// Returns every stateid of opens and locks.
    pub(super) fn stateids(&self) -> Vec<stateid4> {
        let locks = self.opens.iter().flat_map(|open| open.locks.values()).filter_map(|locks| locks.stateid);
        // Locks first: when an open goes, its locks go with it.
        locks.chain(self.opens.iter().map(|open| open.stateid)).collect()
    }
}

/// Locks.
impl OpenStates {
    fn owners_mut(&mut self, owner: u64) -> impl Iterator<Item = &mut OwnerLocks> {
        self.opens.iter_mut().filter_map(move |open| open.locks.get_mut(&owner))
    }

    /// Returns the stateid of an open and, if there is one, of this owner's locks under it.
    pub(super) fn lock_stateids(&self, key: u64, owner: u64) -> Option<(stateid4, Option<stateid4>)> {
        let open = self.get(key)?;
        Some((open.stateid, open.locks.get(&owner).and_then(|locks| locks.stateid)))
    }

    /// Returns the locks of an owner under an open that overlap a span; `None` if the open has ended.
    pub(super) fn locks_in(&self, key: u64, owner: u64, span: Span) -> Option<Vec<(Span, LockKind)>> {
        let held = self.get(key)?.locks.get(&owner).map(|locks| locks.spans.overlapping(span)).unwrap_or_default();
        Some(held.iter().map(|held| (held.span, held.kind)).collect())
    }

    /// Returns a stateid of this owner's locks under any open: they are one set (RFC 8881 §9.5).
    pub(super) fn holder(&self, owner: u64) -> Option<stateid4> {
        let mut locks = self.opens.iter().filter_map(|open| open.locks.get(&owner));
        locks.find(|locks| !locks.spans.is_empty()).and_then(|locks| locks.stateid)
    }

    /// Returns whether an open has the mode that locks of this kind need.
    pub(super) fn may_lock(&self, key: u64, kind: LockKind) -> bool {
        self.get(key).is_some_and(|open| if kind == LockKind::Write { open.write } else { open.read })
    }

    /// Records a lock that the mgr granted under an open; returns `false` if the open has ended or has been replaced.
    pub(super) fn locked(&mut self, key: u64, open_stateid: stateid4, lock: stateid4, wanted: Wanted) -> bool {
        let (owner, span, kind) = wanted;
        let same = |open: &Open| open.key == key && open.stateid.other == open_stateid.other;
        if !self.opens.iter().any(same) {
            return false;
        }
        for open in &mut self.opens {
            if same(open) {
                let locks = open.locks.entry(owner).or_default();
                locks.stateid = Some(lock);
                locks.spans.set(span, Some((kind, ())));
            } else if let Some(locks) = open.locks.get_mut(&owner) {
                locks.spans.set(span, None);
            }
        }
        true
    }

    /// Records a released span; returns `false` if the locks were reclaimed in the meantime.
    pub(super) fn unlocked(&mut self, owner: u64, lock: stateid4, span: Span) -> bool {
        let is_known = self.owners_mut(owner).any(|locks| locks.is(lock));
        if is_known {
            self.owners_mut(owner).for_each(|locks| locks.spans.set(span, None));
        }
        is_known
    }

    /// Returns the locks to reclaim under an open that the client has reclaimed, and forgets their stateids, because the
    /// mgr that issued them is gone.
    pub(super) fn locks_to_reclaim(&mut self, key: u64) -> (Option<stateid4>, Vec<Wanted>) {
        let Some(open) = self.get_mut(key) else { return (None, Vec::new()) };
        let mut wanted = Vec::new();
        for (owner, locks) in &mut open.locks {
            locks.stateid = None;
            wanted.extend(locks.spans.iter().map(|held| (*owner, held.span, held.kind)));
        }
        (Some(open.stateid), wanted)
    }

    /// Records that a restarted mgr granted a reclaimed lock.
    pub(super) fn reclaimed(&mut self, key: u64, owner: u64, lock: stateid4) {
        if let Some(locks) = self.get_mut(key).and_then(|open| open.locks.get_mut(&owner)) {
            locks.stateid = Some(lock);
        }
    }

    /// Returns whether a stateid belongs to locks.
    pub(super) fn knows_lock(&self, lock: stateid4) -> bool {
        self.opens.iter().flat_map(|open| open.locks.values()).any(|locks| locks.is(lock))
    }

    /// Forgets a lock stateid that the mgr does not know any more; returns the open and the owner of the locks.
    pub(super) fn forget_lock(&mut self, lock: stateid4) -> Option<(u64, u64)> {
        self.opens.iter_mut().find_map(|open| {
            // Locks that were reclaimed since the request have another stateid and do not match.
            let (owner, locks) = open.locks.iter_mut().find(|(_, locks)| locks.is(lock))?;
            locks.stateid = None;
            Some((open.key, *owner))
        })
    }

    /// Marks the locks under an open as lost: those of one owner, or of all. Returns whether an exclusive lock was among
    /// them.
    pub(super) fn lose_locks(&mut self, key: u64, owner: Option<u64>, why: &Error) -> bool {
        let mut exclusive = false;
        let Some(open) = self.get_mut(key) else { return false };
        for (_, locks) in open.locks.iter_mut().filter(|(o, _)| owner.is_none_or(|owner| owner == **o)) {
            locks.stateid = None;
            if !locks.spans.is_empty() {
                exclusive |= locks.spans.iter().any(|held| held.kind == LockKind::Write);
                locks.spans = Spans::default();
                locks.lost.get_or_insert_with(|| why.clone());
            }
        }
        exclusive
    }

    /// Fails if locks under this open, of one owner or of any, were lost and the owner has not unlocked since.
    pub(super) fn locks_kept(&self, key: u64, owner: Option<u64>) -> Result<()> {
        let open = self.get(key);
        let all = open.into_iter().flat_map(|open| &open.locks).filter(|(o, _)| owner.is_none_or(|owner| owner == **o));
        all.filter_map(|(_, locks)| locks.lost.clone()).next().map_or(Ok(()), Err)
    }

    /// Reports lost locks, once, to an owner that unlocks.
    pub(super) fn acknowledge_loss(&mut self, owner: u64) -> Result<()> {
        self.owners_mut(owner).filter_map(|locks| locks.lost.take()).last().map_or(Ok(()), Err)
    }

    /// Returns every stateid of locks under an open.
    pub(super) fn locks_under(&self, key: u64) -> Vec<stateid4> {
        let open = self.get(key).into_iter();
        open.flat_map(|open| open.locks.values()).filter_map(|locks| locks.stateid).collect()
    }
}
