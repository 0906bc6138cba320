//! Errors of the client: what failed, why, and what to do about it. Only this module converts a `Status` to an errno.

use std::fmt;
use types::Status;

/// The kind of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// A server refused the request or failed, with this status.
    Status(Status),
    /// A server is unreachable, or its connection broke and could not be established again in time.
    Connection,
    /// A server violated its protocol.
    Protocol,
    /// This client lost a byte-range lock, and the mgr granted a conflicting lock to another client. The client refuses
    /// I/O that relies on the lost lock.
    LockLost,
    /// The caller's request is invalid, such as an invalid target, or a read of a file that was opened only for
    /// writing.
    Usage,
}

/// An error of the client: a kind for programs and a message for users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    /// Whether the mgr refused a stateid that is no longer valid.
    state_lost: bool,
    /// Whether the mgr may have executed the request, although the client has no reply.
    in_doubt: bool,
    /// Whether a path of the request no longer leads to the expected file, so that the mgr did not execute the request.
    moved: bool,
    /// Whether the server that failed is an iod, and not the mgr.
    of_iod: bool,
}

impl Error {
    /// Creates an error of this kind. The message says what the client tried, how it failed, and what the user can do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), state_lost: false, in_doubt: false, moved: false, of_iod: false }
    }

    /// Creates the error for a server that refused the operation `what` with this status.
    pub fn status(status: Status, what: impl fmt::Display) -> Self {
        Error::new(ErrorKind::Status(status), format!("{what}: {status}"))
    }

    /// Creates the error for a broken or missing connection.
    pub fn connection(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Connection, message)
    }

    /// Creates the error for a peer that violates its protocol.
    pub fn protocol(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Protocol, message)
    }

    /// Creates the error for an invalid request.
    pub fn usage(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Usage, message)
    }

    /// Returns the error of an operation that failed on the direct path and on the mgr path. `direct` is the error of
    /// the direct path, if known.
    pub(crate) fn by_no_path(direct: Option<Error>, via_mgr: Error) -> Self {
        match direct {
            Some(direct) => Error { message: format!("{}; and {}", direct.message, via_mgr.message), ..direct },
            None => via_mgr,
        }
    }

    /// Marks the error as the mgr's refusal of a stateid that is no longer valid.
    pub(crate) fn with_state_lost(self) -> Self {
        Error { state_lost: true, ..self }
    }

    /// Returns whether the mgr refused the request, without executing it, because the stateid in the request is no
    /// longer valid.
    pub(crate) fn is_state_lost(&self) -> bool {
        self.state_lost
    }

    /// Marks the error as in doubt: the mgr may have executed the request.
    pub(crate) fn with_doubt(self) -> Self {
        Error { in_doubt: true, ..self }
    }

    /// Returns whether the client cannot know if the mgr executed the request.
    ///
    /// Either the mgr restarted and lost its reply cache while the client waited for the reply to a non-idempotent
    /// request. Or another client undid the change before this client could see the change. The caller can look up the
    /// names, or repeat the request and accept that the change already exists.
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Records in the error that a path of the request no longer leads to the expected file.
    pub(crate) fn with_move(self) -> Self {
        Error { moved: true, ..self }
    }

    /// Returns whether the mgr refused the request because a path in [`Mount::expecting`](crate::Mount::expecting) now
    /// leads to another file. The mgr then executed nothing of the request.
    pub fn is_moved(&self) -> bool {
        self.moved
    }

    /// Records in the error that the server that failed is an iod.
    pub(crate) fn with_iod(self) -> Self {
        Error { of_iod: true, ..self }
    }

    /// Returns whether the server that the client could not reach is an iod, and not the mgr. If so, the message names
    /// the iod.
    pub fn is_of_iod(&self) -> bool {
        self.of_iod
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the status, if a server replied with one.
    pub fn as_status(&self) -> Option<Status> {
        match self.kind {
            ErrorKind::Status(status) => Some(status),
            _ => None,
        }
    }

    /// Returns whether a server replied with exactly `status`.
    pub fn is(&self, status: Status) -> bool {
        self.as_status() == Some(status)
    }

    /// Returns the error with `what: ` before its message.
    pub fn context(self, what: impl fmt::Display) -> Self {
        Error { message: format!("{what}: {}", self.message), ..self }
    }

    /// Returns the Linux error number for this error.
    pub fn errno(&self) -> i32 {
        match self.kind {
            ErrorKind::Status(status) => status_errno(status),
            ErrorKind::Connection => EIO,
            ErrorKind::Protocol => EPROTO,
            ErrorKind::LockLost => EIO,
            ErrorKind::Usage => EINVAL,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<crate::target::BadTarget> for Error {
    fn from(bad: crate::target::BadTarget) -> Self {
        Error::usage(bad.to_string())
    }
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ENXIO: i32 = 6;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;
const EXDEV: i32 = 18;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EMLINK: i32 = 31;
const ENAMETOOLONG: i32 = 36;
const ENOTEMPTY: i32 = 39;
const ELOOP: i32 = 40;
const ENODATA: i32 = 61;
const EPROTO: i32 = 71;
const EOPNOTSUPP: i32 = 95;
const ESTALE: i32 = 116;
const EDQUOT: i32 = 122;
const E2BIG: i32 = 7;

fn status_errno(status: Status) -> i32 {
    match status {
        Status::Perm => EPERM,
        Status::NoEnt => ENOENT,
        Status::NxIo => ENXIO,
        Status::Access => EACCES,
        Status::Exist => EEXIST,
        Status::XDev => EXDEV,
        Status::NotDir => ENOTDIR,
        Status::IsDir => EISDIR,
        Status::Inval | Status::BadName | Status::BadType | Status::WrongType | Status::BadCookie => EINVAL,
        Status::FBig => EFBIG,
        Status::NoSpc => ENOSPC,
        Status::Rofs => EROFS,
        Status::MLink => EMLINK,
        Status::NameTooLong => ENAMETOOLONG,
        Status::NotEmpty => ENOTEMPTY,
        Status::DQuot => EDQUOT,
        Status::Stale | Status::BadHandle => ESTALE,
        Status::NotSupp | Status::AttrNotSupp => EOPNOTSUPP,
        Status::Symlink => ELOOP,
        Status::NoXattr => ENODATA,
        Status::XattrTooBig => E2BIG,
        // The client returns `Delay` only after it has used up its retries. EAGAIN is wrong here, because it means that
        // the program asked for non-blocking I/O.
        Status::Delay
        | Status::Io
        | Status::TooSmall
        | Status::ServerFault
        | Status::Corrupt
        | Status::BadChecksum
        | Status::CapRefused
        | Status::CapExpired
        | Status::Fenced
        | Status::TooBig
        | Status::NoSession
        | Status::BadVersion
        | Status::NoLayout
        | Status::NotHere
        | Status::Lost => EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_an_errno() {
        for status in Status::ALL {
            assert!(Error::status(status, "x").errno() > 0);
        }
        // For the following statuses, the NFS status number equals the Linux errno.
        for status in
            [Status::Perm, Status::NoEnt, Status::Io, Status::Access, Status::Exist, Status::NoSpc, Status::Rofs]
        {
            assert_eq!(status_errno(status) as u32, status.number());
        }
    }

    #[test]
    fn no_status_becomes_eagain() {
        const EAGAIN: i32 = 11;
        for status in Status::ALL {
            assert_ne!(Error::status(status, "x").errno(), EAGAIN, "{status:?}");
        }
    }

    #[test]
    fn context_comes_first() {
        let error = Error::status(Status::NoEnt, "looking up \"b\"").context("weir://h/a/b");
        assert_eq!(error.to_string(), "weir://h/a/b: looking up \"b\": no such file or directory");
        assert!(error.is(Status::NoEnt));
    }
}
