//! Credentials: the user and groups on whose behalf a client sends a request.

/// The numeric user and group ids that AUTH_SYS carries (RFC 5531 appendix A) and that Linux checks.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cred {
    /// User id. User 0 (root) passes permission checks like a process with CAP_DAC_OVERRIDE and CAP_FOWNER.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary group ids; AUTH_SYS carries at most 16.
    pub groups: Vec<u32>,
}

impl Cred {
    /// Returns the credentials of the superuser.
    pub fn root() -> Self {
        Cred::default()
    }

    /// Returns whether the user is the superuser (user id 0).
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns whether `gid` is the primary group or a supplementary group of the user.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
