//! The batch log: the write-ahead log of the metadata store, which is written and flushed before changes are answered,
//! so that the table below needs few flushes of its own.
//!
//! A log is a ring of blocks that are overwritten again and again, after one block that identifies the store. The
//! content of the log counts only together with the [`Anchor`] that the store keeps. The anchor has the place, the
//! number and the checksum of the last record whose changes the store has. Replaying the whole records after it gives
//! the state after the last flush, or a later state. Records hold resolved values, so replaying a record twice does no
//! harm.

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

/// The bytes under a batch log: a file that is overwritten again and again, or its replacement in a simulation.
///
/// Written bytes are on stable storage when [`Self::sync`] returns. Before that, any part of them may be lost, in any
/// order.
#[allow(clippy::len_without_is_empty)] // a disk is no collection
pub trait LogDisk: Send + Sync + 'static {
    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Fills `out` with the bytes from `offset` on; returns an error if there are fewer.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset`; never beyond the end.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Puts all written bytes, and the length, on stable storage.
    fn sync(&self) -> io::Result<()>;

    /// Changes the length; new bytes are zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Bytes that the ring of a log may take on this disk. Below one block there is no ring, and the store is flushed
    /// for every window.
    fn room(&self) -> u64 {
        limits::META_LOG_BYTES_MAX
    }
}

/// Alignment of everything in a log, so that writing one record never touches the block of another.
pub const BLOCK: u64 = 4096;

/// `len` rounded up to whole blocks.
pub(crate) fn blocks(len: u64) -> u64 {
    len.next_multiple_of(BLOCK)
}

/// CRC-32C of `data`.
pub(crate) fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}
