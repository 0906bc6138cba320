//! One side of a copy: the source or the destination. Both kinds of sides, local files and files in Weir, have the same
//! operations.

use super::entry::{Entry, Location, Xattr};
use super::local;
use super::remote::Weir;
use super::target;
use crate::failure::Failure;
use types::{Attrs, ByteRange};

/// The source or the destination of a copy.
pub enum Side {
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

impl Side {
    /// Returns all entries of a directory.
    pub fn list(&self, dir: &Location) -> Result<Vec<Entry>, Failure> {
        match self {
            Side::Local => local::list(&dir.path),
            Side::Weir(weir) => weir.list(dir),
        }
    }

    /// Makes the directory `name` in `dir`. The returned flag is `false` if the directory already existed.
    pub fn mkdir(&self, dir: &Location, name: &[u8], mode: u32) -> Result<(Location, bool), Failure> {
        match self {
            Side::Local => target::mkdir(dir, name, mode),
            Side::Weir(weir) => weir.mkdir(dir, name, mode),
        }
    }

    /// Returns the target of a symlink.
    pub fn readlink(&self, link: &Location) -> Result<Vec<u8>, Failure> {
        match self {
            Side::Local => local::readlink(&link.path),
            Side::Weir(weir) => weir.readlink(link),
        }
    }

    /// Makes a symlink; returns `None` if the name is taken.
    pub fn symlink(&self, dir: &Location, name: &[u8], to: &[u8]) -> Result<Option<Location>, Failure> {
        match self {
            Side::Local => target::symlink(dir, name, to),
            Side::Weir(weir) => weir.symlink(dir, name, to),
        }
    }

    /// Makes a fifo, socket or device node; returns `None` if the name is taken.
    pub fn mknod(&self, dir: &Location, name: &[u8], attrs: &Attrs) -> Result<Option<Location>, Failure> {
        match self {
            Side::Local => target::mknod(dir, name, attrs),
            Side::Weir(weir) => weir.mknod(dir, name, attrs),
        }
    }

    /// Makes a hard link; returns `None` if the name is taken.
    pub fn link(&self, file: &Location, dir: &Location, name: &[u8]) -> Result<Option<Location>, Failure> {
        match self {
            Side::Local => target::link(file, dir, name),
            Side::Weir(weir) => weir.link(file, dir, name),
        }
    }

    /// Renames a file inside one directory. Replaces the file that has the new name.
    pub fn rename(&self, dir: &Location, from: &[u8], to: &[u8]) -> Result<(), Failure> {
        match self {
            Side::Local => target::rename(dir, from, to),
            Side::Weir(weir) => weir.rename(dir, from, to),
        }
    }

    /// Removes a name. Succeeds if the name does not exist.
    pub fn unlink(&self, dir: &Location, name: &[u8]) -> Result<(), Failure> {
        match self {
            Side::Local => target::unlink(dir, name),
            Side::Weir(weir) => weir.unlink(dir, name),
        }
    }

    /// Sets the mode and the times of a directory, symlink or special file. As root, also sets its owner.
    pub fn apply(&self, location: &Location, attrs: &Attrs) -> Result<(), Failure> {
        match self {
            Side::Local => target::apply(location, attrs),
            Side::Weir(weir) => weir.apply(location, attrs),
        }
    }

    /// Returns all `user.` xattrs of a file or directory.
    pub fn xattrs(&self, location: &Location) -> Result<Vec<Xattr>, Failure> {
        match self {
            Side::Local => local::xattrs(&location.path),
            Side::Weir(weir) => weir.xattrs(location),
        }
    }

    /// Sets one xattr of a directory, or of a new file that the caller holds open.
    pub fn set_xattr(&self, location: &Location, open: Option<&Open>, xattr: &Xattr) -> Result<(), Failure> {
        match (self, open) {
            (Side::Local, Some(Open::Local(file))) => target::set_xattr(location, Some(file), xattr),
            (Side::Local, _) => target::set_xattr(location, None, xattr),
            (Side::Weir(weir), _) => weir.set_xattr(location, xattr),
        }
    }

    /// Opens a source file for reading.
    pub fn open(&self, location: &Location) -> Result<Open, Failure> {
        match self {
            Side::Local => local::open(&location.path).map(Open::Local),
            Side::Weir(weir) => weir.open(location).map(|file| Open::Weir(Box::new(file))),
        }
    }

    /// Creates the file `name` in `dir`. Until [`Self::finish`] sets the final attributes, only the file's owner can
    /// access it.
    pub fn create(&self, dir: &Location, name: &[u8]) -> Result<(Open, Location), Failure> {
        match self {
            Side::Local => target::create(dir, name).map(|(file, location)| (Open::Local(file), location)),
            Side::Weir(weir) => weir.create(dir, name).map(|(file, location)| (Open::Weir(Box::new(file)), location)),
        }
    }

    /// Closes a source file.
    pub fn close(&self, file: Open) -> Result<(), Failure> {
        match (self, file) {
            (Side::Weir(weir), Open::Weir(file)) => weir.close(*file),
            _ => Ok(()),
        }
    }

    /// Returns the next data range of an open file at or after `from` and below `size`; `None` if only a hole is left.
    pub fn next_data(&self, file: &Open, from: u64, size: u64) -> Result<Option<ByteRange>, Failure> {
        match (self, file) {
            (_, Open::Local(file)) => local::next_data(file, from, size),
            (Side::Weir(weir), Open::Weir(file)) => weir.next_data(file, from, size),
            (Side::Local, Open::Weir(_)) => Err(Failure::new("the file belongs to the other side of the copy")),
        }
    }

    /// Completes a new file whose last written byte ends at `written`: sets its length and attributes, and atomically
    /// renames it from its temporary to its final name.
    pub fn finish(
        &self,
        file: Open,
        written: u64,
        attrs: &Attrs,
        dir: &Location,
        [temporary, name]: [&[u8]; 2],
    ) -> Result<(), Failure> {
        match (self, file) {
            (_, Open::Local(file)) => target::finish(&file, attrs, dir, [temporary, name]),
            (Side::Weir(weir), Open::Weir(file)) => weir.finish(*file, written, attrs, dir, [temporary, name]),
            (Side::Local, Open::Weir(_)) => Err(Failure::new("the file belongs to the other side of the copy")),
        }
    }
}
