//! Checks that are common to several file operations: object type, permission for I/O, and recall of layouts before a
//! change of size.

use super::callbacks::Callbacks;
use super::compound::{Answer, Body, Compound, Refusal};
use crate::fs::{Change, FileSystem, access};
use crate::spans::{LockKind, Span};
use crate::state::delegations::Use;
use crate::state::locks::Denied;
use crate::state::opens::{Access, Permit};
use crate::state::stateids;
use types::{Attrs, ByteRange, FileId, FileKind};
use wire::nfs4::*;
use xdr::{Writer, Xdr};

/// Returns an error for every object that is not a regular file, with a different error for directories, symbolic links
/// and other types.
pub(super) fn check_regular(kind: FileKind) -> Result<(), nfsstat4> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(NFS4ERR_ISDIR),
        FileKind::Symlink => Err(NFS4ERR_SYMLINK),
        _ => Err(NFS4ERR_WRONG_TYPE),
    }
}

/// Encodes a change of a directory or file as `change_info4`.
pub(super) fn change_info(change: Change) -> change_info4 {
    change_info4 { atomic: change.atomic, before: change.before, after: change.after }
}

impl<F: FileSystem, C: Callbacks> Compound<'_, F, C> {
    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// The object is not a regular file.
    pub(super) async fn regular(&self, file: FileId) -> Answer<Attrs> {
        let attrs = self.fs().getattr(&self.ctx, file).await?;
        check_regular(attrs.kind)?;
        Ok(attrs)
    }

    /// Returns the error ACCESS unless the caller has all these [`access`] bits on the file.
    pub(super) async fn check_access(&self, file: FileId, bits: u32) -> Answer<()> {
        let granted = self.fs().access(&self.ctx, file, bits).await?;
        if granted & bits == bits { Ok(()) } else { Err(NFS4ERR_ACCESS.into()) }
    }

    /// Checks whether READ, WRITE or a similar operation with this stateid is permitted (RFC 8881 §8.2.3, §9.1.2).
    /// Returns true if an open or a delegation permits the I/O. Returns false if the stateid is special, and the
    /// caller's permissions on the file permit the I/O.
    pub(super) async fn permit(&mut self, file: FileId, stateid: stateid4, access: Access) -> Answer<bool> {
        let stateid = self.stateid(stateid)?;
        if self.server.is_data_only() {
            // A data server has no opens to check. Instead, the mgr gives a filehandle only to clients that may use the
            // file (§13.9.1).
            return if stateids::is_special(&stateid) { Err(NFS4ERR_BAD_STATEID.into()) } else { Ok(true) };
        }
        let client = self.client();
        let permit = match self.state(|state| state.check_io(client, file, &stateid, access)) {
            Err(NFS4ERR_LOCKED) => {
                self.change(|state| state.check_io_past_lapsed(client, file, &stateid, access)).await??
            }
            permit => permit?,
        };
        if permit == Permit::Open {
            return Ok(true);
        }
        self.check_grace()?;
        self.regular(file).await?;
        let what = if access == Access::Read { Use::Read } else { Use::Write };
        self.make_way(file, what).await?;
        let bits = match access {
            Access::Read => access::READ,
            Access::Write => access::MODIFY | access::EXTEND,
        };
        self.check_access(file, bits).await?;
        Ok(false)
    }

    /// Recalls the layouts of all other clients, before the size of the file changes.
    pub(super) async fn recall_others(&self, file: FileId) {
        self.server.recall(file, Some(self.client()), self.ctx.now).await;
    }
}

/// Converts offset and length of a lock request to a span. Returns the error INVAL if the length is 0 or the range ends
/// beyond the largest offset (RFC 8881 §18.10.3).
pub(super) fn lock_span(offset: u64, length: u64) -> Result<Span, nfsstat4> {
    Span::new(offset, length).ok_or(NFS4ERR_INVAL)
}

/// Returns the lock kind, and whether the client retries a denied lock (`READW_LT`, `WRITEW_LT`).
pub(super) fn lock_kind(kind: nfs_lock_type4) -> (LockKind, bool) {
    match kind {
        READ_LT => (LockKind::Read, false),
        READW_LT => (LockKind::Read, true),
        WRITE_LT => (LockKind::Write, false),
        WRITEW_LT => (LockKind::Write, true),
    }
}

/// Encodes the conflicting lock in the results of LOCK and LOCKT (`LOCK4denied`).
pub(super) fn denied(by: Denied) -> Refusal {
    let body = LOCK4denied {
        offset: by.span.first,
        length: by.span.length(),
        locktype: if by.kind == LockKind::Read { READ_LT } else { WRITE_LT },
        owner: lock_owner4 { clientid: by.client.0, owner: by.owner },
    };
    Refusal { status: NFS4ERR_DENIED, body: body.to_bytes() }
}

/// Converts offset and length of a layout request or an IO_ADVISE hint to a range. A length of `u64::MAX` reaches to
/// the end of the file, even if the file grows.
pub(super) fn whole_range(offset: u64, len: u64) -> Result<ByteRange, nfsstat4> {
    if len == u64::MAX {
        return Ok(ByteRange { offset, len });
    }
    ByteRange::new(offset, len).ok_or(NFS4ERR_INVAL)
}

/// The result of SECINFO: the security flavors that the server supports, which is only AUTH_SYS (RFC 8881 §18.29).
pub(super) struct Flavors;

impl Body for Flavors {
    fn put(&self, out: &mut Writer) {
        out.array(&[AUTH_SYS], |out, flavor| out.u32(*flavor));
    }
}
