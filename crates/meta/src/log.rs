//! The batch log: the write-ahead log of the metadata store. The store flushes the log before it reports a durable
//! change as committed, so the database table of the store needs few flushes of its own.
//!
//! The log is one block that identifies the store, followed by a ring of blocks that records overwrite again and again.
//! A replay of the log needs the [`Anchor`], which is stored in the database. The anchor has the position, the number
//! and the checksum of the last log record whose changes are in the database table. Replaying the complete records
//! after the anchor gives the state of the store at the last flush of the log, or a later state. Records hold final
//! values instead of deltas, so replaying a record twice does no harm.

mod anchor;
mod plan;
mod record;
mod ring;

pub use anchor::Anchor;
pub(crate) use plan::Plan;
pub use record::{Changes, Head, Stamp};
pub use ring::{Log, LogError};

use std::io;
use types::limits;

/// The storage of a batch log: a file, or a simulated disk in tests.
///
/// Written bytes are durable after [`Self::sync`] has returned. Before [`Self::sync`] returns, a crash may lose any of
/// the writes, whatever their order was.
#[allow(clippy::len_without_is_empty)] // a log disk is not a collection, so it needs no `is_empty`
pub trait LogDisk: Send + Sync + 'static {
    /// Returns the length of the storage in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Fills `out` with the bytes from `offset` on. Returns an error if the storage ends before `out` is full.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset`. The caller never writes beyond the length of the storage.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes all written bytes and the length durable.
    fn sync(&self) -> io::Result<()>;

    /// Changes the length; added bytes are zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Returns the maximum size of the ring of log blocks on this storage, in bytes. If the maximum is less than one
    /// block, the log has no ring, so the store flushes its database for every commit group (batches committed
    /// together).
    fn room(&self) -> u64 {
        limits::META_LOG_BYTES_MAX
    }
}

/// Alignment of records in a log, in bytes. A torn write of one record therefore cannot damage the previous or the next
/// record.
pub const BLOCK: u64 = 4096;

/// Returns `len` rounded up to a multiple of [`BLOCK`].
pub(crate) fn blocks(len: u64) -> u64 {
    len.next_multiple_of(BLOCK)
}

/// Returns the CRC-32C of `data`.
pub(crate) fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}
