//! Devices of the files layout: which iods stand behind a device id, for as long as this mgr runs.
//!
//! An id is made of the addresses that it stands for, so it never means anything else, and the next mgr finds the same one.

use bytes::Bytes;
use layout::kinds::files::{Device, NetAddress};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use wire::native::Key;
use xdr::Xdr;

/// Most devices known at a time. A client that asks for one that was forgotten goes through the mgr.
const DEVICES_MAX: usize = 4096;

fn net_address(address: SocketAddr) -> NetAddress {
    NetAddress::tcp(address.ip(), address.is_ipv6(), address.port())
}

/// The devices that layouts have named.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    addresses: Mutex<HashMap<[u8; 16], Bytes>>,
}

impl Devices {
    /// The device of these iods, and which of its stripe indices the first of them has. Files that go round the same iods
    /// have the same device, wherever they begin.
    pub(crate) fn name(&self, iods: &[u16], mut servers: Vec<Vec<SocketAddr>>, key: &Key) -> ([u8; 16], u32) {
        let smallest = iods.iter().enumerate().min_by_key(|(_, number)| **number).map_or(0, |(at, _)| at);
        servers.rotate_left(smallest);
        let first = (iods.len() - smallest) % iods.len().max(1);
        let servers = servers.into_iter().map(|addresses| addresses.into_iter().map(net_address).collect());
        let body = Device { servers: servers.collect() }.to_bytes();
        let id = key.derived_id(&body);
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.len() >= DEVICES_MAX && !addresses.contains_key(&id) {
            addresses.clear();
        }
        addresses.insert(id, body);
        (id, first as u32)
    }

    /// The address body of a device.
    pub(crate) fn address(&self, id: [u8; 16]) -> Option<Bytes> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_go_round_the_same_iods_have_one_device() {
        let (devices, key) = (Devices::default(), Key::new([7; 32]));
        let server = |number: u16| vec![SocketAddr::from(([10, 0, 0, number as u8], 2051))];
        let name = |iods: &[u16]| devices.name(iods, iods.iter().map(|n| server(*n)).collect(), &key);
        let (id, first) = name(&[1, 2, 3]);
        assert_eq!(first, 0);
        assert_eq!(name(&[2, 3, 1]), (id, 1));
        assert_eq!(name(&[3, 1, 2]), (id, 2));
        assert_ne!(name(&[1, 3, 2]).0, id);
        let device = Device::from_bytes(&devices.address(id).unwrap()).unwrap();
        assert_eq!(device.servers, [1, 2, 3].map(|n| vec![net_address(server(n)[0])]));
        assert_eq!(devices.address([0; 16]), None);
        // An iod that moves makes another device; the old one means what it meant, and what the next mgr calls it too.
        let moved = [1, 2, 3].map(|n| if n == 2 { vec![SocketAddr::from(([10, 0, 0, 9], 2051))] } else { server(n) });
        let (new, _) = devices.name(&[1, 2, 3], moved.to_vec(), &key);
        assert_ne!(new, id);
        assert_eq!(Device::from_bytes(&devices.address(id).unwrap()).unwrap(), device);
        let servers = [1, 2, 3].map(server).to_vec();
        assert_eq!(Devices::default().name(&[1, 2, 3], servers, &key).0, id);
    }
}
