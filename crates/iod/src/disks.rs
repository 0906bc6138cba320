//! The disk door: what a store needs of a disk, and the disks that there are.

mod local;
mod memory;

use std::fs::File;
use std::io;
use std::path::Path;

pub use local::Local;
pub use memory::{Fault, Memory, Operation};

/// The directory of one store. Paths are relative to it, with `/` between names; the empty path is the directory itself.
///
/// What it answers is what Linux answers: the store tells errors by their number.
pub trait Disk: Send + Sync {
    /// What to call the directory in messages.
    fn path(&self) -> &Path;

    /// Makes the directory when it is missing, durably.
    ///
    /// # Errors
    /// Those of the system.
    fn prepare(&self) -> io::Result<()>;

    /// Opens a file for reading and writing; a symbolic link is not followed.
    ///
    /// # Errors
    /// `NotFound` when there is none, and those of the system.
    fn open(&self, path: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file for reading, for another process of this machine to have; `None` where the files are none of the system.
    ///
    /// # Errors
    /// As those of [`Disk::open`].
    fn open_to_lend(&self, _path: &str) -> io::Result<Option<File>> {
        Ok(None)
    }

    /// Makes a file and opens it for reading and writing.
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken, `NotFound` when the folder is missing, and those of the system.
    fn create_new(&self, path: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound` when there is none, and those of the system.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Renames a file within its folder; replaces one that has the name.
    ///
    /// # Errors
    /// Those of the system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes a folder and those above it; no error when it is there.
    ///
    /// # Errors
    /// Those of the system.
    fn make_folder(&self, path: &str) -> io::Result<()>;

    /// Whether there is such a folder.
    fn is_folder(&self, path: &str) -> bool;

    /// The names in a folder that are UTF-8, in any order.
    ///
    /// # Errors
    /// `NotFound` when there is none, and those of the system.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// Those of the system. After one a later success proves nothing.
    fn sync_folder(&self, path: &str) -> io::Result<()>;

    /// Bytes of the file system below: all, and those free for the iod.
    ///
    /// # Errors
    /// Those of the system.
    fn capacity(&self) -> io::Result<(u64, u64)>;

    /// A number of the disk: stores of one host with the same number share its capacity.
    fn device(&self) -> Option<u64>;

    /// Most files that a store should have open at a time.
    fn open_files(&self) -> usize;
}

/// Length and storage of a file, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measure {
    /// Its length.
    pub len: u64,
    /// The bytes that it takes on the disk.
    pub allocated: u64,
}

/// An open file. Offsets are bytes.
pub trait DiskFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes; 0 at the end of the file.
    ///
    /// # Errors
    /// Those of the system, never `Interrupted`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes `first` and behind it `second`; answers how many bytes of them were written, at least one.
    ///
    /// # Errors
    /// Those of the system, never `Interrupted`. Nothing was written then.
    fn write_at(&self, first: &[u8], second: &[u8], offset: u64) -> io::Result<usize>;

    /// Copies up to `len` bytes of another file, without their passing this process; answers how many, 0 at the end of that.
    ///
    /// # Errors
    /// `EOPNOTSUPP` and others when it cannot, and those of the system.
    fn copy_from(&self, source: &dyn DiskFile, from: u64, to: u64, len: u64) -> io::Result<u64>;

    /// Its length and storage.
    ///
    /// # Errors
    /// Those of the system.
    fn measure(&self) -> io::Result<Measure>;

    /// Cuts or extends it.
    ///
    /// # Errors
    /// Those of the system.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes its bytes and its length durable.
    ///
    /// # Errors
    /// Those of the system. After one a later success proves nothing.
    fn sync(&self) -> io::Result<()>;

    /// The first data at or behind `offset`.
    ///
    /// # Errors
    /// Those of the system.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>>;

    /// The first hole at or behind `offset`; the end of the file counts as one, `None` behind it.
    ///
    /// # Errors
    /// Those of the system.
    fn next_hole(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Makes a hole; the length stays.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when the disk has no holes, and those of the system.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Takes storage for a range; bytes that were not there read as zeros. The file becomes longer if the range ends behind it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when the disk cannot, `ENOSPC` when it is full, and those of the system. The file may have become longer,
    /// and storage may have been taken, all the same.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Whether all of a range has storage, so that writing it needs no more. May say no where it has.
    ///
    /// # Errors
    /// Those of the system.
    fn is_stored(&self, offset: u64, len: u64) -> io::Result<bool>;

    /// Lets the next read of a range come from the disk and not from memory, where that can be had.
    fn forget(&self, offset: u64, len: u64);

    /// Locks it against every other opening until it is dropped; answers whether that succeeded.
    ///
    /// # Errors
    /// Those of the system.
    fn lock(&self) -> io::Result<bool>;

    /// The file of the system, for `sendfile`, when it is one.
    fn as_file(&self) -> Option<&File>;
}

/// Writes `first` and behind it `second`, all of them.
pub(crate) fn write_all(file: &dyn DiskFile, mut first: &[u8], mut second: &[u8], mut offset: u64) -> io::Result<()> {
    while !first.is_empty() || !second.is_empty() {
        let n = file.write_at(first, second, offset)?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        offset += n as u64;
        let of_first = n.min(first.len());
        first = &first[of_first..];
        second = &second[n - of_first..];
    }
    Ok(())
}

/// Reads until `buffer` is full or the file ends; answers how many bytes came.
pub(crate) fn read_full(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests;
