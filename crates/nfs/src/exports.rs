//! Exports as the server half sees them: by which one a filehandle was reached, who sees which, and what holds there.
//!
//! An export is a directory that clients may mount, with its own terms; beside them there is only the way that leads there
//! (the pseudo file system, RFC 8881 §7.3). Which exports there are is for the file system to say.

use types::{Cred, FileId};

/// Which exports a caller sees: bit `n` stands for whatever the file system calls its `n`-th.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View(
    /// The bits.
    pub u64,
);

impl View {
    /// Of those to whom nothing is closed.
    pub const ALL: View = View(u64::MAX);

    /// Of those to whom everything is.
    pub const NONE: View = View(0);

    /// Whether number `n` is among them.
    pub fn has(self, n: u16) -> bool {
        n < 64 && self.0 >> n & 1 == 1
    }
}

impl Default for View {
    fn default() -> Self {
        View::ALL
    }
}

/// By what a filehandle was reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The directory that the export begins at; [`Place::OUTSIDE`] has none.
    pub root: FileId,
    /// Which of the file system's terms hold there for this caller.
    pub terms: u16,
    /// Which set of exports there was when the file was reached: what was reached before another export began below this one may be in that one now.
    pub epoch: u32,
}

impl Place {
    /// On the way to exports, in none of them.
    pub const OUTSIDE: Place = Place { root: FileId(0), terms: u16::MAX, epoch: 0 };

    /// Whether it is on the way only.
    pub fn is_outside(self) -> bool {
        self.root == Place::OUTSIDE.root
    }
}

impl Default for Place {
    /// The export of everything.
    fn default() -> Self {
        Place { root: FileId::ROOT, terms: 0, epoch: 0 }
    }
}

/// Whom callers are taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Squash {
    /// For who they say they are.
    #[default]
    Nobody,
    /// The superuser, and group 0, for these.
    Root {
        /// User number.
        uid: u32,
        /// Group number.
        gid: u32,
    },
    /// Everybody for these.
    Everybody {
        /// User number.
        uid: u32,
        /// Group number.
        gid: u32,
    },
}

impl Squash {
    /// Whose permissions count when `cred` asks; `None`: its own.
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

/// What holds for a caller in an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// Nothing may be changed (ROFS).
    pub read_only: bool,
    /// Whom callers are taken for.
    pub squash: Squash,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squashing_leaves_nobody_what_it_takes_away() {
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
