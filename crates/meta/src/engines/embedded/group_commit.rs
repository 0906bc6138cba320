//! Group commit of the embedded store. Either the writer's thread commits a batch, or the thread that submits the batch
//! does so, if the writer is free and flushes are fast.
//!
//! A single batch would wake the writer's thread, which would then wake the submitting thread. This costs two context
//! switches for a flush that the submitting thread waits for anyway. So the submitting thread locks the writer and
//! commits the batch itself. If another thread holds the lock of the writer, the submitting thread leaves the batch in
//! the queue and wakes the writer's thread, which commits all queued batches together.
//!
//! On a slow disk only the writer's thread flushes. Checkpoints (moving changes from the log to the database) also
//! belong to the writer's thread. Only on a nearly full disk may a submitting thread make a checkpoint too.

use super::writer::Writer;
use crate::engine::{Job, Queue};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// If the commit of a commit group takes longer than this on average, only the writer's thread commits. The threads
/// that submit batches can then do other work during the flush.
const QUICK: Duration = Duration::from_millis(1);

/// Moving average of the time that the commit of a commit group takes, in microseconds.
#[derive(Debug, Default)]
struct CommitTime(AtomicU32);

impl CommitTime {
    fn took(&self, commit: Duration) {
        let micros = u32::try_from(commit.as_micros()).unwrap_or(u32::MAX);
        let before = self.0.load(Relaxed);
        // Only the thread that holds the lock of the writer updates this average commit time. A sample has a weight of
        // one eighth. So a single commit of eight milliseconds raises the average to the limit of one millisecond
        // (`QUICK`), and only the writer's thread commits. After some fast commits, threads that submit batches commit
        // again.
        self.0.store(before - before / 8 + micros / 8, Relaxed);
    }

    fn is_quick(&self) -> bool {
        u128::from(self.0.load(Relaxed)) < QUICK.as_micros()
    }
}

/// The writer of the store behind a mutex, with the queue of batches that wait for the writer.
#[derive(Debug)]
pub(super) struct GroupCommit {
    writer: Mutex<Writer>,
    queue: Arc<Queue>,
    pace: CommitTime,
    start: Instant,
}

impl GroupCommit {
    pub(super) fn new(writer: Writer) -> Arc<Self> {
        let queue = writer.shared().queue.clone();
        Arc::new(GroupCommit { writer: Mutex::new(writer), queue, pace: CommitTime::default(), start: Instant::now() })
    }

    /// The main loop of the writer's thread. The thread works when another thread wakes it or a checkpoint is due, and
    /// ends when the queue of batches is closed and empty.
    pub(super) fn run(&self) {
        let _end = CloseOnDrop(&self.queue);
        loop {
            let Ok(writer) = self.writer.lock() else { return };
            let due = writer.due();
            drop(writer);
            self.queue.called(due.map(|due| due.saturating_sub(self.start.elapsed())));
            let Ok(mut writer) = self.writer.lock() else { return };
            // Remove jobs from the queue only while holding the lock of the writer. Otherwise another thread that holds
            // the lock could commit later batches before these jobs.
            let Some(jobs) = self.queue.take() else { return writer.close() };
            self.work(&mut writer, jobs, self.start.elapsed());
            writer.relieve();
            drop(writer);
            if !self.queue.is_empty() {
                self.queue.call();
            }
        }
    }

    /// Commits the batches of `jobs` and sends their outcomes. If `jobs` is empty, makes a checkpoint if one is due at
    /// the time `begun`.
    fn work(&self, writer: &mut Writer, jobs: Vec<Job>, begun: Duration) {
        if jobs.is_empty() || writer.is_due(begun) {
            writer.step(jobs, begun);
        } else {
            writer.commit_group(jobs, begun);
            self.pace.took(self.start.elapsed() - begun);
        }
    }

    /// Ensures that some thread commits the batch that the calling thread has just queued.
    pub(super) fn look(&self) {
        if !self.pace.is_quick() || !self.lead() {
            self.queue.call();
        }
    }

    /// Tries to commit the queued batches on the calling thread. Returns false if the caller must wake the writer's
    /// thread.
    fn lead(&self) -> bool {
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::WouldBlock) => return false,
            // Another thread panicked while it held the lock of the writer, so no thread will commit the queued
            // batches.
            Err(TryLockError::Poisoned(_)) => {
                self.queue.abandon();
                return true;
            }
        };
        let begun = self.start.elapsed();
        if writer.is_due(begun) || writer.is_nearly_full() {
            // The next commit will make a checkpoint, which takes long, so leave this commit to the writer's thread.
            return false;
        }
        let Some(jobs) = self.queue.take() else { return false };
        let was_due = writer.due();
        self.work(&mut writer, jobs, begun);
        // Wake the writer's thread if the time of its next checkpoint has changed, or if the memtable has become large.
        let is_known = writer.due() == was_due && !writer.is_laden();
        drop(writer);
        is_known && self.queue.is_empty()
    }
}

/// A guard that closes the queue and drops its jobs when the writer's thread ends, so that no thread that submitted a
/// batch waits forever.
struct CloseOnDrop<'a>(&'a Queue);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_flushes_move_to_the_thread_until_flushes_are_fast() {
        let pace = CommitTime::default();
        (0..100).for_each(|_| pace.took(Duration::from_micros(400)));
        assert!(pace.is_quick());
        pace.took(Duration::from_millis(10));
        assert!(!pace.is_quick());
        let quick = (0..).find(|_| {
            pace.took(Duration::from_micros(200));
            pace.is_quick()
        });
        assert!(quick.is_some_and(|groups| groups < 10), "{quick:?}");
        // The simulated flush was slow, so from now on only the writer's thread may commit batches.
        (0..100).for_each(|_| pace.took(Duration::from_millis(2)));
        assert!(!pace.is_quick());
        pace.took(Duration::MAX);
        assert!(!pace.is_quick());
    }
}
