//! Group commit of the embedded store: the writer's thread commits batches, or the submitting caller does, if the
//! writer is free and flushes are fast.
//!
//! A batch that arrives alone would wake the writer's thread, which would wake the thread that waits for the answer.
//! These are two context switches for a flush that the caller waits for anyway. So the caller takes the writer and
//! commits the batch itself. A caller that finds the writer taken leaves its batch in the queue and calls the thread,
//! which takes all queued batches together. Only the thread does the flushes of a slow disk. Only the thread moves
//! changes into the table, when that is due and when the log is nearly full. If the disk is nearly full, a caller may
//! move changes too.

use super::writer::Writer;
use crate::engine::{Job, Queue};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// Windows that take longer than this are left to the thread: a caller may have other work meanwhile.
const QUICK: Duration = Duration::from_millis(1);

/// Moving average of the duration of windows, in microseconds.
#[derive(Debug, Default)]
struct Pace(AtomicU32);

impl Pace {
    fn took(&self, window: Duration) {
        let micros = u32::try_from(window.as_micros()).unwrap_or(u32::MAX);
        let before = self.0.load(Relaxed);
        // No two threads update this at once: the one that measures holds the writer. With a weight of one eighth, a
        // single flush of eight milliseconds leaves the work to the thread. A few fast flushes make up for it.
        self.0.store(before - before / 8 + micros / 8, Relaxed);
    }

    fn is_quick(&self) -> bool {
        u128::from(self.0.load(Relaxed)) < QUICK.as_micros()
    }
}

/// The writer behind a lock, with the queue of its batches.
#[derive(Debug)]
pub(super) struct GroupCommit {
    writer: Mutex<Writer>,
    queue: Arc<Queue>,
    pace: Pace,
    start: Instant,
}

impl GroupCommit {
    pub(super) fn new(writer: Writer) -> Arc<Self> {
        let queue = writer.shared().queue.clone();
        Arc::new(GroupCommit { writer: Mutex::new(writer), queue, pace: Pace::default(), start: Instant::now() })
    }

    /// Runs the writer's thread: works when it is called or something is due, until the queue is closed and empty.
    pub(super) fn run(&self) {
        let _end = Abandon(&self.queue);
        loop {
            let Ok(writer) = self.writer.lock() else { return };
            let due = writer.due();
            drop(writer);
            self.queue.called(due.map(|due| due.saturating_sub(self.start.elapsed())));
            let Ok(mut writer) = self.writer.lock() else { return };
            // The thread takes the jobs while it holds the writer; otherwise a caller that holds the writer could be
            // overtaken.
            let Some(jobs) = self.queue.take() else { return writer.close() };
            self.work(&mut writer, jobs, self.start.elapsed());
            writer.relieve();
            drop(writer);
            if !self.queue.is_empty() {
                self.queue.call();
            }
        }
    }

    /// Commits and answers these batches. Without batches, makes the checkpoint if it is due at the time `begun`.
    fn work(&self, writer: &mut Writer, jobs: Vec<Job>, begun: Duration) {
        if jobs.is_empty() || writer.is_due(begun) {
            writer.step(jobs, begun);
        } else {
            writer.window(jobs, begun);
            self.pace.took(self.start.elapsed() - begun);
        }
    }

    /// Makes sure that the batch that the caller has just queued is taken from the queue.
    pub(super) fn look(&self) {
        if !self.pace.is_quick() || !self.lead() {
            self.queue.call();
        }
    }

    /// Commits a window; returns whether no work is left for the thread.
    fn lead(&self) -> bool {
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::WouldBlock) => return false,
            // The last holder of the writer has panicked.
            Err(TryLockError::Poisoned(_)) => {
                self.queue.abandon();
                return true;
            }
        };
        let begun = self.start.elapsed();
        if writer.is_due(begun) || writer.is_nearly_full() {
            // A window moves the whole memtable into the table soon. Only the thread does this.
            return false;
        }
        let Some(jobs) = self.queue.take() else { return false };
        let was_due = writer.due();
        self.work(&mut writer, jobs, begun);
        // The thread must know when it is next due, or that there is work now.
        let is_known = writer.due() == was_due && !writer.is_laden();
        drop(writer);
        is_known && self.queue.is_empty()
    }
}

/// Abandons the queue when the writer's thread ends, so that no caller waits for it.
struct Abandon<'a>(&'a Queue);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_flushes_move_to_the_thread_until_flushes_are_fast() {
        let pace = Pace::default();
        (0..100).for_each(|_| pace.took(Duration::from_micros(400)));
        assert!(pace.is_quick());
        pace.took(Duration::from_millis(10));
        assert!(!pace.is_quick());
        let quick = (0..).find(|_| {
            pace.took(Duration::from_micros(200));
            pace.is_quick()
        });
        assert!(quick.is_some_and(|windows| windows < 10), "{quick:?}");
        // A slow disk stays with the thread.
        (0..100).for_each(|_| pace.took(Duration::from_millis(2)));
        assert!(!pace.is_quick());
        pace.took(Duration::MAX);
        assert!(!pace.is_quick());
    }
}
