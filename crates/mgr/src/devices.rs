//! Devices of kernel clients' layouts (GETDEVICEINFO): which iods a device id names, for as long as this mgr runs.
//!
//! An id is derived from the addresses that it stands for and from the write verifiers of the iods there. So its
//! meaning never changes, and the next mgr derives the same id. A client that reaches no server of a device avoids the
//! device for minutes. So when an iod has restarted, layouts name another device.

use bytes::Bytes;
use layout::NetAddress;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use types::Verifier;
use wire::native::Key;

/// Largest number of devices known at a time. A client that asks for a forgotten device takes the mgr path.
const DEVICES_MAX: usize = 4096;

/// An iod as a data server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DataServer {
    /// The write verifier of the iod, unique to this run.
    pub(crate) run: Verifier,
    /// The addresses at which the iod serves NFS.
    pub(crate) addresses: Vec<SocketAddr>,
}

/// Returns an address as device addresses carry it.
pub(crate) fn net_address(address: SocketAddr) -> NetAddress {
    NetAddress::tcp(address.ip(), address.is_ipv6(), address.port())
}

/// The devices that layouts have named.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    /// Layout type and address body of each device.
    addresses: Mutex<HashMap<[u8; 16], (u32, Bytes)>>,
}

impl Devices {
    /// Adds a device of this layout type with this address body, which runs of iods serve; returns its id.
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

    /// Returns the address body of a device of this layout type.
    pub(crate) fn address(&self, id: [u8; 16], kind: u32) -> Option<Bytes> {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(&id).filter(|(of, _)| *of == kind).map(|(_, body)| body.clone())
    }
}
