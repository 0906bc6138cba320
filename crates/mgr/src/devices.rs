//! Devices of kernel clients' layouts (GETDEVICEINFO): which iods a device id names, for as long as this mgr runs.
//!
//! An id is derived from the addresses that it stands for and from the write verifiers of the iods there. So its
//! meaning never changes, and the next mgr derives the same id. A client that reaches no server of a device avoids the
//! device for minutes. So when an iod has restarted, layouts name another device.

use bytes::Bytes;
use layout::NetAddress;
use layout::kinds::{files, flexfiles};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use types::Verifier;
use types::limits::PAYLOAD_MAX;
use wire::native::Key;
use xdr::Xdr;

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

fn net_address(address: SocketAddr) -> NetAddress {
    NetAddress::tcp(address.ip(), address.is_ipv6(), address.port())
}

/// The devices that layouts have named.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    /// Layout type and address body of each device.
    addresses: Mutex<HashMap<[u8; 16], (u32, Bytes)>>,
}

impl Devices {
    /// Returns the device for these iods in the files layout, and the stripe index of the first iod in it. Files with
    /// the same cyclic order of iods share a device, wherever they begin.
    pub(crate) fn name(&self, iods: &[u16], mut servers: Vec<DataServer>, key: &Key) -> ([u8; 16], u32) {
        let smallest = iods.iter().enumerate().min_by_key(|(_, number)| **number).map_or(0, |(at, _)| at);
        servers.rotate_left(smallest);
        let first = (iods.len() - smallest) % iods.len().max(1);
        let runs: Vec<Verifier> = servers.iter().map(|server| server.run).collect();
        let servers = servers.into_iter().map(|server| server.addresses.into_iter().map(net_address).collect());
        let body = files::Device { servers: servers.collect() }.to_bytes();
        (self.add(files::KIND, body, &runs, key), first as u32)
    }

    /// Returns the device for one iod in the flexible files layout.
    pub(crate) fn name_one(&self, server: DataServer, key: &Key) -> [u8; 16] {
        // Every kernel with this layout type speaks NFSv4.1 to its data servers, whatever it speaks to the mgr.
        let size = PAYLOAD_MAX as u32;
        let version =
            flexfiles::Version { version: 4, minor: 1, read_size: size, write_size: size, tightly_coupled: true };
        let addresses = server.addresses.into_iter().map(net_address).collect();
        let body = flexfiles::Device { addresses, versions: vec![version] }.to_bytes();
        self.add(flexfiles::KIND, body, &[server.run], key)
    }

    fn add(&self, kind: u32, body: Bytes, runs: &[Verifier], key: &Key) -> [u8; 16] {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_go_round_the_same_iods_have_one_device() {
        let (devices, key) = (Devices::default(), Key::new([7; 32]));
        let server = |number: u16| DataServer {
            run: Verifier([number as u8; 8]),
            addresses: vec![SocketAddr::from(([10, 0, 0, number as u8], 2051))],
        };
        let address = |number: u16| net_address(server(number).addresses[0]);
        let name = |iods: &[u16]| devices.name(iods, iods.iter().map(|n| server(*n)).collect(), &key);
        let (id, first) = name(&[1, 2, 3]);
        assert_eq!(first, 0);
        assert_eq!(name(&[2, 3, 1]), (id, 1));
        assert_eq!(name(&[3, 1, 2]), (id, 2));
        assert_ne!(name(&[1, 3, 2]).0, id);
        let device = files::Device::from_bytes(&devices.address(id, files::KIND).unwrap()).unwrap();
        assert_eq!(device.servers, [1, 2, 3].map(|n| vec![address(n)]));
        // An iod at a new address makes another device; the old id keeps its meaning, and the next mgr derives it too.
        let moved = [1, 2, 3].map(|n| if n == 2 { DataServer { run: server(2).run, ..server(9) } } else { server(n) });
        let (new, _) = devices.name(&[1, 2, 3], moved.to_vec(), &key);
        assert_ne!(new, id);
        assert_eq!(files::Device::from_bytes(&devices.address(id, files::KIND).unwrap()).unwrap(), device);
        // A restarted iod makes another device too, for clients that avoid the old one; its address has not changed.
        let run = Verifier([7; 8]);
        let restarted = [1, 2, 3].map(|n| if n == 2 { DataServer { run, ..server(2) } } else { server(n) });
        let (again, _) = devices.name(&[1, 2, 3], restarted.to_vec(), &key);
        assert!(again != id && again != new);
        assert_eq!(devices.address(again, files::KIND), devices.address(id, files::KIND));
        let servers = [1, 2, 3].map(server).to_vec();
        assert_eq!(Devices::default().name(&[1, 2, 3], servers, &key).0, id);
        assert_eq!((devices.address([0; 16], files::KIND), devices.address(id, flexfiles::KIND)), (None, None));
        let one = devices.name_one(server(1), &key);
        let device = flexfiles::Device::from_bytes(&devices.address(one, flexfiles::KIND).unwrap()).unwrap();
        assert_eq!(device.addresses, [address(1)]);
        assert_ne!(devices.name_one(DataServer { run, ..server(1) }, &key), one);
    }
}
