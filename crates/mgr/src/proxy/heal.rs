//! Repair of damaged blocks of a copy. The iod cannot read these blocks, or their checksums are wrong. The mgr
//! overwrites them with the bytes of another copy.

use super::Objects;
use crate::kinds::Stored;
use layout::list_io::Request;
use std::sync::PoisonError;
use types::{ByteRange, Status};

/// Unit of the iods' block checksums, in bytes. A write of a whole block does not need the old bytes.
const BLOCK: u64 = 4096;
/// Number of object bytes whose checksums the iod stores together, as one region. If these checksums are damaged, no
/// block of the region can be read.
const REGION: u64 = 64 * BLOCK;
/// Number of bytes that one read request of the repair verifies.
const STEP: u64 = 1 << 20;
/// Largest number of damaged ranges that the mgr remembers for one file.
const MOST: usize = 256;

/// A range of an object in which a request or a scrub found damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Suspect {
    /// Index of the object among the objects of the file.
    pub(crate) index: usize,
    /// The damaged range within the object, in bytes.
    pub(crate) range: ByteRange,
}

/// Adds damaged ranges to the list of damaged ranges of a file. The list holds at most [`MOST`] ranges.
pub(crate) fn remember(suspects: &mut Vec<Suspect>, more: &[Suspect]) {
    for suspect in more {
        if suspects.len() < MOST && !suspects.contains(suspect) {
            suspects.push(*suspect);
        }
    }
}

/// Returns a read request for one range of one object.
fn request(index: usize, range: ByteRange) -> Request {
    Request { index, extents: vec![range], parts: vec![range], bytes: range.len }
}

/// Returns the whole blocks that contain `range`, divided into ranges of at most [`STEP`] bytes. `size` is the length
/// of the object, at which the last range ends.
fn pieces(range: ByteRange, size: u64) -> Vec<ByteRange> {
    let end = range.end().min(size);
    let end = end.checked_next_multiple_of(BLOCK).unwrap_or(end).min(size);
    let mut at = range.offset - range.offset % BLOCK;
    let mut pieces = Vec::new();
    while at < end {
        let len = (STEP - at % STEP).min(end - at);
        pieces.push(ByteRange { offset: at, len });
        at += len;
    }
    pieces
}

/// Divides a range into two halves of whole blocks. Returns `None` for a range of a single block.
fn halves(piece: ByteRange) -> Option<[ByteRange; 2]> {
    let len = (piece.len / 2).next_multiple_of(BLOCK);
    let rest = piece.len.checked_sub(len).filter(|rest| *rest > 0)?;
    Some([ByteRange { len, ..piece }, ByteRange { offset: piece.offset + len, len: rest }])
}

impl Objects<'_> {
    /// Records all ranges of a read request as damaged, because the request failed on damaged bytes of this copy.
    pub(super) fn suspect(&self, request: &Request, index: usize) {
        let suspects: Vec<_> = request.extents.iter().map(|range| Suspect { index, range: *range }).collect();
        remember(&mut self.suspects.lock().unwrap_or_else(PoisonError::into_inner), &suspects);
    }

    /// Returns the damaged ranges of objects that requests through this [`Objects`] have found.
    pub(crate) fn suspects(&self) -> Vec<Suspect> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Overwrites the damaged blocks in these ranges with the bytes of another copy. Returns the number of written
    /// blocks. No client may write the file during the repair.
    ///
    /// # Errors
    /// `Delay` while an iod of the file is down. `Lost` if bytes are damaged in every copy; all other blocks are
    /// written then.
    pub(crate) async fn heal(&self, suspects: &[Suspect]) -> Result<u64, Status> {
        self.all_up()?;
        let (mut healed, mut lost) = (0, false);
        for Suspect { index, range } in suspects.iter().filter(|suspect| suspect.index < self.count()) {
            let copy = self.look(*index).await?;
            let mut todo = pieces(*range, copy.size);
            while let Some(piece) = todo.pop() {
                if self.is_right(*index, piece).await? {
                    continue;
                }
                match (halves(piece), self.right_copy(*index, piece).await?) {
                    (Some(halves), _) => todo.extend(halves),
                    (None, Some(from)) => {
                        self.write_again(from, *index, piece, copy.size).await?;
                        healed += 1;
                    }
                    (None, None) => lost = true,
                }
            }
        }
        if lost { Err(Status::Lost) } else { Ok(healed) }
    }

    /// Overwrites a damaged block with the bytes of another copy. If that fails because the checksums of a whole region
    /// are damaged, overwrites the region that contains the block.
    async fn write_again(&self, from: usize, to: usize, block: ByteRange, size: u64) -> Result<(), Status> {
        let region = block.offset - block.offset % REGION;
        let region = ByteRange { offset: region, len: REGION.min(size - region) };
        for range in [block, region] {
            match self.carry(from, to, range).await {
                Ok(()) => return Ok(()),
                Err(Status::Io) => {}
                Err(status) => return Err(status),
            }
        }
        Err(Status::Io)
    }

    /// Asks the iod of an object whether any bytes in this range of the object are damaged.
    pub(crate) async fn is_damaged_in(&self, Suspect { index, range }: Suspect) -> Result<bool, Status> {
        let copy = self.look(index).await?;
        for piece in pieces(range, copy.size) {
            if !self.is_right(index, piece).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether the iod can read this range of an object with correct checksums.
    async fn is_right(&self, index: usize, range: ByteRange) -> Result<bool, Status> {
        match self.read_copy(&request(index, range), &*self.link(index)?).await {
            Ok(_) => Ok(true),
            Err(Status::Io) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Returns the index of another copy of the object in which this range is undamaged.
    async fn right_copy(&self, index: usize, range: ByteRange) -> Result<Option<usize>, Status> {
        for other in self.copies(self.column(index)).filter(|other| *other != index) {
            match self.read_copy(&request(other, range), &*self.link(other)?).await {
                Ok((size, _)) if size >= range.end() => return Ok(Some(other)),
                Ok(_) | Err(Status::Io) => {}
                Err(status) => return Err(status),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange { offset, len }
    }

    #[test]
    fn damaged_ranges_are_extended_to_whole_blocks() {
        assert_eq!(pieces(range(5000, 1), 100_000), [range(4096, 4096)]);
        assert_eq!(pieces(range(5000, 1), 6000), [range(4096, 1904)], "the object ends there");
        assert_eq!(pieces(range(5000, 1), 5000), [range(4096, 904)]);
        assert_eq!(pieces(range(9000, 1), 5000), []);
        assert_eq!(pieces(range(0, u64::MAX), 0), []);
        let all = pieces(range(STEP - 1, u64::MAX - STEP), 3 * STEP + 7);
        assert_eq!(all, [range(STEP - BLOCK, BLOCK), range(STEP, STEP), range(2 * STEP, STEP), range(3 * STEP, 7)]);
    }

    #[test]
    fn damage_is_narrowed_down_to_one_block() {
        assert_eq!(halves(range(0, BLOCK)), None);
        assert_eq!(halves(range(BLOCK, 10)), None);
        assert_eq!(halves(range(BLOCK, 2 * BLOCK)), Some([range(BLOCK, BLOCK), range(2 * BLOCK, BLOCK)]));
        assert_eq!(halves(range(0, BLOCK + 1)), Some([range(0, BLOCK), range(BLOCK, 1)]));
        let (mut todo, mut blocks) = (vec![range(STEP, STEP - 5)], 0);
        while let Some(piece) = todo.pop() {
            match halves(piece) {
                Some(halves) => todo.extend(halves),
                None => blocks += 1,
            }
        }
        assert_eq!(blocks, STEP / BLOCK);
    }

    #[test]
    fn a_bounded_number_of_suspects_is_remembered_each_once() {
        let mut all = Vec::new();
        let suspect = |at| Suspect { index: 0, range: range(at, 1) };
        (0..2).for_each(|_| remember(&mut all, &[suspect(1), suspect(2)]));
        assert_eq!(all, [suspect(1), suspect(2)]);
        (0..2 * MOST as u64).for_each(|at| remember(&mut all, &[suspect(at)]));
        assert_eq!(all.len(), MOST);
    }
}
