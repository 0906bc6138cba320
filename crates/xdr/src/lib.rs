//! XDR primitives (RFC 4506): a bounded reader that returns slices, and a writer that builds lists of segments.

mod reader;
mod writer;

pub use reader::{Malformed, Reader};
pub use writer::{Segments, Writer};

use bytes::Bytes;

/// A value with an XDR encoding (RFC 4506).
pub trait Xdr: Sized {
    /// Appends the value to `out`.
    fn encode(&self, out: &mut Writer);
    /// Decodes a value from the next bytes of `input`. Never panics, and never allocates memory for more items than the
    /// remaining bytes of `input` can contain.
    fn decode(input: &mut Reader) -> Result<Self, Malformed>;

    /// Returns the XDR encoding of this value as one contiguous buffer.
    fn to_bytes(&self) -> Bytes {
        let mut out = Writer::new();
        self.encode(&mut out);
        out.finish().to_bytes()
    }

    /// Decodes a value from `bytes`. Returns an error if `bytes` contains more bytes than the encoded value.
    fn from_bytes(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut input = Reader::new(bytes.clone());
        let value = Self::decode(&mut input)?;
        input.finish()?;
        Ok(value)
    }
}
