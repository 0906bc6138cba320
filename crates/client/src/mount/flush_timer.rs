//! The flush timer of a mount: sends gathered bytes after a delay, and makes sent bytes durable after a further delay,
//! even without fsync or close.
//!
//! So other clients see the log of a program that runs for days, and a crash of the machine loses seconds of it, not
//! hours. Most files are closed long before anything is due. Therefore due times are recorded only in each file, and
//! the timer visits all open files when the first is due.

use super::Inner;
use crate::lock_order::{OrderedGuard, OrderedMutex, Rank};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long servers may lose sent bytes, or the mgr not know of them.
const SETTLED: Duration = Duration::from_secs(5);
/// The shortest pause between two visits of all files.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause is also at least this many times as long as the visit took.
const PAUSE_TIMES: u32 = 20;

/// The due times of a file; only one step runs at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Times {
    /// When gathered bytes are sent.
    pub(crate) leave: Option<Instant>,
    /// When sent bytes are made durable and the mgr receives the size.
    settle: Option<Instant>,
    /// Whether a step is running, which may take as long as servers are unreachable.
    busy: bool,
}

/// The steps that are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Due {
    pub(crate) leave: bool,
    pub(crate) settle: bool,
}

impl Times {
    /// Records that bytes were sent: they are made durable after a delay. Returns the due time if it is new.
    pub(crate) fn settle_from(&mut self, now: Instant) -> Option<Instant> {
        let unknown = self.settle.is_none().then(|| now + SETTLED);
        self.settle = self.settle.or(unknown);
        unknown
    }

    /// Takes the steps due by `now`, each once; returns them, and the time of the next step.
    pub(crate) fn take(&mut self, now: Instant) -> (Due, Option<Instant>) {
        if self.busy {
            return Default::default();
        }
        let due = |time: &mut Option<Instant>| time.take_if(|at| *at <= now).is_some();
        let due = Due { leave: due(&mut self.leave), settle: due(&mut self.settle) };
        self.busy = due != Due::default();
        (due, if self.busy { None } else { self.next() })
    }

    /// Records that the steps are finished or were tried; returns the time of the next step.
    pub(crate) fn done(&mut self) -> Option<Instant> {
        self.busy = false;
        self.next()
    }

    fn next(&self) -> Option<Instant> {
        self.leave.into_iter().chain(self.settle).min()
    }
}

/// The time of the next visit of all files.
pub(super) struct FlushTimer {
    /// The time of the next visit, or `None` if no task waits for it. During a visit, the earliest time recorded since
    /// its beginning.
    next: OrderedMutex<Option<Next>>,
    /// Notified when the time becomes earlier.
    earlier: Arc<Notify>,
}

/// A due time, or none known yet.
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
    /// Schedules a visit for a step that is recorded in a file.
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

    /// Starts all steps that are due; returns the time of the next step.
    fn go_through(self: &Arc<Self>, now: Instant) -> Next {
        let mut all = self.inodes.all();
        all.sort_unstable_by_key(|inode| inode.node.id);
        let mut first: Next = None;
        for inode in all {
            let (due, next) = inode.is_due_by(now);
            first = first.into_iter().chain(next).min();
            if due != Due::default() {
                // Each in its own task: one file may wait for a server that the other files do not need.
                net::task::spawn_on(&self.runtime, inode.do_due(due));
            }
        }
        first
    }
}

/// Visits all files whenever a step is due, until no step is left or the mount has ended.
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
        // One step at a time; steps that become due meanwhile run afterwards.
        times.leave = Some(at(7));
        assert_eq!(times.take(at(6)), (due(false, false), None));
        assert_eq!((times.done(), times.take(at(6))), (Some(at(5)), (due(false, true), None)));
        assert_eq!(times.settle_from(at(6)), Some(at(6) + SETTLED));
        assert_eq!((times.done(), times.take(at(20))), (Some(at(7)), (due(true, true), None)));
        assert_eq!((times.done(), times.take(at(99))), (None, (due(false, false), None)));
    }
}
