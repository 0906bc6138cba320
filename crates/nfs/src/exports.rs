//! Exports of the NFS server: which export a filehandle belongs to, which exports a caller sees, and the access
//! conditions of each export.
//!
//! An export is a directory that clients may mount, with its own access conditions: read-only or not, and the mapping
//! of user ids. Outside of exports, clients see only the directories that lead to exports (the pseudo file system, RFC
//! 8881 §7.3). The implementation of the trait [`FileSystem`](crate::fs::FileSystem) decides which exports exist.

use types::{Cred, FileId};

/// The set of exports that a caller sees: bit `n` stands for the export with index `n` in the file system's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View(
    /// The bitmap of visible exports.
    pub u64,
);

impl View {
    /// The set of all exports.
    pub const ALL: View = View(u64::MAX);

    /// The empty set of exports.
    pub const NONE: View = View(0);

    /// Returns whether the caller sees the export with index `n`.
    pub fn has(self, n: u16) -> bool {
        n < 64 && self.0 >> n & 1 == 1
    }
}

impl Default for View {
    fn default() -> Self {
        View::ALL
    }
}

/// The export through which a client reached a file. The server encodes this export in the filehandle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The root directory of the export; 0 for [`Place::OUTSIDE`].
    pub root: FileId,
    /// The index of the entry in the file system's list of exports whose access conditions apply to this caller.
    pub terms: u16,
    /// The export epoch of this export when the client looked up the file. The epoch grows when the administrator
    /// configures a new export below this export, because the file may then belong to the new export.
    pub epoch: u32,
}

impl Place {
    /// The value for directories outside of all exports, through which clients reach exports (the pseudo file system).
    pub const OUTSIDE: Place = Place { root: FileId(0), terms: u16::MAX, epoch: 0 };

    /// Returns whether this is the value for directories outside of all exports.
    pub fn is_outside(self) -> bool {
        self.root == Place::OUTSIDE.root
    }
}

impl Default for Place {
    /// Returns the export whose root is the root directory of the file system.
    fn default() -> Self {
        Place { root: FileId::ROOT, terms: 0, epoch: 0 }
    }
}

/// How an export maps the user and group ids of callers (`root_squash` and `all_squash` of exports(5)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Squash {
    /// No squashing: the server uses the user and group ids of every caller (`no_root_squash`).
    #[default]
    Nobody,
    /// Maps user 0 and group 0 to these ids (`root_squash`).
    Root {
        /// The user id that replaces user 0.
        uid: u32,
        /// The group id that replaces group 0.
        gid: u32,
    },
    /// Maps every caller to these ids (`all_squash`).
    Everybody {
        /// The user id of every caller.
        uid: u32,
        /// The group id of every caller.
        gid: u32,
    },
}

impl Squash {
    /// Returns the credentials `cred` after this mapping; `None` if the mapping leaves `cred` unchanged.
    pub fn apply(self, cred: &Cred) -> Option<Cred> {
        match self {
            Squash::Nobody => None,
            Squash::Everybody { uid, gid } => Some(Cred { uid, gid, groups: Vec::new() }),
            Squash::Root { uid, gid } => {
                let group = |group: u32| if group == 0 { gid } else { group };
                let is_root = cred.uid == 0 || cred.gid == 0 || cred.groups.contains(&0);
                is_root.then(|| Cred {
                    uid: if cred.uid == 0 { uid } else { cred.uid },
                    gid: group(cred.gid),
                    groups: cred.groups.iter().map(|g| group(*g)).collect(),
                })
            }
        }
    }
}

/// The access conditions of an export for one caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// Whether the export is read-only, so that changes fail with ROFS.
    pub read_only: bool,
    /// How the export maps the caller's user and group ids.
    pub squash: Squash,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squashing_replaces_ids_and_groups_that_squashed_users_must_not_keep() {
        let cred = |uid, gid, groups: &[u32]| Cred { uid, gid, groups: groups.to_vec() };
        let root = Squash::Root { uid: 65534, gid: 65533 };
        assert_eq!(root.apply(&cred(0, 0, &[0, 4])), Some(cred(65534, 65533, &[65533, 4])));
        assert_eq!(root.apply(&cred(7, 8, &[9])), None);
        assert_eq!(root.apply(&cred(7, 0, &[9])), Some(cred(7, 65533, &[9])));
        assert_eq!(root.apply(&cred(7, 8, &[0])), Some(cred(7, 8, &[65533])));
        let all = Squash::Everybody { uid: 1, gid: 2 };
        assert_eq!(all.apply(&cred(7, 8, &[9])), Some(cred(1, 2, &[])));
        assert_eq!(Squash::Nobody.apply(&cred(0, 0, &[])), None);
    }

    #[test]
    fn views_have_64_places() {
        assert!(View::ALL.has(0) && View::ALL.has(63) && !View::ALL.has(64));
        assert!(!View(2).has(0) && View(2).has(1) && !View(2).has(u16::MAX));
    }
}
