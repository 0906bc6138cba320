//! Measurement of the queue delay, which is how long requests wait before the mgr executes them. The mgr sends the
//! delay to clients in its replies.

use super::Volume;
use crate::queue::Queue;
use net::task;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Ignores a poisoned lock: a panic cannot leave the averages half updated.
fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Volume {
    /// Records how long a request has waited. The request arrived at the time `arrived`, and the mgr executes the
    /// request now.
    pub(crate) fn waited(&self, arrived: Instant) {
        let (begun, now) = (self.begun, Instant::now());
        let due = locked(&self.queue).waited(now - begun, now - arrived);
        if due {
            // A probe task waits behind all runnable tasks. The tasks that read requests do the same, so both kinds of
            // tasks wait equally long.
            let queue = self.queue.clone();
            task::spawn(async move {
                tokio::task::yield_now().await;
                let then = Instant::now();
                locked(&queue).looked(then - begun, then - now);
            });
        }
    }

    /// Returns the queue delay: how long requests wait now.
    pub(crate) fn queue_delay(&self) -> Duration {
        locked(&self.queue).delay(self.begun.elapsed())
    }
}
