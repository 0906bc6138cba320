//! BIND_CONN_TO_SESSION: binds a connection to the fore channel, the backchannel or both (RFC 8881 §18.34).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: BIND_CONN_TO_SESSION4args,
) -> Answer<BIND_CONN_TO_SESSION4resok> {
    if cx.session.is_some() {
        return Err(NFS4ERR_NOT_ONLY_OP.into());
    }
    let connection = cx.connection;
    Ok(cx.change(|state| state.bind_conn_to_session(&args, connection)).await??)
}
