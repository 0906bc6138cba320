//! The configuration of a mount.

use client::Policy;
use client::options::Rule;
use std::ffi::OsString;
use std::time::Duration;

/// The transport of requests from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TransportKind {
    /// Requests over io_uring if the kernel offers FUSE over io_uring, otherwise through the device `/dev/fuse`.
    #[default]
    Auto,
    /// Requests through the FUSE device `/dev/fuse`.
    Device,
    /// Requests over io_uring, with one ring for each processor.
    Uring,
}

/// Whether setuid bits, device nodes and execute permissions of files are effective on this machine, regardless of the
/// modes of the files. By default, programs can be executed, but setuid bits and device nodes have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePrivileges {
    /// Whether setuid and setgid bits are effective. Only root may mount with this setting.
    pub suid: bool,
    /// Whether device nodes can be used as devices. Only root may mount with this setting.
    pub devices: bool,
    /// Whether programs on the mount can be executed.
    pub exec: bool,
}

impl Default for FilePrivileges {
    fn default() -> Self {
        FilePrivileges { suid: false, devices: false, exec: true }
    }
}

/// Settings of a mount; [`Config::default`] suits most mounts.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long the kernel caches attributes before it requests them again.
    pub attrs_valid: Duration,
    /// How long the kernel caches which file a name stands for.
    pub entry_valid: Duration,
    /// How long the kernel caches that a name does not exist.
    pub absent_valid: Duration,
    /// The transport of requests from the kernel.
    pub transport_kind: TransportKind,
    /// Number of threads that read requests from `/dev/fuse`.
    pub threads: usize,
    /// Whether the kernel uses write-back: the kernel keeps dirty pages of files under a write delegation, and sends
    /// them later. Needs root's rights.
    pub writeback: bool,
    /// The largest number of unused inodes that the kernel should keep. Needs a kernel that supports pruning (Linux
    /// 6.18). Each inode takes about a kilobyte in the kernel, and 200 bytes in the mount process.
    pub known_files: usize,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// Whether setuid bits, device nodes and execute permissions of files of the mount are effective on this machine.
    pub privileges: FilePrivileges,
    /// Whether users other than the mounting user may use the mount. By default, all users may use mounts of root.
    pub allow_other: bool,
    /// What `df` and `/proc/mounts` show as the device.
    pub source: String,
    /// The command of a guard process, which calls [`crate::stand_guard`] with the command's last two arguments. If
    /// the mount process is killed, the guard aborts the FUSE connection, so that no program waits forever. Empty: no
    /// guard.
    pub guard: Vec<OsString>,
}

/// The default write threshold of mounts in bytes. Shorter gathered writes take the mgr path.
const THRESHOLD: u64 = 64 << 10;

/// Longest time for which written bytes gather in a mount. If the machine crashes, a long-running program loses at
/// most its output of this time. Other machines see the output at most this much later.
const GATHER_DELAY: Duration = Duration::from_secs(1);

/// Returns the default policy of files on a mount: small writes take the mgr path, and gather only for a short time.
pub fn driver() -> Policy {
    Policy { write_threshold: Rule::Fixed(THRESHOLD), gather_delay: GATHER_DELAY, ..Policy::default() }
}

/// Default of [`Config::known_files`].
pub const KNOWN_FILES: usize = 131_072;
/// Largest default of [`Config::threads`].
const THREADS_MAX: usize = 8;

impl Default for Config {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Config {
            attrs_valid: Duration::from_secs(1),
            entry_valid: Duration::from_secs(1),
            absent_valid: Duration::ZERO,
            transport_kind: TransportKind::default(),
            threads: processors.min(THREADS_MAX),
            writeback: false,
            known_files: KNOWN_FILES,
            read_only: false,
            privileges: FilePrivileges::default(),
            allow_other: rustix::process::geteuid().is_root(),
            source: "weir".to_owned(),
            guard: Vec::new(),
        }
    }
}
