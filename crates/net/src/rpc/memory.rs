//! Memory accounting of a server's connections: a connection reserves memory before use, and waits while memory is
//! short.
//!
//! Each incoming call has a [`Charge`] (reserved memory) for its record, its work memory, and its largest possible
//! reply. If a connection would exceed its share of the memory, the server does not read from it, and the peer's data
//! wait in the socket buffers. While memory stays short, the server closes connections whose peer makes no progress
//! inside a record or a reply for too long.

use super::Limits;
use crate::Counters;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::Machine;

/// Charges (reservations of memory) of at most this many bytes are small, and may exceed the memory limit of the
/// server a little. Some small messages end the wait of other calls, for instance LAYOUTRETURN or the reply to a
/// callback. Such a message must not wait behind the calls that it unblocks.
const SMALL: usize = 64 << 10;
/// Small charges (reservations of memory) may exceed the memory limit of the server by this fraction of the limit:
/// one eighth.
const HEADROOM: usize = 8;
/// A connection that already holds memory may hold at most this fraction of the server's free memory: one eighth.
const SHARE: usize = 8;
/// Interval at which calls that wait for memory look for stalled connections.
const LOOK: Duration = Duration::from_millis(250);

/// A connection that the memory accounting can close if its peer stalls.
pub(crate) trait MemoryHolder: Send + Sync {
    /// Returns how long the peer has made no progress inside a record or a reply. Returns `None` if no record and no
    /// reply is in progress, or if the connection has ended.
    fn stalled(&self) -> Option<Duration>;
    /// Closes the connection, because its peer has stalled.
    fn close_stalled(&self);
}

/// The memory limits of a server, and the memory that its connections use.
pub(crate) struct Memory {
    total: usize,
    each: usize,
    patience: Duration,
    used: AtomicUsize,
    waiting: AtomicUsize,
    freed: Notify,
    holders: Mutex<HashMap<u64, Weak<dyn MemoryHolder>>>,
    /// Bytes that the connections of each machine hold.
    machines: Mutex<HashMap<Machine, Weak<AtomicUsize>>>,
    counters: Counters,
    /// When a call that waits for memory last looked for stalled connections.
    looked: Mutex<Option<Instant>>,
}

/// The memory that one connection holds, in the accounting of its server.
pub(crate) struct Account {
    memory: Arc<Memory>,
    held: AtomicUsize,
    /// Bytes that all connections of the same machine hold.
    of_machine: Arc<AtomicUsize>,
    closed: AtomicBool,
}

/// Bytes that a connection has reserved for a call. Dropping this value releases the bytes.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: AtomicUsize,
}

impl Memory {
    pub(crate) fn new(limits: &Limits, counters: Counters) -> Arc<Self> {
        Arc::new(Memory {
            total: limits.total_bytes,
            each: limits.connection_bytes,
            patience: limits.stall_under_pressure,
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            freed: Notify::new(),
            holders: Mutex::default(),
            machines: Mutex::default(),
            looked: Mutex::default(),
            counters,
        })
    }

    /// Creates the account of a new connection from this machine.
    pub(crate) fn account(self: &Arc<Self>, machine: Machine) -> Arc<Account> {
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        let known = machines.get(&machine).and_then(Weak::upgrade);
        let of_machine = known.unwrap_or_else(|| {
            machines.retain(|_, held| held.strong_count() > 0);
            let held = Arc::default();
            machines.insert(machine, Arc::downgrade(&held));
            held
        });
        drop(machines);
        Arc::new(Account {
            memory: self.clone(),
            held: AtomicUsize::new(0),
            of_machine,
            closed: AtomicBool::new(false),
        })
    }

    /// Registers a connection, so that the server can close the connection if its peer stalls while memory is short.
    pub(crate) fn watch(&self, connection: u64, holder: Weak<dyn MemoryHolder>) {
        self.holders().insert(connection, holder);
    }

    /// Removes the registration of a connection that has ended.
    pub(crate) fn forget(&self, connection: u64) {
        self.holders().remove(&connection);
    }

    fn holders(&self) -> MutexGuard<'_, HashMap<u64, Weak<dyn MemoryHolder>>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `bytes`, unless all reservations of the server together would exceed `limit` bytes. Returns whether the
    /// bytes are reserved.
    fn take(&self, bytes: usize, limit: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
        let taken = self.used.fetch_update(SeqCst, SeqCst, more).is_ok();
        if taken {
            self.counters.hold(bytes);
        }
        taken
    }

    /// If memory is short, closes each connection whose peer has stalled for too long. Does nothing if another call has
    /// looked for stalled connections within the last [`LOOK`].
    fn relieve(&self) {
        let now = Instant::now();
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if self.used.load(SeqCst) <= self.total / 4 || looked.is_some_and(|looked| now < looked + LOOK) {
            return;
        }
        *looked = Some(now);
        drop(looked);
        let holders: Vec<_> = self.holders().values().filter_map(Weak::upgrade).collect();
        for holder in holders {
            if holder.stalled().is_some_and(|time| time >= self.patience) {
                self.counters.cut();
                holder.close_stalled();
            }
        }
    }
}

impl Account {
    /// Reserves `bytes`. Waits while the connection, its machine, or the server would exceed a limit. Returns `None` if
    /// the connection is closed.
    pub(crate) async fn admit(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        if let Some(charge) = self.try_admit(bytes) {
            return Some(charge);
        }
        self.memory.counters.waited();
        let memory = self.memory.clone();
        let _waiting = Waiting::new(&memory);
        // Set the time of the next search for stalled connections once, before the wait loop. Each release of memory
        // repeats the loop, and must not postpone this search.
        let mut look = Instant::now() + LOOK;
        loop {
            let mut freed = std::pin::pin!(memory.freed.notified());
            freed.as_mut().enable();
            if self.closed.load(SeqCst) {
                return None;
            }
            if let Some(charge) = self.try_admit(bytes) {
                return Some(charge);
            }
            if tokio::time::timeout_at(look, freed).await.is_err() {
                look = Instant::now() + LOOK;
                memory.relieve();
            }
        }
    }

    fn try_admit(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let memory = &self.memory;
        let held = self.held.load(SeqCst);
        let small = bytes <= SMALL;
        let free = memory.total.saturating_sub(memory.used.load(SeqCst));
        // The connections of one machine may not hold more memory than is free for all other machines.
        if !small && self.of_machine.load(SeqCst) + bytes > free {
            return None;
        }
        // Check a connection's share of the free memory only if the connection already holds memory. A connection
        // without memory waits only for the limits of its machine and of the server, so at least one call of each
        // connection can make progress.
        if held > 0 {
            let share = if small { memory.each } else { memory.each.min(free / SHARE) };
            if held + bytes > share {
                return None;
            }
        }
        let limit = if small { memory.total + memory.total / HEADROOM } else { memory.total };
        if !memory.take(bytes, limit) {
            return None;
        }
        self.held.fetch_add(bytes, SeqCst);
        self.of_machine.fetch_add(bytes, SeqCst);
        Some(Charge { account: self.clone(), bytes: AtomicUsize::new(bytes) })
    }

    /// Ends all waits of this connection for memory, because the connection is closed.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
        self.memory.freed.notify_waiters();
    }

    fn change(&self, from: usize, to: usize) {
        if to >= from {
            self.held.fetch_add(to - from, SeqCst);
            self.of_machine.fetch_add(to - from, SeqCst);
            self.memory.used.fetch_add(to - from, SeqCst);
            return self.memory.counters.hold(to - from);
        }
        // Subtract the released bytes from the server's statistics counter first, and then from `used`, which limits
        // reservations. In the opposite order, another thread could reserve the released bytes in between, and the
        // statistics counter would briefly count these bytes twice.
        self.memory.counters.release(from - to);
        self.memory.used.fetch_sub(from - to, SeqCst);
        self.held.fetch_sub(from - to, SeqCst);
        self.of_machine.fetch_sub(from - to, SeqCst);
        if self.memory.waiting.load(SeqCst) > 0 {
            self.memory.freed.notify_waiters();
        }
    }
}

impl Charge {
    /// Changes the charge (the reserved memory) to `bytes`, the memory that the call really holds. Never waits.
    pub(crate) fn resize(&self, bytes: usize) {
        let before = self.bytes.swap(bytes, SeqCst);
        self.account.change(before, bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.change(*self.bytes.get_mut(), 0);
    }
}

/// A guard that counts a call that waits for memory, until the guard is dropped.
struct Waiting<'a>(&'a Memory);

impl<'a> Waiting<'a> {
    fn new(memory: &'a Memory) -> Self {
        memory.waiting.fetch_add(1, SeqCst);
        Waiting(memory)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, SeqCst);
    }
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("held", &self.held).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("used", &self.used).field("total", &self.total).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const K: usize = 1 << 10;

    fn memory(total: usize, each: usize) -> Arc<Memory> {
        let limits = Limits { total_bytes: total, connection_bytes: each, ..Limits::default() };
        Memory::new(&limits, Counters::default())
    }

    fn now(account: &Arc<Account>, bytes: usize) -> Option<Charge> {
        account.try_admit(bytes)
    }

    #[test]
    fn a_connection_is_limited_and_gets_a_share_of_free_memory() {
        let memory = memory(8000 * K, 500 * K);
        let (one, other) = (memory.account(Machine::Local(1)), memory.account(Machine::Local(2)));
        let first = now(&one, 400 * K).expect("within its limit");
        assert!(now(&one, 200 * K).is_none(), "beyond its own limit");
        let more = now(&one, 100 * K).expect("up to its limit");
        let large = now(&other, 7000 * K).expect("one of any size for who holds nothing");
        // After the drop of this charge, 600 KiB of memory are free. The connection `one` already holds more than an
        // eighth of this memory, so `one` gets no more memory.
        drop(more);
        assert!(now(&one, 80 * K).is_none());
        drop(large);
        assert!(now(&one, 80 * K).is_some());
        drop(first);
        assert_eq!((memory.used.load(SeqCst), one.held.load(SeqCst)), (0, 0));
    }

    #[test]
    fn a_machine_gets_no_more_memory_than_it_leaves() {
        let memory = memory(1000 * K, 1000 * K);
        let of = |machine| memory.account(Machine::Local(machine));
        let held: Vec<_> = (0..9).map_while(|_| now(&of(1), 100 * K)).collect();
        assert_eq!(held.len(), 5);
        assert!(now(&of(1), SMALL).is_some(), "what ends a wait gets in");
        let other: Vec<_> = (0..9).map_while(|_| now(&of(2), 100 * K)).collect();
        assert_eq!(other.len(), 3, "half of what was left, and what it had begun");
        drop(held);
        assert!(now(&of(1), 300 * K).is_some());
        drop(other);
        assert_eq!(memory.used.load(SeqCst), 0);
        drop(of(3));
        assert!(memory.machines.lock().unwrap().len() <= 1, "machines that are gone are forgotten");
    }

    #[test]
    fn the_total_is_limited_with_a_reserve_for_small_charges() {
        let memory = memory(1000 * K, 1000 * K);
        let accounts: Vec<_> = (0..4).map(|n| memory.account(Machine::Local(n))).collect();
        let full = now(&accounts[0], 1000 * K).expect("the whole");
        assert!(now(&accounts[1], SMALL + 1).is_none());
        let small = now(&accounts[1], SMALL).expect("some more");
        let next = now(&accounts[2], 125 * K - SMALL).expect("an eighth more");
        assert!(now(&accounts[3], 1).is_none());
        full.resize(500 * K);
        assert!(now(&accounts[3], 1).is_some());
        small.resize(700 * K);
        assert_eq!(memory.used.load(SeqCst), 1200 * K + 125 * K - SMALL, "what is really held is counted");
        drop((full, small, next));
        assert_eq!(memory.used.load(SeqCst), 0);
    }

    #[tokio::test]
    async fn a_waiting_charge_gets_freed_memory_or_ends_with_its_connection() {
        let memory = memory(1000 * K, 1000 * K);
        let (one, other) = (memory.account(Machine::Local(1)), memory.account(Machine::Local(2)));
        let full = one.admit(1000 * K).await.expect("open");
        let mut waits = Box::pin(other.admit(500 * K));
        assert!(waits.as_mut().now_or_never().is_none());
        full.resize(500 * K);
        let got = waits.await.expect("open");
        let mut waits = Box::pin(other.admit(500 * K));
        assert!(waits.as_mut().now_or_never().is_none());
        other.close();
        assert!(waits.await.is_none());
        drop((full, got));
        assert_eq!((memory.used.load(SeqCst), memory.waiting.load(SeqCst)), (0, 0));
    }

    struct StalledConnection(Option<Duration>, Mutex<Option<Charge>>);

    impl MemoryHolder for StalledConnection {
        fn stalled(&self) -> Option<Duration> {
            self.1.lock().expect("nobody panics").is_some().then_some(self.0).flatten()
        }

        fn close_stalled(&self) {
            drop(self.1.lock().expect("nobody panics").take());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_connection_is_closed_when_memory_is_short() {
        let memory = memory(1000 * K, 1000 * K);
        let hold = |id, stalled, bytes| {
            let charge = memory.account(Machine::Local(id as u32)).try_admit(bytes);
            let stalled: Arc<dyn MemoryHolder> = Arc::new(StalledConnection(stalled, Mutex::new(charge)));
            memory.watch(id, Arc::downgrade(&stalled));
            stalled
        };
        let active = hold(1, None, 400 * K);
        let shortly = hold(2, Some(memory.patience / 2), 100 * K);
        let _long = hold(3, Some(memory.patience * 2), 200 * K);
        let _longer = hold(4, Some(memory.patience * 3), 200 * K);
        let account = memory.account(Machine::UNKNOWN);
        let got = account.admit(300 * K).await.expect("open");
        assert_eq!(memory.used.load(SeqCst), 800 * K, "those who stalled are gone");
        drop(got);
        assert!(tokio::time::timeout(Duration::from_secs(60), account.admit(600 * K)).await.is_err());
        assert_eq!(memory.used.load(SeqCst), 500 * K, "who may get on is left alone");
        drop((active, shortly));
        assert_eq!(memory.used.load(SeqCst), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_connection_is_closed_even_if_others_are_busy() {
        let memory = memory(1000 * K, 1000 * K);
        let charge = memory.account(Machine::Local(1)).try_admit(400 * K);
        let stalled: Arc<dyn MemoryHolder> = Arc::new(StalledConnection(Some(memory.patience * 2), Mutex::new(charge)));
        memory.watch(1, Arc::downgrade(&stalled));
        let busy = memory.account(Machine::Local(2));
        let works = async {
            loop {
                let charge = busy.try_admit(10 * K);
                tokio::time::sleep(LOOK / 5).await;
                drop(charge);
            }
        };
        let account = memory.account(Machine::UNKNOWN);
        let in_time = tokio::time::timeout(4 * LOOK, account.admit(700 * K));
        tokio::select! {
            () = works => {}
            admitted = in_time => assert!(admitted.expect("the one that stalls is cut").is_some()),
        }
    }
}
