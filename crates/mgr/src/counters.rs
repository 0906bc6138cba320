//! Counters of the mgr, apart from those of NFS operations.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// The counters as atomics. They count from the start of the mgr.
        #[derive(Debug, Default)]
        pub(crate) struct Counting {
            $($(#[$doc])* pub(crate) $field: AtomicU64),*
        }

        /// A snapshot of the counters. They count from the start of the mgr.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64),*
        }

        impl Counting {
            pub(crate) fn snapshot(&self) -> Counters {
                Counters { $($field: self.$field.load(Relaxed)),* }
            }
        }

        impl Counters {
            /// Returns the name and the value of every counter, in a fixed order.
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field)),*]
            }
        }
    };
}

counters! {
    /// Payload bytes that clients have read on the mgr path.
    proxy_read_bytes,
    /// Payload bytes that clients have written on the mgr path, including gathered writes.
    proxy_write_bytes,
    /// READs of clients on the mgr path for which the mgr read from iods.
    proxy_reads,
    /// WRITEs of clients on the mgr path, including gathered writes.
    proxy_writes,
    /// WRITEs of clients to inline files.
    inline_writes,
    /// READs of clients from inline files.
    inline_reads,
    /// Inline files whose bytes the mgr has moved to objects on iods.
    inline_moves,
    /// WRITEs of clients that the mgr has held in memory for gathering.
    gathered_writes,
    /// Payload bytes of the WRITEs that the mgr has held in memory for gathering.
    gathered_bytes,
    /// WRITEs that the mgr has joined with gathered bytes, because the ranges were adjacent or overlapped.
    gathered_joined,
    /// Flushes of gathered bytes to the iods because the bytes filled a gathering window.
    gather_full,
    /// Flushes of gathered bytes to the iods because the gather delay of the bytes had passed.
    gather_delay,
    /// Flushes of gathered bytes to the iods because a client sent COMMIT.
    gather_commit,
    /// Flushes of gathered bytes to the iods because a client sent READ, COPY or SEEK.
    gather_read,
    /// Flushes of gathered bytes to the iods because of a truncation, a punched hole, or a write that overlaps these
    /// bytes and that the mgr did not gather.
    gather_write,
    /// Flushes of gathered bytes to the iods because a client got a layout.
    gather_layout,
    /// Flushes of gathered bytes to the iods because a client closed the file, or returned a layout, a delegation or a
    /// lock.
    gather_close,
    /// Flushes of gathered bytes to the iods because the mgr stopped.
    gather_stop,
    /// Flushes of gathered bytes that failed permanently: the mgr has discarded the bytes, and COMMIT returns the
    /// error.
    gather_losses,
    /// COMMITs of clients that the mgr has forwarded to iods.
    proxy_commits,
    /// Bytes that iods have copied from each other, or within one iod, so that the bytes did not pass through the mgr.
    iod_copied_bytes,
    /// Ranges for which iods have reserved space (ALLOCATE).
    allocations,
    /// Native layouts that the mgr has granted for reading.
    layouts_read,
    /// Native layouts that the mgr has granted for reading and writing.
    layouts_write,
    /// Layouts that the mgr has revoked. The mgr has fenced the clients that held them.
    layouts_revoked,
    /// LAYOUTCOMMIT requests that have changed the size or a time of a file.
    layout_commits,
    /// Failed operations at data servers that clients have reported (LAYOUTERROR, LAYOUTRETURN).
    layout_faults,
    /// Device addresses that the mgr has sent to clients (GETDEVICEINFO).
    devices_told,
    /// Write reports of iods (WRITE_REPORTS): objects that clients wrote without a report to the mgr.
    news,
    /// File lengths that iods have requested from the mgr in their replies to LENGTHS.
    lengths_asked,
    /// Requested file lengths that the mgr did not return to the iod, because it did not know the length without a
    /// query to iods. The kernel clients then read on the mgr path.
    lengths_unknown,
    /// How many times the mgr has queried the iods of a file for the end of the file.
    size_queries,
    /// How many times the mgr has queried the iods for the allocated space of a file that may have holes.
    space_queries,
    /// Files whose objects the mgr has truncated.
    truncates,
    /// Files in which a read or write found bytes that every copy has lost.
    files_lost,
    /// Copies of objects that the mgr has rebuilt from another copy.
    copies_rebuilt,
    /// Damaged blocks of copies that the mgr has written again from another copy.
    blocks_healed,
    /// Deleted files whose objects every iod has deleted.
    objects_swept,
    /// Failed attempts to delete the objects of a deleted file, because an iod was down or returned an error.
    sweeps_postponed,
    /// Files whose bytes the mgr has moved to new objects.
    layouts_swapped,
    /// Files whose unused objects every iod has deleted.
    unused_swept,
    /// Objects that iods have listed for the orphan collection.
    objects_listed,
    /// Objects that the orphan collection has deleted, because their file did not exist and was not on the deletion
    /// list.
    objects_collected,
    /// Objects without a file that the orphan collection has kept, because an iod had too many of them, the metadata
    /// store is damaged, or the header of the object is damaged or names another object.
    objects_spared,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
