//! The options of a mount.

use layout::policy::{Origin, Policy, PolicyError, Settings};
pub use layout::threshold::Rule;
use std::time::Duration;
use types::Cred;
use types::limits::{CLIENT_WINDOW_BYTES, IN_FLIGHT_PER_IOD, PAYLOAD_MAX};

/// The options of a mount; [`Options::default`] suits most uses.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether payloads to and from iods carry checksums (CRC-32C). Payloads on a Unix socket never leave this machine,
    /// so they carry no checksums.
    pub checksums: bool,
    /// The write window: the maximum number of written bytes that are not durable yet. When this number is reached,
    /// further writes wait. Values below the minimum of 2 MiB, which is twice the largest payload of a request, are
    /// raised to the minimum.
    pub window: usize,
    /// Maximum number of requests in flight to one iod, at least 1.
    pub in_flight_per_iod: usize,
    /// Whether to use the direct path to and from the iods. If false, all data take the mgr path.
    pub direct: bool,
    /// Whether to use short-circuit reads, which read cached data from the files of local iods without a request.
    pub short_circuit: bool,
    /// Number of failed lookups in a directory, in quick succession, after which the mount caches all names of the
    /// directory under a directory delegation. 0 disables negative-lookup caching.
    pub negative: u32,
    /// Which operations return only after their changes are durable.
    pub durable: Durable,
    /// How long the client uses a cached size of an open file. After that time, a read up to the end of the file asks
    /// the mgr for the size, and so sees bytes that other clients appended.
    pub size_valid: Duration,
    /// The default policy: the values of all policy settings that no server, directory, file, mount or environment
    /// sets.
    pub driver: Policy,
    /// The policy settings of this mount, which override those of the server and of directories.
    /// [`crate::Mount::set_policy`] changes them later.
    pub policy: Settings,
    /// The policy settings from the environment, which override those of the mount; see [`environment`].
    pub environment: Settings,
    /// How long the client tries to connect to a server (the mgr or an iod); 10 s by default. If the client cannot
    /// connect to an iod, it does not try this iod again for 5 s, and its reads and writes of data on this iod take the
    /// mgr path.
    pub connect_timeout: Duration,
    /// How long a request waits for an unreachable server before it fails; 60 s by default, [`FOR_EVER`] if it must
    /// never fail. If the server does not reply within a third of this time, or within 20 s, the client sends the
    /// request over a new connection. After a request to an iod has failed, the client sends the request on the mgr
    /// path, where the request may wait for the same time again. If a restarted mgr is in its grace period, a request
    /// waits longer, by the lease time.
    pub retry_timeout: Duration,
    /// The user and groups of the requests that the mount sends on its own behalf, not for a caller.
    pub cred: Cred,
    /// The name of the client that the mgr shows to administrators; by default the host name, a blank, and the process
    /// id.
    pub name: String,
    /// A fixed client identity, for a program that may be killed and started again. When the program starts again, the
    /// mgr releases the state of the killed process at once. Two running clients must never use the same identity,
    /// because each would revoke the other's state. `None`: a new unique identity.
    pub identity: Option<[u8; 16]>,
    /// A connection to an mgr that runs in this process. The target must contain the address of this mgr. `None`: the
    /// client connects through a socket.
    pub connector: Option<net::rpc::InProcessConnector>,
}

/// Which operations return only after their changes are durable; see `docs/SEMANTICS.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durable {
    /// Every close, and every change of names or attributes, returns only after its changes are durable, as with NFS.
    #[default]
    Close,
    /// Only fsync waits until changes are durable, as with local file systems. Names, attributes and inline files
    /// survive if any process is killed. A power loss of the mgr's machine may lose the changes of the last second; the
    /// next fsync then fails.
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
            connector: None,
        }
    }
}

/// A value of [`Options::retry_timeout`] that never expires: a century. A larger value could overflow when it is added
/// to the current time.
pub const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The longest time that the client waits for one reply before it sends the request again over a new connection.
const ATTEMPT_MAX: Duration = Duration::from_secs(20);

impl Options {
    /// Returns how long the client waits for one reply before it sends the request again over a new connection.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        (self.retry_timeout / 3).min(ATTEMPT_MAX)
    }

    /// Returns the size of the write window in bytes, which is raised to the minimum size if the option is smaller.
    pub fn window_bytes(&self) -> usize {
        self.window.max(2 * PAYLOAD_MAX)
    }
}

/// The environment variable with policy settings, for example `write_threshold=32K,access=direct`.
pub const POLICY_VARIABLE: &str = "WEIR_POLICY";

/// Parses the policy settings in the environment variable `WEIR_POLICY`. If the variable is not set, returns no
/// settings.
///
/// # Errors
/// The text is not a valid policy.
pub fn environment() -> Result<Settings, PolicyError> {
    let text = std::env::var_os(POLICY_VARIABLE).unwrap_or_default();
    Settings::parse(Origin::Environment, &text.to_string_lossy())
}

/// Returns the host name, a blank, and the id of this process.
pub fn process_name() -> String {
    format!("{} {}", rustix::system::uname().nodename().to_string_lossy(), std::process::id())
}

/// Returns the effective user and groups of this process, with at most 16 supplementary groups, the maximum of AUTH_SYS
/// (RFC 5531).
pub fn process_cred() -> Cred {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Cred {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: groups.iter().take(16).map(|g| g.as_raw()).collect(),
    }
}
