//! The folders of the object files of a store, and their syncs.
//!
//! Objects with neighbouring numbers share a folder. Clients often create several files together and then commit them
//! together, so one sync of the folder suffices.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use types::{FileId, ObjectId};

use super::format::OBJECTS;
use crate::counters::Counters;
use crate::disks::Disk;
use crate::lock::lock;

/// Suffix of the name of a checksum file.
const SUMS_SUFFIX: &str = ".sum";

/// One folder of object files. The folder holds the objects of 256 consecutive file numbers, and of all file numbers
/// that differ from these by a multiple of 2^24.
pub(crate) struct Leaf {
    path: String,
    /// Number of changes of the folder: names that the iod created or removed. The count starts at 1, because the names
    /// that an earlier run of the iod left may not be durable.
    changes: AtomicU64,
    /// Number of changes of the folder that are durable.
    durable: AtomicU64,
    /// The lock that a thread holds while it syncs the folder. After the current sync, one more sync suffices for all
    /// threads that wait for this lock; the first of them makes it.
    syncing: Mutex<()>,
    failed: AtomicBool,
}

impl Leaf {
    /// The change number of every file name that the folder contained when the iod opened the store.
    pub(crate) const FOUND: u64 = 1;

    /// Returns the path of the folder, relative to the store's directory.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Counts a created or removed name. Returns the change number, which [`Leaf::sync`] makes durable.
    pub(crate) fn changed(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Makes the change with this number durable, and all earlier changes of names in the same folder.
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
            // Remember that this sync failed. After a failed sync, Linux marks the lost pages as clean, so a later sync
            // may succeed without writing them.
            Err(_) => {
                self.failed.store(true, Ordering::Release);
                Counters::add(&counters.syncs_failed, 1);
            }
        }
        result
    }

    /// Syncs the folder. The first sync after a start of the iod also syncs the two parent folders, because the name of
    /// the folder itself may not be durable.
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

/// All folders of object files in a store.
#[derive(Default)]
pub(crate) struct Shards {
    /// The folders that the iod has used since it started, by number; at most 65536.
    leaves: Mutex<HashMap<u16, Arc<Leaf>>>,
}

impl Shards {
    /// Returns the number of the folder that holds an object. The objects of all streams of a file have the same
    /// folder.
    fn number(object: ObjectId) -> u16 {
        (object.file.0 >> 8) as u16
    }

    /// Returns the path of an object's file. For stream 0 the name has no stream number, so that older builds find the
    /// file.
    pub(crate) fn path(object: ObjectId) -> String {
        let (number, ObjectId { file: FileId(file), stream }) = (Self::number(object), object);
        let folder = format!("{OBJECTS}/{:02x}/{:02x}", number >> 8, number & 0xff);
        if stream == 0 { format!("{folder}/{file:016x}") } else { format!("{folder}/{file:016x}-{stream:08x}") }
    }

    /// Returns the path of an object's checksum file, which holds its block checksums.
    pub(crate) fn sums_path(object: ObjectId) -> String {
        Self::path(object) + SUMS_SUFFIX
    }

    /// Returns the object of the file with this name in folder number `folder`. Returns `None` if the name is not that
    /// of an object file.
    pub(crate) fn object_of(folder: u16, name: &str) -> Option<ObjectId> {
        let (file, stream) = match name.split_once('-') {
            // Refuse a name with stream number 0: each object has only one valid name, and for stream 0 the name has no
            // stream number.
            Some((file, stream)) => (file, hex(stream, 8).filter(|stream| *stream != 0)? as u32),
            None => (name, 0),
        };
        let object = ObjectId::new(FileId(hex(file, 16)?), stream);
        (Self::number(object) == folder).then_some(object)
    }

    /// Returns the sort key of an object in a walk over the store: folder number, then object id.
    pub(crate) fn order(object: ObjectId) -> (u16, ObjectId) {
        (Self::number(object), object)
    }

    /// Returns the folder that holds an object. The folder may not exist on disk yet.
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

/// Parses a number of exactly `digits` lower-case hexadecimal digits.
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
