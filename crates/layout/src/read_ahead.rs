//! Read-ahead: detects sequential and strided readers, and predicts their next requests.

use types::ByteRange;

/// Maximum number of streams in one open file; a new stream replaces the one that was idle longest.
const STREAMS: usize = 4;
/// Number of requests that must follow a pattern before any read-ahead, not counting the first.
const HITS: u32 = 2;
/// Smallest read-ahead for a sequential stream, in bytes; it doubles as the stream continues, up to the limit.
const FIRST: u64 = 64 << 10;
/// Maximum number of records that are read ahead in a stride.
const RECORDS: u64 = 16;
/// Smallest record that is read ahead. Each record needs its own request. Besides, the ends of long reads that the
/// kernel splits at its limit of pages look like records.
const RECORD: u64 = 1024;

/// The streams of an open file, as far as their requests can be distinguished.
///
/// The type is pure: its input is each request, its output is the ranges to read ahead. A limit bounds the read-ahead
/// of one stream.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    streams: Vec<Stream>,
    /// Number of requests so far.
    clock: u64,
}

/// One stream of requests: a sequential or strided reader.
#[derive(Clone, Debug)]
struct Stream {
    /// The last request.
    last: ByteRange,
    /// Distance between the beginnings of consecutive requests; equal to the request length for a sequential stream.
    step: u64,
    /// Number of consecutive requests that followed the pattern.
    hits: u32,
    /// End of the read-ahead: for a sequential stream the end of its bytes, for a stride the next record.
    ahead: u64,
    /// Length of the last read-ahead.
    window: u64,
    /// The time of the last request, counted in requests.
    used: u64,
}

impl Stream {
    fn new(request: ByteRange, now: u64) -> Self {
        // A reader that begins at the beginning of a file will probably continue.
        let hits = u32::from(request.offset == 0);
        Stream { last: request, step: request.len, hits, ahead: 0, window: 0, used: now }
    }

    /// Returns whether this request continues the stream, sequentially or by the stride.
    fn follows(&self, request: ByteRange) -> bool {
        request.offset == self.last.end()
            || (request.len == self.last.len && request.offset == self.last.offset + self.step)
    }

    fn in_order(&self) -> bool {
        self.step == self.last.len
    }

    /// Adds a request that follows the pattern.
    fn advance(&mut self, request: ByteRange, now: u64) {
        let step = if request.offset == self.last.end() { request.len } else { self.step };
        let changed = self.in_order() != (step == request.len);
        self.hits = if changed { 1 } else { self.hits.saturating_add(1) };
        if changed {
            (self.ahead, self.window) = (0, 0);
        }
        (self.last, self.step, self.used) = (request, step, now);
    }

    /// Returns the ranges to read now, so that the data are there when the reader asks; at most `limit` bytes ahead of
    /// the reader.
    fn plan(&mut self, limit: u64) -> Vec<ByteRange> {
        if self.hits < HITS {
            return Vec::new();
        }
        if self.in_order() { self.plan_in_order(limit) } else { self.plan_stride(limit) }
    }

    fn plan_in_order(&mut self, limit: u64) -> Vec<ByteRange> {
        let end = self.last.end();
        self.ahead = self.ahead.max(end);
        // The next part is requested while half of the previous part is still unread.
        if self.ahead - end > self.window / 2 {
            return Vec::new();
        }
        self.window = (self.window * 2).max(FIRST).max(self.last.len * 2).min(limit);
        let offset = self.ahead;
        self.ahead = offset.saturating_add(self.window);
        vec![ByteRange { offset, len: self.ahead - offset }]
    }

    fn plan_stride(&mut self, limit: u64) -> Vec<ByteRange> {
        let next = self.last.offset.saturating_add(self.step);
        self.ahead = self.ahead.max(next);
        let records = (limit / self.last.len.max(1)).min(RECORDS);
        let waiting = (self.ahead - next) / self.step.max(1);
        if waiting > records / 2 {
            return Vec::new();
        }
        let mut out = Vec::new();
        if self.last.len < RECORD {
            return out;
        }
        for _ in waiting..records {
            if self.ahead > i64::MAX as u64 - self.step.max(self.last.len) {
                break;
            }
            out.push(ByteRange { offset: self.ahead, len: self.last.len });
            self.ahead += self.step;
        }
        out
    }
}

impl Streams {
    /// Notes a request and returns the ranges to read ahead, each for its own request; empty while the reader follows
    /// no pattern. `limit` is the maximum number of bytes to read ahead of this reader.
    pub fn note(&mut self, request: ByteRange, limit: u64) -> Vec<ByteRange> {
        if request.is_empty() || limit < request.len || request.offset.checked_add(request.len).is_none() {
            return Vec::new();
        }
        self.clock += 1;
        let now = self.clock;
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.follows(request)) {
            stream.advance(request, now);
            return stream.plan(limit);
        }
        // The second of two requests at a distance: the third request shows whether this is a stride.
        let stranger = |s: &&mut Stream| s.hits <= 1 && s.last.len == request.len && request.offset > s.last.end();
        if let Some(stream) = self.streams.iter_mut().filter(stranger).max_by_key(|stream| stream.used) {
            *stream = Stream { step: request.offset - stream.last.offset, hits: 1, ..Stream::new(request, now) };
            return Vec::new();
        }
        if self.streams.len() == STREAMS
            && let Some(oldest) = (0..STREAMS).min_by_key(|at| self.streams[*at].used)
        {
            self.streams.swap_remove(oldest);
        }
        self.streams.push(Stream::new(request, now));
        Vec::new()
    }

    /// Forgets all streams, because a change of the file made the read-ahead useless. Readers must show their patterns
    /// again.
    pub fn forget(&mut self) {
        self.streams.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 20;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange { offset, len }
    }

    /// Returns the read-ahead for these requests, in order.
    fn all(streams: &mut Streams, requests: impl IntoIterator<Item = ByteRange>) -> Vec<ByteRange> {
        requests.into_iter().flat_map(|request| streams.note(request, LIMIT)).collect()
    }

    #[test]
    fn a_sequential_reader_causes_each_byte_to_be_read_ahead_once() {
        for len in [1, 100, 4096, 5000, 128 << 10, 512 << 10] {
            let mut streams = Streams::default();
            let begin = 7 * len;
            let mut end: Option<u64> = None;
            let mut longest = 0;
            for n in 0..2000 {
                let request = range(begin + n * len, len);
                if n > 2 {
                    assert!(end.unwrap() >= request.end(), "{len}: request {n} was not read ahead");
                }
                for ahead in streams.note(request, LIMIT) {
                    assert!(n >= 2, "{len}: the third of a row tells");
                    assert_eq!(ahead.offset, end.unwrap_or(request.end()), "{len}: nothing twice, nothing left out");
                    longest = longest.max(ahead.len);
                    end = Some(ahead.end());
                }
                assert!(end.unwrap_or(0) <= request.end() + 2 * LIMIT, "{len}");
            }
            assert!(longest <= LIMIT && (len < 4096 || longest == LIMIT), "{len}: {longest}");
        }
    }

    #[test]
    fn read_ahead_starts_sooner_at_the_start_of_a_file() {
        let mut streams = Streams::default();
        assert_eq!(all(&mut streams, [range(0, 4096)]), []);
        assert_eq!(all(&mut streams, [range(4096, 4096)]), [range(8192, FIRST)]);
    }

    #[test]
    fn a_strided_reader_gets_its_records_read_ahead() {
        for (step, len) in [(8192, 4096), (376_832, 47_104), (5000, 1024)] {
            let mut streams = Streams::default();
            let mut there: Vec<ByteRange> = Vec::new();
            for n in 0..500 {
                let request = range(100 + n * step, len);
                if n > 2 {
                    let at = there.iter().position(|ahead| *ahead == request);
                    there.remove(at.unwrap_or_else(|| panic!("{step}: record {n} was not read ahead: {there:?}")));
                }
                there.extend(streams.note(request, LIMIT));
                assert!(there.len() <= RECORDS as usize && there.len() as u64 * len <= LIMIT);
            }
        }
    }

    #[test]
    fn short_strided_records_are_not_read_ahead() {
        let mut streams = Streams::default();
        let requests = (0..100).map(|n| range((n << 20) + (1 << 20) - 16, 16));
        assert_eq!(all(&mut streams, requests), []);
    }

    #[test]
    fn random_readers_cause_no_read_ahead() {
        let mut streams = Streams::default();
        let mut seed = 1_u64;
        let mut ahead = 0;
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ahead += all(&mut streams, [range((seed >> 40) * 4096, 4096)]).len();
        }
        assert_eq!(ahead, 0);
    }

    #[test]
    fn concurrent_readers_are_distinguished() {
        let mut streams = Streams::default();
        let bases = [1 << 30, 5 << 30, 7 << 30];
        let mut ends = [0; 3];
        for n in 0..300 {
            for (base, end) in bases.into_iter().zip(&mut ends) {
                let request = range(base + n * 4096, 4096);
                assert!(n < 8 || *end >= request.end(), "{n}");
                for ahead in streams.note(request, LIMIT) {
                    assert!(ahead.offset >= base && ahead.offset < base + (1 << 30));
                    *end = ahead.end();
                }
            }
        }
    }

    #[test]
    fn offsets_near_the_maximum_cause_no_overflow() {
        let mut streams = Streams::default();
        let top = u64::MAX - 4 * 4096;
        for n in 0..5 {
            streams.note(range(top + n * 4096, 4096), LIMIT);
        }
        let mut streams = Streams::default();
        for n in 0..4 {
            streams.note(range((n + 1) << 61, 10), LIMIT);
        }
        assert_eq!(streams.note(range(0, 0), LIMIT), []);
        assert_eq!(streams.note(range(0, 2 * LIMIT), LIMIT), [], "more than may be read ahead");
    }
}
