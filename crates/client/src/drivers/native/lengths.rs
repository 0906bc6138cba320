//! The known durable lengths of a layout's objects.

use layout::Distribution;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lengths that the mgr reported with the layout, and the iods since.
#[derive(Debug)]
pub(super) struct Lengths(Mutex<Known>);

#[derive(Debug)]
struct Known {
    /// A file size: every object was as long as this size demands.
    whole: u64,
    /// The known length of each object.
    objects: Vec<u64>,
    /// The file was truncated since, and older answers may still arrive.
    over: bool,
}

impl Lengths {
    /// Creates the lengths of a file of which `whole` bytes are durable, as far as the mgr knows.
    pub(super) fn new(distribution: &Distribution, whole: u64) -> Self {
        let objects = (0..distribution.count()).map(|index| distribution.object_size(whole, index)).collect();
        Lengths(Mutex::new(Known { whole, objects, over: false }))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a file size up to which every object is durable: an object shorter than this size demands has lost
    /// bytes. 0 if unknown.
    pub(super) fn whole(&self) -> u64 {
        self.known().whole
    }

    /// Records that an object has `size` bytes, all of them durable.
    pub(super) fn learn(&self, index: usize, size: u64) {
        let mut known = self.known();
        if !known.over
            && let Some(object) = known.objects.get_mut(index)
        {
            *object = size.max(*object);
        }
    }

    /// Checks the lengths of all objects, see [`crate::drivers::Layout::reaches`].
    pub(super) fn reach(&self, distribution: &Distribution, size: u64) -> bool {
        let known = self.known();
        (0..distribution.count()).zip(&known.objects).all(|(index, has)| *has >= distribution.object_size(size, index))
    }

    /// Forgets all lengths, see [`crate::drivers::Layout::truncating`].
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
        // A smaller size is an older answer.
        lengths.learn(2, 5);
        assert!(lengths.reach(&three, 208));
        lengths.forget();
        lengths.learn(0, 1000);
        assert!(lengths.reach(&three, 0) && !lengths.reach(&three, 1) && lengths.whole() == 0);
    }
}
