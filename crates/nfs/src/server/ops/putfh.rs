//! PUTFH: sets the current filehandle to the given filehandle (RFC 8881 §18.19).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, args: PUTFH4args) -> Answer<Void> {
    let (file, place) = cx.fs().decode_handle(cx.ctx.view, &args.object)?;
    if cx.server.is_data_only() {
        cx.ctx.handle = args.object;
    }
    if cx.server.is_replaced_for(cx.client(), file) {
        return Err(NFS4ERR_STALE.into());
    }
    cx.set_place(file, place);
    Ok(Void)
}
