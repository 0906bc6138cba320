//! Log files on the mgr path: the mgr writes to the striped base, registers these writes with the index, and reads from
//! the base and from the data logs.
//!
//! Bytes in the base count only where the index names no data log. So the mgr changes the base first, and then registers
//! the changed range with every shard of the index that answers for any of its bytes.

mod fold;
mod look_up;
mod read;

use super::write::Seen;
use super::{Objects, Written};
use crate::iods::{Iods, objects};
use crate::kinds::{Known, Stored};
use bytes::Bytes;
use futures_util::future;
use layout::gather::{self, ranges};
use layout::kinds::log::{Record, shards};
use layout::{BadGeometry, Distribution};
use log_index::{Run, Source, encode};
use types::limits::FILE_SIZE_MAX;
use types::{ByteRange, Generation, ObjectId, Status, Verifier};
use wire::native::{
    FenceArgs, GENERATION_GONE, ListEntry, Nothing, ObjectArgs, Procedure, RegisterArgs, RegisterReply, Rights,
};

/// The sequence number of all registrations that the mgr makes durable at once. The iod makes only registrations with
/// this number durable together with them. The bytes of registrations with larger numbers need not be durable yet.
const DURABLE: u64 = 1;
/// Largest number of runs in one REGISTER request. The encoded runs are then shorter than a request allows.
const RUNS_AT_ONCE: usize = 1024;
/// Number of pending runs of a shard at which the mgr makes its own registrations durable, long before the shard refuses
/// more.
const PENDING_HIGH: u32 = 1 << 15;
/// Largest number of objects that one request for the data logs of a file lists.
const PAGE: u32 = 256;

/// A log file, for requests on the mgr path: its striped base, its data logs and its index.
#[derive(Debug)]
pub(crate) struct LogFile<'a> {
    /// What the namespace knows of the file.
    pub(crate) known: Known,
    /// The striped base. Bytes that the namespace knows to be written may be in data logs instead, so the base need not
    /// reach their end.
    pub(crate) base: Objects<'a>,
    /// The distribution that divides the file into the shards of the index.
    shards: Distribution,
}

impl<'a> LogFile<'a> {
    /// Returns the log file that a layout record names.
    pub(crate) fn new(iods: &'a Iods, known: Known, record: Record) -> Result<Self, BadGeometry> {
        let base = Objects::new(iods, Known { written: 0, ..known }, record.base)?;
        let shards = shards(base.distribution.stripe_unit(), base.distribution.count())?;
        Ok(LogFile { known, base, shards })
    }

    /// Returns the id of the objects that hold the index of the file.
    pub(crate) fn index(&self) -> ObjectId {
        ObjectId::index(self.known.file)
    }

    /// Returns the shards that answer for any bytes of a range, in ascending order.
    fn shards_of(&self, range: ByteRange) -> Vec<usize> {
        let pieces = self.shards.pieces(range).take(self.shards.count());
        let mut shards: Vec<usize> = pieces.map(|piece| piece.index).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }

    /// Writes the byte ranges `runs` to the base, and registers them. After a failure, any part of the bytes may be
    /// written.
    ///
    /// Makes bytes that replace bytes in data logs durable at once. Otherwise an iod could lose such bytes of the base
    /// and the registration at another iod would still hide the durable bytes in the log.
    pub(crate) async fn write(&self, runs: &[gather::Run], stable: bool) -> Result<Written, Status> {
        let stable = stable || self.is_in_logs(&ranges(runs)).await?;
        let (is_stable, mut seen) = self.base.write_seen(runs, stable).await?;
        let stable = stable && is_stable;
        seen.extend(self.register(&ranges(runs), stable).await?);
        Ok(Written { stable, verifier: self.base.iods.verifiers.combine(&seen) })
    }

    /// Returns whether any bytes of these ranges, which are in file order, are in data logs, or were before a write that
    /// is not durable.
    async fn is_in_logs(&self, ranges: &[ByteRange]) -> Result<bool, Status> {
        let Some((first, last)) = ranges.first().zip(ranges.last()) else { return Ok(false) };
        let all = ByteRange { offset: first.offset, len: last.end() - first.offset };
        let views = [false, true].map(|only_durable| self.look_up_all(all, only_durable));
        let extents = future::try_join_all(views).await?.concat();
        Ok(extents.iter().any(|extent| ranges.iter().any(|range| range.overlaps(extent.file))))
    }

    /// Registers ranges of the file whose bytes are now in the base. With `durable`, these bytes are durable, and the
    /// registrations become durable too. Returns the verifiers of the iods.
    async fn register(&self, ranges: &[ByteRange], durable: bool) -> Result<Seen, Status> {
        let mut concerned = vec![Vec::new(); self.shards.count()];
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            let run = Run::single(*range, Source::Base).map_err(|_| Status::FBig)?;
            self.shards_of(*range).into_iter().for_each(|shard| concerned[shard].push(run));
        }
        let each = concerned.iter().enumerate();
        let each = each.flat_map(|(shard, runs)| runs.chunks(RUNS_AT_ONCE).map(move |runs| (shard, runs)));
        let replies = each.map(|(shard, runs)| self.register_at(shard, runs, durable));
        // Wait for all requests, even after a failure: no iod may still be registering when the caller continues.
        let replies = future::join_all(replies).await.into_iter().collect::<Result<Vec<_>, Status>>()?;
        if replies.iter().any(|(_, reply)| reply.pending >= PENDING_HIGH) {
            self.commit_seen().await?;
        }
        Ok(replies.into_iter().map(|(number, reply)| (number, reply.verifier)).collect())
    }

    async fn register_at(&self, shard: usize, runs: &[Run], durable: bool) -> Result<(u16, RegisterReply), Status> {
        let link = self.base.link(shard)?;
        let cap = link.capability(self.index(), self.known.generation, Rights::WRITE);
        let (sequence, durable) = if durable { (DURABLE, DURABLE) } else { (self.base.iods.next_registration(), 0) };
        let runs = Bytes::from(encode(runs.iter().copied()));
        let arguments = RegisterArgs { cap, log: 0, sequence, durable, runs };
        let reply: RegisterReply = link.call(Procedure::Register, &arguments).await?;
        Ok((self.base.iod(shard), reply))
    }

    /// Makes all earlier writes through the mgr durable. Returns a verifier that changes if any of these writes, or
    /// their registrations, were lost.
    pub(crate) async fn commit(&self) -> Result<Verifier, Status> {
        let seen = self.commit_seen().await?;
        Ok(self.base.iods.verifiers.combine(&seen))
    }

    async fn commit_seen(&self) -> Result<Seen, Status> {
        // The mgr draws the number of each registration after its bytes are in the base. So the commit of the base
        // makes the bytes of all registrations with numbers below this one durable.
        let sequence = self.base.iods.next_registration();
        let (mut seen, _) = self.base.commit_seen(0).await?;
        let confirm = |index| async move {
            let number = self.base.iod(index);
            let link = match self.base.link(index) {
                // Skip a lost iod, as the commit of the base does.
                Err(Status::Delay) if self.base.iods.is_lost(number) => return Ok(None),
                link => link?,
            };
            let arguments = |cap| RegisterArgs { cap, log: 0, sequence, durable: sequence, runs: Bytes::new() };
            let procedure = (Procedure::Register, Rights::WRITE);
            let reply: RegisterReply = self.base.ask_about(self.index(), &link, procedure, arguments).await?;
            Ok(Some((number, reply.verifier)))
        };
        seen.extend(self.base.each(confirm).await?.into_iter().flatten());
        Ok(seen)
    }

    /// Truncates the base durably, and registers with all shards that no log has bytes at or after `size`. Changes
    /// nothing while an iod is down (`Delay`).
    pub(crate) async fn truncate(&self, size: u64) -> Result<(), Status> {
        self.base.truncate(size).await?;
        let rest = ByteRange { offset: size, len: FILE_SIZE_MAX.saturating_sub(size) };
        self.register(&[rest], true).await.map(drop)
    }

    /// Turns a range of the file into a hole, durably. Changes nothing while an iod is down (`Delay`).
    pub(crate) async fn punch(&self, range: ByteRange) -> Result<(), Status> {
        self.base.all_up()?;
        self.base.punch(range).await?;
        let len = range.len.min(FILE_SIZE_MAX.saturating_sub(range.offset));
        self.register(&[ByteRange { offset: range.offset, len }], true).await.map(drop)
    }

    /// Makes the iods copy a range of another file to the offset `target` of the base, and registers the range. Returns
    /// `None` if an iod cannot copy now, or if bytes in data logs would be replaced: the copy is not durable, and such
    /// bytes may be ([`LogFile::write`]). After `None` or a failure, any part of the bytes may be written.
    pub(crate) async fn copy(
        &self,
        source: &dyn Stored,
        range: ByteRange,
        target: u64,
    ) -> Result<Option<Written>, Status> {
        if self.is_in_logs(&[ByteRange { offset: target, len: range.len }]).await? {
            return Ok(None);
        }
        let Some(mut seen) = self.base.copy_seen(source, range, target).await? else { return Ok(None) };
        seen.extend(self.register(&[ByteRange { offset: target, len: range.len }], false).await?);
        Ok(Some(Written { stable: false, verifier: self.base.iods.verifiers.combine(&seen) }))
    }

    /// Returns whether an iod of the file is lost. Any iod may hold the only record of where bytes of a range are.
    pub(crate) fn is_lost(&self) -> bool {
        self.base.lost_in(None)
    }

    /// Makes the iods refuse capabilities older than `generation` for the base and for the index, durably. While an iod
    /// is down, sends the fences to the other iods and fails with `Delay`.
    pub(crate) async fn fence(&self, generation: Generation) -> Result<(), Status> {
        let fence = |index| async move {
            let link = self.base.link(index)?;
            let cap = link.capability(self.index(), self.known.generation, Rights::ADMIN);
            link.call::<Nothing>(Procedure::Fence, &FenceArgs { cap, generation }).await
        };
        let (base, index) = future::join(self.base.fence(generation), self.base.each(fence)).await;
        base.and(index.map(drop))
    }

    /// Deletes the base, the data logs and the index of a deleted or folded file. A missing object counts as deleted.
    /// While an iod is down, deletes the objects on the other iods and fails with `Delay`.
    pub(crate) async fn remove(&self) -> Result<(), Status> {
        let remove = |index| async move {
            let link = self.base.link(index)?;
            let cap = link.capability(self.index(), GENERATION_GONE, Rights::ADMIN);
            link.call::<Nothing>(Procedure::RemoveLogs, &ObjectArgs { cap }).await
        };
        let (base, logs) = future::join(self.base.remove(), self.base.each(remove)).await;
        base.and(logs.map(drop))
    }

    /// Returns the space that the data logs and the index occupy on their iods, in bytes.
    pub(crate) async fn logs_allocated(&self) -> Result<u64, Status> {
        let each = self.base.each(|index| self.logs_allocated_at(index)).await?;
        Ok(each.into_iter().fold(0, u64::saturating_add))
    }

    async fn logs_allocated_at(&self, index: usize) -> Result<u64, Status> {
        let (link, file) = (self.base.link(index)?, self.known.file);
        let is_log = |entry: &&ListEntry| entry.object.file == file && entry.object.is_of_logs();
        // The objects of a file follow one another in the list, in the order of their streams.
        let (mut after, mut sum) = (ObjectId::new(file, types::LOG_STREAMS - 1), 0u64);
        loop {
            let page = objects::list(&link, Some(after), PAGE).await?;
            let logs = page.entries.iter().take_while(is_log);
            sum = logs.map(|entry| entry.allocated).fold(sum, u64::saturating_add);
            match page.entries.last().filter(|last| !page.eof && is_log(last)) {
                Some(last) => after = last.object,
                None => return Ok(sum),
            }
        }
    }
}
