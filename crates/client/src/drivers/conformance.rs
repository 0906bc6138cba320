//! The conformance suite of layout drivers: the properties that the client relies on, checked for any driver over
//! servers in memory.
//!
//! Each check creates its own servers with a function of the driver under test. The checks write one file of at most
//! [`SIZE`] bytes.

use super::{Found, Layout, NotDone, Payload, ReadDone, Share};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use types::limits::PAYLOAD_MAX;
use types::{ByteRange, Verifier};
use xdr::Segments;

/// Largest size of the file under test.
pub(crate) const SIZE: u64 = 64 << 10;
/// Number of random histories for each driver (`SEEDS`), and number of operations in each history (`STEPS`).
const SEEDS: u64 = 12;
const STEPS: usize = 60;
/// How often the test client sends bytes again that a server has lost, before the check fails.
const ROUNDS: usize = 4;
/// A pause that is longer than the time after which a driver tries to reach an unreachable server again.
const LEFT_ALONE: Duration = Duration::from_secs(10);

/// How the server of a lane fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServerFault {
    /// The server is unreachable: it receives no requests.
    Unreachable,
    /// The server executes requests and does not reply.
    Silent,
    /// The server replies with an error, and executes at most a part of each request.
    Failing,
}

/// A driver under test, with the servers of one file in memory. The file is empty at first.
pub(crate) trait Fixture {
    /// Returns a layout of the file, as the mgr grants it when it knows that the first `durable` bytes of the file are
    /// durable.
    async fn grant(&self, durable: u64) -> Arc<dyn Layout>;
    /// Makes the server of a lane fail from now on, or work again if `fault` is `None`.
    fn fail(&self, lane: usize, fault: Option<ServerFault>);
    /// Restarts the server of a lane, which loses all bytes that are not durable.
    fn restart(&self, lane: usize);
    /// Removes all bytes of a lane from its server, including durable bytes. If bytes of a lane are on several servers,
    /// removes the file's bytes from the server of the lane.
    async fn lose(&self, lane: usize);
    /// Truncates the file on all servers, as the mgr does.
    async fn truncate(&self, size: u64);
    /// Fences the file: the servers then refuse all layouts that were granted before the fence.
    async fn fence(&self);
    /// Punches a hole on all servers, as the mgr does, if [`Fixture::changes_holes`] is false.
    async fn punch(&self, hole: ByteRange) {
        panic!("the driver punches {hole:?} itself");
    }
    /// Returns the number of requests that each server has received.
    fn received(&self) -> Vec<u64>;
    /// Returns whether all bytes of a lane are on the server of the lane. Otherwise a failing or restarted server
    /// affects all lanes.
    fn has_independent_lanes(&self) -> bool {
        true
    }
    /// Returns whether the lengths of the objects on the servers say which bytes of the file are durable. Otherwise
    /// [`Layout::reaches`] is always false.
    fn knows_lengths(&self) -> bool {
        true
    }
    /// Returns whether the driver punches holes and seeks data itself. Otherwise it leaves both to the mgr.
    fn changes_holes(&self) -> bool {
        true
    }
}

/// A deterministic random number generator (xorshift64*).
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound.max(1)
    }

    /// Returns at least one random range. The ranges are sorted by offset, do not overlap, and end at or below `end`.
    fn ranges(&mut self, end: u64) -> Vec<ByteRange> {
        let count = 1 + self.below(5);
        let longest = if self.below(3) == 0 { end } else { 700 };
        let mut ranges = Vec::new();
        let mut at = 0;
        for _ in 0..count {
            let offset = at + self.below(end - at);
            let len = (1 + self.below(longest)).min(end - offset);
            ranges.push(ByteRange { offset, len });
            at = offset + len;
            if at >= end {
                break;
            }
        }
        ranges
    }
}

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange { offset, len }
}

/// An unstable write, which its server may lose until the next COMMIT.
struct Sent {
    parts: Vec<ByteRange>,
    payload: Payload,
    verifier: Verifier,
}

/// A client of the layout. It keeps the uncommitted writes to each server, and sends them again after a restart of the
/// server, as the mount does.
struct Client<F> {
    fixture: F,
    layout: Arc<dyn Layout>,
    /// The expected contents of the file.
    file: Vec<u8>,
    sent: BTreeMap<usize, Vec<Sent>>,
    rng: Rng,
    /// The seed of the random history, which failed assertions print.
    seed: u64,
}

impl<F: Fixture> Client<F> {
    async fn new(fixture: F, seed: u64) -> Self {
        let layout = fixture.grant(0).await;
        let (file, sent, rng) = (Vec::new(), BTreeMap::new(), Rng::new(seed));
        Client { fixture, layout, file, sent, rng, seed }
    }

    fn size(&self) -> u64 {
        self.file.len() as u64
    }

    /// Returns a payload with the expected contents of the file ranges `parts`.
    fn payload(&self, parts: &[ByteRange]) -> Payload {
        let mut data = Segments::default();
        for part in parts {
            data.push(Bytes::copy_from_slice(&self.file[part.offset as usize..part.end() as usize]));
        }
        Payload::new(data)
    }

    /// Fills ranges of the expected file with random bytes, without sending them to a server.
    fn fill(&mut self, ranges: &[ByteRange]) {
        for range in ranges {
            self.file.resize(self.file.len().max(range.end() as usize), 0);
            for at in range.offset..range.end() {
                self.file[at as usize] = 1 + self.rng.below(255) as u8;
            }
        }
    }

    async fn write(&mut self, ranges: &[ByteRange]) {
        self.fill(ranges);
        for Share { lane, parts } in self.layout.shares(ranges) {
            let payload = self.payload(&parts);
            // Send a stable write only if the server has no unstable writes. Otherwise, after a restart of the server,
            // the client would send the older unstable writes again and overwrite the bytes of the stable write.
            let stable = !self.sent.contains_key(&lane) && self.rng.below(3) == 0;
            let written = self.layout.write(lane, &parts, &payload, stable).await;
            let written = written.unwrap_or_else(|e| panic!("seed {}: writing: {e:?}", self.seed));
            assert!(written.stable || !stable, "seed {}: a stable write was not made durable", self.seed);
            if !written.stable {
                let sent = Sent { parts, payload, verifier: written.verifier };
                self.sent.entry(lane).or_default().push(sent);
            }
        }
    }

    /// Sends COMMIT to the server of a lane until all writes to the server are durable. Sends a write again if the
    /// verifier of the write differs from the verifier of the COMMIT.
    async fn commit(&mut self, lane: usize) {
        for _ in 0..ROUNDS {
            let Some(sent) = self.sent.get_mut(&lane) else { return };
            let verifier = self.layout.commit(lane).await;
            let verifier = verifier.unwrap_or_else(|e| panic!("seed {}: committing: {e:?}", self.seed));
            let Some(first) = sent.iter().position(|sent| sent.verifier != verifier) else {
                self.sent.remove(&lane);
                return;
            };
            sent.drain(..first);
            for sent in sent {
                let written = self.layout.write(lane, &sent.parts, &sent.payload, false).await;
                sent.verifier = written.unwrap_or_else(|e| panic!("seed {}: again: {e:?}", self.seed)).verifier;
            }
        }
        panic!("seed {}: lane {lane} has another verifier after each of {ROUNDS} commits", self.seed);
    }

    async fn commit_all(&mut self) {
        for lane in 0..self.layout.lanes() {
            self.commit(lane).await;
        }
    }

    /// Writes and commits all [`SIZE`] bytes of the file.
    async fn write_all(&mut self) {
        self.write(&[range(0, SIZE)]).await;
        self.commit_all().await;
    }

    /// Reads a range and compares it with the expected contents.
    async fn check(&self, wanted: ByteRange) {
        let mut found = vec![None; wanted.len as usize];
        for Share { lane, parts } in self.layout.shares(&[wanted]) {
            let done = self.layout.read(lane, &parts).await;
            let ReadDone { runs, lost } = done.unwrap_or_else(|e| panic!("seed {}: reading: {e:?}", self.seed));
            assert!(lost.is_empty(), "seed {}: lost {lost:?}", self.seed);
            for (at, run) in runs {
                assert!(
                    parts.iter().any(|part| part.offset <= at && at + run.len() <= part.end()),
                    "a run is outside the requested parts"
                );
                let bytes = match &run {
                    Found::Data(data) => data.clone(),
                    Found::Nothing(len) => vec![0_u8; *len as usize].into(),
                };
                for (at, byte) in (at - wanted.offset..).zip(bytes) {
                    assert_eq!(found[at as usize].replace(byte), None, "seed {}: byte {at} twice", self.seed);
                }
            }
        }
        let expected = |at: u64| self.file.get(at as usize).copied().unwrap_or(0);
        for (at, byte) in (wanted.offset..).zip(found) {
            assert_eq!(byte, Some(expected(at)), "seed {}: byte {at}", self.seed);
        }
    }

    /// Seeks through all data of the file, and checks that all bytes outside the data ranges are zero.
    async fn check_data(&self) {
        if !self.fixture.changes_holes() {
            assert_eq!(class(self.layout.next_data(0).await), "not attempted");
            return;
        }
        let is_zero = |range: std::ops::Range<u64>| {
            let end = range.end.min(self.size());
            (range.start.min(end)..end).all(|at| self.file[at as usize] == 0)
        };
        let mut at = 0;
        while at < self.size() {
            let found = self.layout.next_data(at).await;
            let found = found.unwrap_or_else(|e| panic!("seed {}: seeking: {e:?}", self.seed));
            let Some(run) = found else { break };
            assert!(run.offset >= at && run.end() > run.offset, "seed {}: {run:?} from {at}", self.seed);
            assert!(is_zero(at..run.offset), "seed {}: data before {run:?}, from {at} on", self.seed);
            at = run.end();
        }
        assert!(is_zero(at..self.size()), "seed {}: data from {at} on", self.seed);
    }

    async fn punch(&mut self, hole: ByteRange) {
        self.commit_all().await;
        match self.layout.punch(hole).await {
            Err(NotDone::NotAttempted(_)) if !self.fixture.changes_holes() => self.fixture.punch(hole).await,
            punched => punched.unwrap_or_else(|e| panic!("seed {}: punching: {e:?}", self.seed)),
        }
        self.file[hole.offset as usize..hole.end() as usize].fill(0);
    }

    async fn truncate(&mut self, size: u64) {
        self.commit_all().await;
        self.layout.truncating();
        self.fixture.truncate(size).await;
        self.file.resize(size as usize, 0);
    }

    /// Gets another layout. In the new layout, the bytes of the file count as durable only if the old layout reports
    /// that the servers store all of them durably.
    async fn renew(&mut self) {
        let durable = if self.layout.reaches(self.size()) { self.size() } else { 0 };
        self.layout = self.fixture.grant(durable).await;
    }

    async fn step(&mut self) {
        let size = self.size();
        match self.rng.below(16) {
            0..6 => {
                let ranges = self.rng.ranges(SIZE);
                self.write(&ranges).await;
            }
            6..9 => {
                let wanted = self.rng.ranges(SIZE)[0];
                self.check(wanted).await;
            }
            9 | 10 => {
                let lane = self.rng.below(self.layout.lanes() as u64) as usize;
                self.commit(lane).await;
            }
            11 => {
                let lane = self.rng.below(self.layout.lanes() as u64) as usize;
                self.fixture.restart(lane);
                match self.fixture.has_independent_lanes() {
                    true => self.commit(lane).await,
                    false => self.commit_all().await,
                }
            }
            12 if size > 0 => {
                let hole = self.rng.ranges(size)[0];
                self.punch(hole).await;
            }
            13 => {
                let size = self.rng.below(SIZE);
                self.truncate(size).await;
            }
            14 => self.renew().await,
            _ => self.check_data().await,
        }
    }
}

/// Random histories of writes, reads, commits, holes, truncates, searches for data, server restarts and layout renewals
/// keep the contents of the file.
pub(crate) async fn random_histories<F: Fixture>(make: impl Fn() -> F) {
    for seed in 0..SEEDS {
        let mut client = Client::new(make(), seed).await;
        for _ in 0..STEPS {
            client.step().await;
        }
        client.commit_all().await;
        (0..client.layout.lanes()).for_each(|lane| client.fixture.restart(lane));
        client.check(range(0, SIZE)).await;
        client.check_data().await;
    }
}

/// The shares of a layout cover the requested ranges exactly. Each share fits into one request to one server, and each
/// byte belongs to one lane.
pub(crate) async fn shares_cover_the_ranges<F: Fixture>(make: impl Fn() -> F) {
    let fixture = make();
    let layout = fixture.grant(0).await;
    let lane_of = |at: u64| match &layout.shares(&[range(at, 1)])[..] {
        [Share { lane, parts }] if parts[..] == [range(at, 1)] => *lane,
        other => panic!("one byte is one share, not {other:?}"),
    };
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let ranges = rng.ranges([SIZE, 5 * PAYLOAD_MAX as u64][(seed % 2) as usize]);
        let shares = layout.shares(&ranges);
        let mut parts: Vec<ByteRange> = Vec::new();
        let mut lanes = BTreeSet::new();
        for share in &shares {
            assert!(share.lane < layout.lanes(), "seed {seed}");
            assert!(share.parts.windows(2).all(|pair| pair[0].end() < pair[1].offset), "seed {seed}: not in order");
            let bytes: u64 = share.parts.iter().map(|part| part.len).sum();
            assert!(bytes <= PAYLOAD_MAX as u64, "seed {seed}: a share of {bytes} bytes");
            for part in &share.parts {
                for at in [part.offset, part.offset + part.len / 2, part.end() - 1] {
                    assert_eq!(lane_of(at), share.lane, "seed {seed}: byte {at}");
                }
            }
            parts.extend(&share.parts);
            lanes.insert(share.lane);
        }
        let total: u64 = ranges.iter().map(|range| range.len).sum();
        if total <= PAYLOAD_MAX as u64 {
            assert_eq!(shares.len(), lanes.len(), "seed {seed}: one request for each server is enough");
        }
        assert!(shares.windows(2).all(|pair| pair[0].parts[0].offset < pair[1].parts[0].offset), "seed {seed}");
        parts.sort_by_key(|part| part.offset);
        let mut merged: Vec<ByteRange> = Vec::new();
        for part in parts {
            assert!(part.len > 0, "seed {seed}: an empty part");
            match merged.last_mut() {
                Some(last) if last.end() == part.offset => last.len += part.len,
                _ => merged.push(part),
            }
        }
        let joined = ranges.into_iter().fold(Vec::<ByteRange>::new(), |mut all, range| {
            match all.last_mut() {
                Some(last) if last.end() == range.offset => last.len += range.len,
                _ => all.push(range),
            }
            all
        });
        assert_eq!(merged, joined, "seed {seed}");
    }
}

/// The verifier of a lane changes when the server of that lane restarts, and only then. If the lanes are not
/// independent, it changes when any server restarts.
pub(crate) async fn verifiers_belong_to_lanes<F: Fixture>(make: impl Fn() -> F) {
    let mut client = Client::new(make(), 1).await;
    client.write_all().await;
    let lanes = client.layout.lanes();
    for restarted in 0..lanes {
        client.fill(&[range(0, SIZE)]);
        let mut before = BTreeMap::new();
        for Share { lane, parts } in client.layout.shares(&[range(0, SIZE)]) {
            let payload = client.payload(&parts);
            let written = client.layout.write(lane, &parts, &payload, false).await.unwrap();
            let known = *before.entry(lane).or_insert(written.verifier);
            assert_eq!(known, written.verifier, "one server, one verifier");
            client.sent.entry(lane).or_default().push(Sent { parts, payload, verifier: written.verifier });
        }
        assert_eq!(before.len(), lanes, "the file has bytes on every lane");
        client.fixture.restart(restarted);
        let received = client.fixture.received();
        for (lane, known) in before {
            let now = client.layout.commit(lane).await.unwrap();
            let kept = lane != restarted && client.fixture.has_independent_lanes();
            assert_eq!(now == known, kept, "lane {lane} after a restart of {restarted}");
        }
        let asked: Vec<u64> =
            client.fixture.received().iter().zip(received).map(|(now, before)| now - before).collect();
        assert!(asked.iter().all(|asked| *asked == 1), "one COMMIT to each server, not {asked:?}");
        client.commit_all().await;
        client.check(range(0, SIZE)).await;
    }
}

/// If the caller passes file ranges with a lane whose server does not store them, or with a lane that the layout does
/// not have, the driver sends nothing.
pub(crate) async fn lanes_are_never_mixed<F: Fixture>(make: impl Fn() -> F) {
    let mut client = Client::new(make(), 1).await;
    client.write_all().await;
    let lanes = client.layout.lanes();
    let received = client.fixture.received();
    for Share { lane, parts } in client.layout.shares(&[range(0, SIZE)]) {
        let other = Payload::new(Segments::from(Bytes::from(vec![0; SIZE as usize])));
        for wrong in (0..=lanes).filter(|wrong| *wrong != lane) {
            let written = client.layout.write(wrong, &parts, &other, true).await;
            assert!(matches!(written, Err(NotDone::NotAttempted(_))), "{written:?}");
            let read = client.layout.read(wrong, &parts).await;
            assert!(matches!(read, Err(NotDone::NotAttempted(_))), "{read:?}");
        }
    }
    client.layout.commit(lanes).await.unwrap_err();
    assert_eq!(client.fixture.received(), received, "nothing was sent");
    client.check(range(0, SIZE)).await;
}

/// Returns the name of the outcome of a driver's request.
fn class<T>(attempt: Result<T, NotDone>) -> &'static str {
    match attempt {
        Ok(_) => "done",
        Err(NotDone::NotAttempted(_)) => "not attempted",
        Err(NotDone::Unanswered(_)) => "unanswered",
        Err(NotDone::Stale(_)) => "stale",
        Err(NotDone::Failed(_)) => "failed",
    }
}

/// A driver reports an unreachable, a silent and a failing server with the [`NotDone`] variant that fits the fault and
/// the request, and only for requests to that server.
pub(crate) async fn failures_have_their_class<F: Fixture>(make: impl Fn() -> F) {
    for fault in [ServerFault::Unreachable, ServerFault::Silent, ServerFault::Failing] {
        let mut client = Client::new(make(), 1).await;
        client.write_all().await;
        let layout = client.layout.clone();
        let (repeatable, change) = match fault {
            ServerFault::Unreachable => ("not attempted", "not attempted"),
            ServerFault::Silent => ("not attempted", "unanswered"),
            ServerFault::Failing => ("failed", "failed"),
        };
        for failing in 0..layout.lanes() {
            let what = format!("{fault:?} on lane {failing}");
            // If a lane has bytes on several servers, a request may or may not need the failing one. A server with a
            // failing disk may still execute requests of its own lane in memory.
            let independent = client.fixture.has_independent_lanes();
            let expect = |lane: usize, class: &str, if_failing: &str, doing: &str| {
                let expected = if lane == failing { if_failing } else { "done" };
                let either = !independent && (lane != failing || fault == ServerFault::Failing);
                let fits = class == expected || either && (class == if_failing || class == "done");
                assert!(fits, "{what}: {doing} {lane}: {class} instead of {expected}");
            };
            let shares = layout.shares(&[range(0, SIZE)]);
            for Share { lane, parts } in &shares {
                layout.write(*lane, parts, &client.payload(parts), false).await.unwrap();
            }
            client.fixture.fail(failing, Some(fault));
            for Share { lane, parts } in &shares {
                expect(*lane, class(layout.read(*lane, parts).await), repeatable, "reading");
                tokio::time::sleep(LEFT_ALONE).await;
                let written = layout.write(*lane, parts, &client.payload(parts), false).await;
                expect(*lane, class(written), change, "writing");
                tokio::time::sleep(LEFT_ALONE).await;
            }
            for lane in 0..layout.lanes() {
                expect(lane, class(layout.commit(lane).await), repeatable, "committing");
            }
            tokio::time::sleep(LEFT_ALONE).await;
            let punched = if client.fixture.changes_holes() { change } else { "not attempted" };
            assert_eq!(class(layout.punch(range(0, SIZE)).await), punched, "{what}: punching");
            client.fixture.fail(failing, None);
            tokio::time::sleep(LEFT_ALONE).await;
            client.fixture.restart(failing);
            // The test does not know which of the failed requests the server executed, so write the whole file again.
            client.write_all().await;
            client.check(range(0, SIZE)).await;
        }
    }
}

/// After a fence of the file, the servers refuse a layout that was granted before the fence, and accept a new layout.
pub(crate) async fn fenced_layouts_are_stale<F: Fixture>(make: impl Fn() -> F) {
    let mut client = Client::new(make(), 1).await;
    client.write_all().await;
    let old = client.layout.clone();
    client.fixture.fence().await;
    for Share { lane, parts } in old.shares(&[range(0, SIZE)]) {
        let payload = Payload::new(Segments::from(Bytes::from(vec![0; parts.iter().map(|p| p.len as usize).sum()])));
        assert_eq!(class(old.read(lane, &parts).await), "stale");
        assert_eq!(class(old.write(lane, &parts, &payload, true).await), "stale");
        assert_eq!(class(old.commit(lane).await), "stale");
    }
    let stale = if client.fixture.changes_holes() { "stale" } else { "not attempted" };
    assert_eq!(class(old.punch(range(0, SIZE)).await), stale);
    assert_eq!(class(old.next_data(SIZE / 2).await), stale);
    client.layout = client.fixture.grant(0).await;
    assert!(client.layout.generation().0 > old.generation().0);
    client.check(range(0, SIZE)).await;
    client.write_all().await;
    client.check(range(0, SIZE)).await;
}

/// If a server no longer has durable bytes, a read reports these bytes as lost, and a search for data reports their
/// range as data. This holds until the file is truncated. If the driver does not know the lengths of the objects, only
/// bytes that an index names can be lost.
pub(crate) async fn lost_bytes_are_reported<F: Fixture>(make: impl Fn() -> F) {
    let mut client = Client::new(make(), 1).await;
    client.write_all().await;
    let layout = client.fixture.grant(SIZE).await;
    let knows = client.fixture.knows_lengths();
    assert_eq!(layout.reaches(SIZE), knows, "the layout reaches the size that the mgr knows");
    assert!(!layout.reaches(SIZE + 1), "the layout reaches the size that the mgr knows");
    client.fixture.lose(0).await;
    let shares = layout.shares(&[range(0, SIZE)]);
    let mut all_lost = 0;
    for Share { lane, parts } in &shares {
        let done = layout.read(*lane, parts).await.unwrap();
        let bytes = |ranges: &[ByteRange]| ranges.iter().map(|range| range.len).sum::<u64>();
        let lost = bytes(&done.lost);
        if client.fixture.has_independent_lanes() {
            assert_eq!(lost, if *lane == 0 { bytes(parts) } else { 0 }, "lane {lane}");
        }
        all_lost += lost;
        let there: u64 = done.runs.iter().map(|(_, run)| run.len()).sum();
        assert_eq!(there, bytes(parts) - lost, "lane {lane}");
        for (at, run) in done.runs {
            let Found::Data(data) = run else { panic!("lost bytes at {at} are a hole") };
            assert_eq!(data, client.file[at as usize..at as usize + data.len()], "lane {lane}: byte {at}");
        }
    }
    assert!(all_lost > 0, "the server had bytes");
    if !knows {
        return;
    }
    let found = layout.next_data(0).await.unwrap();
    assert!(found.is_some_and(|run| run.offset == 0 && run.end() >= SIZE), "lost bytes count as data: {found:?}");
    layout.truncating();
    assert!(!layout.reaches(1), "the file is about to be truncated");
    for Share { lane, parts } in shares.iter().filter(|share| share.lane == 0) {
        let done = layout.read(*lane, parts).await.unwrap();
        assert!(done.lost.is_empty() && done.runs.iter().all(|(_, run)| matches!(run, Found::Nothing(_))));
    }
}

/// A layout counts bytes as durable only after a server has reported them as durable.
pub(crate) async fn durable_lengths_are_learned<F: Fixture>(make: impl Fn() -> F) {
    let mut client = Client::new(make(), 1).await;
    assert!(!client.layout.reaches(1), "the file is empty");
    client.write(&[range(0, SIZE / 2)]).await;
    client.commit_all().await;
    assert_eq!(client.layout.reaches(SIZE / 2), client.fixture.knows_lengths());
    assert!(!client.layout.reaches(SIZE), "the file is shorter");
    client.fill(&[range(SIZE / 2, SIZE / 2)]);
    for Share { lane, parts } in client.layout.shares(&[range(SIZE / 2, SIZE / 2)]) {
        client.layout.write(lane, &parts, &client.payload(&parts), false).await.unwrap();
    }
    assert!(!client.layout.reaches(SIZE), "unstable writes are not durable");
}

/// The placement of a file names a server for each lane, and its object sizes are consistent with the file size.
pub(crate) async fn placements_show_the_file<F: Fixture>(make: impl Fn() -> F) {
    let mut client = Client::new(make(), 1).await;
    let size = SIZE - 321;
    client.write(&[range(0, size)]).await;
    client.commit_all().await;
    let placement = client.layout.placement(size).await.unwrap();
    assert_eq!(placement.objects.len(), client.layout.lanes());
    assert_eq!(placement.file_size, size);
    let sizes: Vec<u64> = placement.objects.iter().map(|object| object.size).collect();
    if !client.fixture.knows_lengths() {
        return;
    }
    assert_eq!(placement.distribution.file_size(&sizes), size);
    assert!(placement.objects.iter().all(|object| object.allocated > 0), "{placement:?}");
}
