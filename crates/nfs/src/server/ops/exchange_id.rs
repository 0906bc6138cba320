//! EXCHANGE_ID: registers a client and returns its client id (RFC 8881 §18.35).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use bytes::Bytes;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: EXCHANGE_ID4args,
) -> Answer<EXCHANGE_ID4resok> {
    // Minor version 1 does not define the flag `EXCHGID4_FLAG_SUPP_FENCE_OPS` (RFC 7862 §14.1), so the flag is invalid.
    if cx.ctx.minor < 2 && args.eia_flags & EXCHGID4_FLAG_SUPP_FENCE_OPS != 0 {
        return Err(NFS4ERR_INVAL.into());
    }
    let (caller, now) = (cx.introduced(), cx.ctx.now);
    let exchanged = cx.change(|state| state.exchange_id(&args, caller, now)).await??;
    let config = &cx.server.config;
    let implementation = nfs_impl_id4 {
        nii_domain: Bytes::new(),
        nii_name: Bytes::copy_from_slice(config.implementation.as_bytes()),
        nii_date: nfstime4::default(),
    };
    Ok(EXCHANGE_ID4resok {
        eir_clientid: exchanged.client.0,
        eir_sequenceid: exchanged.sequence,
        eir_flags: exchanged.flags,
        eir_state_protect: state_protect4_r::SP4_NONE,
        eir_server_owner: server_owner4 { so_minor_id: 0, so_major_id: config.major_id.clone() },
        eir_server_scope: Bytes::copy_from_slice(&cx.fs().fsid().0),
        eir_server_impl_id: vec![implementation],
    })
}
