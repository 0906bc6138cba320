//! Conversion between [`Status`] and NFS error codes (`nfsstat4`, RFC 8881 §15).

use types::Status;
use wire::nfs4::*;

/// Converts a status to an NFS error. A status without an exact NFS error becomes the nearest error that clients
/// handle.
pub fn to_nfs(status: Status) -> nfsstat4 {
    match status {
        Status::Perm => NFS4ERR_PERM,
        Status::NoEnt => NFS4ERR_NOENT,
        Status::Io | Status::Corrupt | Status::Lost | Status::BadChecksum => NFS4ERR_IO,
        Status::NxIo => NFS4ERR_NXIO,
        Status::Access => NFS4ERR_ACCESS,
        Status::Exist => NFS4ERR_EXIST,
        Status::XDev => NFS4ERR_XDEV,
        Status::NotDir => NFS4ERR_NOTDIR,
        Status::IsDir => NFS4ERR_ISDIR,
        Status::Inval => NFS4ERR_INVAL,
        Status::FBig => NFS4ERR_FBIG,
        Status::NoSpc => NFS4ERR_NOSPC,
        Status::Rofs => NFS4ERR_ROFS,
        Status::MLink => NFS4ERR_MLINK,
        Status::NameTooLong => NFS4ERR_NAMETOOLONG,
        Status::NotEmpty => NFS4ERR_NOTEMPTY,
        Status::DQuot => NFS4ERR_DQUOT,
        Status::Stale => NFS4ERR_STALE,
        Status::BadHandle => NFS4ERR_BADHANDLE,
        Status::BadCookie => NFS4ERR_BAD_COOKIE,
        Status::NotSupp => NFS4ERR_NOTSUPP,
        Status::TooSmall => NFS4ERR_TOOSMALL,
        Status::ServerFault | Status::NoSession | Status::BadVersion | Status::TooBig => NFS4ERR_SERVERFAULT,
        Status::BadType => NFS4ERR_BADTYPE,
        Status::Delay => NFS4ERR_DELAY,
        Status::BadName => NFS4ERR_BADNAME,
        Status::Symlink => NFS4ERR_SYMLINK,
        Status::WrongType => NFS4ERR_WRONG_TYPE,
        Status::AttrNotSupp => NFS4ERR_ATTRNOTSUPP,
        Status::NoXattr => NFS4ERR_NOXATTR,
        Status::XattrTooBig => NFS4ERR_XATTR2BIG,
        Status::CapRefused | Status::CapExpired | Status::Fenced => NFS4ERR_PNFS_NO_LAYOUT,
        Status::NoLayout => NFS4ERR_LAYOUTUNAVAILABLE,
        Status::NotHere => NFS4ERR_PNFS_IO_HOLE,
    }
}

/// Converts an NFS error to the status that the client reports to programs. The caller must handle errors of sessions
/// and stateids itself, before this call. `None` stands for NFS4_OK.
pub fn from_nfs(status: nfsstat4) -> Option<Status> {
    Some(match status {
        NFS4_OK => return None,
        NFS4ERR_PERM => Status::Perm,
        NFS4ERR_NOENT => Status::NoEnt,
        NFS4ERR_NXIO => Status::NxIo,
        NFS4ERR_ACCESS | NFS4ERR_WRONGSEC | NFS4ERR_DENIED => Status::Access,
        NFS4ERR_EXIST => Status::Exist,
        NFS4ERR_XDEV => Status::XDev,
        NFS4ERR_NOTDIR => Status::NotDir,
        NFS4ERR_ISDIR => Status::IsDir,
        NFS4ERR_INVAL | NFS4ERR_BADCHAR | NFS4ERR_BADOWNER => Status::Inval,
        NFS4ERR_FBIG => Status::FBig,
        NFS4ERR_NOSPC => Status::NoSpc,
        NFS4ERR_ROFS => Status::Rofs,
        NFS4ERR_MLINK => Status::MLink,
        NFS4ERR_NAMETOOLONG => Status::NameTooLong,
        NFS4ERR_NOTEMPTY => Status::NotEmpty,
        NFS4ERR_DQUOT => Status::DQuot,
        NFS4ERR_STALE | NFS4ERR_FHEXPIRED => Status::Stale,
        NFS4ERR_BADHANDLE => Status::BadHandle,
        NFS4ERR_BAD_COOKIE | NFS4ERR_NOT_SAME => Status::BadCookie,
        NFS4ERR_NOTSUPP | NFS4ERR_OP_ILLEGAL => Status::NotSupp,
        NFS4ERR_TOOSMALL => Status::TooSmall,
        NFS4ERR_BADTYPE => Status::BadType,
        NFS4ERR_DELAY | NFS4ERR_GRACE | NFS4ERR_SHARE_DENIED | NFS4ERR_LAYOUTTRYLATER | NFS4ERR_RECALLCONFLICT => {
            Status::Delay
        }
        NFS4ERR_BADNAME => Status::BadName,
        NFS4ERR_SYMLINK => Status::Symlink,
        NFS4ERR_WRONG_TYPE => Status::WrongType,
        NFS4ERR_ATTRNOTSUPP => Status::AttrNotSupp,
        NFS4ERR_NOXATTR => Status::NoXattr,
        NFS4ERR_XATTR2BIG => Status::XattrTooBig,
        NFS4ERR_PNFS_NO_LAYOUT => Status::Fenced,
        NFS4ERR_LAYOUTUNAVAILABLE | NFS4ERR_BADLAYOUT | NFS4ERR_UNKNOWN_LAYOUTTYPE => Status::NoLayout,
        NFS4ERR_PNFS_IO_HOLE => Status::NotHere,
        NFS4ERR_SERVERFAULT => Status::ServerFault,
        NFS4ERR_REQ_TOO_BIG | NFS4ERR_REP_TOO_BIG => Status::TooBig,
        _ => Status::Io,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn application_errors_round_trip_through_nfs_status() {
        use Status::*;
        let merged = [Corrupt, Lost, BadChecksum, NoSession, BadVersion, TooBig, CapRefused, CapExpired];
        for status in Status::ALL.into_iter().filter(|s| !merged.contains(s)) {
            assert_eq!(from_nfs(to_nfs(status)), Some(status));
        }
        for status in merged {
            assert!(from_nfs(to_nfs(status)).is_some());
        }
        assert_eq!(from_nfs(NFS4_OK), None);
    }
}
