//! Scrubbing: each call of `Store::scrub` checks the headers and block checksums of some objects, and reads all their
//! bytes from disk.

use types::limits::PAYLOAD_MAX;
use types::{ObjectId, Status};
use wire::native::{Damage, Failure, Finding, SCRUB_FINDINGS_MAX, ScrubCursor, ScrubReply};

use super::block_checksums::{BLOCK, Unverified};
use super::object::{Open, Presence};
use super::{Store, failure};
use crate::counters::Counters;
use crate::disks::read_full;
use crate::store::head::HEAD_LEN;

/// Maximum number of bytes that one call of [`Store::scrub`] reads. This limit bounds the duration of the call.
const BUDGET_MAX: u64 = 16 << 20;
/// Number of bytes that the check of one object takes from the budget of a scrub call, in addition to the object's own
/// bytes.
const OBJECT_COST: u64 = 4096;
/// Number of bytes of an object that a scrub reads at once.
const CHUNK: u64 = PAYLOAD_MAX as u64 / 2;
/// Number of findings (damaged ranges) after which a call of [`Store::scrub`] reads no more chunks. At this number, the
/// findings of one more chunk still fit into the reply.
const FINDINGS_ENOUGH: usize = SCRUB_FINDINGS_MAX - (CHUNK / BLOCK) as usize / 2 - 1;

/// The progress and the results of one call of [`Store::scrub`].
struct Scrub<'a> {
    store: &'a Store,
    buffer: &'a mut [u8],
    budget: u64,
    reply: ScrubReply,
}

impl Store {
    /// Checks the store from `from` on until it has read about `budget` bytes. `buffer` must have the size of a
    /// payload.
    ///
    /// An object that is created or removed during a scrub may be checked or not. A block that a client is writing is
    /// verified only if its checksum is already known.
    pub(crate) fn scrub(
        &self,
        from: Option<ScrubCursor>,
        budget: u32,
        buffer: &mut [u8],
    ) -> Result<ScrubReply, Failure> {
        let budget = u64::from(budget).clamp(OBJECT_COST, BUDGET_MAX);
        let mut scrub = Scrub { store: self, buffer, budget, reply: ScrubReply::default() };
        self.walk(from.map(|cursor| cursor.object), |object| {
            let offset = from.filter(|cursor| cursor.object == object).map_or(0, |cursor| cursor.offset);
            if scrub.is_done() {
                scrub.reply.next = Some(ScrubCursor { object, offset });
                return Ok(false);
            }
            let next = scrub.object(object, offset)?;
            // Subtract the cost of the object from the budget only after the check, so that every call checks at least
            // one object.
            scrub.budget = scrub.budget.saturating_sub(OBJECT_COST);
            scrub.reply.next = next.map(|offset| ScrubCursor { object, offset });
            scrub.reply.objects += u64::from(next.is_none());
            Ok(next.is_none())
        })?;
        let reply = scrub.reply;
        let counters = self.counters();
        Counters::add(&counters.scrub_bytes, reply.bytes);
        Counters::add(&counters.scrub_objects, reply.objects);
        Counters::add(&counters.scrub_findings, reply.findings.len() as u64);
        Counters::add(&counters.sums_rebuilt, reply.rebuilt);
        Ok(reply)
    }
}

impl Scrub<'_> {
    fn is_done(&self) -> bool {
        self.budget == 0 || self.reply.findings.len() >= FINDINGS_ENOUGH
    }

    /// Checks one object from `offset` on. Returns the offset at which the next call must continue, or `None` if the
    /// object is finished.
    fn object(&mut self, id: ObjectId, offset: u64) -> Result<Option<u64>, Failure> {
        let open = match self.store.object(id).presence(self.store) {
            Ok(Presence::Absent) => return Ok(None),
            Ok(Presence::Open(open)) => open,
            Ok(Presence::Damaged) => {
                self.find(Finding { object: id, damage: Damage::Object, offset: 0, len: 0 });
                return Ok(None);
            }
            Err(failure) if is_damage(&failure) => {
                self.find(Finding { object: id, damage: Damage::Unreadable, offset: 0, len: 0 });
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        let mut rebuilt = 0;
        let next = self.bytes(id, &open, offset, &mut rebuilt)?;
        if rebuilt > 0 {
            open.sync(self.store)?;
            self.reply.rebuilt += rebuilt;
        }
        Ok(next)
    }

    /// Checks the bytes of an object from offset `at` on.
    fn bytes(&mut self, id: ObjectId, open: &Open, mut at: u64, rebuilt: &mut u64) -> Result<Option<u64>, Failure> {
        let counters = self.store.counters();
        while at < open.size() {
            if self.is_done() {
                return Ok(Some(at));
            }
            let size = open.size();
            // If SEEK_DATA fails, treat the rest of the object as data. The scrub then reads the rest and reports its
            // damage.
            let data = open.next_data(at, counters).unwrap_or(Some(at)).unwrap_or(size).min(size);
            if at < data {
                self.hole(id, open, at, data);
                at = data;
                continue;
            }
            let hole = open.next_hole(at, counters).unwrap_or(size).clamp(at + 1, size);
            // End each chunk at a block boundary, so that each block is read and verified once.
            let until = hole.min((at / BLOCK) * BLOCK + CHUNK.min(self.budget.next_multiple_of(BLOCK)));
            if self.chunk(id, open, at, until)?
                && let Some(sums) = &open.sums
            {
                let adopted = sums.adopt(at, until).map_err(|e| failure(&e, "read the checksums of the object"))?;
                if adopted > 0 {
                    open.changed();
                    *rebuilt += adopted;
                }
            }
            self.reply.bytes += until - at;
            self.reply.verified += if open.sums.is_some() { until - at } else { 0 };
            self.budget = self.budget.saturating_sub(until - at);
            at = until;
        }
        Ok(None)
    }

    /// Reads a chunk and verifies it. If the verification fails, reads each block of the chunk by itself to find the
    /// damaged blocks. Returns whether all blocks are undamaged.
    fn chunk(&mut self, id: ObjectId, open: &Open, start: u64, end: u64) -> Result<bool, Failure> {
        // Drop the cached pages of the chunk first, because a read from the page cache does not test the disk.
        open.file.forget(HEAD_LEN + start, end - start);
        if self.read(open, start, end).is_ok() {
            return Ok(true);
        }
        let mut sound = true;
        let mut at = start;
        while at < end {
            let until = end.min((at / BLOCK + 1) * BLOCK);
            match self.read(open, at, until) {
                Ok(()) => {}
                Err(Unverified::Mismatch(mismatch)) => {
                    let (offset, len) = (mismatch.offset, mismatch.len);
                    self.find(Finding { object: id, damage: Damage::Checksum, offset, len });
                    sound = false;
                }
                Err(Unverified::Failed(failure)) if is_damage(&failure) => {
                    self.find(Finding { object: id, damage: Damage::Unreadable, offset: at, len: until - at });
                    sound = false;
                }
                Err(Unverified::Failed(failure)) => return Err(failure),
            }
            at = until;
        }
        Ok(sound)
    }

    fn read(&mut self, open: &Open, start: u64, end: u64) -> Result<(), Unverified> {
        let buffer = &mut self.buffer[..(end - start) as usize];
        match &open.sums {
            Some(sums) => sums.read(&*open.file, start, buffer),
            None => {
                let read = read_full(&*open.file, buffer, HEAD_LEN + start);
                read.map(drop).map_err(|e| Unverified::Failed(failure(&e, "read the object")))
            }
        }
    }

    fn hole(&mut self, id: ObjectId, open: &Open, start: u64, end: u64) {
        let Some(sums) = &open.sums else { return };
        if let Err(Unverified::Mismatch(mismatch)) = sums.check_hole(&*open.file, start, end) {
            let (offset, len) = (mismatch.offset, mismatch.len);
            self.find(Finding { object: id, damage: Damage::Checksum, offset, len });
        }
    }

    /// Adds a finding (a damaged range of an object) to the reply; joins it with the previous finding if both have the
    /// same object and the same kind of damage, and their ranges are adjacent.
    fn find(&mut self, found: Finding) {
        let findings = &mut self.reply.findings;
        let continues = |last: &&mut Finding| {
            (last.object, last.damage, last.offset + last.len) == (found.object, found.damage, found.offset)
        };
        match findings.last_mut().filter(continues) {
            Some(last) => last.len += found.len,
            None => findings.push(found),
        }
        let Finding { object, damage, offset, len } = found;
        tracing::error!(object = %object, ?damage, offset, len, "damage found");
    }
}

/// Returns whether a failure means damaged data, and not a temporary error.
fn is_damage(failure: &Failure) -> bool {
    matches!(failure.status, Status::Io | Status::Corrupt)
}
