//! A pool of read buffers, so that large reads reuse memory instead of faulting in new pages.

use bytes::Bytes;
use std::sync::{Mutex, PoisonError};

/// Buffers of at most this many bytes are not pooled.
const SHORT: usize = 16 << 10;
/// The lengths of pooled buffers in bytes, and the maximum number of idle buffers of each length.
const CLASSES: [(usize, usize); 3] = [(64 << 10, 32), (256 << 10, 16), (types::limits::PAYLOAD_MAX, 16)];

static IDLE: [Mutex<Vec<Vec<u8>>>; CLASSES.len()] = [const { Mutex::new(Vec::new()) }; CLASSES.len()];

/// A buffer for a read. Its contents are undefined until the read fills it.
pub(super) struct Buffer {
    data: Vec<u8>,
    len: usize,
}

impl Buffer {
    /// Creates a buffer of `len` bytes, from the pool if possible.
    pub(super) fn new(len: usize) -> Self {
        let class = CLASSES.iter().position(|(whole, _)| len > SHORT && len <= *whole);
        let idle = class.and_then(|class| IDLE[class].lock().unwrap_or_else(PoisonError::into_inner).pop());
        let data = idle.unwrap_or_else(|| vec![0; class.map_or(len, |class| CLASSES[class].0)]);
        Buffer { data, len }
    }

    /// Returns the bytes of the buffer to fill.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.data[..self.len]
    }

    /// Converts the buffer into [`Bytes`] without copying. The memory returns to the pool when the last reference to
    /// the bytes is dropped.
    pub(super) fn freeze(mut self) -> Bytes {
        // The pool accepts no short buffers, so `Bytes` can own the memory of a short buffer directly.
        if self.len == self.data.len() && self.len <= SHORT {
            return Bytes::from(std::mem::take(&mut self.data));
        }
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(class) = CLASSES.iter().position(|(whole, _)| self.data.len() == *whole) else { return };
        let mut idle = IDLE[class].lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < CLASSES[class].1 {
            idle.push(std::mem::take(&mut self.data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_the_requested_length_and_is_used_again() {
        for len in
            [0, 1, 4096, SHORT, SHORT + 1, 64 << 10, (64 << 10) + 1, 256 << 10, (256 << 10) + 1, 1 << 20, (1 << 20) + 1]
        {
            let mut buffer = Buffer::new(len);
            assert_eq!(buffer.bytes().len(), len);
            buffer.bytes().fill(7);
            assert_eq!(buffer.freeze(), vec![7; len]);
        }
        // Use a buffer length that no other test in this process uses, because all tests share one pool.
        let first = Buffer::new(100 << 10);
        let at = first.as_ref().as_ptr();
        let (bytes, part) = (first.freeze(), ..5);
        let part = bytes.slice(part);
        drop(bytes);
        assert_ne!(Buffer::new(100 << 10).as_ref().as_ptr(), at, "a buffer in use was handed out again");
        drop(part);
        let again: Vec<Buffer> = (0..CLASSES[1].1).map(|_| Buffer::new(200 << 10)).collect();
        assert!(again.iter().any(|buffer| buffer.as_ref().as_ptr() == at), "memory was not used again");
    }
}
