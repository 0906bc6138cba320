//! Devices of the kernels' layouts: which iods stand behind a device id, for as long as this mgr runs.
//!
//! An id is made of the addresses that it stands for, so it never means anything else, and the next mgr finds the same one.

use bytes::Bytes;
use layout::NetAddress;
use layout::kinds::{files, flexfiles};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use types::limits::PAYLOAD_MAX;
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
    /// The kind of each and its address body.
    addresses: Mutex<HashMap<[u8; 16], (u32, Bytes)>>,
}

impl Devices {
    /// The device of the files kind for these iods, and which of its stripe indices the first of them has. Files that go round the same iods
    /// have the same device, wherever they begin.
    pub(crate) fn name(&self, iods: &[u16], mut servers: Vec<Vec<SocketAddr>>, key: &Key) -> ([u8; 16], u32) {
        let smallest = iods.iter().enumerate().min_by_key(|(_, number)| **number).map_or(0, |(at, _)| at);
        servers.rotate_left(smallest);
        let first = (iods.len() - smallest) % iods.len().max(1);
        let servers = servers.into_iter().map(|addresses| addresses.into_iter().map(net_address).collect());
        let body = files::Device { servers: servers.collect() }.to_bytes();
        (self.add(files::KIND, body, key), first as u32)
    }

    /// The device of the flexible files kind for one iod.
    pub(crate) fn name_one(&self, server: Vec<SocketAddr>, key: &Key) -> [u8; 16] {
        // Every kernel that has this kind speaks 4.1 to its data servers, whatever it speaks to the mgr.
        let size = PAYLOAD_MAX as u32;
        let version =
            flexfiles::Version { version: 4, minor: 1, read_size: size, write_size: size, tightly_coupled: true };
        let addresses = server.into_iter().map(net_address).collect();
        let body = flexfiles::Device { addresses, versions: vec![version] }.to_bytes();
        self.add(flexfiles::KIND, body, key)
    }

    fn add(&self, kind: u32, body: Bytes, key: &Key) -> [u8; 16] {
        let id = key.derived_id(&[&kind.to_be_bytes(), &body[..]].concat());
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.len() >= DEVICES_MAX && !addresses.contains_key(&id) {
            addresses.clear();
        }
        addresses.insert(id, (kind, body));
        id
    }

    /// The address body of a device of a kind.
    pub(crate) fn address(&self, id: [u8; 16], kind: u32) -> Option<Bytes> {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(&id).filter(|(of, _)| *of == kind).map(|(_, body)| body.clone())
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
        let device = files::Device::from_bytes(&devices.address(id, files::KIND).unwrap()).unwrap();
        assert_eq!(device.servers, [1, 2, 3].map(|n| vec![net_address(server(n)[0])]));
        // An iod that moves makes another device; the old one means what it meant, and what the next mgr calls it too.
        let moved = [1, 2, 3].map(|n| if n == 2 { vec![SocketAddr::from(([10, 0, 0, 9], 2051))] } else { server(n) });
        let (new, _) = devices.name(&[1, 2, 3], moved.to_vec(), &key);
        assert_ne!(new, id);
        assert_eq!(files::Device::from_bytes(&devices.address(id, files::KIND).unwrap()).unwrap(), device);
        let servers = [1, 2, 3].map(server).to_vec();
        assert_eq!(Devices::default().name(&[1, 2, 3], servers, &key).0, id);
        assert_eq!((devices.address([0; 16], files::KIND), devices.address(id, flexfiles::KIND)), (None, None));
        let one = devices.name_one(server(1), &key);
        let device = flexfiles::Device::from_bytes(&devices.address(one, flexfiles::KIND).unwrap()).unwrap();
        assert_eq!(device.addresses, [net_address(server(1)[0])]);
    }
}
