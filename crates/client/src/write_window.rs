//! The write window: limits the number of written bytes of a mount that are not durable yet.

use tokio::sync::Semaphore;

/// The free space of the write window. Writers wait until enough space is free.
#[derive(Debug)]
pub(crate) struct WriteWindow {
    room: Semaphore,
    size: usize,
}

impl WriteWindow {
    /// Creates an empty write window of `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        WriteWindow { room: Semaphore::new(size), size }
    }

    /// Returns the size of the write window in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Reserves space for `bytes`, if the write window has enough free space. Returns whether the space is reserved.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        let permits = u32::try_from(bytes).ok().and_then(|n| self.room.try_acquire_many(n).ok());
        permits.map(|p| p.forget()).is_some()
    }

    /// Waits until the write window has free space for `bytes` (at most one payload), and reserves the space.
    pub(crate) async fn take(&self, bytes: usize) {
        let wanted = u32::try_from(bytes.min(self.size)).unwrap_or(u32::MAX);
        // `acquire_many` fails only if the semaphore is closed, and the write window never closes its semaphore.
        if let Ok(permits) = self.room.acquire_many(wanted).await {
            permits.forget();
        }
    }

    /// Frees the space that a writer reserved for `bytes`.
    pub(crate) fn release(&self, bytes: u64) {
        self.room.add_permits(bytes as usize);
    }
}
