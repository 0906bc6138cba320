//! The processes of a simulated cluster: starting them, killing them, cutting their power.

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
/// The client that checks everything at the end.
pub const AUDITOR: Host = 200;

/// The port of the mgr.
pub const MGR_PORT: u16 = 2049;
/// The port of every iod.
pub const IOD_PORT: u16 = 2050;

/// How a process ends that does not end by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// `kill -9`: what it gave to the system stays.
    Killed,
    /// Its host loses power: what was not synced may be lost.
    PowerCut,
}

/// What hosts are called.
pub fn name(host: Host) -> String {
    match host {
        MGR => "mgr".into(),
        AUDITOR => "auditor".into(),
        h if h >= CLIENT => format!("client{}", h - CLIENT),
        h if h >= IOD => format!("iod{}", h - IOD),
        h => format!("host{h}"),
    }
}
