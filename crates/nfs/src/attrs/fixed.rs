//! Attributes with the same value for every file: capabilities and limits of the server and of the file system.

use super::form::{put_bool, put_mask, put_time, put_u32, put_u64, take_mask, take_time};
use super::{Mask, Row, row};
use wire::nfs4::fsid4;
use xdr::{Malformed, Reader, Writer, Xdr};

pub(super) const SUPPORTED_ATTRS: Row =
    row!(FATTR4_SUPPORTED_ATTRS, "supported_attrs", supported_attrs, put_mask, take_mask);
pub(super) const FH_EXPIRE_TYPE: Row =
    row!(FATTR4_FH_EXPIRE_TYPE, "fh_expire_type", fh_expire_type, put_u32, Reader::u32);
pub(super) const LINK_SUPPORT: Row = row!(FATTR4_LINK_SUPPORT, "link_support", link_support, put_bool, Reader::bool);
pub(super) const SYMLINK_SUPPORT: Row =
    row!(FATTR4_SYMLINK_SUPPORT, "symlink_support", symlink_support, put_bool, Reader::bool);
pub(super) const NAMED_ATTR: Row = row!(FATTR4_NAMED_ATTR, "named_attr", named_attr, put_bool, Reader::bool);
pub(super) const FSID: Row =
    row!(FATTR4_FSID, "fsid", fsid, |out: &mut Writer, v: &fsid4| v.encode(out), fsid4::decode);
pub(super) const UNIQUE_HANDLES: Row =
    row!(FATTR4_UNIQUE_HANDLES, "unique_handles", unique_handles, put_bool, Reader::bool);
pub(super) const LEASE_TIME: Row = row!(FATTR4_LEASE_TIME, "lease_time", lease_time, put_u32, Reader::u32);
pub(super) const ACLSUPPORT: Row = row!(FATTR4_ACLSUPPORT, "aclsupport", aclsupport, put_u32, Reader::u32);
pub(super) const CANSETTIME: Row = row!(FATTR4_CANSETTIME, "cansettime", cansettime, put_bool, Reader::bool);
pub(super) const CASE_INSENSITIVE: Row =
    row!(FATTR4_CASE_INSENSITIVE, "case_insensitive", case_insensitive, put_bool, Reader::bool);
pub(super) const CASE_PRESERVING: Row =
    row!(FATTR4_CASE_PRESERVING, "case_preserving", case_preserving, put_bool, Reader::bool);
pub(super) const CHOWN_RESTRICTED: Row =
    row!(FATTR4_CHOWN_RESTRICTED, "chown_restricted", chown_restricted, put_bool, Reader::bool);
pub(super) const HOMOGENEOUS: Row = row!(FATTR4_HOMOGENEOUS, "homogeneous", homogeneous, put_bool, Reader::bool);
pub(super) const MAXFILESIZE: Row = row!(FATTR4_MAXFILESIZE, "maxfilesize", maxfilesize, put_u64, Reader::u64);
pub(super) const MAXLINK: Row = row!(FATTR4_MAXLINK, "maxlink", maxlink, put_u32, Reader::u32);
pub(super) const MAXNAME: Row = row!(FATTR4_MAXNAME, "maxname", maxname, put_u32, Reader::u32);
pub(super) const MAXREAD: Row = row!(FATTR4_MAXREAD, "maxread", maxread, put_u64, Reader::u64);
pub(super) const MAXWRITE: Row = row!(FATTR4_MAXWRITE, "maxwrite", maxwrite, put_u64, Reader::u64);
pub(super) const NO_TRUNC: Row = row!(FATTR4_NO_TRUNC, "no_trunc", no_trunc, put_bool, Reader::bool);
pub(super) const TIME_DELTA: Row = row!(FATTR4_TIME_DELTA, "time_delta", time_delta, put_time, take_time);
pub(super) const SUPPATTR_EXCLCREAT: Row =
    row!(FATTR4_SUPPATTR_EXCLCREAT, "suppattr_exclcreat", suppattr_exclcreat, put_mask, take_mask);
pub(super) const CLONE_BLKSIZE: Row =
    row!(FATTR4_CLONE_BLKSIZE, "clone_blksize", clone_blksize, put_u32, Reader::u32, 2);
pub(super) const CHANGE_ATTR_TYPE: Row =
    row!(FATTR4_CHANGE_ATTR_TYPE, "change_attr_type", change_attr_type, put_u32, Reader::u32, 2);
pub(super) const XATTR_SUPPORT: Row =
    row!(FATTR4_XATTR_SUPPORT, "xattr_support", xattr_support, put_bool, Reader::bool, 2);

/// Encodes `open_arguments4` (RFC 9754 §3): five bitmaps of the access bits, deny bits, wants, claims and create modes
/// that OPEN supports.
fn put_open_arguments(out: &mut Writer, known: &[Mask; 5]) {
    known.iter().for_each(|mask| put_mask(out, mask));
}

fn take_open_arguments(input: &mut Reader) -> Result<[Mask; 5], Malformed> {
    let mut known = [Mask::NONE; 5];
    for mask in &mut known {
        *mask = take_mask(input)?;
    }
    Ok(known)
}

pub(super) const OPEN_ARGUMENTS: Row =
    row!(FATTR4_OPEN_ARGUMENTS, "open_arguments", open_arguments, put_open_arguments, take_open_arguments, 2);
