//! The disk interface of a store: the traits [`Disk`] and [`DiskFile`] and their implementations.

mod local;
mod memory;

use std::fs::File;
use std::io;
use std::path::Path;

pub use local::Local;
pub use memory::{Fault, Memory, Operation};

/// The directory of one store. Paths are relative to it, with `/` between names; the empty path is the directory
/// itself.
///
/// Results and error numbers are those of Linux: the store distinguishes errors by number.
pub trait Disk: Send + Sync {
    /// Returns the path of the directory, for messages.
    fn path(&self) -> &Path;

    /// Creates the directory durably if it does not exist.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn prepare(&self) -> io::Result<()>;

    /// Opens a file for reading and writing; does not follow a symbolic link.
    ///
    /// # Errors
    /// `NotFound` if there is no such file, and the errors of the operating system.
    fn open(&self, path: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file for reading, to pass to another process of this machine; `None` if this disk has no files of the
    /// system.
    ///
    /// # Errors
    /// The errors of [`Disk::open`].
    fn open_to_lend(&self, _path: &str) -> io::Result<Option<File>> {
        Ok(None)
    }

    /// Creates a file and opens it for reading and writing.
    ///
    /// # Errors
    /// `AlreadyExists` if the name exists, `NotFound` if the folder does not exist, and the errors of the operating
    /// system.
    fn create_new(&self, path: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound` if there is no such file, and the errors of the operating system.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Renames a file within its folder; replaces an existing file of that name.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Creates a folder and its parents; succeeds if the folder exists.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn make_folder(&self, path: &str) -> io::Result<()>;

    /// Returns whether the path is an existing folder.
    fn is_folder(&self, path: &str) -> bool;

    /// Returns the names in a folder that are UTF-8, in any order.
    ///
    /// # Errors
    /// `NotFound` if there is no such folder, and the errors of the operating system.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// The errors of the operating system. After an error, a later success does not mean that the names are durable.
    fn sync_folder(&self, path: &str) -> io::Result<()>;

    /// Returns the bytes of the underlying file system: total, and free for the iod.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn capacity(&self) -> io::Result<(u64, u64)>;

    /// Returns the number of the device: stores of one host with the same number share its capacity.
    fn device(&self) -> Option<u64>;

    /// Returns the largest number of files that a store should keep open.
    fn open_files(&self) -> usize;
}

/// Length and storage of a file, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measure {
    /// Length of the file.
    pub len: u64,
    /// Bytes allocated on the disk.
    pub allocated: u64,
}

/// An open file. Offsets are bytes.
pub trait DiskFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes; returns 0 at the end of the file.
    ///
    /// # Errors
    /// The errors of the operating system, never `Interrupted`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes `first` followed by `second`; returns the number of bytes written, at least one.
    ///
    /// # Errors
    /// The errors of the operating system, never `Interrupted`. After an error nothing was written.
    fn write_at(&self, first: &[u8], second: &[u8], offset: u64) -> io::Result<usize>;

    /// Copies up to `len` bytes of another file inside the kernel; returns the number copied, 0 at the end of the
    /// source.
    ///
    /// # Errors
    /// `EOPNOTSUPP` and other errors of the operating system, some of which mean that it cannot copy this way.
    fn copy_from(&self, source: &dyn DiskFile, from: u64, to: u64, len: u64) -> io::Result<u64>;

    /// Returns the length and the storage of the file.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn measure(&self) -> io::Result<Measure>;

    /// Truncates or extends the file.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes the bytes and the length of the file durable.
    ///
    /// # Errors
    /// The errors of the operating system. After an error, a later success does not mean that the data are durable.
    fn sync(&self) -> io::Result<()>;

    /// Returns the first offset with data at or after `offset`.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Returns the first hole at or after `offset`. The end of the file counts as a hole; beyond the end the result is
    /// `None`.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn next_hole(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Punches a hole; the length does not change.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the disk does not support holes, and the errors of the operating system.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Allocates storage for a range; new bytes read as zeros. Extends the file if the range ends beyond its end.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the disk cannot, `ENOSPC` if it is full, and the errors of the operating system. After an error
    /// the file may be longer, and storage may have been allocated.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Returns whether a whole range has storage, so that writing it allocates nothing. May return false although the
    /// whole range has storage.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn is_stored(&self, offset: u64, len: u64) -> io::Result<bool>;

    /// Drops a range from the page cache where possible, so that the next read comes from the disk.
    fn forget(&self, offset: u64, len: u64);

    /// Locks the file against every other open handle until this one is dropped; returns whether that succeeded.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn lock(&self) -> io::Result<bool>;

    /// Returns the file of the system for `sendfile`, if there is one.
    fn as_file(&self) -> Option<&File>;
}

/// Writes all of `first` followed by all of `second`.
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

/// Reads until `buffer` is full or the file ends; returns the number of bytes read.
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
