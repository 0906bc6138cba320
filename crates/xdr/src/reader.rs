//! The bounded reader: every length is checked against a limit and against what is left.

use bytes::{Buf, Bytes};

/// The peer sent something that is not the message it claims to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The message ends inside a value.
    #[error("message ends too early")]
    Short,
    /// Bytes are left behind the message.
    #[error("bytes left behind the message")]
    Trailing,
    /// A variable-length item is longer than its limit.
    #[error("item of {len} is over the limit of {max}")]
    TooLong {
        /// Announced length.
        len: u32,
        /// Allowed length.
        max: u32,
    },
    /// A discriminant or enum value that the protocol does not have.
    #[error("{what}: no such value {value}")]
    BadValue {
        /// The type being read.
        what: &'static str,
        /// The value met.
        value: u32,
    },
    /// A field that breaks a rule of its message.
    #[error("{0}")]
    Invalid(&'static str),
}

/// Reads XDR from the front of a buffer; opaque data are slices of it, never copies.
#[derive(Clone, Debug)]
pub struct Reader {
    input: Bytes,
}

fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

impl Reader {
    /// A reader of all of `input`.
    pub fn new(input: Bytes) -> Self {
        Reader { input }
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.input.len()
    }

    /// All bytes not yet read.
    pub fn rest(self) -> Bytes {
        self.input
    }

    /// Ends reading: `Trailing` if anything is left.
    pub fn finish(&self) -> Result<(), Malformed> {
        if self.input.is_empty() { Ok(()) } else { Err(Malformed::Trailing) }
    }

    /// Unsigned integer (RFC 4506 §4.2).
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.input.try_get_u32().map_err(|_| Malformed::Short)
    }

    /// Integer (§4.1).
    pub fn i32(&mut self) -> Result<i32, Malformed> {
        self.u32().map(|v| v as i32)
    }

    /// Unsigned hyper integer (§4.5).
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.input.try_get_u64().map_err(|_| Malformed::Short)
    }

    /// Hyper integer (§4.5).
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.u64().map(|v| v as i64)
    }

    /// Boolean (§4.4): only 0 and 1 are legal.
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

    /// Fixed-length opaque (§4.9); padding is skipped unread, as every peer of note does.
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let data = self.take(N)?;
        let mut out = [0; N];
        out.copy_from_slice(&data);
        Ok(out)
    }

    /// Variable-length opaque of at most `max` bytes (§4.10), a slice of the input.
    pub fn opaque(&mut self, max: usize) -> Result<Bytes, Malformed> {
        let len = self.length(max)?;
        self.take(len)
    }

    /// The count of a variable-length array of at most `max` items (§4.13).
    ///
    /// Every item takes at least four bytes, so a count beyond what is left is refused before anything is allocated.
    pub fn count(&mut self, max: usize) -> Result<usize, Malformed> {
        let count = self.length(max)?;
        if count > self.remaining() / 4 { Err(Malformed::Short) } else { Ok(count) }
    }

    /// Variable-length array of at most `max` items (§4.13).
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

    /// Optional data (§4.19).
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
    fn opaque_is_a_slice_and_padding_is_skipped() {
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
