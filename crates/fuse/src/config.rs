//! The configuration of a mount.

use client::Policy;
use client::options::Rule;
use std::ffi::OsString;
use std::time::Duration;

/// The transport of requests from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Carrier {
    /// io_uring where the kernel offers it, the device elsewhere.
    #[default]
    Auto,
    /// The device `/dev/fuse`.
    Device,
    /// Rings of io_uring, one for each processor.
    Uring,
}

/// What files of a mount may do on this machine, whatever their modes say. By default, they may only be executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Powers {
    /// Setuid and setgid bits are effective. Only root may mount in this way.
    pub suid: bool,
    /// Device nodes are usable as devices. Only root may mount in this way.
    pub devices: bool,
    /// Programs can be executed.
    pub exec: bool,
}

impl Default for Powers {
    fn default() -> Self {
        Powers { suid: false, devices: false, exec: true }
    }
}

/// Settings of a mount; [`Config::default`] suits most mounts.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long the kernel caches attributes before it asks again.
    pub attrs_valid: Duration,
    /// How long the kernel caches the file that a name leads to.
    pub entry_valid: Duration,
    /// How long the kernel caches that a name does not exist.
    pub absent_valid: Duration,
    /// The transport of requests from the kernel.
    pub carrier: Carrier,
    /// Threads that read requests from the device.
    pub threads: usize,
    /// Whether the kernel writes back: it keeps written pages of files under a write delegation and sends them later.
    /// Needs root's rights.
    pub writeback: bool,
    /// The largest number of unused inodes that the kernel should keep, on kernels that support pruning (Linux 6.18).
    /// Each takes a kilobyte in the kernel, and some 200 bytes here.
    pub known_files: usize,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// What files may do on this machine.
    pub powers: Powers,
    /// Whether users other than the mounting user may use it; mounts of root are for all users by default.
    pub allow_other: bool,
    /// What `df` and `/proc/mounts` show as the device.
    pub source: String,
    /// A command that calls [`crate::stand_guard`] with its last two arguments. It runs beside the mount, so that no
    /// program that uses the mount waits forever if this process is killed. Empty: no guard.
    pub guard: Vec<OsString>,
}

/// The write threshold of mounts.
const THRESHOLD: u64 = 64 << 10;

/// How long written bytes gather in a mount at most. Other machines watch the output of programs that run for days, and
/// such a program loses no more than that.
const GATHER_DELAY: Duration = Duration::from_secs(1);

/// Returns the policy of files where no setting applies: small writes take the mgr path, and do not gather for long.
pub fn driver() -> Policy {
    Policy { write_threshold: Rule::Fixed(THRESHOLD), gather_delay: GATHER_DELAY, ..Policy::default() }
}

/// Inodes that the kernel may keep by default.
pub const KNOWN_FILES: usize = 131_072;
/// Largest default number of threads.
const THREADS_MAX: usize = 8;

impl Default for Config {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Config {
            attrs_valid: Duration::from_secs(1),
            entry_valid: Duration::from_secs(1),
            absent_valid: Duration::ZERO,
            carrier: Carrier::default(),
            threads: processors.min(THREADS_MAX),
            writeback: false,
            known_files: KNOWN_FILES,
            read_only: false,
            powers: Powers::default(),
            allow_other: rustix::process::geteuid().is_root(),
            source: "weir".to_owned(),
            guard: Vec::new(),
        }
    }
}
