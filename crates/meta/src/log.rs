//! The batch log: every window of changes is written here and flushed before it is answered, so that the store below
//! needs a flush of its own only now and then.
//!
//! A log is a ring of blocks that are written over and over, behind one block that says whose log it is. What is in it
//! counts only together with the [`Anchor`] that the store keeps: the place, the number and the checksum of the last
//! record whose changes the store has. Replaying the records behind it, as far as they are whole, gives the state after
//! the last flush, or a later one. Changes are kept as resolved values, so replaying a record twice does no harm.

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

/// Bytes under a batch log: a file that is written over and over, or what stands for one in a simulation.
///
/// What is written is on stable storage when [`Self::sync`] returns; before, any part of it may be lost, in any order.
#[allow(clippy::len_without_is_empty)] // a disk is no collection
pub trait LogDisk: Send + Sync + 'static {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Fills `out` with the bytes from `offset` on; an error if there are fewer.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset`; never beyond the end.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Puts everything written, and the length, on stable storage.
    fn sync(&self) -> io::Result<()>;

    /// Changes the length; new bytes are zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Bytes that the ring of a log may take here. Below one block there is no ring: the store is then flushed for
    /// every window.
    fn room(&self) -> u64 {
        limits::META_LOG_BYTES_MAX
    }
}

/// Everything in a log begins at a multiple of this, so that writing one record never touches the block of another.
pub const BLOCK: u64 = 4096;

/// `len` rounded up to whole blocks.
pub(crate) fn blocks(len: u64) -> u64 {
    len.next_multiple_of(BLOCK)
}

/// CRC-32C of `data`.
pub(crate) fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}
