//! The files that the kernel knows, by the numbers it knows them by.

use crate::{Errno, abi};
use client::Node;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::Attrs;

const ESTALE: Errno = Errno(116);

/// Files by node id. That of a file is its inode number, that of the root is 1.
pub(crate) struct Nodes {
    root: Node,
    table: Mutex<HashMap<u64, Known>>,
}

/// A file that the kernel knows.
struct Known {
    node: Node,
    /// How often it was told of it, less how often it has forgotten.
    lookups: u64,
    /// Change attribute and size when it was last told of attributes.
    told: Option<(u64, u64)>,
}

impl Nodes {
    /// None but the root.
    pub(crate) fn new(root: Node) -> Self {
        Nodes { root, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Known>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self, node: &Node) -> u64 {
        if node.id == self.root.id { abi::ROOT } else { node.id.0 }
    }

    /// The file with this number.
    pub(crate) fn get(&self, number: u64) -> Result<Node, Errno> {
        if number == abi::ROOT {
            return Ok(self.root.clone());
        }
        self.table().get(&number).map(|known| known.node.clone()).ok_or(ESTALE)
    }

    /// The kernel is about to be told of a file: its number there.
    pub(crate) fn remember(&self, node: &Node, attrs: &Attrs) -> u64 {
        let number = self.number(node);
        if number != abi::ROOT {
            let mut table = self.table();
            let known = table.entry(number).or_insert_with(|| Known { node: node.clone(), lookups: 0, told: None });
            known.lookups += 1;
            known.told = Some((attrs.change, attrs.size));
        }
        number
    }

    /// The kernel has forgotten a file so many times.
    pub(crate) fn forget(&self, number: u64, lookups: u64) {
        let mut table = self.table();
        if let Some(known) = table.get_mut(&number) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                table.remove(&number);
            }
        }
    }

    /// The kernel is told of attributes: whether they are others than it was told last.
    pub(crate) fn tell(&self, number: u64, attrs: &Attrs) -> bool {
        let mut table = self.table();
        let Some(known) = table.get_mut(&number) else { return false };
        let now = Some((attrs.change, attrs.size));
        std::mem::replace(&mut known.told, now) != now
    }
}
