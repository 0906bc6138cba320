//! Mistakes that can be switched on in a thread, to prove that the simulator finds them. Never part of the product: all of
//! it is behind the feature `planted`, which only the simulator asks for.

use std::cell::Cell;

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// The reply cache of a session does not know replies that it has kept.
    ReplyCache,
    /// COMMIT counts as done whatever the write verifier says.
    CommitVerifier,
    /// The table of byte-range locks forgets what it has granted.
    LockTable,
}

thread_local! {
    static ON: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Makes this mistake in this thread from now on, or none.
pub fn plant(mistake: Option<Planted>) {
    ON.set(mistake);
}

/// Whether this mistake is to be made.
pub fn is_planted(mistake: Planted) -> bool {
    ON.get() == Some(mistake)
}
