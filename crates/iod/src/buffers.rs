//! Payload buffers: page-aligned, of one size, borrowed only while a request is in hand.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use types::limits::PAYLOAD_MAX;

use crate::lock::lock;

const PAGE: usize = 4096;
/// A payload and its XDR padding.
pub(crate) const BUFFER_LEN: usize = PAYLOAD_MAX + PAGE;
/// Buffers kept for later; more are made under load and freed after it.
const KEPT: usize = 64;

/// Lends buffers and takes them back.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Vec<Memory>>>);

impl Pool {
    /// A buffer of [`BUFFER_LEN`] bytes with arbitrary content.
    pub(crate) fn borrow(&self) -> Buffer {
        let memory = lock(&self.0).pop().unwrap_or_else(Memory::new);
        Buffer { memory: Some(memory), pool: self.clone() }
    }
}

/// Memory that begins on a page boundary somewhere inside a larger allocation.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
}

impl Memory {
    fn new() -> Self {
        let bytes = vec![0; BUFFER_LEN + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        Memory { bytes, start }
    }
}

/// A borrowed buffer; goes back to its pool when dropped.
pub(crate) struct Buffer {
    memory: Option<Memory>,
    pool: Pool,
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |m| &m.bytes[m.start..m.start + BUFFER_LEN])
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |m| &mut m.bytes[m.start..m.start + BUFFER_LEN])
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let mut free = lock(&self.pool.0);
            if free.len() < KEPT {
                free.push(memory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_come_back() {
        let pool = Pool::default();
        let mut first = pool.borrow();
        first[0] = 7;
        assert_eq!(first.len(), BUFFER_LEN);
        assert_eq!(first.as_ptr() as usize % PAGE, 0);
        let address = first.as_ptr();
        drop(first);
        let again = pool.borrow();
        assert_eq!(again.as_ptr(), address);
        let other = pool.borrow();
        assert_ne!(other.as_ptr(), address);
        assert_eq!(other.as_ptr() as usize % PAGE, 0);
    }
}
