//! Directory entries: the record of a name, and the cookie that defines the position of the name in the directory.

use super::Record;
use bytes::Bytes;
use siphasher::sip::SipHasher24;
use std::ops::Range;
use types::{FileId, FileKind, limits};
use xdr::{Malformed, Reader, Writer};

/// Number of low bits of a cookie that distinguish names with the same hash in a directory.
const INDEX_BITS: u32 = 8;
/// Number of bits in a cookie. The top bit of the 64-bit integer is 0, because programs use cookies as signed offsets
/// (`telldir(3)`).
const COOKIE_BITS: u32 = 63;

/// Secret key of the hash that maps names to cookies. Users who do not know the key cannot choose names with equal
/// hashes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CookieKey(pub [u8; 16]);

impl std::fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// Returns the range of cookies that `name` may have. The high bits of each cookie are the hash of the name; the low
/// bits are an index, which distinguishes names with the same hash.
///
/// The range depends only on the name and the key, so the cookie of an entry stays the same when other entries change.
/// No cookie is below 256, because NFS reserves the cookies 0, 1 and 2 (RFC 8881 §18.23).
pub fn bucket(key: &CookieKey, name: &[u8]) -> Range<u64> {
    let hash = SipHasher24::new_with_key(&key.0).hash(name) >> (64 - COOKIE_BITS + INDEX_BITS);
    let first = hash.max(1) << INDEX_BITS;
    first..first + (1 << INDEX_BITS)
}

/// A directory entry: the inode that a name refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dentry {
    /// Inode number of the file that the name refers to.
    pub child: FileId,
    /// Kind of the file that the name refers to.
    pub kind: FileKind,
    /// The name of the directory entry.
    pub name: Bytes,
}

impl Record for Dentry {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.child.0);
        out.u32(self.kind as u32);
        out.opaque(&self.name);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let child = FileId(input.u64()?);
        let value = input.u32()?;
        let kind = FileKind::from_number(value).ok_or(Malformed::BadValue { what: "file kind", value })?;
        Ok(Dentry { child, kind, name: input.opaque(limits::NAME_MAX)? })
    }
}
