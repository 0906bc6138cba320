//! Lookups in the index of a log file, and what follows from them: the end of the file, and its data and holes.

use super::LogFile;
use crate::proxy::End;
use futures_util::future;
use log_index::{Extent, Run, Source, decode};
use nfs::fs::Content;
use types::limits::FILE_SIZE_MAX;
use types::{ByteRange, Status};
use wire::native::{LookupArgs, LookupReply, Procedure, RUNS_BYTES_MAX, Rights};

/// Largest number of extents that a lookup returns. A run may have many pieces, and the pieces of all runs in a range
/// may need too much memory.
const EXTENTS_MAX: usize = 1 << 16;

/// Number of bytes at the end of the logs that the mgr looks up first to find their last byte.
const LAST_BYTES: u64 = 4096;

/// The part of a file range that a lookup describes.
pub(super) struct LookedUp {
    /// Number of bytes, from the beginning of the range, that the lookup describes; at least 1 unless the range is
    /// empty.
    pub(super) covered: u64,
    /// Offset after the last byte of the file that is in a data log, or a larger offset.
    pub(super) end: u64,
    /// The parts of the described bytes that are in data logs, in the order of their file offsets. All other bytes are
    /// in the base.
    pub(super) extents: Vec<Extent>,
}

/// The reply of one shard.
struct Answer {
    shard: usize,
    covered: u64,
    end: u64,
    runs: Vec<Run>,
}

impl LogFile<'_> {
    /// Looks up the beginning of a range in the index. With `only_durable`, returns only what is durable.
    pub(super) async fn look_up(&self, range: ByteRange, only_durable: bool) -> Result<LookedUp, Status> {
        let asks = self.shards_of(range).into_iter().map(|shard| self.ask_shard(shard, range, only_durable));
        let answers = future::try_join_all(asks).await?;
        let end = answers.iter().map(|answer| answer.end).max().unwrap_or(0);
        let mut covered = answers.iter().map(|answer| answer.covered).min().unwrap_or(0);
        loop {
            let within = ByteRange { offset: range.offset, len: covered };
            let all = answers.iter().flat_map(|answer| self.own_extents(answer, within));
            let extents: Vec<Extent> = all.take(EXTENTS_MAX + 1).collect();
            if extents.len() <= EXTENTS_MAX || covered <= 1 {
                let extents = joined(extents).ok_or_else(|| self.invalid("runs that overlap"))?;
                return Ok(LookedUp { covered, end, extents });
            }
            covered = covered.div_ceil(2);
        }
    }

    /// Returns the extents in data logs for all bytes of a range.
    pub(super) async fn look_up_all(&self, range: ByteRange, only_durable: bool) -> Result<Vec<Extent>, Status> {
        let (mut rest, mut extents) = (range, Vec::new());
        while !rest.is_empty() {
            let found = self.look_up(rest, only_durable).await?;
            extents.extend(found.extents);
            rest = ByteRange { offset: rest.offset + found.covered, len: rest.len - found.covered };
        }
        Ok(extents)
    }

    async fn ask_shard(&self, shard: usize, range: ByteRange, only_durable: bool) -> Result<Answer, Status> {
        let link = self.base.link(shard)?;
        let procedure = (Procedure::Lookup, Rights::READ);
        let arguments = |cap| LookupArgs { cap, range, only_durable };
        let reply: LookupReply = self.base.ask_about(self.index(), &link, procedure, arguments).await?;
        let LookupReply { covered, end, runs } = reply;
        if covered > range.len || (covered == 0 && !range.is_empty()) {
            return Err(self.invalid("a wrong number of described bytes"));
        }
        let runs = decode(&runs, RUNS_BYTES_MAX).map_err(|_| self.invalid("runs that cannot be decoded"))?;
        Ok(Answer { shard, covered, end: end.min(FILE_SIZE_MAX), runs })
    }

    fn invalid(&self, why: &str) -> Status {
        tracing::error!(file = self.known.file.0, "invalid reply to LOOKUP: it has {why}");
        Status::Delay
    }

    /// Returns the extents of a reply in `range` for which the shard answers. A shard may know outdated runs of other
    /// bytes.
    fn own_extents<'b>(&'b self, answer: &'b Answer, range: ByteRange) -> impl Iterator<Item = Extent> + 'b {
        let in_logs = answer.runs.iter().filter(|run| run.source() != Source::Base);
        in_logs.flat_map(move |run| run.extents_in(range)).flat_map(move |extent| {
            let own = self.shards.pieces(extent.file).filter(|piece| piece.index == answer.shard);
            own.map(move |piece| {
                let source = extent.source.after(piece.file.offset - extent.file.offset);
                Extent { file: piece.file, source }
            })
        })
    }

    /// Returns the end of the file according to the base and the index on the iods that reply. The allocated space is
    /// that of the base.
    pub(crate) async fn end(&self) -> End {
        let asks = (0..self.shards.count()).map(|shard| self.ask_shard(shard, ByteRange::default(), false));
        let (base, answers) = future::join(self.base.end(), future::join_all(asks)).await;
        let told = answers.iter().flatten().map(|answer| answer.end).max().unwrap_or(0);
        let logs = self.end_of_logs(base.reached, told).await;
        let complete = base.complete && answers.iter().all(Result::is_ok) && logs.is_ok();
        End { reached: logs.unwrap_or(base.reached), complete, ..base }
    }

    /// Returns the offset after the last byte in a data log between `from` and `end`; `from` if there is none. `end` is
    /// what the shards reply, which may be too large: they do not notice that the base has replaced the last bytes of
    /// the logs.
    async fn end_of_logs(&self, from: u64, end: u64) -> Result<u64, Status> {
        let (mut end, mut len) = (end, LAST_BYTES);
        while end > from {
            let start = end.saturating_sub(len).max(from);
            if let Some(last) = self.last_in_log(ByteRange { offset: start, len: end - start }).await? {
                return Ok(last);
            }
            (end, len) = (start, len.saturating_mul(2));
        }
        Ok(from)
    }

    /// Returns the offset after the last byte of a range that is in a data log; `None` if there is none. Keeps only the
    /// last extent in memory: the index of a hostile client may name any number of extents.
    async fn last_in_log(&self, range: ByteRange) -> Result<Option<u64>, Status> {
        let (mut rest, mut last) = (range, None);
        while !rest.is_empty() {
            let found = self.look_up(rest, false).await?;
            last = found.extents.last().map(|extent| extent.file.end()).or(last);
            rest = ByteRange { offset: rest.offset + found.covered, len: rest.len - found.covered };
        }
        Ok(last)
    }

    /// Returns the first offset of the file at or after `offset` that has the requested `content`. All bytes in data
    /// logs are data.
    pub(crate) async fn seek(&self, offset: u64, content: Content) -> Result<Option<u64>, Status> {
        match content {
            Content::Data => {
                let (base, log) = (self.base.seek(offset, Content::Data).await?, self.next_in_log(offset).await?);
                Ok(base.into_iter().chain(log).min())
            }
            Content::Hole => self.next_hole(offset).await,
        }
    }

    async fn next_in_log(&self, offset: u64) -> Result<Option<u64>, Status> {
        let mut at = offset;
        while at < FILE_SIZE_MAX {
            let found = self.look_up(ByteRange { offset: at, len: FILE_SIZE_MAX - at }, false).await?;
            if let Some(first) = found.extents.first() {
                return Ok(Some(first.file.offset));
            }
            at += found.covered;
            if at >= found.end {
                break;
            }
        }
        Ok(None)
    }

    async fn next_hole(&self, offset: u64) -> Result<Option<u64>, Status> {
        let mut at = offset;
        // The first hole of the base at or after an offset that is at most `at`; `None` if the mgr has not asked for it.
        let mut hole: Option<u64> = None;
        loop {
            let found = self.look_up(ByteRange { offset: at, len: FILE_SIZE_MAX.saturating_sub(at) }, false).await?;
            let end = at + found.covered;
            let all = if end >= found.end { u64::MAX } else { end };
            let gaps = found.extents.iter().map(|extent| (extent.file.offset, extent.file.end())).chain([(all, end)]);
            for (gap_end, next) in gaps {
                if at < gap_end {
                    let known = hole.filter(|hole| *hole >= at);
                    let in_base = match known {
                        Some(in_base) => in_base,
                        None => self.base.seek(at, Content::Hole).await?.unwrap_or(u64::MAX),
                    };
                    if in_base < gap_end || gap_end == u64::MAX {
                        return Ok(Some(in_base).filter(|hole| *hole != u64::MAX));
                    }
                    hole = Some(in_base);
                }
                at = at.max(next);
            }
        }
    }
}

/// Returns extents in the order of their file offsets, and joins those that follow one another in the file and in a log.
/// Returns `None` if they overlap.
fn joined(mut extents: Vec<Extent>) -> Option<Vec<Extent>> {
    extents.sort_unstable_by_key(|extent| extent.file.offset);
    let mut joined: Vec<Extent> = Vec::new();
    for extent in extents {
        match joined.last_mut() {
            Some(last) if last.file.end() > extent.file.offset => return None,
            Some(last)
                if last.file.end() == extent.file.offset && last.source.after(last.file.len) == extent.source =>
            {
                last.file.len += extent.file.len;
            }
            _ => joined.push(extent),
        }
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use log_index::LogNumber;

    #[test]
    fn extents_are_joined_where_the_log_goes_on_and_may_not_overlap() {
        let extent = |offset, len, position| Extent {
            file: ByteRange { offset, len },
            source: Source::Log { log: LogNumber(1), position },
        };
        let (a, b, c) = (extent(0, 4, 10), extent(4, 4, 14), extent(8, 4, 90));
        assert_eq!(joined(vec![c, b, a]), Some(vec![extent(0, 8, 10), c]));
        assert_eq!(joined(vec![a, extent(3, 1, 0)]), None);
    }
}
