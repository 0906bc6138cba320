//! A cache of the space that files with holes use, as the iods last reported it, with the time of the next question.
//!
//! Nothing here is stored durably. A forgotten answer is asked again; so the number of answers is limited, and the
//! number of files is not.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::FileId;
use types::limits::SPACE_KNOWN_MAX;

/// How long an answer is used: clients write to the iods without a report to the mgr.
const FRESH: Duration = Duration::from_secs(1);
/// How long a caller waits for an answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a caller waits after other callers got no answer. So a directory of files on a silent iod can still be
/// listed.
const PATIENCE_LOST: Duration = Duration::from_millis(20);
/// How long after a failure the iods are asked for the same file again.
const REST: Duration = Duration::from_secs(5);
/// Age at which a question counts as lost.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// Largest number of questions in flight: they accumulate when iods are silent.
const ASKING_MAX: usize = 1024;

/// The answers for all files, shared by many tasks.
#[derive(Debug)]
pub(crate) struct Space {
    begun: Instant,
    known: Mutex<Known>,
    /// Notified whenever a question is answered.
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

    /// Returns what the caller should do to learn the space of a file in the state of this `change`.
    pub(crate) fn next(&self, file: FileId, change: u64) -> Next {
        self.known().next(file, change, self.begun.elapsed())
    }

    /// Records the answer for a file in the state of this `change`; `None` if the iods could not answer.
    pub(crate) fn learnt(&self, file: FileId, change: u64, used: Option<u64>) {
        self.known().learnt(file, change, used, self.begun.elapsed());
        self.answered.notify_waiters();
    }
}

/// What a caller that needs the space of a file should do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Use this value, if there is one.
    Tell(Option<u64>),
    /// Ask the iods, and report the answer.
    Ask,
    /// Another caller has asked the iods: wait for the answer for this long.
    Wait(Duration),
}

/// The state of one file.
#[derive(Clone, Copy, Debug, Default)]
struct One {
    last: Option<Answer>,
    /// When the iods were asked, while their answer is missing.
    asked: Option<Duration>,
    /// When the iods failed to answer.
    failed: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    used: u64,
    /// The change attribute of the file before the question.
    change: u64,
    at: Duration,
}

/// The answers behind the lock. Every method takes the current time as an argument, so that tests choose it.
#[derive(Debug, Default)]
struct Known {
    /// Two generations: the files that were asked for last, and the ones before.
    young: BTreeMap<FileId, One>,
    old: BTreeMap<FileId, One>,
    /// Number of questions in flight.
    asking: usize,
    /// When a caller last waited without an answer.
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

    /// One event of a history.
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

    /// Checks every short history. At most one question is in flight. None follows a failure or silence sooner than
    /// after a rest. The value returned is the last answer, and while the iods answer it is never that of an older
    /// state.
    #[test]
    fn iods_are_asked_only_when_needed_and_the_answer_includes_all_known_space() {
        const LEN: u32 = 6;
        for number in 0..STEPS.len().pow(LEN) {
            let mut known = Known::default();
            let (mut now, mut change, mut rest) = (Duration::from_secs(100), 1, number);
            // The question to the iods that awaits its answer: when it was asked, and the change attribute of the file
            // then.
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
                        // Each answer is a different number.
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
