//! The FUSE mount: executes requests of the kernel's FUSE client by means of the crate `client`.
//!
//! [`Mounted::start`] mounts a [`client::Mount`] at a directory. A *transport* (`transport.rs`) delivers requests.
//! `request.rs` decodes them, and each operation has a file in `ops/` that executes it. Replies (`reply.rs`) go back
//! through the transport as soon as they are ready.

pub mod abi;
mod buffers;
mod caller_syscall;
mod callers;
mod coherence;
mod config;
mod control;
mod dispatch;
mod execute;
mod expectations;
mod fs;
mod guard;
mod inode_limit;
mod known_names;
mod lock_owners;
mod mounted;
mod mounting;
mod namespaces;
mod nodes;
mod open_unlink_race;
mod opens;
mod ops;
mod poll_scheduling;
mod read_ahead;
pub mod reply;
pub mod request;
mod rewalks;
mod self_requests;
mod signals;
mod transport;
mod transports;
mod unsynced;

pub use config::{Config, FilePrivileges, KNOWN_FILES, TransportKind, driver};
pub use guard::stand_guard;
pub use mounted::{Mounted, detach_dead, place_of, remount, source_at, unmount};
pub use namespaces::{Holder, device_at, holder};

/// An errno value, such as 2 for "no such file or directory".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// Internal error: the path that a request expected leads to another file. The mount never sends this number to the
    /// kernel.
    pub(crate) const MOVED: Errno = Errno(i32::MAX);
    /// Internal error: the caller may not walk the path that the request expected. The mount never sends this number to
    /// the kernel.
    pub(crate) const UNWALKED: Errno = Errno(i32::MAX - 1);
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Errno(errno.raw_os_error())
    }
}

impl From<client::Error> for Errno {
    fn from(error: client::Error) -> Self {
        tracing::debug!("{error}");
        match (error.is_moved(), error.is(types::Status::Access)) {
            (true, true) => Errno::UNWALKED,
            (true, false) => Errno::MOVED,
            (false, _) => Errno(error.errno()),
        }
    }
}
