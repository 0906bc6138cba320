//! Byte-range locks of an open file in the client: lock, unlock, reclaim, and loss (RFC 8881 §9, §8.4).
//!
//! The mgr decides about locks; the client records the locks that the mgr granted. A lock is lost if the client's lease
//! expired and the mgr granted the lock to another client, or if the mgr refused a reclaim. Then every operation on the
//! open that requested the lock fails. The client drops its bytes that are not durable, because they could overwrite
//! newer bytes of other clients.

use super::Inode;
use super::open_states::{LockToReclaim, any_age};
use super::opens::TRIES;
use crate::compound::{Compound, Failed, Results, is_state_lost};
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use nfs::spans::{LockKind, Span};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use wire::nfs4::*;

/// The first pause before the client requests a denied lock again. Each later pause is twice as long, up to
/// `PAUSE_LONGEST`.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// Whether the caller had to wait for the lock, because another owner held a conflicting lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waited(pub(crate) bool);

/// A lock that an owner holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldLock {
    /// The locked range. A length of `u64::MAX` means up to the end of the file, however long it becomes.
    pub range: types::ByteRange,
    /// The kind of the lock.
    pub kind: LockKind,
    /// The lock owner, if the lock belongs to this mount; `None` if it belongs to another client.
    pub owner: Option<u64>,
}

/// The mgr's reply to a LOCK request.
enum LockReply {
    Granted,
    Denied,
    /// The stateid in the request is outdated or no longer valid: the client must send the request again under another
    /// stateid.
    Again,
}

/// A LOCK request in flight. If the caller is cancelled or the reply is lost, the client does not know whether the mgr
/// granted the lock. Dropping this value then starts a task that gives the lock back ([`Inode::settle_doubt`]).
struct LockInFlight<'a> {
    inode: &'a Arc<Inode>,
    key: u64,
    owner: u64,
    span: Span,
    kind: LockKind,
    /// Whether the client has sent LOCK and has no reply yet.
    open: bool,
}

impl Drop for LockInFlight<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let (inode, key, owner, span, kind) = (self.inode.clone(), self.key, self.owner, self.span, self.kind);
        net::task::spawn_on(&self.inode.mount.runtime, async move {
            if let Err(error) = inode.locking.hold(pin!(inode.settle_doubt(key, owner, span, kind))).await {
                tracing::warn!(file = %inode.node.id, "releasing a lock whose request was cancelled: {error}");
            }
        });
    }
}

/// Returns the parts of `span` that no lock in `held` covers; `held` is sorted.
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

fn lock_type(kind: LockKind, wait: bool) -> nfs_lock_type4 {
    match (kind, wait) {
        (LockKind::Read, false) => READ_LT,
        (LockKind::Read, true) => READW_LT,
        (LockKind::Write, false) => WRITE_LT,
        (LockKind::Write, true) => WRITEW_LT,
    }
}

pub(super) fn lost_error() -> Error {
    let why = "a lock was lost: the mgr did not hear from this client for longer than a lease, or refused to grant the lock again after a \
               restart; unlock or close the file, and check what other clients wrote";
    Error::new(ErrorKind::LockLost, why)
}

impl Inode {
    /// Requests a lock; returns `false` if another owner holds a conflicting lock. With `wait`, the mgr queues the
    /// request.
    pub(crate) async fn lock(
        self: &Arc<Self>,
        key: u64,
        owner: u64,
        span: Span,
        kind: LockKind,
        wait: bool,
    ) -> Result<bool> {
        let ask = async {
            let mut tries = TRIES;
            let mut in_flight = LockInFlight { inode: self, key, owner, span, kind, open: false };
            loop {
                self.locks_kept(key, owner)?;
                match self.ask_lock(key, owner, (span, kind), wait, &mut tries, &mut in_flight.open).await? {
                    LockReply::Granted => return Ok(true),
                    LockReply::Denied => return Ok(false),
                    LockReply::Again => {}
                }
            }
        };
        self.locking.hold(pin!(ask)).await
    }

    /// Requests a lock until the mgr grants it. The client repeats the request when the mgr notifies it that the lock
    /// is free, and periodically, because the mgr may omit the notification.
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
            // Enable the notification before sending the LOCK request, so that the task misses no notification.
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

    /// Handles the mgr's notification (CB_NOTIFY_LOCK) that a denied lock may be free.
    pub(crate) fn lock_is_free(&self) {
        self.lock_free.notify_waiters();
    }

    /// Undoes a LOCK whose reply the client did not process, so that the owner has the same locks at the mgr as on this
    /// client.
    async fn settle_doubt(&self, key: u64, owner: u64, span: Span, kind: LockKind) -> Result<()> {
        // If the file is closed, the mgr has released the owner's locks, so there is nothing to do.
        let Some(before) = self.state().opens.locks_in(key, owner, span) else { return Ok(()) };
        let (mut tries, mut open) = (TRIES, false);
        if self.lock_stateids(key, owner)?.1.is_none() {
            // To unlock, the client needs the lock stateid, which was in the lost reply. The reply to another LOCK of
            // the same range contains this stateid too.
            match self.ask_lock(key, owner, (span, kind), false, &mut tries, &mut open).await? {
                LockReply::Granted => {}
                LockReply::Denied | LockReply::Again => return Ok(()),
            }
        }
        let Some(lock) = self.lock_stateids(key, owner)?.1 else { return Ok(()) };
        for gap in gaps(span, &before) {
            self.send_unlock(lock, gap).await?;
            self.state().opens.unlocked(owner, lock, gap);
        }
        // The LOCK may have changed earlier locks of the owner from shared to exclusive, or back: restore the earlier
        // locks.
        for (span, kind) in before {
            if !matches!(
                self.ask_lock(key, owner, (span, kind), false, &mut tries, &mut open).await?,
                LockReply::Granted
            ) {
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
    ) -> Result<LockReply> {
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
            Ok(got) if self.locked(key, owner, open, got.lock_stateid, (span, kind)) => Ok(LockReply::Granted),
            Err(Failed::Nfs(NFS4ERR_DENIED)) => Ok(LockReply::Denied),
            // While LOCK was in flight, the file was closed, or the client reclaimed the open without this lock:
            // request the lock again.
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

    fn again(&self, tries: &mut u32, error: Error) -> Result<LockReply> {
        *tries = tries.checked_sub(1).ok_or(error)?;
        Ok(LockReply::Again)
    }

    /// Makes earlier writes durable, then releases the owner's locks on a range. So the next lock holder sees the
    /// writes.
    pub(crate) async fn unlock(self: &Arc<Self>, key: u64, owner: u64, span: Span) -> Result<()> {
        let written = if self.is_open_for_writing() { self.fsync(key).await } else { Ok(()) };
        self.locking.hold(pin!(self.send_back(owner, span))).await.and(written)
    }

    /// Releases locks like [`Self::unlock`], but keeps a write error for the next call that reports write errors.
    pub(crate) async fn unlock_quietly(self: &Arc<Self>, key: u64, owner: u64, span: Span) -> Result<()> {
        let written = self.flush(key).await;
        self.locking.hold(pin!(self.send_back(owner, span))).await.and(written)
    }

    async fn send_back(&self, owner: u64, span: Span) -> Result<()> {
        let mut tries = TRIES;
        loop {
            self.state().opens.acknowledge_loss(owner)?;
            let Some(lock) = self.state().opens.holder(owner) else { return Ok(()) };
            let mut results = self.send_unlock(lock, span).await?;
            match results.raw::<stateid4>(OP_LOCKU) {
                Ok(_) if self.state().opens.unlocked(owner, lock, span) => return Ok(()),
                Ok(_) => {}
                Err(failed @ Failed::Nfs(status)) if is_state_lost(status) => {
                    tries = tries.checked_sub(1).ok_or_else(|| results.error(&failed))?;
                    self.lock_refused(lock).await?;
                }
                Err(failed) => return Err(results.error(&failed)),
            }
        }
    }

    /// Returns a lock that would conflict with a lock of `owner` on this range, if there is one.
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
                let span = span.ok_or_else(|| {
                    Error::protocol("testing a lock: the mgr returned a lock with an invalid byte range")
                })?;
                let kind = if matches!(by.locktype, READ_LT | READW_LT) { LockKind::Read } else { LockKind::Write };
                let ours = self.mount.session.clientid() == Some(by.owner.clientid);
                let owner = by.owner.owner[..].try_into().ok().map(u64::from_be_bytes).filter(|_| ours);
                Ok(Some(HeldLock { range: span.into(), kind, owner }))
            }
            Err(failed) => Err(results.error(&failed)),
        }
    }

    /// Returns the stateid of an open, and the lock stateid of the owner under this open, if the mgr has issued one.
    fn lock_stateids(&self, key: u64, owner: u64) -> Result<(stateid4, Option<stateid4>)> {
        let stateids = self.state().opens.lock_stateids(key, owner);
        stateids.ok_or_else(|| Error::usage("the file is no longer open"))
    }

    /// Returns whether an open has the access mode that a lock of this kind requires.
    pub(crate) fn may_lock(&self, key: u64, kind: LockKind) -> bool {
        self.state().opens.may_lock(key, kind)
    }

    /// Records a lock that the mgr granted, unless the client has replaced the open under which it requested the lock.
    fn locked(
        &self,
        key: u64,
        owner: u64,
        open_stateid: stateid4,
        lock: stateid4,
        (span, kind): (Span, LockKind),
    ) -> bool {
        let mut state = self.state();
        let booked = state.opens.locked(key, open_stateid, lock, (owner, span, kind));
        if booked {
            // The previous lock holder may have changed the file, so the known size and read-ahead bytes may be
            // outdated.
            state.size.doubt();
        }
        booked
    }

    /// Returns the locks to reclaim under an open that the client has reclaimed, and the open's stateid.
    pub(crate) fn locks_to_reclaim(&self, key: u64) -> (Option<stateid4>, Vec<LockToReclaim>) {
        self.state().opens.locks_to_reclaim(key)
    }

    /// Records that a restarted mgr granted a reclaimed lock.
    pub(crate) fn reclaimed(&self, key: u64, owner: u64, lock: stateid4) {
        self.state().opens.reclaimed(key, owner, lock);
    }

    /// Returns the arguments of a LOCK that reclaims a lock.
    pub(crate) fn reclaim_args(open: stateid4, (owner, span, kind): LockToReclaim) -> LOCK4args {
        let locker = locker4::TRUE(open_to_lock_owner4 {
            open_seqid: 0,
            open_stateid: any_age(open),
            lock_seqid: 0,
            lock_owner: lock_owner(owner),
        });
        let (locktype, offset, length) = (lock_type(kind, false), span.first, span.length());
        LOCK4args { locktype, reclaim: true, offset, length, locker }
    }

    /// Handles the mgr's refusal of a lock stateid: the mgr has revoked the locks, or does not know them. Records their
    /// loss, and frees the stateid (FREE_STATEID).
    pub(super) async fn lock_refused(&self, lock: stateid4) -> Result<()> {
        self.lock_gone(lock);
        self.mount.session.free_stateid(lock).await
    }

    /// Returns whether a stateid belongs to locks of this file.
    pub(super) fn knows_lock(&self, stateid: stateid4) -> bool {
        self.state().opens.knows_lock(stateid)
    }

    /// Records the loss of the locks with this stateid, which the mgr does not know any more.
    pub(crate) fn lock_gone(&self, lock: stateid4) {
        let found = self.state().opens.forget_lock(lock);
        if let Some((key, owner)) = found {
            self.lose_locks(key, Some(owner));
        }
    }

    /// Marks locks under an open as lost: those of `owner`, or of all owners if `None`.
    pub(crate) fn lose_locks(&self, key: u64, owner: Option<u64>) {
        self.lose_locks_as(key, owner, &lost_error());
    }

    /// Marks locks as lost like [`Inode::lose_locks`]; operations under these locks will return the error `why`.
    pub(crate) fn lose_locks_as(&self, key: u64, owner: Option<u64>, why: &Error) {
        let writing = {
            let mut state = self.state();
            let writing = state.opens.lose_locks(key, owner, why);
            if writing {
                self.mount.window.release(state.dirty.give_up());
            }
            writing
        };
        if writing {
            tracing::warn!(file = %self.node.id, "locks were lost: the client drops the bytes that are not durable");
            self.fail(why.clone());
        }
    }

    /// Returns an error if the client lost locks of this owner under this open, and the owner has not unlocked after
    /// the loss.
    fn locks_kept(&self, key: u64, owner: u64) -> Result<()> {
        self.state().opens.locks_kept(key, Some(owner))
    }

    /// Returns an error if the client lost locks under this open, and their owners have not unlocked after the loss.
    pub(crate) fn all_locks_kept(&self, key: u64) -> Result<()> {
        self.state().opens.locks_kept(key, None)
    }

    /// Returns an error if the client gave up this batch of writes, because it lost a lock or delegation.
    pub(super) fn check_given_up(&self, batch: u64) -> Result<()> {
        if self.state().dirty.is_given_up(batch) { Err(lost_error()) } else { Ok(()) }
    }

    /// Returns the stateids of all locks under an open.
    pub(super) fn locks_under(&self, key: u64) -> Vec<stateid4> {
        self.state().opens.locks_under(key)
    }

    /// Returns the stateids of all opens and locks of the file.
    pub(crate) fn stateids(&self) -> Vec<stateid4> {
        self.state().opens.stateids()
    }

    /// Handles the revocation of a stateid that the mgr reported.
    pub(crate) async fn revoked(&self, stateid: stateid4) {
        self.lose_layout();
        self.lock_gone(stateid);
        let error = Error::status(types::Status::Io, "the mgr has revoked an open of this file");
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
    fn gaps_are_the_ranges_that_are_not_locked() {
        let at = |first, last| Span { first, last };
        let held = [(at(0, 2), LockKind::Read), (at(5, 5), LockKind::Write), (at(6, 8), LockKind::Read)];
        assert_eq!(gaps(at(1, 10), &held), [at(3, 4), at(9, 10)]);
        assert_eq!(gaps(at(4, 7), &held[1..]), [at(4, 4)]);
        assert_eq!(gaps(at(3, u64::MAX), &[(at(9, u64::MAX), LockKind::Read)]), [at(3, 8)]);
        assert_eq!(gaps(at(3, 4), &[]), [at(3, 4)]);
    }
}
