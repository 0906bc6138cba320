//! The sharing of a file between clients, as this client knows it: the requirements of its opens, how many delegations
//! it got and lost, and when it may ask for the next one.

#[cfg(test)]
mod tests;

use std::time::Duration;
use tokio::time::Instant;

/// How often a client asks for a delegation of a shared file.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The sharing of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct SharingState {
    /// Whether an open requires `sharing=coherent`.
    coherent: bool,
    /// Whether a cache above this client keeps bytes under the delegation ([`crate::OpenOptions::alone`]).
    exclusive: bool,
    /// Number of delegations granted.
    grants: u64,
    /// Number of delegations revoked. Writes that relied on a revoked delegation are dropped.
    revocations: u64,
    /// When a delegation was last requested or lost.
    asked: Option<Instant>,
}

impl SharingState {
    /// Records the requirements of a new open of the file.
    pub(super) fn opened(&mut self, coherent: bool, exclusive: bool) {
        self.coherent |= coherent;
        self.exclusive |= exclusive;
    }

    /// Returns whether an open requires `sharing=coherent`.
    pub(super) fn is_coherent(&self) -> bool {
        self.coherent
    }

    /// Returns whether a cache above this client keeps bytes under the delegation.
    pub(super) fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// Returns whether a request for a delegation is useful: the file is shared, and the client has not asked recently.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        let lately = self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < ASK_AGAIN);
        self.coherent && !lately
    }

    /// Records that a delegation was requested or lost.
    pub(super) fn asked(&mut self, now: Instant) {
        self.asked = Some(now);
    }

    /// Records a new delegation.
    pub(super) fn granted(&mut self) {
        self.grants += 1;
    }

    /// Returns the number of delegations granted.
    pub(super) fn grants(&self) -> u64 {
        self.grants
    }

    /// Records a revoked delegation.
    pub(super) fn revoked(&mut self) {
        self.revocations += 1;
    }

    /// Returns the number of delegations revoked.
    pub(super) fn revocations(&self) -> u64 {
        self.revocations
    }
}
