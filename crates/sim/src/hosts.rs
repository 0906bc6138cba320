//! Hosts and processes of a simulated cluster: start, kill, and power loss.

mod iods;
mod mgrs;

pub use iods::{DiskFaults, IodHost};
pub use mgrs::MgrHost;

use crate::network::Host;

/// Host number of the mgr.
pub const MGR: Host = 1;
/// Host number of the first iod. Each further iod has the next number.
pub const IOD: Host = 10;
/// Host number of the first client. Each further client has the next number.
pub const CLIENT: Host = 100;
/// Host number of the client that runs the final checks.
pub const AUDITOR: Host = 200;

/// Port at which the mgr listens.
pub const MGR_PORT: u16 = 2049;
/// Port at which every iod listens.
pub const IOD_PORT: u16 = 2050;

/// How the simulator ends the process of a daemon or client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// The process ends as with `kill -9`: the files keep all data that the process wrote, even unsynced data.
    Killed,
    /// The process ends in a power loss of its host: the disk may lose data that were not synced.
    PowerCut,
}

/// Returns the address of a host. The address of an iod is numeric, because the mgr looks up a host name outside of the
/// simulation.
pub fn address(host: Host) -> String {
    if (IOD..CLIENT).contains(&host) { format!("10.0.0.{}", host - IOD + 1) } else { name(host) }
}

/// Returns the name of a host for the messages of a run, for example `iod0`.
pub fn name(host: Host) -> String {
    match host {
        MGR => "mgr".into(),
        AUDITOR => "auditor".into(),
        h if h >= CLIENT => format!("client{}", h - CLIENT),
        h if h >= IOD => format!("iod{}", h - IOD),
        h => format!("host{h}"),
    }
}
