//! The units of work of a copy, and the directories they hold open.

use super::end::{Meta, Spot};
use std::sync::Arc;
use types::Attrs;

/// A directory of the destination into which something is still being copied.
///
/// Everything that will put a name into it holds a reference; whoever gives the last one back gives the directory its
/// attributes, as every new name changes its times.
pub struct Folder {
    /// The directory.
    pub spot: Spot,
    /// What it is to look like in the end; `None` for one that was there before and stays as it is.
    pub attrs: Option<Attrs>,
    /// The directory it is in, when that is part of the copy.
    pub parent: Option<Arc<Folder>>,
}

/// A directory to copy.
pub struct DirJob {
    /// Where it is.
    pub spot: Spot,
    /// What it is.
    pub meta: Meta,
    /// Where it goes.
    pub into: Into,
}

/// The place of a directory's copy.
pub enum Into {
    /// As this name of that directory.
    Name(Arc<Folder>, Vec<u8>),
    /// Its entries go into a directory that exists.
    Existing(Arc<Folder>),
}

/// A name that is no directory, to be copied.
pub struct FileJob {
    /// Where it is.
    pub spot: Spot,
    /// What it is.
    pub meta: Meta,
    /// The directory it goes into.
    pub folder: Arc<Folder>,
    /// Its name there.
    pub name: Vec<u8>,
}
