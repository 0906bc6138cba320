//! LOOKUP: looks up a name in the current directory (RFC 8881 §18.13).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, args: LOOKUP4args) -> Answer<Void> {
    let found = cx.fs().lookup(&cx.ctx, cx.file()?, &args.objname).await?;
    let place = cx.fs().descend(&cx.ctx, found.id)?;
    cx.set_place(found.id, place);
    Ok(Void)
}
