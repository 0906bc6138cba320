//! The disk interface of a store: the traits [`Disk`] and [`DiskFile`] and their implementations.

mod local;
mod memory;

use std::fs::File;
use std::io;
use std::path::Path;

pub use local::Local;
pub use memory::{Fault, Memory, Operation};

/// The directory of one store, on a local file system or simulated in memory. Paths are relative to the directory, with
/// `/` between names; the empty path is the directory itself.
///
/// Each error has a Linux error number (errno), by which the store distinguishes errors.
pub trait Disk: Send + Sync {
    /// Returns the path of the store's directory, for messages.
    fn path(&self) -> &Path;

    /// Creates the store's directory durably if it does not exist.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn prepare(&self) -> io::Result<()>;

    /// Opens a file for reading and writing; does not follow a symbolic link.
    ///
    /// # Errors
    /// `NotFound` if there is no such file, and the errors of the operating system.
    fn open(&self, path: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file read-only, so that the iod can pass its descriptor to another process of this machine. Returns
    /// `None` if the disk is simulated and has no file descriptors.
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

    /// Makes the directory entries of a folder durable.
    ///
    /// # Errors
    /// The errors of the operating system. After an error, a later success does not mean that the names are durable.
    fn sync_folder(&self, path: &str) -> io::Result<()>;

    /// Returns the capacity in bytes of the file system below the store: the total, and the bytes that the iod may
    /// still use.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn capacity(&self) -> io::Result<(u64, u64)>;

    /// Returns the device number of the disk; `None` if the disk has no device number. Stores of one host with the
    /// same device number share its capacity.
    fn device(&self) -> Option<u64>;

    /// Returns the largest number of object files that a store should keep open.
    fn open_files(&self) -> usize;
}

/// The length of a file and the disk space that it occupies, both in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measure {
    /// Length of the file in bytes.
    pub len: u64,
    /// Bytes allocated on the disk.
    pub allocated: u64,
}

/// An open file of a store. All offsets are in bytes.
pub trait DiskFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes; returns 0 at the end of the file.
    ///
    /// # Errors
    /// The errors of the operating system, never `Interrupted`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes `first` followed by `second` at `offset`; returns the number of bytes written, at least one.
    ///
    /// # Errors
    /// The errors of the operating system, never `Interrupted`. After an error nothing was written.
    fn write_at(&self, first: &[u8], second: &[u8], offset: u64) -> io::Result<usize>;

    /// Copies up to `len` bytes from another file without passing them through user space. Returns the number of bytes
    /// copied, 0 at the end of the source file.
    ///
    /// # Errors
    /// `EOPNOTSUPP` and other errors of the operating system. Some of these errors only mean that the file system
    /// cannot copy this way. The caller must then read and write the bytes.
    fn copy_from(&self, source: &dyn DiskFile, from: u64, to: u64, len: u64) -> io::Result<u64>;

    /// Returns the length of the file and the bytes that it occupies on disk.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn measure(&self) -> io::Result<Measure>;

    /// Truncates or extends the file to `len` bytes.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes the bytes and the length of the file durable.
    ///
    /// # Errors
    /// The errors of the operating system. After an error, a later success does not mean that the data are durable.
    fn sync(&self) -> io::Result<()>;

    /// Returns the first offset with data at or after `offset` (SEEK_DATA).
    ///
    /// # Errors
    /// The errors of the operating system.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Returns the offset of the first hole at or after `offset` (SEEK_HOLE). The end of the file counts as a hole.
    /// Returns `None` if `offset` is beyond the end of the file.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn next_hole(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Punches a hole into the file; the length of the file does not change.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the disk does not support holes, and the errors of the operating system.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Allocates storage for a range of the file; newly allocated bytes read as zeros. Extends the file if the range
    /// ends beyond the end of the file.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the disk cannot allocate in advance, `ENOSPC` if the disk is full, and the errors of the
    /// operating system. After an error the file may be longer, and the disk may have allocated a part of the range.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Returns whether the disk has allocated storage for every byte of a file range, so that overwriting the range
    /// needs no free space. May return false for a fully allocated range.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn is_stored(&self, offset: u64, len: u64) -> io::Result<bool>;

    /// Drops the cached pages of a file range, if the disk supports that, so that the next read comes from the disk.
    fn forget(&self, offset: u64, len: u64);

    /// Locks the file against every other open handle, until this handle is dropped. Returns whether the file was
    /// locked.
    ///
    /// # Errors
    /// The errors of the operating system.
    fn lock(&self) -> io::Result<bool>;

    /// Returns the file as a file of the operating system, for `sendfile`; `None` for a simulated file.
    fn as_file(&self) -> Option<&File>;
}

/// Writes all of `first` followed by all of `second` at `offset`, with as many calls as necessary.
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

/// Reads at `offset` until `buffer` is full or the file ends; returns the number of bytes read.
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
