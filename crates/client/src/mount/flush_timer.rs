//! The flush timer of a mount: sends gathered bytes after a delay, and commits sent bytes after a further delay,
//! without fsync or close.
//!
//! So other clients soon see what a long-running program writes to a log. A crash of the machine loses seconds of the
//! log, not hours. Most files are closed before any step is due. Therefore each file only records its due times, and
//! the timer visits all open files when the first step is due.

use super::Inner;
use crate::lock_order::{OrderedGuard, OrderedMutex, Rank};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long after the client sent bytes the timer commits them and reports the size to the mgr.
const SETTLED: Duration = Duration::from_secs(5);
/// The shortest pause between two visits. In a visit, the timer goes through all open files and starts the due steps.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause between two visits is at least this many times as long as the last visit took.
const PAUSE_TIMES: u32 = 20;

/// The due times of the timer's steps for one file. Only one step of a file runs at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Times {
    /// When the timer sends gathered bytes.
    pub(crate) leave: Option<Instant>,
    /// When the timer commits sent bytes and reports the size to the mgr.
    settle: Option<Instant>,
    /// Whether a step is running. It may wait as long as servers are unreachable.
    busy: bool,
}

/// The steps of one file that are due: `leave` sends gathered bytes, `settle` commits sent bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Due {
    pub(crate) leave: bool,
    pub(crate) settle: bool,
}

impl Times {
    /// Schedules the commit of bytes that were just sent, unless a commit is scheduled already. Returns the due time of
    /// a new commit.
    pub(crate) fn settle_from(&mut self, now: Instant) -> Option<Instant> {
        let unknown = self.settle.is_none().then(|| now + SETTLED);
        self.settle = self.settle.or(unknown);
        unknown
    }

    /// Returns the steps that are due by `now` and clears their due times, and returns when the next step is due. While
    /// a step is running, returns no steps.
    pub(crate) fn take(&mut self, now: Instant) -> (Due, Option<Instant>) {
        if self.busy {
            return Default::default();
        }
        let due = |time: &mut Option<Instant>| time.take_if(|at| *at <= now).is_some();
        let due = Due { leave: due(&mut self.leave), settle: due(&mut self.settle) };
        self.busy = due != Due::default();
        (due, if self.busy { None } else { self.next() })
    }

    /// Records that the running steps have ended. Returns when the next step is due.
    pub(crate) fn done(&mut self) -> Option<Instant> {
        self.busy = false;
        self.next()
    }

    fn next(&self) -> Option<Instant> {
        self.leave.into_iter().chain(self.settle).min()
    }
}

/// The schedule of the timer: when it next visits all open files to start due steps.
pub(super) struct FlushTimer {
    /// The time of the next visit of all open files, or `None` if no task is waiting for it. During a visit, the
    /// earliest due time recorded since the visit began.
    next: OrderedMutex<Option<Next>>,
    /// Notified when the time of the next visit becomes earlier.
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
    /// Schedules a visit of all open files at time `at`, when a step of a file is due.
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

    /// Starts all steps of all open files that are due by `now`; returns when the next step is due.
    fn go_through(self: &Arc<Self>, now: Instant) -> Next {
        let mut all = self.inodes.all();
        all.sort_unstable_by_key(|inode| inode.node.id);
        let mut first: Next = None;
        for inode in all {
            let (due, next) = inode.is_due_by(now);
            first = first.into_iter().chain(next).min();
            if due != Due::default() {
                // Spawn a task for each file, because one file may wait for a server that the other files do not need.
                net::task::spawn_on(&self.runtime, inode.do_due(due));
            }
        }
        first
    }
}

/// The task of the flush timer: visits all open files whenever a step is due. Ends when no step is left or the mount is
/// dropped.
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
        // While a step runs, `take` returns no other step. It returns steps that become due during the step afterwards.
        times.leave = Some(at(7));
        assert_eq!(times.take(at(6)), (due(false, false), None));
        assert_eq!((times.done(), times.take(at(6))), (Some(at(5)), (due(false, true), None)));
        assert_eq!(times.settle_from(at(6)), Some(at(6) + SETTLED));
        assert_eq!((times.done(), times.take(at(20))), (Some(at(7)), (due(true, true), None)));
        assert_eq!((times.done(), times.take(at(99))), (None, (due(false, false), None)));
    }
}
