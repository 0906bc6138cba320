//! Tasks of a copy, and the destination directories that the tasks share.

use super::entry::{Location, Meta};
use std::sync::Arc;
use types::Attrs;

/// A directory of the destination into which tasks still copy names.
///
/// Every task that will make a name in the directory holds a reference to this value. The task that drops the last
/// reference sets the final attributes of the directory, because every new name changes the directory's times.
pub struct Folder {
    /// The location of the destination directory.
    pub location: Location,
    /// The attributes that the directory gets at the end of its copy; `None` for the directory that receives the top
    /// names of the copy, which existed before and keeps its attributes.
    pub attrs: Option<Attrs>,
    /// The parent directory, into which this copy also copies names; `None` for the directory that receives the top
    /// names of the copy.
    pub parent: Option<Arc<Folder>>,
}

/// The task to copy one directory.
pub struct DirJob {
    /// The location of the source directory.
    pub location: Location,
    /// The metadata of the source directory.
    pub meta: Meta,
    /// Where the task copies the directory to.
    pub into: Into,
}

/// Where a directory is copied to.
pub enum Into {
    /// A new directory of this name, which the task makes in the given directory of the destination.
    Name(Arc<Folder>, Vec<u8>),
    /// An existing directory of the destination, into which the task copies the entries of the source directory.
    Existing(Arc<Folder>),
}

/// The task to copy one file that is not a directory.
pub struct FileJob {
    /// The location of the source file.
    pub location: Location,
    /// The metadata of the source file.
    pub meta: Meta,
    /// The destination directory in which the copy of the file gets its name.
    pub folder: Arc<Folder>,
    /// The name of the copy in the destination directory.
    pub name: Vec<u8>,
}
