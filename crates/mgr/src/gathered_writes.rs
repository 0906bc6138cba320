//! Gathered writes: small writes that the mgr holds in memory to join them with adjacent writes before it sends them to
//! the iods.
//!
//! The mgr limits how long it holds a write, and how many bytes it holds for all files together. The mgr replies to a
//! held write as to an unstable write. The reply has the write verifier from before the mgr held the write. If the mgr
//! cannot write held bytes, it discards them and changes its verifier. The next COMMIT of each client that wrote these
//! bytes fails, and the changed verifier shows the loss as well.

use layout::gather::{Gather, Part, Run};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::time::Instant;
use types::limits::GATHER_FAILED_MAX;
use types::{FileId, Status};

/// Time until the mgr retries a failed write of held bytes. The mgr retries earlier if a request needs the bytes.
const AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct GatheredWrites {
    /// How long the mgr holds bytes; zero: the mgr holds no writes.
    delay: Duration,
    /// Limit of the memory for the held bytes of all files, in bytes.
    most: usize,
    begun: Instant,
    inner: Mutex<Inner>,
    /// Notified when the held bytes of a file become the first that the mgr must send to the iods, so that
    /// [`Self::wait`] does not sleep too long.
    woken: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    files: BTreeMap<FileId, Held>,
    /// The files with held bytes, ordered by the time at which the mgr must send these bytes to the iods.
    due: BTreeSet<(Duration, FileId)>,
    bytes: usize,
    /// Files whose writes the mgr must not hold, each with the number of its [`GatheringBlock`] guards.
    blocked: BTreeMap<FileId, u32>,
    failed: BTreeMap<FileId, Failed>,
}

#[derive(Debug)]
struct Held {
    gather: Gather,
    /// Ids of the clients that wrote the held bytes.
    writers: BTreeSet<u64>,
    /// Locked while bytes of the file are in flight to the iods.
    lane: Arc<tokio::sync::Mutex<()>>,
    /// When the mgr must send the held bytes of the file to the iods. The set `Inner::due` contains the same time.
    due: Option<Duration>,
    bytes: usize,
}

/// The error of a failed flush of one file: the mgr could not write the held bytes, and has discarded them.
#[derive(Debug)]
struct Failed {
    why: Status,
    /// Clients that wrote the discarded bytes and have not received the error yet.
    unreported: BTreeSet<u64>,
}

/// A small write that the mgr may hold in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Small<'a> {
    pub(crate) client: u64,
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    /// Length of the file's gathering windows, in bytes. The mgr joins small writes only within a window, an aligned
    /// range of the file.
    pub(crate) window: u64,
}

/// The result of [`GatheredWrites::take`] for a write that the mgr holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) joined: bool,
    /// Whether a gathering window is full, so that the caller should flush it.
    pub(crate) full: bool,
}

/// Totals of all held writes: number of files, and number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) files: usize,
    pub(crate) bytes: usize,
}

impl GatheredWrites {
    /// Creates an empty table of held writes. `delay` is how long the mgr holds a write, and `most` is the limit of the
    /// memory for held bytes, in bytes.
    pub(crate) fn new(delay: Duration, most: usize) -> Self {
        GatheredWrites { delay, most, begun: Instant::now(), inner: Mutex::default(), woken: Notify::new() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns whether a write of `len` bytes is small enough for gathering: at most half a gathering window.
    pub(crate) fn is_for(&self, len: usize, window: u64) -> bool {
        !self.delay.is_zero() && 2 * len as u64 <= window
    }

    /// Holds a write in memory. Returns `None` if the caller must write the bytes to the iods at once. Calls `may`, the
    /// caller's check whether the mgr may hold the write, under the lock of the table. So no other task adds or removes
    /// held bytes between this check and the addition.
    pub(crate) fn take(&self, file: FileId, small: Small<'_>, may: impl Fn() -> bool) -> Option<Taken> {
        let mut inner = self.inner();
        if !may() || inner.blocked.contains_key(&file) || inner.failed.contains_key(&file) {
            return None;
        }
        let held = inner.files.get(&file);
        let growth = held.map_or(Gather::new(small.window, self.delay).growth(small.data.len()), |held| {
            held.gather.growth(small.data.len())
        });
        if inner.bytes + growth > self.most {
            return None;
        }
        let held = inner.files.entry(file).or_insert_with(|| Held {
            gather: Gather::new(small.window, self.delay),
            writers: BTreeSet::new(),
            lane: Arc::default(),
            due: None,
            bytes: 0,
        });
        held.writers.insert(small.client);
        let joined = held.gather.write(self.now(), small.offset, small.data);
        let full = held.gather.meets(Part::Full);
        if inner.update(file) {
            self.woken.notify_one();
        }
        Some(Taken { joined, full })
    }

    /// Prevents the mgr from holding further writes of a file until the caller drops the returned guard. Bytes that the
    /// mgr already holds stay in memory.
    pub(crate) fn block_gathering(&self, file: FileId) -> GatheringBlock<'_> {
        *self.inner().blocked.entry(file).or_default() += 1;
        GatheringBlock { gathered: self, file }
    }

    /// Returns whether the mgr holds bytes of this range of the file, or has them in flight to the iods.
    pub(crate) fn meets(&self, file: FileId, part: Part) -> bool {
        self.inner().files.get(&file).is_some_and(|held| held.gather.meets(part))
    }

    /// Removes the held bytes of a range of a file, so that the caller can write them to the iods. First waits until an
    /// earlier flush of the file has ended. Returns `None` if the mgr holds no bytes of this range.
    pub(crate) async fn begin_flush(&self, file: FileId, part: Part) -> Option<Flush<'_>> {
        let lane = {
            let inner = self.inner();
            inner.files.get(&file).filter(|held| held.gather.meets(part))?.lane.clone()
        };
        let turn = lane.lock_owned().await;
        let mut inner = self.inner();
        let runs = inner.files.get_mut(&file)?.gather.leave(part)?;
        inner.update(file);
        Some(Flush { gathered: self, file, runs, outcome: None, _turn: turn })
    }

    /// Returns up to `most` files whose held bytes the mgr must send to the iods now. If the caller does not send these
    /// bytes, later calls return these files again, after [`AGAIN`].
    pub(crate) fn due(&self, most: usize) -> Vec<FileId> {
        let (now, mut inner) = (self.now(), self.inner());
        let due: Vec<_> = inner.due.iter().take_while(|(due, _)| *due <= now).take(most).copied().collect();
        for (due, file) in &due {
            inner.due.remove(&(*due, *file));
            inner.due.insert((now + AGAIN, *file));
            if let Some(held) = inner.files.get_mut(file) {
                held.due = Some(now + AGAIN);
            }
        }
        due.into_iter().map(|(_, file)| file).collect()
    }

    /// Completes when the gather delay of the oldest held bytes has passed, or when the mgr must send the bytes of
    /// another file first. The caller then sends the held bytes whose delay has passed.
    pub(crate) async fn wait(&self) {
        let first = self.inner().due.first().map(|(due, _)| self.begun + *due);
        let due = async {
            match first {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.woken.notified() => {}
            () = due => {}
        }
    }

    /// Returns all files with held bytes.
    pub(crate) fn files(&self) -> Vec<FileId> {
        self.inner().files.keys().copied().collect()
    }

    /// Discards the held bytes of a deleted file.
    pub(crate) fn deleted(&self, file: FileId) {
        let mut inner = self.inner();
        inner.failed.remove(&file);
        if let Some(held) = inner.files.remove(&file) {
            inner.bytes -= held.bytes;
            held.due.map(|due| inner.due.remove(&(due, file)));
        }
    }

    /// Returns the error for held bytes that this client had written and the mgr has discarded. Returns each error
    /// once.
    pub(crate) fn take_error(&self, file: FileId, client: u64) -> Option<Status> {
        let mut inner = self.inner();
        let failed = inner.failed.get_mut(&file)?;
        let why = failed.unreported.remove(&client).then_some(failed.why);
        if failed.unreported.is_empty() {
            inner.failed.remove(&file);
        }
        why
    }

    /// Returns the totals of the writes that the mgr holds now.
    pub(crate) fn totals(&self) -> Totals {
        let inner = self.inner();
        Totals { files: inner.files.len(), bytes: inner.bytes }
    }
}

impl Inner {
    /// Updates the number of held bytes of all files, and the time at which the mgr must send the held bytes of this
    /// file. Returns whether the mgr must now send this file first.
    fn update(&mut self, file: FileId) -> bool {
        let Some(held) = self.files.get_mut(&file) else { return false };
        let bytes = held.gather.weight();
        self.bytes = self.bytes + bytes - held.bytes;
        held.bytes = bytes;
        let due = held.gather.due();
        let old = std::mem::replace(&mut held.due, due);
        let is_empty = held.gather.is_empty();
        if is_empty {
            self.files.remove(&file);
        }
        if old == due {
            return false;
        }
        old.map(|old| self.due.remove(&(old, file)));
        due.is_some_and(|due| self.due.insert((due, file)) && self.due.first() == Some(&(due, file)))
    }

    fn fail(&mut self, file: FileId, why: Status) {
        let Some(held) = self.files.get(&file) else { return };
        let unreported = held.writers.clone();
        // When too many files have a recorded error, forget the error of one of these files. The clients of this file
        // still notice the lost bytes, because the write verifier has changed.
        if self.failed.len() >= GATHER_FAILED_MAX {
            self.failed.pop_first();
        }
        let failed = self.failed.entry(file).or_insert(Failed { why, unreported: BTreeSet::new() });
        failed.why = why;
        failed.unreported.extend(unreported);
    }
}

/// Guard that prevents the mgr from holding writes of a file ([`GatheredWrites::block_gathering`]).
#[derive(Debug)]
pub(crate) struct GatheringBlock<'a> {
    gathered: &'a GatheredWrites,
    file: FileId,
}

impl Drop for GatheringBlock<'_> {
    fn drop(&mut self) {
        let mut inner = self.gathered.inner();
        if let Some(count) = inner.blocked.get_mut(&self.file) {
            *count -= 1;
            if *count == 0 {
                inner.blocked.remove(&self.file);
            }
        }
    }
}

/// Gathered bytes in flight to the iods. If this value is dropped before the outcome of the flush is recorded, the mgr
/// holds the bytes in memory again.
#[derive(Debug)]
pub(crate) struct Flush<'a> {
    gathered: &'a GatheredWrites,
    file: FileId,
    pub(crate) runs: Vec<Run>,
    outcome: Option<Result<(), Status>>,
    /// Guard of the file's `lane`: the next flush of the file can start when this guard is dropped. The guard is the
    /// last field, because Rust drops fields in the order of their declaration.
    _turn: OwnedMutexGuard<()>,
}

impl Flush<'_> {
    /// Records the outcome of the flush. After `Ok`, the bytes have arrived at the iods. After an error, the mgr
    /// discards the bytes, and later reports this error to the clients that wrote them.
    pub(crate) fn end(mut self, outcome: Result<(), Status>) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        let now = self.gathered.now();
        let mut inner = self.gathered.inner();
        if let Some(Err(why)) = self.outcome {
            inner.fail(self.file, why);
        }
        if let Some(held) = inner.files.get_mut(&self.file) {
            match self.outcome {
                Some(_) => held.gather.arrived(),
                None => held.gather.back(now + AGAIN),
            }
        }
        if inner.update(self.file) {
            self.gathered.woken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const FILE: FileId = FileId(5);

    fn small(client: u64, offset: u64, data: &[u8]) -> Small<'_> {
        Small { client, offset, data, window: 4096 }
    }

    #[tokio::test]
    async fn writes_are_held_no_longer_than_the_delay() {
        let gathered = GatheredWrites::new(Duration::from_millis(2), 1 << 20);
        assert!(gathered.is_for(2048, 4096) && !gathered.is_for(2049, 4096));
        assert!(!GatheredWrites::new(Duration::ZERO, 1 << 20).is_for(1, 4096));
        assert_eq!(gathered.take(FILE, small(1, 0, b"ab"), || true), Some(Taken { joined: false, full: false }));
        assert_eq!(gathered.take(FILE, small(2, 2, b"cd"), || true), Some(Taken { joined: true, full: false }));
        let due = async {
            loop {
                gathered.wait().await;
                let due = gathered.due(9);
                if !due.is_empty() {
                    return due;
                }
            }
        };
        assert_eq!(due.await, [FILE]);
        let flush = gathered.begin_flush(FILE, Part::All).await.unwrap();
        assert_eq!(flush.runs[0].data, "abcd");
        assert!(gathered.meets(FILE, Part::All), "the write is in progress");
        assert!(gathered.begin_flush(FILE, Part::All).now_or_never().is_none(), "the second waits for the first");
        flush.end(Ok(()));
        assert_eq!(gathered.totals(), Totals::default());
        assert!(gathered.inner().due.is_empty());
    }

    #[tokio::test]
    async fn an_abandoned_write_is_kept_and_a_failed_one_is_reported_once_to_each_writer() {
        let gathered = GatheredWrites::new(Duration::from_millis(2), 1 << 20);
        gathered.take(FILE, small(1, 0, b"aaaa"), || true).unwrap();
        let flush = gathered.begin_flush(FILE, Part::All).await.unwrap();
        gathered.take(FILE, small(2, 1, b"b"), || true).unwrap();
        drop(flush);
        let flush = gathered.begin_flush(FILE, Part::All).await.unwrap();
        let bytes: Vec<u8> = flush.runs.iter().flat_map(|run| run.data.to_vec()).collect();
        assert_eq!(bytes, b"abaa");
        flush.end(Err(Status::NoSpc));
        assert_eq!(
            gathered.take(FILE, small(1, 0, b"a"), || true),
            None,
            "the next write is sent at once, so that its error is reported at once"
        );
        assert_eq!(gathered.take_error(FILE, 3), None);
        assert_eq!((gathered.take_error(FILE, 1), gathered.take_error(FILE, 1)), (Some(Status::NoSpc), None));
        assert_eq!((gathered.take_error(FILE, 2), gathered.take_error(FILE, 2)), (Some(Status::NoSpc), None));
        assert!(gathered.take(FILE, small(1, 0, b"a"), || true).is_some());
        gathered.deleted(FILE);
        assert_eq!(gathered.totals(), Totals::default());
    }

    #[test]
    fn memory_is_bounded_and_a_barred_file_gathers_nothing() {
        let gathered = GatheredWrites::new(Duration::from_millis(2), 100_000);
        let mut held = 0;
        for file in 0..1000 {
            held += u32::from(gathered.take(FileId(file), small(1, 0, &[1; 1000]), || true).is_some());
            assert!(gathered.totals().bytes <= 100_000);
        }
        assert!((50..100).contains(&held), "{held}");
        gathered.files().into_iter().for_each(|file| gathered.deleted(file));
        let (one, other) = (gathered.block_gathering(FILE), gathered.block_gathering(FILE));
        drop(one);
        assert_eq!(gathered.take(FILE, small(1, 0, b"a"), || true), None);
        drop(other);
        assert_eq!(gathered.take(FILE, small(1, 0, b"a"), || false), None);
        assert!(gathered.take(FILE, small(1, 0, b"a"), || true).is_some());
    }

    #[test]
    fn unreported_failures_are_dropped_after_a_time() {
        let gathered = GatheredWrites::new(Duration::from_millis(2), 1 << 20);
        for file in 0..2 * GATHER_FAILED_MAX as u64 {
            gathered.take(FileId(file), small(1, 0, b"a"), || true).unwrap();
            let flush = gathered.begin_flush(FileId(file), Part::All).now_or_never().flatten().unwrap();
            flush.end(Err(Status::Io));
        }
        assert_eq!(gathered.inner().failed.len(), GATHER_FAILED_MAX);
        assert_eq!(gathered.totals(), Totals::default());
    }
}
