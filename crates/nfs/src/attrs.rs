//! File attributes on the wire (`fattr4`): the registry of attributes, with one row each, and the encoder and decoder
//! of attribute sets.
//!
//! The sender encodes values in strictly ascending order of attribute numbers (RFC 8881 §3.3.9). It encodes only the
//! attributes that the peer requested and the sender knows (§18.7.3), because a decoder cannot skip a value of unknown
//! type.

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

/// A set of attribute numbers (`bitmap4`). It holds numbers below 128 only; the server supports no attribute with a
/// higher number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Mask(pub u128);

impl Mask {
    /// The empty set of attributes.
    pub const NONE: Mask = Mask(0);

    /// Builds a set from attribute numbers, which must all be below 128.
    pub const fn of(numbers: &[u32]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < numbers.len() {
            bits |= 1 << numbers[i];
            i += 1;
        }
        Mask(bits)
    }

    /// Returns whether the set contains the attribute with this number.
    pub const fn has(self, number: u32) -> bool {
        number < 128 && self.0 >> number & 1 == 1
    }

    /// Returns the intersection of the two attribute sets.
    pub const fn and(self, other: Mask) -> Mask {
        Mask(self.0 & other.0)
    }

    /// Returns the union of the two attribute sets.
    pub const fn or(self, other: Mask) -> Mask {
        Mask(self.0 | other.0)
    }

    /// Returns the attributes of this set that `other` does not contain.
    pub const fn without(self, other: Mask) -> Mask {
        Mask(self.0 & !other.0)
    }

    /// Returns whether the set contains no attribute.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Decodes a `bitmap4`. The second value of the result says whether the bitmap contained numbers of 128 or more,
    /// which the set leaves out.
    pub fn from_bitmap(words: &[u32]) -> (Self, bool) {
        let bits = words.iter().take(4).enumerate().fold(0, |bits, (i, w)| bits | u128::from(*w) << (32 * i));
        (Mask(bits), words.iter().skip(4).any(|w| *w != 0))
    }

    /// Encodes the set as a `bitmap4`, without trailing zero words.
    pub fn to_bitmap(self) -> bitmap4 {
        let words = (128 - self.0.leading_zeros()).div_ceil(32);
        (0..words).map(|i| (self.0 >> (32 * i)) as u32).collect()
    }

    /// Returns the attribute numbers in ascending order.
    pub fn numbers(self) -> impl Iterator<Item = u32> {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            let number = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some(number)
        })
    }
}

/// A row of the attribute table: one attribute that clients can read, with its encoder and decoder.
struct Row {
    number: u32,
    #[cfg(test)]
    name: &'static str,
    /// The first NFSv4 minor version that defines the attribute.
    minor: u32,
    /// Encodes the attribute's value; returns false if the value is unknown.
    put: fn(&Values, &mut Writer) -> bool,
    take: fn(&mut Reader, &mut Values) -> Result<(), Malformed>,
}

/// Builds a row of the attribute table. Arguments: number, RFC name, field of [`Values`], encoder, decoder, first minor
/// version.
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

/// Attribute numbers: constants generated from RFC 8881 and its extensions, and constants of later RFCs and of Weir.
mod numbers {
    pub(super) use wire::nfs4::*;

    /// Attribute `open_arguments` (RFC 9754 §3).
    pub(super) const FATTR4_OPEN_ARGUMENTS: u32 = 86;

    pub(super) use super::{FATTR4_WEIR_POLICY, FATTR4_WEIR_QUEUE_DELAY, FATTR4_WEIR_SETTLED, FATTR4_WEIR_WRITER};
}

/// Encoders and decoders of single attribute values, which several rows of the attribute table use.
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
    /// Encodes a user or group id as a decimal string (RFC 8881 §5.9).
    pub(super) fn put_name(out: &mut Writer, v: &u32) {
        out.opaque(&bytes::Bytes::from(v.to_string()));
    }
    /// Decodes a user or group id from a decimal string; returns `None` for any other string.
    pub(super) fn take_name(input: &mut Reader) -> Result<Option<u32>, Malformed> {
        let text = input.opaque(types::limits::OPAQUE_MAX)?;
        if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
            return Ok(None);
        }
        Ok(std::str::from_utf8(&text).ok().and_then(|t| t.parse().ok()))
    }
}

/// The attribute table: every readable attribute, in ascending order of numbers.
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

/// Attribute with the policy settings of the server and of the file or directory ([`crate::fs::PolicyText`]). Weir's
/// own attribute; no standard defines it.
pub const FATTR4_WEIR_POLICY: u32 = 120;
/// Attribute with the current queueing delay of requests on the mgr, in nanoseconds. Weir's own attribute; no standard
/// defines it.
pub const FATTR4_WEIR_QUEUE_DELAY: u32 = 121;

/// Attribute of a new file: whether the server may reply to OPEN before the new file is durable. The client later makes
/// the file durable with COMMIT or a stable WRITE. Only OPEN accepts this attribute; the reply's `attrset` says whether
/// the server applied it. Weir's own attribute; no standard defines it.
pub const FATTR4_WEIR_UNSYNCED: u32 = 122;

/// Attribute that works as a durability barrier: the server replies to the GETATTR only after every change to which it
/// has already replied is durable ([`crate::fs::FileSystem::settle`]). Weir's own attribute; no standard defines it.
pub const FATTR4_WEIR_SETTLED: u32 = 123;

/// Attribute with the flags of renameat2(2) ([`types::Renaming`]) for the next RENAME, sent as the only attribute of a
/// VERIFY. A server that does not know this attribute fails the VERIFY with `ATTRNOTSUPP`, so that the COMPOUND ends
/// before the RENAME. Weir's own attribute; no standard defines it.
pub const FATTR4_WEIR_RENAMING: u32 = 124;

/// READDIR attribute: whether another client writes the file, so that the size and the times in the directory entry
/// may be out of date. A GETATTR of the file returns current values. Weir's own attribute; no standard defines it.
pub const FATTR4_WEIR_WRITER: u32 = 125;

/// Weir's own attributes, which no standard defines. The server sends them only to clients that request them.
pub const PRIVATE: Mask =
    Mask::of(&[FATTR4_WEIR_POLICY, FATTR4_WEIR_QUEUE_DELAY, FATTR4_WEIR_SETTLED, FATTR4_WEIR_WRITER]);

/// The attributes that clients may set with SETATTR, CREATE and OPEN.
pub const SETTABLE: Mask = Mask::of(&[
    FATTR4_SIZE,
    FATTR4_MODE,
    FATTR4_OWNER,
    FATTR4_OWNER_GROUP,
    FATTR4_TIME_ACCESS_SET,
    FATTR4_TIME_MODIFY_SET,
]);

/// Attributes that clients can set but not read; GETATTR, VERIFY and READDIR refuse them (RFC 8881 §5.5).
pub const WRITE_ONLY: Mask = Mask::of(&[FATTR4_TIME_ACCESS_SET, FATTR4_TIME_MODIFY_SET]);

/// The attributes whose values form [`types::Attrs`]: type, size, mode, owners, times and others of one file.
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

/// The attributes whose values form [`types::StatFs`]: inodes and bytes of the file system, free and in total.
pub const STATFS: Mask = Mask::of(&[
    FATTR4_FILES_AVAIL,
    FATTR4_FILES_FREE,
    FATTR4_FILES_TOTAL,
    FATTR4_SPACE_AVAIL,
    FATTR4_SPACE_FREE,
    FATTR4_SPACE_TOTAL,
]);

/// The attributes whose values differ between files. All other attributes have one value for the server or the file
/// system.
pub const NEEDS_OBJECT: Mask = OBJECT.or(Mask::of(&[FATTR4_MOUNTED_ON_FILEID]));

/// Returns the attributes that clients of this NFSv4 minor version may request or set, on any file system.
fn since(minor: u32) -> Mask {
    let rows = ROWS.iter().filter(|row| row.minor <= minor && !PRIVATE.has(row.number));
    rows.fold(WRITE_ONLY, |mask, row| mask.or(Mask::of(&[row.number])))
}

/// Returns the value of the attribute `supported_attrs` for clients of this NFSv4 minor version.
pub fn supported(info: &FsInfo, minor: u32) -> Mask {
    // Every GETATTR uses the set of supported attributes, so the server computes the set once for each minor version.
    static BY_MINOR: LazyLock<[Mask; 3]> = LazyLock::new(|| [0, 1, 2].map(since));
    let mask = BY_MINOR[(minor as usize).min(2)];
    if info.thresholds { mask } else { mask.without(Mask::of(&[FATTR4_MDSTHRESHOLD])) }
}

/// Appends a `fattr4` with those attributes of `mask` whose values are known.
pub fn encode_into(mask: Mask, values: &Values, out: &mut Writer) {
    let (sent, body) = body(mask, values);
    form::put_mask(out, &sent);
    out.opaque_segments(&body.finish());
}

/// Returns a `fattr4` with those attributes of `mask` whose values are known.
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

/// Decodes a `fattr4` that a server sent. An attribute that the attribute table does not contain is an error, because
/// the decoder cannot skip a value of unknown type.
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

/// Decodes a `fattr4` from CB_GETATTR up to the last attribute of `wanted`, and ignores the values after this
/// attribute. Clients may send more attributes than the server requested.
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

/// Decodes the attributes that SETATTR, CREATE or OPEN sets.
///
/// # Errors
/// `ATTRNOTSUPP` for an attribute that the server does not offer to clients of this minor version, `INVAL` for a
/// read-only attribute or a value out of range, `BADOWNER` for an owner that is not a number, `BADXDR` for a malformed
/// value.
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

/// Decodes the attributes of a new file in OPEN, and whether the server may reply to the OPEN before the file is
/// durable.
///
/// # Errors
/// The errors of [`decode_set`].
pub fn decode_new(attrs: &fattr4, info: &FsInfo, minor: u32) -> Result<(SetAttrs, bool), nfsstat4> {
    const { assert!(FATTR4_WEIR_UNSYNCED / 32 == 3, "its word below") };
    let (mask, _) = Mask::from_bitmap(&attrs.attrmask);
    if !mask.has(FATTR4_WEIR_UNSYNCED) {
        return Ok((decode_set(attrs, info, minor)?, false));
    }
    // `FATTR4_WEIR_UNSYNCED` has the highest number of all settable attributes, so its value is the last four bytes of
    // `attr_vals`.
    let front = attrs.attr_vals.len().checked_sub(4).ok_or(NFS4ERR_BADXDR)?;
    let unsynced = Reader::new(attrs.attr_vals.slice(front..)).bool().map_err(|_| NFS4ERR_BADXDR)?;
    let mut rest = fattr4 { attrmask: attrs.attrmask.clone(), attr_vals: attrs.attr_vals.slice(..front) };
    rest.attrmask[3] &= !(1 << (FATTR4_WEIR_UNSYNCED % 32));
    Ok((decode_set(&rest, info, minor)?, unsynced))
}

/// Encodes the attributes of a new file for OPEN, and whether the server may reply to the OPEN before the file is
/// durable.
pub fn encode_new(attrs: &SetAttrs, unsynced: bool) -> fattr4 {
    if !unsynced {
        return encode_set(attrs);
    }
    let mut body = Writer::new();
    let mask = set::put(attrs, &mut body).or(Mask::of(&[FATTR4_WEIR_UNSYNCED]));
    body.bool(true);
    fattr4 { attrmask: mask.to_bitmap(), attr_vals: body.finish().to_bytes() }
}

/// Decodes the attribute of a VERIFY that carries the renameat2(2) flags of the next RENAME. Returns `None` if the
/// VERIFY does not consist of `FATTR4_WEIR_RENAMING` alone.
///
/// # Errors
/// `INVAL` for unknown flags, `BADXDR` for a malformed value.
pub fn decode_renaming(attrs: &fattr4) -> Option<Result<Renaming, nfsstat4>> {
    if Mask::from_bitmap(&attrs.attrmask) != (Mask::of(&[FATTR4_WEIR_RENAMING]), false) {
        return None;
    }
    let mut value = Reader::new(attrs.attr_vals.clone());
    let flags = value.u32().ok().filter(|_| value.rest().is_empty());
    Some(flags.ok_or(NFS4ERR_BADXDR).and_then(|flags| Renaming::from_flags(flags).ok_or(NFS4ERR_INVAL)))
}

/// Encodes the renameat2(2) flags of the next RENAME, as the attribute of a VERIFY.
pub fn encode_renaming(how: Renaming) -> fattr4 {
    let mut body = Writer::new();
    body.u32(how.flags());
    fattr4 { attrmask: Mask::of(&[FATTR4_WEIR_RENAMING]).to_bitmap(), attr_vals: body.finish().to_bytes() }
}

/// Encodes the attribute `fileid` (the inode number) for VERIFY.
pub fn encode_id(id: FileId) -> fattr4 {
    let mut body = Writer::new();
    body.u64(id.0);
    fattr4 { attrmask: Mask::of(&[FATTR4_FILEID]).to_bitmap(), attr_vals: body.finish().to_bytes() }
}

/// Encodes attributes for SETATTR, CREATE and OPEN.
pub fn encode_set(attrs: &SetAttrs) -> fattr4 {
    let mut body = Writer::new();
    let mask = set::put(attrs, &mut body);
    fattr4 { attrmask: mask.to_bitmap(), attr_vals: body.finish().to_bytes() }
}

/// Returns the bitmap of the attributes that a request sets; replies carry the bitmap as `attrset`.
pub fn set_mask(attrs: &SetAttrs) -> Mask {
    set::put(attrs, &mut Writer::new())
}

#[cfg(test)]
mod tests;
