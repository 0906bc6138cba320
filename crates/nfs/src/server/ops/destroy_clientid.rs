//! DESTROY_CLIENTID: removes a client record without state (RFC 8881 §18.50).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use crate::state::ClientId;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: DESTROY_CLIENTID4args,
) -> Answer<Void> {
    let caller = cx.introduced();
    cx.change(|state| state.destroy_clientid(ClientId(args.dca_clientid), caller)).await??;
    Ok(Void)
}
