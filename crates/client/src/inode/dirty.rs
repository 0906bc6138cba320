//! Dirty data of an open file: the written bytes that are pending, in flight, or received by a server that may still lose
//! them, and the report that is due for durable ones.
//!
//! Bytes go from pending to in flight to uncommitted. They leave the table when their server says that they are durable,
//! or when the client drops them and reports an error. Each function that removes bytes returns the window space that
//! they used.

#[cfg(test)]
mod tests;

use crate::drivers::{Payload, Written};
use crate::extents::Extents;
use bytes::Bytes;
use layout::kinds::native::Update;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;
use types::{ByteRange, Timestamp, Verifier};

/// A server whose write verifier covers bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Lane {
    /// The server of this lane of the layout.
    Direct(usize),
    /// The mgr.
    Mgr,
}

/// Bytes for one server, with their place in the file.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) payload: Arc<Payload>,
    /// Their place in the file.
    pub(super) parts: Vec<ByteRange>,
}

/// The client's state when it sent bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Under {
    /// The grant ([`DirtyData::grant`]); without meaning on the mgr path.
    pub(super) grant: u64,
    /// Whether the file was shared. Other clients may have overwritten or truncated the bytes since, and those changes
    /// stay.
    pub(super) shared: bool,
}

/// Bytes that a server received but may still lose.
#[derive(Clone, Debug)]
struct Sent {
    /// The batch, and so the position in the order in which requests were sent.
    number: u64,
    /// Position in the order in which servers acknowledged bytes.
    acknowledged: u64,
    piece: Piece,
    /// The verifier that the server returned.
    verifier: Verifier,
    under: Under,
}

/// Bytes to be sent again.
pub(super) struct Resend {
    /// The position in the lane, and in the order in which servers acknowledged bytes.
    at: usize,
    acknowledged: u64,
    /// The batch to which they belong.
    pub(super) number: u64,
    pub(super) piece: Piece,
}

/// Requests that are sent together.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    /// The file ranges that the batch writes.
    pub(super) ranges: Vec<ByteRange>,
    /// Number of unanswered requests.
    left: usize,
    /// Number of bytes without an answer.
    bytes: u64,
    /// When the batch was sent, if it is one range whose time is measured as a whole.
    pub(super) timed: Option<Instant>,
}

/// The result of a COMMIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Committed {
    /// Everything that the COMMIT covers is durable; the window gets this many bytes back.
    All(u64),
    /// The server has lost some bytes; the window gets this many bytes back.
    Lost(u64),
}

/// The dirty data of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct DirtyData {
    /// Bytes written here and not yet sent to a server.
    pending: Extents,
    /// Batches with unanswered requests.
    in_flight: BTreeMap<u64, Batch>,
    next_batch: u64,
    /// Batches before this one must not be written any more: their locks or their delegation are lost.
    given_up: u64,
    /// Bytes that servers received but may still lose, in the order of sending.
    uncommitted: BTreeMap<Lane, Vec<Sent>>,
    /// Upper bound for the number of uncommitted bytes.
    uncommitted_at_most: u64,
    /// Counts how often a server acknowledged bytes that it may still lose.
    acknowledged: u64,
    /// Set if a LAYOUTCOMMIT is due: one past the last byte that became durable since the last LAYOUTCOMMIT.
    unreported: Option<u64>,
    /// Counts the layouts granted after earlier layouts were lost. The mgr may have truncated, without a recall, the
    /// bytes that were written before the last of them.
    grant: u64,
    /// Whether some unreported bytes became durable under a layout that is lost. Then only the iods know the length of
    /// the file.
    ask_iods: bool,
    /// Whether the file may have holes that were made here. Every report says so from then on. One report too many only
    /// makes the mgr ask the iods how much space the file uses.
    holes: bool,
    /// Whether the client dropped bytes that iods may or may not hold. Then the iods must be asked for the length of
    /// the file.
    unsure: bool,
    /// Time of the last write in this mount.
    written: Option<Timestamp>,
}

impl Under {
    /// The value for bytes on the mgr path.
    pub(super) const MGR: Under = Under { grant: 0, shared: false };
}

impl Piece {
    /// Returns the bytes of one file range, as the mgr receives them.
    pub(super) fn of_range(range: ByteRange, data: Bytes) -> Piece {
        Piece { payload: Arc::new(Payload::new(data.into())), parts: vec![range] }
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.payload.data.len() as u64
    }

    /// Returns one past the last byte in the file.
    fn end(&self) -> u64 {
        self.parts.iter().map(|part| part.end()).max().unwrap_or(0)
    }

    /// Splits the bytes into the file ranges that they belong to.
    pub(super) fn split(&self) -> Vec<(ByteRange, Bytes)> {
        let mut data = self.payload.data.to_bytes();
        self.parts.iter().map(|part| (*part, data.split_to(part.len as usize))).collect()
    }

    /// Passes the bytes inside `range` of the file to `take`, each run with its offset, without copying them.
    fn each(&self, range: ByteRange, mut take: impl FnMut(u64, Bytes)) {
        let mut place = ByteRange { offset: 0, len: 0 };
        for part in &self.parts {
            place = ByteRange { offset: place.end(), len: part.len };
            let Some(wanted) = part.intersection(range) else { continue };
            let in_payload = ByteRange { offset: place.offset + (wanted.offset - part.offset), len: wanted.len };
            let mut at = 0;
            for segment in self.payload.data.parts() {
                let here = ByteRange { offset: at, len: segment.len() as u64 };
                at = here.end();
                if let Some(hit) = here.intersection(in_payload) {
                    let from = (hit.offset - here.offset) as usize;
                    let data = segment.slice(from..from + hit.len as usize);
                    take(wanted.offset + (hit.offset - in_payload.offset), data);
                }
            }
        }
    }
}

impl Batch {
    fn touches(&self, range: ByteRange) -> bool {
        range.overlaps_any(&self.ranges)
    }
}

/// Pending bytes.
impl DirtyData {
    /// Adds written bytes; returns how many pending bytes they replace.
    #[must_use]
    pub(super) fn write(&mut self, offset: u64, data: Bytes, time: Timestamp) -> u64 {
        self.written = Some(time);
        self.pending.insert(offset, data)
    }

    /// Returns the pending bytes.
    pub(super) fn pending(&self) -> &Extents {
        &self.pending
    }

    /// Drops the pending bytes.
    #[must_use]
    pub(super) fn drop_pending(&mut self) -> u64 {
        std::mem::take(&mut self.pending).bytes()
    }
}

/// Bytes in flight.
impl DirtyData {
    /// Takes the pending bytes as a batch in flight; returns its number and its bytes. Returns `None` while a batch in
    /// flight overlaps them.
    pub(super) fn begin_batch(&mut self) -> Option<(u64, Extents)> {
        let ranges = self.pending.ranges();
        if self.in_flight.values().any(|batch| ranges.iter().any(|range| batch.touches(*range))) {
            return None;
        }
        let number = self.next_batch;
        self.next_batch += 1;
        let extents = std::mem::take(&mut self.pending);
        self.in_flight.insert(number, Batch { ranges, left: 1, bytes: extents.bytes(), timed: None });
        Some((number, extents))
    }

    /// Records how many requests a new batch has, and when it was sent if its time is measured as a whole.
    pub(super) fn divided(&mut self, batch: u64, requests: usize, timed: Option<Instant>) {
        self.in_flight.entry(batch).and_modify(|batch| (batch.left, batch.timed) = (requests, timed));
    }

    /// Records that the time of a batch says nothing.
    pub(super) fn disregard_time(&mut self, batch: u64) {
        self.in_flight.entry(batch).and_modify(|batch| batch.timed = None);
    }

    /// Returns the number of the next batch.
    pub(super) fn next_batch(&self) -> u64 {
        self.next_batch
    }

    /// Returns whether a batch before number `before` is in flight and touches `range`.
    pub(super) fn is_in_flight(&self, range: ByteRange, before: u64) -> bool {
        self.in_flight.range(..before).any(|(_, batch)| batch.touches(range))
    }

    /// Returns whether the only request of a batch to a server may make its bytes durable at once: the server gets
    /// nothing else that a COMMIT would have to follow.
    pub(super) fn may_be_stable(&self, batch: u64, lane: Lane) -> bool {
        self.in_flight.keys().all(|other| *other == batch) && !self.is_uncommitted(lane)
    }

    /// Records that a server received bytes of a batch. Returns the window space that they no longer use, because they
    /// are durable or given up.
    #[must_use]
    pub(super) fn received(&mut self, batch: u64, lane: Lane, piece: Piece, (written, under): (Written, Under)) -> u64 {
        if let Some(batch) = self.in_flight.get_mut(&batch) {
            batch.bytes = batch.bytes.saturating_sub(piece.bytes());
        }
        self.keep(batch, lane, piece, (written, under))
    }

    /// Records that bytes of a batch could not be written; returns their number.
    #[must_use]
    pub(super) fn lost(&mut self, batch: u64, bytes: u64) -> u64 {
        if let Some(batch) = self.in_flight.get_mut(&batch) {
            batch.bytes = batch.bytes.saturating_sub(bytes);
        }
        bytes
    }

    /// Records that a request of a batch has ended, after [`DirtyData::received`] or [`DirtyData::lost`]. Returns the
    /// batch if this was its last request.
    pub(super) fn request_ended(&mut self, number: u64, done: bool) -> Option<Batch> {
        let batch = self.in_flight.get_mut(&number)?;
        // A failed request may end at once, so its time says nothing.
        batch.timed = batch.timed.filter(|_| done);
        batch.left -= 1;
        if batch.left > 0 { None } else { self.in_flight.remove(&number) }
    }

    /// Returns whether the bytes of a batch must not be written any more.
    pub(super) fn is_given_up(&self, batch: u64) -> bool {
        batch < self.given_up
    }
}

/// Uncommitted bytes.
impl DirtyData {
    fn keep(&mut self, number: u64, lane: Lane, piece: Piece, (written, under): (Written, Under)) -> u64 {
        if lane != Lane::Mgr && written.stable {
            self.became_durable(piece.end(), under.grant);
        }
        if written.stable || self.is_given_up(number) {
            return piece.bytes();
        }
        self.uncommitted_at_most += piece.bytes();
        let sent = Sent { number, acknowledged: self.acknowledged, piece, verifier: written.verifier, under };
        self.acknowledged += 1;
        self.uncommitted.entry(lane).or_default().push(sent);
        0
    }

    /// Returns whether the server of this lane may lose bytes.
    pub(super) fn is_uncommitted(&self, lane: Lane) -> bool {
        self.uncommitted.get(&lane).is_some_and(|all| !all.is_empty())
    }

    /// Returns whether servers may lose more than `many` bytes. Committed bytes are subtracted only when the upper
    /// bound exceeds `many`, because there may be a hundred thousand pieces.
    pub(super) fn is_uncommitted_beyond(&mut self, many: u64) -> bool {
        if self.uncommitted_at_most > many {
            self.uncommitted_at_most = self.uncommitted_bytes();
        }
        self.uncommitted_at_most > many
    }

    fn uncommitted_bytes(&self) -> u64 {
        self.uncommitted.values().flatten().map(|sent| sent.piece.bytes()).sum()
    }

    /// Returns the lanes with uncommitted bytes that pending bytes replace on another path: those that take the direct
    /// path, and those that take the mgr path.
    pub(super) fn lanes_off_path(&self, direct: &[ByteRange], through_mgr: &[ByteRange]) -> Vec<Lane> {
        let off_path = |(lane, sent): &(&Lane, &Vec<Sent>)| {
            let others = if **lane == Lane::Mgr { direct } else { through_mgr };
            sent.iter().any(|sent| sent.piece.parts.iter().any(|part| part.overlaps_any(others)))
        };
        self.uncommitted.iter().filter(off_path).map(|(lane, _)| *lane).collect()
    }

    /// Returns the number up to which a COMMIT that is sent now covers writes, for [`DirtyData::committed`]; `None` if
    /// there is nothing to commit. A COMMIT covers only bytes that the server received before.
    pub(super) fn covered_by_commit(&self, lane: Lane) -> Option<u64> {
        self.is_uncommitted(lane).then_some(self.acknowledged)
    }

    /// Processes the answer to a COMMIT that covers those writes of a lane that were acknowledged before number
    /// `covered`.
    ///
    /// From the first lost write on, all writes are kept: a later one may overlap it, and must overwrite it again.
    #[must_use]
    pub(super) fn committed(&mut self, lane: Lane, covered: u64, verifier: Verifier) -> Committed {
        let Some(all) = self.uncommitted.get_mut(&lane) else { return Committed::All(0) };
        #[cfg(feature = "planted")]
        if types::planted::is_planted(types::planted::Planted::CommitVerifier) {
            all.iter_mut().for_each(|sent| sent.verifier = verifier);
        }
        // Other clients may have truncated bytes that were sent before the layout was lost, so these bytes count as
        // lost. Shared files are exempt: every call there sees the writes of other clients that returned before, so
        // their later changes stay.
        let grant = self.grant;
        let granted = |sent: &Sent| lane == Lane::Mgr || sent.under.grant == grant;
        let lives = |sent: &Sent| sent.verifier == verifier && (sent.under.shared || granted(sent));
        let lost = all.iter().filter(|sent| sent.acknowledged < covered && !lives(sent));
        let first_lost = lost.map(|sent| sent.number).min();
        let safe = |sent: &Sent| first_lost.is_none_or(|first| sent.number < first);
        let (mut freed, mut end, mut under) = (0, None, grant);
        all.retain(|sent| {
            let free = sent.acknowledged < covered && safe(sent);
            if free {
                freed += sent.piece.bytes();
                under = under.min(sent.under.grant);
                end = end.max(Some(sent.piece.end()));
            }
            !free
        });
        // Answers to parallel requests arrive in any order; bytes are sent again in the order in which they were first
        // sent.
        all.sort_by_key(|sent| sent.number);
        if all.is_empty() {
            self.uncommitted.remove(&lane);
        }
        if let Some(end) = end.filter(|_| lane != Lane::Mgr) {
            self.became_durable(end, under);
        }
        if first_lost.is_some() { Committed::Lost(freed) } else { Committed::All(freed) }
    }

    /// Returns the number of pieces that a lane's server may lose.
    pub(super) fn pieces(&self, lane: Lane) -> usize {
        self.uncommitted.get(&lane).map_or(0, Vec::len)
    }

    /// Returns a piece of a lane by its position in the order of sending, to be sent again.
    pub(super) fn resend(&self, lane: Lane, at: usize) -> Option<Resend> {
        let sent = self.uncommitted.get(&lane)?.get(at)?;
        Some(Resend { at, acknowledged: sent.acknowledged, number: sent.number, piece: sent.piece.clone() })
    }

    /// Records that the lane's server received a piece again, under this grant.
    pub(super) fn resent(&mut self, lane: Lane, resend: &Resend, verifier: Verifier, grant: u64) {
        let sent = self.uncommitted.get_mut(&lane).and_then(|all| all.get_mut(resend.at));
        // The bytes may have been dropped in the meantime.
        if let Some(sent) = sent.filter(|sent| sent.acknowledged == resend.acknowledged) {
            (sent.verifier, sent.under.grant) = (verifier, grant);
        }
    }

    /// Records that the mgr received a piece of a lane instead, in these ranges. Returns the window space that the
    /// bytes no longer use.
    #[must_use]
    pub(super) fn moved_to_mgr(
        &mut self,
        lane: Lane,
        resend: &Resend,
        received: Vec<(ByteRange, Bytes, Written)>,
    ) -> u64 {
        let Some(all) = self.uncommitted.get_mut(&lane) else { return 0 };
        // The bytes may have been dropped in the meantime.
        let Some(at) = all.iter().position(|sent| sent.acknowledged == resend.acknowledged) else { return 0 };
        let sent = all.remove(at);
        if all.is_empty() {
            self.uncommitted.remove(&lane);
        }
        let keep = |(range, data, written)| {
            self.keep(sent.number, Lane::Mgr, Piece::of_range(range, data), (written, Under::MGR))
        };
        received.into_iter().map(keep).sum()
    }

    /// Drops the bytes that a lane's server may lose.
    #[must_use]
    pub(super) fn drop_lane(&mut self, lane: Lane) -> u64 {
        let lost = self.uncommitted.remove(&lane).unwrap_or_default();
        lost.iter().map(|sent| sent.piece.bytes()).sum()
    }

    /// Returns whether the mgr received bytes of `range` that it may not have sent to the iods yet.
    pub(super) fn is_gathered(&self, range: ByteRange) -> bool {
        self.are_gathered(&[range])
    }

    /// Returns whether the mgr received bytes of these sorted ranges that it may not have sent to the iods yet.
    pub(super) fn are_gathered(&self, ranges: &[ByteRange]) -> bool {
        let sent = self.uncommitted.get(&Lane::Mgr).into_iter().flatten();
        sent.flat_map(|sent| &sent.piece.parts).any(|part| part.overlaps_any(ranges))
    }

    /// Returns the bytes of `range` that servers received but may still lose; where several overlap, the latest.
    pub(super) fn kept(&self, range: ByteRange) -> Extents {
        let overlaps = |sent: &&Sent| sent.piece.parts.iter().any(|part| part.intersection(range).is_some());
        let mut all: Vec<&Sent> = self.uncommitted.values().flatten().filter(overlaps).collect();
        all.sort_by_key(|sent| sent.number);
        let mut kept = Extents::default();
        for sent in all {
            sent.piece.each(range, |offset, data| {
                kept.insert(offset, data);
            });
        }
        kept
    }
}

/// The report to the mgr.
impl DirtyData {
    /// Returns the number of the grant under which bytes are sent now.
    pub(super) fn grant(&self) -> u64 {
        self.grant
    }

    /// Records that a layout was granted after another one was lost.
    pub(super) fn granted_again(&mut self) {
        self.grant += 1;
        self.ask_iods = self.unreported.is_some();
    }

    /// Records that bytes up to `end`, sent under this grant, are durable in objects and not reported to the mgr.
    pub(super) fn became_durable(&mut self, end: u64, grant: u64) {
        self.unreported = Some(self.unreported.unwrap_or(0).max(end));
        self.ask_iods |= grant != self.grant;
    }

    /// Records that the file may have holes that were made here.
    pub(super) fn made_hole(&mut self) {
        self.holes = true;
    }

    /// Returns whether the file may have holes that were made here.
    pub(super) fn has_holes(&self) -> bool {
        self.holes
    }

    /// Returns the report that is due: its end, and the update that goes with it.
    pub(super) fn report_due(&self) -> Option<(u64, Update)> {
        self.unreported.map(|end| (end, Update { measure: self.ask_iods, holes: self.holes, ..Update::default() }))
    }

    /// Records that the mgr received a report up to `end`. Returns `None` if a later one is due, else whether the iods
    /// may have reported another size to the mgr than the one known here.
    pub(super) fn reported(&mut self, end: u64) -> Option<bool> {
        self.unreported.take_if(|due| *due == end)?;
        Some(std::mem::take(&mut self.ask_iods))
    }

    /// Drops the due report.
    pub(super) fn drop_report(&mut self) {
        self.unreported = None;
    }
}

/// The whole.
impl DirtyData {
    /// Returns the window space that the bytes use.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        let in_flight: u64 = self.in_flight.values().map(|batch| batch.bytes).sum();
        self.pending.bytes() + in_flight + self.uncommitted_bytes()
    }

    /// Returns one past the last byte written here that the mgr may not know of yet, or that a server may still lose.
    pub(super) fn own_end(&self) -> u64 {
        self.own_end_of(|_| true)
    }

    /// Returns the end like [`DirtyData::own_end`], for all unanswered bytes and those that the servers of these lanes
    /// may lose.
    pub(super) fn own_end_of(&self, counts: impl Fn(Lane) -> bool) -> u64 {
        let pending = self.pending.end();
        let in_flight = self.in_flight.values().flat_map(|batch| &batch.ranges).map(|range| range.end());
        let lanes = self.uncommitted.iter().filter(|(lane, _)| counts(**lane));
        let uncommitted = lanes.flat_map(|(_, sent)| sent).map(|sent| sent.piece.end());
        in_flight.chain(uncommitted).chain(self.unreported).max().unwrap_or(0).max(pending)
    }

    /// Returns whether everything written here is reported to the mgr and durable.
    pub(super) fn is_clean(&self) -> bool {
        self.uncommitted.is_empty() && self.is_clean_but(Lane::Mgr)
    }

    /// Returns whether nothing is left except the bytes that the server of this lane may still lose.
    pub(super) fn is_clean_but(&self, but: Lane) -> bool {
        let uncommitted = self.uncommitted.keys().any(|lane| *lane != but);
        self.pending.is_empty() && self.in_flight.is_empty() && !uncommitted && self.unreported.is_none()
    }

    /// Returns whether all bytes in this table are durable.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.in_flight.is_empty() && self.uncommitted.is_empty()
    }

    /// Returns the time of the last write in this mount.
    pub(super) fn written(&self) -> Option<Timestamp> {
        self.written
    }

    /// Drops everything that is not durable, and abandons the batches in flight: an answer to them keeps no bytes, and
    /// none of their requests is repeated.
    #[must_use]
    pub(super) fn give_up(&mut self) -> u64 {
        self.given_up = self.next_batch;
        let uncommitted = self.uncommitted_bytes();
        self.uncommitted.clear();
        self.drop_pending() + uncommitted
    }

    /// Records that the client dropped bytes that iods may or may not hold.
    pub(super) fn became_unsure(&mut self) {
        self.unsure = true;
    }

    /// Returns whether everything written here is durable or was never sent, provided that nothing is left to be
    /// committed.
    pub(super) fn is_sure(&self) -> bool {
        !self.unsure
    }
}
