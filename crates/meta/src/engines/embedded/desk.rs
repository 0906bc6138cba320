//! The writer's desk: its thread works there, or whoever hands over a batch, as long as that is quick and nobody is at it.
//!
//! A batch that comes alone would wake the thread, and the thread whoever waits for the answer: two switches for a flush that
//! its caller waits for anyway. So the caller sits down itself. Whoever finds the desk taken leaves the batch and calls the thread,
//! which takes all that were left together. The thread's alone are the flushes of a slow disk, and what brings changes into the
//! table: when that is due, and when the log is nearly full. Only where the disk itself is nearly full a caller may do that too.

use super::writer::Writer;
use crate::engine::{Job, Queue};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// Windows that take longer than this are the thread's: a caller may have others to serve meanwhile.
const QUICK: Duration = Duration::from_millis(1);

/// How long windows take: a moving average, in microseconds.
#[derive(Debug, Default)]
struct Pace(AtomicU32);

impl Pace {
    fn took(&self, window: Duration) {
        let micros = u32::try_from(window.as_micros()).unwrap_or(u32::MAX);
        let before = self.0.load(Relaxed);
        // Two at once cannot be: whoever measures holds the desk. An eighth of the new one is enough that a single flush of
        // eight milliseconds calls the thread, and a few quick ones make up for it.
        self.0.store(before - before / 8 + micros / 8, Relaxed);
    }

    fn is_quick(&self) -> bool {
        u128::from(self.0.load(Relaxed)) < QUICK.as_micros()
    }
}

/// The place of the writer.
#[derive(Debug)]
pub(super) struct Desk {
    writer: Mutex<Writer>,
    queue: Arc<Queue>,
    pace: Pace,
    start: Instant,
}

impl Desk {
    pub(super) fn new(writer: Writer) -> Arc<Self> {
        let queue = writer.shared().queue.clone();
        Arc::new(Desk { writer: Mutex::new(writer), queue, pace: Pace::default(), start: Instant::now() })
    }

    /// The thread: works whenever it is called or something is due, until the queue is closed and empty.
    pub(super) fn run(&self) {
        let _end = Abandon(&self.queue);
        loop {
            let Ok(writer) = self.writer.lock() else { return };
            let due = writer.due();
            drop(writer);
            self.queue.called(due.map(|due| due.saturating_sub(self.start.elapsed())));
            let Ok(mut writer) = self.writer.lock() else { return };
            // Taken at the desk, or a caller who sits there could be overtaken.
            let Some(jobs) = self.queue.take() else { return writer.close() };
            self.work(&mut writer, jobs, self.start.elapsed());
            writer.relieve();
            drop(writer);
            if !self.queue.is_empty() {
                self.queue.call();
            }
        }
    }

    /// Answers these batches, or does what is due by the time that it begins.
    fn work(&self, writer: &mut Writer, jobs: Vec<Job>, begun: Duration) {
        if jobs.is_empty() || writer.is_due(begun) {
            writer.step(jobs, begun);
        } else {
            writer.window(jobs, begun);
            self.pace.took(self.start.elapsed() - begun);
        }
    }

    /// Sees to it that what the caller has just put into the queue is taken from there.
    pub(super) fn look(&self) {
        if !self.pace.is_quick() || !self.lead() {
            self.queue.call();
        }
    }

    /// Works on a window; whether all that is to be done now is done.
    fn lead(&self) -> bool {
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::WouldBlock) => return false,
            // Whoever sat there has panicked.
            Err(TryLockError::Poisoned(_)) => {
                self.queue.abandon();
                return true;
            }
        };
        let begun = self.start.elapsed();
        if writer.is_due(begun) || writer.is_nearly_full() {
            // Everything goes into the table with this window, or soon, which is the thread's work.
            return false;
        }
        let Some(jobs) = self.queue.take() else { return false };
        let was_due = writer.due();
        self.work(&mut writer, jobs, begun);
        // The thread has to know when it is to come, or that it is to come now.
        let is_known = writer.due() == was_due && !writer.is_laden();
        drop(writer);
        is_known && self.queue.is_empty()
    }
}

/// Lets nobody wait for a writer that is gone.
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
    fn a_slow_flush_is_left_to_the_thread_until_some_were_quick() {
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
        // A disk that is slow stays the thread's.
        (0..100).for_each(|_| pace.took(Duration::from_millis(2)));
        assert!(!pace.is_quick());
        pace.took(Duration::MAX);
        assert!(!pace.is_quick());
    }
}
