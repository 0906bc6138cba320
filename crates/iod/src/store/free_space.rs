//! Accounting of the free disk space: writes stop before the disk is full, so that names can still be removed.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use types::limits::{IOD_RESERVE_BYTES, IOD_ROOM_BYTES, META_RESERVE_BYTES, iod_reserve};

/// The bytes that may be written before the free space must be checked again.
#[derive(Debug, Default)]
pub(super) struct FreeSpace {
    left: AtomicU64,
}

/// Returns the usable space of a disk with these bytes (total, free), without the reserve.
pub(super) fn spare((total, free): (u64, u64)) -> u64 {
    free.saturating_sub(iod_reserve(total))
}

/// Returns the largest reservation at once, for this usable space. Other stores of the disk may have seen the same free
/// space at the same time and use it meanwhile. Even with a dozen such stores, the part of the reserve that the mgr
/// needs remains.
pub(super) fn piece(spare: u64) -> u64 {
    (spare / 16).clamp(PIECE_MIN, PIECE_MAX)
}

/// Minimum bytes of one reservation.
const PIECE_MIN: u64 = 1 << 20;
/// Maximum bytes of one reservation.
const PIECE_MAX: u64 = 8 << 20;
const _: () = assert!(12 * PIECE_MAX <= IOD_RESERVE_BYTES - META_RESERVE_BYTES / 4);

impl FreeSpace {
    /// Claims `len` bytes, or fails with `ENOSPC`. `capacity` returns the total and the free bytes of the disk; it is
    /// called only when the result of the last call is used up.
    pub(super) fn take(&self, len: u64, capacity: impl FnOnce() -> io::Result<(u64, u64)>) -> io::Result<()> {
        if self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(len)).is_ok() {
            return Ok(());
        }
        let spare = spare(capacity()?);
        if spare < len {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        // Only a part of it: other stores of the disk use the same space, and files need more than their bytes.
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
        // Eleven stores that checked at the beginning are slow.
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
