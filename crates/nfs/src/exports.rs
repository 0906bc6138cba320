//! Exports of the NFS server: the export of a filehandle, the exports that a caller sees, and their terms.
//!
//! An export is a directory that clients may mount, with its own terms. Outside of exports clients see only the path
//! that leads to them (the pseudo file system, RFC 8881 §7.3). The file system decides which exports exist.

use types::{Cred, FileId};

/// The exports that a caller sees: bit `n` stands for the `n`-th export in the numbering of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View(
    /// The bits.
    pub u64,
);

impl View {
    /// The view of callers that see every export.
    pub const ALL: View = View(u64::MAX);

    /// The view of callers that see no export.
    pub const NONE: View = View(0);

    /// Returns whether the view contains number `n`.
    pub fn has(self, n: u16) -> bool {
        n < 64 && self.0 >> n & 1 == 1
    }
}

impl Default for View {
    fn default() -> Self {
        View::ALL
    }
}

/// The export through which a client reached a filehandle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The directory at which the export begins; [`Place::OUTSIDE`] has none.
    pub root: FileId,
    /// The number of the file system's terms that apply there to this caller.
    pub terms: u16,
    /// The version of the set of exports when the file was reached. If another export has begun below this one since,
    /// the file may belong to that export now.
    pub epoch: u32,
}

impl Place {
    /// The path that leads to exports, outside of all exports.
    pub const OUTSIDE: Place = Place { root: FileId(0), terms: u16::MAX, epoch: 0 };

    /// Returns whether the place is outside of all exports.
    pub fn is_outside(self) -> bool {
        self.root == Place::OUTSIDE.root
    }
}

impl Default for Place {
    /// The export of the root directory.
    fn default() -> Self {
        Place { root: FileId::ROOT, terms: 0, epoch: 0 }
    }
}

/// How an export replaces the identity of callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Squash {
    /// Keeps the identity of every caller.
    #[default]
    Nobody,
    /// Replaces the superuser and group 0 by this user and group.
    Root {
        /// User number.
        uid: u32,
        /// Group number.
        gid: u32,
    },
    /// Replaces every caller by this user and group.
    Everybody {
        /// User number.
        uid: u32,
        /// Group number.
        gid: u32,
    },
}

impl Squash {
    /// Returns the credentials that replace `cred`; `None` if `cred` stays as it is.
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

/// The terms of an export for a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// Whether the export is read-only (ROFS).
    pub read_only: bool,
    /// How callers' identities are replaced.
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
