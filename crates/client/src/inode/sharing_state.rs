//! The sharing of a file with other clients: whether the opens require coherence, the delegations that this client got
//! and lost, and when it may request the next delegation.

#[cfg(test)]
mod tests;

use std::time::Duration;
use tokio::time::Instant;

/// The minimum time between two requests for a delegation of a shared file.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The sharing of one file with other clients.
#[derive(Clone, Debug, Default)]
pub(super) struct SharingState {
    /// Whether an open on this client requires `sharing=coherent`.
    coherent: bool,
    /// Whether a cache above this client holds dirty bytes under the delegation ([`crate::OpenOptions::alone`]).
    exclusive: bool,
    /// Number of delegations that the mgr granted for this file.
    grants: u64,
    /// Number of delegations that the mgr revoked. The client drops writes that relied on a revoked delegation.
    revocations: u64,
    /// When the client last requested or lost a delegation of the file.
    asked: Option<Instant>,
}

impl SharingState {
    /// Records whether a new open of the file requires coherence, and whether a cache above the client (the kernel's
    /// page cache) holds dirty bytes under the write delegation of the file.
    pub(super) fn opened(&mut self, coherent: bool, exclusive: bool) {
        self.coherent |= coherent;
        self.exclusive |= exclusive;
    }

    /// Returns whether an open requires `sharing=coherent`.
    pub(super) fn is_coherent(&self) -> bool {
        self.coherent
    }

    /// Returns whether a cache above this client holds dirty bytes under the delegation.
    pub(super) fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// Returns whether the client should request a delegation: an open requires coherence, and the client has not
    /// requested or lost a delegation recently.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        let lately = self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < ASK_AGAIN);
        self.coherent && !lately
    }

    /// Records the time at which the client requested or lost a delegation.
    pub(super) fn asked(&mut self, now: Instant) {
        self.asked = Some(now);
    }

    /// Counts a granted delegation.
    pub(super) fn granted(&mut self) {
        self.grants += 1;
    }

    /// Returns the number of delegations that the mgr granted for this file.
    pub(super) fn grants(&self) -> u64 {
        self.grants
    }

    /// Counts a revoked delegation.
    pub(super) fn revoked(&mut self) {
        self.revocations += 1;
    }

    /// Returns the number of delegations that the mgr revoked for this file.
    pub(super) fn revocations(&self) -> u64 {
        self.revocations
    }
}
