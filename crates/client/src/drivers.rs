//! The registry of layout drivers, which move bytes on the direct path under a layout.

mod native;

use crate::counters::Tally;
use crate::devices::Devices;
use crate::{Error, Result};
use async_trait::async_trait;
use bytes::Bytes;
use layout::Distribution;
use layout::kinds::{Body, KindId};
use std::sync::{Arc, OnceLock};
use types::{ByteRange, Generation, IodId, ObjectId, Verifier};
use wire::native::Crc32c;
use xdr::Segments;

/// Why a driver did not execute a request.
#[derive(Debug)]
pub(crate) enum NotDone {
    /// Nothing was tried, or only what can be repeated without another effect: take the mgr path.
    NotAttempted(Error),
    /// As [`NotDone::NotAttempted`], for a change that was sent and never answered. It may still be executed, unless
    /// the mgr makes the iod refuse it.
    Unanswered(Error),
    /// The layout is no longer valid: get it again, then try again.
    Stale(Error),
    /// The request was executed and failed.
    Failed(Error),
}

/// The outcome of a driver's request.
pub(crate) type Attempt<T> = std::result::Result<T, NotDone>;

/// Bytes to be sent to one object.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    /// Their places in the object, in order.
    pub(crate) extents: Vec<ByteRange>,
    /// The bytes of all extents.
    pub(crate) data: Segments,
    /// CRC-32C of each extent, computed at first use, and only once however often the bytes are sent.
    checksums: OnceLock<Vec<u32>>,
}

impl Payload {
    /// Creates a payload of `data` for `extents`, which have the same total length.
    pub(crate) fn new(extents: Vec<ByteRange>, data: Segments) -> Self {
        Payload { extents, data, checksums: OnceLock::new() }
    }

    /// Returns the CRC-32C of each extent.
    pub(crate) fn checksums(&self) -> &[u32] {
        self.checksums.get_or_init(|| extent_checksums(&self.extents, &self.data))
    }
}

fn extent_checksums(extents: &[ByteRange], data: &Segments) -> Vec<u32> {
    let mut parts = data.parts().iter();
    let mut part: &[u8] = &[];
    let one = |extent: &ByteRange| {
        let mut sum = Crc32c::new();
        let mut left = extent.len as usize;
        while left > 0 {
            if part.is_empty() {
                match parts.next() {
                    Some(next) => part = next,
                    None => break,
                }
            }
            let (now, rest) = part.split_at(left.min(part.len()));
            sum.update(now);
            (part, left) = (rest, left - now.len());
        }
        sum.finish()
    };
    extents.iter().map(one).collect()
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// The verifier that a COMMIT must return for the bytes to be durable, unless they are already.
    pub(crate) verifier: Verifier,
    /// Whether they are durable already.
    pub(crate) stable: bool,
}

/// A run of bytes of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// Data bytes.
    Data(Bytes),
    /// This many bytes of a hole.
    Nothing(u64),
    /// This many bytes beyond the end of the object: never written, unless the object has lost some.
    Beyond(u64),
}

impl Found {
    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Found::Data(data) => data.len() as u64,
            Found::Nothing(len) | Found::Beyond(len) => *len,
        }
    }

    /// Returns `len` bytes of the run from `from` on; the run must have them.
    pub(crate) fn part(&self, from: u64, len: u64) -> Found {
        match self {
            Found::Data(data) => Found::Data(data.slice(from as usize..(from + len) as usize)),
            Found::Nothing(_) => Found::Nothing(len),
            Found::Beyond(_) => Found::Beyond(len),
        }
    }
}

/// What SEEK looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sought {
    Data,
    Hole,
}

/// Length and storage of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectSize {
    pub(crate) size: u64,
    pub(crate) allocated: u64,
}

/// A layout in use. Objects are named by their index in the distribution.
#[async_trait]
pub(crate) trait Layout: Send + Sync {
    /// Returns the mapping from file bytes to objects.
    fn distribution(&self) -> &Distribution;
    /// Returns the object id.
    fn object(&self) -> ObjectId;
    /// Returns the generation, which grows with every fence of the earlier capabilities.
    fn generation(&self) -> Generation;
    /// Whether it is time to get another layout: this one is still valid, but not for long.
    fn is_old(&self) -> bool;
    /// Returns a file size up to which every object is durable: an object shorter than this size demands has lost
    /// bytes. 0 if unknown.
    fn whole(&self) -> u64;
    /// Whether every object is durably as long as a file of `size` bytes demands, according to the mgr and the iods.
    fn reaches(&self, size: u64) -> bool;
    /// Forgets the reported lengths of objects, because the file is about to be truncated.
    fn forget_lengths(&self);
    /// Returns the iod of each object, in index order.
    fn iods(&self) -> &[IodId];
    /// Reads extents, together at most one payload; the answer covers them in order.
    async fn read(&self, index: usize, extents: &[ByteRange]) -> Attempt<Vec<Found>>;
    /// Writes extents, durably when `stable`.
    async fn write(&self, index: usize, payload: &Payload, stable: bool) -> Attempt<Written>;
    /// Makes all writes to the object durable that have the verifier in the answer.
    async fn commit(&self, index: usize) -> Attempt<Verifier>;
    /// Turns a range into a hole.
    async fn punch(&self, index: usize, range: ByteRange) -> Attempt<()>;
    /// Returns the first data or hole byte at or after `offset`; the end of the object is a hole.
    async fn seek(&self, index: usize, offset: u64, sought: Sought) -> Attempt<Option<u64>>;
    /// Returns length and allocated bytes of the object.
    async fn size(&self, index: usize) -> Attempt<ObjectSize>;
}

/// A driver, which makes layouts of one kind usable.
#[async_trait]
trait Driver: Send + Sync {
    /// Makes a layout usable.
    async fn attach(&self, body: Body) -> Result<Arc<dyn Layout>>;
}

/// The drivers of a mount.
pub(crate) struct Drivers {
    native: native::Native,
}

impl Drivers {
    /// Creates all drivers.
    pub(crate) fn new(devices: Arc<Devices>, tally: Arc<Tally>) -> Self {
        Drivers { native: native::Native::new(devices, tally) }
    }

    /// Makes a layout usable.
    pub(crate) async fn attach(&self, kind: KindId, body: &Bytes) -> Result<Arc<dyn Layout>> {
        let bad = |e| Error::protocol(format!("the mgr sent a {} layout that makes no sense: {e}", kind.name()));
        let body = Body::decode(kind, body).map_err(bad)?;
        let driver: &dyn Driver = match kind {
            KindId::Native => &self.native,
        };
        driver.attach(body).await
    }
}

/// Returns the part of each object that holds a file range, including whole stripe rows between the first and last
/// byte. With dense distributions that is one range per object.
pub(crate) fn object_ranges(distribution: &Distribution, file: ByteRange) -> Vec<(usize, ByteRange)> {
    let range = |index| {
        let start = distribution.object_size(file.offset, index);
        let end = distribution.object_size(file.end(), index);
        (index, ByteRange { offset: start, len: end - start })
    };
    (0..distribution.count()).map(range).filter(|(_, range)| !range.is_empty()).collect()
}

/// Splits what was read from an object into its places in the file. `parts` are the file ranges in the order of the
/// object's bytes; `found` covers the same number of bytes.
pub(crate) fn scatter(parts: &[ByteRange], found: Vec<Found>, mut put: impl FnMut(u64, Found)) {
    let mut parts = parts.iter().copied();
    let mut part = ByteRange::default();
    for mut run in found {
        while run.len() > 0 {
            if part.is_empty() {
                match parts.next() {
                    Some(next) => part = next,
                    None => return,
                }
            }
            let len = run.len().min(part.len);
            let (now, rest) = match run {
                Found::Data(mut data) => {
                    let now = data.split_to(len as usize);
                    (Found::Data(now), Found::Data(data))
                }
                Found::Nothing(all) => (Found::Nothing(len), Found::Nothing(all - len)),
                Found::Beyond(all) => (Found::Beyond(len), Found::Beyond(all - len)),
            };
            put(part.offset, now);
            part = ByteRange { offset: part.offset + len, len: part.len - len };
            run = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::DistributionId;

    #[test]
    fn checksums_follow_extents_and_not_segments() {
        let mut data = Segments::default();
        data.push(Bytes::from_static(b"12345"));
        data.push(Bytes::from_static(b"6789abc"));
        let extents = vec![ByteRange { offset: 0, len: 9 }, ByteRange { offset: 50, len: 3 }];
        let payload = Payload::new(extents, data);
        // The check value of CRC-32C.
        assert_eq!(payload.checksums(), [0xe306_9283, wire::native::crc32c(b"abc")]);
    }

    #[test]
    fn scattering_follows_parts() {
        let parts = [ByteRange { offset: 10, len: 3 }, ByteRange { offset: 20, len: 4 }];
        let found = vec![Found::Data(Bytes::from_static(b"abcd")), Found::Nothing(3)];
        let mut put = Vec::new();
        scatter(&parts, found, |at, run| put.push((at, run)));
        let data = |s: &'static [u8]| Found::Data(Bytes::from_static(s));
        assert_eq!(put, [(10, data(b"abc")), (20, data(b"d")), (21, Found::Nothing(3))]);
    }

    #[test]
    fn object_ranges_hold_every_piece() {
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
