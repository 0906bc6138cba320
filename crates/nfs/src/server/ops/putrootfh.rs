//! PUTROOTFH: sets the current filehandle to the root directory (RFC 8881 §18.21).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, _: Void) -> Answer<Void> {
    let (root, place) = cx.fs().root(cx.ctx.view);
    cx.set_place(root, place);
    Ok(Void)
}
