//! The file of a batch log.

use crate::log::LogDisk;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// A file that holds a batch log.
#[derive(Debug)]
pub struct FileLog {
    file: File,
}

impl FileLog {
    /// Creates or empties the file at `path`. Only its owner can open a file that this call creates.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(FileLog { file })
    }

    /// Opens the file at `path`, which must exist.
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

    /// Calls `fdatasync`: blocks that were written before change only in their data, on every file system.
    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}
