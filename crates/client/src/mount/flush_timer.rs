//! The flush timer of a mount: sends gathered bytes some time after the write, and makes sent bytes durable with COMMIT
//! some time after that, even if no program calls fsync or close.
//!
//! So other clients soon see what a long-running program writes to a log, and a crash of the machine loses only the
//! last seconds of the log. In this module, a step is the task of sending or committing the bytes of one file. Most
//! files are closed before any step is due. Therefore each file only records its due times, and the timer goes through
//! all open files (a pass) when the first step is due.

use super::Inner;
use crate::lock_order::{OrderedGuard, OrderedMutex, Rank};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The time after which the flush timer commits bytes that were sent to servers, and reports the file size to the mgr.
const SETTLED: Duration = Duration::from_secs(5);
/// The shortest pause between two passes. In a pass, the flush timer goes through all open files and starts the steps
/// that are due.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause between two passes is at least this many times as long as the last pass took.
const PAUSE_TIMES: u32 = 20;

/// The times at which the flush timer sends and commits the bytes of one file. While a step of the file runs, the timer
/// starts no other step of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Times {
    /// When the flush timer sends the gathered bytes of the file.
    pub(crate) leave: Option<Instant>,
    /// When the flush timer commits the sent bytes of the file and reports the file size to the mgr.
    settle: Option<Instant>,
    /// Whether the flush timer is sending or committing bytes of the file. This may last as long as a server is
    /// unreachable.
    busy: bool,
}

/// The steps of one file that are due: sending gathered bytes (`leave`), and committing sent bytes (`settle`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Due {
    pub(crate) leave: bool,
    pub(crate) settle: bool,
}

impl Times {
    /// Schedules the commit of bytes that were just sent. If this call scheduled a commit, returns when the commit is
    /// due. Returns `None` if a commit was already scheduled.
    pub(crate) fn settle_from(&mut self, now: Instant) -> Option<Instant> {
        let unknown = self.settle.is_none().then(|| now + SETTLED);
        self.settle = self.settle.or(unknown);
        unknown
    }

    /// Returns the steps of the file that are due by `now` and clears their due times. Also returns when the next step
    /// of the file is due. While a step of the file is running, returns no step and no time.
    pub(crate) fn take(&mut self, now: Instant) -> (Due, Option<Instant>) {
        if self.busy {
            return Default::default();
        }
        let due = |time: &mut Option<Instant>| time.take_if(|at| *at <= now).is_some();
        let due = Due { leave: due(&mut self.leave), settle: due(&mut self.settle) };
        self.busy = due != Due::default();
        (due, if self.busy { None } else { self.next() })
    }

    /// Records that the running steps of the file have ended. Returns when the next step of the file is due.
    pub(crate) fn done(&mut self) -> Option<Instant> {
        self.busy = false;
        self.next()
    }

    fn next(&self) -> Option<Instant> {
        self.leave.into_iter().chain(self.settle).min()
    }
}

/// The schedule of the flush timer: when the timer next goes through all open files to send and commit their bytes.
pub(super) struct FlushTimer {
    /// The time of the next pass over all open files, or `None` if no timer task is running. During a pass, the
    /// earliest due time recorded since the pass began.
    next: OrderedMutex<Option<Next>>,
    /// Notified when a pass is scheduled for an earlier time than the next pass so far.
    earlier: Arc<Notify>,
}

/// The earliest due time of any file, or `None` if no step is scheduled.
type Next = Option<Instant>;

impl Default for FlushTimer {
    fn default() -> Self {
        FlushTimer { next: OrderedMutex::new(Rank::FlushTimer, None), earlier: Arc::default() }
    }
}

impl FlushTimer {
    fn next(&self) -> OrderedGuard<'_, Option<Next>> {
        self.next.lock()
    }
}

impl Inner {
    /// Schedules a pass of the flush timer over all open files at time `at`, when a step of a file is due.
    pub(crate) fn due_at(self: &Arc<Self>, at: Instant) {
        let mut next = self.behind.next();
        match *next {
            Some(Some(before)) if before <= at => {}
            Some(_) => {
                *next = Some(Some(at));
                self.behind.earlier.notify_one();
            }
            None => {
                *next = Some(Some(at));
                net::task::spawn_on(&self.runtime, attend(Arc::downgrade(self)));
            }
        }
    }

    /// Starts all steps of all open files that are due by `now`. Returns when the next step of any file is due.
    fn go_through(self: &Arc<Self>, now: Instant) -> Next {
        let mut all = self.inodes.all();
        all.sort_unstable_by_key(|inode| inode.node.id);
        let mut first: Next = None;
        for inode in all {
            let (due, next) = inode.is_due_by(now);
            first = first.into_iter().chain(next).min();
            if due != Due::default() {
                // Spawn a task for each file, so that a file whose server is unreachable does not delay other files.
                net::task::spawn_on(&self.runtime, inode.do_due(due));
            }
        }
        first
    }
}

/// The task of the flush timer: goes through all open files whenever a step is due. Ends when no step is scheduled or
/// the mount is dropped.
async fn attend(mount: Weak<Inner>) {
    let mut rested = Instant::now();
    while let Some(mount) = mount.upgrade() {
        let at = mount.behind.next().flatten().unwrap_or(rested).max(rested);
        let begun = Instant::now();
        if begun < at {
            let earlier = mount.behind.earlier.clone();
            drop(mount);
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = earlier.notified() => {}
            }
            continue;
        }
        *mount.behind.next() = Some(None);
        let first = mount.go_through(begun);
        rested = Instant::now() + PAUSE.max(begun.elapsed() * PAUSE_TIMES);
        let mut next = mount.behind.next();
        let noted = next.flatten();
        *next = noted.into_iter().chain(first).min().map(Some);
        if next.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_due_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let due = |leave, settle| Due { leave, settle };
        let mut times = Times::default();
        assert_eq!(times.take(at(9)), (due(false, false), None));
        times.leave = Some(at(1));
        assert_eq!(times.settle_from(at(0)), Some(start + SETTLED));
        assert_eq!(times.settle_from(at(3)), None, "the oldest sent bytes set the time");
        assert_eq!(times.take(at(0)), (due(false, false), Some(at(1))));
        assert_eq!(times.take(at(1)), (due(true, false), None));
        // While a step of the file runs, `take` returns no other step. If a step becomes due while another step runs,
        // `take` returns the new step only after a call of `done`.
        times.leave = Some(at(7));
        assert_eq!(times.take(at(6)), (due(false, false), None));
        assert_eq!((times.done(), times.take(at(6))), (Some(at(5)), (due(false, true), None)));
        assert_eq!(times.settle_from(at(6)), Some(at(6) + SETTLED));
        assert_eq!((times.done(), times.take(at(20))), (Some(at(7)), (due(true, true), None)));
        assert_eq!((times.done(), times.take(at(99))), (None, (due(false, false), None)));
    }
}
