//! DUMP: the request of `weir dump` to a mgr. The mgr returns, page by page, a file from which the metadata store can
//! be restored.

use super::{put_text, take_text};
use bytes::Bytes;
use xdr::{Malformed, Reader, Writer, Xdr};

/// Maximum number of bytes of the dump file in one page.
pub const DUMP_PAGE_MAX: usize = 512 << 10;

/// Arguments of DUMP.
///
/// The mgr numbers its running dumps. Each call requests the next page of a dump. If a reply was lost, the client may
/// request the same page a second time. The mgr aborts a dump if no call for this dump arrives for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DumpArgs {
    /// Number of the dump, which the client takes from the reply with the first page; 0 starts a new dump.
    pub run: u64,
    /// The number of the page to return, counted from 0.
    pub page: u32,
}

/// Result of DUMP: one page of the dump file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpReply {
    /// Why the mgr refused the request; `None` if it accepted the request. After a refusal, all other fields are
    /// empty.
    pub refused: Option<String>,
    /// The number of the dump, which the client sends in its next DUMP call.
    pub run: u64,
    /// The number of this page, counted from 0.
    pub page: u32,
    /// The bytes of the dump file in this page.
    pub bytes: Bytes,
    /// Number of metadata records in this page and all earlier pages.
    pub records: u64,
    /// Approximate number of metadata records in the whole dump; 0 if the mgr does not know.
    pub total: u64,
    /// Whether this page is the last page, so that the dump file is complete.
    pub end: bool,
}

impl Xdr for DumpArgs {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.run);
        out.u32(self.page);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(DumpArgs { run: input.u64()?, page: input.u32()? })
    }
}

impl Xdr for DumpReply {
    fn encode(&self, out: &mut Writer) {
        out.optional(self.refused.as_ref(), |out, text| put_text(out, text));
        out.u64(self.run);
        out.u32(self.page);
        out.opaque(&self.bytes);
        out.u64(self.records);
        out.u64(self.total);
        out.bool(self.end);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(DumpReply {
            refused: input.optional(take_text)?,
            run: input.u64()?,
            page: input.u32()?,
            bytes: input.opaque(DUMP_PAGE_MAX)?,
            records: input.u64()?,
            total: input.u64()?,
            end: input.bool()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_their_golden_bytes() {
        let args = DumpArgs { run: 7, page: 3 };
        assert_eq!(args.to_bytes(), &[0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3][..]);
        assert_eq!(DumpArgs::from_bytes(&args.to_bytes()), Ok(args));
        let reply = DumpReply {
            refused: None,
            run: 7,
            page: 3,
            bytes: Bytes::from_static(b"ab"),
            records: 5,
            total: 6,
            end: true,
        };
        let mut want = vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 2, b'a', b'b', 0, 0];
        want.extend([0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 1]);
        assert_eq!(reply.to_bytes(), want);
        assert_eq!(DumpReply::from_bytes(&want.clone().into()), Ok(reply));
        for cut in 0..want.len() {
            assert!(DumpReply::from_bytes(&want[..cut].to_vec().into()).is_err(), "{cut} bytes");
        }
    }
}
