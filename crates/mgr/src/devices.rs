//! Devices of kernel clients' layouts (GETDEVICEINFO): which iods a device id stands for.
//!
//! The mgr derives a device id from the addresses of its iods and from their write verifiers. So an id always stands
//! for the same iods, and a restarted mgr derives the same id. A kernel client that reaches no server of a device
//! avoids this device for minutes. A restarted iod has a new verifier, so new layouts name a new device that clients do
//! not avoid.

use bytes::Bytes;
use layout::NetAddress;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use types::Verifier;
use wire::native::Key;

/// Largest number of devices that the mgr keeps in memory. For a device that the mgr has evicted, GETDEVICEINFO fails,
/// and the client uses the mgr path.
const DEVICES_MAX: usize = 4096;

/// An iod in its role as an NFS data server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DataServer {
    /// The write verifier of the iod. It changes with every restart of the iod.
    pub(crate) run: Verifier,
    /// The addresses at which the iod serves NFS.
    pub(crate) addresses: Vec<SocketAddr>,
}

/// Returns a socket address as the `netaddr4` that device addresses contain (RFC 8881 §3.3.9).
pub(crate) fn net_address(address: SocketAddr) -> NetAddress {
    NetAddress::tcp(address.ip(), address.is_ipv6(), address.port())
}

/// The devices that the layouts granted by the mgr name.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    /// For each device id: the layout type and the encoded address body.
    addresses: Mutex<HashMap<[u8; 16], (u32, Bytes)>>,
}

impl Devices {
    /// Adds a device with this layout type and address body, and returns the device id. `runs` are the write verifiers
    /// of the device's iods.
    pub(crate) fn add(&self, kind: u32, body: Bytes, runs: &[Verifier], key: &Key) -> [u8; 16] {
        let runs: Vec<u8> = runs.iter().flat_map(|run| run.0).collect();
        let id = key.derived_id(&[&kind.to_be_bytes(), &body[..], &runs].concat());
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.len() >= DEVICES_MAX && !addresses.contains_key(&id) {
            addresses.clear();
        }
        addresses.insert(id, (kind, body));
        id
    }

    /// Returns the address body of a device, if a device with this id and this layout type exists.
    pub(crate) fn address(&self, id: [u8; 16], kind: u32) -> Option<Bytes> {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(&id).filter(|(of, _)| *of == kind).map(|(_, body)| body.clone())
    }
}
