//! Credentials: the identity in whose name a request is made.

/// Numeric identity as AUTH_SYS carries it (RFC 5531 appendix A) and as Linux checks it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cred {
    /// User id; 0 passes permission checks as CAP_DAC_OVERRIDE and CAP_FOWNER do.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups, at most 16 on the wire.
    pub groups: Vec<u32>,
}

impl Cred {
    /// The superuser.
    pub fn root() -> Self {
        Cred::default()
    }

    /// Returns whether this is the superuser.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns whether `gid` is the primary or a supplementary group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
