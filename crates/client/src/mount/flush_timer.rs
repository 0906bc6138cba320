//! The flush timer of a mount: sends gathered bytes some time after the write, and makes sent bytes durable with COMMIT
//! some time after that, even if no program calls fsync or close.
//!
//! So other clients soon see what a long-running program writes to a log, and a crash of the machine loses only the
//! last seconds of the log. Most files are closed before the timer has to send or commit their bytes. Therefore each
//! file only records when its bytes are due to be sent and committed, and the timer goes through all open files (a
//! pass) at the earliest of these times.

use super::Inner;
use crate::lock_order::{OrderedGuard, OrderedMutex, Rank};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The time after which the flush timer commits bytes that were sent to servers, and reports the file size to the mgr.
const SETTLED: Duration = Duration::from_secs(5);
/// The shortest pause between two passes. In a pass, the flush timer goes through all open files, and starts to send
/// and commit the bytes that are due.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause between two passes is at least this many times as long as the last pass took.
const PAUSE_TIMES: u32 = 20;

/// The times at which the flush timer sends and commits the bytes of one file. While the timer is sending or committing
/// bytes of the file, it starts no second send or commit of this file.
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

/// What the flush timer has to do now for one file: send its gathered bytes (`leave`), and commit its sent bytes
/// (`settle`).
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

    /// Returns whether a send or a commit of the file's bytes is due by `now`, and clears the due times that have
    /// passed. If nothing is due, also returns the next due time. Returns nothing while the timer is sending or
    /// committing bytes of the file.
    pub(crate) fn take(&mut self, now: Instant) -> (Due, Option<Instant>) {
        if self.busy {
            return Default::default();
        }
        let due = |time: &mut Option<Instant>| time.take_if(|at| *at <= now).is_some();
        let due = Due { leave: due(&mut self.leave), settle: due(&mut self.settle) };
        self.busy = due != Due::default();
        (due, if self.busy { None } else { self.next() })
    }

    /// Records that the flush timer has finished sending and committing bytes of the file. Returns the next due time of
    /// the file.
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

/// The earliest due time of any file, or `None` if no file has a due time.
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
    /// Schedules a pass of the flush timer over all open files at time `at`, when a send or a commit of a file's bytes
    /// is due.
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

    /// Starts all sends and commits of open files that are due by `now`. Returns the next due time of any file.
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

/// The task of the flush timer: goes through all open files at each due time. Ends when no file has a due time, or when
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
        // From a `take` that returns work until `done`, further calls of `take` return nothing. Work that becomes due
        // in this time is returned after `done`.
        times.leave = Some(at(7));
        assert_eq!(times.take(at(6)), (due(false, false), None));
        assert_eq!((times.done(), times.take(at(6))), (Some(at(5)), (due(false, true), None)));
        assert_eq!(times.settle_from(at(6)), Some(at(6) + SETTLED));
        assert_eq!((times.done(), times.take(at(20))), (Some(at(7)), (due(true, true), None)));
        assert_eq!((times.done(), times.take(at(99))), (None, (due(false, false), None)));
    }
}
