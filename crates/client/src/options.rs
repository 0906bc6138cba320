//! How a mount behaves.

use layout::policy::{Origin, Policy, PolicyError, Settings};
pub use layout::threshold::Rule;
use std::time::Duration;
use types::Cred;
use types::limits::{CLIENT_WINDOW_BYTES, IN_FLIGHT_PER_IOD, PAYLOAD_MAX};

/// Settings of a mount; [`Options::default`] suits most.
#[derive(Clone, Debug)]
pub struct Options {
    /// Checksum payloads (CRC32C) on the way to and from the iods; those that come by a Unix socket never leave this machine and have none.
    pub checksums: bool,
    /// Payload bytes that may be on their way or not yet committed before writers wait. At least twice the largest
    /// payload (2 MiB); smaller values are taken as that.
    pub window: usize,
    /// Requests in flight to one iod, at least 1.
    pub in_flight_per_iod: usize,
    /// Move data straight to and from the iods. When false, everything goes through the mgr.
    pub direct: bool,
    /// Read from the files of iods on this machine what is in memory, where they lend them, instead of asking for it.
    pub lent: bool,
    /// Have the mgr ask before others change names in directories where so many were looked for in vain, one soon after the other, and answer such
    /// questions without it. 0: nowhere.
    pub negative: u32,
    /// What is waited for until it is on disk.
    pub durable: Durable,
    /// How long it is believed how long an open file is: who reads up to its end later than that sees what others have written there meanwhile.
    pub size_valid: Duration,
    /// How files are used where nobody says anything else.
    pub driver: Policy,
    /// What this mount says about that, over server and directories: it can be changed later ([`crate::Mount::set_policy`]).
    pub policy: Settings,
    /// What the environment says, over the mount: see [`environment`].
    pub environment: Settings,
    /// How long to try to reach a server when mounting, and an iod each time it cannot be reached; 10 s unless told
    /// otherwise. An iod that was not reached is left alone for 5 s, in which its bytes go through the mgr.
    pub connect_timeout: Duration,
    /// How long a request waits for a server that went away before it fails, 60 s unless told otherwise, [`FOR_EVER`] if it
    /// is never to fail. Within it the request is sent several times: one that was not answered for a third of it, or for
    /// 20 s, goes over a new connection. What fails
    /// on an iod then takes as long again to go through the mgr. While an mgr that restarted waits for its clients, it is
    /// waited for by its lease time longer.
    pub retry_timeout: Duration,
    /// Who asks.
    pub cred: Cred,
    /// What the client calls itself to the mgr, for people who look for it: the host's name, a blank, and the number of
    /// the process.
    pub name: String,
    /// Who this is to the mgr, for programs that are started again in the place of one that may have been killed: then the mgr lets go at
    /// once of what that one still held. Never to be used by two at a time, who would take everything from each other. None: nobody else.
    pub identity: Option<[u8; 16]>,
    /// The way to the mgr, where that runs in this process; the address of the target has to be its own. None: by a socket.
    pub door: Option<net::rpc::Door>,
}

/// What is waited for until it is on disk; see `docs/SEMANTICS.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durable {
    /// Everything that is closed, and every change of names and attributes, as with NFS.
    #[default]
    Close,
    /// What is synced, as with local file systems. Names, attributes and small files that are kept with them are there when any process is killed, but a
    /// power cut of the mgr's machine may take the changes of the last second; then fsync fails.
    Fsync,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            checksums: true,
            window: CLIENT_WINDOW_BYTES,
            in_flight_per_iod: IN_FLIGHT_PER_IOD,
            direct: true,
            lent: true,
            negative: 4,
            durable: Durable::Close,
            size_valid: Duration::from_secs(1),
            driver: Policy::default(),
            policy: Settings::default(),
            environment: Settings::default(),
            connect_timeout: Duration::from_secs(10),
            retry_timeout: Duration::from_secs(60),
            cred: process_cred(),
            name: process_name(),
            identity: None,
            door: None,
        }
    }
}

/// A [`Options::retry_timeout`] that no request outlives: a century, which any clock can add to the present.
pub const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Longest wait for one answer before the request is sent again over another connection.
const ATTEMPT_MAX: Duration = Duration::from_secs(20);

impl Options {
    /// How long to wait for one answer before asking again over another connection.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        (self.retry_timeout / 3).min(ATTEMPT_MAX)
    }

    /// The window in bytes with its lower bound applied.
    pub fn window_bytes(&self) -> usize {
        self.window.max(2 * PAYLOAD_MAX)
    }
}

/// The environment variable with parts of a policy, as `write_threshold=32K,access=direct`.
pub const POLICY_VARIABLE: &str = "WEIR_POLICY";

/// What `WEIR_POLICY` says; nothing where it is not set.
///
/// # Errors
/// It is not what a policy can be.
pub fn environment() -> Result<Settings, PolicyError> {
    let text = std::env::var_os(POLICY_VARIABLE).unwrap_or_default();
    Settings::parse(Origin::Environment, &text.to_string_lossy())
}

/// The host's name and the number of this process.
pub fn process_name() -> String {
    format!("{} {}", rustix::system::uname().nodename().to_string_lossy(), std::process::id())
}

/// The effective identity of this process; AUTH_SYS carries the first 16 supplementary groups.
pub fn process_cred() -> Cred {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Cred {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: groups.iter().take(16).map(|g| g.as_raw()).collect(),
    }
}
