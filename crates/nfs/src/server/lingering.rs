//! Files that a rename has just taken the last name of, kept for who looked that name up a moment before.
//!
//! A client that opens or asks about a file by the handle that its LOOKUP gave walks the path again when the file is gone. It does so once, and where
//! a name is renamed over again and again, the next file may be gone before it comes, too; but the name always stood for a file.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;
use types::{FileId, Timestamp};

/// How long each is kept: longer than a client takes from one request of a walk to the next.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// Most that are kept.
const MOST: usize = 1024;

/// A file that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kept {
    file: FileId,
    until: Timestamp,
    bytes: u64,
}

/// The files that are kept, in the order in which they lost their names.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    kept: VecDeque<Kept>,
    files: HashSet<FileId>,
    bytes: u64,
}

impl Lingering {
    /// Keeps a file of so many bytes from now on; all that are kept may have up to `room` bytes. Those that have to go for it, itself among them if it
    /// is larger than that.
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

    /// Whether a file is kept.
    pub(super) fn keeps(&self, file: FileId) -> bool {
        self.files.contains(&file)
    }

    /// Those whose time is over.
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
    fn each_is_kept_for_its_time() {
        let mut lingering = Lingering::default();
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
    fn the_oldest_go_where_room_is_short() {
        let mut lingering = Lingering::default();
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
