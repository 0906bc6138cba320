//! Names that vanish while they are opened.
//!
//! Between looking a name up and opening what it stands for, somebody may remove that. The kernel is told so (ESTALE) and looks the whole path up
//! anew, once. When that happens to the same thread again, a local file system would have said that there is no such name, if there was none for
//! a moment; where another file was put in its place, there always was one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most threads that are known to try again.
const MOST: usize = 1024;

/// Threads that have the kernel look a path up once more.
#[derive(Default)]
pub(crate) struct Vanishing {
    any: AtomicBool,
    /// What they have found since by its name, if anything.
    threads: Mutex<HashMap<u32, Option<Found>>>,
}

/// What a thread found last.
struct Found {
    node: u64,
    name: (u64, Box<[u8]>),
    /// Whether that name was taken away since.
    removed: bool,
}

/// What to do about a file that is gone when it is opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The kernel looks it up once more.
    First,
    /// It did; and for a moment there was no such name.
    Absent,
    /// It did, and found it by this name in this directory.
    Again(u64, Vec<u8>),
}

impl Vanishing {
    /// By threads, if there are any.
    fn threads(&self) -> Option<MutexGuard<'_, HashMap<u32, Option<Found>>>> {
        self.any.load(SeqCst).then(|| self.threads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A thread looked a name in a directory up, and found this file, or none.
    pub(crate) fn looked_up(&self, thread: u32, name: (u64, &[u8]), node: Option<u64>) {
        let Some(mut threads) = self.threads() else { return };
        match (threads.get_mut(&thread), node) {
            (Some(found), Some(node)) => *found = Some(Found { node, name: (name.0, name.1.into()), removed: false }),
            (Some(_), None) => self.ends(threads, thread),
            (None, _) => {}
        }
    }

    /// A name was removed.
    pub(crate) fn removed(&self, dir: u64, name: &[u8]) {
        let Some(mut threads) = self.threads() else { return };
        for found in threads.values_mut().flatten().filter(|found| found.name.0 == dir && *found.name.1 == *name) {
            found.removed = true;
        }
    }

    /// A thread opened a file.
    pub(crate) fn opened(&self, thread: u32) {
        if let Some(threads) = self.threads() {
            self.ends(threads, thread);
        }
    }

    fn ends(&self, mut threads: MutexGuard<'_, HashMap<u32, Option<Found>>>, thread: u32) {
        threads.remove(&thread);
        self.any.store(!threads.is_empty(), SeqCst);
    }

    /// A file was gone when a thread opened it.
    pub(crate) fn gone(&self, thread: u32, node: u64) -> Gone {
        self.any.store(true, SeqCst);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        match threads.remove(&thread).flatten().filter(|found| found.node == node) {
            Some(found) => {
                let Found { name: (dir, name), removed, .. } = found;
                self.ends(threads, thread);
                if removed { Gone::Absent } else { Gone::Again(dir, name.into()) }
            }
            None => {
                if threads.len() >= MOST {
                    threads.clear();
                }
                threads.insert(thread, None);
                Gone::First
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_again_is_told_what_happened_to_the_name() {
        let vanishing = Vanishing::default();
        vanishing.looked_up(1, (5, b"f"), Some(7));
        assert_eq!(vanishing.gone(1, 7), Gone::First);
        vanishing.looked_up(1, (1, b"dir"), Some(5));
        vanishing.looked_up(1, (5, b"f"), Some(8));
        vanishing.looked_up(2, (5, b"f"), Some(8));
        assert_eq!(vanishing.gone(2, 8), Gone::First, "another thread");
        vanishing.removed(5, b"g");
        vanishing.removed(6, b"f");
        assert_eq!(vanishing.gone(1, 8), Gone::Again(5, b"f".to_vec()));
        assert_eq!(vanishing.gone(1, 9), Gone::First, "another call");
        vanishing.looked_up(1, (5, b"f"), Some(8));
        vanishing.removed(5, b"f");
        assert_eq!(vanishing.gone(1, 8), Gone::Absent);
        // A call that ends well, or finds nothing, is over.
        assert_eq!(vanishing.gone(1, 9), Gone::First);
        vanishing.looked_up(1, (5, b"f"), Some(8));
        vanishing.opened(1);
        assert_eq!(vanishing.gone(1, 8), Gone::First);
        vanishing.looked_up(1, (5, b"f"), None);
        vanishing.looked_up(1, (5, b"f"), Some(8));
        assert_eq!(vanishing.gone(1, 8), Gone::First);
        // What it opens is not what it found.
        vanishing.looked_up(1, (5, b"f"), Some(8));
        assert_eq!(vanishing.gone(1, 4), Gone::First);
        vanishing.opened(1);
        vanishing.opened(2);
        assert!(!vanishing.any.load(SeqCst));
        (0..3 * MOST as u32).for_each(|thread| assert_eq!(vanishing.gone(thread, 1), Gone::First));
        assert!(vanishing.threads.lock().unwrap().len() <= MOST);
    }
}
