//! Tasks of a copy, and the destination directories that they hold open.

use super::entry::{Meta, Spot};
use std::sync::Arc;
use types::Attrs;

/// A directory of the destination into which names are still being copied.
///
/// Every task that will make a name in the directory holds a reference. The task that drops the last reference sets the
/// attributes of the directory, because every new name changes its times.
pub struct Folder {
    /// The directory.
    pub spot: Spot,
    /// The final attributes; `None` for a directory that existed before and keeps its attributes.
    pub attrs: Option<Attrs>,
    /// The parent directory, if it is part of the copy.
    pub parent: Option<Arc<Folder>>,
}

/// A directory to copy.
pub struct DirJob {
    /// The source directory.
    pub spot: Spot,
    /// The metadata of the directory.
    pub meta: Meta,
    /// The destination.
    pub into: Into,
}

/// The destination of a directory.
pub enum Into {
    /// A new directory of this name in the folder.
    Name(Arc<Folder>, Vec<u8>),
    /// A directory that exists; the entries are copied into it.
    Existing(Arc<Folder>),
}

/// A file to copy that is not a directory.
pub struct FileJob {
    /// The source file.
    pub spot: Spot,
    /// The metadata of the file.
    pub meta: Meta,
    /// The destination directory.
    pub folder: Arc<Folder>,
    /// The name in that directory.
    pub name: Vec<u8>,
}
