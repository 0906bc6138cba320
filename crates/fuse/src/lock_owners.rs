//! Lock owners: which opens requested locks of a file, and which of these opens are being closed, so that their locks
//! end soon.
//!
//! The kernel sends RELEASE some time after the last descriptor of an open file is closed, and close(2) does not wait
//! for RELEASE. But a process that sees the descriptor closed expects the locks of the open to have ended too
//! (flock(2), `F_OFD_SETLK`). Before RELEASE, the kernel sends FLUSH for each closed descriptor, and waits for the
//! reply. FLUSH does not say whether the descriptor was the last. So if an open with a recent FLUSH has a file locked,
//! a caller that wants a lock waits a short time for the RELEASE.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long after FLUSH a lock request waits for RELEASE. If RELEASE has not arrived by then, the open probably has
/// another descriptor, for example in a child process, and the kernel sends RELEASE only when that descriptor is
/// closed too.
const RELEASE_WITHIN: Duration = Duration::from_secs(1);

/// Lock owners, recorded by file and not by open. A process that closes one open of a file also loses the fcntl(2)
/// locks that it got through other opens. The process may also unlock these locks through another open.
#[derive(Default)]
pub(crate) struct LockOwners {
    /// Lock owners, by file number and owner number.
    table: Mutex<HashMap<(u64, u64), LockOwner>>,
    /// Number of times that the mount has released the locks of a closed open.
    released: AtomicU64,
    /// Notified when the mount has released the locks of a closed open (`released`).
    changed: Notify,
}

/// A lock owner that requested locks of a file.
#[derive(Clone, Copy)]
struct LockOwner {
    /// The id of the process that requested the locks.
    pid: u32,
    /// The handle of the open through which the owner last requested a lock. The close of this open releases the
    /// locks. The kernel reports only this close, not the release of the locks.
    handle: u64,
    /// Whether the locks are flock(2) locks, not fcntl(2) locks.
    flock: bool,
    /// The progress of the close of the open `handle`.
    closing: Closing,
}

/// The progress of the close of an open file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    /// The process with this id closed a descriptor of the open at this time.
    Flushed(u32, Instant),
    /// A program closed the last descriptor, and the mount releases the locks.
    Released,
}

impl LockOwner {
    /// Returns the time until which the mount waits for a close to end the owner's locks, or `None` if no such close
    /// has begun. Child processes often close an inherited descriptor. Such a close never releases the fcntl(2) locks
    /// of the parent process. But such a close may be the last close of the open, which releases a flock(2) lock.
    fn may_go_until(&self) -> Option<Instant> {
        match self.closing {
            Closing::No => None,
            Closing::Flushed(pid, at) => (self.flock || pid == self.pid).then(|| at + RELEASE_WITHIN),
            Closing::Released => Some(Instant::now() + RELEASE_WITHIN),
        }
    }
}

impl LockOwners {
    fn table(&self) -> MutexGuard<'_, HashMap<(u64, u64), LockOwner>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that `owner` requests a lock of a file. `by` has the process id, the handle of the open, and whether
    /// the lock is a flock(2) lock. If the kernel reuses an owner number, waits until the locks of the earlier
    /// owner have ended.
    pub(crate) async fn asks(&self, file: u64, owner: u64, by: (u32, u64, bool)) {
        let mut mark = self.mark();
        while !self.try_ask(file, owner, by) {
            self.may_be_free(file, Some(owner), mark).await;
            mark = self.mark();
        }
    }

    fn try_ask(&self, file: u64, owner: u64, (pid, handle, flock): (u32, u64, bool)) -> bool {
        let mut table = self.table();
        let ends = table.get(&(file, owner)).is_some_and(|locker| locker.closing == Closing::Released);
        if !ends {
            table.insert((file, owner), LockOwner { pid, handle, flock, closing: Closing::No });
        }
        !ends
    }

    /// Returns the process that requested locks of a file as `owner`, or `None`.
    pub(crate) fn process(&self, file: u64, owner: u64) -> Option<u32> {
        self.table().get(&(file, owner)).map(|locker| locker.pid)
    }

    /// Removes an owner that has no locks of a file any more. Returns whether the owner had requested locks of the
    /// file.
    pub(crate) fn take(&self, file: u64, owner: u64) -> bool {
        self.table().remove(&(file, owner)).is_some()
    }

    /// Records that a process closed a descriptor of the open `handle`, through which the given owners requested locks
    /// of a file.
    pub(crate) fn flushed(&self, file: u64, owners: &[u64], handle: u64, pid: u32) {
        self.set(file, owners, handle, Closing::Flushed(pid, Instant::now()));
    }

    /// Records that the last descriptor of the open `handle` is closed. Returns the owners whose locks the mount has
    /// to release now.
    pub(crate) fn released(&self, file: u64, owners: &[u64], handle: u64) -> Vec<u64> {
        self.set(file, owners, handle, Closing::Released)
    }

    fn set(&self, file: u64, owners: &[u64], handle: u64, closing: Closing) -> Vec<u64> {
        let mut table = self.table();
        let mut set = |owner: &u64| {
            let locker = table.get_mut(&(file, *owner)).filter(|locker| locker.handle == handle);
            locker.map(|locker| locker.closing = closing).is_some()
        };
        owners.iter().copied().filter(|owner| set(owner)).collect()
    }

    /// Records that the mount has released the locks of the given owners.
    pub(crate) fn ended(&self, file: u64, owners: &[u64]) {
        for owner in owners {
            self.take(file, *owner);
        }
        self.released.fetch_add(1, SeqCst);
        self.changed.notify_waiters();
    }

    /// Returns how many times the mount has released the locks of a closed open. The caller takes this number before
    /// it tries to lock, and passes the number to [`LockOwners::may_be_free`].
    pub(crate) fn mark(&self) -> u64 {
        self.released.load(SeqCst)
    }

    /// Waits for locks of `owner`, or of any owner, that may end soon. `mark` is the result of [`LockOwners::mark`]
    /// before the caller found the file locked. Returns whether the caller should try to lock again.
    pub(crate) async fn may_be_free(&self, file: u64, owner: Option<u64>, mark: u64) -> bool {
        let changed = self.changed.notified();
        let mut changed = std::pin::pin!(changed);
        changed.as_mut().enable();
        if self.mark() != mark {
            return true;
        }
        let of_it = |key: &(u64, u64)| key.0 == file && owner.is_none_or(|owner| owner == key.1);
        let until = self.table().iter().filter(|(key, _)| of_it(key)).filter_map(|(_, l)| l.may_go_until()).max();
        let Some(until) = until.filter(|until| *until > Instant::now()) else { return false };
        let _ = tokio::time::timeout_at(until, changed).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    const FILE: u64 = 7;
    const OWNER: u64 = 1;

    /// Returns `Some(true)` if a caller that finds the file locked retries the lock, `Some(false)` if it gives up, and
    /// `None` if it keeps waiting.
    fn looks_again(lockers: &LockOwners, mark: u64) -> Option<bool> {
        let waits = std::pin::pin!(lockers.may_be_free(FILE, None, mark));
        match waits.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(again) => Some(again),
            Poll::Pending => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lock_requests_wait_for_the_unlock_from_flush_to_release() {
        let lockers = LockOwners::default();
        lockers.asks(FILE, OWNER, (100, 5, true)).await;
        let mark = lockers.mark();
        assert_eq!(looks_again(&lockers, mark), Some(false), "no process closes the file");
        lockers.flushed(FILE, &[OWNER], 6, 100);
        assert_eq!(looks_again(&lockers, mark), Some(false), "the lock belongs to another open");
        lockers.flushed(FILE, &[OWNER], 5, 101);
        assert_eq!(looks_again(&lockers, mark), None);
        assert!(!lockers.may_be_free(FILE + 1, None, mark).await, "the lock belongs to another file");
        let waits = async { lockers.may_be_free(FILE, Some(OWNER), mark).await };
        let ends = async {
            assert_eq!(lockers.released(FILE, &[OWNER, 2], 5), [OWNER]);
            tokio::time::advance(RELEASE_WITHIN * 5).await;
            assert_eq!(looks_again(&lockers, mark), None, "the servers answer slowly");
            lockers.ended(FILE, &[OWNER]);
        };
        assert!(tokio::join!(waits, ends).0);
        assert_eq!(looks_again(&lockers, mark), Some(true), "the file was locked when the request arrived");
        assert_eq!(looks_again(&lockers, lockers.mark()), Some(false));
        assert_eq!(lockers.process(FILE, OWNER), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_of_the_same_name_does_not_lose_its_locks() {
        let lockers = LockOwners::default();
        lockers.asks(FILE, OWNER, (100, 5, true)).await;
        lockers.asks(FILE, OWNER, (100, 6, true)).await;
        assert!(lockers.released(FILE, &[OWNER], 5).is_empty(), "the lock belongs to the newer open now");
        assert_eq!(lockers.released(FILE, &[OWNER], 6), [OWNER]);
        let ends = async {
            tokio::task::yield_now().await;
            lockers.ended(FILE, &[OWNER]);
        };
        tokio::join!(ends, lockers.asks(FILE, OWNER, (101, 7, true)));
        assert_eq!(lockers.process(FILE, OWNER), Some(101), "not before the older ones were given back");
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_that_another_process_has_delays_lock_requests_only_briefly() {
        let lockers = LockOwners::default();
        lockers.asks(FILE, OWNER, (100, 5, true)).await;
        lockers.flushed(FILE, &[OWNER], 5, 101);
        let began = Instant::now();
        while lockers.may_be_free(FILE, None, lockers.mark()).await {}
        assert_eq!(began.elapsed(), RELEASE_WITHIN);
        // A process that closes an inherited descriptor does not affect the fcntl(2) locks of another process.
        lockers.asks(FILE, OWNER, (100, 5, false)).await;
        lockers.flushed(FILE, &[OWNER], 5, 101);
        assert_eq!(looks_again(&lockers, lockers.mark()), Some(false));
        lockers.flushed(FILE, &[OWNER], 5, 100);
        assert_eq!(looks_again(&lockers, lockers.mark()), None);
        lockers.asks(FILE, OWNER, (100, 5, false)).await;
        assert_eq!(looks_again(&lockers, lockers.mark()), Some(false), "it goes on");
    }
}
