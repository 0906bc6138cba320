//! File attributes on the wire (`fattr4`): the registry with one row per attribute, and its encoding and decoding.
//!
//! Values are sent in strictly ascending order of their numbers, exactly the requested and known ones (RFC 8881 §3.3.9,
//! §18.7.3). A peer could not skip the value of an attribute that it did not request.

mod capacity;
mod fixed;
mod object;
mod pnfs;
mod private;
mod set;

use crate::fs::FsInfo;
use crate::values::Values;
use std::sync::LazyLock;
use types::limits::BITMAP_WORDS_MAX;
use types::{FileId, Renaming, SetAttrs};
use wire::nfs4::*;
use xdr::{Malformed, Reader, Writer};

/// A set of attribute numbers below 128 (`bitmap4`); no attribute from 128 on is supported.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Mask(pub u128);

impl Mask {
    /// No attribute.
    pub const NONE: Mask = Mask(0);

    /// The attributes with these numbers, all below 128.
    pub const fn of(numbers: &[u32]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < numbers.len() {
            bits |= 1 << numbers[i];
            i += 1;
        }
        Mask(bits)
    }

    /// Returns whether the set contains this attribute.
    pub const fn has(self, number: u32) -> bool {
        number < 128 && self.0 >> number & 1 == 1
    }

    /// Returns the attributes in both sets.
    pub const fn and(self, other: Mask) -> Mask {
        Mask(self.0 & other.0)
    }

    /// Returns the attributes in either set.
    pub const fn or(self, other: Mask) -> Mask {
        Mask(self.0 | other.0)
    }

    /// Returns the attributes of this set that are not in the other.
    pub const fn without(self, other: Mask) -> Mask {
        Mask(self.0 & !other.0)
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Converts a bitmap from the wire; the second value says whether numbers from 128 on were left out.
    pub fn from_bitmap(words: &[u32]) -> (Self, bool) {
        let bits = words.iter().take(4).enumerate().fold(0, |bits, (i, w)| bits | u128::from(*w) << (32 * i));
        (Mask(bits), words.iter().skip(4).any(|w| *w != 0))
    }

    /// Converts to a bitmap for the wire, without trailing zero words.
    pub fn to_bitmap(self) -> bitmap4 {
        let words = (128 - self.0.leading_zeros()).div_ceil(32);
        (0..words).map(|i| (self.0 >> (32 * i)) as u32).collect()
    }

    /// Returns the numbers in ascending order.
    pub fn numbers(self) -> impl Iterator<Item = u32> {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            let number = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some(number)
        })
    }
}

/// One readable attribute.
struct Row {
    number: u32,
    #[cfg(test)]
    name: &'static str,
    /// The first minor version with this attribute.
    minor: u32,
    /// Appends the value; returns false if it is not known.
    put: fn(&Values, &mut Writer) -> bool,
    take: fn(&mut Reader, &mut Values) -> Result<(), Malformed>,
}

/// A row: number, RFC name, field of [`Values`], writer and reader of the value, first minor version.
macro_rules! row {
    ($number:ident, $name:literal, $field:ident, $put:expr, $take:expr) => {
        crate::attrs::row!($number, $name, $field, $put, $take, 1)
    };
    ($number:ident, $name:literal, $field:ident, $put:expr, $take:expr, $minor:literal) => {
        crate::attrs::Row {
            number: crate::attrs::numbers::$number,
            #[cfg(test)]
            name: $name,
            minor: $minor,
            put: |values, out| match &values.$field {
                Some(value) => {
                    $put(out, value);
                    true
                }
                None => false,
            },
            take: |input, values| {
                values.$field = Some($take(input)?);
                Ok(())
            },
        }
    };
}
use row;

/// The numbers of attributes: those of the RFCs from which `wire` is generated, and later ones.
mod numbers {
    pub(super) use wire::nfs4::*;

    /// `open_arguments` (RFC 9754 §3).
    pub(super) const FATTR4_OPEN_ARGUMENTS: u32 = 86;

    pub(super) use super::{FATTR4_WEIR_POLICY, FATTR4_WEIR_QUEUE_DELAY, FATTR4_WEIR_SETTLED, FATTR4_WEIR_WRITER};
}

/// Writers and readers of single values that the rows share.
mod form {
    use super::{BITMAP_WORDS_MAX, Mask};
    use types::Timestamp;
    use xdr::{Malformed, Reader, Writer};

    pub(super) fn put_u32(out: &mut Writer, v: &u32) {
        out.u32(*v);
    }
    pub(super) fn put_u64(out: &mut Writer, v: &u64) {
        out.u64(*v);
    }
    pub(super) fn put_bool(out: &mut Writer, v: &bool) {
        out.bool(*v);
    }
    pub(super) fn put_mask(out: &mut Writer, v: &Mask) {
        out.array(&v.to_bitmap(), put_u32);
    }
    pub(super) fn take_mask(input: &mut Reader) -> Result<Mask, Malformed> {
        input.array(BITMAP_WORDS_MAX, Reader::u32).map(|words| Mask::from_bitmap(&words).0)
    }
    pub(super) fn put_time(out: &mut Writer, v: &Timestamp) {
        out.i64(v.secs);
        out.u32(v.nanos);
    }
    pub(super) fn take_time(input: &mut Reader) -> Result<Timestamp, Malformed> {
        let (secs, nanos) = (input.i64()?, input.u32()?);
        Timestamp::new(secs, nanos).ok_or(Malformed::Invalid("nseconds of 1,000,000,000 or more"))
    }
    /// Writes a user or group as a decimal number (RFC 8881 §5.9).
    pub(super) fn put_name(out: &mut Writer, v: &u32) {
        out.opaque(&bytes::Bytes::from(v.to_string()));
    }
    /// Reads a decimal number; `None` for any other name.
    pub(super) fn take_name(input: &mut Reader) -> Result<Option<u32>, Malformed> {
        let text = input.opaque(types::limits::OPAQUE_MAX)?;
        if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
            return Ok(None);
        }
        Ok(std::str::from_utf8(&text).ok().and_then(|t| t.parse().ok()))
    }
}

/// Every readable attribute, ascending.
static ROWS: &[Row] = &[
    fixed::SUPPORTED_ATTRS,
    object::TYPE,
    fixed::FH_EXPIRE_TYPE,
    object::CHANGE,
    object::SIZE,
    fixed::LINK_SUPPORT,
    fixed::SYMLINK_SUPPORT,
    fixed::NAMED_ATTR,
    fixed::FSID,
    fixed::UNIQUE_HANDLES,
    fixed::LEASE_TIME,
    object::RDATTR_ERROR,
    fixed::ACLSUPPORT,
    fixed::CANSETTIME,
    fixed::CASE_INSENSITIVE,
    fixed::CASE_PRESERVING,
    fixed::CHOWN_RESTRICTED,
    object::FILEHANDLE,
    object::FILEID,
    capacity::FILES_AVAIL,
    capacity::FILES_FREE,
    capacity::FILES_TOTAL,
    fixed::HOMOGENEOUS,
    fixed::MAXFILESIZE,
    fixed::MAXLINK,
    fixed::MAXNAME,
    fixed::MAXREAD,
    fixed::MAXWRITE,
    object::MODE,
    fixed::NO_TRUNC,
    object::NUMLINKS,
    object::OWNER,
    object::OWNER_GROUP,
    object::RAWDEV,
    capacity::SPACE_AVAIL,
    capacity::SPACE_FREE,
    capacity::SPACE_TOTAL,
    object::SPACE_USED,
    object::TIME_ACCESS,
    object::TIME_CREATE,
    fixed::TIME_DELTA,
    object::TIME_METADATA,
    object::TIME_MODIFY,
    object::MOUNTED_ON_FILEID,
    pnfs::FS_LAYOUT_TYPES,
    pnfs::LAYOUT_BLKSIZE,
    pnfs::MDSTHRESHOLD,
    fixed::SUPPATTR_EXCLCREAT,
    fixed::CLONE_BLKSIZE,
    fixed::CHANGE_ATTR_TYPE,
    fixed::XATTR_SUPPORT,
    fixed::OPEN_ARGUMENTS,
    private::POLICY,
    private::QUEUE_DELAY,
    private::SETTLED,
    private::WRITER,
];

/// The policy settings of the server and of the file or directory ([`crate::fs::Told`]). Weir's own, in no standard.
pub const FATTR4_WEIR_POLICY: u32 = 120;
/// How long requests wait in the queue, in nanoseconds. Weir's own, in no standard.
pub const FATTR4_WEIR_QUEUE_DELAY: u32 = 121;

/// Whether the server may answer before the creation of a file is on stable storage; the client makes it durable with
/// COMMIT or a stable WRITE. Only OPEN accepts it, with the attributes of the new file, and reports in `attrset`
/// whether it was applied. Weir's own, in no standard.
pub const FATTR4_WEIR_UNSYNCED: u32 = 122;

/// Delays the answer until everything that was answered before is on stable storage
/// ([`crate::fs::FileSystem::settle`]). Weir's own, in no standard.
pub const FATTR4_WEIR_SETTLED: u32 = 123;

/// In a VERIFY with no other attribute before a RENAME: how the RENAME treats an existing target name, as the flags of
/// renameat2(2) ([`types::Renaming`]). A server that does not know it ends the COMPOUND with `ATTRNOTSUPP` before it
/// renames. Weir's own, in no standard.
pub const FATTR4_WEIR_RENAMING: u32 = 124;

/// Only in READDIR: whether another client writes the file, so that size and times of the entry may be out of date.
/// GETATTR asks that client or the file system. Weir's own, in no standard.
pub const FATTR4_WEIR_WRITER: u32 = 125;

/// Attributes in no standard: the server sends them only to clients that request them.
pub const PRIVATE: Mask =
    Mask::of(&[FATTR4_WEIR_POLICY, FATTR4_WEIR_QUEUE_DELAY, FATTR4_WEIR_SETTLED, FATTR4_WEIR_WRITER]);

/// Attributes that SETATTR, CREATE and OPEN take.
pub const SETTABLE: Mask = Mask::of(&[
    FATTR4_SIZE,
    FATTR4_MODE,
    FATTR4_OWNER,
    FATTR4_OWNER_GROUP,
    FATTR4_TIME_ACCESS_SET,
    FATTR4_TIME_MODIFY_SET,
]);

/// Attributes that can be set but not read; GETATTR, VERIFY and READDIR refuse them (RFC 8881 §5.5).
pub const WRITE_ONLY: Mask = Mask::of(&[FATTR4_TIME_ACCESS_SET, FATTR4_TIME_MODIFY_SET]);

/// All attributes in [`types::Attrs`].
pub const OBJECT: Mask = Mask::of(&[
    FATTR4_TYPE,
    FATTR4_CHANGE,
    FATTR4_SIZE,
    FATTR4_FILEID,
    FATTR4_MODE,
    FATTR4_NUMLINKS,
    FATTR4_OWNER,
    FATTR4_OWNER_GROUP,
    FATTR4_RAWDEV,
    FATTR4_SPACE_USED,
    FATTR4_TIME_ACCESS,
    FATTR4_TIME_CREATE,
    FATTR4_TIME_METADATA,
    FATTR4_TIME_MODIFY,
]);

/// All attributes in [`types::StatFs`].
pub const STATFS: Mask = Mask::of(&[
    FATTR4_FILES_AVAIL,
    FATTR4_FILES_FREE,
    FATTR4_FILES_TOTAL,
    FATTR4_SPACE_AVAIL,
    FATTR4_SPACE_FREE,
    FATTR4_SPACE_TOTAL,
]);

/// Attributes whose values come from the object itself, not from the server or file system.
pub const NEEDS_OBJECT: Mask = OBJECT.or(Mask::of(&[FATTR4_MOUNTED_ON_FILEID]));

/// Returns the attributes that clients of this minor version may request or set, in any file system.
fn since(minor: u32) -> Mask {
    let rows = ROWS.iter().filter(|row| row.minor <= minor && !PRIVATE.has(row.number));
    rows.fold(WRITE_ONLY, |mask, row| mask.or(Mask::of(&[row.number])))
}

/// Returns the value of `supported_attrs` for a client of this minor version.
pub fn supported(info: &FsInfo, minor: u32) -> Mask {
    // Every GETATTR needs this value, so it is computed once.
    static BY_MINOR: LazyLock<[Mask; 3]> = LazyLock::new(|| [0, 1, 2].map(since));
    let mask = BY_MINOR[(minor as usize).min(2)];
    if info.thresholds { mask } else { mask.without(Mask::of(&[FATTR4_MDSTHRESHOLD])) }
}

/// Appends the attributes of `mask` that `values` knows, as a `fattr4`.
pub fn encode_into(mask: Mask, values: &Values, out: &mut Writer) {
    let (sent, body) = body(mask, values);
    form::put_mask(out, &sent);
    out.opaque_segments(&body.finish());
}

/// Returns the attributes of `mask` that `values` knows.
pub fn encode(mask: Mask, values: &Values) -> fattr4 {
    let (sent, body) = body(mask, values);
    fattr4 { attrmask: sent.to_bitmap(), attr_vals: body.finish().to_bytes() }
}

fn body(mask: Mask, values: &Values) -> (Mask, Writer) {
    let mut body = Writer::new();
    let mut sent = Mask::NONE;
    for row in ROWS.iter().filter(|row| mask.has(row.number)) {
        if (row.put)(values, &mut body) {
            sent = sent.or(Mask::of(&[row.number]));
        }
    }
    (sent, body)
}

/// Decodes attributes that a server sent. An attribute that is not in the table cannot be skipped and is an error.
pub fn decode(attrs: &fattr4) -> Result<Values, Malformed> {
    let (mut left, beyond) = Mask::from_bitmap(&attrs.attrmask);
    let mut input = Reader::new(attrs.attr_vals.clone());
    let mut values = Values::default();
    for row in ROWS {
        if left.has(row.number) {
            (row.take)(&mut input, &mut values)?;
            left = left.without(Mask::of(&[row.number]));
        }
    }
    if beyond || !left.is_empty() {
        return Err(Malformed::Invalid("attribute that was not asked for"));
    }
    input.finish()?;
    Ok(values)
}

/// Decodes the attributes of `wanted` and ignores values after the last of them: clients may send more than requested
/// in a callback.
pub fn decode_first(attrs: &fattr4, wanted: Mask) -> Result<Values, Malformed> {
    let (told, _) = Mask::from_bitmap(&attrs.attrmask);
    let last = wanted.numbers().last().unwrap_or(0);
    let front = Mask(told.0 & (u128::MAX >> (127 - last.min(127))));
    let mut input = Reader::new(attrs.attr_vals.clone());
    let mut values = Values::default();
    let mut left = front;
    for row in ROWS.iter().filter(|row| front.has(row.number)) {
        (row.take)(&mut input, &mut values)?;
        left = left.without(Mask::of(&[row.number]));
    }
    if left.is_empty() { Ok(values) } else { Err(Malformed::Invalid("attribute that was not asked for")) }
}

/// Decodes the attributes of SETATTR, CREATE or OPEN. Errors: `ATTRNOTSUPP` for an attribute not offered to this minor
/// version, `INVAL` for a read-only attribute or a value out of range, `BADOWNER` for a name that is not a number,
/// `BADXDR`.
pub fn decode_set(attrs: &fattr4, info: &FsInfo, minor: u32) -> Result<SetAttrs, nfsstat4> {
    let (mask, beyond) = Mask::from_bitmap(&attrs.attrmask);
    if beyond || !mask.without(supported(info, minor)).is_empty() {
        return Err(NFS4ERR_ATTRNOTSUPP);
    }
    if !mask.without(SETTABLE).is_empty() {
        return Err(NFS4ERR_INVAL);
    }
    set::take(mask, &attrs.attr_vals)
}

/// Decodes the attributes of a new file in OPEN, and whether the server may answer before the file is on stable
/// storage. Errors as in [`decode_set`].
pub fn decode_new(attrs: &fattr4, info: &FsInfo, minor: u32) -> Result<(SetAttrs, bool), nfsstat4> {
    const { assert!(FATTR4_WEIR_UNSYNCED / 32 == 3, "its word below") };
    let (mask, _) = Mask::from_bitmap(&attrs.attrmask);
    if !mask.has(FATTR4_WEIR_UNSYNCED) {
        return Ok((decode_set(attrs, info, minor)?, false));
    }
    // No other settable attribute has so high a number, so its value is the last.
    let front = attrs.attr_vals.len().checked_sub(4).ok_or(NFS4ERR_BADXDR)?;
    let unsynced = Reader::new(attrs.attr_vals.slice(front..)).bool().map_err(|_| NFS4ERR_BADXDR)?;
    let mut rest = fattr4 { attrmask: attrs.attrmask.clone(), attr_vals: attrs.attr_vals.slice(..front) };
    rest.attrmask[3] &= !(1 << (FATTR4_WEIR_UNSYNCED % 32));
    Ok((decode_set(&rest, info, minor)?, unsynced))
}

/// Encodes the attributes of a new file for OPEN, and whether the server may answer before the file is on stable
/// storage.
pub fn encode_new(attrs: &SetAttrs, unsynced: bool) -> fattr4 {
    if !unsynced {
        return encode_set(attrs);
    }
    let mut body = Writer::new();
    let mask = set::put(attrs, &mut body).or(Mask::of(&[FATTR4_WEIR_UNSYNCED]));
    body.bool(true);
    fattr4 { attrmask: mask.to_bitmap(), attr_vals: body.finish().to_bytes() }
}

/// Decodes the mode of the following RENAME, if the attributes of a VERIFY contain it and nothing else. Errors: `INVAL`
/// for an unknown mode, `BADXDR`.
pub fn decode_renaming(attrs: &fattr4) -> Option<Result<Renaming, nfsstat4>> {
    if Mask::from_bitmap(&attrs.attrmask) != (Mask::of(&[FATTR4_WEIR_RENAMING]), false) {
        return None;
    }
    let mut value = Reader::new(attrs.attr_vals.clone());
    let flags = value.u32().ok().filter(|_| value.rest().is_empty());
    Some(flags.ok_or(NFS4ERR_BADXDR).and_then(|flags| Renaming::from_flags(flags).ok_or(NFS4ERR_INVAL)))
}

/// Encodes the mode of the following RENAME for VERIFY.
pub fn encode_renaming(how: Renaming) -> fattr4 {
    let mut body = Writer::new();
    body.u32(how.flags());
    fattr4 { attrmask: Mask::of(&[FATTR4_WEIR_RENAMING]).to_bitmap(), attr_vals: body.finish().to_bytes() }
}

/// Encodes the inode number of a file for VERIFY.
pub fn encode_id(id: FileId) -> fattr4 {
    let mut body = Writer::new();
    body.u64(id.0);
    fattr4 { attrmask: Mask::of(&[FATTR4_FILEID]).to_bitmap(), attr_vals: body.finish().to_bytes() }
}

/// Encodes the attributes to set for SETATTR, CREATE and OPEN.
pub fn encode_set(attrs: &SetAttrs) -> fattr4 {
    let mut body = Writer::new();
    let mask = set::put(attrs, &mut body);
    fattr4 { attrmask: mask.to_bitmap(), attr_vals: body.finish().to_bytes() }
}

/// Returns the mask of the attributes to set, which is the `attrset` of replies.
pub fn set_mask(attrs: &SetAttrs) -> Mask {
    set::put(attrs, &mut Writer::new())
}

#[cfg(test)]
mod tests;
