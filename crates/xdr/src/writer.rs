//! The XDR writer: it collects small values in one buffer, and adds each large payload to the list of segments without
//! a copy.

use bytes::Bytes;

/// Opaque data of at least this many bytes become a segment of their own, without a copy. Shorter data are copied into
/// the buffer for small values.
const OWN_SEGMENT: usize = 1024;
/// Initial capacity in bytes of the buffer for small values. Most messages fit into it without a reallocation.
const ROOM: usize = 128;

/// An XDR writer, which builds a message as a list of segments for a vectored write.
#[derive(Debug, Default)]
pub struct Writer {
    done: Vec<Bytes>,
    done_len: usize,
    head: Vec<u8>,
}

/// A finished message: its segments in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    parts: Vec<Bytes>,
    len: usize,
}

impl Segments {
    /// Returns the total length of the message in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the segments in order; no segment is empty.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Appends `part` as a segment, without copying the bytes.
    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push(part);
        }
    }

    /// Appends all segments of another message.
    pub fn extend(&mut self, other: Segments) {
        self.len += other.len;
        self.parts.extend(other.parts);
    }

    /// Returns the whole message in one buffer. Copies the bytes unless the message has exactly one segment.
    pub fn to_bytes(&self) -> Bytes {
        if let [one] = &self.parts[..] {
            return one.clone();
        }
        let mut all = Vec::with_capacity(self.len);
        for part in &self.parts {
            all.extend_from_slice(part);
        }
        all.into()
    }
}

impl From<Bytes> for Segments {
    fn from(part: Bytes) -> Self {
        let mut segments = Segments::default();
        segments.push(part);
        segments
    }
}

impl Writer {
    /// Returns a writer that begins with an empty message.
    pub fn new() -> Self {
        Self::with_capacity(ROOM)
    }

    /// Returns a writer that begins with an empty message. Its buffer for small values has a capacity of `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Writer { head: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Returns a writer that begins with an empty message and stores small values in the memory of `buffer`. Discards
    /// the content of `buffer`. [`Writer::into_buffer`] returns such a buffer.
    pub fn reusing(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Writer { head: buffer, ..Self::default() }
    }

    /// Ends the message and returns it in one buffer, which the caller can later reuse. Copies the bytes only if the
    /// message has a segment for a large payload.
    pub fn into_buffer(self) -> Vec<u8> {
        if self.done.is_empty() { self.head } else { self.finish().to_bytes().into() }
    }

    /// Returns the number of bytes that the writer has written.
    pub fn len(&self) -> usize {
        self.done_len + self.head.len()
    }

    /// Returns whether no byte has been written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the message and returns its segments.
    pub fn finish(mut self) -> Segments {
        self.seal();
        Segments { parts: self.done, len: self.done_len }
    }

    fn seal(&mut self) {
        if !self.head.is_empty() {
            self.done_len += self.head.len();
            self.done.push(std::mem::take(&mut self.head).into());
        }
    }

    /// Writes an unsigned 32-bit integer (RFC 4506 §4.2).
    pub fn u32(&mut self, v: u32) {
        self.head.extend_from_slice(&v.to_be_bytes());
    }

    /// Writes a signed 32-bit integer (RFC 4506 §4.1).
    pub fn i32(&mut self, v: i32) {
        self.head.extend_from_slice(&v.to_be_bytes());
    }

    /// Writes an unsigned 64-bit integer (unsigned hyper, RFC 4506 §4.5).
    pub fn u64(&mut self, v: u64) {
        self.head.extend_from_slice(&v.to_be_bytes());
    }

    /// Writes a signed 64-bit integer (hyper, RFC 4506 §4.5).
    pub fn i64(&mut self, v: i64) {
        self.head.extend_from_slice(&v.to_be_bytes());
    }

    /// Writes a boolean (RFC 4506 §4.4).
    pub fn bool(&mut self, v: bool) {
        self.u32(u32::from(v));
    }

    /// Writes fixed-length opaque data (RFC 4506 §4.9), padded to a multiple of four bytes. Always copies the data.
    pub fn fixed(&mut self, data: &[u8]) {
        self.head.extend_from_slice(data);
        self.pad(data.len());
    }

    /// Writes variable-length opaque data (RFC 4506 §4.10), padded to a multiple of four bytes. Large data are not
    /// copied, but become a segment that shares the memory of `data`.
    ///
    /// # Panics
    /// If `data` is 4 GiB or longer, which no limit of Weir allows.
    pub fn opaque(&mut self, data: &Bytes) {
        self.u32(u32::try_from(data.len()).expect("opaque data below 4 GiB"));
        self.raw(data);
        self.pad(data.len());
    }

    /// Writes the bytes of all segments as variable-length opaque data (RFC 4506 §4.10). Large segments are not copied.
    ///
    /// # Panics
    /// If `data` is 4 GiB or longer, which no limit of Weir allows.
    pub fn opaque_segments(&mut self, data: &Segments) {
        self.u32(u32::try_from(data.len()).expect("opaque data below 4 GiB"));
        for part in data.parts() {
            self.raw(part);
        }
        self.pad(data.len());
    }

    /// Writes variable-length opaque data (RFC 4506 §4.10). The closure `body` writes the content, and the length field
    /// precedes the content.
    pub fn nested(&mut self, body: impl FnOnce(&mut Writer)) {
        let mut inner = Writer::new();
        body(&mut inner);
        self.opaque_segments(&inner.finish());
    }

    /// Writes bytes unchanged, without a length field or padding.
    pub fn raw(&mut self, data: &Bytes) {
        if data.len() < OWN_SEGMENT {
            self.head.extend_from_slice(data);
        } else {
            self.seal();
            self.done_len += data.len();
            self.done.push(data.clone());
        }
    }

    /// Writes a variable-length array (RFC 4506 §4.13); `item` encodes each item.
    ///
    /// # Panics
    /// If there are 2^32 items or more.
    pub fn array<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Writer, &T)) {
        self.u32(u32::try_from(items.len()).expect("array below 2^32 items"));
        for i in items {
            item(self, i);
        }
    }

    /// Writes optional data (RFC 4506 §4.19): a boolean, followed by the value if there is one.
    pub fn optional<T>(&mut self, value: Option<&T>, item: impl FnOnce(&mut Writer, &T)) {
        self.bool(value.is_some());
        if let Some(v) = value {
            item(self, v);
        }
    }

    fn pad(&mut self, len: usize) {
        let zeros = len.wrapping_neg() & 3;
        self.head.extend_from_slice(&[0; 3][..zeros]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;

    #[test]
    fn the_writer_reuses_its_buffer() {
        let mut buffer = Vec::with_capacity(64);
        let address = buffer.as_ptr();
        for value in 0..3 {
            let mut w = Writer::reusing(buffer);
            w.u32(value);
            buffer = w.into_buffer();
            assert_eq!(buffer[..], value.to_be_bytes());
            assert_eq!(buffer.as_ptr(), address);
        }
        let mut w = Writer::reusing(buffer);
        w.u32(1);
        w.raw(&Bytes::from(vec![7; 2000]));
        w.u32(2);
        let message = w.into_buffer();
        assert_eq!(
            (message.len(), &message[..5], &message[2003..]),
            (2008, &[0, 0, 0, 1, 7][..], &[7, 0, 0, 0, 2][..])
        );
    }

    #[test]
    fn payloads_are_shared_and_padded() {
        let payload = Bytes::from(vec![7u8; 4097]);
        let mut w = Writer::new();
        w.u32(1);
        w.opaque(&payload);
        w.u64(2);
        let message = w.finish();
        assert_eq!(message.len(), 4 + 4 + 4097 + 3 + 8);
        assert!(message.parts().iter().any(|p| p.as_ptr() == payload.as_ptr()), "payload was copied");
        let mut r = Reader::new(message.to_bytes());
        assert_eq!(r.u32(), Ok(1));
        assert_eq!(r.opaque(5000).unwrap(), payload);
        assert_eq!(r.u64(), Ok(2));
        assert_eq!(r.finish(), Ok(()));
    }
}
