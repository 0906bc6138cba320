//! Tasks of a copy, and the destination directories that the tasks share.

use super::entry::{Meta, Spot};
use std::sync::Arc;
use types::Attrs;

/// A directory of the destination into which tasks still copy names.
///
/// Every task that will make a name in the directory holds a reference to this value. The task that drops the last
/// reference sets the final attributes of the directory, because every new name changes the directory's times.
pub struct Folder {
    /// The location of the destination directory.
    pub spot: Spot,
    /// The attributes to set at the end; `None` for a directory that existed before the copy and keeps its attributes.
    pub attrs: Option<Attrs>,
    /// The parent of the destination directory, if this copy also creates the parent.
    pub parent: Option<Arc<Folder>>,
}

/// The task to copy one directory.
pub struct DirJob {
    /// The location of the source directory.
    pub spot: Spot,
    /// The metadata of the source directory.
    pub meta: Meta,
    /// The destination of the directory.
    pub into: Into,
}

/// The destination of a copied directory.
pub enum Into {
    /// A new directory of this name, to make in the destination directory.
    Name(Arc<Folder>, Vec<u8>),
    /// An existing directory, into which the entries are copied.
    Existing(Arc<Folder>),
}

/// The task to copy one file that is not a directory.
pub struct FileJob {
    /// The location of the source file.
    pub spot: Spot,
    /// The metadata of the source file.
    pub meta: Meta,
    /// The destination directory.
    pub folder: Arc<Folder>,
    /// The name of the copy in the destination directory.
    pub name: Vec<u8>,
}
