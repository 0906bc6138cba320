//! Connections that replace one another: what came over an older one is never carried out beside or after what comes
//! over a newer one.
//!
//! A peer that has lost a connection sends what was not answered again, over another one. What it had sent before may
//! still wait in a socket, or for a disk; carried out later it would undo what has come since. So PROVE says whose
//! a connection is ([`Origin`]); the older ones of the same owner are ended, and PROVE is answered when none of them is
//! in the middle of a change any more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use wire::native::Origin;

use crate::lock::lock;

/// A newer connection of the same owner has taken the place of this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Replaced;

/// The connections of all owners that have proven themselves.
#[derive(Default)]
pub(super) struct Lines {
    /// By owner, in the order they came. An owner without a connection is not kept: a PROVE that is late enough to come
    /// then is of a connection that nobody uses.
    of_owner: Mutex<HashMap<[u8; 16], Vec<Entry>>>,
}

struct Entry {
    incarnation: u64,
    gate: Arc<Gate>,
}

/// What each change that comes over a connection passes.
struct Gate {
    replaced: AtomicBool,
    changing: Mutex<bool>,
    changed: Condvar,
    hang_up: Box<dyn Fn() + Send + Sync>,
}

/// The place of a connection among those of its owner; given up when dropped.
pub(super) struct Membership {
    lines: Arc<Lines>,
    origin: Origin,
    gate: Arc<Gate>,
}

/// A change under way; it has ended when this is dropped.
pub(super) struct Change(Arc<Gate>);

impl Lines {
    /// Makes a connection one of those of its owner, after all earlier ones have ended and no change of theirs is under
    /// way. `hang_up` is called when this one is replaced in its turn; it must make the connection end soon.
    ///
    /// # Errors
    /// When a newer one is there, or comes while this one waits.
    pub(super) fn join(
        self: &Arc<Self>,
        origin: Origin,
        hang_up: impl Fn() + Send + Sync + 'static,
    ) -> Result<Membership, Replaced> {
        let gate = Arc::new(Gate {
            replaced: AtomicBool::new(false),
            changing: Mutex::new(false),
            changed: Condvar::new(),
            hang_up: Box::new(hang_up),
        });
        let older: Vec<Arc<Gate>> = {
            let mut of_owner = lock(&self.of_owner);
            let line = of_owner.entry(origin.owner).or_default();
            if line.iter().any(|entry| entry.incarnation > origin.incarnation) {
                return Err(Replaced);
            }
            // Those that were told to end before may still be in the middle of something: they are waited for as well.
            let older = line.iter().filter(|entry| entry.incarnation < origin.incarnation);
            let older = older.map(|entry| entry.gate.clone()).collect();
            line.push(Entry { incarnation: origin.incarnation, gate: gate.clone() });
            older
        };
        let membership = Membership { lines: self.clone(), origin, gate };
        // All are marked before any is woken: one of them may be waiting here for another one.
        for gate in &older {
            gate.replaced.store(true, Ordering::SeqCst);
        }
        for gate in &older {
            let changing = lock(&gate.changing);
            gate.changed.notify_all();
            drop(changing);
            (gate.hang_up)();
        }
        for gate in &older {
            let mut changing = lock(&gate.changing);
            while *changing {
                if membership.gate.is_replaced() {
                    return Err(Replaced);
                }
                changing = gate.changed.wait(changing).unwrap_or_else(PoisonError::into_inner);
            }
        }
        if membership.gate.is_replaced() { Err(Replaced) } else { Ok(membership) }
    }
}

impl Gate {
    fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::SeqCst)
    }
}

impl Membership {
    /// Whether the connection was replaced, so that what it still does serves nobody.
    pub(super) fn is_replaced(&self) -> bool {
        self.gate.is_replaced()
    }

    /// Begins a change.
    ///
    /// # Errors
    /// When the connection was replaced: nothing that has come over it may change anything any more.
    pub(super) fn change(&self) -> Result<Change, Replaced> {
        let mut changing = lock(&self.gate.changing);
        if self.gate.is_replaced() {
            return Err(Replaced);
        }
        *changing = true;
        Ok(Change(self.gate.clone()))
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
            line.retain(|entry| !Arc::ptr_eq(&entry.gate, &self.gate));
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

    fn join(lines: &Arc<Lines>, owner: u8, incarnation: u64) -> Result<Membership, Replaced> {
        lines.join(origin(owner, incarnation), || {})
    }

    #[test]
    fn a_newer_connection_ends_the_older_ones_of_its_owner_alone() {
        let lines = Arc::new(Lines::default());
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
        assert!(join(&lines, 1, 4).is_err(), "a late HELLO of an older one");
        drop((first, beside, second, other));
        assert!(lock(&lines.of_owner).is_empty());
    }

    #[test]
    fn joining_waits_for_the_change_that_is_under_way() {
        let lines = Arc::new(Lines::default());
        let old = join(&lines, 1, 1).unwrap();
        let change = old.change().unwrap();
        let (joined, news) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| joined.send(join(&lines, 1, 2).is_ok()).unwrap());
            while !old.gate.is_replaced() {
                thread::yield_now();
            }
            news.try_recv().unwrap_err();
            drop(change);
            assert!(news.recv().unwrap());
            assert!(old.change().is_err());
        });
    }

    #[test]
    fn who_waits_gives_way_to_a_newer_one_that_waits_for_the_same() {
        let lines = Arc::new(Lines::default());
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
