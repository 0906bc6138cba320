//! Looking for damage: heads, checksums and whether the disk gives back what it has, a part of the store at a time.

use types::limits::PAYLOAD_MAX;
use types::{FileId, Status};
use wire::native::{Damage, Failure, Finding, SCRUB_FINDINGS_MAX, ScrubCursor, ScrubReply};

use super::object::{Open, Presence};
use super::sums::{BLOCK, Unverified};
use super::{Store, failure};
use crate::counters::Counters;
use crate::disks::read_full;
use crate::store::head::HEAD_LEN;

/// Most bytes that one call reads; bounds how long it takes.
const BUDGET_MAX: u64 = 16 << 20;
/// What an object costs of the budget beside its bytes.
const OBJECT_COST: u64 = 4096;
/// Bytes read at a time.
const CHUNK: u64 = PAYLOAD_MAX as u64 / 2;
/// Findings from which on a call ends: a chunk has room for this many fewer than an answer.
const FINDINGS_ENOUGH: usize = SCRUB_FINDINGS_MAX - (CHUNK / BLOCK) as usize / 2 - 1;

/// A scrub under way.
struct Scrub<'a> {
    store: &'a Store,
    buffer: &'a mut [u8],
    budget: u64,
    reply: ScrubReply,
}

impl Store {
    /// Checks the store from `from` on until about `budget` bytes are read; `buffer` has room for a payload.
    ///
    /// Objects that come and go meanwhile may or may not be met. What is being written is checked as far as it is known.
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
            // Afterwards, so that every call gets on.
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

    /// Checks one object from `offset` on; answers where to go on in it, `None` when it is finished.
    fn object(&mut self, id: FileId, offset: u64) -> Result<Option<u64>, Failure> {
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

    /// Checks the bytes of an object from `at` on.
    fn bytes(&mut self, id: FileId, open: &Open, mut at: u64, rebuilt: &mut u64) -> Result<Option<u64>, Failure> {
        let counters = self.store.counters();
        while at < open.size() {
            if self.is_done() {
                return Ok(Some(at));
            }
            let size = open.size();
            // Where the disk does not even say what is a hole, reading finds out more.
            let data = open.next_data(at, counters).unwrap_or(Some(at)).unwrap_or(size).min(size);
            if at < data {
                self.hole(id, open, at, data);
                at = data;
                continue;
            }
            let hole = open.next_hole(at, counters).unwrap_or(size).clamp(at + 1, size);
            // Chunks end between blocks.
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

    /// Reads a chunk; when something is wrong with it, block by block. Answers whether all was well.
    fn chunk(&mut self, id: FileId, open: &Open, start: u64, end: u64) -> Result<bool, Failure> {
        // What is in memory says nothing about the disk.
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

    fn hole(&mut self, id: FileId, open: &Open, start: u64, end: u64) {
        let Some(sums) = &open.sums else { return };
        if let Err(Unverified::Mismatch(mismatch)) = sums.check_hole(&*open.file, start, end) {
            let (offset, len) = (mismatch.offset, mismatch.len);
            self.find(Finding { object: id, damage: Damage::Checksum, offset, len });
        }
    }

    /// Notes damage, together with that before it when they are neighbours.
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
        tracing::error!(object = object.0, ?damage, offset, len, "damage found");
    }
}

/// Whether a failure is one of the disk, and not one that passes.
fn is_damage(failure: &Failure) -> bool {
    matches!(failure.status, Status::Io | Status::Corrupt)
}
