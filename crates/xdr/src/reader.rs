//! The bounded XDR reader: it checks every length against a limit and against the remaining bytes.

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
        /// Announced length.
        len: u32,
        /// Allowed length.
        max: u32,
    },
    /// The protocol does not define this discriminant or enum value.
    #[error("{what}: unknown value {value}")]
    BadValue {
        /// The type being read.
        what: &'static str,
        /// The value read.
        value: u32,
    },
    /// A field violates a rule of its message.
    #[error("{0}")]
    Invalid(&'static str),
}

/// Reads XDR from the front of a buffer. Opaque data are slices of the buffer, never copies.
#[derive(Clone, Debug)]
pub struct Reader {
    input: Bytes,
}

fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

impl Reader {
    /// Returns a reader of all of `input`.
    pub fn new(input: Bytes) -> Self {
        Reader { input }
    }

    /// Returns the number of bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.input.len()
    }

    /// Returns all bytes not yet read.
    pub fn rest(self) -> Bytes {
        self.input
    }

    /// Checks that everything was read; `Trailing` otherwise.
    pub fn finish(&self) -> Result<(), Malformed> {
        if self.input.is_empty() { Ok(()) } else { Err(Malformed::Trailing) }
    }

    /// Reads an unsigned integer (RFC 4506 §4.2).
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.input.try_get_u32().map_err(|_| Malformed::Short)
    }

    /// Reads an integer (§4.1).
    pub fn i32(&mut self) -> Result<i32, Malformed> {
        self.u32().map(|v| v as i32)
    }

    /// Reads an unsigned hyper integer (§4.5).
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.input.try_get_u64().map_err(|_| Malformed::Short)
    }

    /// Reads a hyper integer (§4.5).
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.u64().map(|v| v as i64)
    }

    /// Reads a boolean (§4.4); only 0 and 1 are legal.
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

    /// Reads a fixed-length opaque (§4.9). The padding is skipped without a check, as other implementations do.
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let data = self.take(N)?;
        let mut out = [0; N];
        out.copy_from_slice(&data);
        Ok(out)
    }

    /// Reads a variable-length opaque of at most `max` bytes (§4.10), as a slice of the input.
    pub fn opaque(&mut self, max: usize) -> Result<Bytes, Malformed> {
        let len = self.length(max)?;
        self.take(len)
    }

    /// Reads the count of a variable-length array of at most `max` items (§4.13).
    ///
    /// Every item takes at least four bytes, so a count that exceeds the remaining bytes is refused before any
    /// allocation.
    pub fn count(&mut self, max: usize) -> Result<usize, Malformed> {
        let count = self.length(max)?;
        if count > self.remaining() / 4 { Err(Malformed::Short) } else { Ok(count) }
    }

    /// Reads a variable-length array of at most `max` items (§4.13).
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

    /// Reads optional data (§4.19).
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
