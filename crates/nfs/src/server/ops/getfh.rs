//! GETFH: returns the current filehandle (RFC 8881 §18.8).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, _: Void) -> Answer<GETFH4resok> {
    Ok(GETFH4resok { object: cx.fs().encode_handle(cx.file()?, cx.ctx.place) })
}
