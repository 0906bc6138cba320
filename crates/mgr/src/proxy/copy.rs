//! Server-side copy: the iods copy bytes of one file into another file, without moving them through the mgr.

use super::write::Seen;
use super::{Objects, Written};
use crate::iods::Link;
use crate::kinds::Stored;
use futures_util::future;
use layout::{Distribution, Place};
use std::collections::BTreeMap;
use types::limits::EXTENTS_MAX;
use types::{ByteRange, Status};
use wire::native::{PULL_MAX, PullArgs, PullExtent, PullReply, PullSource, Rights};

/// Largest number of bytes that one copy request of a client copies.
const COPIED_MAX: u64 = 32 << 20;
/// Largest number of stripe units that one copy request of a client copies, which limits the number of PULL requests.
const UNITS_MAX: u64 = 16 << 10;

/// The extents that one target object gets from one source object in one PULL request.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Job {
    /// Index of the target object in the first copy of the target file.
    to: usize,
    /// Index of the source object in the first mirror of the source file.
    from: usize,
    extents: Vec<PullExtent>,
}

impl Objects<'_> {
    /// Returns the largest number of bytes of a range that one call of [`Objects::copy`] from `source` copies.
    pub(crate) fn copied_at_once(&self, source: &dyn Stored, len: u64) -> u64 {
        let unit = self.distribution.stripe_unit().min(source.unit());
        len.min(COPIED_MAX).min(UNITS_MAX.saturating_mul(unit))
    }

    /// Makes the iods copy a range of another file to the offset `target`, in all copies, as unstable writes. Returns
    /// `None` if an iod cannot copy now. After `None` or a failure, any part of the bytes may be written.
    pub(crate) async fn copy(
        &self,
        source: &dyn Stored,
        range: ByteRange,
        target: u64,
    ) -> Result<Option<Written>, Status> {
        let seen = self.copy_seen(source, range, target).await?;
        Ok(seen.map(|seen| Written { stable: false, verifier: self.iods.verifiers.combine(&seen) }))
    }

    /// Copies like [`Objects::copy`], and returns the verifiers of the iods.
    pub(super) async fn copy_seen(
        &self,
        source: &dyn Stored,
        range: ByteRange,
        target: u64,
    ) -> Result<Option<Seen>, Status> {
        let jobs = jobs((|offset| source.place(offset), range), (&self.distribution, target));
        let each = jobs.iter().flat_map(|job| self.copies(job.to).map(move |index| (job, index)));
        let pulls = each.map(|(job, index)| async move {
            let pulled = self.pull(source, job, index).await?;
            Ok(pulled.map(|reply| (self.iod(index), reply.verifier)))
        });
        // Wait for all PULL requests, even after a failure: no iod may still be writing when the caller continues.
        future::join_all(pulls).await.into_iter().collect()
    }

    async fn pull(&self, source: &dyn Stored, job: &Job, index: usize) -> Result<Option<PullReply>, Status> {
        let end = job.extents.iter().map(|extent| extent.from + u64::from(extent.len)).max().unwrap_or(0);
        let (Some(from), Ok(link)) = (source.to_pull(job.from, end).await, self.link(index)) else { return Ok(None) };
        self.pull_from(from, &link, &job.extents, false).await
    }

    /// Returns the capability and addresses with which another iod can copy bytes from an object of this file. Chooses
    /// the first reachable copy of the object that has the bytes below `end`. Returns `None` if no copy has these
    /// bytes. The caller then reads the bytes on the mgr path, and gets the error of this read.
    pub(crate) async fn to_pull(&self, column: usize, end: u64) -> Option<PullSource> {
        for index in self.copies(column) {
            let Ok(link) = self.link(index) else { continue };
            if self.reaches(&link, end.min(self.least(index))).await == Ok(true) {
                return Some(link.to_pull(self.object(), self.known.generation).await);
            }
        }
        None
    }

    /// Makes the iod behind `link` copy extents of a source object into the object of this file on the same iod.
    /// Returns `None` if the iod cannot copy now.
    pub(super) async fn pull_from(
        &self,
        source: PullSource,
        link: &Link,
        extents: &[PullExtent],
        stable: bool,
    ) -> Result<Option<PullReply>, Status> {
        let arguments =
            PullArgs { cap: self.capability(link, Rights::WRITE), stable, source, extents: extents.to_vec() };
        link.pull(&arguments).await
    }
}

/// Divides a copy into jobs of limited size, each for one pair of a target object and a source object. `from` maps an
/// offset of the source file to the source object and the offset in this object.
fn jobs((from, range): (impl Fn(u64) -> Place, ByteRange), (to, target): (&Distribution, u64)) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    // For each pair of target and source object: the index in `jobs` of the pair's last job, to which the next extent
    // is added if the job has space, and the number of bytes of this job.
    let mut open: BTreeMap<(usize, usize), (usize, u64)> = BTreeMap::new();
    let mut done = 0;
    while done < range.len {
        let (at, place) = (from(range.offset + done), to.place(target + done));
        // The length of an extent fits in 32 bits: it is at most a stripe unit, and a stripe unit is shorter than 4
        // GiB.
        let len = at.run.min(place.run).min(range.len - done).min(PULL_MAX);
        done += len;
        let next = PullExtent { from: at.offset, to: place.offset, len: len as u32 };
        let pair = (place.index, at.index);
        let last = open.get(&pair).copied().filter(|(job, bytes)| has_room(&jobs[*job].extents, *bytes, &next));
        let (job, bytes) = last.unwrap_or_else(|| {
            jobs.push(Job { to: pair.0, from: pair.1, extents: Vec::new() });
            (jobs.len() - 1, 0)
        });
        open.insert(pair, (job, bytes + len));
        let extents = &mut jobs[job].extents;
        match extents.last_mut() {
            Some(last) if follows(last, &next) => last.len += next.len,
            _ => extents.push(next),
        }
    }
    jobs
}

fn follows(last: &PullExtent, next: &PullExtent) -> bool {
    let len = u64::from(last.len);
    (last.from + len, last.to + len) == (next.from, next.to)
}

fn has_room(extents: &[PullExtent], bytes: u64, next: &PullExtent) -> bool {
    let joins = extents.last().is_some_and(|last| follows(last, next));
    bytes + u64::from(next.len) <= PULL_MAX && (joins || extents.len() < EXTENTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::DistributionId;
    use proptest::prelude::*;

    fn distribution(unit: u64, count: usize) -> Distribution {
        Distribution::new(DistributionId::SimpleStripe, unit, count).unwrap()
    }

    proptest! {
        /// The test executes the jobs of a file copy on vectors in memory, and compares the result with a plain copy of
        /// the range.
        #[test]
        fn the_jobs_of_a_copy_move_every_byte_once(
            units in (1u64..40, 1u64..40),
            counts in (1usize..5, 1usize..5),
            (offset, target, len) in (0u64..20_000, 0u64..20_000, 1u64..60_000),
        ) {
            let (from, to) = (distribution(units.0 * 64, counts.0), distribution(units.1 * 64, counts.1));
            let mut copied = vec![None; len as usize];
            for job in jobs((|at| from.place(at), ByteRange { offset, len }), (&to, target)) {
                prop_assert!(job.extents.len() <= EXTENTS_MAX);
                prop_assert!(job.extents.iter().map(|e| u64::from(e.len)).sum::<u64>() <= PULL_MAX);
                for extent in &job.extents {
                    for byte in 0..u64::from(extent.len) {
                        let read = from.file_offset(job.from, extent.from + byte).unwrap();
                        let written = to.file_offset(job.to, extent.to + byte).unwrap();
                        prop_assert!(written >= target && copied[(written - target) as usize].is_none());
                        copied[(written - target) as usize] = Some(read);
                    }
                }
            }
            for (at, read) in copied.into_iter().enumerate() {
                prop_assert_eq!(read, Some(offset + at as u64));
            }
        }
    }

    #[test]
    fn no_request_of_a_copy_is_too_large() {
        let one = distribution(1 << 30, 1);
        let range = ByteRange { offset: 7, len: 10 * PULL_MAX + 5 };
        let made = jobs((|at| one.place(at), range), (&one, 1));
        assert_eq!(made.len(), 11);
        assert!(made.iter().all(|job| job.extents.len() == 1));
        // The source file and the target file have different numbers of objects, so the extents of a job are not
        // adjacent and cannot be joined.
        let (from, to) = (distribution(64, 2), distribution(64, 3));
        let made = jobs((|at| from.place(at), ByteRange { offset: 0, len: 64 * 6 * 3000 }), (&to, 0));
        assert!(made.iter().all(|job| job.extents.len() <= EXTENTS_MAX) && made.len() == 6 * 3);
    }
}
