//! The format record of a store: its version, the id and creation time of its file system, and the secret key of
//! directory cookies.

use super::{CookieKey, Record, get_time, put_time};
use types::{Fsid, Timestamp};
use xdr::{Malformed, Reader, Writer};

const MAGIC: [u8; 8] = *b"weirmeta";

/// The format record. The store writes this record once, when the store is formatted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatRecord {
    /// Id of the file system.
    pub fsid: Fsid,
    /// Creation time of the file system.
    pub created: Timestamp,
    /// Secret key of the hash that maps names to directory cookies.
    pub cookies: CookieKey,
}

impl FormatRecord {
    /// Returns the version number in a format record, even if this program cannot read this version; `None` if the
    /// value is not a format record.
    pub fn version_of(value: &[u8]) -> Option<u32> {
        let (version, rest) = value.split_first_chunk::<4>()?;
        rest.starts_with(&MAGIC).then_some(u32::from_be_bytes(*version))
    }
}

impl Record for FormatRecord {
    /// Version of the whole store. Version 2 added a checksum to every record.
    const VERSION: u32 = 2;

    fn encode(&self, out: &mut Writer) {
        out.fixed(&MAGIC);
        out.fixed(&self.fsid.0);
        put_time(out, self.created);
        out.fixed(&self.cookies.0);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        if input.fixed()? != MAGIC {
            return Err(Malformed::Invalid("not a metadata store"));
        }
        let fsid = Fsid(input.fixed()?);
        Ok(FormatRecord { fsid, created: get_time(input)?, cookies: CookieKey(input.fixed()?) })
    }
}
