//! Reads of a log file: the index says which bytes are in which data log, and the other bytes are in the base.

use super::LogLayout;
use crate::Error;
use crate::drivers::native::ObjectRun;
use crate::drivers::{Attempt, Found, Layout, NotDone, ReadDone, Share};
use futures_util::future::{try_join, try_join_all};
use log_index::{Extent, LogNumber, RunSet, Source, decode};
use std::collections::BTreeMap;
use types::limits::{EXTENTS_MAX, PAYLOAD_MAX};
use types::{ByteRange, Status};
use wire::native::{LookupArgs, LookupReply, Procedure, RUNS_BYTES_MAX};

/// A piece of a data log that is contiguous on one iod, and the file offset of its first byte.
#[derive(Clone, Copy)]
struct LogPiece {
    file: u64,
    object: ByteRange,
}

/// Where the bytes of file ranges are.
#[derive(Default)]
struct Places {
    /// The ranges in the base.
    base: Vec<ByteRange>,
    /// The pieces of each data log on each iod.
    logs: BTreeMap<(LogNumber, usize), Vec<LogPiece>>,
}

/// The outcome of a read of data logs and the base.
#[derive(Default)]
struct Gathered {
    done: ReadDone,
    /// File ranges whose bytes are not in the data log that the index names.
    missing: Vec<ByteRange>,
}

impl LogLayout {
    /// Reads file ranges of a lane, see [`crate::drivers::Layout::read`].
    pub(super) async fn read_file(&self, lane: usize, parts: &[ByteRange]) -> Attempt<ReadDone> {
        self.check_lane(lane, parts)?;
        let Gathered { mut done, missing } = self.gather(lane, parts, false).await?;
        if !missing.is_empty() {
            // The iod of a data log has lost bytes that were not durable. Before their writer sends them again, the
            // file has the bytes that became durable before. If those are missing too, they are lost.
            let older = self.gather(lane, &joined(missing), true).await?;
            done.runs.extend(older.done.runs);
            done.lost.extend(older.done.lost);
            done.lost.extend(older.missing);
        }
        done.runs.sort_unstable_by_key(|(offset, _)| *offset);
        done.lost = joined(done.lost);
        Ok(done)
    }

    /// Looks up file ranges and reads them. With `only_durable`, ignores registrations that are not durable.
    async fn gather(&self, lane: usize, parts: &[ByteRange], only_durable: bool) -> Attempt<Gathered> {
        let runs = self.look_up(lane, parts, only_durable).await?;
        let Places { base, logs } = self.divide(&runs, parts)?;
        let logs = logs.iter().flat_map(|(place, pieces)| batches(pieces).map(move |batch| (*place, batch)));
        let logs = try_join_all(logs.map(|(place, batch)| self.read_log(place, batch)));
        let shares = if base.is_empty() { Vec::new() } else { self.base.shares(&base) };
        let base = try_join_all(shares.iter().map(|Share { lane, parts }| self.base.read(*lane, parts)));
        let (logs, base) = try_join(logs, base).await?;
        let mut all = Gathered::default();
        for found in logs {
            all.done.runs.extend(found.done.runs);
            all.missing.extend(found.missing);
        }
        for found in base {
            all.done.runs.extend(found.runs);
            all.done.lost.extend(found.lost);
        }
        Ok(all)
    }

    /// Asks a shard of the index where the bytes of file ranges are.
    async fn look_up(&self, lane: usize, parts: &[ByteRange], only_durable: bool) -> Attempt<RunSet> {
        let target = self.index_target(lane)?;
        let mut parts = parts.to_vec();
        parts.sort_unstable_by_key(|part| part.offset);
        let end = parts.last().map_or(0, |part| part.end());
        let mut found = RunSet::default();
        let mut from = 0;
        while let Some(next) = parts.iter().find(|part| part.end() > from) {
            let offset = next.offset.max(from);
            let range = ByteRange { offset, len: end - offset };
            let args = LookupArgs { cap: target.cap.clone(), range, only_durable };
            let reply: LookupReply =
                self.iods().call(&target, Procedure::Lookup, &args, "looking up written bytes").await?;
            let bad = |what: &str| NotDone::Failed(Error::protocol(format!("iod {lane} of the layout sent {what}")));
            if reply.covered == 0 || reply.covered > range.len {
                return Err(bad("the runs of another range"));
            }
            let covered = ByteRange { len: reply.covered, ..range };
            // A run has at least one byte.
            let runs = decode(&reply.runs, RUNS_BYTES_MAX).map_err(|error| bad(&error.to_string()))?;
            runs.iter().flat_map(|run| run.clip(covered)).for_each(|run| found.insert(run));
            from = covered.end();
        }
        Ok(found)
    }

    /// Divides file ranges into the ranges in the base and the pieces of data logs.
    fn divide(&self, runs: &RunSet, parts: &[ByteRange]) -> Attempt<Places> {
        let mut places = Places::default();
        if runs.is_empty() {
            places.base = parts.to_vec();
            return Ok(places);
        }
        for part in parts {
            let mut from = part.offset;
            for Extent { file, source } in runs.extents_in(*part) {
                let Source::Log { log, position } = source else { continue };
                push(&mut places.base, between(from, file.offset));
                from = file.end();
                for piece in self.places(log)?.pieces(ByteRange { offset: position, len: file.len }) {
                    let at = file.offset + (piece.file.offset - position);
                    let pieces = places.logs.entry((log, piece.index)).or_default();
                    pieces.push(LogPiece { file: at, object: piece.object });
                }
            }
            push(&mut places.base, between(from, part.end()));
        }
        Ok(places)
    }

    /// Reads pieces of a data log on one iod with one request.
    async fn read_log(&self, (log, index): (LogNumber, usize), pieces: &[LogPiece]) -> Attempt<Gathered> {
        let target = self.log_target(log, index)?;
        let mut extents: Vec<ByteRange> = Vec::new();
        pieces.iter().for_each(|piece| push(&mut extents, piece.object));
        let found = match self.iods().read(&target, &extents).await {
            Err(NotDone::Failed(error)) if error.is(Status::Corrupt) => {
                let damaged = self.iods().damaged(&target, &extents).await;
                let file = damaged.and_then(|damaged| pieces.iter().find_map(|piece| piece.in_file(damaged)));
                return Err(NotDone::Failed(file.map_or(error, |file| self.iods().damage(index, file))));
            }
            found => found?,
        };
        let mut all = Gathered::default();
        let mut pieces = pieces.iter();
        let mut file = ByteRange::default();
        for mut run in found {
            while run.len() > 0 {
                if file.is_empty() {
                    let Some(piece) = pieces.next() else { break };
                    file = ByteRange { offset: piece.file, len: piece.object.len };
                }
                let now = run.split_to(file.len);
                let here = ByteRange { offset: file.offset, len: now.len() };
                file = between(here.end(), file.end());
                match now {
                    ObjectRun::Data(data) => all.done.runs.push((here.offset, Found::Data(data))),
                    // The client registers only bytes that it has written.
                    ObjectRun::Hole(_) | ObjectRun::Beyond(_) => all.missing.push(here),
                }
            }
        }
        Ok(all)
    }
}

impl LogPiece {
    /// Returns the file range of the bytes of the piece that are in this range of the object.
    fn in_file(&self, object: ByteRange) -> Option<ByteRange> {
        let common = self.object.intersection(object)?;
        Some(ByteRange { offset: self.file + (common.offset - self.object.offset), len: common.len })
    }
}

/// Divides the pieces on one iod into requests.
fn batches(mut pieces: &[LogPiece]) -> impl Iterator<Item = &[LogPiece]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |piece: &&LogPiece| {
            bytes += piece.object.len;
            bytes <= PAYLOAD_MAX as u64
        };
        let count = pieces.iter().take(EXTENTS_MAX).take_while(fits).count().max(1);
        let (now, later) = pieces.split_at_checked(count)?;
        pieces = later;
        Some(now)
    })
}

fn between(from: u64, to: u64) -> ByteRange {
    ByteRange { offset: from, len: to.saturating_sub(from) }
}

/// Appends a range, which may be empty, and joins it to the last range if it follows that one.
fn push(ranges: &mut Vec<ByteRange>, next: ByteRange) {
    match ranges.last_mut() {
        _ if next.is_empty() => {}
        Some(last) if last.end() == next.offset => last.len += next.len,
        _ => ranges.push(next),
    }
}

/// Sorts ranges that do not overlap, and joins those that follow one another.
fn joined(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.sort_unstable_by_key(|range| range.offset);
    let mut out = Vec::new();
    ranges.into_iter().for_each(|range| push(&mut out, range));
    out
}
