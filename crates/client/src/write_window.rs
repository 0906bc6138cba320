//! The write window: how many written bytes a mount may hold that are not durable yet.

use tokio::sync::Semaphore;

/// Free space for bytes; writers wait when there is none.
#[derive(Debug)]
pub(crate) struct WriteWindow {
    room: Semaphore,
    size: usize,
}

impl WriteWindow {
    /// Creates a window of `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        WriteWindow { room: Semaphore::new(size), size }
    }

    /// Returns the size of the window in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Takes space for `bytes` if it is free.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        let permits = u32::try_from(bytes).ok().and_then(|n| self.room.try_acquire_many(n).ok());
        permits.map(|p| p.forget()).is_some()
    }

    /// Waits for space for `bytes`, which must be at most one payload.
    pub(crate) async fn take(&self, bytes: usize) {
        let wanted = u32::try_from(bytes.min(self.size)).unwrap_or(u32::MAX);
        // The semaphore is never closed, so waiting cannot fail.
        if let Ok(permits) = self.room.acquire_many(wanted).await {
            permits.forget();
        }
    }

    /// Returns space to the window.
    pub(crate) fn release(&self, bytes: u64) {
        self.room.add_permits(bytes as usize);
    }
}
