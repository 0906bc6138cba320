//! Files whose last name a rename has just replaced. The server keeps each file for a second, for clients that looked
//! up the name before the rename.
//!
//! A client opens a file by the filehandle from its LOOKUP, and repeats the path walk once on STALE. If other clients
//! replace the name again and again, the file of the second path walk may be gone too. Without this table, the program
//! then sees an error. POSIX forbids this error, because the name existed at all times.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;
use types::{FileId, Timestamp};

/// How long the server keeps a replaced file: longer than the time between two requests of a path walk.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// Largest number of replaced files that the server keeps.
const MOST: usize = 1024;

/// A replaced file that the server keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kept {
    file: FileId,
    until: Timestamp,
    bytes: u64,
}

/// The replaced files that the server keeps, in the order in which they lost their names.
#[derive(Debug, Default)]
pub(super) struct ReplacedFiles {
    kept: VecDeque<Kept>,
    files: HashSet<FileId>,
    bytes: u64,
}

impl ReplacedFiles {
    /// Adds a file of `bytes` bytes. All files in the table together may have up to `room` bytes. Returns the files
    /// that the table evicts, oldest first; a file larger than `room` is evicted at once.
    pub(super) fn add(&mut self, file: FileId, bytes: u64, room: u64, now: Timestamp) -> Vec<FileId> {
        if self.files.insert(file) {
            self.kept.push_back(Kept { file, until: now.after(KEPT_FOR), bytes });
            self.bytes = self.bytes.saturating_add(bytes);
        }
        let mut over = Vec::new();
        while self.kept.len() > MOST || self.bytes > room {
            let Some(kept) = self.kept.pop_front() else { break };
            over.push(self.gone(kept));
        }
        over
    }

    /// Returns whether the table contains a file.
    pub(super) fn keeps(&self, file: FileId) -> bool {
        self.files.contains(&file)
    }

    /// Removes and returns the files that the table has held for [`KEPT_FOR`].
    pub(super) fn take_due(&mut self, now: Timestamp) -> Vec<FileId> {
        let due = self.kept.iter().position(|kept| kept.until > now).unwrap_or(self.kept.len());
        let due: Vec<_> = self.kept.drain(..due).collect();
        due.into_iter().map(|kept| self.gone(kept)).collect()
    }

    fn gone(&mut self, kept: Kept) -> FileId {
        self.files.remove(&kept.file);
        self.bytes = self.bytes.saturating_sub(kept.bytes);
        kept.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    #[test]
    fn a_replaced_file_is_kept_for_its_time() {
        let mut lingering = ReplacedFiles::default();
        assert_eq!(lingering.add(FileId(5), 10, 100, at(1)), []);
        assert_eq!(lingering.add(FileId(6), 10, 100, at(2)), []);
        assert!(lingering.keeps(FileId(5)) && !lingering.keeps(FileId(7)));
        assert_eq!(lingering.take_due(at(1)), []);
        assert_eq!(lingering.take_due(at(2)), [FileId(5)]);
        assert!(!lingering.keeps(FileId(5)) && lingering.keeps(FileId(6)));
        assert_eq!(lingering.take_due(at(9)), [FileId(6)]);
        assert_eq!(lingering.bytes, 0);
    }

    #[test]
    fn a_full_table_evicts_the_oldest_files() {
        let mut lingering = ReplacedFiles::default();
        assert_eq!(lingering.add(FileId(5), 60, 100, at(1)), []);
        assert_eq!(lingering.add(FileId(6), 60, 100, at(1)), [FileId(5)]);
        assert_eq!(lingering.add(FileId(7), 101, 100, at(1)), [FileId(6), FileId(7)]);
        assert_eq!((lingering.bytes, lingering.kept.len()), (0, 0));
        assert_eq!(lingering.add(FileId(8), 0, 0, at(1)), [], "nothing takes no room");
        assert_eq!(lingering.add(FileId(8), 0, 0, at(1)), []);
        let gone: Vec<_> = (0..MOST as u64).flat_map(|id| lingering.add(FileId(100 + id), 0, 0, at(1))).collect();
        assert_eq!(gone, [FileId(8)]);
        assert_eq!(lingering.kept.len(), lingering.files.len());
    }
}
