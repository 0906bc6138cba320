//! A supervisor for background tasks, which restarts a task after a panic, so that the daemon continues to work.

use crate::Counters;
use futures_util::FutureExt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

/// Pause before a restart, so that a task which always panics does not use a whole CPU.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the task `work` until it completes. If `work` panics, counts and logs the panic, waits one second, and starts
/// `work` again.
pub async fn supervise<F: Future<Output = ()>>(what: &str, counters: Counters, mut work: impl FnMut() -> F) {
    while AssertUnwindSafe(async { work().await }).catch_unwind().await.is_err() {
        counters.panicked();
        tracing::error!(task = what, "a background task panicked: starting it again");
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_started_again_and_counted() {
        let (counters, begun) = (Counters::default(), Arc::new(AtomicU64::new(0)));
        supervise("the test", counters.clone(), || {
            let begun = begun.clone();
            async move {
                let times = begun.fetch_add(1, Relaxed);
                tokio::task::yield_now().await;
                assert!(times >= 3, "as the test wants it");
            }
        })
        .await;
        assert_eq!((begun.load(Relaxed), counters.traffic().panics), (4, 3));
    }
}
