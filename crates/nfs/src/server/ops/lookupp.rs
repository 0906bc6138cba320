//! LOOKUPP: changes from a directory to its parent (RFC 8881 §18.14).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, _: Void) -> Answer<Void> {
    let dir = cx.file()?;
    let parent = cx.fs().lookup_parent(&cx.ctx, dir).await?;
    let place = cx.fs().ascend(&cx.ctx, dir)?;
    cx.set_place(parent.id, place);
    Ok(Void)
}
