//! DESTROY_SESSION: ends a session (RFC 8881 §18.37).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: DESTROY_SESSION4args,
) -> Answer<Void> {
    if cx.session == Some(args.dsa_sessionid) && cx.left > 0 {
        return Err(NFS4ERR_NOT_ONLY_OP.into());
    }
    let connection = cx.connection;
    cx.change(|state| state.destroy_session(args.dsa_sessionid, connection)).await??;
    Ok(Void)
}
