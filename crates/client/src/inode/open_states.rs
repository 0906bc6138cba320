//! The opens of a file on this client: their stateids and access modes, the locks requested under them, and the errors
//! that each open has yet to report.

#[cfg(test)]
mod tests;

use crate::compound::Caller;
use crate::{Error, Result};
use nfs::spans::{LockKind, Span, Spans};
use std::collections::BTreeMap;
use wire::nfs4::stateid4;

/// A lock to reclaim: its owner, range and kind.
pub(crate) type LockToReclaim = (u64, Span, LockKind);

/// An open of the file at the mgr.
#[derive(Clone)]
pub(crate) struct Open {
    /// The identifier of the open owner.
    pub(crate) key: u64,
    pub(super) stateid: stateid4,
    /// The credentials of the caller that opened the file.
    pub(crate) caller: Caller,
    pub(super) read: bool,
    pub(super) write: bool,
    /// The write error that the open has not reported yet.
    error: Option<Error>,
    /// The locks that owners requested under this open, by owner.
    locks: BTreeMap<u64, OwnerLocks>,
}

/// The locks of one owner under one open.
#[derive(Clone, Default)]
struct OwnerLocks {
    /// The lock stateid that the mgr issued, if it has granted a lock.
    stateid: Option<stateid4>,
    spans: Spans<()>,
    /// The error for lost locks, until the owner acknowledges the loss by unlocking.
    lost: Option<Error>,
}

/// The opens of one file.
#[derive(Clone, Default)]
pub(super) struct OpenStates {
    opens: Vec<Open>,
}

/// Returns the stateid with seqid 0, which stands for the current seqid (RFC 8881 §8.2.2).
pub(super) fn any_age(stateid: stateid4) -> stateid4 {
    stateid4 { seqid: 0, ..stateid }
}

impl OwnerLocks {
    fn is(&self, lock: stateid4) -> bool {
        self.stateid.is_some_and(|stateid| stateid.other == lock.other)
    }
}

impl Open {
    /// Creates an open with this open owner and access mode.
    pub(super) fn new(key: u64, caller: Caller, stateid: stateid4, (read, write): (bool, bool)) -> Self {
        Open { key, stateid, caller, read, write, error: None, locks: BTreeMap::new() }
    }

    /// Returns whether the open allows both reading and writing.
    pub(super) fn is_for_both(&self) -> bool {
        self.read && self.write
    }

    /// Returns whether the mgr has issued a lock stateid under the open.
    pub(super) fn has_locks(&self) -> bool {
        self.locks.values().any(|locks| locks.stateid.is_some())
    }

    /// Returns a lock stateid for I/O, if the open has locks. For writes, prefers the stateid of an owner with an
    /// exclusive lock.
    fn lock_of_io(&self, write: bool) -> Option<stateid4> {
        let held = self.locks.values().filter(|locks| !locks.spans.is_empty());
        let exclusive = |locks: &&OwnerLocks| locks.spans.iter().any(|held| held.kind == LockKind::Write);
        let best = held.clone().find(|locks| write && exclusive(locks));
        best.or_else(|| held.clone().next()).and_then(|locks| locks.stateid).map(any_age)
    }
}

/// The opens and the errors that they have to report.
impl OpenStates {
    pub(super) fn add(&mut self, open: Open) {
        self.opens.push(open);
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<Open> {
        let at = self.opens.iter().position(|open| open.key == key)?;
        Some(self.opens.remove(at))
    }

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

    /// Sets the stateid of an open after the client opened the file again at the mgr.
    pub(super) fn reopened(&mut self, key: u64, stateid: stateid4) {
        if let Some(open) = self.get_mut(key) {
            open.stateid = stateid;
        }
    }

    /// Returns a stateid for a read, or for a write if `write`, and the credentials of the open that it belongs to.
    /// `delegation` is the stateid of a write delegation, if the client holds one.
    pub(super) fn suitable(&self, write: bool, delegation: Option<stateid4>) -> Option<(stateid4, Caller)> {
        // The mgr refuses READ under a write-only open, but allows SEEK. So use a write-only open only if the client
        // has no other open of the file.
        let readable = !write && self.may_read();
        let mut fit = self.opens.iter().filter(|open| if readable { open.read } else { open.write });
        let locked = fit.clone().find_map(|open| Some((open.lock_of_io(write)?, open)));
        let first = fit.next()?;
        // Prefer the delegation stateid to lock stateids. The mgr then refuses bytes buffered under a revoked
        // delegation, even if the client still holds a lock.
        let delegated = delegation.filter(|_| write).map(|stateid| (stateid, first));
        let (stateid, open) = delegated.or(locked).unwrap_or((first.stateid, first));
        Some((stateid, open.caller.clone()))
    }

    /// Records the loss of written bytes. Each open for writing will report the error once.
    pub(super) fn fail(&mut self, error: &Error) {
        for open in self.opens.iter_mut().filter(|open| open.write) {
            open.error.get_or_insert_with(|| error.clone());
        }
    }

    /// Returns the write error that an open has not reported yet, and clears it.
    pub(super) fn take_error(&mut self, key: u64) -> Result<()> {
        self.get_mut(key).and_then(|open| open.error.take()).map_or(Ok(()), Err)
    }

    /// Returns the unreported write error of an open like [`OpenStates::take_error`], but does not clear the error.
    pub(super) fn see_error(&self, key: u64) -> Result<()> {
        self.get(key).and_then(|open| open.error.clone()).map_or(Ok(()), Err)
    }

    /// Returns the stateids of all opens and locks.
    pub(super) fn stateids(&self) -> Vec<stateid4> {
        let locks = self.opens.iter().flat_map(|open| open.locks.values()).filter_map(|locks| locks.stateid);
        // List lock stateids before opens, because the end of an open also ends its locks.
        locks.chain(self.opens.iter().map(|open| open.stateid)).collect()
    }
}

/// The byte-range locks of the opens.
impl OpenStates {
    fn owners_mut(&mut self, owner: u64) -> impl Iterator<Item = &mut OwnerLocks> {
        self.opens.iter_mut().filter_map(move |open| open.locks.get_mut(&owner))
    }

    /// Returns the stateid of an open, and the lock stateid of the owner under this open, if the mgr has issued one.
    pub(super) fn lock_stateids(&self, key: u64, owner: u64) -> Option<(stateid4, Option<stateid4>)> {
        let open = self.get(key)?;
        Some((open.stateid, open.locks.get(&owner).and_then(|locks| locks.stateid)))
    }

    /// Returns the locks of an owner under an open that overlap a range; `None` if the open has ended.
    pub(super) fn locks_in(&self, key: u64, owner: u64, span: Span) -> Option<Vec<(Span, LockKind)>> {
        let held = self.get(key)?.locks.get(&owner).map(|locks| locks.spans.overlapping(span)).unwrap_or_default();
        Some(held.iter().map(|held| (held.span, held.kind)).collect())
    }

    /// Returns the stateid of this owner's locks under any open: an owner's locks on a file form one set (RFC 8881
    /// §9.5).
    pub(super) fn holder(&self, owner: u64) -> Option<stateid4> {
        let mut locks = self.opens.iter().filter_map(|open| open.locks.get(&owner));
        locks.find(|locks| !locks.spans.is_empty()).and_then(|locks| locks.stateid)
    }

    /// Returns whether an open has the access mode that a lock of this kind requires.
    pub(super) fn may_lock(&self, key: u64, kind: LockKind) -> bool {
        self.get(key).is_some_and(|open| if kind == LockKind::Write { open.write } else { open.read })
    }

    /// Records a lock that the mgr granted under an open. Returns `false` if the file was closed, or if the client has
    /// opened it again under another stateid.
    pub(super) fn locked(&mut self, key: u64, open_stateid: stateid4, lock: stateid4, wanted: LockToReclaim) -> bool {
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

    /// Records that an owner released a range. Returns `false` if the client has meanwhile reclaimed the locks under
    /// another stateid.
    pub(super) fn unlocked(&mut self, owner: u64, lock: stateid4, span: Span) -> bool {
        let is_known = self.owners_mut(owner).any(|locks| locks.is(lock));
        if is_known {
            self.owners_mut(owner).for_each(|locks| locks.spans.set(span, None));
        }
        is_known
    }

    /// Returns the locks to reclaim under an open that the client has reclaimed. Forgets the lock stateids, because the
    /// mgr has restarted and does not know them.
    pub(super) fn locks_to_reclaim(&mut self, key: u64) -> (Option<stateid4>, Vec<LockToReclaim>) {
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

    /// Returns whether a stateid belongs to locks of this file.
    pub(super) fn knows_lock(&self, lock: stateid4) -> bool {
        self.opens.iter().flat_map(|open| open.locks.values()).any(|locks| locks.is(lock))
    }

    /// Forgets a lock stateid that the mgr does not know any more. Returns the open and the lock owner that had this
    /// stateid, if any.
    pub(super) fn forget_lock(&mut self, lock: stateid4) -> Option<(u64, u64)> {
        self.opens.iter_mut().find_map(|open| {
            // Locks that the client has reclaimed from a restarted mgr have another stateid, so the client keeps these
            // locks.
            let (owner, locks) = open.locks.iter_mut().find(|(_, locks)| locks.is(lock))?;
            locks.stateid = None;
            Some((open.key, *owner))
        })
    }

    /// Marks locks under an open as lost: those of `owner`, or of all owners if `None`. Returns whether a lost lock was
    /// exclusive.
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

    /// Returns an error if the client lost locks of `owner` (`None`: of any owner) under this open, and the owner has
    /// not unlocked after the loss.
    pub(super) fn locks_kept(&self, key: u64, owner: Option<u64>) -> Result<()> {
        let open = self.get(key);
        let all = open.into_iter().flat_map(|open| &open.locks).filter(|(o, _)| owner.is_none_or(|owner| owner == **o));
        all.filter_map(|(_, locks)| locks.lost.clone()).next().map_or(Ok(()), Err)
    }

    /// Reports the loss of an owner's locks once, when the owner unlocks.
    pub(super) fn acknowledge_loss(&mut self, owner: u64) -> Result<()> {
        self.owners_mut(owner).filter_map(|locks| locks.lost.take()).last().map_or(Ok(()), Err)
    }

    /// Returns the stateids of all locks under an open.
    pub(super) fn locks_under(&self, key: u64) -> Vec<stateid4> {
        let open = self.get(key).into_iter();
        open.flat_map(|open| open.locks.values()).filter_map(|locks| locks.stateid).collect()
    }
}
