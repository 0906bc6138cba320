//! Table of source files with several names, so that a copy recreates all further names of a file as hard links.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Device number and inode number of a source file with more than one name.
pub type Identity = (u64, u64);

/// The source files with several names that one copy has found. `W` is a source name that waits until another task has
/// copied its file; `T` is a file at the destination.
pub struct Links<W, T>(Mutex<HashMap<Identity, State<W, T>>>);

enum State<W, T> {
    /// A thread is copying the bytes of the file. The names in the list wait until the copy is complete or has failed.
    Copying(Vec<W>),
    /// The file at the destination, complete with all its bytes.
    Done(T),
}

/// What the caller must do for one name of a file with several names.
#[derive(PartialEq, Eq, Debug)]
pub enum LinkAction<W, T> {
    /// Copy the bytes, because this is the first name of the file. Then call [`Links::done`] or [`Links::failed`].
    Copy(W),
    /// Make a hard link to the given file of the destination, which already has all its bytes.
    Link(W, T),
    /// Do nothing with this name for the moment. When the copy of the file ends, [`Links::done`] or [`Links::failed`]
    /// returns the name.
    Wait,
}

impl<W, T> Default for Links<W, T> {
    fn default() -> Self {
        Links(Mutex::default())
    }
}

impl<W, T: Clone> Links<W, T> {
    /// Returns what the caller must do for the name `who` of the file `id`.
    pub fn turn(&self, id: Identity, who: W) -> LinkAction<W, T> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match table.get_mut(&id) {
            None => {
                table.insert(id, State::Copying(Vec::new()));
                LinkAction::Copy(who)
            }
            Some(State::Copying(waiting)) => {
                waiting.push(who);
                LinkAction::Wait
            }
            Some(State::Done(path)) => LinkAction::Link(who, path.clone()),
        }
    }

    /// Records that the copy of the file `id` is complete at `path`. Returns the other names of the file that waited
    /// for this copy; the caller makes a hard link for each name.
    pub fn done(&self, id: Identity, path: T) -> Vec<W> {
        match self.put(id, Some(State::Done(path))) {
            Some(State::Copying(waiting)) => waiting,
            _ => Vec::new(),
        }
    }

    /// Records that the copy of the file `id` has failed. Returns the other names of the file that waited for this
    /// copy; the caller copies the bytes again, to the first of these names.
    pub fn failed(&self, id: Identity) -> Vec<W> {
        match self.put(id, None) {
            Some(State::Copying(waiting)) => waiting,
            _ => Vec::new(),
        }
    }

    fn put(&self, id: Identity, state: Option<State<W, T>>) -> Option<State<W, T>> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state {
            Some(state) => table.insert(id, state),
            None => table.remove(&id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_is_copied_and_others_wait_then_link() {
        let links = Links::default();
        assert_eq!(links.turn((1, 2), "a"), LinkAction::Copy("a"));
        assert_eq!(links.turn((1, 2), "b"), LinkAction::Wait);
        assert_eq!(links.turn((1, 3), "c"), LinkAction::Copy("c"));
        assert_eq!(links.done((1, 2), "/a"), vec!["b"]);
        assert_eq!(links.turn((1, 2), "b"), LinkAction::Link("b", "/a"));
    }

    #[test]
    fn a_waiting_name_is_copied_after_a_failure() {
        let links: Links<&str, &str> = Links::default();
        assert_eq!(links.turn((1, 2), "a"), LinkAction::Copy("a"));
        assert_eq!(links.turn((1, 2), "b"), LinkAction::Wait);
        assert_eq!(links.failed((1, 2)), vec!["b"]);
        assert_eq!(links.turn((1, 2), "b"), LinkAction::Copy("b"));
    }
}
