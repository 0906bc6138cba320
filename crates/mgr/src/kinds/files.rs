//! The files layout type (RFC 8881 §13), for kernel clients: one device for each cyclic order of data servers, and one
//! filehandle for each data server.

use super::{DeviceAsk, Faults, Grant, LayoutType, Lifetimes, Stored, Update};
use crate::config::KernelLayout;
use crate::devices::{DataServer, Devices, net_address};
use bytes::Bytes;
use layout::kinds::files::{Body, Device, KIND};
use types::{Status, Verifier};
use wire::native::{DATA_HANDLE_LEN, Key};
use xdr::{Malformed, Xdr};

#[derive(Debug)]
pub(super) struct Files;

impl LayoutType for Files {
    fn number(&self) -> u32 {
        KIND
    }

    fn is_for_kernels(&self) -> bool {
        true
    }

    fn is_offered(&self, setting: KernelLayout) -> bool {
        setting == KernelLayout::Files
    }

    fn expresses(&self, file: &dyn Stored, _: KernelLayout) -> bool {
        // Only Weir's own client knows the index of a log file.
        file.stripes().is_some() && file.mirrors() == 1 && file.index().is_none()
    }

    fn lifetime(&self, lifetimes: Lifetimes) -> u32 {
        lifetimes.data_handle
    }

    fn grant(&self, grant: &Grant<'_>) -> Result<Bytes, Status> {
        let iods = grant.file.iods();
        let count = iods.len();
        // Each data server accepts only its own filehandle. If the filehandles of all data servers do not fit into the
        // layout body, clients use the mgr path for the file.
        if !Body::has_room(grant.max_body, count, DATA_HANDLE_LEN) {
            return Err(Status::NoLayout);
        }
        let servers = grant.data_servers()?;
        let (device, first_stripe_index) = name(grant.devices, iods, servers, &grant.iods.cluster().key);
        let (handle, _) = grant.data_handles()?;
        // The layout lists the filehandles in the order of the data servers in the device. The first data server in the
        // device may differ from the first iod of the file.
        let first = first_stripe_index as usize;
        let handles = (0..count).map(|at| handle((at + count - first) % count)).collect();
        let stripe_unit = grant.stripes()?.unit as u32;
        Ok(Body { device, stripe_unit, first_stripe_index, handles }.to_bytes())
    }

    fn too_large(&self) -> Status {
        // Linux never retries LAYOUTGET with a larger reply size, and fails the write after `TooSmall`. After
        // `NoLayout`, Linux writes through the mgr, so return `NoLayout`.
        Status::NoLayout
    }

    fn device(&self, ask: &DeviceAsk<'_>) -> Result<Bytes, Status> {
        ask.devices.address(ask.device, KIND).ok_or(Status::NoEnt)
    }

    fn update(&self, body: &Bytes) -> Result<Update, Status> {
        // The files layout type defines no LAYOUTCOMMIT body (RFC 8881 §13), so the body must be empty.
        if body.is_empty() { Ok(Update::default()) } else { Err(Status::Inval) }
    }

    fn faults(&self, _: &Bytes) -> Result<Option<Faults>, Malformed> {
        Ok(None)
    }

    fn is_recalled_when_lost(&self) -> bool {
        true
    }
}

/// Returns the device for these iods, and the index of the file's first iod in the device. Files with the same cyclic
/// order of iods share a device, even if their first iods differ.
fn name(devices: &Devices, iods: &[u16], mut servers: Vec<DataServer>, key: &Key) -> ([u8; 16], u32) {
    let smallest = iods.iter().enumerate().min_by_key(|(_, number)| **number).map_or(0, |(at, _)| at);
    servers.rotate_left(smallest);
    let first = (iods.len() - smallest) % iods.len().max(1);
    let runs: Vec<Verifier> = servers.iter().map(|server| server.run).collect();
    let servers = servers.into_iter().map(|server| server.addresses.into_iter().map(net_address).collect());
    let body = Device { servers: servers.collect() }.to_bytes();
    (devices.add(KIND, body, &runs, key), first as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn files_striped_over_the_same_iods_have_one_device() {
        let (devices, key) = (Devices::default(), Key::new([7; 32]));
        let server = |number: u16| DataServer {
            run: Verifier([number as u8; 8]),
            addresses: vec![SocketAddr::from(([10, 0, 0, number as u8], 2051))],
        };
        let address = |number: u16| net_address(server(number).addresses[0]);
        let name_of = |iods: &[u16]| name(&devices, iods, iods.iter().map(|n| server(*n)).collect(), &key);
        let (id, first) = name_of(&[1, 2, 3]);
        assert_eq!(first, 0);
        assert_eq!(name_of(&[2, 3, 1]), (id, 1));
        assert_eq!(name_of(&[3, 1, 2]), (id, 2));
        assert_ne!(name_of(&[1, 3, 2]).0, id);
        let device = Device::from_bytes(&devices.address(id, KIND).unwrap()).unwrap();
        assert_eq!(device.servers, [1, 2, 3].map(|n| vec![address(n)]));
        // An iod with a new address results in a new device. The old device id still stands for the old address, and a
        // restarted mgr derives the same id.
        let moved = [1, 2, 3].map(|n| if n == 2 { DataServer { run: server(2).run, ..server(9) } } else { server(n) });
        let (new, _) = name(&devices, &[1, 2, 3], moved.to_vec(), &key);
        assert_ne!(new, id);
        assert_eq!(Device::from_bytes(&devices.address(id, KIND).unwrap()).unwrap(), device);
        // An iod that restarted at an unchanged address also results in a new device, because kernel clients may avoid
        // the old device.
        let run = Verifier([7; 8]);
        let restarted = [1, 2, 3].map(|n| if n == 2 { DataServer { run, ..server(2) } } else { server(n) });
        let (again, _) = name(&devices, &[1, 2, 3], restarted.to_vec(), &key);
        assert!(again != id && again != new);
        assert_eq!(devices.address(again, KIND), devices.address(id, KIND));
        let servers = [1, 2, 3].map(server).to_vec();
        assert_eq!(name(&Devices::default(), &[1, 2, 3], servers, &key).0, id);
        assert_eq!((devices.address([0; 16], KIND), devices.address(id, KIND + 1)), (None, None));
    }
}
