//! Entries of a tree that is copied: files and directories of a side, with metadata and extended attributes.

use super::target::Place;
use crate::failure::Failure;
use crate::locator::join;
use client::Node;
use types::{Attrs, FileKind};

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
    /// The attributes of the file.
    pub attrs: Attrs,
}

/// An entry of a directory.
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The file or directory of this name.
    pub spot: Spot,
    /// The metadata of the file or directory.
    pub meta: Meta,
}

/// An extended attribute; the name includes `user.`.
pub struct Xattr {
    /// The name of the attribute.
    pub name: Vec<u8>,
    /// The value of the attribute.
    pub value: Vec<u8>,
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
