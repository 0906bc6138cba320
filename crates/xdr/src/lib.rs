//! RFC 4506 primitives: a bounded reader that borrows and a writer of segment lists.

mod reader;
mod writer;

pub use reader::{Malformed, Reader};
pub use writer::{Segments, Writer};

use bytes::Bytes;

/// A value with an XDR form.
pub trait Xdr: Sized {
    /// Appends the value to `out`.
    fn encode(&self, out: &mut Writer);
    /// Takes the value from the front of `input`; never panics, never allocates more than the input holds.
    fn decode(input: &mut Reader) -> Result<Self, Malformed>;

    /// The value alone, as one contiguous buffer.
    fn to_bytes(&self) -> Bytes {
        let mut out = Writer::new();
        self.encode(&mut out);
        out.finish().to_bytes()
    }

    /// Decodes `bytes`, which must hold exactly this value.
    fn from_bytes(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut input = Reader::new(bytes.clone());
        let value = Self::decode(&mut input)?;
        input.finish()?;
        Ok(value)
    }
}
