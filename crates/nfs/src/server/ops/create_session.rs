//! CREATE_SESSION: confirms a client and creates a session for it (RFC 8881 §18.36).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: CREATE_SESSION4args,
) -> Answer<CREATE_SESSION4resok> {
    let (principal, connection, random, now) = (cx.principal, cx.connection, cx.random, cx.ctx.now);
    let made = cx.change(|state| state.create_session(&args, principal, connection, random, now)).await??;
    cx.server.note_minor(made.csr_sessionid, cx.ctx.minor);
    Ok(made)
}
