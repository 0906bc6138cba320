//! Pool of page-aligned buffers, so that reads of local files need no new allocation.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// Size of one buffer in bytes, and the maximum length of one read or write of a local file.
pub const PIECE: usize = types::limits::PAYLOAD_MAX;
const PAGE: usize = 4096;

/// The pool of the buffers that are free now.
#[derive(Clone, Default)]
pub struct Pool(Arc<Mutex<Vec<Box<[u8]>>>>);

/// A buffer of the pool. It returns to the pool when the last [`Bytes`] made of it is dropped.
pub struct Buffer {
    /// The allocated memory. It is one page longer than [`PIECE`], so that it contains [`PIECE`] page-aligned bytes
    /// whatever its address is.
    memory: Box<[u8]>,
    start: usize,
    len: usize,
    pool: Pool,
}

impl Pool {
    /// Takes a free buffer of [`PIECE`] bytes from the pool, or allocates a new one. A buffer from the pool still has
    /// its old content.
    pub fn take(&self) -> Buffer {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let memory = free.unwrap_or_else(|| vec![0; PIECE + PAGE].into_boxed_slice());
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
        Buffer { memory, start, len: PIECE, pool: self.clone() }
    }
}

impl Buffer {
    /// Returns all [`PIECE`] bytes of the buffer, for the caller to fill.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + PIECE]
    }

    /// Returns the first `len` bytes of the buffer as shared bytes, without a copy; `len` is at most [`PIECE`].
    pub fn filled(mut self, len: usize) -> Bytes {
        self.len = len.min(PIECE);
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        self.pool.0.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_reused() {
        let pool = Pool::default();
        let mut buffer = pool.take();
        buffer.space()[..3].copy_from_slice(b"abc");
        assert_eq!(buffer.space().as_ptr().align_offset(PAGE), 0);
        let address = buffer.space().as_ptr();
        let bytes = buffer.filled(3);
        let clone = bytes.clone();
        drop(bytes);
        assert_eq!(&clone[..], b"abc");
        assert!(pool.0.lock().unwrap().is_empty());
        drop(clone);
        assert_eq!(pool.0.lock().unwrap().len(), 1);
        assert_eq!(pool.take().space().as_ptr(), address);
    }
}
