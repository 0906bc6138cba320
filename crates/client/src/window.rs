//! The window: how many written bytes a mount may hold that are not yet durable.

use tokio::sync::Semaphore;

/// Room for bytes; writers wait when there is none.
#[derive(Debug)]
pub(crate) struct Window {
    room: Semaphore,
    size: usize,
}

impl Window {
    /// Room for `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        Window { room: Semaphore::new(size), size }
    }

    /// Bytes that fit in all.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Takes room for `bytes` if it is there.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        let permits = u32::try_from(bytes).ok().and_then(|n| self.room.try_acquire_many(n).ok());
        permits.map(|p| p.forget()).is_some()
    }

    /// Waits for room for `bytes`, which must be at most a payload.
    pub(crate) async fn take(&self, bytes: usize) {
        let wanted = u32::try_from(bytes.min(self.size)).unwrap_or(u32::MAX);
        // The semaphore is never closed, so that waiting cannot fail.
        if let Ok(permits) = self.room.acquire_many(wanted).await {
            permits.forget();
        }
    }

    /// Gives back room.
    pub(crate) fn release(&self, bytes: u64) {
        self.room.add_permits(bytes as usize);
    }
}
