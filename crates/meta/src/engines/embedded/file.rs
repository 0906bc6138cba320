//! The file of a batch log: an implementation of `LogDisk` on a regular file.

use crate::log::LogDisk;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// A regular file that holds a batch log.
#[derive(Debug)]
pub struct FileLog {
    file: File,
}

impl FileLog {
    /// Creates the log file at `path`, or truncates an existing file to zero length. A new file is accessible only to
    /// its owner.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(FileLog { file })
    }

    /// Opens the existing log file at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(FileLog { file: File::options().read(true).write(true).open(path)? })
    }
}

impl LogDisk for FileLog {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Calls `fdatasync(2)`. Overwriting allocated blocks changes no file metadata, so `fdatasync(2)` suffices on every
    /// file system.
    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}
