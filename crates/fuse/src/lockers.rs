//! Who asked for locks of which file, and whose locks are about to go because the open they belong to is being closed.
//!
//! A process closes a descriptor, and goes on; that nobody has the open file any more (RELEASE) is said later, by whichever way the kernel
//! likes, and nobody waits for it. Whoever sees the descriptor gone expects the locks to be gone that were the open's (flock(2),
//! `F_OFD_SETLK`). Before it the kernel says that a descriptor was closed (FLUSH), which has to be answered first; it does not say whether it
//! was the last. So whoever finds a file locked by an open of which that was said lately waits a little for the rest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long after FLUSH the kernel is expected to say RELEASE, if it does: while others have descriptors of the same open it does not.
const RELEASE_WITHIN: Duration = Duration::from_secs(1);

/// Who asked for locks. By whichever open of a file: a process that closes one of them loses what it locked by another (fcntl(2)), and may
/// give it back by that as well.
#[derive(Default)]
pub(crate) struct Lockers {
    /// By file and owner.
    table: Mutex<HashMap<(u64, u64), Locker>>,
    /// How many opens with locks were released.
    released: AtomicU64,
    /// That one more was.
    news: Notify,
}

/// Who asked for locks of a file.
#[derive(Clone, Copy)]
struct Locker {
    /// The process.
    pid: u32,
    /// By which open it asked last. Locks that belong to an open end with that, of which the kernel says no more than that it is closed.
    handle: u64,
    /// Whether by flock(2).
    flock: bool,
    /// How far that open is from its end.
    closing: Closing,
}

/// How far an open file is from its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    /// This process closed a descriptor, then.
    Flushed(u32, Instant),
    /// Nobody has it any more, and its locks are being given back.
    Released,
}

impl Locker {
    /// Until when its locks may go without anybody doing anything. Processes that inherited a descriptor close it all the time (`fork`,
    /// `exec`), which says nothing of a lock that another one has by fcntl(2); one by flock(2) is the lock of all of them.
    fn may_go_until(&self) -> Option<Instant> {
        match self.closing {
            Closing::No => None,
            Closing::Flushed(pid, at) => (self.flock || pid == self.pid).then(|| at + RELEASE_WITHIN),
            Closing::Released => Some(Instant::now() + RELEASE_WITHIN),
        }
    }
}

impl Lockers {
    fn table(&self) -> MutexGuard<'_, HashMap<(u64, u64), Locker>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `owner`, a process with this number, asks for a lock of a file by this open, maybe by flock(2). The kernel may have called an owner so
    /// before, whose locks have to be gone first.
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
            table.insert((file, owner), Locker { pid, handle, flock, closing: Closing::No });
        }
        !ends
    }

    /// The process that asked for locks of a file as `owner`, if any did.
    pub(crate) fn process(&self, file: u64, owner: u64) -> Option<u32> {
        self.table().get(&(file, owner)).map(|locker| locker.pid)
    }

    /// `owner` has no locks of a file any more; whether it ever asked for any.
    pub(crate) fn take(&self, file: u64, owner: u64) -> bool {
        self.table().remove(&(file, owner)).is_some()
    }

    /// A process closed a descriptor of an open by which these asked for locks of a file.
    pub(crate) fn flushed(&self, file: u64, owners: &[u64], handle: u64, pid: u32) {
        self.set(file, owners, handle, Closing::Flushed(pid, Instant::now()));
    }

    /// Nobody has that open any more. Those whose locks are to be given back now.
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

    /// They were given back.
    pub(crate) fn ended(&self, file: u64, owners: &[u64]) {
        for owner in owners {
            self.take(file, *owner);
        }
        self.released.fetch_add(1, SeqCst);
        self.news.notify_waiters();
    }

    /// What [`Lockers::may_be_free`] is told of what was found since.
    pub(crate) fn mark(&self) -> u64 {
        self.released.load(SeqCst)
    }

    /// A file was found locked after `mark`: waits for locks of `owner`, or of anybody, that may be about to go. Whether to look again.
    pub(crate) async fn may_be_free(&self, file: u64, owner: Option<u64>, mark: u64) -> bool {
        let news = self.news.notified();
        let mut news = std::pin::pin!(news);
        news.as_mut().enable();
        if self.mark() != mark {
            return true;
        }
        let of_it = |key: &(u64, u64)| key.0 == file && owner.is_none_or(|owner| owner == key.1);
        let until = self.table().iter().filter(|(key, _)| of_it(key)).filter_map(|(_, l)| l.may_go_until()).max();
        let Some(until) = until.filter(|until| *until > Instant::now()) else { return false };
        let _ = tokio::time::timeout_at(until, news).await;
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

    /// Whether somebody who finds the file locked looks again; nothing if they wait.
    fn looks_again(lockers: &Lockers, mark: u64) -> Option<bool> {
        let waits = std::pin::pin!(lockers.may_be_free(FILE, None, mark));
        match waits.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(again) => Some(again),
            Poll::Pending => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn locks_of_an_open_are_waited_for_from_flush_to_release() {
        let lockers = Lockers::default();
        lockers.asks(FILE, OWNER, (100, 5, true)).await;
        let mark = lockers.mark();
        assert_eq!(looks_again(&lockers, mark), Some(false), "nobody closes it");
        lockers.flushed(FILE, &[OWNER], 6, 100);
        assert_eq!(looks_again(&lockers, mark), Some(false), "it is another open");
        lockers.flushed(FILE, &[OWNER], 5, 101);
        assert_eq!(looks_again(&lockers, mark), None);
        assert!(!lockers.may_be_free(FILE + 1, None, mark).await, "it is another file");
        let waits = async { lockers.may_be_free(FILE, Some(OWNER), mark).await };
        let ends = async {
            assert_eq!(lockers.released(FILE, &[OWNER, 2], 5), [OWNER]);
            tokio::time::advance(RELEASE_WITHIN * 5).await;
            assert_eq!(looks_again(&lockers, mark), None, "the servers take their time");
            lockers.ended(FILE, &[OWNER]);
        };
        assert!(tokio::join!(waits, ends).0);
        assert_eq!(looks_again(&lockers, mark), Some(true), "it was found locked before");
        assert_eq!(looks_again(&lockers, lockers.mark()), Some(false));
        assert_eq!(lockers.process(FILE, OWNER), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_of_the_same_name_does_not_lose_its_locks() {
        let lockers = Lockers::default();
        lockers.asks(FILE, OWNER, (100, 5, true)).await;
        lockers.asks(FILE, OWNER, (100, 6, true)).await;
        assert!(lockers.released(FILE, &[OWNER], 5).is_empty(), "it is the newer open's by now");
        assert_eq!(lockers.released(FILE, &[OWNER], 6), [OWNER]);
        let ends = async {
            tokio::task::yield_now().await;
            lockers.ended(FILE, &[OWNER]);
        };
        tokio::join!(ends, lockers.asks(FILE, OWNER, (101, 7, true)));
        assert_eq!(lockers.process(FILE, OWNER), Some(101), "not before the older ones were given back");
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_that_others_still_have_keeps_nobody_for_long() {
        let lockers = Lockers::default();
        lockers.asks(FILE, OWNER, (100, 5, true)).await;
        lockers.flushed(FILE, &[OWNER], 5, 101);
        let began = Instant::now();
        while lockers.may_be_free(FILE, None, lockers.mark()).await {}
        assert_eq!(began.elapsed(), RELEASE_WITHIN);
        // Whoever inherited a descriptor takes nothing of what another process locked by fcntl(2).
        lockers.asks(FILE, OWNER, (100, 5, false)).await;
        lockers.flushed(FILE, &[OWNER], 5, 101);
        assert_eq!(looks_again(&lockers, lockers.mark()), Some(false));
        lockers.flushed(FILE, &[OWNER], 5, 100);
        assert_eq!(looks_again(&lockers, lockers.mark()), None);
        lockers.asks(FILE, OWNER, (100, 5, false)).await;
        assert_eq!(looks_again(&lockers, lockers.mark()), Some(false), "it goes on");
    }
}
