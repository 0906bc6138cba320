//! One side of a copy, local or Weir, with the same operations on both.

use super::local;
use super::remote::Weir;
use super::target::{self, Place};
use crate::failure::Failure;
use crate::locator::join;
use client::Node;
use types::{Attrs, ByteRange, FileKind};

/// A side.
pub enum End {
    /// This machine.
    Local,
    /// A Weir file system.
    Weir(Weir),
}

/// A file or directory of a side.
#[derive(Clone)]
pub struct Spot {
    /// The path, for people and for local reads.
    pub path: Vec<u8>,
    /// The node, in a Weir file system.
    pub node: Option<Node>,
    /// The place, in a target on this machine.
    pub place: Option<Place>,
}

/// The metadata of a file.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// The device number, which distinguishes file systems of one machine; 0 in Weir.
    pub dev: u64,
    /// Its attributes.
    pub attrs: Attrs,
}

/// An entry of a directory.
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The file or directory of this name.
    pub spot: Spot,
    /// Its attributes.
    pub meta: Meta,
}

/// An extended attribute; the name includes `user.`.
pub struct Xattr {
    /// Its name.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// An open file of a side.
pub enum Open {
    /// A file of this machine.
    Local(std::fs::File),
    /// A file of a Weir file system.
    Weir(Box<client::File>),
}

impl Meta {
    /// Returns how many bytes a copy of the file moves at most.
    pub fn bytes(&self) -> u64 {
        if self.attrs.kind == FileKind::Regular { self.attrs.size } else { 0 }
    }
}

impl Spot {
    /// Returns the spot of a source file on this machine.
    pub fn local(path: Vec<u8>) -> Self {
        Spot { path, node: None, place: None }
    }

    /// Opens the directory on this machine that the user named as the target.
    pub fn target(path: Vec<u8>) -> Result<Self, Failure> {
        let place = Some(Place::top(&path)?);
        Ok(Spot { path, node: None, place })
    }

    /// Returns the spot of `name` in this directory of a target on this machine.
    pub fn in_target(&self, name: &[u8], place: Place) -> Self {
        Spot { path: join(&self.path, name), node: None, place: Some(place) }
    }

    /// Returns the spot of the same file under another name in a directory of its side.
    pub fn renamed(self, dir: &Spot, name: &[u8]) -> Self {
        let place = dir.place.as_ref().map(|place| place.child(name));
        Spot { path: join(&dir.path, name), place, ..self }
    }

    /// Returns the spot of `name` in this directory of a Weir file system.
    pub fn below(&self, name: &[u8], node: Node) -> Self {
        Spot { path: join(&self.path, name), node: Some(node), place: None }
    }

    /// Returns the node of a file in Weir.
    pub fn node(&self) -> Result<&Node, Failure> {
        self.node.as_ref().ok_or_else(|| Failure::new("not a file of this file system"))
    }
}

impl End {
    /// Lists a directory.
    pub fn list(&self, dir: &Spot) -> Result<Vec<Entry>, Failure> {
        match self {
            End::Local => local::list(&dir.path),
            End::Weir(weir) => weir.list(dir),
        }
    }

    /// Makes the directory `name` in `dir`. The flag is `false` if the directory existed.
    pub fn mkdir(&self, dir: &Spot, name: &[u8], mode: u32) -> Result<(Spot, bool), Failure> {
        match self {
            End::Local => target::mkdir(dir, name, mode),
            End::Weir(weir) => weir.mkdir(dir, name, mode),
        }
    }

    /// Reads the target of a symlink.
    pub fn readlink(&self, link: &Spot) -> Result<Vec<u8>, Failure> {
        match self {
            End::Local => local::readlink(&link.path),
            End::Weir(weir) => weir.readlink(link),
        }
    }

    /// Makes a symlink; `None` if the name is taken.
    pub fn symlink(&self, dir: &Spot, name: &[u8], to: &[u8]) -> Result<Option<Spot>, Failure> {
        match self {
            End::Local => target::symlink(dir, name, to),
            End::Weir(weir) => weir.symlink(dir, name, to),
        }
    }

    /// Makes a fifo, socket or device node; `None` if the name is taken.
    pub fn mknod(&self, dir: &Spot, name: &[u8], attrs: &Attrs) -> Result<Option<Spot>, Failure> {
        match self {
            End::Local => target::mknod(dir, name, attrs),
            End::Weir(weir) => weir.mknod(dir, name, attrs),
        }
    }

    /// Makes a hard link; `None` if the name is taken.
    pub fn link(&self, file: &Spot, dir: &Spot, name: &[u8]) -> Result<Option<Spot>, Failure> {
        match self {
            End::Local => target::link(file, dir, name),
            End::Weir(weir) => weir.link(file, dir, name),
        }
    }

    /// Renames inside one directory and replaces the file that has the new name.
    pub fn rename(&self, dir: &Spot, from: &[u8], to: &[u8]) -> Result<(), Failure> {
        match self {
            End::Local => target::rename(dir, from, to),
            End::Weir(weir) => weir.rename(dir, from, to),
        }
    }

    /// Removes a name; a missing name is not an error.
    pub fn unlink(&self, dir: &Spot, name: &[u8]) -> Result<(), Failure> {
        match self {
            End::Local => target::unlink(dir, name),
            End::Weir(weir) => weir.unlink(dir, name),
        }
    }

    /// Sets mode and times of a directory, symlink or node and, for root, its owner.
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

    /// Sets one xattr of a directory, or of a new file that is still open.
    pub fn set_xattr(&self, spot: &Spot, open: Option<&Open>, xattr: &Xattr) -> Result<(), Failure> {
        match (self, open) {
            (End::Local, Some(Open::Local(file))) => target::set_xattr(spot, Some(file), xattr),
            (End::Local, _) => target::set_xattr(spot, None, xattr),
            (End::Weir(weir), _) => weir.set_xattr(spot, xattr),
        }
    }

    /// Opens a file for reading.
    pub fn open(&self, spot: &Spot) -> Result<Open, Failure> {
        match self {
            End::Local => local::open(&spot.path).map(Open::Local),
            End::Weir(weir) => weir.open(spot).map(|file| Open::Weir(Box::new(file))),
        }
    }

    /// Makes the new file `name` in `dir`, which only its owner can access for now.
    pub fn create(&self, dir: &Spot, name: &[u8]) -> Result<(Open, Spot), Failure> {
        match self {
            End::Local => target::create(dir, name).map(|(file, spot)| (Open::Local(file), spot)),
            End::Weir(weir) => weir.create(dir, name).map(|(file, spot)| (Open::Weir(Box::new(file)), spot)),
        }
    }

    /// Closes a file that was read.
    pub fn close(&self, file: Open) -> Result<(), Failure> {
        match (self, file) {
            (End::Weir(weir), Open::Weir(file)) => weir.close(*file),
            _ => Ok(()),
        }
    }

    /// Returns the next range of data in an open file at or after `from` and below `size`.
    pub fn next_data(&self, file: &Open, from: u64, size: u64) -> Result<Option<ByteRange>, Failure> {
        match (self, file) {
            (_, Open::Local(file)) => local::next_data(file, from, size),
            (End::Weir(weir), Open::Weir(file)) => weir.next_data(file, from, size),
            (End::Local, Open::Weir(_)) => Err(Failure::new("not a file of this side")),
        }
    }

    /// Completes a file that is written up to `written`: sets its length and attributes, and atomically renames it from
    /// `temporary` to its final name.
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
            (End::Local, Open::Weir(_)) => Err(Failure::new("not a file of this side")),
        }
    }
}
