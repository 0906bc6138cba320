//! How long requests wait at this mgr: measured as they come, told in its answers.

use super::Room;
use crate::queue::Queue;
use net::task;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Waits cannot leave it half changed.
fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Room {
    /// A request that was read then is about to be worked on.
    pub(crate) fn waited(&self, arrived: Instant) {
        let (begun, now) = (self.begun, Instant::now());
        let due = locked(&self.queue).waited(now - begun, now - arrived);
        if due {
            // Behind all who want to be worked on by now, as is whoever reads requests.
            let queue = self.queue.clone();
            task::spawn(async move {
                tokio::task::yield_now().await;
                let then = Instant::now();
                locked(&queue).looked(then - begun, then - now);
            });
        }
    }

    /// How long requests wait at present.
    pub(crate) fn queue_delay(&self) -> Duration {
        locked(&self.queue).delay(self.begun.elapsed())
    }
}
