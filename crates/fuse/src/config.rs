//! How a file system is mounted.

use client::Policy;
use client::options::Rule;
use std::ffi::OsString;
use std::time::Duration;

/// What carries requests from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Carrier {
    /// Rings where the kernel offers them, the device elsewhere.
    #[default]
    Auto,
    /// The classic device `/dev/fuse`.
    Device,
    /// Rings of io_uring, one for each processor.
    Uring,
}

/// What files of a mount may do on this machine, whatever their modes say; by default, be executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Powers {
    /// Setuid and setgid bits count. Only root may mount so.
    pub suid: bool,
    /// Device nodes are devices. Only root may mount so.
    pub devices: bool,
    /// Programs can be executed.
    pub exec: bool,
}

impl Default for Powers {
    fn default() -> Self {
        Powers { suid: false, devices: false, exec: true }
    }
}

/// Settings of a mount; [`Config::default`] suits most.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long the kernel believes attributes before it asks again.
    pub attrs_valid: Duration,
    /// How long the kernel believes what a name stands for.
    pub entry_valid: Duration,
    /// How long the kernel believes that a name is not there.
    pub absent_valid: Duration,
    /// What carries requests from the kernel.
    pub carrier: Carrier,
    /// Threads that read requests from the device.
    pub threads: usize,
    /// Files that this mount has alone are written to the kernel's page cache, which hands them on later. Takes root's rights.
    pub writeback: bool,
    /// So many files at most the kernel is to know that nobody uses, where it understands that (Linux 6.18). Each takes a kilobyte of it, and
    /// some 200 bytes here.
    pub known_files: usize,
    /// Nothing may be changed.
    pub read_only: bool,
    /// What files may do on this machine.
    pub powers: Powers,
    /// Users other than the one who mounts may use it; root's mounts are for all.
    pub allow_other: bool,
    /// What `df` and `/proc/mounts` show as the device.
    pub source: String,
    /// A command that calls [`crate::stand_guard`] with its last two arguments, run beside the mount so that nobody who uses it waits for ever should this process be killed; empty: none.
    pub guard: Vec<OsString>,
}

/// The write threshold of mounts.
const THRESHOLD: u64 = 64 << 10;

/// How long what is written gathers in a mount at most: programs that run for days are watched from other machines, and lose no more than that.
const GATHER_DELAY: Duration = Duration::from_secs(1);

/// How files of a mount are used where nobody says anything: what there is of small writes goes through the mgr, and does not gather for long.
pub fn driver() -> Policy {
    Policy { write_threshold: Rule::Fixed(THRESHOLD), gather_delay: GATHER_DELAY, ..Policy::default() }
}

/// Files that the kernel may know by default.
pub const KNOWN_FILES: usize = 131_072;
/// Most threads by default.
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
