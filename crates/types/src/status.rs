//! The status of an operation, independent of any protocol. Each protocol maps the statuses to its own status codes.

/// The reason why an operation failed. The numbers are stable, because the native protocol carries them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[repr(u32)]
#[allow(missing_docs)] // each variant's error message describes the variant
pub enum Status {
    #[error("operation not permitted")]
    Perm = 1,
    #[error("no such file or directory")]
    NoEnt = 2,
    #[error("input/output error")]
    Io = 5,
    #[error("no such device or address")]
    NxIo = 6,
    #[error("permission denied")]
    Access = 13,
    #[error("file exists")]
    Exist = 17,
    #[error("invalid cross-device link")]
    XDev = 18,
    #[error("not a directory")]
    NotDir = 20,
    #[error("is a directory")]
    IsDir = 21,
    #[error("invalid argument")]
    Inval = 22,
    #[error("file too large")]
    FBig = 27,
    #[error("no space left")]
    NoSpc = 28,
    #[error("read-only file system")]
    Rofs = 30,
    #[error("too many links")]
    MLink = 31,
    #[error("file name too long")]
    NameTooLong = 63,
    #[error("directory not empty")]
    NotEmpty = 66,
    #[error("quota exceeded")]
    DQuot = 69,
    #[error("the file no longer exists")]
    Stale = 70,
    #[error("not a filehandle of this file system")]
    BadHandle = 1001,
    #[error("the position in the directory is no longer valid")]
    BadCookie = 1003,
    #[error("operation not supported")]
    NotSupp = 1004,
    #[error("buffer or request too small")]
    TooSmall = 1005,
    #[error("the server failed")]
    ServerFault = 1006,
    #[error("the operation does not support this file type")]
    BadType = 1007,
    #[error("try again later")]
    Delay = 1008,
    #[error("invalid file name")]
    BadName = 1041,
    #[error("is a symbolic link")]
    Symlink = 1029,
    #[error("wrong type of file")]
    WrongType = 1083,
    #[error("attribute not supported")]
    AttrNotSupp = 1032,
    #[error("extended attribute not found")]
    NoXattr = 1095,
    #[error("extended attribute too big")]
    XattrTooBig = 1096,
    #[error("the object store or record is damaged")]
    Corrupt = 2001,
    #[error("checksum of the payload does not match")]
    BadChecksum = 2002,
    #[error("capability refused")]
    CapRefused = 2003,
    #[error("capability expired")]
    CapExpired = 2004,
    #[error("the capability was revoked")]
    Fenced = 2005,
    #[error("the request exceeds the size limits")]
    TooBig = 2006,
    #[error("no session: the client must send HELLO first")]
    NoSession = 2007,
    #[error("protocol version not supported")]
    BadVersion = 2008,
    #[error("layout not available")]
    NoLayout = 2009,
    #[error("these bytes belong to another data server")]
    NotHere = 2010,
    #[error("bytes that were durable are lost")]
    Lost = 2011,
}

impl Status {
    /// All values of [`Status`].
    pub const ALL: [Status; 42] = {
        use Status::*;
        [
            Perm,
            NoEnt,
            Io,
            NxIo,
            Access,
            Exist,
            XDev,
            NotDir,
            IsDir,
            Inval,
            FBig,
            NoSpc,
            Rofs,
            MLink,
            NameTooLong,
            NotEmpty,
            DQuot,
            Stale,
            BadHandle,
            BadCookie,
            NotSupp,
            TooSmall,
            ServerFault,
            BadType,
            Delay,
            BadName,
            Symlink,
            WrongType,
            AttrNotSupp,
            NoXattr,
            XattrTooBig,
            Corrupt,
            BadChecksum,
            CapRefused,
            CapExpired,
            Fenced,
            TooBig,
            NoSession,
            BadVersion,
            NoLayout,
            NotHere,
            Lost,
        ]
    };

    /// Returns the number of this status in the native protocol.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Returns the status with this number, or `None` if this version of Weir does not know the number.
    pub fn from_number(n: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.number() == n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_numbers_are_unique() {
        for s in Status::ALL {
            assert_eq!(Status::from_number(s.number()), Some(s));
        }
        assert_eq!(Status::from_number(0), None);
    }
}
