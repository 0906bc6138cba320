//! Values of file attributes for GETATTR, READDIR, VERIFY and NVERIFY.

use super::callbacks::Callbacks;
use super::compound::{Answer, Compound};
use crate::attrs::{self, Mask};
use crate::fs::FileSystem;
use crate::values::Values;
use std::time::Duration;
use types::{Attrs, FileId, Fsid, SetAttrs, Timestamp};
use wire::nfs4::*;

/// The value of the attribute `open_arguments`: the arguments of OPEN that the server supports (RFC 9754 §3).
const OPEN_ARGUMENTS: [Mask; 5] = [
    Mask::of(&[OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_ACCESS_BOTH]),
    Mask::of(&[OPEN4_SHARE_DENY_NONE, OPEN4_SHARE_DENY_READ, OPEN4_SHARE_DENY_WRITE, OPEN4_SHARE_DENY_BOTH]),
    // The supported wants: any delegation (3), no delegation (4), and cancel an earlier want (5).
    Mask::of(&[3, 4, 5]),
    Mask::of(&[
        open_claim_type4::CLAIM_NULL as u32,
        open_claim_type4::CLAIM_PREVIOUS as u32,
        open_claim_type4::CLAIM_DELEGATE_CUR as u32,
        open_claim_type4::CLAIM_FH as u32,
        open_claim_type4::CLAIM_DELEG_CUR_FH as u32,
    ]),
    Mask::of(&[
        createmode4::UNCHECKED4 as u32,
        createmode4::GUARDED4 as u32,
        createmode4::EXCLUSIVE4 as u32,
        createmode4::EXCLUSIVE4_1 as u32,
    ]),
];

/// Converts the identity of a file system to an `fsid4`.
pub(super) fn fsid(fsid: Fsid) -> fsid4 {
    let number = u128::from_be_bytes(fsid.0);
    fsid4 { major: (number >> 64) as u64, minor: number as u64 }
}

impl<F: FileSystem, C: Callbacks> Compound<'_, F, C> {
    /// Returns the requested attributes that the server supports. A request for a write-only attribute fails with INVAL
    /// (RFC 8881 §18.7.3).
    pub(super) fn asked(&self, bitmap: &[u32]) -> Answer<Mask> {
        let (mask, _) = Mask::from_bitmap(bitmap);
        if !mask.and(attrs::WRITE_ONLY).is_empty() {
            return Err(NFS4ERR_INVAL.into());
        }
        Ok(mask.and(attrs::supported(&self.info(), self.ctx.minor).or(attrs::PRIVATE)))
    }

    /// Returns attribute values that do not depend on the file: at least the values that `mask` requests.
    pub(super) async fn common_values(&self, mask: Mask) -> Answer<Values> {
        let info = self.info();
        let mut values = Values {
            supported_attrs: Some(attrs::supported(&info, self.ctx.minor)),
            fh_expire_type: Some(FH4_PERSISTENT),
            link_support: Some(true),
            symlink_support: Some(true),
            named_attr: Some(false),
            unique_handles: Some(true),
            rdattr_error: Some(NFS4_OK),
            aclsupport: Some(0),
            cansettime: Some(true),
            case_insensitive: Some(false),
            case_preserving: Some(true),
            chown_restricted: Some(true),
            homogeneous: Some(true),
            no_trunc: Some(true),
            time_delta: Some(Timestamp { secs: 0, nanos: 1 }),
            suppattr_exclcreat: Some(attrs::SETTABLE),
            clone_blksize: Some(0),
            change_attr_type: Some(change_attr_type4::NFS4_CHANGE_TYPE_IS_MONOTONIC_INCR as u32),
            open_arguments: Some(OPEN_ARGUMENTS),
            ..Values::default()
        };
        values.set_info(&info);
        if !mask.and(attrs::STATFS).is_empty() {
            values.set_statfs(&self.fs().statfs(&self.ctx).await?);
        }
        Ok(values)
    }

    /// Sets in `values` the standard attributes that depend on the file.
    ///
    /// # Errors
    /// `NFS4ERR_ACCESS` if the file is the root directory of another export and the caller may not see that export. In
    /// this case the call sets no value.
    pub(super) fn add_values(&self, values: &mut Values, mask: Mask, attrs: &Attrs) -> Answer<()> {
        let place = self.fs().descend(&self.ctx, attrs.id)?;
        values.set_attrs(attrs);
        if mask.has(FATTR4_FILEHANDLE) {
            values.filehandle = Some(self.fs().encode_handle(attrs.id, place));
        }
        values.fsid = Some(fsid(self.fs().fsid_in(place)));
        Ok(())
    }

    /// Returns the values of all attributes of `mask` for one file.
    pub(super) async fn values(&self, mask: Mask, attrs: &Attrs) -> Answer<Values> {
        let mut values = self.common_values(mask).await?;
        self.add_values(&mut values, mask, attrs)?;
        if mask.has(FATTR4_MDSTHRESHOLD) {
            let dir = self.opened_in.filter(|(file, _)| *file == attrs.id).map(|(_, dir)| dir);
            values.mdsthreshold = Some(self.fs().threshold(&self.ctx, attrs.id, dir).await?.into_iter().collect());
        }
        self.add_private_values(&mut values, mask, attrs.id).await?;
        Ok(values)
    }

    /// Sets in `values` those of Weir's own attributes in `mask` that the file system returns separately from the
    /// attributes of the file ([`Attrs`]).
    pub(super) async fn add_private_values(&self, values: &mut Values, mask: Mask, file: FileId) -> Answer<()> {
        if mask.has(attrs::FATTR4_WEIR_POLICY) {
            values.weir_policy = self.fs().policy(&self.ctx, file)?;
        }
        if mask.has(attrs::FATTR4_WEIR_QUEUE_DELAY) {
            let nanos = |delay: Duration| u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
            values.weir_queue_delay = self.fs().queue_delay().map(nanos);
        }
        if mask.has(attrs::FATTR4_WEIR_SETTLED) {
            values.weir_settled = self.fs().settle().await?;
        }
        Ok(())
    }

    /// Decodes the attributes that a SETATTR, CREATE or OPEN sets.
    pub(super) fn to_set(&self, attrs: &fattr4) -> Answer<SetAttrs> {
        Ok(attrs::decode_set(attrs, &self.info(), self.ctx.minor)?)
    }

    /// Decodes the attributes of a new file in OPEN, and whether the server may reply to the OPEN before the new file
    /// is durable.
    pub(super) fn to_make(&self, attrs: &fattr4) -> Answer<(SetAttrs, bool)> {
        Ok(attrs::decode_new(attrs, &self.info(), self.ctx.minor)?)
    }

    /// Returns whether the file of the current filehandle has exactly these attribute values.
    ///
    /// # Errors
    /// ATTRNOTSUPP for an unsupported attribute, INVAL for a write-only attribute and for `rdattr_error` (RFC 8881
    /// §18.31.3).
    pub(super) async fn same_attributes(&self, believed: &fattr4) -> Answer<bool> {
        let (mask, beyond) = Mask::from_bitmap(&believed.attrmask);
        if beyond || !mask.without(attrs::supported(&self.info(), self.ctx.minor)).is_empty() {
            return Err(NFS4ERR_ATTRNOTSUPP.into());
        }
        if mask.has(FATTR4_RDATTR_ERROR) || !mask.and(attrs::WRITE_ONLY).is_empty() {
            return Err(NFS4ERR_INVAL.into());
        }
        let found = self.attributes(self.file()?, mask).await?;
        let values = self.values(mask, &found).await?;
        Ok(attrs::encode(mask, &values).attr_vals == believed.attr_vals)
    }
}
