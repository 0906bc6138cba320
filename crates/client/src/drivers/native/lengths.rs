//! The durable lengths of a layout's objects, as far as the client knows them.

use layout::Distribution;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The durable lengths of a layout's objects: those that the mgr reported with the layout, and those that the iods
/// have reported since the mgr granted the layout.
#[derive(Debug)]
pub(super) struct Lengths(Mutex<Known>);

#[derive(Debug)]
struct Known {
    /// The number of bytes, from the start of the file, that were durable when the mgr granted the layout; 0 if
    /// unknown.
    whole: u64,
    /// The durable length of each object, in bytes.
    objects: Vec<u64>,
    /// Set when the client truncates the file. From then on the client ignores reported lengths, which may be older
    /// than the truncate.
    over: bool,
}

impl Lengths {
    /// Creates the durable lengths of a file's objects. According to the mgr, the first `whole` bytes of the file are
    /// durable.
    pub(super) fn new(distribution: &Distribution, whole: u64) -> Self {
        let objects = (0..distribution.count()).map(|index| distribution.object_size(whole, index)).collect();
        Lengths(Mutex::new(Known { whole, objects, over: false }))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of bytes, from the start of the file, that were durable when the mgr granted the layout; 0 if
    /// unknown. An object that is too short to store its share of these bytes has lost bytes.
    pub(super) fn whole(&self) -> u64 {
        self.known().whole
    }

    /// Records that an iod reported `size` durable bytes for an object.
    pub(super) fn learn(&self, index: usize, size: u64) {
        let mut known = self.known();
        if !known.over
            && let Some(object) = known.objects.get_mut(index)
        {
            *object = size.max(*object);
        }
    }

    /// Returns whether the objects store the first `size` bytes of the file durably, see
    /// [`crate::drivers::Layout::reaches`].
    pub(super) fn reach(&self, distribution: &Distribution, size: u64) -> bool {
        let known = self.known();
        (0..distribution.count()).zip(&known.objects).all(|(index, has)| *has >= distribution.object_size(size, index))
    }

    /// Forgets all durable lengths, see [`crate::drivers::Layout::truncating`].
    pub(super) fn forget(&self) {
        let mut known = self.known();
        (known.whole, known.over) = (0, true);
        known.objects.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::DistributionId;

    #[test]
    fn a_file_is_whole_when_all_of_its_objects_are_long_enough() {
        let three = Distribution::new(DistributionId::SimpleStripe, 64, 3).unwrap();
        let lengths = Lengths::new(&three, 100);
        assert!(lengths.reach(&three, 100) && !lengths.reach(&three, 101));
        lengths.learn(1, 64);
        assert!(lengths.reach(&three, 128) && !lengths.reach(&three, 129));
        lengths.learn(0, 80);
        assert!(!lengths.reach(&three, 129), "the third object is not known");
        lengths.learn(2, 64);
        assert!(lengths.reach(&three, 208) && !lengths.reach(&three, 209));
        assert_eq!(lengths.whole(), 100);
        // The durable length of an object only grows until a truncate. So a reply with a smaller length is outdated,
        // and the client ignores it.
        lengths.learn(2, 5);
        assert!(lengths.reach(&three, 208));
        lengths.forget();
        lengths.learn(0, 1000);
        assert!(lengths.reach(&three, 0) && !lengths.reach(&three, 1) && lengths.whole() == 0);
    }
}
