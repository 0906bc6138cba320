//! The marks (random numbers in claims) that the mgr has sent to each iod. If an iod connects with an earlier mark than
//! its last one, the disk of the iod is an older copy, and the mgr refuses the iod.
//!
//! The mgr records a mark for an iod before it sends the mark, and again when the iod has accepted it. So after any
//! crash or failure, the iod has the mark that it accepted last, or one that the mgr has sent since.

use super::claims::Claims;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use types::{IodId, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

const PREFIX: &[u8] = b"mgr/given/";

/// Largest number of marks that the mgr records for an iod after the last mark that this iod accepted. Only an iod that
/// fails at every start of the mgr reaches this number.
const SENT_MAX: usize = 256;

/// The marks that the mgr has recorded for one iod. One of these marks is on the disk of the iod. Mark 0 stands for no
/// mark.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct SentMarks {
    /// The mark that the iod accepted last.
    accepted: u64,
    /// The marks that the mgr has sent since the iod last accepted one. A failed CLAIM may have reached the disk of the
    /// iod. The iod then reports the mark of this CLAIM after its next start.
    sent: Vec<u64>,
}

impl Xdr for SentMarks {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.accepted);
        out.array(&self.sent, |out, mark| out.u64(*mark));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(SentMarks { accepted: input.u64()?, sent: input.array(SENT_MAX, Reader::u64)? })
    }
}

impl SentMarks {
    /// Returns whether an iod that reports the mark `remembered` has accepted a later mark. The disk of such an iod is
    /// an older copy.
    fn is_behind(&self, remembered: u64) -> bool {
        remembered != 0 && self.accepted != remembered && !self.sent.contains(&remembered)
    }

    /// Records a mark that the mgr is about to send to the iod.
    fn add(&mut self, mark: u64) {
        if !self.sent.contains(&mark) {
            self.sent.truncate(SENT_MAX - 1);
            self.sent.insert(0, mark);
        }
    }
}

fn key(iod: IodId) -> Vec<u8> {
    [PREFIX, &iod.0].concat()
}

/// For each iod: the lock that a task holds while it claims the iod.
#[derive(Debug, Default)]
pub(super) struct ClaimLocks(Mutex<HashMap<IodId, Arc<AsyncMutex<()>>>>);

impl ClaimLocks {
    /// Locks an iod against claims by other tasks, until the caller drops the returned guard.
    pub(super) async fn of(&self, iod: IodId) -> OwnedMutexGuard<()> {
        let lock = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(iod).or_default().clone();
        lock.lock_owned().await
    }
}

impl Claims {
    fn sent_marks(&self, iod: IodId) -> Result<Option<SentMarks>, Status> {
        let record = self.namespace.registry(&key(iod))?;
        record.map(|record| SentMarks::from_bytes(&record).map_err(|_| Status::Corrupt)).transpose()
    }

    async fn put(&self, iod: IodId, marks: Option<SentMarks>) -> Result<(), Status> {
        let record = marks.map(|marks| marks.to_bytes());
        self.namespace.registry_put(net::clock::now().into(), &key(iod), record.as_ref()).await
    }

    /// Returns whether the iod has accepted a later mark than `remembered`, the mark that the iod now reports (0:
    /// none). The disk of such an iod is an older copy.
    pub(super) fn is_behind(&self, iod: IodId, remembered: u64) -> Result<bool, Status> {
        Ok(self.sent_marks(iod)?.is_some_and(|marks| marks.is_behind(remembered)))
    }

    async fn change(&self, iod: IodId, marks: SentMarks) -> Result<(), Status> {
        if self.sent_marks(iod)?.as_ref() == Some(&marks) { Ok(()) } else { self.put(iod, Some(marks)).await }
    }

    /// Records durably that the mgr is about to send the mark `mark` to an iod. `remembered` is the mark that the iod
    /// reported last (0: none).
    pub(super) async fn record_sent(&self, iod: IodId, remembered: u64, mark: u64) -> Result<(), Status> {
        let mut marks = self.sent_marks(iod)?.unwrap_or(SentMarks { accepted: remembered, sent: Vec::new() });
        marks.add(mark);
        self.change(iod, marks).await
    }

    /// Records durably that an iod has accepted the mark `accepted`.
    pub(super) async fn record_accepted(&self, iod: IodId, accepted: u64) -> Result<(), Status> {
        self.change(iod, SentMarks { accepted, sent: Vec::new() }).await
    }

    /// Removes the marks recorded for an iod, so that the mgr accepts the iod with any mark. This is for a recovered
    /// older copy of the store, which does not have the iod's newest marks.
    pub(super) async fn forget_sent_marks(&self, iod: IodId) -> Result<(), Status> {
        self.put(iod, None).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iod_has_its_confirmed_mark_or_one_that_was_sent_later() {
        let mut marks = SentMarks { accepted: 7, sent: vec![9] };
        (0..2).for_each(|_| marks.add(10));
        assert_eq!(marks.sent, [10, 9]);
        assert_eq!([7, 9, 10, 8, 0].map(|mark| marks.is_behind(mark)), [false, false, false, true, false]);
        let first = SentMarks { accepted: 0, sent: vec![9] };
        assert_eq!([0, 9, 7].map(|mark| first.is_behind(mark)), [false, false, true]);
        (100..1000).for_each(|mark| marks.add(mark));
        assert_eq!((marks.sent.len(), marks.sent[0]), (SENT_MAX, 999));
    }

    #[test]
    fn a_record_has_its_golden_bytes() {
        let marks = SentMarks { accepted: 258, sent: vec![3] };
        assert_eq!(marks.to_bytes(), &[0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3][..]);
        assert_eq!(SentMarks::from_bytes(&marks.to_bytes()), Ok(marks));
    }
}
