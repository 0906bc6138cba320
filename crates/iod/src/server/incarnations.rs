//! The ordering of a client's connections: no request of a replaced connection executes during or after requests of its
//! replacement.
//!
//! A client that lost a connection repeats its unanswered requests over a new one. The iod may still have the old
//! requests in a socket buffer, or blocked on a disk. If the iod executed them later, they would overwrite newer
//! changes. So PROVE names the owner of a connection and its incarnation ([`Origin`]), a number that is higher for each
//! later connection that replaces older ones. The iod closes the older connections of the same owner, and replies to
//! PROVE once no change over these older connections is in progress.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use wire::native::Origin;

use crate::lock::lock;

/// The error of a connection that a newer connection of the same owner has replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Replaced;

/// The authenticated connections to a volume, by connection owner. The connections of one client have the same owner.
#[derive(Default)]
pub(super) struct Incarnations {
    /// Connections by owner, in the order of their PROVEs. An owner without open connections has no entry, so the iod
    /// accepts any incarnation from this owner. A late PROVE with an old incarnation is harmless, because no client
    /// uses the connection on which this PROVE arrived.
    of_owner: Mutex<HashMap<[u8; 16], Vec<Entry>>>,
}

struct Entry {
    incarnation: u64,
    barrier: Arc<ChangeBarrier>,
}

/// The barrier of a connection: each change of an object over the connection must pass the barrier, and a newer
/// connection closes the barrier.
struct ChangeBarrier {
    replaced: AtomicBool,
    changing: Mutex<bool>,
    changed: Condvar,
    hang_up: Box<dyn Fn() + Send + Sync>,
}

/// The entry of a connection in the list of its owner's connections; removed when dropped.
pub(super) struct Membership {
    lines: Arc<Incarnations>,
    origin: Origin,
    barrier: Arc<ChangeBarrier>,
}

/// A change of an object in progress on a connection; dropping this value ends the change.
pub(super) struct Change(Arc<ChangeBarrier>);

impl Incarnations {
    /// Replaces the older connections of the same owner: closes them, waits until none of them has a change in
    /// progress, and adds the new connection. `hang_up` must close the new connection without blocking; a later call of
    /// `join` uses it when a still newer connection replaces this connection.
    ///
    /// # Errors
    /// [`Replaced`] when the owner has a newer connection, or opens one during the wait.
    pub(super) fn join(
        self: &Arc<Self>,
        origin: Origin,
        hang_up: impl Fn() + Send + Sync + 'static,
    ) -> Result<Membership, Replaced> {
        let barrier = Arc::new(ChangeBarrier {
            replaced: AtomicBool::new(false),
            changing: Mutex::new(false),
            changed: Condvar::new(),
            hang_up: Box::new(hang_up),
        });
        let older: Vec<Arc<ChangeBarrier>> = {
            let mut of_owner = lock(&self.of_owner);
            let line = of_owner.entry(origin.owner).or_default();
            if line.iter().any(|entry| entry.incarnation > origin.incarnation) {
                return Err(Replaced);
            }
            // An older connection that an earlier `join` has closed may still have a change in progress, so wait for
            // all older connections.
            let older = line.iter().filter(|entry| entry.incarnation < origin.incarnation);
            let older = older.map(|entry| entry.barrier.clone()).collect();
            line.push(Entry { incarnation: origin.incarnation, barrier: barrier.clone() });
            older
        };
        let membership = Membership { lines: self.clone(), origin, barrier };
        // Mark all older connections as replaced before waking any of them. An older connection may itself wait in
        // `join`, and must see that it is replaced when it wakes up.
        for barrier in &older {
            barrier.replaced.store(true, Ordering::SeqCst);
        }
        for barrier in &older {
            let changing = lock(&barrier.changing);
            barrier.changed.notify_all();
            drop(changing);
            (barrier.hang_up)();
        }
        for barrier in &older {
            let mut changing = lock(&barrier.changing);
            while *changing {
                if membership.barrier.is_replaced() {
                    return Err(Replaced);
                }
                changing = barrier.changed.wait(changing).unwrap_or_else(PoisonError::into_inner);
            }
        }
        if membership.barrier.is_replaced() { Err(Replaced) } else { Ok(membership) }
    }
}

impl ChangeBarrier {
    fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::SeqCst)
    }
}

impl Membership {
    /// Returns whether a newer connection has replaced this connection, so that no client waits for the requests of
    /// this connection.
    pub(super) fn is_replaced(&self) -> bool {
        self.barrier.is_replaced()
    }

    /// Begins a change, unless a newer connection has replaced this connection.
    ///
    /// # Errors
    /// [`Replaced`] if a newer connection has replaced this connection. Then no request of this connection may change
    /// an object.
    pub(super) fn change(&self) -> Result<Change, Replaced> {
        let mut changing = lock(&self.barrier.changing);
        if self.barrier.is_replaced() {
            return Err(Replaced);
        }
        *changing = true;
        Ok(Change(self.barrier.clone()))
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        *lock(&self.0.changing) = false;
        if self.0.is_replaced() {
            self.0.changed.notify_all();
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut of_owner = lock(&self.lines.of_owner);
        if let Some(line) = of_owner.get_mut(&self.origin.owner) {
            line.retain(|entry| !Arc::ptr_eq(&entry.barrier, &self.barrier));
            if line.is_empty() {
                of_owner.remove(&self.origin.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::thread;

    const fn origin(owner: u8, incarnation: u64) -> Origin {
        Origin { owner: [owner; 16], incarnation }
    }

    fn join(lines: &Arc<Incarnations>, owner: u8, incarnation: u64) -> Result<Membership, Replaced> {
        lines.join(origin(owner, incarnation), || {})
    }

    #[test]
    fn a_newer_connection_ends_only_the_older_ones_of_its_owner() {
        let lines = Arc::new(Incarnations::default());
        let hung_up = Arc::new(AtomicUsize::new(0));
        let count = hung_up.clone();
        let first = lines
            .join(origin(1, 4), move || {
                count.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
        let beside = join(&lines, 1, 4).unwrap();
        let other = join(&lines, 2, 1).unwrap();
        drop((first.change().unwrap(), beside.change().unwrap()));
        let second = join(&lines, 1, 5).unwrap();
        assert_eq!(hung_up.load(Ordering::SeqCst), 1);
        assert!(first.change().is_err() && beside.change().is_err());
        assert!(second.change().is_ok() && other.change().is_ok());
        assert!(join(&lines, 1, 4).is_err(), "a late HELLO of an older incarnation");
        drop((first, beside, second, other));
        assert!(lock(&lines.of_owner).is_empty());
    }

    #[test]
    fn a_new_connection_waits_for_running_changes() {
        let lines = Arc::new(Incarnations::default());
        let old = join(&lines, 1, 1).unwrap();
        let change = old.change().unwrap();
        let (joined, news) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| joined.send(join(&lines, 1, 2).is_ok()).unwrap());
            while !old.barrier.is_replaced() {
                thread::yield_now();
            }
            news.try_recv().unwrap_err();
            drop(change);
            assert!(news.recv().unwrap());
            assert!(old.change().is_err());
        });
    }

    #[test]
    fn a_waiting_connection_is_replaced_by_a_newer_one_of_the_same_owner() {
        let lines = Arc::new(Incarnations::default());
        let old = join(&lines, 1, 1).unwrap();
        let change = old.change().unwrap();
        thread::scope(|scope| {
            let waiting: Vec<_> = (2..6)
                .map(|incarnation| {
                    let lines = &lines;
                    let thread = scope.spawn(move || join(lines, 1, incarnation));
                    while !lock(&lines.of_owner)[&[1; 16]].iter().any(|entry| entry.incarnation == incarnation) {
                        thread::yield_now();
                    }
                    thread
                })
                .collect();
            let mut waiting = waiting.into_iter();
            for thread in waiting.by_ref().take(3) {
                assert!(thread.join().unwrap().is_err());
            }
            drop(change);
            assert!(waiting.next().unwrap().join().unwrap().unwrap().change().is_ok());
        });
    }
}
