//! Deliberate bugs that a test switches on in a thread, to prove that the simulator finds such bugs.
//!
//! The product never contains these bugs, because only the simulator enables the Cargo feature `planted`.

use std::cell::Cell;

/// A deliberate bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Bug: the reply cache of a session does not find the replies that it has stored.
    ReplyCache,
    /// Bug: the client does not compare the write verifier in the reply to COMMIT with the verifiers of its writes.
    CommitVerifier,
    /// Bug: the table of byte-range locks forgets the locks that it has granted.
    LockTable,
    /// Bug: the mgr switches a file to the layout with new objects before these objects are durable.
    EarlySwap,
    /// Bug: a move of a file creates the new objects in the stream that the file already uses.
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
