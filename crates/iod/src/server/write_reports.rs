//! Write reports (WRITE_REPORTS), by which the mgr learns of stable writes by NFS clients before the iod replies to
//! these clients.
//!
//! A client of the files layout does not report a FILE_SYNC write to the mgr, even if the write extends the file (RFC
//! 8881 §18.32.3). So the iod reports the write to the mgr, and replies to the client after the mgr has confirmed the
//! report. The mgr fetches reports with WRITE_REPORTS, which blocks until a report exists. One WRITE_REPORTS reply may
//! carry the reports of a thousand writes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use types::ObjectId;
use wire::native::{WRITE_REPORTS_MAX, WriteReportsReply};

use crate::lock::lock;

/// Largest number of objects for which the iod remembers the last confirmed report. Above this number, the iod forgets
/// the confirmed reports of all objects, and reports the next write to each of these objects again.
const REMEMBERED_MAX: usize = 1 << 16;

/// The write reports that the mgr has not confirmed, and the writers that wait for confirmations.
#[derive(Default)]
pub(super) struct WriteReports {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Sequence number of the newest write report.
    last: u64,
    /// Sequence number of the newest write report that the iod has sent to the mgr.
    sent: u64,
    /// Sequence number of the newest write report that the mgr has confirmed. A confirmation covers all earlier
    /// reports.
    known: u64,
    /// Write reports that the mgr has not confirmed, by sequence number.
    waiting: BTreeMap<u64, (ObjectId, Written)>,
    /// For each object, its last confirmed report, and whether a client has written to the object without a report
    /// since this confirmed report.
    remembered: HashMap<ObjectId, (Written, bool)>,
    closing: bool,
}

/// The content of a write report to the mgr.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Written {
    /// Number of the layout under which the client wrote.
    pub(super) grant: u64,
    /// Size of the object in bytes after the write.
    pub(super) size: u64,
}

impl WriteReports {
    /// Reports a write to the mgr and waits up to `patience` for the confirmation; returns whether the mgr has
    /// confirmed the report.
    ///
    /// Under one layout, only the first write to an object and writes that extend the object need a report. For all
    /// other writes the function returns true at once.
    pub(super) fn report(&self, object: ObjectId, written: Written, patience: Duration) -> bool {
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
                // The wait for the mgr's confirmation has timed out. Keep the report in the queue: the write has
                // happened, so the mgr must still learn of it.
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.known >= number
    }

    /// Executes WRITE_REPORTS: stores that the mgr has confirmed the reports up to sequence number `known`. Then waits
    /// up to `patience` for unconfirmed reports and returns them.
    pub(super) fn next(&self, known: u64, patience: Duration) -> WriteReportsReply {
        let until = Instant::now() + patience;
        let mut state = lock(&self.state);
        if known == 0 {
            // An mgr sends 0 in its first WRITE_REPORTS after its start. This mgr does not know the reports that an
            // earlier mgr confirmed, so forget the confirmed reports.
            state.remembered.clear();
        } else if known <= state.sent && known > state.known {
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

    /// Returns whether a client has written to an object without a report after the object's last report. Later calls
    /// return false until the next such write.
    pub(super) fn take_changed(&self, object: ObjectId) -> bool {
        lock(&self.state).remembered.get_mut(&object).is_some_and(|(_, changed)| std::mem::take(changed))
    }

    /// Ends the waits of all writers and of the mgr's WRITE_REPORTS call, because the iod stops.
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

    fn hand_out(&mut self) -> WriteReportsReply {
        let batch: Vec<(u64, ObjectId)> =
            self.waiting.iter().take(WRITE_REPORTS_MAX).map(|(number, (object, _))| (*number, *object)).collect();
        let number = batch.last().map_or(self.known, |(number, _)| *number);
        self.sent = self.sent.max(number);
        let mut written: Vec<ObjectId> = batch.into_iter().map(|(_, object)| object).collect();
        written.sort();
        written.dedup();
        WriteReportsReply { number, written }
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
        let reports = WriteReports::default();
        thread::scope(|scope| {
            let writer = scope.spawn(|| reports.report(object_id(7), written(1, 100), LONG));
            let first = reports.next(0, LONG);
            assert_eq!(first.written, [object_id(7)]);
            // The mgr has not confirmed the first WRITE_REPORTS reply, as if the reply were lost. So the next reply
            // repeats its reports.
            assert_eq!(reports.next(0, LONG), first);
            assert!(!writer.is_finished());
            assert_eq!(reports.next(first.number, NOW).written, []);
            assert!(writer.join().unwrap());
        });
        // A write needs no report if the client has the same layout as for the last reported write, and the write does
        // not extend the object.
        assert!(
            reports.report(object_id(7), written(1, 100), NOW) && reports.report(object_id(7), written(1, 50), NOW)
        );
        assert!(
            reports.take_changed(object_id(7))
                && !reports.take_changed(object_id(7))
                && !reports.take_changed(object_id(8))
        );
        // A write needs a report under a new layout, when it extends the object, and after a restart of the mgr.
        assert!(!reports.report(object_id(7), written(2, 100), NOW));
        assert!(!reports.report(object_id(7), written(1, 101), NOW));
        let second = reports.next(1, NOW);
        assert_eq!(second.written, [object_id(7)]);
        reports.next(second.number, NOW);
        assert!(reports.report(object_id(7), written(1, 101), NOW));
        reports.next(0, NOW);
        assert!(!reports.report(object_id(7), written(1, 101), NOW));
    }

    #[test]
    fn unknown_numbers_are_ignored_and_close_wakes_all_writers() {
        let reports = WriteReports::default();
        assert!(!reports.report(object_id(1), written(1, 1), NOW));
        reports.next(9, NOW);
        assert_eq!(reports.next(0, NOW).written, [object_id(1)]);
        thread::scope(|scope| {
            let writer = scope.spawn(|| reports.report(object_id(2), written(1, 1), LONG));
            while lock(&reports.state).waiting.len() < 2 {
                thread::yield_now();
            }
            reports.close();
            assert!(!writer.join().unwrap());
        });
        assert_eq!(reports.next(1, LONG).written, [object_id(2)]);
        assert_eq!(reports.next(2, LONG).written, []);
    }
}
