//! The options of a mount.

use layout::policy::{Origin, Policy, PolicyError, Settings};
pub use layout::threshold::Rule;
use std::time::Duration;
use types::Cred;
use types::limits::{CLIENT_WINDOW_BYTES, IN_FLIGHT_PER_IOD, PAYLOAD_MAX};

/// Settings of a mount; [`Options::default`] suits most.
#[derive(Clone, Debug)]
pub struct Options {
    /// Checksum payloads (CRC-32C) on the way to and from the iods. Payloads over a Unix socket never leave this
    /// machine and have no checksums.
    pub checksums: bool,
    /// Payload bytes that may be in flight or not committed before writers wait. At least twice the largest payload (2
    /// MiB); smaller values are raised to that.
    pub window: usize,
    /// Requests in flight to one iod, at least 1.
    pub in_flight_per_iod: usize,
    /// Use the direct path to and from the iods. If false, all data takes the mgr path.
    pub direct: bool,
    /// Short-circuit reads: read cached data from the files of local iods, instead of sending requests.
    pub short_circuit: bool,
    /// Number of failed lookups in a directory, one soon after the other, after which the mount caches that names do
    /// not exist. The mgr then recalls a delegation before other clients change names there. 0: never.
    pub negative: u32,
    /// Which operations wait until changes are durable.
    pub durable: Durable,
    /// How long the size of an open file is cached: a later read up to the end sees the bytes that other clients have
    /// written in the meantime.
    pub size_valid: Duration,
    /// The policy where no place sets a part.
    pub driver: Policy,
    /// The policy settings of this mount, which override those of the server and directories.
    /// [`crate::Mount::set_policy`] changes them later.
    pub policy: Settings,
    /// The policy settings of the environment, which override those of the mount: see [`environment`].
    pub environment: Settings,
    /// How long to try to reach a server when mounting, and an iod each time it is unreachable; 10 s by default. An
    /// unreachable iod is not tried again for 5 s, in which its bytes take the mgr path.
    pub connect_timeout: Duration,
    /// How long a request waits for an unreachable server before it fails; 60 s by default, [`FOR_EVER`] if it must
    /// never fail. In this time the client sends the request several times. A request that was not answered for a third
    /// of the time, or for 20 s, is sent over a new connection. If it fails on an iod, the mgr path takes as long
    /// again. During the grace period of a restarted mgr, the client waits longer by the lease time.
    pub retry_timeout: Duration,
    /// The identity in whose name the mount sends requests.
    pub cred: Cred,
    /// The client's name for the mgr, shown to administrators: the host name, a blank, and the process id.
    pub name: String,
    /// The client's identity at the mgr, for programs that restart in place of one that may have been killed. The mgr
    /// then releases the state of the earlier one at once. Two running clients must never share it, because each would
    /// revoke the other's state. `None`: a unique identity.
    pub identity: Option<[u8; 16]>,
    /// The connection to an mgr in this process; the target must have the mgr's address. `None`: connect by a socket.
    pub door: Option<net::rpc::Door>,
}

/// Which operations wait until changes are durable; see `docs/SEMANTICS.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durable {
    /// Every close, and every change of names and attributes, as with NFS.
    #[default]
    Close,
    /// Only fsync, as with local file systems. Names, attributes and inline files survive when any process is killed. A
    /// power loss of the mgr's machine may lose the changes of the last second; then fsync fails.
    Fsync,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            checksums: true,
            window: CLIENT_WINDOW_BYTES,
            in_flight_per_iod: IN_FLIGHT_PER_IOD,
            direct: true,
            short_circuit: true,
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

/// A [`Options::retry_timeout`] longer than any request: a century, which any clock can add to the current time.
pub const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Longest wait for one answer before the client sends the request again over another connection.
const ATTEMPT_MAX: Duration = Duration::from_secs(20);

impl Options {
    /// Returns how long to wait for one answer before the request is sent again over another connection.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        (self.retry_timeout / 3).min(ATTEMPT_MAX)
    }

    /// Returns the window in bytes, with its lower bound applied.
    pub fn window_bytes(&self) -> usize {
        self.window.max(2 * PAYLOAD_MAX)
    }
}

/// The environment variable with parts of a policy, as `write_threshold=32K,access=direct`.
pub const POLICY_VARIABLE: &str = "WEIR_POLICY";

/// Returns the settings in `WEIR_POLICY`, or none if it is not set.
///
/// # Errors
/// The text is not a valid policy.
pub fn environment() -> Result<Settings, PolicyError> {
    let text = std::env::var_os(POLICY_VARIABLE).unwrap_or_default();
    Settings::parse(Origin::Environment, &text.to_string_lossy())
}

/// Returns the host name and the id of this process.
pub fn process_name() -> String {
    format!("{} {}", rustix::system::uname().nodename().to_string_lossy(), std::process::id())
}

/// Returns the effective identity of this process; AUTH_SYS carries the first 16 supplementary groups.
pub fn process_cred() -> Cred {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Cred {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: groups.iter().take(16).map(|g| g.as_raw()).collect(),
    }
}
