//! A cache of the allocated space of files with holes, as the iods last reported it. The cache also decides when the
//! mgr queries the iods again.
//!
//! The cache is only in memory and has a limited number of entries. For a file without an entry, the mgr queries the
//! iods again.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::FileId;
use types::limits::SPACE_KNOWN_MAX;

/// How long the mgr uses the allocated space that the iods reported. The value may become stale, because clients write
/// to the iods without a report to the mgr.
const FRESH: Duration = Duration::from_secs(1);
/// How long a caller waits for the result of a query that another caller has sent to the iods.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a caller waits for the result of a query if, within the last [`REST`], the iods have not replied to a
/// caller in time. The wait is short, so that `ls -l` of many files on an iod that does not reply still completes.
const PATIENCE_LOST: Duration = Duration::from_millis(20);
/// Time after a failed query until the mgr queries the iods for the same file again.
const REST: Duration = Duration::from_secs(5);
/// Age at which a query to the iods without a reply counts as lost.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// Largest number of queries in flight to the iods. Queries accumulate while iods do not reply.
const ASKING_MAX: usize = 1024;

/// The allocated space of all cached files, shared by many tasks.
#[derive(Debug)]
pub(crate) struct Space {
    begun: Instant,
    known: Mutex<Known>,
    /// Notified whenever a query to the iods ends.
    pub(crate) answered: Notify,
}

impl Default for Space {
    fn default() -> Self {
        Space { begun: Instant::now(), known: Mutex::default(), answered: Notify::new() }
    }
}

impl Space {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the caller must do to get the allocated space of a file. `change` is the current change attribute
    /// of the file.
    pub(crate) fn next(&self, file: FileId, change: u64) -> Next {
        self.known().next(file, change, self.begun.elapsed())
    }

    /// Records the result of a query of the iods for the allocated space of a file. `change` is the change attribute of
    /// the file before the query. `used` is the allocated space in bytes, or `None` if the iods did not reply.
    pub(crate) fn learnt(&self, file: FileId, change: u64, used: Option<u64>) {
        self.known().learnt(file, change, used, self.begun.elapsed());
        self.answered.notify_waiters();
    }
}

/// What a caller that needs the allocated space of a file must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The caller must use this allocated space, in bytes; `None` if the cache has no value.
    Tell(Option<u64>),
    /// The caller must query the iods, and record the result with [`Space::learnt`].
    Ask,
    /// Another caller has queried the iods. The caller must wait for the result of this query, for at most this long.
    Wait(Duration),
}

/// The cache entry of one file: the last reported allocated space of the file, and the state of the queries for this
/// space.
#[derive(Clone, Copy, Debug, Default)]
struct One {
    last: Option<Answer>,
    /// When a caller sent the query in flight; `None` if no query is in flight.
    asked: Option<Duration>,
    /// When the last query failed; `None` if the last query succeeded.
    failed: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    used: u64,
    /// The change attribute of the file before the query to the iods.
    change: u64,
    at: Duration,
}

/// The content of the cache. Every method takes the current time as an argument, so that tests can choose the time.
#[derive(Debug, Default)]
struct Known {
    /// The cache entries of files, in two generations for eviction. `young` has the entries that callers used most
    /// recently, and `old` has the entries that callers used before these.
    young: BTreeMap<FileId, One>,
    old: BTreeMap<FileId, One>,
    /// Number of queries in flight to the iods.
    asking: usize,
    /// When a caller last found a query in flight to which the iods had not replied in time.
    silence: Option<Duration>,
}

impl Known {
    fn one(&mut self, file: FileId) -> &mut One {
        let known = self.young.remove(&file).or_else(|| self.old.remove(&file)).unwrap_or_default();
        if self.young.len() >= SPACE_KNOWN_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.entry(file).or_insert(known)
    }

    fn next(&mut self, file: FileId, change: u64, now: Duration) -> Next {
        let within = |then: Option<Duration>, time| then.is_some_and(|then| now < then + time);
        let too_many = self.asking >= ASKING_MAX;
        let patience = if within(self.silence, REST) { PATIENCE_LOST } else { PATIENCE };
        let one = self.one(file);
        let used = one.last.map(|last| last.used);
        if one.last.is_some_and(|last| last.change >= change && within(Some(last.at), FRESH)) {
            return Next::Tell(used);
        }
        match one.asked {
            Some(asked) if within(Some(asked), patience) => Next::Wait(asked + patience - now),
            Some(asked) if within(Some(asked), FORGOTTEN) => {
                self.silence = Some(now);
                Next::Tell(used)
            }
            None if too_many || within(one.failed, REST) => Next::Tell(used),
            _ => {
                one.asked = Some(now);
                self.asking += 1;
                Next::Ask
            }
        }
    }

    fn learnt(&mut self, file: FileId, change: u64, used: Option<u64>, now: Duration) {
        self.asking = self.asking.saturating_sub(1);
        let one = self.one(file);
        one.asked = None;
        match used {
            Some(used) => (one.last, one.failed) = (Some(Answer { used, change, at: now }), None),
            None => one.failed = Some(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(7);

    /// One event in a test history of the cache.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Look,
        Change,
        Answer,
        Fail,
        Pass(Duration),
    }

    const STEPS: [Step; 8] = [
        Step::Look,
        Step::Change,
        Step::Answer,
        Step::Fail,
        Step::Pass(Duration::from_millis(19)),
        Step::Pass(Duration::from_millis(500)),
        Step::Pass(FRESH),
        Step::Pass(REST),
    ];

    /// Checks every history of six events. At most one query of the iods is in flight for the file, and no query
    /// follows a failed query sooner than [`REST`]. The cache always returns the last reported value. While the iods
    /// reply, this value is never older than the last change of the file.
    #[test]
    fn iods_are_asked_only_when_needed_and_the_answer_includes_all_known_space() {
        const LEN: u32 = 6;
        for number in 0..STEPS.len().pow(LEN) {
            let mut known = Known::default();
            let (mut now, mut change, mut rest) = (Duration::from_secs(100), 1, number);
            // The query in flight: when the caller sent it, and the change attribute of the file at this time.
            let mut question: Option<(Duration, u64)> = None;
            let mut last: Option<(u64, u64, Duration)> = None;
            let mut failed: Option<Duration> = None;
            for _ in 0..LEN {
                let step = STEPS[rest % STEPS.len()];
                rest /= STEPS.len();
                match (step, question) {
                    (Step::Pass(time), _) => now += time,
                    (Step::Change, _) => change += 1,
                    (Step::Answer, Some((_, of))) => {
                        // The allocated space that the test reports differs with each reply.
                        let used = now.as_millis() as u64;
                        known.learnt(FILE, of, Some(used), now);
                        (question, last, failed) = (None, Some((used, of, now)), None);
                    }
                    (Step::Fail, Some((_, of))) => {
                        known.learnt(FILE, of, None, now);
                        (question, failed) = (None, Some(now));
                    }
                    (Step::Answer | Step::Fail, None) => {}
                    (Step::Look, _) => match known.next(FILE, change, now) {
                        Next::Ask => {
                            assert_eq!(question, None, "{number}");
                            assert!(failed.is_none_or(|then| now >= then + REST), "{number}");
                            question = Some((now, change));
                        }
                        Next::Wait(most) => {
                            let (since, _) = question.expect("a question");
                            assert!(most <= PATIENCE && now < since + PATIENCE, "{number}");
                        }
                        Next::Tell(used) => {
                            assert_eq!(used, last.map(|(used, ..)| used), "{number}");
                            let fresh = last.is_some_and(|(_, of, at)| of == change && now < at + FRESH);
                            let silent = question.is_some_and(|(since, _)| now >= since + PATIENCE_LOST);
                            assert!(fresh || silent || failed.is_some_and(|then| now < then + REST), "{number}");
                        }
                    },
                }
            }
        }
    }

    #[test]
    fn a_lost_query_is_sent_again() {
        let mut known = Known::default();
        let at = Duration::from_secs;
        assert_eq!(known.next(FILE, 1, at(1)), Next::Ask);
        assert_eq!(known.next(FILE, 1, at(2)), Next::Tell(None));
        assert_eq!(known.next(FileId(8), 1, at(2)), Next::Ask);
        assert_eq!(known.next(FileId(8), 1, at(2)), Next::Wait(PATIENCE_LOST), "other callers wait for ever");
        assert_eq!(known.next(FILE, 1, at(120)), Next::Tell(None));
        assert_eq!(known.next(FILE, 1, at(121)), Next::Ask);
    }

    #[test]
    fn memory_and_concurrent_queries_are_bounded() {
        let mut known = Known::default();
        let asked = (0..2 * ASKING_MAX as u64).filter(|file| known.next(FileId(*file), 1, Duration::ZERO) == Next::Ask);
        assert_eq!(asked.count(), ASKING_MAX);
        let mut known = Known::default();
        for file in 0..3 * SPACE_KNOWN_MAX as u64 {
            known.next(FileId(file), 1, Duration::ZERO);
            known.learnt(FileId(file), 1, Some(file), Duration::ZERO);
            assert!(known.young.len() + known.old.len() <= SPACE_KNOWN_MAX);
        }
        let newest = 3 * SPACE_KNOWN_MAX as u64 - 1;
        assert_eq!(known.next(FileId(newest), 1, Duration::ZERO), Next::Tell(Some(newest)));
        assert_eq!(known.next(FileId(0), 1, Duration::ZERO), Next::Ask);
    }
}
