//! The registry of layout drivers, which move bytes on the direct path under a layout.
//!
//! A layout speaks of ranges of its file. Only the driver knows the objects and servers behind them. It divides ranges
//! into shares, each of which is one request to one server. It numbers the servers of a layout as lanes: the write
//! verifier of a lane covers the bytes of that lane alone.

#[cfg(test)]
mod conformance;
pub(crate) mod native;
#[cfg(test)]
mod whole;

#[cfg(test)]
pub(crate) use conformance::{Fixture, Trouble};

use crate::counters::Tally;
use crate::devices::Devices;
use crate::{Error, Placement, Result};
use async_trait::async_trait;
use bytes::Bytes;
use layout::kinds::{Kind, KindId};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use types::{ByteRange, Generation, Verifier};
use wire::native::Crc32c;
use xdr::{Segments, Xdr};

/// Why a driver did not execute a request.
#[derive(Debug)]
pub(crate) enum NotDone {
    /// Nothing was tried, or only a request that can be repeated without another effect: take the mgr path.
    NotAttempted(Error),
    /// As [`NotDone::NotAttempted`], for a change that was sent and never answered. It may still be executed, unless
    /// the mgr makes the iod refuse it.
    Unanswered(Error),
    /// The layout is no longer valid: get it again, then try again.
    Stale(Error),
    /// The request was executed and failed.
    Failed(Error),
}

impl NotDone {
    /// Returns the error, for callers that have no other path.
    pub(crate) fn into_error(self) -> Error {
        match self {
            NotDone::NotAttempted(error)
            | NotDone::Unanswered(error)
            | NotDone::Stale(error)
            | NotDone::Failed(error) => error,
        }
    }
}

/// The outcome of a driver's request.
pub(crate) type Attempt<T> = std::result::Result<T, NotDone>;

/// The payload of one request to the mgr, or of one share: the part of a request that goes to one iod.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    pub(crate) data: Segments,
    /// The CRC-32C of consecutive pieces, and the lengths of these pieces.
    checksums: OnceLock<(Vec<u64>, Vec<u32>)>,
}

impl Payload {
    /// Creates a payload.
    pub(crate) fn new(data: Segments) -> Self {
        Payload { data, checksums: OnceLock::new() }
    }

    /// Returns the CRC-32C of consecutive pieces with these lengths. A driver asks for the same pieces whenever the
    /// bytes are sent again, so the checksums are computed only once.
    pub(crate) fn checksums(&self, lengths: &[u64]) -> Cow<'_, [u32]> {
        let (known, sums) = self.checksums.get_or_init(|| (lengths.to_vec(), piece_checksums(lengths, &self.data)));
        if known == lengths { Cow::Borrowed(sums) } else { Cow::Owned(piece_checksums(lengths, &self.data)) }
    }
}

fn piece_checksums(lengths: &[u64], data: &Segments) -> Vec<u32> {
    let mut parts = data.parts().iter();
    let mut part: &[u8] = &[];
    let one = |length: &u64| {
        let mut sum = Crc32c::new();
        let mut left = *length as usize;
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
    lengths.iter().map(one).collect()
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// The verifier that a COMMIT must return for the bytes to be durable, unless they are already.
    pub(crate) verifier: Verifier,
    /// Whether they are durable already.
    pub(crate) stable: bool,
}

/// A run of bytes of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// Data bytes.
    Data(Bytes),
    /// This many bytes that no server has: a hole, or beyond the end of the file.
    Nothing(u64),
}

impl Found {
    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Found::Data(data) => data.len() as u64,
            Found::Nothing(len) => *len,
        }
    }

    /// Returns `len` bytes of the run from `from` on; the run must have them.
    pub(crate) fn part(&self, from: u64, len: u64) -> Found {
        match self {
            Found::Data(data) => Found::Data(data.slice(from as usize..(from + len) as usize)),
            Found::Nothing(_) => Found::Nothing(len),
        }
    }
}

/// The outcome of a read: together, runs and lost ranges cover the requested ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReadDone {
    /// Runs with their places in the file.
    pub(crate) runs: Vec<(u64, Found)>,
    /// Ranges that were durable on the server and are no longer there. The mgr knows whether the file was truncated
    /// since, and whether there is another copy.
    pub(crate) lost: Vec<ByteRange>,
}

/// The part of some file ranges that one request to one server moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    /// The lane of the server.
    pub(crate) lane: usize,
    /// Ranges of the file, in the order of the payload. None is empty, and none continues the one before it.
    pub(crate) parts: Vec<ByteRange>,
}

/// A layout in use: the servers of one file, and the right to use them.
#[async_trait]
pub(crate) trait Layout: Send + Sync {
    /// Returns the generation, which grows with every fence of the earlier layouts of the file.
    fn generation(&self) -> Generation;
    /// Returns whether it is time to get another layout: this one is still valid, but not for long.
    fn is_old(&self) -> bool;
    /// Returns the number of lanes: servers that take requests at the same time.
    fn lanes(&self) -> usize;
    /// Divides file ranges, which do not overlap, into as few requests as the servers' limits allow.
    ///
    /// The shares cover the ranges exactly. They are in the order of their first byte, so that a sender that starts at
    /// the front keeps every server busy.
    fn shares(&self, ranges: &[ByteRange]) -> Vec<Share>;
    /// Returns whether the servers durably have all bytes of a file of `size` bytes, according to the mgr and the
    /// servers.
    fn reaches(&self, size: u64) -> bool;
    /// Prepares for a truncate by this client, which the mgr executes on the servers: reported lengths are no longer
    /// true.
    fn truncating(&self);
    /// Reads a share.
    async fn read(&self, lane: usize, parts: &[ByteRange]) -> Attempt<ReadDone>;
    /// Writes a share, durably when `stable`. The share may be from an earlier layout of the file; one that does not
    /// fit this layout is not attempted.
    async fn write(&self, lane: usize, parts: &[ByteRange], payload: &Payload, stable: bool) -> Attempt<Written>;
    /// Makes all writes of a lane durable that have the verifier in the answer.
    async fn commit(&self, lane: usize) -> Attempt<Verifier>;
    /// Turns a range into a hole. Returns when no request to a server is left, unless it fails with
    /// [`NotDone::Unanswered`].
    async fn punch(&self, range: ByteRange) -> Attempt<()>;
    /// Returns the first run of data that ends after `offset`, from `offset` on; its end may lie beyond the end of the
    /// file. `has_holes` says that holes may have been made since the layout was granted. Without them, bytes that are
    /// known to be durable count as data even if a server has lost them: a program that copies only data must read them
    /// and get an error.
    async fn next_data(&self, offset: u64, has_holes: bool) -> Attempt<Option<ByteRange>>;
    /// Returns where the bytes of the file of `file_size` bytes are stored, with the space that they use.
    async fn placement(&self, file_size: u64) -> Attempt<Placement>;
}

/// A driver, which makes layouts of one kind usable.
#[async_trait]
trait Driver: Send + Sync {
    /// The kind of its layouts.
    type Kind: Kind;
    /// Makes a layout usable.
    async fn attach(&self, body: <Self::Kind as Kind>::Body) -> Result<Arc<dyn Layout>>;
}

/// A driver of any kind, which takes the body of a layout as the mgr sent it.
#[async_trait]
trait AnyDriver: Send + Sync {
    fn kind(&self) -> KindId;
    async fn attach_body(&self, body: &Bytes) -> Result<Arc<dyn Layout>>;
}

#[async_trait]
impl<D: Driver> AnyDriver for D {
    fn kind(&self) -> KindId {
        D::Kind::ID
    }

    async fn attach_body(&self, body: &Bytes) -> Result<Arc<dyn Layout>> {
        let bad = |e| Error::protocol(format!("the mgr sent a malformed {} layout: {e}", D::Kind::ID.name()));
        self.attach(<D::Kind as Kind>::Body::from_bytes(body).map_err(bad)?).await
    }
}

/// The drivers of a mount.
pub(crate) struct Drivers {
    /// In the order in which the client prefers their kinds.
    all: Vec<Box<dyn AnyDriver>>,
}

impl Drivers {
    /// Creates all drivers.
    pub(crate) fn new(devices: Arc<Devices>, tally: Arc<Tally>) -> Self {
        Drivers { all: vec![Box::new(native::Native::new(devices, tally))] }
    }

    /// Returns the kinds of layouts that the client can use, in the order of preference.
    pub(crate) fn kinds(&self) -> Vec<KindId> {
        self.all.iter().map(|driver| driver.kind()).collect()
    }

    /// Returns the kind of layout that an OPEN asks for.
    pub(crate) fn preferred(&self) -> KindId {
        self.all[0].kind()
    }

    /// Makes a layout of the kind with this number usable.
    pub(crate) async fn attach(&self, number: u32, body: &Bytes) -> Result<(KindId, Arc<dyn Layout>)> {
        let driver = self.all.iter().find(|driver| driver.kind().number() == number);
        let unknown = || Error::protocol(format!("the mgr sent a layout of unknown kind {number:#x}"));
        let driver = driver.ok_or_else(unknown)?;
        Ok((driver.kind(), driver.attach_body(body).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::kinds::PREFERRED;

    /// Runs the conformance suite for the servers that `$make` makes.
    macro_rules! conforms {
        ($name:ident, $make:expr) => {
            conforms!($name, $make; random_histories shares_cover_the_ranges verifiers_belong_to_lanes
                lanes_are_never_mixed failures_have_their_class fenced_layouts_are_stale lost_bytes_are_reported
                durable_lengths_are_learned placements_show_the_file);
        };
        ($name:ident, $make:expr; $($check:ident)*) => {
            mod $name {
                use super::*;

                $(
                    #[tokio::test(start_paused = true)]
                    async fn $check() {
                        conformance::$check($make).await;
                    }
                )*
            }
        };
    }

    conforms!(native_on_one_iod, || native::MemoryIods::new(1, 4096));
    conforms!(native_on_two_iods, || native::MemoryIods::new(2, 64));
    conforms!(native_on_three_iods, || native::MemoryIods::new(3, 4096));
    conforms!(whole_file_on_one_server, whole::WholeFile::new);

    #[tokio::test]
    async fn a_kind_without_a_driver_is_refused() {
        let drivers = Drivers { all: vec![Box::new(whole::WholeFile::new().driver())] };
        assert!(drivers.attach(PREFERRED[0].number(), &Bytes::new()).await.is_err());
        let body = Bytes::from_static(b"too short");
        assert!(drivers.attach(drivers.kinds()[0].number(), &body).await.is_err());
    }

    #[tokio::test]
    async fn every_kind_has_a_driver_in_the_order_of_preference() {
        let iods = native::MemoryIods::new(1, 64);
        assert_eq!(iods.drivers().kinds(), PREFERRED);
    }

    #[test]
    fn checksums_follow_the_asked_lengths_and_not_the_segments() {
        let mut data = Segments::default();
        data.push(Bytes::from_static(b"12345"));
        data.push(Bytes::from_static(b"6789abc"));
        let payload = Payload::new(data);
        // The check value of CRC-32C.
        let nine = 0xe306_9283;
        assert_eq!(payload.checksums(&[9, 3])[..], [nine, wire::native::crc32c(b"abc")]);
        assert_eq!(payload.checksums(&[9, 1, 2])[..], [nine, wire::native::crc32c(b"a"), wire::native::crc32c(b"bc")]);
        assert_eq!(payload.checksums(&[9, 3])[0], nine);
    }
}
