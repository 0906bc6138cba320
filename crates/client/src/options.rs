//! How a mount behaves.

use std::time::Duration;
use types::Cred;
use types::limits::{CLIENT_WINDOW_BYTES, IN_FLIGHT_PER_IOD, PAYLOAD_MAX};

/// Settings of a mount; [`Options::default`] suits most.
#[derive(Clone, Debug)]
pub struct Options {
    /// Checksum payloads (CRC32C) on the way to and from the iods.
    pub checksums: bool,
    /// Payload bytes that may be on their way or not yet committed before writers wait. At least twice the largest
    /// payload (2 MiB); smaller values are taken as that.
    pub window: usize,
    /// Requests in flight to one iod, at least 1.
    pub in_flight_per_iod: usize,
    /// Move data straight to and from the iods. When false, everything goes through the mgr.
    pub direct: bool,
    /// How long to try to reach a server when mounting.
    pub connect_timeout: Duration,
    /// How long a request waits for a server that went away before it fails.
    pub retry_timeout: Duration,
    /// Who asks.
    pub cred: Cred,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            checksums: true,
            window: CLIENT_WINDOW_BYTES,
            in_flight_per_iod: IN_FLIGHT_PER_IOD,
            direct: true,
            connect_timeout: Duration::from_secs(10),
            retry_timeout: Duration::from_secs(60),
            cred: process_cred(),
        }
    }
}

impl Options {
    /// The window in bytes with its lower bound applied.
    pub fn window_bytes(&self) -> usize {
        self.window.max(2 * PAYLOAD_MAX)
    }
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
