//! The export through which each client reached its open files: callbacks must name a file by the client's filehandle.

use crate::exports::Place;
use std::collections::HashMap;
use types::FileId;

/// With fewer entries than this, none are removed.
const SMALL: usize = 1024;

/// Root and epoch of each place that is not the export of the root directory, by client and file.
#[derive(Debug)]
pub(super) struct ExportOfOpens {
    roots: HashMap<(u64, FileId), (FileId, u32)>,
    /// The number of entries at which unused ones are removed.
    clear_at: usize,
}

impl Default for ExportOfOpens {
    fn default() -> Self {
        ExportOfOpens { roots: HashMap::new(), clear_at: SMALL }
    }
}

impl ExportOfOpens {
    /// Records that a client opened a file. Files for which `in_use` is false are removed whenever the entries have
    /// doubled since the last removal, so that the average cost of a call does not depend on their number.
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

    /// Returns the place through which a client reached a file.
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
    fn exports_of_open_files_are_kept_and_others_are_evicted() {
        let export = Place { root: FileId(5), terms: 1, epoch: 0 };
        let mut reached = ExportOfOpens::default();
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
