//! Slots for running PULLs, which limit how many PULLs an iod executes at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of PULLs that an iod executes at the same time. Each PULL uses memory for at most two payloads.
const PULLS_MAX: usize = 16;

/// The number of running PULLs, and whether this iod can connect to other iods.
pub(super) struct Pulls {
    running: AtomicUsize,
    /// Whether the iod can connect to other iods; a simulated iod has no sockets.
    pub(super) sockets: bool,
}

impl Default for Pulls {
    fn default() -> Self {
        Pulls { running: AtomicUsize::new(0), sockets: false }
    }
}

impl Pulls {
    /// Makes the PULL slots of an iod that has sockets, and so can read from other iods.
    pub(super) fn over_sockets() -> Self {
        Pulls { sockets: true, ..Pulls::default() }
    }

    /// Takes a slot for a PULL; returns `None` if all slots are in use.
    pub(super) fn begin(&self) -> Option<Place<'_>> {
        let more = |running| (running < PULLS_MAX).then_some(running + 1);
        self.running.try_update(Ordering::AcqRel, Ordering::Relaxed, more).ok().map(|_| Place(self))
    }
}

/// The slot of a running PULL; dropping it frees the slot.
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
