//! Write reports (NEWS), which tell the mgr about stable writes before their clients get an answer.
//!
//! A client of the files layout sends the mgr nothing about bytes that a data server answered with FILE_SYNC, not even
//! the new length of the file (RFC 8881 §18.32.3). So the data server reports the write to the mgr. It answers the
//! client after the mgr has confirmed the report. The mgr asks for reports and waits for them (NEWS); one answer may
//! carry the reports of a thousand writes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use types::ObjectId;
use wire::native::{NEWS_MAX, NewsReply};

use crate::lock::lock;

/// Maximum number of objects whose reported state is remembered. Forgotten objects are reported again.
const REMEMBERED_MAX: usize = 1 << 16;

/// The queue of write reports.
#[derive(Default)]
pub(super) struct WriteReports {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of the last report.
    last: u64,
    /// Number of the last report that was sent to the mgr.
    told: u64,
    /// The mgr has confirmed all reports up to this number.
    known: u64,
    /// Reports that the mgr has not confirmed.
    waiting: BTreeMap<u64, (ObjectId, Written)>,
    /// The state of objects that the mgr knows, and whether the object was written since without a new report.
    remembered: HashMap<ObjectId, (Written, bool)>,
    closing: bool,
}

/// A write to report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Written {
    /// Number of the layout of the write.
    pub(super) grant: u64,
    /// Size of the object after the write.
    pub(super) size: u64,
}

impl WriteReports {
    /// Reports to the mgr that an object was written, and waits for its confirmation; returns whether the mgr has
    /// confirmed.
    ///
    /// Under one layout only the first write and every growth of the object need a report.
    pub(super) fn tell(&self, object: ObjectId, written: Written, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = lock(&self.state);
        if let Some((old, changed)) = state.remembered.get_mut(&object)
            && old.grant == written.grant
            && old.size >= written.size
        {
            *changed = true;
            return true;
        }
        state.last += 1;
        let number = state.last;
        state.waiting.insert(number, (object, written));
        self.changed.notify_all();
        while state.known < number && !state.closing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // The report stays in the queue, because it is still true.
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.known >= number
    }

    /// Notes that the mgr has confirmed all reports up to `known`, and waits for unconfirmed ones.
    pub(super) fn next(&self, known: u64, patience: Duration) -> NewsReply {
        let until = Instant::now() + patience;
        let mut state = lock(&self.state);
        if known == 0 {
            // This is another mgr, or one that has restarted.
            state.remembered.clear();
        } else if known <= state.told && known > state.known {
            state.learn(known);
            self.changed.notify_all();
        }
        while state.waiting.is_empty() && !state.closing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.hand_out()
    }

    /// Returns whether an object was written without a report since its last one; clears the mark.
    pub(super) fn take_changed(&self, object: ObjectId) -> bool {
        lock(&self.state).remembered.get_mut(&object).is_some_and(|(_, changed)| std::mem::take(changed))
    }

    /// Ends all waits for reports and for confirmations.
    pub(super) fn close(&self) {
        lock(&self.state).closing = true;
        self.changed.notify_all();
    }
}

impl State {
    fn learn(&mut self, known: u64) {
        let rest = self.waiting.split_off(&(known + 1));
        if self.remembered.len() > REMEMBERED_MAX {
            self.remembered.clear();
        }
        for (object, written) in std::mem::replace(&mut self.waiting, rest).into_values() {
            let (remembered, _) = self.remembered.entry(object).or_insert((written, false));
            if remembered.grant != written.grant || remembered.size < written.size {
                *remembered = written;
            }
        }
        self.known = known;
    }

    fn hand_out(&mut self) -> NewsReply {
        let batch: Vec<(u64, ObjectId)> =
            self.waiting.iter().take(NEWS_MAX).map(|(number, (object, _))| (*number, *object)).collect();
        let number = batch.last().map_or(self.known, |(number, _)| *number);
        self.told = self.told.max(number);
        let mut written: Vec<ObjectId> = batch.into_iter().map(|(_, object)| object).collect();
        written.sort();
        written.dedup();
        NewsReply { number, written }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use types::FileId;

    fn object_id(file: u64) -> ObjectId {
        ObjectId::stream_0(FileId(file))
    }

    const LONG: Duration = Duration::from_secs(60);
    const NOW: Duration = Duration::ZERO;

    fn written(grant: u64, size: u64) -> Written {
        Written { grant, size }
    }

    #[test]
    fn a_writer_waits_until_the_mgr_has_the_report() {
        let news = WriteReports::default();
        thread::scope(|scope| {
            let writer = scope.spawn(|| news.tell(object_id(7), written(1, 100), LONG));
            let first = news.next(0, LONG);
            assert_eq!(first.written, [object_id(7)]);
            // If an answer is lost, the next one repeats the reports.
            assert_eq!(news.next(0, LONG), first);
            assert!(!writer.is_finished());
            assert_eq!(news.next(first.number, NOW).written, []);
            assert!(writer.join().unwrap());
        });
        // What the mgr knows needs no report.
        assert!(news.tell(object_id(7), written(1, 100), NOW) && news.tell(object_id(7), written(1, 50), NOW));
        assert!(
            news.take_changed(object_id(7)) && !news.take_changed(object_id(7)) && !news.take_changed(object_id(8))
        );
        // A new layout, more bytes, or a new mgr needs a report.
        assert!(!news.tell(object_id(7), written(2, 100), NOW));
        assert!(!news.tell(object_id(7), written(1, 101), NOW));
        let second = news.next(1, NOW);
        assert_eq!(second.written, [object_id(7)]);
        news.next(second.number, NOW);
        assert!(news.tell(object_id(7), written(1, 101), NOW));
        news.next(0, NOW);
        assert!(!news.tell(object_id(7), written(1, 101), NOW));
    }

    #[test]
    fn unknown_numbers_are_ignored_and_close_wakes_all_writers() {
        let news = WriteReports::default();
        assert!(!news.tell(object_id(1), written(1, 1), NOW));
        news.next(9, NOW);
        assert_eq!(news.next(0, NOW).written, [object_id(1)]);
        thread::scope(|scope| {
            let writer = scope.spawn(|| news.tell(object_id(2), written(1, 1), LONG));
            while lock(&news.state).waiting.len() < 2 {
                thread::yield_now();
            }
            news.close();
            assert!(!writer.join().unwrap());
        });
        assert_eq!(news.next(1, LONG).written, [object_id(2)]);
        assert_eq!(news.next(2, LONG).written, []);
    }
}
