//! The folders that objects are spread over, and who still has to be synced.
//!
//! Neighbouring object ids share a folder, because files created together are committed together and then share the
//! folder's sync.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use types::FileId;

use crate::counters::Counters;
use crate::lock::lock;

/// How files and folders are made durable; tests put faults here.
pub(crate) type SyncFn = dyn Fn(&File, Target) -> io::Result<()> + Send + Sync;

/// What is being synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// The data of an object file.
    Object,
    /// The entries of a folder.
    Directory,
}

/// The sync of real life.
pub(crate) fn sync_file(file: &File, target: Target) -> io::Result<()> {
    match target {
        Target::Object => file.sync_data(),
        Target::Directory => file.sync_all(),
    }
}

/// One folder with up to 256 neighbouring objects for each multiple of 2^24.
pub(crate) struct Leaf {
    path: PathBuf,
    /// Entries made or removed so far. Starts at 1: what an earlier run left may not be durable either.
    changes: AtomicU64,
    /// How many of them are durable.
    durable: AtomicU64,
    /// Held while syncing, so that waiting syncs share the next one.
    syncing: Mutex<()>,
    failed: AtomicBool,
}

impl Leaf {
    /// The number of the newest change when this was called first: what a sync must cover for entries found there.
    pub(crate) const FOUND: u64 = 1;

    /// Whether the folder is there.
    pub(crate) fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// Notes that an entry was made or removed; the answer is for [`Leaf::sync`].
    pub(crate) fn changed(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns when change number `change` is durable.
    pub(crate) fn sync(&self, change: u64, sync: &SyncFn, counters: &Counters) -> io::Result<()> {
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
        let result = self.sync_chain(sync, counters);
        match result {
            Ok(()) => self.durable.store(covered, Ordering::Release),
            // After a failed sync the kernel forgets what was lost: a later success would prove nothing.
            Err(_) => {
                self.failed.store(true, Ordering::Release);
                Counters::add(&counters.syncs_failed, 1);
            }
        }
        result
    }

    /// Syncs the folder and, the first time in this run, the two above that hold its entry.
    fn sync_chain(&self, sync: &SyncFn, counters: &Counters) -> io::Result<()> {
        let levels = if self.durable.load(Ordering::Acquire) == 0 { 3 } else { 1 };
        for folder in self.path.ancestors().take(levels) {
            sync(&File::open(folder)?, Target::Directory)?;
            Counters::add(&counters.syncs_directory, 1);
        }
        Ok(())
    }
}

/// All folders of a store.
pub(crate) struct Shards {
    root: PathBuf,
    /// At most 65536.
    leaves: Mutex<HashMap<u16, Arc<Leaf>>>,
}

impl Shards {
    /// The folders below `root`.
    pub(crate) fn new(root: PathBuf) -> Self {
        Shards { root, leaves: Mutex::default() }
    }

    /// The folder that holds all others.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The number of the folder for an object.
    fn number(object: FileId) -> u16 {
        (object.0 >> 8) as u16
    }

    /// The path of an object's file.
    pub(crate) fn path(&self, object: FileId) -> PathBuf {
        let number = Self::number(object);
        self.root.join(format!("{:02x}/{:02x}/{:016x}", number >> 8, number & 0xff, object.0))
    }

    /// The object whose file has this name in folder `folder` (its number), `None` for names that are not ours.
    pub(crate) fn object_of(folder: u16, name: &str) -> Option<FileId> {
        let ours = name.len() == 16 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let object = FileId(u64::from_str_radix(name, 16).ok().filter(|_| ours)?);
        (Self::number(object) == folder).then_some(object)
    }

    /// The position of an object in the order of folders.
    pub(crate) fn order(object: FileId) -> (u16, u64) {
        (Self::number(object), object.0)
    }

    /// The folder of an object, which may not exist yet.
    pub(crate) fn leaf(&self, object: FileId) -> Arc<Leaf> {
        let number = Self::number(object);
        let mut leaves = lock(&self.leaves);
        let leaf = leaves.entry(number).or_insert_with(|| {
            Arc::new(Leaf {
                path: self.root.join(format!("{:02x}/{:02x}", number >> 8, number & 0xff)),
                changes: AtomicU64::new(Leaf::FOUND),
                durable: AtomicU64::new(0),
                syncing: Mutex::new(()),
                failed: AtomicBool::new(false),
            })
        });
        leaf.clone()
    }

    /// Makes the folder of an object.
    pub(crate) fn make(&self, leaf: &Leaf) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).create(&leaf.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_folders_agree() {
        let shards = Shards::new("/s".into());
        for id in [0, 1, 255, 256, 0x01_0203, 0xabcd_ef01_2345_6789, u64::MAX] {
            let object = FileId(id);
            let path = shards.path(object);
            let mut parts = path.strip_prefix("/s").unwrap().iter().map(|p| p.to_str().unwrap());
            let high = u16::from_str_radix(parts.next().unwrap(), 16).unwrap();
            let low = u16::from_str_radix(parts.next().unwrap(), 16).unwrap();
            let name = parts.next().unwrap();
            assert_eq!(Shards::object_of(high << 8 | low, name), Some(object));
            assert_eq!(Shards::object_of((high << 8 | low) ^ 1, name), None);
        }
        assert_eq!(shards.path(FileId(0x01_0203)), Path::new("/s/01/02/0000000000010203"));
        for bad in ["", "1", "000000000000000g", "+000000000000001", "00000000000000AA", "lost+found"] {
            assert_eq!(Shards::object_of(0, bad), None, "{bad:?}");
        }
    }

    #[test]
    fn syncs_of_one_folder_are_shared_and_failures_stay() {
        let dir = tempfile::tempdir().unwrap();
        let shards = Shards::new(dir.path().into());
        let counters = Counters::default();
        let leaf = shards.leaf(FileId(1));
        shards.make(&leaf).unwrap();
        let (first, second) = (leaf.changed(), leaf.changed());
        leaf.sync(first, &sync_file, &counters).unwrap();
        assert_eq!(counters.get("syncs.directory"), 3, "the folder and the two above it");
        leaf.sync(second, &sync_file, &counters).unwrap();
        assert_eq!(counters.get("syncs.directory"), 3, "covered by the first");
        let third = leaf.changed();
        let broken = |_: &File, _: Target| Err(io::Error::other("broken"));
        leaf.sync(third, &broken, &counters).unwrap_err();
        leaf.sync(third, &sync_file, &counters).unwrap_err();
        leaf.sync(second, &sync_file, &counters).unwrap();
    }
}
