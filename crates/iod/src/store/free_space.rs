//! Accounting of the free disk space: an iod refuses writes before the disk is full, so that it can still remove
//! objects.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use types::limits::{IOD_RESERVE_BYTES, IOD_ROOM_BYTES, META_RESERVE_BYTES, iod_reserve};

/// The number of bytes that the iod may still write before it must query the free space of the disk again.
#[derive(Debug, Default)]
pub(super) struct FreeSpace {
    left: AtomicU64,
}

/// Returns the free bytes that the iod may use on a disk with this (total, free) capacity. The iod's reserve is not
/// included.
pub(super) fn spare((total, free): (u64, u64)) -> u64 {
    free.saturating_sub(iod_reserve(total))
}

/// Returns the largest number of bytes that a caller may allocate at once, if the iod may use `spare` free bytes.
/// Several stores on one disk may check the free space at the same moment, before any of them allocates. Even with
/// twelve such stores, at least a quarter of the mgr's reserve on the disk stays free.
pub(super) fn piece(spare: u64) -> u64 {
    (spare / 16).clamp(PIECE_MIN, PIECE_MAX)
}

/// Smallest number of bytes that [`piece`] lets a caller allocate at once.
const PIECE_MIN: u64 = 1 << 20;
/// Largest number of bytes that [`piece`] lets a caller allocate at once.
const PIECE_MAX: u64 = 8 << 20;
const _: () = assert!(12 * PIECE_MAX <= IOD_RESERVE_BYTES - META_RESERVE_BYTES / 4);

impl FreeSpace {
    /// Counts `len` bytes of the free space as used, or fails with `ENOSPC`. `capacity` returns the total and the free
    /// bytes of the disk. This function calls `capacity` only after the bytes that the last call of `capacity` allowed
    /// are used up.
    pub(super) fn take(&self, len: u64, capacity: impl FnOnce() -> io::Result<(u64, u64)>) -> io::Result<()> {
        if self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(len)).is_ok() {
            return Ok(());
        }
        let spare = spare(capacity()?);
        if spare < len {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        // Allow only a part of the free space until the next check of the capacity. Other stores use the same disk, and
        // the file system needs space for metadata too.
        self.left.store(((spare - len) / 8).min(IOD_ROOM_BYTES), Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_reserve_is_kept_and_the_disk_is_queried_rarely() {
        let (mut free, mut asked, mut taken) = (400 * MIB, 0, 0);
        let room = FreeSpace::default();
        loop {
            let answer = room.take(MIB, || {
                asked += 1;
                Ok((100 << 30, free))
            });
            match answer {
                Ok(()) => (free, taken) = (free - MIB, taken + 1),
                Err(error) => break assert_eq!(error.kind(), io::ErrorKind::StorageFull),
            }
        }
        assert_eq!(free, IOD_RESERVE_BYTES, "after {taken} writes");
        assert!(asked < taken / 4, "{asked} looks for {taken} writes");
    }

    #[test]
    fn stores_that_allocate_at_the_same_moment_keep_the_reserve() {
        let total = 100 << 30;
        let mut free = 19 << 30;
        // Eleven other stores check the free space now, but allocate their bytes (`slow`) only after this store has
        // filled the disk.
        let slow = 11 * piece(spare((total, free)));
        loop {
            let found = spare((total, free));
            if found < PIECE_MIN {
                break;
            }
            free -= piece(found);
        }
        assert!(free - slow > META_RESERVE_BYTES / 4, "{free} bytes left, less {slow}");
    }

    #[test]
    fn a_small_disk_keeps_a_sixteenth() {
        let room = FreeSpace::default();
        assert!(room.take(MIB, || Ok((16 * MIB, 2 * MIB))).is_ok());
        assert!(room.take(MIB, || Ok((16 * MIB, 2 * MIB - 1))).is_err());
    }

    #[test]
    fn freed_space_is_available_at_once() {
        let room = FreeSpace::default();
        assert!(room.take(1, || Ok((1 << 40, 0))).is_err());
        assert!(room.take(1, || Ok((1 << 40, 1 << 39))).is_ok());
    }
}
