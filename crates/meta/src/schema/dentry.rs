//! Directory entries: the record behind a name, and the cookie that is its place in the directory.

use super::Record;
use bytes::Bytes;
use siphasher::sip::SipHasher24;
use std::ops::Range;
use types::{FileId, FileKind, limits};
use xdr::{Malformed, Reader, Writer};

/// Bits of a cookie that tell names of one hash apart.
const INDEX_BITS: u32 = 8;
/// Bits of a cookie in all; the top one stays clear, as cookies become signed offsets.
const COOKIE_BITS: u32 = 63;

/// The key of the hash from names to cookies; secret, so that nobody can choose names that collide.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CookieKey(pub [u8; 16]);

impl std::fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// The cookies that `name` may have: its hash with every index behind it.
///
/// Depends on nothing but the name and the key, so a cookie stays where it is while other names come and go. None is
/// below 256: 0, 1 and 2 are taken by the protocol (RFC 8881 §18.23).
pub fn bucket(key: &CookieKey, name: &[u8]) -> Range<u64> {
    let hash = SipHasher24::new_with_key(&key.0).hash(name) >> (64 - COOKIE_BITS + INDEX_BITS);
    let first = hash.max(1) << INDEX_BITS;
    first..first + (1 << INDEX_BITS)
}

/// What a name stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dentry {
    /// The file.
    pub child: FileId,
    /// What it is.
    pub kind: FileKind,
    /// The name.
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
