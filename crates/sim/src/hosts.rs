//! The hosts and processes of a simulated cluster: start, kill, and power loss.

mod iods;
mod mgrs;

pub use iods::{DiskTrouble, IodHost};
pub use mgrs::MgrHost;

use crate::network::Host;

/// The host of the mgr.
pub const MGR: Host = 1;
/// The host of the first iod.
pub const IOD: Host = 10;
/// The host of the first client.
pub const CLIENT: Host = 100;
/// The host of the client that runs the final checks.
pub const AUDITOR: Host = 200;

/// The port of the mgr.
pub const MGR_PORT: u16 = 2049;
/// The port of every iod.
pub const IOD_PORT: u16 = 2050;

/// The way in which a process is ended from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// `kill -9`: data that the process gave to the operating system survive.
    Killed,
    /// The host loses power: data that were not synced may be lost.
    PowerCut,
}

/// Returns the address of a host. Those of iods are numeric: the mgr would look a name up outside of the simulation, to
/// tell it to other iods.
pub fn address(host: Host) -> String {
    if (IOD..CLIENT).contains(&host) { format!("10.0.0.{}", host - IOD + 1) } else { name(host) }
}

/// Returns the name of a host.
pub fn name(host: Host) -> String {
    match host {
        MGR => "mgr".into(),
        AUDITOR => "auditor".into(),
        h if h >= CLIENT => format!("client{}", h - CLIENT),
        h if h >= IOD => format!("iod{}", h - IOD),
        h => format!("host{h}"),
    }
}
