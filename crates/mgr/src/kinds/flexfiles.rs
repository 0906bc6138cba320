//! The flexible files layout type (RFC 8435), for kernel clients: one device for each data server, and one mirror for
//! each copy.

use super::{DeviceAsk, Faults, Grant, LayoutType, Lifetimes, Stored, Stripes, Update};
use crate::config::KernelLayout;
use crate::devices::{DataServer, Devices, net_address};
use bytes::Bytes;
use layout::kinds::flexfiles::{self, Body, Device, KIND, Version};
use types::Status;
use types::limits::PAYLOAD_MAX;
use wire::native::Key;
use xdr::{Malformed, Xdr};

#[derive(Debug)]
pub(super) struct Flexfiles;

impl LayoutType for Flexfiles {
    fn number(&self) -> u32 {
        KIND
    }

    fn is_for_kernels(&self) -> bool {
        true
    }

    fn is_offered(&self, setting: KernelLayout) -> bool {
        matches!(setting, KernelLayout::Flexfiles | KernelLayout::FlexfilesStriped)
    }

    /// Allows layouts of files with several iods in each copy only if the setting of the export says that its clients
    /// support striping. Other kernel clients cannot use such layouts.
    fn expresses(&self, file: &dyn Stored, setting: KernelLayout) -> bool {
        // Only Weir's own client knows the index of a log file.
        let is_striped = file.index().is_none();
        let is_known = |stripes: Stripes| stripes.width == 1 || setting == KernelLayout::FlexfilesStriped;
        is_striped && file.stripes().is_some_and(is_known)
    }

    fn lifetime(&self, lifetimes: Lifetimes) -> u32 {
        lifetimes.data_handle
    }

    fn grant(&self, grant: &Grant<'_>) -> Result<Bytes, Status> {
        let servers = grant.data_servers()?;
        let Stripes { unit, width, .. } = grant.stripes()?;
        let (handle, number) = grant.data_handles()?;
        // The stateid must not be one of the special stateids, because data servers refuse those. The seqid is 0,
        // because the stateid never changes (RFC 8881 §8.2.2).
        let mut stateid = [0; 16];
        stateid[4..8].copy_from_slice(b"weir");
        stateid[8..].copy_from_slice(&number.to_be_bytes());
        let server = |index, at: &DataServer, efficiency| flexfiles::DataServer {
            device: name(grant.devices, at.clone(), &grant.iods.cluster().key),
            efficiency,
            stateid,
            handle: handle(index),
            user: grant.ctx.cred.uid,
            group: grant.ctx.cred.gid,
        };
        // The first copy gets the highest efficiency, so that all clients read this copy while it is available, as the
        // mgr does. If clients read different copies, they can see different bytes, because writes that are not durable
        // may be in one copy only.
        let copies = servers.chunks(width).enumerate().zip((1..=grant.file.mirrors() as u32).rev());
        let mirror = |((copy, servers), efficiency): ((usize, &[DataServer]), u32)| {
            (copy * width..).zip(servers).map(|(index, at)| server(index, at, efficiency)).collect()
        };
        let mirrors = copies.map(mirror).collect();
        let stripe_unit = if width > 1 { unit } else { 0 };
        Ok(Body { stripe_unit, mirrors, flags: 0, stats_hint: 0 }.to_bytes())
    }

    fn too_large(&self) -> Status {
        // Linux fails the write after `TooSmall`. After `NoLayout`, Linux writes through the mgr, so return `NoLayout`.
        Status::NoLayout
    }

    fn device(&self, ask: &DeviceAsk<'_>) -> Result<Bytes, Status> {
        ask.devices.address(ask.device, KIND).ok_or(Status::NoEnt)
    }

    fn update(&self, body: &Bytes) -> Result<Update, Status> {
        // The flexible files layout type defines no LAYOUTCOMMIT body, so the body must be empty.
        if body.is_empty() { Ok(Update::default()) } else { Err(Status::Inval) }
    }

    fn faults(&self, body: &Bytes) -> Result<Option<Faults>, Malformed> {
        if body.is_empty() {
            return Ok(None);
        }
        let faults = flexfiles::faults(body)?;
        let count = faults.len();
        Ok(faults.into_iter().next().map(|first| Faults { first: Box::new(first), count }))
    }

    fn is_recalled_when_lost(&self) -> bool {
        true
    }
}

/// Returns the device id for one data server.
fn name(devices: &Devices, server: DataServer, key: &Key) -> [u8; 16] {
    // Every kernel that supports this layout type uses NFSv4.1 with data servers, whichever NFS version it uses with
    // the mgr.
    let size = PAYLOAD_MAX as u32;
    let version = Version { version: 4, minor: 1, read_size: size, write_size: size, tightly_coupled: true };
    let addresses = server.addresses.into_iter().map(net_address).collect();
    let body = Device { addresses, versions: vec![version] }.to_bytes();
    devices.add(KIND, body, &[server.run], key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use types::Verifier;

    #[test]
    fn each_start_of_an_iod_has_its_own_device() {
        let (devices, key) = (Devices::default(), Key::new([7; 32]));
        let addresses = vec![SocketAddr::from(([10, 0, 0, 1], 2051))];
        let server = DataServer { run: Verifier([1; 8]), addresses };
        let one = name(&devices, server.clone(), &key);
        let device = Device::from_bytes(&devices.address(one, KIND).unwrap()).unwrap();
        assert_eq!(device.addresses, [net_address(server.addresses[0])]);
        assert_eq!(name(&devices, server.clone(), &key), one);
        assert_ne!(name(&devices, DataServer { run: Verifier([7; 8]), ..server }, &key), one);
    }
}
