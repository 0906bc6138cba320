//! Attributes of a single file, directory or other object.

use super::form::{put_name, put_time, put_u32, put_u64, take_name, take_time};
use super::{Row, row};
use bytes::Bytes;
use types::FileKind;
use types::limits::FILEHANDLE_MAX;
use wire::nfs4::nfsstat4;
use xdr::{Malformed, Reader, Writer, Xdr};

fn put_kind(out: &mut Writer, kind: &FileKind) {
    out.u32(*kind as u32);
}

fn take_kind(input: &mut Reader) -> Result<FileKind, Malformed> {
    let value = input.u32()?;
    FileKind::from_number(value).ok_or(Malformed::BadValue { what: "nfs_ftype4", value })
}

/// Decodes an owner or owner group. A server that has no id for a user sends a name; the client maps every name to
/// "nobody" (RFC 8881 §5.9).
fn take_owner(input: &mut Reader) -> Result<u32, Malformed> {
    const NOBODY: u32 = 65534;
    take_name(input).map(|id| id.unwrap_or(NOBODY))
}

fn put_rawdev(out: &mut Writer, (major, minor): &(u32, u32)) {
    out.u32(*major);
    out.u32(*minor);
}

fn take_rawdev(input: &mut Reader) -> Result<(u32, u32), Malformed> {
    Ok((input.u32()?, input.u32()?))
}

fn take_handle(input: &mut Reader) -> Result<Bytes, Malformed> {
    input.opaque(FILEHANDLE_MAX)
}

pub(super) const TYPE: Row = row!(FATTR4_TYPE, "type", kind, put_kind, take_kind);
pub(super) const CHANGE: Row = row!(FATTR4_CHANGE, "change", change, put_u64, Reader::u64);
pub(super) const SIZE: Row = row!(FATTR4_SIZE, "size", size, put_u64, Reader::u64);
pub(super) const RDATTR_ERROR: Row = row!(
    FATTR4_RDATTR_ERROR,
    "rdattr_error",
    rdattr_error,
    |out: &mut Writer, v: &nfsstat4| v.encode(out),
    nfsstat4::decode
);
pub(super) const FILEHANDLE: Row =
    row!(FATTR4_FILEHANDLE, "filehandle", filehandle, |out: &mut Writer, v: &Bytes| out.opaque(v), take_handle);
pub(super) const FILEID: Row = row!(FATTR4_FILEID, "fileid", fileid, put_u64, Reader::u64);
pub(super) const MODE: Row = row!(FATTR4_MODE, "mode", mode, put_u32, Reader::u32);
pub(super) const NUMLINKS: Row = row!(FATTR4_NUMLINKS, "numlinks", numlinks, put_u32, Reader::u32);
pub(super) const OWNER: Row = row!(FATTR4_OWNER, "owner", owner, put_name, take_owner);
pub(super) const OWNER_GROUP: Row = row!(FATTR4_OWNER_GROUP, "owner_group", owner_group, put_name, take_owner);
pub(super) const RAWDEV: Row = row!(FATTR4_RAWDEV, "rawdev", rawdev, put_rawdev, take_rawdev);
pub(super) const SPACE_USED: Row = row!(FATTR4_SPACE_USED, "space_used", space_used, put_u64, Reader::u64);
pub(super) const TIME_ACCESS: Row = row!(FATTR4_TIME_ACCESS, "time_access", time_access, put_time, take_time);
pub(super) const TIME_CREATE: Row = row!(FATTR4_TIME_CREATE, "time_create", time_create, put_time, take_time);
pub(super) const TIME_METADATA: Row = row!(FATTR4_TIME_METADATA, "time_metadata", time_metadata, put_time, take_time);
pub(super) const TIME_MODIFY: Row = row!(FATTR4_TIME_MODIFY, "time_modify", time_modify, put_time, take_time);
pub(super) const MOUNTED_ON_FILEID: Row =
    row!(FATTR4_MOUNTED_ON_FILEID, "mounted_on_fileid", mounted_on_fileid, put_u64, Reader::u64);
