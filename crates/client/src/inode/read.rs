//! Reads of an open file: reads parts of a range from several servers in parallel, and joins them in file order.

use super::{Inode, Lane, LayoutUse};
use crate::compound::Compound;
use crate::drivers::{Found, NotDone, ReadDone, Share};
use crate::extents::Extents;
use crate::file::{ReadResult, Segment};
use crate::{Error, Result};
use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use layout::policy::{LayoutWhen, Policy};
use layout::threshold::{self, Path};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::limits::{FILE_SIZE_MAX, PAYLOAD_MAX};
use types::{Attrs, ByteRange};
use wire::nfs4::OP_PUTFH;

/// If a read returns more than this many pieces, and their mean length in bytes is below `RUNS_SHORT`, the client
/// copies adjacent pieces into one buffer: thousands of tiny slices cost more than the copy.
const RUNS_MANY: usize = 16;
const RUNS_SHORT: u64 = 16 << 10;

/// Maximum number of times that a read requests the size again because other tasks on this mount have changed the size
/// during the request.
const SIZE_TRIES: u32 = 16;

/// How often the client requests attributes again because a write completed during the request.
const ATTRS_TRIES: u32 = 4;
/// How long a read up to the end of a file waits for the mgr to confirm the end.
const END_WAIT: Duration = Duration::from_secs(1);

type Runs = Vec<(u64, Found)>;

impl Inode {
    /// Reads a range, see [`crate::File::read_at`].
    pub(crate) async fn read(self: &Arc<Self>, policy: Policy, offset: u64, len: usize) -> Result<ReadResult> {
        if self.is_shared() {
            // Box the large future of a read of a shared file, so that the futures of other reads stay small: most
            // files are not shared.
            return Box::pin(self.read_beside_others(&policy, offset, len)).await;
        }
        let found = self.read_once(&policy, offset, len).await?;
        // If the mgr reported a smaller size than the client knew, read again up to the new end.
        let shorter = self.state().size.take_shorter();
        if shorter { Box::pin(self.read_once(&policy, offset, len)).await } else { Ok(found) }
    }

    async fn read_once(self: &Arc<Self>, policy: &Policy, offset: u64, len: usize) -> Result<ReadResult> {
        // If a write on this mount completes while the client requests the size, the client cannot tell whether the
        // reply includes the write. Then request the size again.
        for _ in 0..SIZE_TRIES {
            if !self.is_doubtful() {
                break;
            }
            self.learn_attrs().await?;
        }
        let wanted = offset.saturating_add(len as u64);
        if wanted > self.size() {
            self.learn_end().await;
        }
        let size = self.size();
        let end = wanted.min(size);
        if offset >= end {
            return Ok(ReadResult { segments: Vec::new(), eof: offset >= size });
        }
        let range = ByteRange { offset, len: end - offset };
        self.expose(range).await;
        let own = self.state().dirty.kept(range);
        let layout = if self.reads_straight(policy, range.len).await { self.layout(false, None).await? } else { None };
        let mut runs = match layout {
            Some(layout) => self.read_direct(layout, range).await?,
            None => self.read_via_mgr(range).await?,
        };
        runs.sort_unstable_by_key(|(at, _)| *at);
        Ok(ReadResult { segments: join(overlay(runs, &own), range)?, eof: end >= self.size() })
    }

    /// Reads a shared file with [`Inode::read_shared`], and checks the result against the client's uncommitted bytes.
    /// If the result lacks some of these bytes, another client has overwritten them, or a server has lost them. The
    /// client then sends COMMIT, sends lost bytes again, and reads again.
    async fn read_beside_others(self: &Arc<Self>, policy: &Policy, offset: u64, len: usize) -> Result<ReadResult> {
        let found = self.read_shared(policy, offset, len).await?;
        let (own, end) = {
            let range = ByteRange { offset, len: (len as u64).min(FILE_SIZE_MAX.saturating_sub(offset)) };
            let state = self.state();
            (state.dirty.kept(range), state.dirty.own_end())
        };
        let ends_early = found.eof && offset + found.len() < end.min(offset.saturating_add(len as u64));
        if !ends_early && (own.is_empty() || is_met(&own, offset, &found)) {
            return Ok(found);
        }
        self.settle_all().await;
        self.read_shared(policy, offset, len).await
    }

    /// Reads a file that other clients may write or truncate at the same time. The result includes every write that has
    /// returned, on any client.
    ///
    /// The client does not use the cached size. If an iod returns data at an offset, the file was longer than this
    /// offset at the time of the read, because the mgr answers a truncate only after the objects are truncated. If the
    /// iods have no data at the end of the range, the mgr tells whether there is a hole or the end of the file.
    async fn read_shared(self: &Arc<Self>, policy: &Policy, offset: u64, len: usize) -> Result<ReadResult> {
        self.ask_again();
        let len = (len as u64).min(FILE_SIZE_MAX.saturating_sub(offset));
        let range = ByteRange { offset, len };
        if range.is_empty() {
            return Ok(ReadResult { segments: Vec::new(), eof: offset >= FILE_SIZE_MAX });
        }
        self.expose(range).await;
        // The mgr may still be gathering bytes that this client wrote on the mgr path, so the iods may lack them.
        let gathered = self.state().dirty.is_gathered(range);
        let straight = !gathered && self.reads_straight(policy, len).await;
        let layout = if straight { self.layout(false, None).await? } else { None };
        let by_iods = layout.is_some();
        let mut runs = match layout {
            Some(layout) => self.read_direct(layout, range).await?,
            None => Vec::new(),
        };
        runs.sort_unstable_by_key(|(at, _)| *at);
        while matches!(runs.last(), Some((_, Found::Nothing(_)))) {
            runs.pop();
        }
        let at = runs.last().map_or(offset, |(at, found)| at + found.len());
        let rest = ByteRange { offset: at, len: range.end() - at };
        let eof = if rest.is_empty() { false } else { self.read_to_end_via_mgr(rest, by_iods, &mut runs).await? };
        let end = runs.last().map_or(offset, |(at, found)| at + found.len());
        Ok(ReadResult { segments: join(runs, ByteRange { offset, len: end - offset })?, eof })
    }

    /// Reads a range through the mgr, which knows the end of the file; returns whether the read reached the end. If
    /// `hole` is set, the iods had no data in the range, and zeros from the mgr become a hole.
    async fn read_to_end_via_mgr(self: &Arc<Self>, range: ByteRange, hole: bool, runs: &mut Runs) -> Result<bool> {
        let mut at = range.offset;
        while at < range.end() {
            let wanted = (range.end() - at).min(PAYLOAD_MAX as u64);
            // Before sending READ, compute the end of the bytes that the mgr does not know of: if another task reports
            // these bytes after the READ, the mgr's reply to the READ may not include them.
            let own_end = self.own_end_straight();
            let (data, eof) = self.mgr_read(at, wanted as usize).await?;
            if data.is_empty() && !eof {
                return Err(Error::protocol(
                    "reading through the mgr: the mgr returned 0 bytes before the end of the file",
                ));
            }
            if !data.is_empty() {
                let len = data.len() as u64;
                let zeros = hole && data.iter().all(|byte| *byte == 0);
                runs.push((at, if zeros { Found::Nothing(len) } else { Found::Data(data) }));
                at += len;
            }
            // The mgr does not know of bytes that this client wrote directly to the iods and has not reported to the
            // mgr, so the mgr may return EOF too early.
            if eof && at >= own_end {
                return Ok(true);
            }
            if eof {
                self.make_durable().await;
                self.report().await?;
            }
        }
        Ok(false)
    }

    /// Returns the file offset just after the last byte that this client wrote directly to iods and that the mgr may
    /// not know of.
    fn own_end_straight(&self) -> u64 {
        self.state().dirty.own_end_of(|lane| lane != Lane::Mgr)
    }

    /// Requests the size from the mgr before a read up to the end of the file, because other clients may have changed
    /// the size. Waits at most `END_WAIT` for an unreachable mgr.
    async fn learn_end(self: &Arc<Self>) {
        if self.is_alone() {
            return;
        }
        if !self.state().size.begin_asking(Instant::now(), self.mount.options.size_valid) {
            return;
        }
        let inode = self.clone();
        // Spawn a task, so that the request continues when the reader stops waiting.
        let asked = net::task::spawn_on(&self.mount.runtime, async move { inode.ask_end().await });
        // If the mgr does not reply in time, the read uses the known size. Ignore an error too: the spawned task logs a
        // failed request.
        let _ = tokio::time::timeout(END_WAIT, asked).await;
    }

    async fn ask_end(&self) {
        let stamp = self.stamp();
        let mut compound = Compound::new("asking for the size");
        compound.putfh(&self.node.handle).getattr();
        let results = self.mount.session.call(compound).await;
        let attrs = results.and_then(|mut results| results.done(&[OP_PUTFH]).and_then(|()| results.attrs()));
        if let Err(error) = &attrs {
            tracing::debug!(file = %self.node.id, "{error}; the client keeps the size that it knows");
        }
        let mut state = self.state();
        let own_end = state.dirty.own_end();
        state.size.end_asking(attrs.ok().map(|attrs| attrs.size), stamp, own_end, Instant::now());
    }

    /// Returns whether a read of `len` bytes takes the direct path.
    async fn reads_straight(&self, policy: &Policy, len: u64) -> bool {
        let straight = threshold::path(len, policy.read_threshold) == Path::Direct;
        // Do not request a layout for a file that is too short, or whose writes take the mgr path: read it through the
        // mgr.
        let least = self.mount.present_threshold(policy.write_threshold).max(least_size(policy));
        straight && (threshold::path(self.size(), least) == Path::Direct || self.has_layout())
    }

    /// Returns the current size. If other clients may change the size or may have changed it, requests it from the mgr;
    /// otherwise returns the cached size.
    pub(crate) async fn size_now(self: &Arc<Self>) -> Result<u64> {
        let asks = self.is_shared() || self.is_doubtful();
        if asks { self.learn_attrs().await.map(|attrs| attrs.size) } else { Ok(self.size()) }
    }

    /// Requests the attributes from the mgr. The returned size includes this client's writes that the mgr does not know
    /// of.
    pub(crate) async fn learn_attrs(self: &Arc<Self>) -> Result<Attrs> {
        let attrs = self.ask_attrs().await?;
        let misses = self.is_shared() && attrs.size < self.state().dirty.own_end();
        if !misses {
            return Ok(attrs);
        }
        // Another client has truncated the file, or a server has lost bytes that this client wrote. A COMMIT shows
        // which is true, and the client sends lost bytes again.
        Box::pin(self.settle_all()).await;
        self.ask_attrs().await
    }

    async fn ask_attrs(&self) -> Result<Attrs> {
        let mut tries = 0..ATTRS_TRIES;
        loop {
            let stamp = self.stamp();
            let mut compound = Compound::new("asking for attributes");
            compound.putfh(&self.node.handle).getattr();
            let mut results = self.mount.session.call(compound).await?;
            results.done(&[OP_PUTFH])?;
            let mut attrs = results.attrs()?;
            // Whether a write of this client beyond the returned size has completed since the client sent the GETATTR.
            // If so, request the size again: either the mgr executed GETATTR before this write, or another client has
            // truncated the file after this write.
            let misses = self.is_shared() && attrs.size < self.state().size.reported_since(stamp);
            attrs.size = self.learn_size(attrs.size, stamp);
            if !misses || tries.next().is_none() {
                return Ok(self.shown(attrs));
            }
        }
    }

    /// Sends all pending bytes that overlap `range`, and waits until servers have received them.
    pub(super) async fn expose(self: &Arc<Self>, range: ByteRange) {
        if self.state().dirty.pending().overlaps(range) {
            Box::pin(self.hand_over(false)).await;
        }
        self.settle(range).await;
    }

    async fn read_direct(self: &Arc<Self>, layout: LayoutUse, range: ByteRange) -> Result<Runs> {
        let shares = layout.shares(&[range]).into_iter();
        let reads: Vec<_> = shares.map(|share| self.read_share(layout.clone(), share)).collect();
        // Each request to a server has its own use of the layout, which ends with the request. So drop this task's use
        // of the layout.
        drop(layout);
        Ok(try_join_all(reads).await?.into_iter().flatten().collect())
    }

    async fn read_share(self: &Arc<Self>, layout: LayoutUse, share: Share) -> Result<Runs> {
        let (mut next, mut why) = (Some(layout), None);
        for _ in 0..3 {
            let Some(layout) = next.take() else { break };
            match layout.read(share.lane, &share.parts).await {
                Ok(ReadDone { mut runs, lost }) => {
                    drop(layout);
                    for range in lost {
                        // Box the future of this read through the mgr, which is rarely needed, so that the future of
                        // the whole read stays small.
                        runs.extend(Box::pin(self.read_via_mgr(range)).await?);
                    }
                    return Ok(runs);
                }
                Err(NotDone::Failed(error)) => return Err(error),
                Err(NotDone::NotAttempted(error) | NotDone::Unanswered(error)) => {
                    tracing::debug!(file = %self.node.id, "{error}; reading through the mgr");
                    why = Some(error);
                    break;
                }
                Err(NotDone::Stale(_)) => next = self.layout(false, Some(layout)).await?,
            }
        }
        drop(next);
        let mut runs = Vec::new();
        for part in share.parts {
            let read = self.read_via_mgr(part).await;
            runs.extend(read.map_err(|error| Error::by_no_path(why.clone(), error))?);
        }
        Ok(runs)
    }

    async fn read_via_mgr(self: &Arc<Self>, range: ByteRange) -> Result<Runs> {
        let mut starts = Vec::new();
        let mut at = range.offset;
        while at < range.end() {
            let len = (range.end() - at).min(PAYLOAD_MAX as u64);
            starts.push(ByteRange { offset: at, len });
            at += len;
        }
        let reads = starts.into_iter().map(|chunk| self.read_chunk(chunk));
        Ok(try_join_all(reads).await?.into_iter().flatten().collect())
    }

    async fn read_chunk(self: &Arc<Self>, chunk: ByteRange) -> Result<Runs> {
        let mut runs = Vec::new();
        let mut at = chunk.offset;
        let mut told = false;
        while at < chunk.end() {
            let (data, eof) = self.mgr_read(at, (chunk.end() - at) as usize).await?;
            let len = data.len() as u64;
            if len > 0 {
                runs.push((at, Found::Data(data)));
            } else {
                // The mgr has no bytes at this offset, which is below the known size: another client truncated the
                // file, or this client has not reported its writes.
                if !eof {
                    return Err(Error::protocol(
                        "reading through the mgr: the mgr returned 0 bytes before the end of the file",
                    ));
                }
                // If this client has writes that the mgr does not know of, report the writes, and read again.
                if !told && !self.is_clean() {
                    self.make_durable().await;
                    self.report().await?;
                    told = true;
                    continue;
                }
                if !self.is_alone() {
                    self.state().size.found_shorter();
                }
                runs.push((at, Found::Nothing(chunk.end() - at)));
                break;
            }
            at += len;
        }
        Ok(runs)
    }
}

/// Returns whether the bytes that a read at `offset` returned include all of this client's uncommitted bytes `own`.
fn is_met(own: &Extents, offset: u64, found: &ReadResult) -> bool {
    let bytes = found.to_vec();
    let range = ByteRange { offset, len: u64::MAX - offset };
    own.overlapping(range).all(|(start, data)| {
        let at = (start - offset) as usize;
        bytes.get(at..at + data.len()).is_some_and(|met| met == &data[..])
    })
}

/// Returns the smallest file size for which the client requests a layout (`layout_when` of the policy).
pub(super) fn least_size(policy: &Policy) -> u64 {
    match policy.layout_when {
        LayoutWhen::Size(size) => size,
        LayoutWhen::Auto | LayoutWhen::Open | LayoutWhen::FirstIo => 0,
    }
}

/// Overwrites the bytes that servers returned with the client's uncommitted bytes `own`, where both overlap.
///
/// A server that restarted may have lost uncommitted bytes. Only this client has these bytes, until the next commit
/// sends them to the server again.
fn overlay(runs: Runs, own: &Extents) -> Runs {
    if own.is_empty() {
        return runs;
    }
    let mut out = Vec::new();
    for (at, found) in runs {
        let end = at + found.len();
        let mut from = at;
        for (start, data) in own.overlapping(ByteRange { offset: at, len: found.len() }) {
            let (first, last) = (start.max(at), (start + data.len() as u64).min(end));
            if from < first {
                out.push((from, found.part(from - at, first - from)));
            }
            out.push((first, Found::Data(data.slice((first - start) as usize..(last - start) as usize))));
            from = last;
        }
        if from < end {
            out.push((from, found.part(from - at, end - from)));
        }
    }
    out
}

/// Joins the pieces that servers returned, sorted by file offset, to the segments of a read result.
///
/// # Errors
/// The pieces do not cover `range` exactly.
fn join(runs: Runs, range: ByteRange) -> Result<Vec<Segment>> {
    let gap = || Error::protocol("reading: the servers returned fewer bytes than requested");
    let many = runs.len() > RUNS_MANY && range.len / (runs.len() as u64) < RUNS_SHORT;
    let mut out = Joined { segments: Vec::new(), copied: BytesMut::new(), copying: many };
    let mut at = range.offset;
    for (offset, found) in runs {
        if offset != at {
            return Err(gap());
        }
        at += found.len();
        match found {
            Found::Data(data) => out.data(data, range.end() - offset),
            Found::Nothing(len) => out.hole(len),
        }
    }
    if at != range.end() {
        return Err(gap());
    }
    out.flush();
    Ok(out.segments)
}

struct Joined {
    segments: Vec<Segment>,
    copied: BytesMut,
    copying: bool,
}

impl Joined {
    fn data(&mut self, data: Bytes, room: u64) {
        if data.is_empty() {
        } else if self.copying {
            if self.copied.is_empty() {
                self.copied.reserve(room as usize);
            }
            self.copied.extend_from_slice(&data);
        } else {
            self.segments.push(Segment::Data(data));
        }
    }

    fn hole(&mut self, len: u64) {
        self.flush();
        match self.segments.last_mut() {
            _ if len == 0 => {}
            Some(Segment::Hole(before)) => *before += len,
            _ => self.segments.push(Segment::Hole(len)),
        }
    }

    fn flush(&mut self) {
        if !self.copied.is_empty() {
            self.segments.push(Segment::Data(self.copied.split().freeze()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &'static str) -> Found {
        Found::Data(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn holes_merge_and_gaps_are_refused() {
        let range = ByteRange { offset: 5, len: 9 };
        let runs = vec![(5, data("ab")), (7, Found::Nothing(2)), (9, Found::Nothing(3)), (12, data("cd"))];
        let segments = join(runs, range).unwrap();
        let bytes = |s: &'static str| Segment::Data(Bytes::from_static(s.as_bytes()));
        assert_eq!(segments, [bytes("ab"), Segment::Hole(5), bytes("cd")]);
        assert!(join(vec![(5, data("ab"))], range).is_err());
        assert!(join(vec![(6, data("abcdefgh"))], range).is_err());
    }

    #[test]
    fn own_bytes_cover_what_servers_sent() {
        let runs = || vec![(5, data("abcd")), (9, Found::Nothing(4))];
        let whole = |own: &Extents| -> Vec<u8> {
            let segments = join(overlay(runs(), own), ByteRange { offset: 5, len: 8 }).unwrap();
            ReadResult { segments, eof: false }.to_vec()
        };
        let mut own = Extents::default();
        assert_eq!(whole(&own), b"abcd\0\0\0\0");
        own.insert(0, Bytes::from_static(b"0123456"));
        own.insert(8, Bytes::from_static(b"XYZ"));
        own.insert(12, Bytes::from_static(b"long"));
        assert_eq!(whole(&own), b"56cXYZ\0l");
    }

    #[test]
    fn tiny_runs_become_one_buffer() {
        let runs: Runs = (0..100).map(|i| (i, data("x"))).collect();
        let segments = join(runs, ByteRange { offset: 0, len: 100 }).unwrap();
        assert_eq!(segments, [Segment::Data(Bytes::from(vec![b'x'; 100]))]);
    }
}
