//! The folders of the object files, and the syncs that they still need.
//!
//! Objects with neighbouring ids share a folder: files created together are often committed together, and then share
//! the sync of the folder.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use types::{FileId, ObjectId};

use super::format::OBJECTS;
use crate::counters::Counters;
use crate::disks::Disk;
use crate::lock::lock;

/// Suffix of the sum file of an object.
const SUMS_SUFFIX: &str = ".sum";

/// One folder, with up to 256 neighbouring objects for each multiple of 2^24.
pub(crate) struct Leaf {
    path: String,
    /// Number of entries created or removed. Starts at 1: the remains of an earlier run may not be durable either.
    changes: AtomicU64,
    /// Number of changes that are durable.
    durable: AtomicU64,
    /// Held during a sync, so that waiting threads share the next sync.
    syncing: Mutex<()>,
    failed: AtomicBool,
}

impl Leaf {
    /// The change number of the entries that existed before this run.
    pub(crate) const FOUND: u64 = 1;

    /// Returns the path of the folder on the disk.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Counts a created or removed entry; returns the change number for [`Leaf::sync`].
    pub(crate) fn changed(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Makes change number `change` durable.
    pub(crate) fn sync(&self, change: u64, disk: &dyn Disk, counters: &Counters) -> io::Result<()> {
        if self.durable.load(Ordering::Acquire) >= change {
            return Ok(());
        }
        let _one = lock(&self.syncing);
        if self.durable.load(Ordering::Acquire) >= change {
            Counters::add(&counters.syncs_shared, 1);
            return Ok(());
        }
        if self.failed.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier sync of the folder failed"));
        }
        let covered = self.changes.load(Ordering::Acquire);
        let result = self.sync_chain(disk, counters);
        match result {
            Ok(()) => self.durable.store(covered, Ordering::Release),
            // After a failed sync the kernel drops the pages that it could not write, so a later success proves
            // nothing.
            Err(_) => {
                self.failed.store(true, Ordering::Release);
                Counters::add(&counters.syncs_failed, 1);
            }
        }
        result
    }

    /// Syncs the folder. The first sync of this run also syncs the two folders above it, which hold its entry.
    fn sync_chain(&self, disk: &dyn Disk, counters: &Counters) -> io::Result<()> {
        let mut folder = self.path.as_str();
        disk.sync_folder(folder)?;
        Counters::add(&counters.syncs_directory, 1);
        if self.durable.load(Ordering::Acquire) == 0 {
            while let Some((above, _)) = folder.rsplit_once('/') {
                folder = above;
                disk.sync_folder(folder)?;
                Counters::add(&counters.syncs_directory, 1);
            }
        }
        Ok(())
    }
}

/// All folders of a store.
#[derive(Default)]
pub(crate) struct Shards {
    /// At most 65536 folders.
    leaves: Mutex<HashMap<u16, Arc<Leaf>>>,
}

impl Shards {
    /// Returns the folder number of an object. All streams of a file are in one folder.
    fn number(object: ObjectId) -> u16 {
        (object.file.0 >> 8) as u16
    }

    /// Returns the path of an object's file. The name of an object of stream 0 is its file alone, as in stores that
    /// know no streams.
    pub(crate) fn path(object: ObjectId) -> String {
        let (number, ObjectId { file: FileId(file), stream }) = (Self::number(object), object);
        let folder = format!("{OBJECTS}/{:02x}/{:02x}", number >> 8, number & 0xff);
        if stream == 0 { format!("{folder}/{file:016x}") } else { format!("{folder}/{file:016x}-{stream:08x}") }
    }

    /// Returns the path of the file with an object's block checksums.
    pub(crate) fn sums_path(object: ObjectId) -> String {
        Self::path(object) + SUMS_SUFFIX
    }

    /// Returns the object whose file has this name in folder `folder` (its number); `None` for foreign names.
    pub(crate) fn object_of(folder: u16, name: &str) -> Option<ObjectId> {
        let (file, stream) = match name.split_once('-') {
            // Stream 0 has no suffix: an object has one name only.
            Some((file, stream)) => (file, hex(stream, 8).filter(|stream| *stream != 0)? as u32),
            None => (name, 0),
        };
        let object = ObjectId::new(FileId(hex(file, 16)?), stream);
        (Self::number(object) == folder).then_some(object)
    }

    /// Returns the position of an object in folder order.
    pub(crate) fn order(object: ObjectId) -> (u16, ObjectId) {
        (Self::number(object), object)
    }

    /// Returns the folder of an object, which may not exist yet.
    pub(crate) fn leaf(&self, object: ObjectId) -> Arc<Leaf> {
        let number = Self::number(object);
        let mut leaves = lock(&self.leaves);
        let leaf = leaves.entry(number).or_insert_with(|| {
            Arc::new(Leaf {
                path: format!("{OBJECTS}/{:02x}/{:02x}", number >> 8, number & 0xff),
                changes: AtomicU64::new(Leaf::FOUND),
                durable: AtomicU64::new(0),
                syncing: Mutex::new(()),
                failed: AtomicBool::new(false),
            })
        });
        leaf.clone()
    }
}

/// Returns the number that `text` writes with exactly `digits` lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u64> {
    let ours = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    u64::from_str_radix(text, 16).ok().filter(|_| ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disks::Memory;

    fn object_id(file: u64) -> ObjectId {
        ObjectId::stream_0(FileId(file))
    }

    #[test]
    fn names_and_folders_agree() {
        let files = [0, 1, 255, 256, 0x01_0203, 0xabcd_ef01_2345_6789, u64::MAX].map(FileId);
        for object in files.iter().flat_map(|file| [0, 1, u32::MAX].map(|stream| ObjectId::new(*file, stream))) {
            let path = Shards::path(object);
            let mut parts = path.strip_prefix("objects/").unwrap().split('/');
            let high = u16::from_str_radix(parts.next().unwrap(), 16).unwrap();
            let low = u16::from_str_radix(parts.next().unwrap(), 16).unwrap();
            let name = parts.next().unwrap();
            assert_eq!(Shards::object_of(high << 8 | low, name), Some(object));
            assert_eq!(Shards::object_of((high << 8 | low) ^ 1, name), None);
        }
        assert_eq!(Shards::path(object_id(0x01_0203)), "objects/01/02/0000000000010203");
        assert_eq!(Shards::path(ObjectId::new(FileId(7), 0xab)), "objects/00/00/0000000000000007-000000ab");
        for bad in [
            "",
            "1",
            "000000000000000g",
            "+000000000000001",
            "00000000000000AA",
            "lost+found",
            "0000000000000001.sum",
            "0000000000000001-00000002.sum",
            "0000000000000001-00000000",
            "0000000000000001-2",
            "0000000000000001-",
            "0000000000000001-00000002-00000003",
        ] {
            assert_eq!(Shards::object_of(0, bad), None, "{bad:?}");
        }
    }

    #[test]
    fn syncs_of_one_folder_are_shared_and_failures_stay() {
        let disk = Memory::new("m", 1 << 20);
        let shards = Shards::default();
        let counters = Counters::default();
        let leaf = shards.leaf(object_id(1));
        disk.make_folder(leaf.path()).unwrap();
        let (first, second) = (leaf.changed(), leaf.changed());
        leaf.sync(first, &disk, &counters).unwrap();
        assert_eq!(counters.get("syncs.directory"), 3, "the folder and the two above it");
        leaf.sync(second, &disk, &counters).unwrap();
        assert_eq!(counters.get("syncs.directory"), 3, "covered by the first");
        let third = leaf.changed();
        disk.inject(|_, _| Some(io::Error::other("broken")));
        leaf.sync(third, &disk, &counters).unwrap_err();
        disk.heal();
        leaf.sync(third, &disk, &counters).unwrap_err();
        leaf.sync(second, &disk, &counters).unwrap();
    }
}
