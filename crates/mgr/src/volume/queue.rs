//! The measurement of this mgr's queue delay, which its answers report.

use super::Volume;
use crate::queue::Queue;
use net::task;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A panic cannot leave the averages half changed, so a poisoned lock is used.
fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Volume {
    /// Records that a request that arrived at this time is about to be executed.
    pub(crate) fn waited(&self, arrived: Instant) {
        let (begun, now) = (self.begun, Instant::now());
        let due = locked(&self.queue).waited(now - begun, now - arrived);
        if due {
            // The probe task waits behind all runnable tasks, as the tasks that read requests do.
            let queue = self.queue.clone();
            task::spawn(async move {
                tokio::task::yield_now().await;
                let then = Instant::now();
                locked(&queue).looked(then - begun, then - now);
            });
        }
    }

    /// Returns how long requests wait at present.
    pub(crate) fn queue_delay(&self) -> Duration {
        locked(&self.queue).delay(self.begun.elapsed())
    }
}
