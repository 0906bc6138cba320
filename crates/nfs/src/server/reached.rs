//! By which export each client reached the files that it has open: callbacks have to name a file as the client does.

use crate::exports::Place;
use std::collections::HashMap;
use types::FileId;

/// Entries below which nothing is cleared away.
const SMALL: usize = 1024;

/// What is not in the export of everything, by client and file.
#[derive(Debug)]
pub(super) struct Reached {
    roots: HashMap<(u64, FileId), (FileId, u32)>,
    /// At how many entries to look for those that nobody needs any more.
    clear_at: usize,
}

impl Default for Reached {
    fn default() -> Self {
        Reached { roots: HashMap::new(), clear_at: SMALL }
    }
}

impl Reached {
    /// Notes that a client opened a file. Files for which `in_use` is false are forgotten whenever there are twice as many
    /// entries as were left the last time, so that a note costs the same on average however many there are.
    pub(super) fn note(&mut self, client: u64, file: FileId, place: Place, in_use: impl Fn(FileId) -> bool) {
        if (place.root, place.epoch) == (FileId::ROOT, 0) {
            self.roots.remove(&(client, file));
            return;
        }
        self.roots.insert((client, file), (place.root, place.epoch));
        if self.roots.len() >= self.clear_at {
            self.roots.retain(|(of, used), _| (*of, *used) == (client, file) || in_use(*used));
            self.clear_at = (2 * self.roots.len()).max(SMALL);
        }
    }

    /// Where a client reached a file.
    pub(super) fn place(&self, client: u64, file: FileId) -> Place {
        match self.roots.get(&(client, file)) {
            Some((root, epoch)) => Place { root: *root, epoch: *epoch, ..Place::default() },
            None => Place::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_use_are_remembered_and_others_not_for_ever() {
        let export = Place { root: FileId(5), terms: 1, epoch: 0 };
        let mut reached = Reached::default();
        for n in 0..100_000 {
            reached.note(n % 3, FileId(n), export, |file| file.0 % 100 == 0);
            assert_eq!(reached.place(n % 3, FileId(n)).root, FileId(5));
        }
        assert_eq!(reached.place(99_000 % 3, FileId(99_000)).root, FileId(5));
        assert!(reached.roots.len() < 2 * SMALL + 1000, "{}", reached.roots.len());
        assert_eq!(reached.place(7, FileId(99_000)), Place::default());
        reached.note(0, FileId(99_000), Place::default(), |_| true);
        assert_eq!(reached.place(0, FileId(99_000)), Place::default());
    }
}
