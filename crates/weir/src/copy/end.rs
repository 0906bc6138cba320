//! One side of a copy: the source or the destination. Both kinds of sides, local files and files in Weir, have the same
//! operations.

use super::entry::{Entry, Spot, Xattr};
use super::local;
use super::remote::Weir;
use super::target;
use crate::failure::Failure;
use types::{Attrs, ByteRange};

/// The source or the destination of a copy.
pub enum End {
    /// Files on this machine, in any of its file systems.
    Local,
    /// Files in one Weir file system.
    Weir(Weir),
}

/// An open file, local or in Weir.
pub enum Open {
    /// An open file on this machine.
    Local(std::fs::File),
    /// An open file of a Weir file system.
    Weir(Box<client::File>),
}

impl End {
    /// Returns all entries of a directory.
    pub fn list(&self, dir: &Spot) -> Result<Vec<Entry>, Failure> {
        match self {
            End::Local => local::list(&dir.path),
            End::Weir(weir) => weir.list(dir),
        }
    }

    /// Makes the directory `name` in `dir`. The returned flag is `false` if the directory already existed.
    pub fn mkdir(&self, dir: &Spot, name: &[u8], mode: u32) -> Result<(Spot, bool), Failure> {
        match self {
            End::Local => target::mkdir(dir, name, mode),
            End::Weir(weir) => weir.mkdir(dir, name, mode),
        }
    }

    /// Returns the target of a symlink.
    pub fn readlink(&self, link: &Spot) -> Result<Vec<u8>, Failure> {
        match self {
            End::Local => local::readlink(&link.path),
            End::Weir(weir) => weir.readlink(link),
        }
    }

    /// Makes a symlink; returns `None` if the name is taken.
    pub fn symlink(&self, dir: &Spot, name: &[u8], to: &[u8]) -> Result<Option<Spot>, Failure> {
        match self {
            End::Local => target::symlink(dir, name, to),
            End::Weir(weir) => weir.symlink(dir, name, to),
        }
    }

    /// Makes a fifo, socket or device node; returns `None` if the name is taken.
    pub fn mknod(&self, dir: &Spot, name: &[u8], attrs: &Attrs) -> Result<Option<Spot>, Failure> {
        match self {
            End::Local => target::mknod(dir, name, attrs),
            End::Weir(weir) => weir.mknod(dir, name, attrs),
        }
    }

    /// Makes a hard link; returns `None` if the name is taken.
    pub fn link(&self, file: &Spot, dir: &Spot, name: &[u8]) -> Result<Option<Spot>, Failure> {
        match self {
            End::Local => target::link(file, dir, name),
            End::Weir(weir) => weir.link(file, dir, name),
        }
    }

    /// Renames a file inside one directory. Replaces the file that has the new name.
    pub fn rename(&self, dir: &Spot, from: &[u8], to: &[u8]) -> Result<(), Failure> {
        match self {
            End::Local => target::rename(dir, from, to),
            End::Weir(weir) => weir.rename(dir, from, to),
        }
    }

    /// Removes a name. Succeeds if the name does not exist.
    pub fn unlink(&self, dir: &Spot, name: &[u8]) -> Result<(), Failure> {
        match self {
            End::Local => target::unlink(dir, name),
            End::Weir(weir) => weir.unlink(dir, name),
        }
    }

    /// Sets the mode and the times of a directory, symlink or special file. As root, also sets its owner.
    pub fn apply(&self, spot: &Spot, attrs: &Attrs) -> Result<(), Failure> {
        match self {
            End::Local => target::apply(spot, attrs),
            End::Weir(weir) => weir.apply(spot, attrs),
        }
    }

    /// Returns all `user.` xattrs of a file or directory.
    pub fn xattrs(&self, spot: &Spot) -> Result<Vec<Xattr>, Failure> {
        match self {
            End::Local => local::xattrs(&spot.path),
            End::Weir(weir) => weir.xattrs(spot),
        }
    }

    /// Sets one xattr of a directory, or of a new file that the caller holds open.
    pub fn set_xattr(&self, spot: &Spot, open: Option<&Open>, xattr: &Xattr) -> Result<(), Failure> {
        match (self, open) {
            (End::Local, Some(Open::Local(file))) => target::set_xattr(spot, Some(file), xattr),
            (End::Local, _) => target::set_xattr(spot, None, xattr),
            (End::Weir(weir), _) => weir.set_xattr(spot, xattr),
        }
    }

    /// Opens a source file for reading.
    pub fn open(&self, spot: &Spot) -> Result<Open, Failure> {
        match self {
            End::Local => local::open(&spot.path).map(Open::Local),
            End::Weir(weir) => weir.open(spot).map(|file| Open::Weir(Box::new(file))),
        }
    }

    /// Creates the file `name` in `dir`. Until [`Self::finish`] sets the final attributes, only the file's owner can
    /// access it.
    pub fn create(&self, dir: &Spot, name: &[u8]) -> Result<(Open, Spot), Failure> {
        match self {
            End::Local => target::create(dir, name).map(|(file, spot)| (Open::Local(file), spot)),
            End::Weir(weir) => weir.create(dir, name).map(|(file, spot)| (Open::Weir(Box::new(file)), spot)),
        }
    }

    /// Closes a source file.
    pub fn close(&self, file: Open) -> Result<(), Failure> {
        match (self, file) {
            (End::Weir(weir), Open::Weir(file)) => weir.close(*file),
            _ => Ok(()),
        }
    }

    /// Returns the next data range of an open file at or after `from` and below `size`; `None` if only a hole is left.
    pub fn next_data(&self, file: &Open, from: u64, size: u64) -> Result<Option<ByteRange>, Failure> {
        match (self, file) {
            (_, Open::Local(file)) => local::next_data(file, from, size),
            (End::Weir(weir), Open::Weir(file)) => weir.next_data(file, from, size),
            (End::Local, Open::Weir(_)) => Err(Failure::new("the file belongs to the other side of the copy")),
        }
    }

    /// Completes a new file whose last written byte ends at `written`: sets its length and attributes, and atomically
    /// renames it from its temporary to its final name.
    pub fn finish(
        &self,
        file: Open,
        written: u64,
        attrs: &Attrs,
        dir: &Spot,
        [temporary, name]: [&[u8]; 2],
    ) -> Result<(), Failure> {
        match (self, file) {
            (_, Open::Local(file)) => target::finish(&file, attrs, dir, [temporary, name]),
            (End::Weir(weir), Open::Weir(file)) => weir.finish(*file, written, attrs, dir, [temporary, name]),
            (End::Local, Open::Weir(_)) => Err(Failure::new("the file belongs to the other side of the copy")),
        }
    }
}
