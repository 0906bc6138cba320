//! Names that vanish while they are opened.
//!
//! Between looking a name up and opening what it stands for, somebody may remove that. The kernel is told so (ESTALE) and looks the whole path up
//! anew, once. When that happens to the same thread again, a local file system would have said that there is no such name, if there was none for
//! a moment; where another file was put in its place, there always was one.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most threads that are known to try again, and most names that were removed meanwhile.
const MOST: usize = 1024;

/// Threads that have the kernel look a path up once more.
#[derive(Default)]
pub(crate) struct Vanishing {
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    threads: HashMap<u32, Trying>,
    /// Names that were removed here while there was any.
    removed: VecDeque<Name>,
    /// How many there were before those.
    before: u64,
}

/// A name in a directory.
type Name = (u64, Box<[u8]>);

/// A thread that tries again.
struct Trying {
    /// How many names had been removed when it began to.
    since: u64,
    /// What it has found last, by which name.
    found: Option<(u64, Name)>,
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if any thread tries again.
    fn trying(&self) -> Option<MutexGuard<'_, State>> {
        self.any.load(SeqCst).then(|| self.state())
    }

    /// A thread looked a name in a directory up, and found this file, or none.
    pub(crate) fn looked_up(&self, thread: u32, (dir, name): (u64, &[u8]), node: Option<u64>) {
        let Some(mut state) = self.trying() else { return };
        match (state.threads.get_mut(&thread), node) {
            (Some(trying), Some(node)) => trying.found = Some((node, (dir, name.into()))),
            (Some(_), None) => self.ends(&mut state, thread),
            (None, _) => {}
        }
    }

    /// A name was removed.
    pub(crate) fn removed(&self, dir: u64, name: &[u8]) {
        let Some(mut state) = self.trying() else { return };
        if state.removed.len() >= MOST {
            state.removed.pop_front();
            state.before += 1;
        }
        state.removed.push_back((dir, name.into()));
    }

    /// A thread opened a file.
    pub(crate) fn opened(&self, thread: u32) {
        if let Some(mut state) = self.trying() {
            self.ends(&mut state, thread);
        }
    }

    fn ends(&self, state: &mut State, thread: u32) {
        state.threads.remove(&thread);
        if state.threads.is_empty() {
            *state = State::default();
            self.any.store(false, SeqCst);
        }
    }

    /// A file was gone when a thread opened it.
    pub(crate) fn gone(&self, thread: u32, node: u64) -> Gone {
        let mut state = self.state();
        let trying = state.threads.get_mut(&thread).and_then(|trying| Some((trying.since, trying.found.take()?)));
        if let Some((since, (_, name))) = trying.filter(|(_, (found, _))| *found == node) {
            let later = since.saturating_sub(state.before) as usize;
            let removed = state.removed.iter().skip(later).any(|removed| *removed == name);
            self.ends(&mut state, thread);
            return if removed { Gone::Absent } else { Gone::Again(name.0, name.1.into()) };
        }
        if state.threads.len() >= MOST {
            state.threads.clear();
        }
        let since = state.before + state.removed.len() as u64;
        state.threads.insert(thread, Trying { since, found: None });
        self.any.store(true, SeqCst);
        Gone::First
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
        // Whether before it was found once more, or after.
        vanishing.removed(5, b"f");
        assert_eq!(vanishing.gone(1, 7), Gone::First);
        vanishing.looked_up(1, (5, b"f"), Some(8));
        assert_eq!(vanishing.gone(1, 8), Gone::Again(5, b"f".to_vec()), "before it began to try again");
        assert_eq!(vanishing.gone(1, 7), Gone::First);
        vanishing.removed(5, b"f");
        vanishing.looked_up(1, (5, b"f"), Some(8));
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
        (0..3 * MOST as u64).for_each(|dir| vanishing.removed(dir, b"f"));
        let state = vanishing.state();
        assert!(state.threads.len() <= MOST && state.removed.len() <= MOST);
    }
}
