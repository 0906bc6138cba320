//! The bounded XDR reader: it checks every length in a message against a limit and against the number of bytes that
//! remain.

use bytes::{Buf, Bytes};

/// A decoding error: the bytes are not a valid message of the expected type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The message ends inside a value.
    #[error("the message is truncated")]
    Short,
    /// Bytes remain after the message.
    #[error("the message has extra bytes at its end")]
    Trailing,
    /// A variable-length item is longer than its limit.
    #[error("a length of {len} exceeds the limit of {max}")]
    TooLong {
        /// Length of the item that the message states.
        len: u32,
        /// Largest length that the reader accepts.
        max: u32,
    },
    /// The protocol does not define this union discriminant or enum value.
    #[error("{what}: unknown value {value}")]
    BadValue {
        /// Name of the type that the reader was decoding.
        what: &'static str,
        /// The undefined value in the message.
        value: u32,
    },
    /// A field violates a rule of its message type. The text names the rule.
    #[error("{0}")]
    Invalid(&'static str),
}

/// An XDR reader over one buffer. It returns opaque data as slices of the buffer, without copying.
#[derive(Clone, Debug)]
pub struct Reader {
    input: Bytes,
}

fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

impl Reader {
    /// Returns a reader that starts at the first byte of `input`.
    pub fn new(input: Bytes) -> Self {
        Reader { input }
    }

    /// Returns the number of bytes that the reader has not yet read.
    pub fn remaining(&self) -> usize {
        self.input.len()
    }

    /// Consumes the reader and returns all bytes that it has not yet read.
    pub fn rest(self) -> Bytes {
        self.input
    }

    /// Checks that the reader has read all bytes. If bytes remain, returns `Malformed::Trailing`.
    pub fn finish(&self) -> Result<(), Malformed> {
        if self.input.is_empty() { Ok(()) } else { Err(Malformed::Trailing) }
    }

    /// Reads an unsigned 32-bit integer (RFC 4506 §4.2).
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.input.try_get_u32().map_err(|_| Malformed::Short)
    }

    /// Reads a signed 32-bit integer (RFC 4506 §4.1).
    pub fn i32(&mut self) -> Result<i32, Malformed> {
        self.u32().map(|v| v as i32)
    }

    /// Reads an unsigned 64-bit integer (unsigned hyper, RFC 4506 §4.5).
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.input.try_get_u64().map_err(|_| Malformed::Short)
    }

    /// Reads a signed 64-bit integer (hyper, RFC 4506 §4.5).
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.u64().map(|v| v as i64)
    }

    /// Reads a boolean (RFC 4506 §4.4). Values other than 0 and 1 are an error.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(Malformed::BadValue { what: "bool", value }),
        }
    }

    fn take(&mut self, len: usize) -> Result<Bytes, Malformed> {
        let padded = len.checked_add(padding(len)).ok_or(Malformed::Short)?;
        if self.input.len() < padded {
            return Err(Malformed::Short);
        }
        let data = self.input.split_to(len);
        self.input.advance(padded - len);
        Ok(data)
    }

    /// Reads fixed-length opaque data (RFC 4506 §4.9). The reader skips the padding bytes without checking that they
    /// are zero, as other implementations do.
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let data = self.take(N)?;
        let mut out = [0; N];
        out.copy_from_slice(&data);
        Ok(out)
    }

    /// Reads variable-length opaque data of at most `max` bytes (RFC 4506 §4.10). Returns a slice of the input.
    pub fn opaque(&mut self, max: usize) -> Result<Bytes, Malformed> {
        let len = self.length(max)?;
        self.take(len)
    }

    /// Reads the count of a variable-length array of at most `max` items (RFC 4506 §4.13).
    ///
    /// Every item takes at least four bytes. So the reader refuses a count for which too few bytes remain, before the
    /// caller allocates memory for the items.
    pub fn count(&mut self, max: usize) -> Result<usize, Malformed> {
        let count = self.length(max)?;
        if count > self.remaining() / 4 { Err(Malformed::Short) } else { Ok(count) }
    }

    /// Reads a variable-length array of at most `max` items (RFC 4506 §4.13); `item` decodes each item.
    pub fn array<T>(
        &mut self,
        max: usize,
        mut item: impl FnMut(&mut Reader) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.count(max)?;
        let mut out = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            out.push(item(self)?);
        }
        Ok(out)
    }

    /// Reads optional data (RFC 4506 §4.19): a boolean, followed by the value if the boolean is true.
    pub fn optional<T>(
        &mut self,
        item: impl FnOnce(&mut Reader) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.bool()? { item(self).map(Some) } else { Ok(None) }
    }

    fn length(&mut self, max: usize) -> Result<usize, Malformed> {
        let len = self.u32()?;
        if len as usize > max {
            return Err(Malformed::TooLong { len, max: u32::try_from(max).unwrap_or(u32::MAX) });
        }
        Ok(len as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(bytes: &'static [u8]) -> Reader {
        Reader::new(Bytes::from_static(bytes))
    }

    #[test]
    fn an_opaque_is_a_slice_without_its_padding() {
        let mut r = reader(&[0, 0, 0, 3, b'a', b'b', b'c', 9, 0, 0, 0, 7]);
        assert_eq!(r.opaque(3).unwrap(), "abc");
        assert_eq!(r.u32(), Ok(7));
        assert_eq!(r.finish(), Ok(()));
    }

    #[test]
    fn lengths_are_bounded_before_allocation() {
        assert_eq!(reader(&[0, 0, 0, 9]).opaque(8), Err(Malformed::TooLong { len: 9, max: 8 }));
        assert_eq!(reader(&[0, 0, 0, 8, 1]).opaque(8), Err(Malformed::Short));
        assert_eq!(reader(&[0x7f, 0xff, 0xff, 0xff]).count(usize::MAX), Err(Malformed::Short));
        assert_eq!(reader(&[0xff, 0xff, 0xff, 0xff]).opaque(usize::MAX), Err(Malformed::Short));
        assert_eq!(reader(&[0, 0, 0, 2]).bool(), Err(Malformed::BadValue { what: "bool", value: 2 }));
    }
}
