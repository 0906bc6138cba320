//! Tests of dirty data: every short history of writes, replies, COMMITs and server restarts, compared with a model of
//! the servers.

use super::*;
use crate::explorer::walk;

/// The length in bytes of the file under test.
const BYTES: usize = 3;
const WHOLE: ByteRange = ByteRange { offset: 0, len: BYTES as u64 };
const DIRECT: Lane = Lane::Direct(0);
const LANES: [Lane; 2] = [DIRECT, Lane::Mgr];
const TIME: Timestamp = Timestamp { secs: 0, nanos: 0 };

/// The contents of a file: for each byte the number of the write that wrote it, or 0.
type Content = [u8; BYTES];

#[derive(Clone, Copy, Debug)]
enum Call {
    /// The program writes the byte range from the first offset up to, and not including, the second offset.
    Write(u64, u64),
    /// The client sends all pending bytes to this server in one request.
    Send(Lane),
    /// A server executes the oldest or newest request in flight, and the client receives the reply.
    Answer { newest: bool, stable: bool },
    /// The oldest request in flight fails.
    Fail,
    /// The server restarts, and loses bytes that are not durable.
    Restart(Lane),
    /// The server executes a COMMIT.
    Commit(Lane),
    /// The client receives the reply to the COMMIT, and sends lost bytes again.
    Committed(Lane),
    /// The iod becomes unreachable: the client sends its uncommitted bytes to the mgr.
    Move,
    /// The client loses its layout. The mgr truncates bytes that are not committed, and grants another layout.
    LoseLayout,
    /// The client sends the size report that is due, and the mgr receives it.
    Report,
    /// The client loses its locks, and gives up its writes.
    GiveUp,
}

/// The model of one server.
#[derive(Clone, Debug, Default)]
struct Server {
    restarts: u8,
    /// The received bytes that are not durable, in the order of arrival.
    volatile: Vec<(u64, Vec<u8>)>,
    /// A COMMIT whose reply the client has not received: the number of writes that the COMMIT covers, and the verifier.
    commit: Option<(u64, Verifier)>,
}

#[derive(Clone, Debug)]
struct Request {
    batch: u64,
    lane: Lane,
    piece: Piece,
    grant: u64,
}

#[derive(Clone, Debug, Default)]
struct Model {
    dirty: DirtyData,
    /// The window space that the dirty bytes occupy.
    reserved: u64,
    /// The contents of the file as the program has written it.
    written: Content,
    /// The bytes whose loss the client has reported to the program.
    failed: [bool; BYTES],
    writes: u8,
    requests: Vec<Request>,
    servers: BTreeMap<Lane, Server>,
    disk: Content,
    /// The file offset just after the last byte that is durable on an iod and not reported to the mgr.
    unreported: u64,
    gave_up: bool,
}

fn put(content: &mut Content, offset: u64, data: &[u8]) {
    content[offset as usize..][..data.len()].copy_from_slice(data);
}

impl Server {
    fn verifier(&self) -> Verifier {
        Verifier([self.restarts; 8])
    }
}

impl Model {
    fn apply(&mut self, call: Call) -> bool {
        let possible = self.execute(call);
        if possible {
            self.check();
            self.clone().drain();
        }
        possible
    }

    fn execute(&mut self, call: Call) -> bool {
        match call {
            Call::Write(offset, end) => {
                self.writes += 1;
                let data = vec![self.writes; (end - offset) as usize];
                self.reserved += data.len() as u64;
                put(&mut self.written, offset, &data);
                (offset..end).for_each(|at| self.failed[at as usize] = false);
                self.reserved -= self.dirty.write(offset, data.into(), TIME);
                true
            }
            Call::Send(lane) => self.send(lane),
            Call::Answer { newest, stable } => self.answer(newest, stable),
            Call::Fail => self.fail(),
            Call::Restart(lane) => {
                let server = self.servers.entry(lane).or_default();
                server.restarts += 1;
                !std::mem::take(&mut server.volatile).is_empty()
            }
            Call::Commit(lane) => self.commit(lane),
            Call::Committed(lane) => self.committed(lane),
            Call::Move => self.move_to_mgr(),
            Call::LoseLayout => {
                self.dirty.granted_again();
                self.servers.entry(DIRECT).or_default().volatile.clear();
                self.dirty.grant() == 1
            }
            Call::Report => {
                let due = self.dirty.report_due();
                assert_eq!(due.is_some(), self.unreported > 0);
                let Some((end, _)) = due else { return false };
                assert_eq!(end, self.unreported);
                assert!(self.dirty.reported(end - 1).is_none(), "a later report is due");
                assert!(self.dirty.reported(end).is_some());
                assert!(self.dirty.reported(end).is_none(), "it is reported once");
                self.unreported = 0;
                true
            }
            Call::GiveUp => {
                self.reserved -= self.dirty.give_up();
                self.failed = [true; BYTES];
                assert!(self.requests.iter().all(|request| self.dirty.is_given_up(request.batch)));
                !std::mem::replace(&mut self.gave_up, true)
            }
        }
    }

    /// Sends the pending bytes as [`crate::inode::Inode`] does: only if no request in flight, and no uncommitted byte
    /// on another path, overlaps them.
    fn send(&mut self, lane: Lane) -> bool {
        let ranges = self.dirty.pending().ranges();
        let (direct, through_mgr) = if lane == DIRECT { (&ranges[..], &[][..]) } else { (&[][..], &ranges[..]) };
        if ranges.is_empty() || !self.dirty.lanes_off_path(direct, through_mgr).is_empty() {
            return false;
        }
        let overlaps = self.requests.iter().any(|request| request.piece.parts.iter().any(|p| p.overlaps_any(&ranges)));
        let begun = self.dirty.begin_batch();
        assert_eq!(begun.is_none(), overlaps);
        let Some((batch, extents)) = begun else { return false };
        self.dirty.divided(batch, 1, None);
        let payload = Arc::new(Payload::new(extents.gather(&ranges)));
        let grant = self.dirty.grant();
        self.requests.push(Request { batch, lane, piece: Piece { payload, parts: ranges }, grant });
        true
    }

    /// Lets a server execute a write; returns the reply.
    fn receive(&mut self, lane: Lane, piece: &Piece, stable: bool) -> Written {
        let server = self.servers.entry(lane).or_default();
        for (range, data) in piece.split() {
            if stable {
                put(&mut self.disk, range.offset, &data);
                self.unreported = if lane == DIRECT { self.unreported.max(range.end()) } else { self.unreported };
            } else {
                server.volatile.push((range.offset, data.to_vec()));
            }
        }
        Written { verifier: server.verifier(), stable }
    }

    fn answer(&mut self, newest: bool, stable: bool) -> bool {
        if self.requests.is_empty() || newest && self.requests.len() == 1 {
            return false;
        }
        let at = if newest { self.requests.len() - 1 } else { 0 };
        let Request { batch, lane, piece, grant } = self.requests[at].clone();
        // If the client lost the layout while the request was in flight, it sends the request again under the new
        // layout.
        let grant = if lane == DIRECT { grant.max(self.dirty.grant()) } else { grant };
        // If the client has moved older bytes of the same file ranges to the mgr, these older bytes must reach the
        // iods before this newer request.
        let waits = lane == DIRECT && self.dirty.are_gathered(&piece.parts);
        if waits || self.dirty.is_given_up(batch) || stable && !self.dirty.may_be_stable(batch, lane) {
            return false;
        }
        self.requests.remove(at);
        let written = self.receive(lane, &piece, stable);
        let under = if lane == DIRECT { SendConditions { grant, shared: false } } else { SendConditions::MGR };
        self.reserved -= self.dirty.received(batch, lane, piece, (written, under));
        assert!(self.dirty.request_ended(batch, true).is_some());
        true
    }

    fn fail(&mut self) -> bool {
        if self.requests.is_empty() {
            return false;
        }
        let request = self.requests.remove(0);
        for at in request.piece.parts.iter().flat_map(|part| part.offset..part.end()) {
            self.failed[at as usize] |= !self.dirty.pending().overlaps(ByteRange { offset: at, len: 1 });
        }
        self.reserved -= self.dirty.lost(request.batch, request.piece.bytes());
        assert!(self.dirty.request_ended(request.batch, false).is_some());
        true
    }

    fn commit(&mut self, lane: Lane) -> bool {
        let Some(covered) = self.dirty.covered_by_commit(lane) else { return false };
        let server = self.servers.entry(lane).or_default();
        if server.commit.is_some() {
            return false;
        }
        server.commit = Some((covered, server.verifier()));
        for (offset, data) in std::mem::take(&mut server.volatile) {
            put(&mut self.disk, offset, &data);
        }
        true
    }

    fn committed(&mut self, lane: Lane) -> bool {
        let Some((covered, verifier)) = self.servers.entry(lane).or_default().commit.take() else { return false };
        let before = self.ends_of(lane);
        let outcome = self.dirty.committed(lane, covered, verifier);
        let (Committed::All(freed) | Committed::Lost(freed)) = outcome;
        self.reserved -= freed;
        if lane == DIRECT {
            // The client must report to the mgr the file offset just after the last byte that became durable.
            let left = self.ends_of(lane);
            let gone = before.iter().filter(|end| !left.contains(end)).map(|(_, end)| *end).max();
            self.unreported = self.unreported.max(gone.unwrap_or(0));
        }
        if matches!(outcome, Committed::Lost(_)) {
            for at in 0..self.dirty.pieces(lane) {
                let resend = self.dirty.resend(lane, at).unwrap();
                let written = self.receive(lane, &resend.piece, false);
                self.dirty.resent(lane, &resend, written.verifier, self.dirty.grant());
            }
        }
        true
    }

    fn ends_of(&self, lane: Lane) -> Vec<(u64, u64)> {
        let all = self.dirty.uncommitted.get(&lane).into_iter().flatten();
        all.map(|sent| (sent.acknowledged, sent.piece.end())).collect()
    }

    /// Sends the uncommitted bytes of the iod to the mgr, in the order in which they were written.
    fn move_to_mgr(&mut self) -> bool {
        if !self.dirty.is_uncommitted(DIRECT) {
            return false;
        }
        // The mgr fences the layout, so the iod executes no more requests under this layout.
        let server = self.servers.entry(DIRECT).or_default();
        server.volatile.clear();
        server.commit = None;
        while let Some(resend) = self.dirty.resend(DIRECT, 0) {
            let pieces = resend.piece.split().into_iter();
            let received = pieces.map(|(range, data)| {
                let written = self.receive(Lane::Mgr, &Piece::of_range(range, data.clone()), false);
                (range, data, written)
            });
            let received = received.collect();
            self.reserved -= self.dirty.moved_to_mgr(DIRECT, &resend, received);
        }
        true
    }

    /// Compares the dirty data with the model.
    fn check(&self) {
        assert_eq!(self.reserved, self.dirty.bytes(), "window space");
        let mut newest = self.disk;
        let mut overlay = |extents: &Extents| {
            extents.overlapping(WHOLE).for_each(|(offset, data)| put(&mut newest, offset, data));
        };
        overlay(&self.dirty.kept(WHOLE));
        for request in self.requests.iter().filter(|request| !self.dirty.is_given_up(request.batch)) {
            let mut extents = Extents::default();
            for (range, data) in request.piece.split() {
                extents.insert(range.offset, data);
            }
            overlay(&extents);
        }
        overlay(self.dirty.pending());
        for at in 0..BYTES {
            let (newest, written, disk) = (newest[at], self.written[at], self.disk[at]);
            assert!(self.failed[at] || newest == written, "byte {at} is lost: {newest} instead of {written}");
            let is_durable = self.failed[at] || disk == written;
            assert!(is_durable || self.dirty.own_end() > at as u64, "own end is below byte {at}");
            assert!(is_durable || !self.dirty.is_clean(), "byte {at} is not durable");
        }
        assert!(self.dirty.own_end() >= self.unreported);
        assert_eq!(self.dirty.is_empty(), self.dirty.bytes() == 0 && self.requests.is_empty());
        assert!(
            self.dirty.clone().is_uncommitted_beyond(0) == LANES.iter().any(|lane| self.dirty.is_uncommitted(*lane))
        );
    }

    /// Completes all requests and commits, as fsync does. Then checks that the disk has the bytes that the program
    /// wrote.
    fn drain(mut self) {
        while !self.requests.is_empty() {
            let answered = self.answer(false, false);
            self.settle();
            assert!(answered || self.answer(false, false) || self.fail());
        }
        self.settle();
        if !self.dirty.pending().is_empty() {
            assert!(self.send(DIRECT) && self.answer(false, false));
            self.settle();
        }
        self.execute(Call::Report);
        self.check();
        assert!(self.dirty.is_clean() && self.dirty.is_empty() && self.reserved == 0, "everything is finished");
    }

    /// Sends COMMITs until no server has uncommitted bytes.
    fn settle(&mut self) {
        for lane in LANES {
            for _ in 0..3 {
                self.committed(lane);
                self.commit(lane);
            }
            assert!(!self.dirty.is_uncommitted(lane), "three rounds suffice without further restarts");
        }
    }
}

#[test]
fn no_history_with_one_server_loses_bytes() {
    let mut calls = vec![Call::Write(0, 2), Call::Write(1, 3), Call::Fail, Call::GiveUp, Call::Report];
    calls.extend([Call::Send(DIRECT), Call::Restart(DIRECT), Call::Commit(DIRECT), Call::Committed(DIRECT)]);
    for stable in [false, true] {
        calls.push(Call::Answer { newest: false, stable });
    }
    calls.extend([Call::Answer { newest: true, stable: false }, Call::LoseLayout]);
    let count = walk(&Model::default(), &calls, 7, Model::apply);
    assert!(count > 10_000, "{count} histories");
}

#[test]
fn overlapping_writes_on_two_paths_keep_their_order() {
    let mut calls =
        vec![Call::Write(0, 2), Call::Write(1, 3), Call::Move, Call::Answer { newest: false, stable: false }];
    for lane in LANES {
        calls.extend([Call::Send(lane), Call::Restart(lane), Call::Commit(lane), Call::Committed(lane)]);
    }
    let count = walk(&Model::default(), &calls, 8, Model::apply);
    assert!(count > 10_000, "{count} histories");
}

#[test]
fn a_report_asks_the_iods_if_bytes_became_durable_under_a_lost_layout() {
    let mut dirty = DirtyData::default();
    dirty.became_durable(5, 0);
    assert_eq!(dirty.report_due().map(|(end, update)| (end, update.measure)), Some((5, false)));
    dirty.granted_again();
    assert_eq!(dirty.report_due().map(|(end, update)| (end, update.measure)), Some((5, true)));
    assert_eq!(dirty.reported(5), Some(true));
    dirty.became_durable(7, 1);
    assert_eq!(dirty.reported(7), Some(false));
    dirty.became_durable(8, 0);
    assert_eq!(dirty.reported(8), Some(true));
}

#[test]
fn bytes_of_a_shared_file_survive_a_new_grant() {
    let mut dirty = DirtyData::default();
    let verifier = Verifier([1; 8]);
    for (shared, outcome) in [(true, Committed::All(3)), (false, Committed::Lost(0))] {
        assert_eq!(dirty.write(0, Bytes::from_static(b"abc"), TIME), 0);
        let (batch, _) = dirty.begin_batch().unwrap();
        let under = SendConditions { grant: dirty.grant(), shared };
        let piece = Piece::of_range(WHOLE, Bytes::from_static(b"abc"));
        assert_eq!(dirty.received(batch, DIRECT, piece, (Written { verifier, stable: false }, under)), 0);
        dirty.request_ended(batch, true);
        dirty.granted_again();
        let covered = dirty.covered_by_commit(DIRECT).unwrap();
        assert_eq!(dirty.committed(DIRECT, covered, verifier), outcome);
    }
}
