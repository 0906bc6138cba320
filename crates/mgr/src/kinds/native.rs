//! The native layout type, for Weir's own client. A layout names iods by their identities, with a capability for each
//! iod.

use super::{DeviceAsk, Faults, Grant, LayoutType, Lifetimes, Stored, Update};
use crate::config::KernelLayout;
use bytes::Bytes;
use layout::kinds::native::{Body, Device, KIND};
use types::{IodId, Status};
use xdr::{Malformed, Xdr};

#[derive(Debug)]
pub(super) struct Native;

impl LayoutType for Native {
    fn number(&self) -> u32 {
        KIND
    }

    fn is_for_kernels(&self) -> bool {
        false
    }

    fn is_offered(&self, _: KernelLayout) -> bool {
        // Every export offers the native type. Pseudo directories also offer the native type, so that Weir's own client
        // can mount a pseudo directory. Files outside of exports have no layout.
        true
    }

    fn expresses(&self, file: &dyn Stored, _: KernelLayout) -> bool {
        // A native layout can describe only one copy of a file.
        file.stripes().is_some() && file.mirrors() == 1
    }

    fn lifetime(&self, lifetimes: Lifetimes) -> u32 {
        lifetimes.capability
    }

    fn grant(&self, grant: &Grant<'_>) -> Result<Bytes, Status> {
        let (object, generation) = (grant.file.object(), grant.generation);
        let stripes = grant.stripes()?;
        let devices = grant.iod_ids()?;
        let (cluster, expires) = (grant.iods.cluster(), grant.expires());
        let sign = |iod: &IodId| {
            let key = cluster.key.of_iod(*iod);
            key.sign_capability(cluster.fsid, object, generation, grant.rights, expires, grant.ctx.client)
        };
        let capabilities: Vec<_> = devices.iter().map(sign).collect();
        let index_of = |index| {
            let sign = |iod: &IodId| {
                let key = cluster.key.of_iod(*iod);
                key.sign_capability(cluster.fsid, index, generation, grant.rights, expires, grant.ctx.client).mac
            };
            devices.iter().map(sign).collect()
        };
        let body = Body {
            distribution: stripes.distribution,
            stripe_unit: stripes.unit,
            object,
            generation,
            whole: grant.file.known().whole,
            capability: capabilities.first().ok_or(Status::Corrupt)?.to_bytes(),
            authenticators: capabilities.iter().map(|capability| capability.mac).collect(),
            secs: grant.secs,
            index_authenticators: grant.file.index().map(index_of).unwrap_or_default(),
            devices,
        };
        Ok(body.to_bytes())
    }

    fn too_large(&self) -> Status {
        Status::TooSmall
    }

    fn device(&self, ask: &DeviceAsk<'_>) -> Result<Bytes, Status> {
        let iod = ask.iods.by_id(IodId(ask.device)).ok_or(Status::NoEnt)?;
        let cluster = ask.iods.cluster();
        let ticket = cluster.key.of_iod(iod.id).ticket(cluster.fsid, ask.client, ask.expires);
        Ok(Device { iod: iod.id, tcp: iod.tcp, local: iod.local, ticket: ticket.to_bytes() }.to_bytes())
    }

    fn update(&self, body: &Bytes) -> Result<Update, Status> {
        if body.is_empty() {
            return Ok(Update::default());
        }
        Update::from_bytes(body).map_err(|_| Status::Inval)
    }

    fn faults(&self, _: &Bytes) -> Result<Option<Faults>, Malformed> {
        Ok(None)
    }

    fn is_recalled_when_lost(&self) -> bool {
        // Weir's own client limits how long it retries a request to an iod, so the mgr need not recall native layouts.
        false
    }
}
