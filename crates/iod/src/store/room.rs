//! The room left on the disk: writers stop before it is full, so that names can still be removed.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use types::limits::{IOD_RESERVE_BYTES, IOD_ROOM_BYTES};

/// What may still be written before the disk has to be looked at again.
#[derive(Debug, Default)]
pub(super) struct Room {
    left: AtomicU64,
}

impl Room {
    /// Takes `len` bytes of room, or says that there is none. `capacity` answers the size of the disk and what is free
    /// of it, in bytes; it is asked only when the last answer is used up.
    pub(super) fn take(&self, len: u64, capacity: impl FnOnce() -> io::Result<(u64, u64)>) -> io::Result<()> {
        if self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(len)).is_ok() {
            return Ok(());
        }
        let (total, free) = capacity()?;
        let spare = free.saturating_sub(IOD_RESERVE_BYTES.min(total / 16));
        if spare < len {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        // A part of it only: other stores of the disk take theirs, and files need more than their bytes.
        self.left.store(((spare - len) / 8).min(IOD_ROOM_BYTES), Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_reserve_is_left_and_the_disk_is_asked_rarely() {
        let (mut free, mut asked, mut taken) = (400 * MIB, 0, 0);
        let room = Room::default();
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
    fn a_small_disk_keeps_a_sixteenth() {
        let room = Room::default();
        assert!(room.take(MIB, || Ok((16 * MIB, 2 * MIB))).is_ok());
        assert!(room.take(MIB, || Ok((16 * MIB, 2 * MIB - 1))).is_err());
    }

    #[test]
    fn freed_room_is_seen_at_once() {
        let room = Room::default();
        assert!(room.take(1, || Ok((1 << 40, 0))).is_err());
        assert!(room.take(1, || Ok((1 << 40, 1 << 39))).is_ok());
    }
}
