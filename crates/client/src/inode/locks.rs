//! Byte-range locks of an open file: asked, given back, reclaimed, and lost (RFC 8881 §9, §8.4).
//!
//! What is held here is what the mgr has said; the mgr alone decides. A lock is lost when the mgr gave it to somebody else
//! while this client could not be heard, or would not have it reclaimed. From then on whoever asked for it gets errors from
//! that open, and what was written here and is not durable is given up: it must not land on what others write.

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

/// How long to wait before a lock is asked for again the first time; then twice as long each time, up to the longest.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// Whether others held a lock that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waited(pub(crate) bool);

/// The locks asked under one open, by owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenLocks {
    owners: BTreeMap<u64, OwnerLocks>,
}

/// The locks of one owner under one open.
#[derive(Clone, Debug, Default)]
struct OwnerLocks {
    /// The mgr's name for them, once there were any.
    stateid: Option<stateid4>,
    spans: Spans<()>,
    /// That some were lost, until the owner has taken note by unlocking.
    lost: Option<Error>,
}

impl OpenLocks {
    /// Whether the mgr has locks under the open.
    pub(super) fn are_there(&self) -> bool {
        self.owners.values().any(|locks| locks.stateid.is_some())
    }

    /// The stateid that I/O under these locks goes by, if there are any: for writing rather one of exclusive locks.
    pub(super) fn of_io(&self, write: bool) -> Option<stateid4> {
        let held = self.owners.values().filter(|locks| !locks.spans.is_empty());
        let exclusive = |locks: &&OwnerLocks| locks.spans.iter().any(|held| held.kind == LockKind::Write);
        let best = held.clone().find(|locks| write && exclusive(locks));
        best.or_else(|| held.clone().next()).and_then(|locks| locks.stateid).map(any_age)
    }
}

/// A lock that somebody holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldLock {
    /// Which bytes; a length of `u64::MAX` reaches to the end of the file, whatever it will be.
    pub range: types::ByteRange,
    /// What it keeps others from.
    pub kind: LockKind,
    /// Its owner, if it is one of this mount.
    pub owner: Option<u64>,
}

/// What to reclaim: an owner and one of its locks.
pub(crate) type Wanted = (u64, Span, LockKind);

/// The mgr's answer to LOCK.
enum Answer {
    Granted,
    Denied,
    /// The stateid it was asked under has changed or gone meanwhile.
    Again,
}

/// A LOCK that was sent; whoever asked may be gone before the answer comes, or it may never come.
struct Doubt<'a> {
    inode: &'a Arc<Inode>,
    key: u64,
    owner: u64,
    span: Span,
    kind: LockKind,
    /// Whether there is no answer yet.
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

/// The parts of a span that are not among `held`, which are in order.
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

/// Whatever the number of operations on it so far (RFC 8881 §8.2.2).
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
    /// Asks for a lock; `false` if somebody else holds one in the way. With `wait` the mgr keeps the owner's turn.
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

    /// Asks for a lock until it is had: again when the mgr says that it is free, and now and then as it need not say so.
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
            // Before it is asked for: what is told from then on counts.
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

    /// The mgr says that a lock which it refused may be had.
    pub(crate) fn lock_is_free(&self) {
        self.lock_free.notify_waiters();
    }

    /// Nobody waits any more for the answer to a LOCK: sees to it that the mgr holds what is booked here and no more.
    async fn settle_doubt(&self, key: u64, owner: u64, span: Span, kind: LockKind) -> Result<()> {
        let _one = self.locking.lock().await;
        let held = |inode: &Inode| -> Option<Vec<(Span, LockKind)>> {
            let state = inode.state();
            let open = state.opens.iter().find(|open| open.key == key)?;
            let spans = open.locks.owners.get(&owner).map(|locks| locks.spans.overlapping(span)).unwrap_or_default();
            Some(spans.iter().map(|held| (held.span, held.kind)).collect())
        };
        // With the file closed its locks are gone.
        let Some(before) = held(self) else { return Ok(()) };
        let (mut tries, mut open) = (TRIES, false);
        if self.lock_stateids(key, owner)?.1.is_none() {
            // The answer would have told the stateid; asked again it does.
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
        // What was held may have changed its kind.
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
            // Reclaimed or closed while the answer was on its way: the lock was not among what was reclaimed.
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

    /// Gives bytes back. What was written before is durable, and can be seen by whoever locks them next.
    pub(crate) async fn unlock(self: &Arc<Self>, key: u64, owner: u64, span: Span) -> Result<()> {
        let written = if self.is_written() { self.fsync(key).await } else { Ok(()) };
        self.send_back(owner, span).await.and(written)
    }

    /// As [`Self::unlock`]; failures of writes are left to be told by whoever asks next.
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

    /// The lock that keeps `owner` from one like this.
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

    /// The stateids of the open and, if there are any, of the locks of this owner under it.
    fn lock_stateids(&self, key: u64, owner: u64) -> Result<(stateid4, Option<stateid4>)> {
        let state = self.state();
        let open = state.opens.iter().find(|open| open.key == key);
        let open = open.ok_or_else(|| Error::usage("the file is not open any more"))?;
        Ok((open.stateid, open.locks.owners.get(&owner).and_then(|locks| locks.stateid)))
    }

    /// A stateid of locks of this owner under any open: they are one set (RFC 8881 §9.5).
    fn holder(&self, owner: u64) -> Option<stateid4> {
        let state = self.state();
        let mut locks = state.opens.iter().filter_map(|open| open.locks.owners.get(&owner));
        locks.find(|locks| !locks.spans.is_empty()).and_then(|locks| locks.stateid)
    }

    /// Whether any of its opens is for writing: by one of them may be written what was locked by another.
    fn is_written(&self) -> bool {
        self.state().opens.iter().any(|open| open.write)
    }

    /// Whether a file is open for what locks of this kind need.
    pub(crate) fn may_lock(&self, key: u64, kind: LockKind) -> bool {
        let allows = |open: &Open| if kind == LockKind::Write { open.write } else { open.read };
        self.state().opens.iter().any(|open| open.key == key && allows(open))
    }

    /// Books a lock that the mgr gave, unless the open is not the one any more that it was asked under.
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
        // Whoever had the lock before may have written.
        state.doubt();
        true
    }

    /// Books bytes given back, unless the locks were reclaimed meanwhile.
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

    /// The locks to reclaim under an open that the mgr has opened again.
    pub(crate) fn locks_to_reclaim(&self, key: u64) -> (Option<stateid4>, Vec<Wanted>) {
        let mut state = self.state();
        let Some(open) = state.opens.iter_mut().find(|open| open.key == key) else { return (None, Vec::new()) };
        let mut wanted = Vec::new();
        for (owner, locks) in &mut open.locks.owners {
            // The mgr that made it is gone.
            locks.stateid = None;
            wanted.extend(locks.spans.iter().map(|held| (*owner, held.span, held.kind)));
        }
        (Some(open.stateid), wanted)
    }

    /// The mgr has given a lock again that was held before it restarted.
    pub(crate) fn reclaimed(&self, key: u64, owner: u64, lock: stateid4) {
        let mut state = self.state();
        let open = state.opens.iter_mut().find(|open| open.key == key);
        if let Some(locks) = open.and_then(|open| open.locks.owners.get_mut(&owner)) {
            locks.stateid = Some(lock);
        }
    }

    /// The arguments that reclaim a lock.
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

    /// The mgr refused a stateid of locks that was not made anew meanwhile: it has taken them away, or forgotten them.
    pub(super) async fn lock_refused(&self, lock: stateid4) -> Result<()> {
        self.lock_gone(lock);
        self.mount.session.free_stateid(lock).await
    }

    /// Whether a stateid is of locks held here.
    pub(super) fn knows_lock(&self, stateid: stateid4) -> bool {
        let state = self.state();
        let mut all = state.opens.iter().flat_map(|open| open.locks.owners.values()).filter_map(|locks| locks.stateid);
        all.any(|known| known.other == stateid.other)
    }

    /// The mgr knows no such locks any more.
    pub(crate) fn lock_gone(&self, lock: stateid4) {
        let found = {
            let mut state = self.state();
            let owners = |open: &mut Open| {
                // None has it that was reclaimed since the request was made.
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

    /// Locks asked under an open are lost: those of one owner, or of all.
    pub(crate) fn lose_locks(&self, key: u64, owner: Option<u64>) {
        self.lose_locks_as(key, owner, &lost_error());
    }

    /// As [`Inode::lose_locks`]; the owners of the locks get this error.
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
                state.given_up = state.next_batch;
            }
        }
        if writing {
            tracing::warn!(file = %self.node.id, "locks were lost: what is not durable yet is given up");
            self.abandon();
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

    /// The owner unlocks after locks were lost: it is told, once.
    fn acknowledge_loss(&self, owner: u64) -> Result<()> {
        let mut state = self.state();
        let all = state.opens.iter_mut().filter_map(|open| open.locks.owners.get_mut(&owner));
        all.filter_map(|locks| locks.lost.take()).last().map_or(Ok(()), Err)
    }

    /// Whether a batch holds bytes that must not be written any more.
    pub(super) fn check_given_up(&self, batch: u64) -> Result<()> {
        if batch < self.state().given_up { Err(lost_error()) } else { Ok(()) }
    }

    /// Every stateid of locks under an open.
    pub(super) fn locks_under(&self, key: u64) -> Vec<stateid4> {
        let state = self.state();
        let open = state.opens.iter().find(|open| open.key == key);
        open.into_iter().flat_map(|open| open.locks.owners.values()).filter_map(|locks| locks.stateid).collect()
    }

    /// Every stateid of opens and locks here.
    pub(crate) fn stateids(&self) -> Vec<stateid4> {
        let state = self.state();
        let locks = state.opens.iter().flat_map(|open| open.locks.owners.values()).filter_map(|locks| locks.stateid);
        // Locks first: when an open goes, its locks go with it.
        locks.chain(state.opens.iter().map(|open| open.stateid)).collect()
    }

    /// The mgr said that it has taken away what this stateid stood for.
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
