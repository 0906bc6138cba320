//! LOCKU: unlocks a byte range of the current file (RFC 8881 §18.12).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::lock_span;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: LOCKU4args,
) -> Answer<stateid4> {
    let file = cx.file()?;
    let span = lock_span(args.offset, args.length)?;
    cx.regular(file).await?;
    let stateid = cx.stateid(args.lock_stateid)?;
    let client = cx.client();
    cx.fs().unlocking(&cx.ctx, file).await;
    let unlocked = cx.change(|state| state.unlock(client, file, &stateid, span)).await??;
    cx.set_stateid(unlocked);
    Ok(unlocked)
}
