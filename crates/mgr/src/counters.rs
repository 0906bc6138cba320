//! What the mgr has done besides serving NFS operations, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// Counts since the mgr started.
        #[derive(Debug, Default)]
        pub(crate) struct Counting {
            $($(#[$doc])* pub(crate) $field: AtomicU64),*
        }

        /// Counts since the mgr started, at one moment.
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
            /// Every counter with its name, in a fixed order.
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
    /// WRITEs into small files that are kept with their metadata.
    inline_writes,
    /// READs of such files.
    inline_reads,
    /// Files that were kept so until their bytes went to objects.
    inline_moves,
    /// WRITEs that were held to be joined with others.
    gathered_writes,
    /// Payload bytes of these.
    gathered_bytes,
    /// WRITEs that met or touched bytes that were held.
    gathered_joined,
    /// Times that held bytes went to the iods because there were enough of them.
    gather_full,
    /// Because they had waited for long enough.
    gather_delay,
    /// Because of a COMMIT.
    gather_commit,
    /// Because somebody read or copied them, or looked for holes.
    gather_read,
    /// Because of a write over them that was not held, a cut or a hole.
    gather_write,
    /// Because somebody got a layout.
    gather_layout,
    /// Because somebody closed the file, or gave a layout, a delegation or a lock back.
    gather_close,
    /// Because the mgr stopped.
    gather_stop,
    /// Times that held bytes could not be written and were given up, which COMMIT told.
    gather_losses,
    /// COMMITs that went to iods.
    proxy_commits,
    /// Bytes that iods have copied from one another, or within themselves, without the mgr.
    iod_copied_bytes,
    /// Ranges that iods have reserved room for.
    allocations,
    /// Native layouts granted for reading.
    layouts_read,
    /// Native layouts granted for reading and writing.
    layouts_write,
    /// Layouts revoked, whose holders were fenced.
    layouts_revoked,
    /// LAYOUTCOMMITs that changed something.
    layout_commits,
    /// Operations at data servers that clients said had failed.
    layout_faults,
    /// Device addresses told.
    devices_told,
    /// Objects that iods told of, written by clients that tell nothing.
    news,
    /// Questions of iods how long a file is.
    lengths_asked,
    /// Those that could not be answered without asking iods: whoever reads comes to the mgr then.
    lengths_unknown,
    /// Times that iods were asked how far a file reaches.
    size_queries,
    /// Times that iods were asked how much room a file takes, as it may have holes.
    space_queries,
    /// Files whose objects were cut.
    truncates,
    /// Files of which a read or write met bytes that no copy has any more.
    files_lost,
    /// Copies of objects that were made again from another copy.
    copies_rebuilt,
    /// Blocks of a copy that were damaged and written again from another copy.
    blocks_healed,
    /// Files whose objects were deleted from every iod.
    objects_swept,
    /// Files whose objects could not be deleted yet, because an iod was down or failed.
    sweeps_postponed,
    /// Objects that iods listed.
    objects_listed,
    /// Objects that were deleted because their file was gone, and no list told of them.
    objects_collected,
    /// Objects without files that were left where they are: there were too many to be believed.
    objects_spared,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
