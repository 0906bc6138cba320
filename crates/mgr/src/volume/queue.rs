//! Measurement of the mgr's queue delay, which the mgr reports in its replies.

use super::Volume;
use crate::queue::Queue;
use net::task;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Ignores lock poisoning: a panic cannot leave the averages half updated.
fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Volume {
    /// Records the wait of a request that arrived at the time `arrived` and that the mgr executes now.
    pub(crate) fn waited(&self, arrived: Instant) {
        let (begun, now) = (self.begun, Instant::now());
        let due = locked(&self.queue).waited(now - begun, now - arrived);
        if due {
            // A probe task waits behind all runnable tasks, as do the tasks that read requests.
            let queue = self.queue.clone();
            task::spawn(async move {
                tokio::task::yield_now().await;
                let then = Instant::now();
                locked(&queue).looked(then - begun, then - now);
            });
        }
    }

    /// Returns how long requests wait now.
    pub(crate) fn queue_delay(&self) -> Duration {
        locked(&self.queue).delay(self.begun.elapsed())
    }
}
