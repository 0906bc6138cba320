//! Files and directories of a copied tree, with metadata and extended attributes.

use super::target::Place;
use crate::failure::Failure;
use crate::locator::join;
use client::Node;
use types::{Attrs, FileKind};

/// The location of a file or directory in the source or in the destination of a copy.
#[derive(Clone)]
pub struct Location {
    /// The path of the file, for messages and for reads of local files.
    pub path: Vec<u8>,
    /// The inode number and filehandle of a file in Weir; `None` for a local file.
    pub node: Option<Node>,
    /// The open top directory of a local destination tree, and the path of the file below this directory. `None` for a
    /// local source file and for a file in Weir.
    pub place: Option<Place>,
}

/// The metadata of a file: its device number and its attributes.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// The device number, which tells apart the file systems of one machine; 0 in Weir.
    pub dev: u64,
    /// The attributes of the file.
    pub attrs: Attrs,
}

/// An entry of a source directory.
pub struct Entry {
    /// The name of the entry.
    pub name: Vec<u8>,
    /// The location of the file or directory that has this name.
    pub location: Location,
    /// The metadata of the file or directory that has this name.
    pub meta: Meta,
}

/// An extended attribute of a file.
pub struct Xattr {
    /// The name of the extended attribute, with its prefix `user.`.
    pub name: Vec<u8>,
    /// The value of the extended attribute.
    pub value: Vec<u8>,
}

impl Meta {
    /// Returns an upper limit for the number of bytes that the copy reads from the file.
    pub fn bytes(&self) -> u64 {
        if self.attrs.kind == FileKind::Regular { self.attrs.size } else { 0 }
    }
}

impl Location {
    /// Returns the location of a local source file.
    pub fn local(path: Vec<u8>) -> Self {
        Location { path, node: None, place: None }
    }

    /// Opens the directory on this machine that the user named as the destination, and returns its location.
    pub fn target(path: Vec<u8>) -> Result<Self, Failure> {
        let place = Some(Place::top(&path)?);
        Ok(Location { path, node: None, place })
    }

    /// Returns the location of `name` in this directory of a destination tree on this machine.
    pub fn in_target(&self, name: &[u8], place: Place) -> Self {
        Location { path: join(&self.path, name), node: None, place: Some(place) }
    }

    /// Returns the location of this file after it is renamed to another name in the directory `dir`.
    pub fn renamed(self, dir: &Location, name: &[u8]) -> Self {
        let place = dir.place.as_ref().map(|place| place.child(name));
        Location { path: join(&dir.path, name), place, ..self }
    }

    /// Returns the location of `name` in this directory of a Weir file system.
    pub fn below(&self, name: &[u8], node: Node) -> Self {
        Location { path: join(&self.path, name), node: Some(node), place: None }
    }

    /// Returns the inode number and filehandle of this file in Weir.
    ///
    /// # Errors
    /// The file is a local file.
    pub fn node(&self) -> Result<&Node, Failure> {
        self.node.as_ref().ok_or_else(|| Failure::new("not a file of this file system"))
    }
}
