//! Counters of the mgr's work apart from NFS operations.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// The counters as atomics, since the mgr started.
        #[derive(Debug, Default)]
        pub(crate) struct Counting {
            $($(#[$doc])* pub(crate) $field: AtomicU64),*
        }

        /// A snapshot of the counters since the mgr started.
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
            /// Returns every counter with its name, in a fixed order.
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field)),*]
            }
        }
    };
}

counters! {
    /// Payload bytes that clients read through the mgr.
    proxy_read_bytes,
    /// Payload bytes that clients wrote through the mgr, gathered ones included.
    proxy_write_bytes,
    /// READs that went to iods.
    proxy_reads,
    /// WRITEs of clients through the mgr, gathered ones included.
    proxy_writes,
    /// WRITEs to inline files.
    inline_writes,
    /// READs of inline files.
    inline_reads,
    /// Inline files whose bytes moved to objects.
    inline_moves,
    /// WRITEs that were held in memory for gathering.
    gathered_writes,
    /// Payload bytes of held WRITEs.
    gathered_bytes,
    /// WRITEs that were adjacent to or overlapped held bytes.
    gathered_joined,
    /// Times that held bytes went to the iods because a window was full.
    gather_full,
    /// Times that held bytes went to the iods because their delay had passed.
    gather_delay,
    /// Times that held bytes went to the iods because of a COMMIT.
    gather_commit,
    /// Times that held bytes went to the iods because of a READ, a COPY or a SEEK.
    gather_read,
    /// Times that held bytes went to the iods because of an overlapping write that was not held, a truncation or a
    /// hole.
    gather_write,
    /// Times that held bytes went to the iods because a client got a layout.
    gather_layout,
    /// Times that held bytes went to the iods because a client closed the file, or returned a layout, a delegation or a
    /// lock.
    gather_close,
    /// Times that held bytes went to the iods because the mgr stopped.
    gather_stop,
    /// Times that held bytes could not be written and were given up, which COMMIT reported.
    gather_losses,
    /// COMMITs that went to iods.
    proxy_commits,
    /// Bytes that iods have copied between each other, or within themselves, without the mgr.
    iod_copied_bytes,
    /// Ranges for which iods have reserved space.
    allocations,
    /// Native layouts granted for reading.
    layouts_read,
    /// Native layouts granted for reading and writing.
    layouts_write,
    /// Layouts revoked, with their holders fenced.
    layouts_revoked,
    /// LAYOUTCOMMITs that changed something.
    layout_commits,
    /// Operations at data servers whose failure clients reported.
    layout_faults,
    /// Device addresses sent to clients (GETDEVICEINFO).
    devices_told,
    /// Objects whose writes iods reported for clients that send no reports themselves.
    news,
    /// Questions of iods about the length of a file.
    lengths_asked,
    /// Questions of iods about the length of a file that the mgr did not answer, because it would have had to ask iods
    /// itself. The clients then read through the mgr.
    lengths_unknown,
    /// Times that iods were asked for the end of a file.
    size_queries,
    /// Times that iods were asked how much space a file that may have holes uses.
    space_queries,
    /// Files whose objects were truncated.
    truncates,
    /// Files of which a read or write met bytes that are lost in every copy.
    files_lost,
    /// Copies of objects that were rebuilt from another copy.
    copies_rebuilt,
    /// Damaged blocks of a copy that were written again from another copy.
    blocks_healed,
    /// Files whose objects were deleted from every iod.
    objects_swept,
    /// Files whose objects could not be deleted yet, because an iod was down or failed.
    sweeps_postponed,
    /// Files that got other objects.
    layouts_swapped,
    /// Files whose unused objects were deleted from every iod.
    unused_swept,
    /// Objects that iods listed.
    objects_listed,
    /// Objects deleted because their file was gone, although no deletion list named them.
    objects_collected,
    /// Objects without files that were kept, because there were too many of them to be plausible.
    objects_spared,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
