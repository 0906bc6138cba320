//! Dirty data of an open file, and the size report that the client owes the mgr. Dirty bytes are pending, in flight, or
//! uncommitted (received by a server that may still lose them).
//!
//! Bytes go from pending to in flight to uncommitted. They leave the dirty data when they are durable, or when the
//! client drops them and records an error. Each function that removes bytes returns the window space that they
//! occupied.

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

/// The server that the requests of a lane go to. Each server returns its own write verifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Lane {
    /// The data server with this index in the layout.
    Direct(usize),
    /// The mgr.
    Mgr,
}

/// Written bytes that the client sends to one server in one request, with their file ranges.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) payload: Arc<Payload>,
    /// The file ranges of the bytes, in the order of the payload.
    pub(super) parts: Vec<ByteRange>,
}

/// The conditions under which the client sent some bytes: the layout grant, and whether the file was shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SendConditions {
    /// The number of the layout grant ([`DirtyData::grant`]) under which the client sent the bytes; unused on the mgr
    /// path.
    pub(super) grant: u64,
    /// Whether the file was shared when the client sent the bytes. If so, other clients may have overwritten or
    /// truncated the bytes since then, and this client must not undo these changes by sending the bytes again.
    pub(super) shared: bool,
}

/// An uncommitted write: a server has received its bytes, and may still lose them.
#[derive(Clone, Debug)]
struct UncommittedWrite {
    /// The number of the batch that contains the write. The client sends batches in the order of their numbers.
    number: u64,
    /// The number of unstable writes that servers had acknowledged before this write; this number identifies the write.
    acknowledged: u64,
    piece: Piece,
    /// The verifier in the server's reply.
    verifier: Verifier,
    under: SendConditions,
}

/// An uncommitted write that the client has to send again.
pub(super) struct Resend {
    /// The index of the write in the list of the server's uncommitted writes. After a change of the list, this index
    /// has the same write as before only if the write there has the number `acknowledged`.
    at: usize,
    acknowledged: u64,
    /// The number of the batch that the write belongs to.
    pub(super) number: u64,
    pub(super) piece: Piece,
}

/// A batch: write requests that the client sends together.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    /// The file ranges that the batch writes.
    pub(super) ranges: Vec<ByteRange>,
    /// Number of requests of the batch that have no reply yet.
    left: usize,
    /// Number of bytes in the requests of the batch that have no reply yet.
    bytes: u64,
    /// When the client sent the batch, if the batch is one range and the client measures its total time.
    pub(super) timed: Option<Instant>,
}

/// The outcome of a COMMIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Committed {
    /// All bytes that the COMMIT covers are durable. Contains their number, which the caller releases from the write
    /// window.
    All(u64),
    /// The server has lost some of the bytes that the COMMIT covers. Contains the number of bytes that are durable,
    /// which the caller releases from the write window.
    Lost(u64),
}

/// The dirty data of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct DirtyData {
    /// Bytes that the client has accepted and not yet sent to a server.
    pending: Extents,
    /// Batches with requests that have no reply yet, by number.
    in_flight: BTreeMap<u64, Batch>,
    next_batch: u64,
    /// Batches with a number below this one are given up: the client lost the locks or the delegation under which
    /// programs wrote their bytes, and must not send the bytes any more.
    given_up: u64,
    /// Uncommitted writes of each server, in the order of the replies. Each COMMIT sorts the remaining writes into the
    /// order of sending.
    uncommitted: BTreeMap<Lane, Vec<UncommittedWrite>>,
    /// An upper bound for the number of uncommitted bytes.
    uncommitted_at_most: u64,
    /// Number of unstable writes that servers have acknowledged.
    acknowledged: u64,
    /// The file offset just after the last byte that became durable since the last LAYOUTCOMMIT. If set, a LAYOUTCOMMIT
    /// is due.
    unreported: Option<u64>,
    /// The number of times that the mgr granted a layout after the client had lost an earlier layout. While the client
    /// had no layout, the mgr may have truncated bytes that the client wrote under the lost layout.
    grant: u64,
    /// Whether bytes that the client has not reported to the mgr became durable under a layout that the client has
    /// lost. The mgr must then ask the iods for the length of the file.
    ask_iods: bool,
    /// Whether this client may have made holes in the file. If so, every size report says this, and the mgr asks the
    /// iods how much space the file uses.
    holes: bool,
    /// Whether the client dropped bytes that iods may have received. The mgr must then ask the iods for the length of
    /// the file.
    unsure: bool,
    /// The time of the last write on this mount.
    written: Option<Timestamp>,
}

impl SendConditions {
    /// The send conditions of bytes on the mgr path, which needs no layout: `grant` is unused.
    pub(super) const MGR: SendConditions = SendConditions { grant: 0, shared: false };
}

impl Piece {
    /// Creates the piece with the bytes of one file range.
    pub(super) fn of_range(range: ByteRange, data: Bytes) -> Piece {
        Piece { payload: Arc::new(Payload::new(data.into())), parts: vec![range] }
    }

    /// Returns the number of written bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.payload.data.len() as u64
    }

    /// Returns the largest end offset of the file ranges.
    pub(super) fn end(&self) -> u64 {
        self.parts.iter().map(|part| part.end()).max().unwrap_or(0)
    }

    /// Returns each file range with its bytes.
    pub(super) fn split(&self) -> Vec<(ByteRange, Bytes)> {
        let mut data = self.payload.data.to_bytes();
        self.parts.iter().map(|part| (*part, data.split_to(part.len as usize))).collect()
    }

    /// Calls `take` with the bytes inside the file range `range`: once for each contiguous part, with its file offset.
    /// Does not copy the bytes.
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

/// Pending bytes: accepted, and not yet sent.
impl DirtyData {
    /// Adds pending bytes, and returns how many earlier pending bytes they replace.
    #[must_use]
    pub(super) fn write(&mut self, offset: u64, data: Bytes, time: Timestamp) -> u64 {
        self.written = Some(time);
        self.pending.insert(offset, data)
    }

    /// Returns the pending bytes.
    pub(super) fn pending(&self) -> &Extents {
        &self.pending
    }

    /// Drops the pending bytes; returns their number.
    #[must_use]
    pub(super) fn drop_pending(&mut self) -> u64 {
        std::mem::take(&mut self.pending).bytes()
    }
}

/// Bytes in flight: sent, and not yet acknowledged.
impl DirtyData {
    /// Turns the pending bytes into a batch in flight; returns its number and its bytes. Returns `None` while a batch
    /// in flight overlaps the pending bytes.
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

    /// Records into how many requests the client divided a batch. Also records when the client sent the batch, if it
    /// measures how long the batch takes.
    pub(super) fn divided(&mut self, batch: u64, requests: usize, timed: Option<Instant>) {
        self.in_flight.entry(batch).and_modify(|batch| (batch.left, batch.timed) = (requests, timed));
    }

    /// Excludes a batch from the time measurements that set the write threshold: a request of the batch took the mgr
    /// path after the direct path had failed, so the time is not typical.
    pub(super) fn disregard_time(&mut self, batch: u64) {
        self.in_flight.entry(batch).and_modify(|batch| batch.timed = None);
    }

    /// Returns the number that the next batch will get.
    pub(super) fn next_batch(&self) -> u64 {
        self.next_batch
    }

    /// Returns whether a batch in flight with a number below `before` overlaps `range`.
    pub(super) fn is_in_flight(&self, range: ByteRange, before: u64) -> bool {
        self.in_flight.range(..before).any(|(_, batch)| batch.touches(range))
    }

    /// Returns whether a batch with only one request to this server may send the request as a stable write. A stable
    /// write saves a COMMIT only if the server has no other bytes that need a COMMIT.
    pub(super) fn may_be_stable(&self, batch: u64, lane: Lane) -> bool {
        self.in_flight.keys().all(|other| *other == batch) && !self.is_uncommitted(lane)
    }

    /// Records that a server received bytes of a batch. Returns the window space to release, which is the number of
    /// bytes that are durable or given up.
    #[must_use]
    pub(super) fn received(
        &mut self,
        batch: u64,
        lane: Lane,
        piece: Piece,
        (written, under): (Written, SendConditions),
    ) -> u64 {
        if let Some(batch) = self.in_flight.get_mut(&batch) {
            batch.bytes = batch.bytes.saturating_sub(piece.bytes());
        }
        self.keep(batch, lane, piece, (written, under))
    }

    /// Records that the client failed to write some bytes of a batch; returns their number.
    #[must_use]
    pub(super) fn lost(&mut self, batch: u64, bytes: u64) -> u64 {
        if let Some(batch) = self.in_flight.get_mut(&batch) {
            batch.bytes = batch.bytes.saturating_sub(bytes);
        }
        bytes
    }

    /// Records that a request of a batch has ended. The caller has called [`DirtyData::received`] or
    /// [`DirtyData::lost`] for its bytes before. Returns the batch if this was its last request in flight.
    pub(super) fn request_ended(&mut self, number: u64, done: bool) -> Option<Batch> {
        let batch = self.in_flight.get_mut(&number)?;
        // A failed request may end early. The total time of the batch is then not representative, so do not measure it.
        batch.timed = batch.timed.filter(|_| done);
        batch.left -= 1;
        if batch.left > 0 { None } else { self.in_flight.remove(&number) }
    }

    /// Returns whether a batch is given up, so that the client must not send its bytes any more.
    pub(super) fn is_given_up(&self, batch: u64) -> bool {
        batch < self.given_up
    }
}

/// Uncommitted bytes: received by a server that may still lose them.
impl DirtyData {
    fn keep(&mut self, number: u64, lane: Lane, piece: Piece, (written, under): (Written, SendConditions)) -> u64 {
        if lane != Lane::Mgr && written.stable {
            self.became_durable(piece.end(), under.grant);
        }
        if written.stable || self.is_given_up(number) {
            return piece.bytes();
        }
        self.uncommitted_at_most += piece.bytes();
        let sent =
            UncommittedWrite { number, acknowledged: self.acknowledged, piece, verifier: written.verifier, under };
        self.acknowledged += 1;
        self.uncommitted.entry(lane).or_default().push(sent);
        0
    }

    /// Returns whether a server has uncommitted bytes.
    pub(super) fn is_uncommitted(&self, lane: Lane) -> bool {
        self.uncommitted.get(&lane).is_some_and(|all| !all.is_empty())
    }

    /// Returns whether there are more than `many` uncommitted bytes. Counts the uncommitted bytes only if their
    /// recorded upper bound exceeds `many`, because there may be a hundred thousand writes.
    pub(super) fn is_uncommitted_beyond(&mut self, many: u64) -> bool {
        if self.uncommitted_at_most > many {
            self.uncommitted_at_most = self.uncommitted_bytes();
        }
        self.uncommitted_at_most > many
    }

    fn uncommitted_bytes(&self) -> u64 {
        self.uncommitted.values().flatten().map(|sent| sent.piece.bytes()).sum()
    }

    /// Returns the iods whose uncommitted bytes overlap the ranges `through_mgr`, and the mgr if its uncommitted bytes
    /// overlap the ranges `direct`. These are the ranges of the pending bytes that the client will send on the mgr path
    /// and on the direct path.
    pub(super) fn lanes_off_path(&self, direct: &[ByteRange], through_mgr: &[ByteRange]) -> Vec<Lane> {
        let off_path = |(lane, sent): &(&Lane, &Vec<UncommittedWrite>)| {
            let others = if **lane == Lane::Mgr { direct } else { through_mgr };
            sent.iter().any(|sent| sent.piece.parts.iter().any(|part| part.overlaps_any(others)))
        };
        self.uncommitted.iter().filter(off_path).map(|(lane, _)| *lane).collect()
    }

    /// Returns the number of writes acknowledged so far: a COMMIT that the client sends now covers only these writes.
    /// The caller passes the number to [`DirtyData::committed`]. Returns `None` if the server has no uncommitted bytes.
    pub(super) fn covered_by_commit(&self, lane: Lane) -> Option<u64> {
        self.is_uncommitted(lane).then_some(self.acknowledged)
    }

    /// Processes the reply to a COMMIT to one server. The COMMIT covers the writes to this server that are among the
    /// first `covered` acknowledged writes of the file.
    ///
    /// If writes are lost, keeps the first lost write and all later ones. A later write may overlap a lost write, and
    /// must be sent again after it.
    #[must_use]
    pub(super) fn committed(&mut self, lane: Lane, covered: u64, verifier: Verifier) -> Committed {
        let Some(all) = self.uncommitted.get_mut(&lane) else { return Committed::All(0) };
        #[cfg(feature = "planted")]
        if types::planted::is_planted(types::planted::Planted::CommitVerifier) {
            all.iter_mut().for_each(|sent| sent.verifier = verifier);
        }
        // Even if the verifier is unchanged, bytes sent under a layout that the client has lost count as lost, because
        // another client may have truncated them. This does not apply to bytes sent while the file was shared: sending
        // them again could undo later changes of other clients.
        let grant = self.grant;
        let granted = |sent: &UncommittedWrite| lane == Lane::Mgr || sent.under.grant == grant;
        let lives = |sent: &UncommittedWrite| sent.verifier == verifier && (sent.under.shared || granted(sent));
        let lost = all.iter().filter(|sent| sent.acknowledged < covered && !lives(sent));
        let first_lost = lost.map(|sent| sent.number).min();
        let safe = |sent: &UncommittedWrite| first_lost.is_none_or(|first| sent.number < first);
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
        // Replies to parallel requests arrive in any order, but bytes must be sent again in the order in which they
        // were first sent.
        all.sort_by_key(|sent| sent.number);
        if all.is_empty() {
            self.uncommitted.remove(&lane);
        }
        if let Some(end) = end.filter(|_| lane != Lane::Mgr) {
            self.became_durable(end, under);
        }
        if first_lost.is_some() { Committed::Lost(freed) } else { Committed::All(freed) }
    }

    /// Returns the number of uncommitted writes of a server.
    pub(super) fn pieces(&self, lane: Lane) -> usize {
        self.uncommitted.get(&lane).map_or(0, Vec::len)
    }

    /// Returns the uncommitted write at position `at` in the list of a server's uncommitted writes, so that the client
    /// can send it again.
    pub(super) fn resend(&self, lane: Lane, at: usize) -> Option<Resend> {
        let sent = self.uncommitted.get(&lane)?.get(at)?;
        Some(Resend { at, acknowledged: sent.acknowledged, number: sent.number, piece: sent.piece.clone() })
    }

    /// Records that the server received a write that the client sent again, under the layout grant with the number
    /// `grant`.
    pub(super) fn resent(&mut self, lane: Lane, resend: &Resend, verifier: Verifier, grant: u64) {
        let sent = self.uncommitted.get_mut(&lane).and_then(|all| all.get_mut(resend.at));
        // If the client dropped the write before the reply arrived, there is nothing to record.
        if let Some(sent) = sent.filter(|sent| sent.acknowledged == resend.acknowledged) {
            (sent.verifier, sent.under.grant) = (verifier, grant);
        }
    }

    /// Records that the mgr received a write that the client had first sent to a data server. The client sent the mgr
    /// one request for each range. Returns the window space to release.
    #[must_use]
    pub(super) fn moved_to_mgr(
        &mut self,
        lane: Lane,
        resend: &Resend,
        received: Vec<(ByteRange, Bytes, Written)>,
    ) -> u64 {
        let Some(all) = self.uncommitted.get_mut(&lane) else { return 0 };
        // If the client dropped the write before the reply arrived, there is nothing to record.
        let Some(at) = all.iter().position(|sent| sent.acknowledged == resend.acknowledged) else { return 0 };
        let sent = all.remove(at);
        if all.is_empty() {
            self.uncommitted.remove(&lane);
        }
        let keep = |(range, data, written)| {
            self.keep(sent.number, Lane::Mgr, Piece::of_range(range, data), (written, SendConditions::MGR))
        };
        received.into_iter().map(keep).sum()
    }

    /// Drops the uncommitted bytes of a server; returns their number.
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

    /// Returns the uncommitted bytes of `range`; where writes overlap, the bytes of the latest write.
    pub(super) fn kept(&self, range: ByteRange) -> Extents {
        let overlaps =
            |sent: &&UncommittedWrite| sent.piece.parts.iter().any(|part| part.intersection(range).is_some());
        let mut all: Vec<&UncommittedWrite> = self.uncommitted.values().flatten().filter(overlaps).collect();
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

/// The size report (LAYOUTCOMMIT) that the client owes the mgr.
impl DirtyData {
    /// Returns the number of the current layout grant, under which the client sends bytes now.
    pub(super) fn grant(&self) -> u64 {
        self.grant
    }

    /// Records that the mgr granted a layout after the client had lost its earlier layout.
    pub(super) fn granted_again(&mut self) {
        self.grant += 1;
        self.ask_iods = self.unreported.is_some();
    }

    /// Records that bytes up to file offset `end` are durable on iods, and that the client has to report this to the
    /// mgr. The client sent the bytes under the layout grant with the number `grant`.
    pub(super) fn became_durable(&mut self, end: u64, grant: u64) {
        self.unreported = Some(self.unreported.unwrap_or(0).max(end));
        self.ask_iods |= grant != self.grant;
    }

    /// Records that this client may have made a hole in the file.
    pub(super) fn made_hole(&mut self) {
        self.holes = true;
    }

    /// Returns the size report that is due, if any: the file offset just after the durable bytes, and the layout update
    /// of the LAYOUTCOMMIT.
    pub(super) fn report_due(&self) -> Option<(u64, Update)> {
        self.unreported.map(|end| (end, Update { measure: self.ask_iods, holes: self.holes, ..Update::default() }))
    }

    /// Records that the mgr received a size report up to file offset `end`. Returns `None` if another report has
    /// become due since the client sent this report. Otherwise returns whether the mgr requested the file length from
    /// the iods. If so, the mgr's size may differ from the size that the client knows.
    pub(super) fn reported(&mut self, end: u64) -> Option<bool> {
        self.unreported.take_if(|due| *due == end)?;
        Some(std::mem::take(&mut self.ask_iods))
    }

    /// Drops the size report that is due.
    pub(super) fn drop_report(&mut self) {
        self.unreported = None;
    }
}

/// All dirty data together.
impl DirtyData {
    /// Returns the space that all dirty bytes occupy in the write window.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        let in_flight: u64 = self.in_flight.values().map(|batch| batch.bytes).sum();
        self.pending.bytes() + in_flight + self.uncommitted_bytes()
    }

    /// Returns the file offset just after the last byte written on this client that a server may lose, or that the mgr
    /// may not know of.
    pub(super) fn own_end(&self) -> u64 {
        self.own_end_of(|_| true)
    }

    /// Returns a file offset like [`DirtyData::own_end`], but ignores the uncommitted bytes of servers for which
    /// `counts` returns false.
    pub(super) fn own_end_of(&self, counts: impl Fn(Lane) -> bool) -> u64 {
        let pending = self.pending.end();
        let in_flight = self.in_flight.values().flat_map(|batch| &batch.ranges).map(|range| range.end());
        let lanes = self.uncommitted.iter().filter(|(lane, _)| counts(**lane));
        let uncommitted = lanes.flat_map(|(_, sent)| sent).map(|sent| sent.piece.end());
        in_flight.chain(uncommitted).chain(self.unreported).max().unwrap_or(0).max(pending)
    }

    /// Returns whether all bytes written on this client are durable, and the client has reported them to the mgr.
    pub(super) fn is_clean(&self) -> bool {
        self.uncommitted.is_empty() && self.is_clean_but(Lane::Mgr)
    }

    /// Returns whether no bytes are dirty except uncommitted bytes on the server `but`.
    pub(super) fn is_clean_but(&self, but: Lane) -> bool {
        let uncommitted = self.uncommitted.keys().any(|lane| *lane != but);
        self.pending.is_empty() && self.in_flight.is_empty() && !uncommitted && self.unreported.is_none()
    }

    /// Returns whether no bytes are pending, in flight or uncommitted.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.in_flight.is_empty() && self.uncommitted.is_empty()
    }

    /// Returns the time of the last write on this mount.
    pub(super) fn written(&self) -> Option<Timestamp> {
        self.written
    }

    /// Drops all bytes that are not durable, and gives up the batches in flight: the client keeps none of their bytes,
    /// and repeats none of their requests. Returns the window space to release.
    #[must_use]
    pub(super) fn give_up(&mut self) -> u64 {
        self.given_up = self.next_batch;
        let uncommitted = self.uncommitted_bytes();
        self.uncommitted.clear();
        self.drop_pending() + uncommitted
    }

    /// Records that the client dropped bytes that iods may have received.
    pub(super) fn became_unsure(&mut self) {
        self.unsure = true;
    }

    /// Returns whether the client never dropped bytes that an iod may have received.
    pub(super) fn is_sure(&self) -> bool {
        !self.unsure
    }
}
