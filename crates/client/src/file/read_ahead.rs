//! Read-ahead for an open file: fetches the ranges that a sequential or strided reader will probably ask for next.

use crate::file::{ReadResult, Segment};
use crate::inode::{Inode, Version};
use crate::{Result, counters};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use layout::policy::{Access, Policy};
use layout::read_ahead::Streams;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, RwLock, oneshot};
use tokio::time::Instant;
use types::ByteRange;

/// How long the client keeps unused read-ahead bytes: as long as a mount caches attributes. Reads of these bytes do not
/// see what other clients write during this time.
const LIFE: Duration = Duration::from_secs(1);

/// The read-ahead state of one open file.
#[derive(Default)]
pub(crate) struct ReadAhead {
    state: Arc<Mutex<State>>,
    /// Each read-ahead task holds this lock for reading. The close of the file locks it for writing, and so waits until
    /// no read-ahead task runs.
    reading: Arc<RwLock<()>>,
}

#[derive(Default)]
struct State {
    streams: Streams,
    pieces: Vec<Piece>,
    /// Whether a task that drops expired read-ahead ranges is running.
    tidied: bool,
    /// Whether the file is being closed, so that no new read-ahead may start.
    over: bool,
}

/// The future result of a read-ahead, with the permit for its buffer space; `None` if the read failed.
type Found = Shared<BoxFuture<'static, Option<Arc<(ReadResult, OwnedSemaphorePermit)>>>>;

/// A read-ahead range: a file range that the client has read ahead or is reading ahead.
struct Piece {
    range: ByteRange,
    /// The version of the file's contents when the read-ahead began.
    version: Version,
    asked: Instant,
    found: Found,
}

impl ReadAhead {
    /// Reads a range like [`Inode::read`], but takes the first bytes from read-ahead ranges as far as they cover the
    /// range without a gap. Also starts read-ahead of the ranges that the reader will probably request next.
    pub(super) async fn read(&self, inode: &Arc<Inode>, policy: Policy, offset: u64, len: usize) -> Result<ReadResult> {
        // Large requests keep the servers busy without read-ahead. With the page access method, the kernel reads ahead
        // itself.
        let worth = policy.access == Access::Direct && len > 0 && len as u64 * 2 <= policy.read_ahead;
        if !worth {
            return inode.read(policy, offset, len).await;
        }
        let range = ByteRange { offset, len: len as u64 };
        let pieces = self.begin(inode, policy, range);
        let mut segments = Vec::new();
        let mut at = offset;
        for (there, found) in pieces {
            let Some(found) = found.await else { break };
            let before = at;
            at += cut(&found.0.segments, at - there.offset, range.end() - at, &mut segments);
            counters::add(&inode.mount.tally.read_ahead, at - before);
            if at < there.end().min(range.end()) {
                // The file ended inside this read-ahead range when the client read it ahead, so read the rest of the
                // requested range now.
                break;
            }
        }
        if at >= range.end() {
            return Ok(ReadResult { segments, eof: at >= inode.size() });
        }
        let rest = inode.read(policy, at, (range.end() - at) as usize).await?;
        segments.extend(rest.segments);
        Ok(ReadResult { segments, eof: rest.eof })
    }

    /// Records that the reader requested `range`, and starts read-ahead. Returns, in file order, the read-ahead ranges
    /// that cover the start of `range` without a gap.
    fn begin(&self, inode: &Arc<Inode>, policy: Policy, range: ByteRange) -> Vec<(ByteRange, Found)> {
        let version = inode.version();
        let now = Instant::now();
        let mut state = lock(&self.state);
        if state.over {
            return Vec::new();
        }
        let before = state.pieces.len();
        state.pieces.retain(|piece| Some(piece.version) == version && now < piece.asked + LIFE);
        if state.pieces.len() < before {
            // Some read-ahead ranges are outdated, because the file changed or they are older than `LIFE`: forget the
            // detected access pattern.
            state.streams.forget();
        }
        let mut out = Vec::new();
        let mut at = range.offset;
        while at < range.end()
            && let Some(piece) = state.pieces.iter().find(|piece| piece.range.offset <= at && at < piece.range.end())
        {
            out.push((piece.range, piece.found.clone()));
            at = piece.range.end();
        }
        for wanted in state.streams.note(range, policy.read_ahead) {
            let (Some(version), true) = (version, wanted.offset < inode.size()) else { break };
            // If the read-ahead buffers have no free space, do not read ahead. The next requests of this reader try to
            // read ahead again, because other readers free space as they advance.
            let Some(piece) = self.fetch(inode, policy, wanted, version) else { break };
            state.pieces.push(piece);
        }
        if !state.tidied && !state.pieces.is_empty() {
            // One task drops all expired read-ahead ranges of the file. A task for each range is too expensive, because
            // a reader may create thousands of short ranges before the first one expires.
            state.tidied = true;
            net::task::spawn_on(&inode.mount.runtime, tidy(Arc::downgrade(&self.state), now + LIFE));
        }
        // Drop each read-ahead range that the reader has read to its end, because a sequential reader does not request
        // it again.
        state.pieces.retain(|piece| piece.range.end() > range.end() || piece.range.end() <= range.offset);
        out
    }

    /// Starts reading a range ahead. Returns `None` if there is no free buffer space.
    fn fetch(&self, inode: &Arc<Inode>, policy: Policy, range: ByteRange, version: Version) -> Option<Piece> {
        let room = inode.mount.read_ahead.clone().try_acquire_many_owned(u32::try_from(range.len).ok()?).ok()?;
        let reading = self.reading.clone().try_read_owned().ok()?;
        let file = inode.clone();
        let (told, found) = oneshot::channel();
        // Run the read now, up to the point where it first waits. A short-circuit read is then complete, and any other
        // read has sent its requests to the servers.
        net::task::begin_on(&inode.mount.runtime, async move {
            let found = file.read(policy, range.offset, range.len as usize).await;
            drop((file, reading));
            let found = found.inspect_err(|error| tracing::debug!("read-ahead: {error}")).ok();
            let _ = told.send(found.map(|found| Arc::new((found, room))));
        });
        let found = found.map(|told| told.ok().flatten()).boxed().shared();
        Some(Piece { range, version, asked: Instant::now(), found })
    }

    /// Drops all read-ahead ranges, and prevents further read-ahead.
    pub(super) async fn end(&self) {
        // While this task holds the write lock, no read-ahead task can begin. Later reads of the file see that the file
        // is being closed, and start no read-ahead.
        let _alone = self.reading.write().await;
        let mut state = lock(&self.state);
        state.over = true;
        state.pieces.clear();
    }
}

impl State {
    /// Drops read-ahead ranges that have expired. Returns when the oldest remaining range expires, or `None` if no
    /// range is left.
    fn tidy(&mut self, now: Instant) -> Option<Instant> {
        self.pieces.retain(|piece| now < piece.asked + LIFE);
        let next = self.pieces.iter().map(|piece| piece.asked + LIFE).min();
        self.tidied = next.is_some();
        next
    }
}

/// From time `from` on, drops each read-ahead range of the file when it expires, because other readers need its buffer
/// space. Ends when no range is left.
async fn tidy(state: Weak<Mutex<State>>, from: Instant) {
    let mut next = Some(from);
    while let Some(at) = next {
        tokio::time::sleep_until(at).await;
        next = state.upgrade().and_then(|state| lock(&state).tidy(Instant::now()));
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies up to `len` bytes of the segments to `out`, after skipping `skip` bytes. Returns the number of bytes copied.
fn cut(segments: &[Segment], mut skip: u64, len: u64, out: &mut Vec<Segment>) -> u64 {
    let mut left = len;
    for segment in segments {
        let here = segment.len();
        if skip >= here {
            skip -= here;
            continue;
        }
        let take = (here - skip).min(left);
        if take == 0 {
            break;
        }
        out.push(match segment {
            Segment::Data(data) => Segment::Data(data.slice(skip as usize..(skip + take) as usize)),
            Segment::Hole(_) => Segment::Hole(take),
        });
        (skip, left) = (0, left - take);
    }
    len - left
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn closing_a_file_frees_its_read_ahead_state() {
        let ahead = ReadAhead::default();
        let (state, reading) = (Arc::downgrade(&ahead.state), Arc::downgrade(&ahead.reading));
        ahead.end().now_or_never().expect("no read-ahead is in progress");
        ahead.end().now_or_never().expect("a second end returns at once");
        assert!(lock(&ahead.state).over);
        drop(ahead);
        assert!(state.upgrade().is_none() && reading.upgrade().is_none());
    }

    #[test]
    fn unread_pieces_are_dropped_one_by_one_after_their_lifetime() {
        let start = Instant::now();
        let piece = |age: u32| Piece {
            range: ByteRange { offset: 0, len: 1 },
            version: Version::default(),
            asked: start - LIFE / 10 * age,
            found: std::future::ready(None).boxed().shared(),
        };
        let mut state = State { pieces: [9, 3, 10].map(piece).into(), tidied: true, ..State::default() };
        for (at, left, next) in [(0, 2, Some(1)), (1, 1, Some(7)), (6, 1, Some(7)), (7, 0, None)] {
            let told = state.tidy(start + LIFE / 10 * at);
            assert_eq!((state.pieces.len(), told), (left, next.map(|next| start + LIFE / 10 * next)), "{at}");
            assert_eq!(state.tidied, told.is_some(), "the next read-ahead starts another task unless one is scheduled");
        }
    }

    #[test]
    fn every_part_of_a_run_list_can_be_extracted() {
        let all =
            [Segment::Data(Bytes::from_static(b"abc")), Segment::Hole(2), Segment::Data(Bytes::from_static(b"fg"))];
        let flat = b"abc\0\0fg";
        for skip in 0..9 {
            for len in 0..9 {
                let mut out = Vec::new();
                let got = cut(&all, skip as u64, len as u64, &mut out);
                let wanted = &flat[skip.min(7)..(skip + len).min(7).max(skip.min(7))];
                assert_eq!(ReadResult { segments: out, eof: false }.to_vec(), wanted, "{len} from {skip}");
                assert_eq!(got, wanted.len() as u64);
            }
        }
    }
}
