//! Buffers for the bytes of requests, used again when nobody refers to them any more.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// Messages shorter than this are copied to a place of their own length, longer ones keep a buffer.
const COPIED: usize = 32 << 10;
/// Buffers that are kept for further requests.
const SPARE: usize = 32;

/// Buffers of one size.
pub(crate) struct Buffers {
    size: usize,
    spare: Mutex<Vec<Vec<u8>>>,
}

/// A buffer that goes back when nobody refers to its bytes any more.
struct Lent {
    buffer: Vec<u8>,
    home: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
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

    /// An empty buffer with room.
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

    /// What is in a buffer, without copying it where that is much; the buffer is another one then. It is empty afterwards.
    pub(crate) fn keep(self: &Arc<Self>, buffer: &mut Vec<u8>) -> Bytes {
        if buffer.len() < COPIED {
            let bytes = Bytes::copy_from_slice(buffer);
            buffer.clear();
            return bytes;
        }
        let full = std::mem::replace(buffer, self.take());
        Bytes::from_owner(Lent { buffer: full, home: self.clone() })
    }

    /// A copy of bytes, at most as many as a buffer has.
    pub(crate) fn copy(self: &Arc<Self>, bytes: &[u8]) -> Bytes {
        if bytes.len() < COPIED {
            return Bytes::copy_from_slice(bytes);
        }
        let mut buffer = self.take();
        buffer.extend_from_slice(bytes);
        Bytes::from_owner(Lent { buffer, home: self.clone() })
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
        buffer.extend_from_slice(&[7; 10]);
        assert_eq!(buffers.keep(&mut buffer), [7; 10][..]);
        assert!(
            buffer.is_empty() && buffers.spare.lock().unwrap().is_empty(),
            "few bytes leave the buffer where it is"
        );
    }
}
