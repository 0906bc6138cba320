//! A pool of receive buffers, so that the process does not page-fault on fresh memory for each large record.

use bytes::Bytes;
use std::sync::Mutex;

/// The capacity in bytes of each class of buffers, and the number of idle buffers that the pool keeps of the class.
///
/// The capacities are the common payload sizes (64 KiB, 256 KiB, 1 MiB) plus space for headers.
const CLASSES: [(usize, usize); 3] = [(72 << 10, 64), (264 << 10, 64), (types::limits::RECORD_MAX, 48)];

static IDLE: [Mutex<Vec<Vec<u8>>>; CLASSES.len()] = [const { Mutex::new(Vec::new()) }; CLASSES.len()];

/// A buffer for one record. It starts empty and is not filled with zeros.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    data: Vec<u8>,
}

impl Buffer {
    /// Returns an empty buffer with a capacity of at least `len` bytes.
    pub(crate) fn with_room(len: usize) -> Self {
        let class = CLASSES.iter().position(|(capacity, _)| len <= *capacity);
        let idle = class.and_then(|c| IDLE[c].lock().ok()?.pop());
        let capacity = class.map_or(len, |c| CLASSES[c].0);
        Buffer { data: idle.unwrap_or_else(|| Vec::with_capacity(capacity)) }
    }

    /// Returns a mutable reference to the content of the buffer, so that the caller can append bytes.
    pub(crate) fn data(&mut self) -> &mut Vec<u8> {
        &mut self.data
    }

    /// Returns the content as a shared slice. The memory returns to the pool when the last slice of the buffer is
    /// dropped.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(class) = CLASSES.iter().position(|(capacity, _)| self.data.capacity() == *capacity) else { return };
        let mut data = std::mem::take(&mut self.data);
        data.clear();
        if let Ok(mut idle) = IDLE[class].lock()
            && idle.len() < CLASSES[class].1
        {
            idle.push(data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_returns_when_the_last_slice_is_dropped() {
        // No other test in this process uses buffers of 264 KiB, so the pool has no idle buffer of this size.
        let (room, _) = CLASSES[1];
        let mut buffer = Buffer::with_room(room - 1);
        let start = buffer.data().as_ptr();
        buffer.data().extend_from_slice(b"payload");
        let all = buffer.freeze();
        assert_eq!(all.as_ptr(), start, "freezing copied");
        let slice = all.slice(3..);
        drop(all);
        assert_ne!(Buffer::with_room(room).data().as_ptr(), start, "memory in use was given away");
        assert_eq!(slice, "load");
        drop(slice);
        let taken: Vec<_> = (0..2).map(|_| Buffer::with_room(room)).collect();
        assert!(taken.iter().any(|b| b.as_ref().as_ptr() == start), "memory was not used again");
        assert!(taken.iter().all(|b| b.as_ref().is_empty()));
    }

    #[test]
    fn buffers_of_unusual_sizes_are_freed() {
        let mut huge = Buffer::with_room(types::limits::RECORD_MAX + 1);
        assert!(huge.data().capacity() > types::limits::RECORD_MAX);
        assert!(Buffer::with_room(0).data().capacity() >= CLASSES[0].0);
    }
}
