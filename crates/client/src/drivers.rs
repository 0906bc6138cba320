//! The registry of layout drivers, which read and write data on the direct path under a layout.
//!
//! The client reads and writes file ranges; only the driver knows which objects on which servers store them. The driver
//! divides file ranges into shares; each share is one request to one server. The driver numbers the servers of a
//! layout; such a number is called a lane. Each server has its own write verifier.

#[cfg(test)]
mod conformance;
pub(crate) mod native;
#[cfg(test)]
mod whole;

#[cfg(test)]
pub(crate) use conformance::{Fixture, ServerFault};

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

/// Why a driver did not complete a request.
#[derive(Debug)]
pub(crate) enum NotDone {
    /// The driver sent nothing, or it got no reply to a request that does not change the file, such as a read. The
    /// client can use the mgr path instead.
    NotAttempted(Error),
    /// The driver sent a change and got no reply. An iod may still execute the change later, unless the mgr fences the
    /// file on the iod.
    Unanswered(Error),
    /// The layout is no longer valid. The client must get another layout and repeat the request.
    Stale(Error),
    /// The server executed the request, and it failed.
    Failed(Error),
}

impl NotDone {
    /// Returns the error, for callers that have no other path to fall back to.
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

/// The data of one request to the mgr, or of one share (the part of a request that goes to one iod).
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    pub(crate) data: Segments,
    /// The lengths of consecutive pieces of the data, and the CRC-32C of each piece; computed on first use.
    checksums: OnceLock<(Vec<u64>, Vec<u32>)>,
}

impl Payload {
    /// Creates a payload whose checksums are not computed yet.
    pub(crate) fn new(data: Segments) -> Self {
        Payload { data, checksums: OnceLock::new() }
    }

    /// Divides the data into consecutive pieces of these lengths, and returns the CRC-32C of each piece. The checksums
    /// are cached, because a driver asks for the same pieces each time it sends the payload again.
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

/// The outcome of a write to one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// The verifier of the write. If the write is not stable, its bytes are durable once a COMMIT returns the same
    /// verifier.
    pub(crate) verifier: Verifier,
    /// Whether the written bytes are already durable.
    pub(crate) stable: bool,
}

/// A byte range in the reply to a read: data or zeros.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// Data: bytes that a server stores.
    Data(Bytes),
    /// A range of this many bytes that no server stores: a hole, or bytes beyond the end of the file.
    Nothing(u64),
}

impl Found {
    /// Returns the number of bytes in the range.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Found::Data(data) => data.len() as u64,
            Found::Nothing(len) => *len,
        }
    }

    /// Returns `len` bytes, starting at byte `from` of this range.
    ///
    /// # Panics
    /// The range contains data, and has fewer than `from + len` bytes.
    pub(crate) fn part(&self, from: u64, len: u64) -> Found {
        match self {
            Found::Data(data) => Found::Data(data.slice(from as usize..(from + len) as usize)),
            Found::Nothing(_) => Found::Nothing(len),
        }
    }
}

/// The outcome of a read. The ranges of `runs` and `lost` together cover the requested ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReadDone {
    /// The ranges that the servers returned, each with its file offset.
    pub(crate) runs: Vec<(u64, Found)>,
    /// Ranges that were durable on a server and that the server no longer stores. The mgr knows whether the file was
    /// truncated since then, and whether another copy exists.
    pub(crate) lost: Vec<ByteRange>,
}

/// A share: the parts of the requested file ranges that one request to one server reads or writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    /// The lane (index in the layout) of the server.
    pub(crate) lane: usize,
    /// File ranges in the order of the payload. No range is empty, and no range begins where the range before it ends.
    pub(crate) parts: Vec<ByteRange>,
}

/// A layout in use: the servers of one file, and the right to send them requests.
#[async_trait]
pub(crate) trait Layout: Send + Sync {
    /// Returns the file's generation at the time when the mgr granted the layout; every fence of the file increases the
    /// generation.
    fn generation(&self) -> Generation;
    /// Returns whether the client should get another layout soon: this layout is still valid, but expires before long.
    fn is_old(&self) -> bool;
    /// Returns the number of lanes, which is the number of servers that can work on this file in parallel.
    fn lanes(&self) -> usize;
    /// Divides file ranges into shares, each for one request, as few as the servers' limits allow. The ranges must not
    /// overlap.
    ///
    /// The shares cover the ranges exactly. They are ordered by their first byte, so that a client that sends them in
    /// this order keeps every server busy.
    fn shares(&self, ranges: &[ByteRange]) -> Vec<Share>;
    /// Returns whether the servers store all bytes of a file of `size` bytes durably, as far as the mgr and the servers
    /// have reported.
    fn reaches(&self, size: u64) -> bool;
    /// Prepares for a truncate by this client, which the mgr executes on the servers. The layout forgets the durable
    /// lengths that the mgr and the servers have reported.
    fn truncating(&self);
    /// Reads the file ranges `parts` with one request to the server of this lane, which stores all of them.
    async fn read(&self, lane: usize, parts: &[ByteRange]) -> Attempt<ReadDone>;
    /// Writes the file ranges `parts` with one request to the server of this lane; if `stable`, makes the written bytes
    /// durable before it returns. If another server of this layout stores some of the ranges, returns
    /// [`NotDone::NotAttempted`].
    async fn write(&self, lane: usize, parts: &[ByteRange], payload: &Payload, stable: bool) -> Attempt<Written>;
    /// Sends COMMIT to one server (lane), and returns the verifier of the reply. The earlier writes to this server that
    /// returned the same verifier are now durable.
    async fn commit(&self, lane: usize) -> Attempt<Verifier>;
    /// Punches a hole, and returns after all servers have replied. After [`NotDone::Unanswered`], a server that did not
    /// reply may still execute the request.
    async fn punch(&self, range: ByteRange) -> Attempt<()>;
    /// Returns the first data range that ends after `offset`, without its bytes before `offset`. The range may end
    /// beyond the end of the file.
    ///
    /// Durable bytes that a server has lost count as data. So a program that copies only data gets an error when it
    /// reads these bytes, and does not copy them as a hole.
    async fn next_data(&self, offset: u64) -> Attempt<Option<ByteRange>>;
    /// Returns the servers that store a file of `file_size` bytes, and the space that the file occupies on each.
    async fn placement(&self, file_size: u64) -> Attempt<Placement>;
}

/// A layout driver for one kind of layout.
#[async_trait]
trait Driver: Send + Sync {
    /// The kind of layout that the driver handles.
    type Kind: Kind;
    /// Creates a usable layout from the body that the mgr sent.
    async fn attach(&self, body: <Self::Kind as Kind>::Body) -> Result<Arc<dyn Layout>>;
}

/// A driver of any kind (object-safe): it takes the encoded body of a layout as the mgr sent it.
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
    /// All drivers, ordered by the client's preference for their kinds.
    all: Vec<Box<dyn AnyDriver>>,
}

impl Drivers {
    /// Creates all drivers.
    pub(crate) fn new(devices: Arc<Devices>, tally: Arc<Tally>) -> Self {
        Drivers { all: vec![Box::new(native::Native::new(devices, tally))] }
    }

    /// Returns the kinds of layouts that the client can use, in order of preference.
    pub(crate) fn kinds(&self) -> Vec<KindId> {
        self.all.iter().map(|driver| driver.kind()).collect()
    }

    /// Returns the kind of layout that the client requests in OPEN.
    pub(crate) fn preferred(&self) -> KindId {
        self.all[0].kind()
    }

    /// Creates a usable layout from the number of its kind and its encoded body.
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

    /// Runs the conformance suite for the fixture that `$make` creates.
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
    conforms!(log_on_one_iod, || native::MemoryIods::with_logs(1, 64));
    conforms!(log_on_two_iods, || native::MemoryIods::with_logs(2, 128));
    conforms!(log_on_three_iods, || native::MemoryIods::with_logs(3, 64));
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
        // The published check value of CRC-32C: the checksum of the text "123456789".
        let nine = 0xe306_9283;
        assert_eq!(payload.checksums(&[9, 3])[..], [nine, wire::native::crc32c(b"abc")]);
        assert_eq!(payload.checksums(&[9, 1, 2])[..], [nine, wire::native::crc32c(b"a"), wire::native::crc32c(b"bc")]);
        assert_eq!(payload.checksums(&[9, 3])[0], nine);
    }
}
