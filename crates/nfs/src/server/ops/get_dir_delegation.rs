//! GET_DIR_DELEGATION: the client is asked before others change names in the directory (RFC 8881 §18.39).
//!
//! Nothing is told of changes: whoever wants to make one waits until the delegation is back. What the client itself changes does not end it. Not
//! every client may expect that: only those get one that say they do ([`OWN_CHANGES`]).

use crate::attrs::Mask;
use crate::fs::FileSystem;
use crate::names::OWN_CHANGES;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use types::FileKind;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: GET_DIR_DELEGATION4args,
) -> Answer<GET_DIR_DELEGATION4res_non_fatal> {
    let dir = cx.file()?;
    if cx.fs().getattr(&cx.ctx, dir).await?.kind != FileKind::Directory {
        return Err(NFS4ERR_NOTDIR.into());
    }
    let (client, now) = (cx.client(), cx.ctx.now);
    // On the way to exports other names are seen when those change.
    let knows = Mask::from_bitmap(&args.gdda_notification_types).0.has(OWN_CHANGES) && !cx.ctx.place.is_outside();
    let given = match knows {
        true => cx.change(|state| state.delegate_names(client, dir, now)).await?.ok(),
        false => None,
    };
    // Nobody is told later.
    let Some(gddr_stateid) = given else { return Ok(GET_DIR_DELEGATION4res_non_fatal::GDD4_UNAVAIL(false)) };
    // Whoever removes it from here on sees that it has something to forget.
    if let Err(gone) = cx.fs().getattr(&cx.ctx, dir).await {
        cx.change(|state| state.forget_names(dir)).await?;
        return Err(gone.into());
    }
    cx.server.note_reached(client.0, dir, cx.ctx.place);
    let given = GET_DIR_DELEGATION4resok { gddr_stateid, ..GET_DIR_DELEGATION4resok::default() };
    Ok(GET_DIR_DELEGATION4res_non_fatal::GDD4_OK(given))
}
