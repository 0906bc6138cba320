//! Block checksums of an object, stored in a checksum file beside the object file (`docs/FORMATS.md`, "Sum file").
//!
//! Invariant: after a power cut, each checksum on disk matches the bytes on disk. So the iod writes a checksum only
//! after it has synced the bytes. Before it overwrites bytes that have a checksum, it removes that checksum durably.
//! Blocks without a checksum are not verified. Therefore a crash never causes a failed verification, and committed
//! bytes lack a checksum only if a later request changes their block.

mod record;

use std::collections::BTreeMap;
use std::io;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

use types::Status;
use wire::native::{Crc32c, Failure, crc32c};

use super::failure;
use super::head::HEAD_LEN;
use crate::counters::Counters;
use crate::disks::{DiskFile, read_full, write_all};
use crate::lock::{read, write};
pub(crate) use record::BLOCK;
use record::{BLOCKS, RECORD, REGION, Record};

/// Number of changed regions of one object at which the iod syncs the object, although no client has requested a sync.
/// A region is 64 blocks. This limit bounds the memory for changed regions.
pub(crate) const CHANGED_MAX: usize = 4096;

/// The checksums of one open object. Reads of the object take the lock of the checksums shared, and writes take this
/// lock exclusively, so that bytes and checksums change together.
pub(crate) struct BlockChecksums {
    file: Box<dyn DiskFile>,
    nonce: u64,
    table: RwLock<Table>,
    /// Whether a sync of the checksum file failed. If so, the content of the checksum file after a power cut is
    /// unknown.
    failed: AtomicBool,
}

#[derive(Default)]
struct Table {
    /// Number of records in the checksum file: one for each region of 64 blocks.
    regions: u64,
    /// Whether the records in the checksum file are durable. An earlier run may have removed a checksum and died before
    /// it synced the checksum file. Then the disk may still have this checksum after a power cut.
    proven: bool,
    /// Blocks that changed since the last sync of the object began, by number of their region (64 blocks).
    changed: BTreeMap<u64, Changed>,
    /// Blocks that the running sync makes durable, with their new checksums.
    sealing: BTreeMap<u64, Record>,
}

/// The changed blocks of one region (64 blocks) as bit masks, with the new checksums that are already known.
#[derive(Clone)]
struct Changed {
    /// Blocks whose checksum the next sync must compute from the file.
    stale: u64,
    /// Blocks that a request wrote completely, so that the next sync need not read them: the checksum of the written
    /// bytes is known.
    fresh: u64,
    sums: [u32; BLOCKS],
}

impl Changed {
    const NONE: Changed = Changed { stale: 0, fresh: 0, sums: [0; BLOCKS] };
}

/// A range of an object, in bytes, whose content does not match its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mismatch {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The reason why a verification failed.
pub(crate) enum Unverified {
    /// The bytes do not match their checksum.
    Mismatch(Mismatch),
    /// The disk returned an error.
    Failed(Failure),
}

/// The part of a byte range that lies in one block: number of the block, offset in the block, offset in the range, and
/// length.
struct Part {
    block: u64,
    within: usize,
    at: usize,
    len: usize,
}

fn parts(offset: u64, len: usize) -> impl Iterator<Item = Part> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = offset + at as u64;
        let within = (start % BLOCK) as usize;
        let part = Part { block: start / BLOCK, within, at, len: (BLOCK as usize - within).min(len - at) };
        at += part.len;
        (part.len > 0).then_some(part)
    })
}

/// Returns the number of the region (64 blocks) that contains a block, and the block's index in the region.
fn place(block: u64) -> (u64, usize) {
    (block / BLOCKS as u64, (block % BLOCKS as u64) as usize)
}

/// The records of consecutive regions (64 blocks each), from region `first` on.
struct Records {
    first: u64,
    /// One record for each region; `None` for a damaged record.
    list: Vec<Option<Record>>,
}

impl Records {
    /// Returns the number of bytes of a block that its checksum covers, and the checksum. Returns `None` if the record
    /// of the region with the block is damaged.
    fn of(&self, block: u64) -> Option<(u16, u32)> {
        let (region, index) = place(block);
        let record = self.list.get((region - self.first) as usize)?.as_ref()?;
        Some((record.lens[index], record.sums[index]))
    }
}

impl Table {
    fn load(&self, sums: &BlockChecksums, first: u64, last: u64) -> io::Result<Records> {
        let count = (last + 1 - first) as usize;
        let there = self.regions.saturating_sub(first).min(count as u64) as usize;
        let mut list = Vec::with_capacity(count);
        if there > 0 {
            let mut bytes = vec![0; there * RECORD];
            read_full(&*sums.file, &mut bytes, first * RECORD as u64)?;
            let (sectors, _) = bytes.as_chunks::<RECORD>();
            list.extend((first..).zip(sectors).map(|(region, sector)| Record::decode(sector, sums.nonce, region)));
        }
        list.resize(count, Some(Record::EMPTY));
        Ok(Records { first, list })
    }

    /// Loads the records of all regions that a byte range overlaps.
    fn load_range(&self, sums: &BlockChecksums, offset: u64, end: u64) -> io::Result<Records> {
        self.load(sums, offset / REGION, end.max(offset + 1).div_ceil(REGION) - 1)
    }

    fn store(&mut self, sums: &BlockChecksums, region: u64, record: &Record) -> io::Result<()> {
        write_all(&*sums.file, &record.encode(sums.nonce, region), &[], region * RECORD as u64)?;
        self.regions = self.regions.max(region + 1);
        Ok(())
    }

    fn make_stale(&mut self, block: u64) {
        let (region, index) = place(block);
        let changed = self.changed.entry(region).or_insert(Changed::NONE);
        changed.stale |= 1 << index;
        changed.fresh &= !(1 << index);
    }

    fn make_fresh(&mut self, block: u64, sum: u32) {
        let (region, index) = place(block);
        let changed = self.changed.entry(region).or_insert(Changed::NONE);
        changed.fresh |= 1 << index;
        changed.stale &= !(1 << index);
        changed.sums[index] = sum;
    }

    fn is_changing(&self, block: u64) -> bool {
        let (region, index) = place(block);
        let changed = self.changed.get(&region).is_some_and(|c| (c.stale | c.fresh) >> index & 1 == 1);
        changed || self.sealing.get(&region).is_some_and(|s| s.lens[index] > 0)
    }

    /// Discards the checksums of the blocks from `first` up to `end` that the iod has computed but not yet stored.
    fn forget(&mut self, first: u64, end: u64) {
        let within = |region: u64| {
            let start = region * BLOCKS as u64;
            let (from, to) = (first.max(start) - start, end.clamp(start, start + BLOCKS as u64) - start);
            (from..to).fold(0u64, |mask, bit| mask | 1 << bit)
        };
        let regions = first / BLOCKS as u64..end.div_ceil(BLOCKS as u64);
        for (region, changed) in self.changed.range_mut(regions.clone()) {
            changed.stale &= !within(*region);
            changed.fresh &= !within(*region);
        }
        for (region, sealing) in self.sealing.range_mut(regions) {
            let mask = within(*region);
            (0..BLOCKS).filter(|index| mask >> index & 1 == 1).for_each(|index| sealing.lens[index] = 0);
        }
        self.changed.retain(|_, changed| changed.stale | changed.fresh != 0);
    }

    /// Returns the number of bytes of a block that its checksum covers, and the checksum. The number is 0 if the block
    /// has no checksum. Returns `None` if the record with the checksum is damaged.
    fn current(&self, records: &Records, block: u64) -> Option<(u16, u32)> {
        let (region, index) = place(block);
        match self.changed.get(&region) {
            Some(changed) if changed.fresh >> index & 1 == 1 => Some((BLOCK as u16, changed.sums[index])),
            _ => records.of(block),
        }
    }
}

impl BlockChecksums {
    /// Opens the checksums in `file`, the checksum file of the object with this nonce. `new` is true if the file cannot
    /// contain checksums yet.
    pub(crate) fn open(file: Box<dyn DiskFile>, nonce: u64, new: bool) -> io::Result<Self> {
        let regions = file.measure()?.len / RECORD as u64;
        Ok(BlockChecksums {
            file,
            nonce,
            table: RwLock::new(Table { regions, proven: new, ..Table::default() }),
            failed: AtomicBool::new(false),
        })
    }

    /// Returns the offset after the last byte that has a checksum on disk. Returns `None` if a damaged record may hold
    /// the checksum of a later byte.
    pub(crate) fn end(&self) -> io::Result<Option<u64>> {
        let table = read(&self.table);
        for region in (0..table.regions).rev() {
            match &table.load(self, region, region)?.list[0] {
                None => return Ok(None),
                Some(record) => {
                    let end = |index: usize| region * REGION + index as u64 * BLOCK + u64::from(record.lens[index]);
                    if let Some(last) = (0..BLOCKS).rev().find(|index| record.lens[*index] > 0) {
                        return Ok(Some(end(last)));
                    }
                }
            }
        }
        Ok(Some(0))
    }

    /// Returns the disk space that the checksum file occupies, in bytes.
    pub(crate) fn allocated(&self) -> io::Result<u64> {
        self.file.measure().map(|measure| measure.allocated)
    }

    /// Returns the number of regions (64 blocks each) with changes that no sync has covered yet.
    pub(crate) fn changed(&self) -> usize {
        read(&self.table).changed.len()
    }

    /// Returns whether a sync of the checksum file failed.
    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Makes the records in the checksum file durable.
    fn sync(&self, counters: &Counters) -> io::Result<()> {
        Counters::add(&counters.syncs_sums, 1);
        self.file.sync().inspect_err(|_| self.failed.store(true, Ordering::Release))
    }

    /// Syncs the checksum file if an earlier run of the iod may have left the file unsynced. The iod calls this
    /// function before bytes of the object change. After the sync, a block without a checksum in memory has no checksum
    /// on disk.
    fn prove(&self, table: &mut Table, counters: &Counters) -> Result<(), Failure> {
        if !table.proven {
            self.sync(counters).map_err(|e| failure(&e, "sync the checksums of the object"))?;
            table.proven = true;
        }
        Ok(())
    }

    /// Calls `act`, which writes `a` followed by `b` at `offset` of the object file `data`. Updates the checksums of
    /// the written blocks in memory.
    pub(crate) fn write(
        &self,
        data: &dyn DiskFile,
        offset: u64,
        [a, b]: [&[u8]; 2],
        counters: &Counters,
        act: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), Failure> {
        let len = a.len() + b.len();
        if len == 0 {
            return Ok(());
        }
        let whole = |part: &Part| part.len == BLOCK as usize;
        let of_part = |part: Part| (part.block, sum_of(a, b, part.at, part.len));
        let whole_sums: Vec<_> = parts(offset, len).filter(whole).map(of_part).collect();
        let mut table = write(&self.table);
        self.release(&mut table, data, offset, offset + len as u64, counters)?;
        let written = act();
        for part in parts(offset, len) {
            table.make_stale(part.block);
        }
        written.map_err(|e| failure(&e, "write the object"))?;
        for (block, sum) in whole_sums {
            table.make_fresh(block, sum);
        }
        Ok(())
    }

    /// Removes, durably, the checksums of blocks before a request changes their bytes. First verifies each block that
    /// keeps some of its old bytes, so that a damaged block never gets a new checksum. Replaces a damaged record by an
    /// empty one if all bytes of its region change.
    fn release(
        &self,
        table: &mut Table,
        data: &dyn DiskFile,
        offset: u64,
        end: u64,
        counters: &Counters,
    ) -> Result<(), Failure> {
        let fail = |e: io::Error| failure(&e, "remove checksums of the object");
        self.prove(table, counters)?;
        if offset / REGION >= table.regions {
            return Ok(());
        }
        let mut records = table.load_range(self, offset, end).map_err(fail)?;
        let first = records.first;
        let mut synced = false;
        for (region, record) in (first..).zip(&mut records.list) {
            let start = region * REGION;
            let mut touched = false;
            let record = match record {
                Some(record) => record,
                // The request overwrites all bytes whose checksums the damaged record held, so an empty record can
                // replace the damaged record.
                None if offset <= start && end >= self.end_in(data, start).map_err(fail)? => {
                    touched = true;
                    record.insert(Record::EMPTY)
                }
                None => return Err(damaged(Mismatch { offset: start, len: REGION }, "its checksums are damaged")),
            };
            for index in 0..BLOCKS {
                let from = start + index as u64 * BLOCK;
                let covered = from + u64::from(record.lens[index]);
                if covered == from || offset >= covered || end <= from {
                    continue;
                }
                if offset > from || end < covered {
                    self.check(data, from, record.lens[index], record.sums[index]).map_err(|e| e.failure(counters))?;
                }
                (record.lens[index], record.sums[index], touched) = (0, 0, true);
                // Mark the block as changed now, so that the next sync computes its checksum again even if the
                // following write fails.
                table.make_stale(from / BLOCK);
            }
            if touched {
                table.store(self, region, record).map_err(fail)?;
                synced = true;
            }
        }
        if synced { self.sync(counters).map_err(fail) } else { Ok(()) }
    }

    /// Returns the offset where the bytes of the object end in the region that begins at `start`.
    fn end_in(&self, data: &dyn DiskFile, start: u64) -> io::Result<u64> {
        let size = data.measure()?.len.saturating_sub(HEAD_LEN);
        Ok(size.clamp(start, start + REGION))
    }

    /// Reads the first `len` bytes of the block at `from` and compares them with the checksum `sum`.
    fn check(&self, data: &dyn DiskFile, from: u64, len: u16, sum: u32) -> Result<(), Unverified> {
        let mut block = [0; BLOCK as usize];
        let block = &mut block[..len.into()];
        let read = read_full(data, block, HEAD_LEN + from);
        read.map_err(|e| Unverified::Failed(failure(&e, "read the object")))?;
        if crc32c(block) == sum {
            Ok(())
        } else {
            Err(Unverified::Mismatch(Mismatch { offset: from, len: len.into() }))
        }
    }

    /// Reads `buffer.len()` bytes at `offset` and verifies every block that this range touches. To verify the first and
    /// the last block, reads them completely. Bytes beyond the end of the file read as zeros.
    pub(crate) fn read(&self, data: &dyn DiskFile, offset: u64, buffer: &mut [u8]) -> Result<(), Unverified> {
        if buffer.is_empty() {
            return Ok(());
        }
        let fail = |e: io::Error| Unverified::Failed(failure(&e, "read the object"));
        let table = read(&self.table);
        let records = table.load_range(self, offset, offset + buffer.len() as u64).map_err(fail)?;
        let done = read_full(data, buffer, HEAD_LEN + offset).map_err(fail)?;
        buffer[done..].fill(0);
        for part in parts(offset, buffer.len()) {
            let from = part.block * BLOCK;
            let Some((len, sum)) = table.current(&records, part.block) else {
                return Err(Unverified::Mismatch(Mismatch { offset: from, len: BLOCK }));
            };
            let covered = usize::from(len);
            if covered == 0 || part.within >= covered {
                continue;
            }
            if part.within > 0 || part.len < covered {
                self.check(data, from, len, sum)?;
            } else if crc32c(&buffer[part.at..part.at + covered]) != sum {
                return Err(Unverified::Mismatch(Mismatch { offset: from, len: len.into() }));
            }
        }
        Ok(())
    }

    /// Verifies a range of the object that the disk reports as a hole: each block must have no checksum, or the
    /// checksum of zeros.
    pub(crate) fn check_hole(&self, data: &dyn DiskFile, offset: u64, end: u64) -> Result<(), Unverified> {
        let table = read(&self.table);
        let fail = |e: io::Error| Unverified::Failed(failure(&e, "read the checksums of the object"));
        let mut at = offset;
        while at < end && at / REGION < table.regions {
            let until = end.min((at / REGION + 1) * REGION);
            let records = table.load_range(self, at, until).map_err(fail)?;
            for block in at / BLOCK..until.div_ceil(BLOCK) {
                match table.current(&records, block) {
                    None => return Err(Unverified::Mismatch(Mismatch { offset: block * BLOCK, len: BLOCK })),
                    Some((0, _)) => {}
                    Some((len, sum)) => self.check(data, block * BLOCK, len, sum)?,
                }
            }
            at = until;
        }
        Ok(())
    }

    /// Computes the checksums of all blocks that have changed, before the caller syncs `data`. `size` returns the
    /// object's size.
    pub(crate) fn begin_seal(&self, data: &dyn DiskFile, size: impl Fn() -> u64) -> Result<(), Failure> {
        let mut table = write(&self.table);
        let size = size();
        let mut sealing = BTreeMap::new();
        for (region, changed) in &table.changed {
            let old =
                table.load(self, *region, *region).map_err(|e| failure(&e, "read the checksums of the object"))?;
            let mut record = Record::EMPTY;
            for index in 0..BLOCKS {
                let from = region * REGION + index as u64 * BLOCK;
                let len = size.saturating_sub(from).min(BLOCK) as u16;
                if changed.fresh >> index & 1 == 1 {
                    (record.lens[index], record.sums[index]) = (BLOCK as u16, changed.sums[index]);
                } else if changed.stale >> index & 1 == 1 && len > 0 {
                    let (covered, sum) = old.of(from / BLOCK).unwrap_or_default();
                    if let Some(sum) = self.sum_again(data, from, len, covered, sum)? {
                        (record.lens[index], record.sums[index]) = (len, sum);
                    }
                }
            }
            sealing.insert(*region, record);
        }
        table.changed.clear();
        table.sealing = sealing;
        Ok(())
    }

    /// Returns the checksum of a block's current bytes. Returns `None` if the bytes that the old checksum covers are
    /// damaged; then the caller keeps the old checksum.
    fn sum_again(&self, data: &dyn DiskFile, from: u64, len: u16, old: u16, sum: u32) -> Result<Option<u32>, Failure> {
        let mut block = [0; BLOCK as usize];
        let block = &mut block[..len.into()];
        read_full(data, block, HEAD_LEN + from).map_err(|e| failure(&e, "read the object"))?;
        let covered = block.get(..old.into()).is_some_and(|part| old == 0 || crc32c(part) == sum);
        Ok(covered.then(|| crc32c(block)))
    }

    /// Stores, durably, the checksums that [`BlockChecksums::begin_seal`] computed. Skips blocks that have changed
    /// after that call. The caller must have synced the data of the object.
    pub(crate) fn finish_seal(&self, counters: &Counters) -> io::Result<()> {
        let mut table = write(&self.table);
        if table.sealing.is_empty() {
            return Ok(());
        }
        let mut stored = Ok(());
        while let Some((region, new)) = table.sealing.pop_first() {
            stored = stored.and_then(|()| self.seal(&mut table, region, &new));
            if stored.is_err() {
                // The checksums could not be stored. Mark their blocks as changed, so that the next sync computes the
                // checksums again.
                let blocks = (0..BLOCKS as u64).filter(|index| new.lens[*index as usize] > 0);
                blocks.for_each(|index| table.make_stale(region * BLOCKS as u64 + index));
            }
        }
        drop(table);
        stored?;
        self.sync(counters)
    }

    fn seal(&self, table: &mut Table, region: u64, new: &Record) -> io::Result<()> {
        // Keep a damaged record, because it may hold checksums of blocks that have not changed.
        let Some(mut record) = table.load(self, region, region)?.list.remove(0) else { return Ok(()) };
        let again = table.changed.get(&region).map_or(0, |changed| changed.stale | changed.fresh);
        for index in (0..BLOCKS).filter(|index| new.lens[*index] > 0 && again >> index & 1 == 0) {
            (record.lens[index], record.sums[index]) = (new.lens[index], new.sums[index]);
        }
        table.store(self, region, &record)
    }

    /// Removes, durably, the checksums of all blocks beyond `size`, before the caller truncates the object.
    pub(crate) fn cut(&self, data: &dyn DiskFile, size: u64, counters: &Counters) -> Result<(), Failure> {
        let fail = |e: io::Error| failure(&e, "remove checksums of the object");
        let mut table = write(&self.table);
        self.prove(&mut table, counters)?;
        let (last, kept) = (size / BLOCK, size.div_ceil(REGION));
        if !size.is_multiple_of(REGION) {
            self.release(&mut table, data, size, kept * REGION, counters)?;
        }
        if kept < table.regions {
            self.file.set_len(kept * RECORD as u64).map_err(fail)?;
            table.regions = kept;
            self.sync(counters).map_err(fail)?;
        }
        table.forget(size.div_ceil(BLOCK), u64::MAX / BLOCK);
        if !size.is_multiple_of(BLOCK) {
            let records = table.load_range(self, size, size + 1).map_err(fail)?;
            if table.is_changing(last) || records.of(last) == Some((0, 0)) {
                table.make_stale(last);
            }
        }
        Ok(())
    }

    /// Removes, durably, the checksums of the blocks from `offset` to `end`, before the caller punches a hole into this
    /// range.
    pub(crate) fn punch(&self, data: &dyn DiskFile, offset: u64, end: u64, counters: &Counters) -> Result<(), Failure> {
        let mut table = write(&self.table);
        self.prove(&mut table, counters)?;
        let mut at = offset;
        while at < end && at / REGION < table.regions {
            let until = end.min((at / REGION + 64) * REGION);
            self.release(&mut table, data, at, until, counters)?;
            at = until;
        }
        table.forget(offset.div_ceil(BLOCK), end / BLOCK);
        for edge in [offset, end].into_iter().filter(|edge| !edge.is_multiple_of(BLOCK)) {
            table.make_stale(edge / BLOCK);
        }
        Ok(())
    }

    /// Marks the data blocks in a byte range that are unchanged and have no checksum, so that the next sync computes
    /// their checksums. Returns the number of marked blocks. Does not change damaged records.
    pub(crate) fn adopt(&self, offset: u64, end: u64) -> io::Result<u64> {
        let mut table = write(&self.table);
        let records = table.load_range(self, offset, end)?;
        let mut adopted = 0;
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            if records.of(block).is_some_and(|(len, _)| len == 0) && !table.is_changing(block) {
                table.make_stale(block);
                adopted += 1;
            }
        }
        Ok(adopted)
    }
}

impl Unverified {
    /// Converts a failed verification to a [`Failure`] of the native data protocol, and counts damaged blocks.
    pub(crate) fn failure(self, counters: &Counters) -> Failure {
        match self {
            Unverified::Failed(failure) => failure,
            Unverified::Mismatch(mismatch) => {
                Counters::add(&counters.sums_mismatched, 1);
                damaged(mismatch, "they do not match their checksum")
            }
        }
    }
}

fn damaged(mismatch: Mismatch, why: &str) -> Failure {
    let Mismatch { offset, len } = mismatch;
    Failure {
        status: Status::Corrupt,
        detail: Some(format!("bytes {offset} to {} of the object: {why}", offset + len)),
    }
}

/// Returns the CRC-32C of `len` bytes, from offset `at`, of `a` followed by `b`.
fn sum_of(a: &[u8], b: &[u8], at: usize, len: usize) -> u32 {
    if at + len <= a.len() {
        return crc32c(&a[at..at + len]);
    }
    if at >= a.len() {
        return crc32c(&b[at - a.len()..at - a.len() + len]);
    }
    let mut sum = Crc32c::new();
    sum.update(&a[at..]);
    sum.update(&b[..at + len - a.len()]);
    sum.finish()
}

#[cfg(test)]
mod tests;
