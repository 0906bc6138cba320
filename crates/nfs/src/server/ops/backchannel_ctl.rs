//! BACKCHANNEL_CTL: sets RPC program and authentication of the session's callbacks (RFC 8881 §18.33).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: BACKCHANNEL_CTL4args,
) -> Answer<Void> {
    let session = cx.session.ok_or(NFS4ERR_OP_NOT_IN_SESSION)?;
    cx.change(|state| state.backchannel_ctl(session, &args)).await??;
    Ok(Void)
}
