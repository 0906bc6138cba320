//! Byte-range locks of an open file in the client: lock, unlock, reclaim, and loss (RFC 8881 §9, §8.4).
//!
//! The client records here what the mgr has granted; the mgr alone decides. A lock is lost if the mgr granted it to
//! another client while it could not hear this one, or refused its reclaim. Then the open that requested it returns
//! errors to its users. The client drops its writes that are not durable, because they must not overwrite what other
//! clients write.

use super::opens::TRIES;
use super::{Inode, Open};
use crate::compound::{Compound, Failed, Results, is_state_lost};
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use nfs::spans::{LockKind, Span, Spans};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use wire::nfs4::*;

/// The first pause before the client asks for a lock again. Each later pause is twice as long, up to the longest.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// Whether another owner held a requested lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waited(pub(crate) bool);

/// The locks requested under one open, by owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenLocks {
    owners: BTreeMap<u64, OwnerLocks>,
}

/// The locks of one owner under one open.
#[derive(Clone, Debug, Default)]
struct OwnerLocks {
    /// The mgr's stateid of the locks, once there were any.
    stateid: Option<stateid4>,
    spans: Spans<()>,
    /// The error of lost locks, until the owner acknowledges it by unlocking.
    lost: Option<Error>,
}

impl OpenLocks {
    /// Whether the mgr has lock state under the open.
    pub(super) fn are_there(&self) -> bool {
        self.owners.values().any(|locks| locks.stateid.is_some())
    }

    /// Returns the lock stateid for I/O, if there are locks. For writing, prefers the stateid of exclusive locks.
    pub(super) fn of_io(&self, write: bool) -> Option<stateid4> {
        let held = self.owners.values().filter(|locks| !locks.spans.is_empty());
        let exclusive = |locks: &&OwnerLocks| locks.spans.iter().any(|held| held.kind == LockKind::Write);
        let best = held.clone().find(|locks| write && exclusive(locks));
        best.or_else(|| held.clone().next()).and_then(|locks| locks.stateid).map(any_age)
    }
}

/// A lock that an owner holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldLock {
    /// The locked bytes; a length of `u64::MAX` reaches to the end of the file, whatever the end is.
    pub range: types::ByteRange,
    /// The kind of the lock.
    pub kind: LockKind,
    /// The owner, if the lock belongs to this mount.
    pub owner: Option<u64>,
}

/// A lock to reclaim: its owner, its span and its kind.
pub(crate) type Wanted = (u64, Span, LockKind);

/// The mgr's answer to LOCK.
enum Answer {
    Granted,
    Denied,
    /// The stateid of the request has changed or is gone.
    Again,
}

/// A LOCK request in flight. Its caller may be gone before the answer arrives, or no answer may arrive.
struct Doubt<'a> {
    inode: &'a Arc<Inode>,
    key: u64,
    owner: u64,
    span: Span,
    kind: LockKind,
    /// Whether the answer is still missing.
    open: bool,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let (inode, key, owner, span, kind) = (self.inode.clone(), self.key, self.owner, self.span, self.kind);
        net::task::spawn_on(&self.inode.mount.runtime, async move {
            if let Err(error) = inode.settle_doubt(key, owner, span, kind).await {
                tracing::warn!(file = %inode.node.id, "undoing a lock that nobody waits for: {error}");
            }
        });
    }
}

/// Returns the parts of a span that are not in `held`, which is sorted.
fn gaps(span: Span, held: &[(Span, LockKind)]) -> Vec<Span> {
    let mut gaps = Vec::new();
    let mut from = Some(span.first);
    for (held, _) in held {
        if let Some(first) = from.filter(|first| *first < held.first) {
            gaps.push(Span { first, last: held.first - 1 });
        }
        from = held.last.checked_add(1);
    }
    gaps.extend(from.filter(|first| *first <= span.last).map(|first| Span { first, last: span.last }));
    gaps
}

fn lock_owner(owner: u64) -> lock_owner4 {
    lock_owner4 { clientid: 0, owner: Bytes::copy_from_slice(&owner.to_be_bytes()) }
}

/// Returns the stateid with seqid 0, which matches any seqid (RFC 8881 §8.2.2).
fn any_age(stateid: stateid4) -> stateid4 {
    stateid4 { seqid: 0, ..stateid }
}

fn lock_type(kind: LockKind, wait: bool) -> nfs_lock_type4 {
    match (kind, wait) {
        (LockKind::Read, false) => READ_LT,
        (LockKind::Read, true) => READW_LT,
        (LockKind::Write, false) => WRITE_LT,
        (LockKind::Write, true) => WRITEW_LT,
    }
}

pub(super) fn lost_error() -> Error {
    let why = "a lock was lost: the mgr could not hear this client for longer than a lease and gave it away, or did not \
               have it reclaimed; unlock, or close the file, and look at what others wrote";
    Error::new(ErrorKind::LockLost, why)
}

impl Inode {
    /// Requests a lock; returns `false` if another owner holds a conflicting one. With `wait` the mgr queues the owner.
    pub(crate) async fn lock(
        self: &Arc<Self>,
        key: u64,
        owner: u64,
        span: Span,
        kind: LockKind,
        wait: bool,
    ) -> Result<bool> {
        let _one = self.locking.lock().await;
        let mut tries = TRIES;
        let mut doubt = Doubt { inode: self, key, owner, span, kind, open: false };
        loop {
            self.locks_kept(key, owner)?;
            match self.ask_lock(key, owner, (span, kind), wait, &mut tries, &mut doubt.open).await? {
                Answer::Granted => return Ok(true),
                Answer::Denied => return Ok(false),
                Answer::Again => {}
            }
        }
    }

    /// Requests a lock until it is granted: again when the mgr says that it is free, and from time to time, as the mgr
    /// need not say so.
    pub(crate) async fn wait_for_lock(
        self: &Arc<Self>,
        key: u64,
        owner: u64,
        span: Span,
        kind: LockKind,
    ) -> Result<Waited> {
        let mut pause = PAUSE;
        let mut waited = Waited(false);
        loop {
            // Enabled before the request, so that no notification is missed.
            let mut free = std::pin::pin!(self.lock_free.notified());
            free.as_mut().enable();
            if self.lock(key, owner, span, kind, true).await? {
                return Ok(waited);
            }
            waited = Waited(true);
            let _ = tokio::time::timeout(pause, free).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// Handles the mgr's notice that a refused lock is available.
    pub(crate) fn lock_is_free(&self) {
        self.lock_free.notify_waiters();
    }

    /// Makes the mgr's locks match those booked here, after a LOCK whose answer nobody waits for.
    async fn settle_doubt(&self, key: u64, owner: u64, span: Span, kind: LockKind) -> Result<()> {
        let _one = self.locking.lock().await;
        let held = |inode: &Inode| -> Option<Vec<(Span, LockKind)>> {
            let state = inode.state();
            let open = state.opens.iter().find(|open| open.key == key)?;
            let spans = open.locks.owners.get(&owner).map(|locks| locks.spans.overlapping(span)).unwrap_or_default();
            Some(spans.iter().map(|held| (held.span, held.kind)).collect())
        };
        // If the file is closed, its locks are gone.
        let Some(before) = held(self) else { return Ok(()) };
        let (mut tries, mut open) = (TRIES, false);
        if self.lock_stateids(key, owner)?.1.is_none() {
            // The lost answer contained the stateid; a repeated request returns it.
            match self.ask_lock(key, owner, (span, kind), false, &mut tries, &mut open).await? {
                Answer::Granted => {}
                Answer::Denied | Answer::Again => return Ok(()),
            }
        }
        let Some(lock) = self.lock_stateids(key, owner)?.1 else { return Ok(()) };
        for gap in gaps(span, &before) {
            self.send_unlock(lock, gap).await?;
            self.unlocked(owner, lock, gap);
        }
        // A lock that was held before may have changed its kind.
        for (span, kind) in before {
            if !matches!(self.ask_lock(key, owner, (span, kind), false, &mut tries, &mut open).await?, Answer::Granted)
            {
                self.lose_locks(key, Some(owner));
            }
        }
        Ok(())
    }

    async fn send_unlock(&self, lock: stateid4, span: Span) -> Result<Results> {
        let (offset, length) = (span.first, span.length());
        let args = LOCKU4args { locktype: WRITE_LT, seqid: 0, lock_stateid: any_age(lock), offset, length };
        let mut compound = Compound::new("unlocking").cached();
        compound.putfh(&self.node.handle).op(OP_LOCKU, &args);
        let mut results = self.mount.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        Ok(results)
    }

    async fn ask_lock(
        &self,
        key: u64,
        owner: u64,
        (span, kind): (Span, LockKind),
        wait: bool,
        tries: &mut u32,
        in_doubt: &mut bool,
    ) -> Result<Answer> {
        let (open, known) = self.lock_stateids(key, owner)?;
        let locker = match known {
            Some(lock) => locker4::FALSE(exist_lock_owner4 { lock_stateid: any_age(lock), lock_seqid: 0 }),
            None => locker4::TRUE(open_to_lock_owner4 {
                open_seqid: 0,
                open_stateid: any_age(open),
                lock_seqid: 0,
                lock_owner: lock_owner(owner),
            }),
        };
        let locktype = lock_type(kind, wait);
        let args = LOCK4args { locktype, reclaim: false, offset: span.first, length: span.length(), locker };
        let mut compound = Compound::new("locking").cached();
        compound.putfh(&self.node.handle).op(OP_LOCK, &args);
        *in_doubt = true;
        let mut results = self.mount.session.call(compound).await?;
        *in_doubt = false;
        results.done(&[OP_PUTFH])?;
        match results.raw::<LOCK4resok>(OP_LOCK) {
            Ok(got) if self.locked(key, owner, open, got.lock_stateid, (span, kind)) => Ok(Answer::Granted),
            Err(Failed::Nfs(NFS4ERR_DENIED)) => Ok(Answer::Denied),
            // The open was reclaimed or closed while the answer was on its way, and the lock was not among the
            // reclaimed ones.
            Ok(_) => self.again(tries, lost_error()),
            Err(failed @ Failed::Nfs(status)) if is_state_lost(status) => {
                let error = results.error(&failed);
                match known {
                    Some(lock) => self.lock_refused(lock).await?,
                    None => self.open_again(open, tries, error.clone()).await?,
                }
                self.again(tries, error)
            }
            Err(failed) => Err(results.error(&failed)),
        }
    }

    fn again(&self, tries: &mut u32, error: Error) -> Result<Answer> {
        *tries = tries.checked_sub(1).ok_or(error)?;
        Ok(Answer::Again)
    }

    /// Releases a range after earlier writes are durable, so that the next lock holder sees them.
    pub(crate) async fn unlock(self: &Arc<Self>, key: u64, owner: u64, span: Span) -> Result<()> {
        let written = if self.is_written() { self.fsync(key).await } else { Ok(()) };
        self.send_back(owner, span).await.and(written)
    }

    /// Releases a range like [`Self::unlock`], and leaves write errors for the next call that reports them.
    pub(crate) async fn unlock_quietly(self: &Arc<Self>, key: u64, owner: u64, span: Span) -> Result<()> {
        let written = self.flush(key).await;
        self.send_back(owner, span).await.and(written)
    }

    async fn send_back(&self, owner: u64, span: Span) -> Result<()> {
        let _one = self.locking.lock().await;
        let mut tries = TRIES;
        loop {
            self.acknowledge_loss(owner)?;
            let Some(lock) = self.holder(owner) else { return Ok(()) };
            let mut results = self.send_unlock(lock, span).await?;
            match results.raw::<stateid4>(OP_LOCKU) {
                Ok(_) if self.unlocked(owner, lock, span) => return Ok(()),
                Ok(_) => {}
                Err(failed @ Failed::Nfs(status)) if is_state_lost(status) => {
                    tries = tries.checked_sub(1).ok_or_else(|| results.error(&failed))?;
                    self.lock_refused(lock).await?;
                }
                Err(failed) => return Err(results.error(&failed)),
            }
        }
    }

    /// Returns a lock that prevents `owner` from locking this range.
    pub(crate) async fn test_lock(&self, owner: u64, span: Span, kind: LockKind) -> Result<Option<HeldLock>> {
        let args = LOCKT4args {
            locktype: lock_type(kind, false),
            offset: span.first,
            length: span.length(),
            owner: lock_owner(owner),
        };
        let mut compound = Compound::new("testing a lock");
        compound.putfh(&self.node.handle).op(OP_LOCKT, &args);
        let mut results = self.mount.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        match results.raw::<wire::native::Nothing>(OP_LOCKT) {
            Ok(_) => Ok(None),
            Err(Failed::Nfs(NFS4ERR_DENIED)) => {
                let by: LOCK4denied = results.behind_failure()?;
                let span = Span::new(by.offset, by.length);
                let span = span.ok_or_else(|| Error::protocol("the mgr told of a lock that makes no sense"))?;
                let kind = if matches!(by.locktype, READ_LT | READW_LT) { LockKind::Read } else { LockKind::Write };
                let ours = self.mount.session.clientid() == Some(by.owner.clientid);
                let owner = by.owner.owner[..].try_into().ok().map(u64::from_be_bytes).filter(|_| ours);
                Ok(Some(HeldLock { range: span.into(), kind, owner }))
            }
            Err(failed) => Err(results.error(&failed)),
        }
    }

    /// Returns the stateid of the open and, if there is one, of this owner's locks under it.
    fn lock_stateids(&self, key: u64, owner: u64) -> Result<(stateid4, Option<stateid4>)> {
        let state = self.state();
        let open = state.opens.iter().find(|open| open.key == key);
        let open = open.ok_or_else(|| Error::usage("the file is not open any more"))?;
        Ok((open.stateid, open.locks.owners.get(&owner).and_then(|locks| locks.stateid)))
    }

    /// Returns a stateid of this owner's locks under any open: they are one set (RFC 8881 §9.5).
    fn holder(&self, owner: u64) -> Option<stateid4> {
        let state = self.state();
        let mut locks = state.opens.iter().filter_map(|open| open.locks.owners.get(&owner));
        locks.find(|locks| !locks.spans.is_empty()).and_then(|locks| locks.stateid)
    }

    /// Whether any open here is for writing: one open may write what another one locked.
    fn is_written(&self) -> bool {
        self.state().opens.iter().any(|open| open.write)
    }

    /// Whether a file is open in the mode that locks of this kind need.
    pub(crate) fn may_lock(&self, key: u64, kind: LockKind) -> bool {
        let allows = |open: &Open| if kind == LockKind::Write { open.write } else { open.read };
        self.state().opens.iter().any(|open| open.key == key && allows(open))
    }

    /// Books a lock that the mgr granted, unless the open under which it was requested has been replaced.
    fn locked(
        &self,
        key: u64,
        owner: u64,
        open_stateid: stateid4,
        lock: stateid4,
        (span, kind): (Span, LockKind),
    ) -> bool {
        let mut state = self.state();
        let same = |open: &Open| open.key == key && open.stateid.other == open_stateid.other;
        if !state.opens.iter().any(same) {
            return false;
        }
        for open in &mut state.opens {
            if same(open) {
                let locks = open.locks.owners.entry(owner).or_default();
                locks.stateid = Some(lock);
                locks.spans.set(span, Some((kind, ())));
            } else if let Some(locks) = open.locks.owners.get_mut(&owner) {
                locks.spans.set(span, None);
            }
        }
        // The previous lock holder may have written.
        state.size.doubt();
        true
    }

    /// Books a released span, unless the locks were reclaimed in the meantime.
    fn unlocked(&self, owner: u64, lock: stateid4, span: Span) -> bool {
        let mut state = self.state();
        let all = state.opens.iter_mut().filter_map(|open| open.locks.owners.get_mut(&owner));
        let all: Vec<_> = all.collect();
        if !all.iter().any(|locks| locks.stateid.is_some_and(|s| s.other == lock.other)) {
            return false;
        }
        all.into_iter().for_each(|locks| locks.spans.set(span, None));
        true
    }

    /// Returns the locks to reclaim under an open that the client has reclaimed.
    pub(crate) fn locks_to_reclaim(&self, key: u64) -> (Option<stateid4>, Vec<Wanted>) {
        let mut state = self.state();
        let Some(open) = state.opens.iter_mut().find(|open| open.key == key) else { return (None, Vec::new()) };
        let mut wanted = Vec::new();
        for (owner, locks) in &mut open.locks.owners {
            // The mgr that issued it is gone.
            locks.stateid = None;
            wanted.extend(locks.spans.iter().map(|held| (*owner, held.span, held.kind)));
        }
        (Some(open.stateid), wanted)
    }

    /// Records that a restarted mgr granted a reclaimed lock.
    pub(crate) fn reclaimed(&self, key: u64, owner: u64, lock: stateid4) {
        let mut state = self.state();
        let open = state.opens.iter_mut().find(|open| open.key == key);
        if let Some(locks) = open.and_then(|open| open.locks.owners.get_mut(&owner)) {
            locks.stateid = Some(lock);
        }
    }

    /// Returns the arguments that reclaim a lock.
    pub(crate) fn reclaim_args(open: stateid4, (owner, span, kind): Wanted) -> LOCK4args {
        let locker = locker4::TRUE(open_to_lock_owner4 {
            open_seqid: 0,
            open_stateid: any_age(open),
            lock_seqid: 0,
            lock_owner: lock_owner(owner),
        });
        let (locktype, offset, length) = (lock_type(kind, false), span.first, span.length());
        LOCK4args { locktype, reclaim: true, offset, length, locker }
    }

    /// Handles a lock stateid that the mgr refused and that was not replaced in the meantime: the mgr has revoked or
    /// forgotten the locks.
    pub(super) async fn lock_refused(&self, lock: stateid4) -> Result<()> {
        self.lock_gone(lock);
        self.mount.session.free_stateid(lock).await
    }

    /// Whether a stateid belongs to locks held here.
    pub(super) fn knows_lock(&self, stateid: stateid4) -> bool {
        let state = self.state();
        let mut all = state.opens.iter().flat_map(|open| open.locks.owners.values()).filter_map(|locks| locks.stateid);
        all.any(|known| known.other == stateid.other)
    }

    /// Handles locks that the mgr does not know any more.
    pub(crate) fn lock_gone(&self, lock: stateid4) {
        let found = {
            let mut state = self.state();
            let owners = |open: &mut Open| {
                // Locks that were reclaimed since the request have another stateid and do not match.
                let mut owners = open.locks.owners.iter_mut();
                let (owner, locks) = owners.find(|(_, locks)| locks.stateid.is_some_and(|s| s.other == lock.other))?;
                locks.stateid = None;
                Some((open.key, *owner))
            };
            state.opens.iter_mut().find_map(owners)
        };
        if let Some((key, owner)) = found {
            self.lose_locks(key, Some(owner));
        }
    }

    /// Marks the locks under an open as lost: those of one owner, or of all.
    pub(crate) fn lose_locks(&self, key: u64, owner: Option<u64>) {
        self.lose_locks_as(key, owner, &lost_error());
    }

    /// Marks locks as lost like [`Inode::lose_locks`]; their owners get this error.
    pub(crate) fn lose_locks_as(&self, key: u64, owner: Option<u64>, why: &Error) {
        let mut writing = false;
        {
            let mut state = self.state();
            let Some(open) = state.opens.iter_mut().find(|open| open.key == key) else { return };
            for (_, locks) in open.locks.owners.iter_mut().filter(|(o, _)| owner.is_none_or(|owner| owner == **o)) {
                locks.stateid = None;
                if !locks.spans.is_empty() {
                    writing |= locks.spans.iter().any(|held| held.kind == LockKind::Write);
                    locks.spans = Spans::default();
                    locks.lost.get_or_insert_with(|| why.clone());
                }
            }
            if writing {
                self.mount.window.release(state.dirty.give_up());
            }
        }
        if writing {
            tracing::warn!(file = %self.node.id, "locks were lost: what is not durable yet is given up");
            self.fail(why.clone());
        }
    }

    /// Fails if locks of this owner under this open were lost and it has not unlocked since.
    fn locks_kept(&self, key: u64, owner: u64) -> Result<()> {
        let state = self.state();
        let open = state.opens.iter().find(|open| open.key == key);
        let lost = open.and_then(|open| open.locks.owners.get(&owner)).and_then(|locks| locks.lost.clone());
        lost.map_or(Ok(()), Err)
    }

    /// Fails if locks under this open were lost and their owners have not unlocked since.
    pub(crate) fn all_locks_kept(&self, key: u64) -> Result<()> {
        let state = self.state();
        let open = state.opens.iter().find(|open| open.key == key);
        let lost = open.and_then(|open| open.locks.owners.values().find_map(|locks| locks.lost.clone()));
        lost.map_or(Ok(()), Err)
    }

    /// Reports lost locks, once, to an owner that unlocks.
    fn acknowledge_loss(&self, owner: u64) -> Result<()> {
        let mut state = self.state();
        let all = state.opens.iter_mut().filter_map(|open| open.locks.owners.get_mut(&owner));
        all.filter_map(|locks| locks.lost.take()).last().map_or(Ok(()), Err)
    }

    /// Fails if a batch holds bytes that must not be written any more.
    pub(super) fn check_given_up(&self, batch: u64) -> Result<()> {
        if self.state().dirty.is_given_up(batch) { Err(lost_error()) } else { Ok(()) }
    }

    /// Returns every stateid of locks under an open.
    pub(super) fn locks_under(&self, key: u64) -> Vec<stateid4> {
        let state = self.state();
        let open = state.opens.iter().find(|open| open.key == key);
        open.into_iter().flat_map(|open| open.locks.owners.values()).filter_map(|locks| locks.stateid).collect()
    }

    /// Returns every stateid of opens and locks here.
    pub(crate) fn stateids(&self) -> Vec<stateid4> {
        let state = self.state();
        let locks = state.opens.iter().flat_map(|open| open.locks.owners.values()).filter_map(|locks| locks.stateid);
        // Locks first: when an open goes, its locks go with it.
        locks.chain(state.opens.iter().map(|open| open.stateid)).collect()
    }

    /// Handles the mgr's report that it has revoked a stateid.
    pub(crate) async fn revoked(&self, stateid: stateid4) {
        self.lose_layout().await;
        self.lock_gone(stateid);
        let error = Error::status(types::Status::Io, "the mgr has closed the file, which another client wanted");
        let mut tries = TRIES;
        if let Err(error) = self.open_again(stateid, &mut tries, error).await {
            self.fail(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_is_not_held() {
        let at = |first, last| Span { first, last };
        let held = [(at(0, 2), LockKind::Read), (at(5, 5), LockKind::Write), (at(6, 8), LockKind::Read)];
        assert_eq!(gaps(at(1, 10), &held), [at(3, 4), at(9, 10)]);
        assert_eq!(gaps(at(4, 7), &held[1..]), [at(4, 4)]);
        assert_eq!(gaps(at(3, u64::MAX), &[(at(9, u64::MAX), LockKind::Read)]), [at(3, 8)]);
        assert_eq!(gaps(at(3, 4), &[]), [at(3, 4)]);
    }
}
