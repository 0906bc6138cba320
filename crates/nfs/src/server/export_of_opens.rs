//! The export through which each client reached its open files. A callback must name a file by the filehandle that the
//! client used.

use crate::exports::Place;
use std::collections::HashMap;
use types::FileId;

/// Smallest number of entries at which the table removes unused entries.
const SMALL: usize = 1024;

/// For each client and file: the root directory and the export epoch ([`Place::epoch`]) of the export through which the
/// client reached the file. A file without an entry was reached through [`Place::default`].
#[derive(Debug)]
pub(super) struct ExportOfOpens {
    roots: HashMap<(u64, FileId), (FileId, u32)>,
    /// The number of entries at which the next removal of unused entries takes place.
    clear_at: usize,
}

impl Default for ExportOfOpens {
    fn default() -> Self {
        ExportOfOpens { roots: HashMap::new(), clear_at: SMALL }
    }
}

impl ExportOfOpens {
    /// Records the export through which a client opened a file. When the number of entries has doubled since the last
    /// removal of entries, the call removes the entries of all files that no client uses (`in_use` returns false). So
    /// the amortised cost of a call is constant.
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

    /// Returns the export through which a client reached a file.
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
