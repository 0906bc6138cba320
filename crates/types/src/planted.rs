//! Deliberate bugs that a test switches on in a thread, to prove that the simulator finds them.
//!
//! They are never part of the product: the module is behind the feature `planted`, which only the simulator enables.

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
    /// The mgr swaps the layout of a file before its new objects are durable.
    EarlySwap,
    /// The new objects of a move are of the stream that the file has already.
    SameStream,
}

thread_local! {
    static ON: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Switches this bug on in this thread, or all bugs off with `None`.
pub fn plant(mistake: Option<Planted>) {
    ON.set(mistake);
}

/// Returns whether this bug is switched on in this thread.
pub fn is_planted(mistake: Planted) -> bool {
    ON.get() == Some(mistake)
}
