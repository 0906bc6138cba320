//! Buffers for the bytes of requests, used again when nobody refers to them any more.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// Messages shorter than this are copied to a place of their own length, longer ones keep a buffer.
const COPIED: usize = 32 << 10;
/// Buffers that are kept for further requests.
const SPARE: usize = 16;

/// Buffers of one size.
pub(crate) struct Buffers {
    size: usize,
    spare: Mutex<Vec<Vec<u8>>>,
}

/// A buffer that goes back when nobody refers to its bytes any more.
struct Lent {
    buffer: Vec<u8>,
    len: usize,
    home: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.put(std::mem::take(&mut self.buffer));
    }
}

impl Buffers {
    /// None yet, of so many bytes each.
    pub(crate) fn new(size: usize) -> Arc<Self> {
        Arc::new(Buffers { size, spare: Mutex::default() })
    }

    /// A buffer, with anything in it.
    pub(crate) fn take(&self) -> Vec<u8> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| vec![0; self.size])
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE {
            spare.push(buffer);
        }
    }

    /// The first bytes of a buffer, without copying them where they are many; the buffer is another one then.
    pub(crate) fn keep(self: &Arc<Self>, buffer: &mut Vec<u8>, len: usize) -> Bytes {
        if len < COPIED {
            return Bytes::copy_from_slice(&buffer[..len]);
        }
        let full = std::mem::replace(buffer, self.take());
        Bytes::from_owner(Lent { buffer: full, len, home: self.clone() })
    }

    /// A copy of bytes, at most as many as a buffer has.
    pub(crate) fn copy(self: &Arc<Self>, bytes: &[u8]) -> Bytes {
        if bytes.len() < COPIED {
            return Bytes::copy_from_slice(bytes);
        }
        let mut buffer = self.take();
        buffer[..bytes.len()].copy_from_slice(bytes);
        Bytes::from_owner(Lent { buffer, len: bytes.len(), home: self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_its_bytes_are_dropped() {
        let buffers = Buffers::new(COPIED);
        let bytes = buffers.copy(&[7; COPIED]);
        let part = bytes.slice(5..6);
        drop(bytes);
        assert_eq!((part[0], buffers.spare.lock().unwrap().len()), (7, 0));
        drop(part);
        assert_eq!(buffers.spare.lock().unwrap().len(), 1);
        let mut buffer = buffers.take();
        assert_eq!(buffers.keep(&mut buffer, 10), [7; 10][..]);
        assert!(buffers.spare.lock().unwrap().is_empty(), "few bytes leave the buffer where it is");
    }
}
