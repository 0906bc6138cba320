//! The disk of a real iod: a directory of a local file system.

mod extents;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, FallocateFlags, FlockOperation, SeekFrom};
use rustix::io::Errno;
use types::limits::OPEN_OBJECTS_MAX;

use super::{Disk, DiskFile, Measure};

/// A store directory on a local file system.
#[derive(Clone, Debug)]
pub struct Local {
    dir: PathBuf,
}

impl Local {
    /// Returns the disk at `dir`, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Local { dir: dir.into() }
    }

    /// Restricts the store's directory and its contents to their owner. Other users may still traverse the directory,
    /// to connect to the iod's Unix socket in it.
    pub(crate) fn narrow(&self) {
        use crate::store::{FORMAT, OBJECTS, STORE};
        use net::files::{DIRECTORY, FILE, WAY};
        // The `objects` folder gets a mode that denies all access to other users, so the modes of the object files do
        // not matter.
        net::files::narrow(&self.dir, &[("", WAY), (OBJECTS, DIRECTORY), (FORMAT, FILE), (STORE, FILE)]);
    }

    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.dir.clone() } else { self.dir.join(path) }
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options
}

fn folders() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

fn boxed(file: File) -> Box<dyn DiskFile> {
    Box::new(LocalFile { file, locked: AtomicBool::new(false) })
}

impl Disk for Local {
    fn path(&self) -> &Path {
        &self.dir
    }

    fn prepare(&self) -> io::Result<()> {
        let existed = self.dir.exists();
        folders().create(&self.dir)?;
        // Restrict the permissions only of an empty directory. A directory with other files may belong to another
        // program, and the store refuses to use it.
        if self.list("")?.iter().all(|name| name == "lost+found") {
            self.narrow();
        }
        if !existed && let Some(parent) = self.dir.canonicalize()?.parent() {
            File::open(parent)?.sync_all()?;
        }
        Ok(())
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn DiskFile>> {
        options().open(self.at(path)).map(boxed)
    }

    fn open_to_lend(&self, path: &str) -> io::Result<Option<File>> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
        options.open(self.at(path)).map(Some)
    }

    fn create_new(&self, path: &str) -> io::Result<Box<dyn DiskFile>> {
        options().create_new(true).open(self.at(path)).map(boxed)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.at(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn make_folder(&self, path: &str) -> io::Result<()> {
        folders().create(self.at(path))
    }

    fn is_folder(&self, path: &str) -> bool {
        self.at(path).is_dir()
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.at(path))? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn sync_folder(&self, path: &str) -> io::Result<()> {
        File::open(self.at(path))?.sync_all()
    }

    fn capacity(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::statvfs(&self.dir)?;
        Ok((stat.f_blocks.saturating_mul(stat.f_frsize), stat.f_bavail.saturating_mul(stat.f_frsize)))
    }

    fn device(&self) -> Option<u64> {
        fs::metadata(&self.dir).ok().map(|meta| meta.dev())
    }

    /// Returns one eighth of the process's limit on open files. The remaining descriptors are for connections and for
    /// other stores of the same iod.
    fn open_files(&self) -> usize {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        limit.map_or(OPEN_OBJECTS_MAX, |limit| usize::try_from(limit / 8).unwrap_or(usize::MAX))
    }
}

struct LocalFile {
    file: File,
    locked: AtomicBool,
}

impl Drop for LocalFile {
    /// Release the lock explicitly. A child process between `fork` and `exec` shares every descriptor. If this process
    /// only closed the file, the child process would keep the lock.
    fn drop(&mut self) {
        if *self.locked.get_mut() {
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// Repeats a system call while it fails with `EINTR`.
fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other.map_err(io::Error::from),
        }
    }
}

impl DiskFile for LocalFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match self.file.read_at(buffer, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn write_at(&self, first: &[u8], second: &[u8], offset: u64) -> io::Result<usize> {
        retry(|| match (first, second) {
            (data, []) | ([], data) => rustix::io::pwrite(&self.file, data, offset),
            _ => rustix::io::pwritev(&self.file, &[IoSlice::new(first), IoSlice::new(second)], offset),
        })
    }

    fn copy_from(&self, source: &dyn DiskFile, mut from: u64, mut to: u64, len: u64) -> io::Result<u64> {
        let Some(source) = source.as_file() else { return Err(Errno::OPNOTSUPP.into()) };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let copied = retry(|| rustix::fs::copy_file_range(source, Some(&mut from), &self.file, Some(&mut to), len));
        copied.map(|n| n as u64)
    }

    fn measure(&self) -> io::Result<Measure> {
        let meta = self.file.metadata()?;
        Ok(Measure { len: meta.len(), allocated: meta.blocks() * 512 })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn next_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.file, SeekFrom::Hole(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry(|| rustix::fs::fallocate(&self.file, flags, offset, len))
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        retry(|| rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len))
    }

    fn is_stored(&self, offset: u64, len: u64) -> io::Result<bool> {
        match extents::cover(&self.file, offset, len) {
            // The file system does not support FIEMAP. So estimate: if the file has at least as many allocated bytes
            // as its length, assume that it has no holes.
            Err(Errno::OPNOTSUPP | Errno::NOTTY) => {
                let Measure { len: end, allocated } = self.measure()?;
                Ok(offset.saturating_add(len) <= end && allocated >= end)
            }
            other => Ok(other?),
        }
    }

    fn forget(&self, offset: u64, len: u64) {
        if let Some(len) = NonZeroU64::new(len) {
            // `posix_fadvise` is only advice, so ignore errors. If the kernel ignores the advice, the next read
            // returns the bytes from the page cache and not from the disk.
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::DontNeed);
        }
    }

    fn lock(&self) -> io::Result<bool> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.locked.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn as_file(&self) -> Option<&File> {
        Some(&self.file)
    }
}
