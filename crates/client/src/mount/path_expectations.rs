//! Path expectations: the paths by which the caller reached a file. The mgr checks them before it executes an operation
//! on the file.
//!
//! A caller that caches names may operate on a file although the cached path no longer leads to this file. So the
//! client also sends the path: the COMPOUND begins with a LOOKUP for each name and a VERIFY of the inode number. If the
//! path leads to another file, the VERIFY fails, and the mgr executes no operation after it.

use super::{Mount, Node};
use crate::compound::Compound;
use bytes::Bytes;
use std::sync::Arc;
use types::FileId;

/// Maximum number of operations that check the paths of one file. A RENAME checks two files, and a COMPOUND has at most
/// [`types::limits::COMPOUND_OPS_MAX`] operations.
const CHECKS_MAX: usize = 25;
/// Number of operations that the check of one expected path needs in addition to the LOOKUPs: PUTFH and VERIFY.
const BESIDES: usize = 2;
const _: () = assert!(2 * CHECKS_MAX + 8 <= types::limits::COMPOUND_OPS_MAX as usize);

/// A path that the caller expects to lead to a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathExpectation {
    /// The id of the expected file.
    pub to: FileId,
    /// The directory where the path begins.
    pub from: Node,
    /// The names on the path, at least one.
    pub names: Vec<Bytes>,
}

impl Mount {
    /// Returns the same mount with path expectations for its operations by name. If an operation uses a file of these
    /// expectations, the mgr executes the operation only if all expected paths of the file still lead to the file.
    /// Otherwise the operation changes nothing and fails with [`Error::is_moved`](crate::Error::is_moved). The client
    /// does not check a path that is too long for one COMPOUND.
    ///
    /// Operations by name are: lookups; opens; changes of attributes, extended attributes and names; and the read of
    /// the first page of a directory.
    pub fn expecting(&self, walks: Vec<PathExpectation>) -> Mount {
        let walks = (!walks.is_empty()).then(|| Arc::from(walks));
        Mount { walks, ..self.clone() }
    }

    /// Appends the operations that make `node` the current filehandle: the checks of the path expectations for `node`,
    /// or PUTFH if this mount has none for `node`.
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

    /// Returns whether this mount has a path expectation for this file.
    pub fn expects(&self, node: &Node) -> bool {
        self.walks.as_deref().unwrap_or_default().iter().any(|walk| walk.to == node.id)
    }
}
