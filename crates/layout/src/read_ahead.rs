//! Read-ahead: detects sequential and strided readers, and predicts the ranges that they will request next.

use types::ByteRange;

/// Maximum number of request streams per open file (a stream is the requests of one sequential or strided reader). A
/// new stream replaces the least recently used one.
const STREAMS: usize = 4;
/// Number of requests after the first one that must match a sequential or strided pattern before read-ahead begins.
const HITS: u32 = 2;
/// Initial read-ahead window of a sequential stream, in bytes. The window doubles while the reader continues the
/// stream, up to the maximum read-ahead.
const FIRST: u64 = 64 << 10;
/// Maximum number of records (the bytes of one request each) that are read ahead for a strided reader.
const RECORDS: u64 = 16;
/// Smallest record (bytes of one request) that is read ahead for a strided reader, in bytes. Reading a smaller record
/// ahead is not worth a request. Also, when the kernel splits long reads at its page limit, the short remainders look
/// like the records of a strided reader, and this minimum excludes them.
const RECORD: u64 = 1024;

/// The request streams of one open file.
///
/// The type does no I/O: the caller passes each read request, and receives the ranges to read ahead.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    streams: Vec<Stream>,
    /// Number of requests that the caller has passed. By this number, each stream records when it was last used.
    clock: u64,
}

/// A request stream: the state of one sequential or strided reader.
#[derive(Clone, Debug)]
struct Stream {
    /// Range of the last request of this stream.
    last: ByteRange,
    /// Distance in bytes between the offsets of consecutive requests. For a sequential stream, the distance equals the
    /// request length.
    step: u64,
    /// Number of consecutive requests that matched the sequential or strided pattern of the stream.
    hits: u32,
    /// End of the read-ahead, as a file offset. For a sequential stream, this is the offset after the last byte that
    /// was read ahead; for a strided stream, the offset of the next record (the bytes of one request) to read ahead.
    ahead: u64,
    /// Length in bytes of the last range that was read ahead for a sequential stream.
    window: u64,
    /// Value of the request counter at the last request of this stream.
    used: u64,
}

impl Stream {
    fn new(request: ByteRange, now: u64) -> Self {
        // A reader that begins at offset 0 probably reads the whole file, so the first request counts as a match of
        // the sequential pattern.
        let hits = u32::from(request.offset == 0);
        Stream { last: request, step: request.len, hits, ahead: 0, window: 0, used: now }
    }

    /// Returns whether `request` continues the stream, either sequentially or at the stride.
    fn follows(&self, request: ByteRange) -> bool {
        request.offset == self.last.end()
            || (request.len == self.last.len && request.offset == self.last.offset + self.step)
    }

    fn in_order(&self) -> bool {
        self.step == self.last.len
    }

    /// Updates the stream with a request that continues the stream.
    fn advance(&mut self, request: ByteRange, now: u64) {
        let step = if request.offset == self.last.end() { request.len } else { self.step };
        let changed = self.in_order() != (step == request.len);
        self.hits = if changed { 1 } else { self.hits.saturating_add(1) };
        if changed {
            (self.ahead, self.window) = (0, 0);
        }
        (self.last, self.step, self.used) = (request, step, now);
    }

    /// Returns the ranges to read ahead after the last request of the stream; together they have at most `limit` bytes.
    fn plan(&mut self, limit: u64) -> Vec<ByteRange> {
        if self.hits < HITS {
            return Vec::new();
        }
        if self.in_order() { self.plan_in_order(limit) } else { self.plan_stride(limit) }
    }

    fn plan_in_order(&mut self, limit: u64) -> Vec<ByteRange> {
        let end = self.last.end();
        self.ahead = self.ahead.max(end);
        // Read ahead the next window when the reader has reached the middle of the range that was read ahead last.
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
    /// Records a read request and returns the ranges to read ahead, each for a request of its own. Returns no range
    /// while the reader follows no sequential or strided pattern. `limit` is the maximum number of bytes to read
    /// ahead for this reader.
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
        // The request may be the second request of a strided reader. The distance to the first request becomes the
        // stride, which the next request must confirm.
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

    /// Discards all streams, because a change of the file has invalidated the data that were read ahead. A reader must
    /// follow a pattern again before its read-ahead resumes.
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

    /// Passes the reads `requests` to the read-ahead detector in order, and returns the ranges that it tells the caller
    /// to read ahead.
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
