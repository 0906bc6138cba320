//! Encoder and decoder of the attributes that SETATTR, CREATE and OPEN set.

use super::Mask;
use super::form::{put_name, put_time, take_name, take_time};
use bytes::Bytes;
use types::limits::FILE_SIZE_MAX;
use types::{SetAttrs, SetTime};
use wire::nfs4::*;
use xdr::{Malformed, Reader, Writer};

/// Encodes the attributes that a request sets, in ascending order of their numbers, and returns their bitmap.
pub(super) fn put(attrs: &SetAttrs, out: &mut Writer) -> Mask {
    let mut numbers = Vec::new();
    if let Some(size) = attrs.size {
        numbers.push(FATTR4_SIZE);
        out.u64(size);
    }
    if let Some(mode) = attrs.mode {
        numbers.push(FATTR4_MODE);
        out.u32(mode);
    }
    for (number, id) in [(FATTR4_OWNER, attrs.uid), (FATTR4_OWNER_GROUP, attrs.gid)] {
        if let Some(id) = id {
            numbers.push(number);
            put_name(out, &id);
        }
    }
    for (number, time) in [(FATTR4_TIME_ACCESS_SET, attrs.atime), (FATTR4_TIME_MODIFY_SET, attrs.mtime)] {
        if let Some(time) = time {
            numbers.push(number);
            match time {
                SetTime::Now => out.u32(time_how4::SET_TO_SERVER_TIME4 as u32),
                SetTime::To(time) => {
                    out.u32(time_how4::SET_TO_CLIENT_TIME4 as u32);
                    put_time(out, &time);
                }
            }
        }
    }
    Mask::of(&numbers)
}

/// Decodes the attributes of `mask`, which must contain settable attributes only.
pub(super) fn take(mask: Mask, values: &Bytes) -> Result<SetAttrs, nfsstat4> {
    let bad = |_: Malformed| NFS4ERR_BADXDR;
    let mut input = Reader::new(values.clone());
    let mut set = SetAttrs::default();
    if mask.has(FATTR4_SIZE) {
        let size = input.u64().map_err(bad)?;
        set.size = Some(if size > FILE_SIZE_MAX { return Err(NFS4ERR_FBIG) } else { size });
    }
    if mask.has(FATTR4_MODE) {
        let mode = input.u32().map_err(bad)?;
        set.mode = Some(if mode > 0o7777 { return Err(NFS4ERR_INVAL) } else { mode });
    }
    if mask.has(FATTR4_OWNER) {
        set.uid = Some(take_name(&mut input).map_err(bad)?.ok_or(NFS4ERR_BADOWNER)?);
    }
    if mask.has(FATTR4_OWNER_GROUP) {
        set.gid = Some(take_name(&mut input).map_err(bad)?.ok_or(NFS4ERR_BADOWNER)?);
    }
    if mask.has(FATTR4_TIME_ACCESS_SET) {
        set.atime = Some(take_set_time(&mut input)?);
    }
    if mask.has(FATTR4_TIME_MODIFY_SET) {
        set.mtime = Some(take_set_time(&mut input)?);
    }
    input.finish().map_err(bad)?;
    Ok(set)
}

/// Decodes a time to set (`settime4`). Nanoseconds of 1,000,000,000 or more are `INVAL`, not `BADXDR` (RFC 8881
/// §18.30.3).
fn take_set_time(input: &mut Reader) -> Result<SetTime, nfsstat4> {
    let how = input.u32().map_err(|_| NFS4ERR_BADXDR)?;
    match how {
        0 => Ok(SetTime::Now),
        1 => match take_time(input) {
            Ok(time) => Ok(SetTime::To(time)),
            Err(Malformed::Invalid(_)) => Err(NFS4ERR_INVAL),
            Err(_) => Err(NFS4ERR_BADXDR),
        },
        _ => Err(NFS4ERR_BADXDR),
    }
}
