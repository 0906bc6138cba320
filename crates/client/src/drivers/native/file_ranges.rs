//! The mapping between file ranges and objects: which requests a file range needs, and what their replies mean for the
//! file.

use super::object_run::ObjectRun;
use super::{Objects, no_object};
use crate::drivers::{Attempt, Found, Layout, NotDone, Payload, ReadDone, Share, Written};
use crate::placement::PlacedObject;
use crate::{Error, Placement};
use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use layout::Distribution;
use layout::list_io::{RequestLimits, plan};
use tokio::time::Instant;
use types::{ByteRange, Generation, Status, Verifier};
use wire::native::{SeekResult, SeekWhat};

impl Objects {
    fn indices(&self) -> std::ops::Range<usize> {
        0..self.distribution.count()
    }

    /// Returns the extents of object `index` that store the file ranges `parts`.
    ///
    /// # Errors
    /// Another object stores some of the ranges, because the caller divided the ranges for an earlier layout of the
    /// file.
    fn extents(&self, index: usize, parts: &[ByteRange]) -> Attempt<Vec<ByteRange>> {
        let mut extents: Vec<ByteRange> = Vec::with_capacity(parts.len());
        for piece in parts.iter().flat_map(|part| self.distribution.pieces(*part)) {
            if piece.index != index {
                let what = format!("object {index} of file {}: the file has another layout now", self.object);
                return Err(NotDone::NotAttempted(Error::status(Status::NoLayout, what)));
            }
            match extents.last_mut() {
                Some(last) if last.end() == piece.object.offset => last.len += piece.object.len,
                _ => extents.push(piece.object),
            }
        }
        Ok(extents)
    }

    /// Returns the file offset of the first data byte, or of the first byte in a hole, of the object at or after file
    /// offset `from`. Durable bytes that the object has lost count as data.
    async fn seek(&self, index: usize, from: u64, what: SeekWhat) -> Attempt<Option<u64>> {
        // Start at the first byte of the object whose file offset is at least `from`.
        let start = self.distribution.object_size(from, index);
        let least = self.distribution.object_size(self.lengths.whole(), index);
        let result = SeekResult { what, start, found: self.seek_object(index, start, what).await? };
        let size = if result.depends_on_size(least) { self.size_object(index).await?.size } else { least };
        let at = result.with_lost(size, least);
        Ok(at.and_then(|at| self.distribution.file_offset(index, at)).map(|at| at.max(from)))
    }

    async fn placed(&self, index: usize) -> Attempt<PlacedObject> {
        let size = self.size_object(index).await?;
        let (iod, id) = self.iods.get(index).zip(self.iods.ids().get(index)).ok_or_else(|| no_object(index))?;
        let addresses = iod.addresses().await.map_err(NotDone::Failed)?;
        Ok(PlacedObject { iod: *id, addresses, size: size.size, allocated: size.allocated })
    }
}

#[async_trait]
impl Layout for Objects {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn is_old(&self) -> bool {
        Instant::now() >= self.old_from
    }

    fn lanes(&self) -> usize {
        self.distribution.count()
    }

    fn shares(&self, ranges: &[ByteRange]) -> Vec<Share> {
        let requests = plan(&self.distribution, ranges, RequestLimits::default());
        requests.into_iter().map(|request| Share { lane: request.index, parts: request.parts }).collect()
    }

    fn reaches(&self, size: u64) -> bool {
        self.lengths.reach(&self.distribution, size)
    }

    fn truncating(&self) {
        self.lengths.forget();
    }

    async fn read(&self, lane: usize, parts: &[ByteRange]) -> Attempt<ReadDone> {
        let found = self.read_object(lane, &self.extents(lane, parts)?).await?;
        Ok(in_file(parts, found, self.lengths.whole()))
    }

    async fn write(&self, lane: usize, parts: &[ByteRange], payload: &Payload, stable: bool) -> Attempt<Written> {
        self.write_object(lane, &self.extents(lane, parts)?, payload, stable).await
    }

    async fn commit(&self, lane: usize) -> Attempt<Verifier> {
        self.commit_object(lane).await
    }

    async fn punch(&self, range: ByteRange) -> Attempt<()> {
        let ranges = object_ranges(&self.distribution, range);
        let punches = ranges.into_iter().map(|(index, range)| self.punch_object(index, range));
        // Wait until all iods have replied: an iod that punches the hole later would destroy bytes that the client
        // writes in the meantime.
        worst(join_all(punches).await)
    }

    async fn next_data(&self, offset: u64) -> Attempt<Option<ByteRange>> {
        let data = self.indices().map(|index| self.seek(index, offset, SeekWhat::Data));
        let Some(start) = try_join_all(data).await?.into_iter().flatten().min() else { return Ok(None) };
        let holes = try_join_all(self.indices().map(|index| self.seek(index, start, SeekWhat::Hole))).await?;
        let end = holes.into_iter().flatten().filter(|hole| *hole > start).min().unwrap_or(u64::MAX);
        Ok(Some(ByteRange { offset: start, len: end - start }))
    }

    async fn placement(&self, file_size: u64) -> Attempt<Placement> {
        let objects = try_join_all(self.indices().map(|index| self.placed(index))).await?;
        Ok(Placement { distribution: self.distribution, object: self.object, objects, file_size })
    }
}

/// Returns the failure of parallel requests that the client must treat with most care, if any of them failed.
pub(super) fn worst(outcomes: impl IntoIterator<Item = Attempt<()>>) -> Attempt<()> {
    let rank = |not_done: &NotDone| match not_done {
        NotDone::Unanswered(_) => 0,
        NotDone::Failed(_) => 1,
        NotDone::Stale(_) => 2,
        NotDone::NotAttempted(_) => 3,
    };
    outcomes.into_iter().filter_map(Attempt::err).min_by_key(rank).map_or(Ok(()), Err)
}

/// Returns the objects that store bytes of a file range, and the range in each object. A contiguous file range is one
/// contiguous range in each object, because the distribution leaves no gaps in objects.
fn object_ranges(distribution: &Distribution, file: ByteRange) -> Vec<(usize, ByteRange)> {
    let range = |index| {
        let start = distribution.object_size(file.offset, index);
        let end = distribution.object_size(file.end(), index);
        (index, ByteRange { offset: start, len: end - start })
    };
    (0..distribution.count()).map(range).filter(|(_, range)| !range.is_empty()).collect()
}

/// Converts the byte ranges `found` of an object, as an iod returned them, to file ranges. `parts` are the requested
/// file ranges, in the order in which the object stores them. The first `whole` bytes of the file are durable: if some
/// of them are beyond the end of the object, they are lost.
fn in_file(parts: &[ByteRange], found: Vec<ObjectRun>, whole: u64) -> ReadDone {
    let mut done = ReadDone::default();
    let mut parts = parts.iter().copied();
    let mut part = ByteRange::default();
    for mut run in found {
        while run.len() > 0 {
            if part.is_empty() {
                match parts.next() {
                    Some(next) => part = next,
                    None => return done,
                }
            }
            let (at, now) = (part.offset, run.split_to(part.len));
            part = ByteRange { offset: at + now.len(), len: part.len - now.len() };
            match now {
                ObjectRun::Data(data) => done.runs.push((at, Found::Data(data))),
                ObjectRun::Hole(len) => done.runs.push((at, Found::Nothing(len))),
                ObjectRun::Beyond(len) => {
                    let lost = len.min(whole.saturating_sub(at));
                    if lost > 0 {
                        done.lost.push(ByteRange { offset: at, len: lost });
                    }
                    if lost < len {
                        done.runs.push((at + lost, Found::Nothing(len - lost)));
                    }
                }
            }
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use layout::DistributionId;

    #[test]
    fn runs_are_in_the_order_of_the_requested_parts() {
        let parts = [ByteRange { offset: 10, len: 3 }, ByteRange { offset: 20, len: 4 }];
        let found = vec![ObjectRun::Data(Bytes::from_static(b"abcd")), ObjectRun::Hole(3)];
        let data = |s: &'static [u8]| Found::Data(Bytes::from_static(s));
        let done = in_file(&parts, found, 100);
        assert_eq!(done.runs, [(10, data(b"abc")), (20, data(b"d")), (21, Found::Nothing(3))]);
        assert!(done.lost.is_empty(), "a hole is not lost");
    }

    #[test]
    fn bytes_beyond_an_object_are_lost_up_to_the_durable_size() {
        let parts =
            [ByteRange { offset: 10, len: 3 }, ByteRange { offset: 20, len: 4 }, ByteRange { offset: 30, len: 2 }];
        let found = || vec![ObjectRun::Data(Bytes::from_static(b"ab")), ObjectRun::Beyond(7)];
        let range = |offset, len| ByteRange { offset, len };
        let lost = |whole| in_file(&parts, found(), whole);
        assert_eq!(lost(22).lost, [range(12, 1), range(20, 2)]);
        assert_eq!(lost(22).runs[1..], [(22, Found::Nothing(2)), (30, Found::Nothing(2))]);
        assert!(lost(12).lost.is_empty());
        assert_eq!(lost(99).lost, [range(12, 1), range(20, 4), range(30, 2)]);
    }

    #[test]
    fn object_ranges_cover_every_piece() {
        let d = Distribution::new(DistributionId::SimpleStripe, 64, 3).unwrap();
        let file = ByteRange { offset: 70, len: 300 };
        let ranges = object_ranges(&d, file);
        for (index, range) in &ranges {
            let bytes: u64 = d.pieces(file).filter(|p| p.index == *index).map(|p| p.object.len).sum();
            assert_eq!(bytes, range.len);
        }
        assert_eq!(ranges.iter().map(|(_, r)| r.len).sum::<u64>(), 300);
    }
}
