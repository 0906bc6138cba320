//! Writing behind by the clock: what gathers leaves after a while, and what has left is made durable after a while more, though nobody asks for it.
//!
//! So others see the log of a program that runs for days, and a machine that fails takes seconds of it, not hours. Most files are closed long before
//! anything is due: so it is noted in the file alone, and all open files are gone through when it is time for the first.

use super::Inner;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// For how long what has left may be lost by servers, or unknown to the mgr.
const SETTLED: Duration = Duration::from_secs(5);
/// How long all files are left alone at least after they were gone through.
const PAUSE: Duration = Duration::from_millis(10);
/// And how many times as long as that has taken.
const PAUSE_TIMES: u32 = 20;

/// When something is to be done about a file, one thing at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Times {
    /// What gathers leaves.
    pub(crate) leave: Option<Instant>,
    /// What has left is made durable, and the mgr told how long the file is.
    settle: Option<Instant>,
    /// Something is being done, which may take as long as servers are away.
    busy: bool,
}

/// What it is time for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Due {
    pub(crate) leave: bool,
    pub(crate) settle: bool,
}

impl Times {
    /// Something leaves: it is durable in a while. When that is, if it is not known yet.
    pub(crate) fn settle_from(&mut self, now: Instant) -> Option<Instant> {
        let unknown = self.settle.is_none().then(|| now + SETTLED);
        self.settle = self.settle.or(unknown);
        unknown
    }

    /// What it is time for by `now`, each once, and when there is more to be done.
    pub(crate) fn take(&mut self, now: Instant) -> (Due, Option<Instant>) {
        if self.busy {
            return Default::default();
        }
        let due = |time: &mut Option<Instant>| time.take_if(|at| *at <= now).is_some();
        let due = Due { leave: due(&mut self.leave), settle: due(&mut self.settle) };
        self.busy = due != Due::default();
        (due, if self.busy { None } else { self.next() })
    }

    /// What it was time for is done, or was tried; when there is more to be done.
    pub(crate) fn done(&mut self) -> Option<Instant> {
        self.busy = false;
        self.next()
    }

    fn next(&self) -> Option<Instant> {
        self.leave.into_iter().chain(self.settle).min()
    }
}

/// When all files of a mount are to be gone through.
#[derive(Default)]
pub(super) struct Behind {
    /// The time; none, and nobody waits for it. While they are gone through it is that of what was noted since.
    next: Mutex<Option<Next>>,
    /// Told when it is earlier than it was.
    earlier: Arc<Notify>,
}

/// At some time, or not yet known.
type Next = Option<Instant>;

impl Behind {
    fn next(&self) -> MutexGuard<'_, Option<Next>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Something is to be done about a file at some time, as is noted there.
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

    /// Does what it is time for, and answers when there is more to be done.
    fn go_through(self: &Arc<Self>, now: Instant) -> Next {
        let mut all = self.inodes.all();
        all.sort_unstable_by_key(|inode| inode.node.id);
        let mut first: Next = None;
        for inode in all {
            let (due, next) = inode.is_due_by(now);
            first = first.into_iter().chain(next).min();
            if due != Due::default() {
                // Each by itself: one may have to wait for a server that others have no need of.
                net::task::spawn_on(&self.runtime, inode.do_due(due));
            }
        }
        first
    }
}

/// Goes through all files whenever it is time, until nothing is to be done any more, or there is no mount.
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
    fn it_is_time_for_each_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let due = |leave, settle| Due { leave, settle };
        let mut times = Times::default();
        assert_eq!(times.take(at(9)), (due(false, false), None));
        times.leave = Some(at(1));
        assert_eq!(times.settle_from(at(0)), Some(start + SETTLED));
        assert_eq!(times.settle_from(at(3)), None, "what left first counts");
        assert_eq!(times.take(at(0)), (due(false, false), Some(at(1))));
        assert_eq!(times.take(at(1)), (due(true, false), None));
        // One thing at a time; what comes to be due meanwhile is done afterwards.
        times.leave = Some(at(7));
        assert_eq!(times.take(at(6)), (due(false, false), None));
        assert_eq!((times.done(), times.take(at(6))), (Some(at(5)), (due(false, true), None)));
        assert_eq!(times.settle_from(at(6)), Some(at(6) + SETTLED));
        assert_eq!((times.done(), times.take(at(20))), (Some(at(7)), (due(true, true), None)));
        assert_eq!((times.done(), times.take(at(99))), (None, (due(false, false), None)));
    }
}
