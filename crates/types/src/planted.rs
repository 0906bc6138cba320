//! Deliberate bugs that a test switches on in a thread, to prove that the simulator finds them.
//!
//! The product never contains these bugs: only the simulator enables the feature `planted` of this module.

use std::cell::Cell;

/// A deliberate bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// The reply cache of a session does not find the replies that it has stored.
    ReplyCache,
    /// The client accepts a COMMIT without comparing its write verifier.
    CommitVerifier,
    /// The table of byte-range locks forgets the locks that it has granted.
    LockTable,
    /// The mgr swaps the layout of a file before the new objects of the file are durable.
    EarlySwap,
    /// A move of a file creates the new objects in the stream that the file already uses.
    SameStream,
}

thread_local! {
    static ON: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Switches a bug on in the calling thread, or all bugs off with `None`.
pub fn plant(mistake: Option<Planted>) {
    ON.set(mistake);
}

/// Returns whether this bug is switched on in the calling thread.
pub fn is_planted(mistake: Planted) -> bool {
    ON.get() == Some(mistake)
}
