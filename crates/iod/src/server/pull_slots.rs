//! The slots of running pulls, which limit how many run at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of concurrent pulls. Each holds at most two payloads in memory.
const PULLS_MAX: usize = 16;

/// The number of running pulls, and whether this iod can pull from other iods.
pub(super) struct Pulls {
    running: AtomicUsize,
    /// Whether the iod can open connections; simulated iods have no sockets.
    pub(super) sockets: bool,
}

impl Default for Pulls {
    fn default() -> Self {
        Pulls { running: AtomicUsize::new(0), sockets: false }
    }
}

impl Pulls {
    /// Returns the pulls of an iod that may open connections.
    pub(super) fn over_sockets() -> Self {
        Pulls { sockets: true, ..Pulls::default() }
    }

    /// Takes a slot; `None` if all slots are in use.
    pub(super) fn begin(&self) -> Option<Place<'_>> {
        let more = |running| (running < PULLS_MAX).then_some(running + 1);
        self.running.try_update(Ordering::AcqRel, Ordering::Relaxed, more).ok().map(|_| Place(self))
    }
}

/// The slot of a running pull; released when dropped.
pub(super) struct Place<'a>(&'a Pulls);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_concurrent_pulls_is_bounded() {
        let pulls = Pulls::default();
        let mut places: Vec<_> = (0..PULLS_MAX).map(|_| pulls.begin().unwrap()).collect();
        assert!(pulls.begin().is_none());
        places.pop();
        assert!(pulls.begin().is_some());
    }
}
