//! Path expectations: the path by which the caller reached a file, checked by the mgr before an operation on that file.
//!
//! A caller that caches names may hold a file that its path no longer leads to. Such a caller sends the path along: the
//! COMPOUND begins with one LOOKUP per name and a VERIFY of the inode number. If the path leads elsewhere, the mgr
//! stops there and changes nothing.

use super::{Mount, Node};
use crate::compound::Compound;
use bytes::Bytes;
use std::sync::Arc;
use types::FileId;

/// Maximum number of operations that check the paths of one file. RENAME checks two files, and a COMPOUND has at most
/// [`types::limits::COMPOUND_OPS_MAX`] operations.
const CHECKS_MAX: usize = 25;
/// Operations of one check besides its LOOKUPs: PUTFH and VERIFY.
const BESIDES: usize = 2;
const _: () = assert!(2 * CHECKS_MAX + 8 <= types::limits::COMPOUND_OPS_MAX as usize);

/// A path that the caller expects to lead to a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathExpectation {
    /// The expected file.
    pub to: FileId,
    /// The directory where the path begins.
    pub from: Node,
    /// The names on the path, at least one.
    pub names: Vec<Bytes>,
}

impl Mount {
    /// Returns the same mount, whose operations by name expect these paths. An operation on a file at the end of such
    /// paths is executed only if all of them still lead there. Otherwise the operation changes nothing and fails with
    /// [`Error::is_moved`](crate::Error::is_moved). A path that is too long for one COMPOUND is not checked.
    ///
    /// Operations by name are lookups, opens, changes of attributes and extended attributes, changes of names, and the
    /// first page of a directory.
    pub fn expecting(&self, walks: Vec<PathExpectation>) -> Mount {
        let walks = (!walks.is_empty()).then(|| Arc::from(walks));
        Mount { walks, ..self.clone() }
    }

    /// Appends the operations that make `node` the current filehandle: PUTFH, or the checks of the expected paths.
    pub(crate) fn arrive<'a>(&self, compound: &'a mut Compound, node: &Node) -> &'a mut Compound {
        let walks = self.walks.as_deref().unwrap_or_default();
        let mut left = CHECKS_MAX;
        for walk in walks.iter().filter(|walk| walk.to == node.id) {
            let Some(rest) = left.checked_sub(walk.names.len() + BESIDES) else { continue };
            left = rest;
            compound.check(&walk.from.handle, &walk.names, node.id);
        }
        if left == CHECKS_MAX { compound.putfh(&node.handle) } else { compound }
    }

    /// Returns whether paths to this file are expected.
    pub fn expects(&self, node: &Node) -> bool {
        self.walks.as_deref().unwrap_or_default().iter().any(|walk| walk.to == node.id)
    }
}
