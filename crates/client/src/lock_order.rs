//! The lock order of the client, which debug builds check.
//!
//! A task that holds a lock acquires only locks with a later [`Rank`]. The locks that a task holds while it waits for
//! servers come first, the mutexes come after them. A task never holds two locks of the same rank.
//!
//! A debug build records the ranks that each thread holds. It panics if a task acquires a lock out of order, even if no
//! other task holds the lock at that moment:
//!
//! - A mutex counts as held from `lock` until its guard is dropped. The guard cannot move to another thread.
//! - An async lock counts as held during `hold`, which runs a future under the lock. Each poll of the future begins by
//!   recording the rank and ends by removing it. So the future may move between threads, and futures that one task
//!   polls alternately do not see each other's locks.
//! - A guard of an async lock (from `lock` or `read`) is checked only when the task acquires it. The check does not
//!   know which locks the task acquires while the guard exists; use `hold` for a guard that would live to the end of a
//!   function.
//!
//! The check does not know locks without a rank, such as the lock of the session's slot table. A task that holds a lock
//! without a rank never acquires a lock with a rank.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync;

/// The ranks of the locks of a mount, its open files and its session, in the order in which a task may acquire the
/// locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rank {
    /// Held while a write with `O_APPEND` gets the append lock from the mgr, and then writes.
    Append,
    /// Held during LOCK and LOCKU.
    ByteRangeLocks,
    /// Held while a task sends gathered bytes (small writes that the client joined), and during SETATTR.
    SendOrder,
    /// Held while a task writes bytes to iods under a layout, and while the client returns the layout.
    SendUnderLayout,
    /// Held while the client commits bytes of an iod: either with COMMIT to the iod, or by sending the bytes to the
    /// mgr, followed by COMMIT to the mgr.
    CommitIod,
    /// Held during COMMIT to the mgr.
    CommitMgr,
    /// Held for reading during a WRITE to an iod. Held for writing while a task repeats WRITEs to the iod, or sends the
    /// bytes of these WRITEs to the mgr instead.
    WriteIod,
    /// Held for reading during a WRITE to the mgr. Held for writing while a task repeats WRITEs to the mgr.
    WriteMgr,
    /// Held for reading during a close, until the mgr has received the file size. Held for writing during SETATTR.
    Report,
    /// Held during LAYOUTGET, LAYOUTCOMMIT and LAYOUTRETURN.
    LayoutStateid,
    /// Held while the client sends an OPEN again for a file that is already open on this mount.
    Reopen,
    /// Held while the client sends the CLOSEs of deferred closes.
    CloseDeferred,
    /// Held while the client establishes a session, including the reclaim of opens and locks.
    SessionLink,
    /// Held while the client handles the revocation of a delegation.
    Revocation,
    /// Protects the table of the open files of a mount.
    InodeTable,
    /// Protects the layout state of one open file.
    LayoutState,
    /// Protects the state of one open file.
    InodeState,
    /// Protects the delegation of one open file.
    Delegation,
    /// Protects the queue of opens whose CLOSE is deferred.
    DeferredCloses,
    /// Protects the time at which the flush timer next searches the open files for bytes to send or commit.
    FlushTimer,
    /// Protects the list of the OPENs that the mgr has not answered yet.
    Opening,
    /// Protects the policy settings of one open file.
    FileSettings,
    /// Protects the table of lanes of one open file: for each server, the locks around the requests to this server.
    Lanes,
}

/// A mutex with a rank in the lock order.
pub(crate) struct OrderedMutex<T> {
    rank: LockRank,
    mutex: Mutex<T>,
}

/// The guard of an [`OrderedMutex`], which unlocks the mutex when it is dropped.
pub(crate) struct OrderedGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    _held: Held,
}

impl<T> OrderedMutex<T> {
    /// Creates an unlocked mutex with this rank.
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        OrderedMutex { rank: LockRank::new(rank), mutex: Mutex::new(value) }
    }

    /// Locks the mutex, even if a thread panicked while it held the mutex.
    pub(crate) fn lock(&self) -> OrderedGuard<'_, T> {
        let held = self.rank.take();
        OrderedGuard { guard: self.mutex.lock().unwrap_or_else(PoisonError::into_inner), _held: held }
    }
}

impl<T> Deref for OrderedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for OrderedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// An async mutex with a rank in the lock order. A task may hold the mutex while the task waits for servers.
pub(crate) struct AsyncMutex<T> {
    rank: LockRank,
    mutex: sync::Mutex<T>,
}

impl<T> AsyncMutex<T> {
    /// Creates an unlocked mutex with this rank.
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        AsyncMutex { rank: LockRank::new(rank), mutex: sync::Mutex::new(value) }
    }

    /// Locks the mutex, until the returned guard is dropped.
    pub(crate) async fn lock(&self) -> sync::MutexGuard<'_, T> {
        self.rank.check();
        self.mutex.lock().await
    }

    /// Locks the mutex if no task holds the mutex. The call never waits, so the lock order does not apply to it.
    pub(crate) fn try_lock(&self) -> Option<sync::MutexGuard<'_, T>> {
        self.mutex.try_lock().ok()
    }

    /// Runs a future while the mutex is locked. The caller pins the future, because moving it into this function would
    /// enlarge the future of every caller.
    pub(crate) async fn hold<R>(&self, work: Pin<&mut impl Future<Output = R>>) -> R {
        let _guard = self.lock().await;
        self.rank.during(work).await
    }
}

/// An async read-write lock with a rank in the lock order. A task may hold the lock while the task waits for servers.
pub(crate) struct AsyncRwLock {
    rank: LockRank,
    lock: sync::RwLock<()>,
}

impl AsyncRwLock {
    /// Creates an unlocked read-write lock with this rank.
    pub(crate) fn new(rank: Rank) -> Self {
        AsyncRwLock { rank: LockRank::new(rank), lock: sync::RwLock::default() }
    }

    /// Locks the read-write lock for reading, until the returned guard is dropped.
    pub(crate) async fn read(&self) -> sync::RwLockReadGuard<'_, ()> {
        self.rank.check();
        self.lock.read().await
    }

    /// Runs a future while the lock is held for reading.
    pub(crate) async fn hold_read<R>(&self, work: Pin<&mut impl Future<Output = R>>) -> R {
        let _guard = self.read().await;
        self.rank.during(work).await
    }

    /// Runs a future while the lock is held for writing.
    pub(crate) async fn hold_write<R>(&self, work: Pin<&mut impl Future<Output = R>>) -> R {
        self.rank.check();
        let _guard = self.lock.write().await;
        self.rank.during(work).await
    }
}

#[cfg(debug_assertions)]
use checked::{Held, LockRank};
#[cfg(not(debug_assertions))]
use unchecked::{Held, LockRank};

#[cfg(debug_assertions)]
mod checked {
    use super::Rank;
    use std::cell::RefCell;
    use std::future::{Future, poll_fn};
    use std::pin::Pin;

    thread_local! {
        /// The ranks of the locks that this thread holds.
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// The rank of a lock, which debug builds store with the lock.
    pub(super) struct LockRank(Rank);

    /// Records that this thread holds a lock of this rank, until this value is dropped.
    pub(super) struct Held(Rank);

    impl LockRank {
        pub(super) fn new(rank: Rank) -> LockRank {
            LockRank(rank)
        }

        /// Panics if this thread holds a lock of this rank, or of a rank that comes after this rank in the lock order.
        pub(super) fn check(&self) {
            let LockRank(rank) = self;
            let later = HELD.with_borrow(|held| held.iter().find(|held| *held >= rank).copied());
            if let Some(later) = later {
                panic!("lock order: {rank:?} is taken while {later:?} is held");
            }
        }

        pub(super) fn take(&self) -> Held {
            self.check();
            Held::new(self.0)
        }

        /// Runs a future. Each poll of the future counts as holding a lock of this rank, on the thread that polls.
        pub(super) async fn during<R>(&self, mut work: Pin<&mut impl Future<Output = R>>) -> R {
            poll_fn(|task| {
                let _held = Held::new(self.0);
                work.as_mut().poll(task)
            })
            .await
        }
    }

    impl Held {
        fn new(rank: Rank) -> Held {
            HELD.with_borrow_mut(|held| held.push(rank));
            Held(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                if let Some(at) = held.iter().rposition(|rank| *rank == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod unchecked {
    use super::Rank;
    use std::future::Future;
    use std::pin::Pin;

    /// The rank of a lock, which release builds neither store nor check.
    pub(super) struct LockRank;

    pub(super) struct Held;

    impl LockRank {
        pub(super) fn new(_rank: Rank) -> LockRank {
            LockRank
        }

        pub(super) fn check(&self) {}

        pub(super) fn take(&self) -> Held {
            Held
        }

        pub(super) fn during<'a, F: Future>(&self, work: Pin<&'a mut F>) -> Pin<&'a mut F> {
            work
        }
    }

    // In a release build, a lock with a rank is as large as the lock that it wraps.
    const _: () = {
        use super::{AsyncMutex, OrderedGuard, OrderedMutex};
        use std::mem::size_of;
        assert!(size_of::<OrderedMutex<u64>>() == size_of::<std::sync::Mutex<u64>>());
        assert!(size_of::<OrderedGuard<'static, u64>>() == size_of::<std::sync::MutexGuard<'static, u64>>());
        assert!(size_of::<AsyncMutex<u64>>() == size_of::<tokio::sync::Mutex<u64>>());
    };
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;

    fn message(outcome: std::thread::Result<()>) -> Option<String> {
        outcome.err().map(|panic| panic.downcast_ref::<String>().unwrap().clone())
    }

    #[test]
    fn mutexes_are_taken_in_one_order() {
        let ranks = [Rank::InodeTable, Rank::LayoutState, Rank::InodeState, Rank::Lanes];
        for first in ranks {
            for second in ranks {
                let (a, b) = (OrderedMutex::new(first, 1), OrderedMutex::new(second, 2));
                let found = message(catch_unwind(AssertUnwindSafe(|| {
                    let held = a.lock();
                    assert_eq!(*held + *b.lock(), 3);
                })));
                let expected = format!("lock order: {second:?} is taken while {first:?} is held");
                assert_eq!(found, (first >= second).then_some(expected));
                assert_eq!(*b.lock(), 2, "the panic leaves nothing held");
            }
        }
    }

    #[test]
    fn guards_may_end_in_any_order_and_threads_are_apart() {
        let [a, b, c] = [Rank::InodeState, Rank::Delegation, Rank::Opening].map(|rank| OrderedMutex::new(rank, ()));
        let (first, second) = (a.lock(), b.lock());
        drop(first);
        let third = c.lock();
        drop((second, third));
        let _later = c.lock();
        std::thread::scope(|threads| {
            threads.spawn(|| drop(a.lock()));
        });
    }

    #[tokio::test]
    async fn a_future_holds_its_lock_across_waits() {
        let (order, state) = (AsyncMutex::new(Rank::SendOrder, ()), OrderedMutex::new(Rank::InodeState, ()));
        let (locks, commit) = (AsyncMutex::new(Rank::ByteRangeLocks, ()), AsyncRwLock::new(Rank::WriteIod));
        let later = async {
            tokio::task::yield_now().await;
            drop(state.lock());
            commit.hold_read(pin!(async { drop(state.lock()) })).await;
        };
        order.hold(pin!(later)).await;
        let earlier = async {
            tokio::task::yield_now().await;
            drop(locks.lock().await);
        };
        let earlier = async { order.hold(pin!(earlier)).await };
        let found = futures_util::FutureExt::catch_unwind(AssertUnwindSafe(earlier)).await;
        let expected = "lock order: ByteRangeLocks is taken while SendOrder is held";
        assert_eq!(message(found).as_deref(), Some(expected));
        drop(locks.lock().await);
    }

    #[tokio::test]
    async fn no_task_waits_under_a_mutex() {
        let (order, state) = (AsyncMutex::new(Rank::SendOrder, ()), OrderedMutex::new(Rank::InodeState, ()));
        let found = catch_unwind(AssertUnwindSafe(|| {
            let _held = state.lock();
            drop(futures_util::FutureExt::now_or_never(order.lock()));
        }));
        let expected = "lock order: SendOrder is taken while InodeState is held";
        assert_eq!(message(found).as_deref(), Some(expected));
    }

    #[tokio::test]
    async fn futures_of_one_task_are_apart() {
        let lanes = [(); 2].map(|()| AsyncMutex::new(Rank::CommitIod, ()));
        let both = lanes.iter().map(|lane| async { lane.hold(pin!(tokio::task::yield_now())).await });
        futures_util::future::join_all(both).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_held_lock_follows_its_task_to_other_threads() {
        let tasks = (0..8).map(|_| {
            tokio::spawn(async {
                let (order, state) = (AsyncMutex::new(Rank::SendOrder, ()), OrderedMutex::new(Rank::InodeState, ()));
                for _ in 0..100 {
                    let work = async {
                        for _ in 0..3 {
                            tokio::task::yield_now().await;
                            drop(state.lock());
                        }
                    };
                    order.hold(pin!(work)).await;
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    }
}
