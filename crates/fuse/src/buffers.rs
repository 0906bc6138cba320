//! A pool of buffers for the bytes of requests. A buffer returns to the pool when no [`Bytes`] refers to it.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// Messages shorter than this many bytes are copied to their own allocation. Longer messages keep their pool buffer.
const COPIED: usize = 32 << 10;
/// Largest number of free buffers that the pool keeps.
const SPARE: usize = 32;

/// A pool of buffers of one size.
pub(crate) struct Buffers {
    size: usize,
    spare: Mutex<Vec<Vec<u8>>>,
}

/// A buffer whose memory returns to the pool when the last [`Bytes`] that refers to it is dropped.
struct PooledBuffer {
    buffer: Vec<u8>,
    pool: Arc<Buffers>,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.buffer));
    }
}

impl Buffers {
    /// Creates an empty pool of buffers of `size` bytes.
    pub(crate) fn new(size: usize) -> Arc<Self> {
        Arc::new(Buffers { size, spare: Mutex::default() })
    }

    /// Returns an empty buffer from the pool, or a newly allocated buffer.
    pub(crate) fn take(&self) -> Vec<u8> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Vec::with_capacity(self.size))
    }

    fn put(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE {
            spare.push(buffer);
        }
    }

    /// Returns the bytes of `buffer`, and leaves `buffer` empty. Copies content shorter than `COPIED`. For longer
    /// content, the result keeps the memory, and `buffer` gets another buffer from the pool.
    pub(crate) fn keep(self: &Arc<Self>, buffer: &mut Vec<u8>) -> Bytes {
        if buffer.len() < COPIED {
            let bytes = Bytes::copy_from_slice(buffer);
            buffer.clear();
            return bytes;
        }
        let full = std::mem::replace(buffer, self.take());
        Bytes::from_owner(PooledBuffer { buffer: full, pool: self.clone() })
    }

    /// Returns a copy of `bytes`, which must not be longer than a buffer of the pool.
    pub(crate) fn copy(self: &Arc<Self>, bytes: &[u8]) -> Bytes {
        if bytes.len() < COPIED {
            return Bytes::copy_from_slice(bytes);
        }
        let mut buffer = self.take();
        buffer.extend_from_slice(bytes);
        Bytes::from_owner(PooledBuffer { buffer, pool: self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_returns_to_the_pool_when_its_bytes_are_dropped() {
        let buffers = Buffers::new(COPIED);
        let bytes = buffers.copy(&[7; COPIED]);
        let part = bytes.slice(5..6);
        drop(bytes);
        assert_eq!((part[0], buffers.spare.lock().unwrap().len()), (7, 0));
        drop(part);
        assert_eq!(buffers.spare.lock().unwrap().len(), 1);
        let mut buffer = buffers.take();
        buffer.extend_from_slice(&[7; 10]);
        assert_eq!(buffers.keep(&mut buffer), [7; 10][..]);
        assert!(
            buffer.is_empty() && buffers.spare.lock().unwrap().is_empty(),
            "few bytes leave the buffer where it is"
        );
    }
}
