//! GET_DIR_DELEGATION: grants a directory delegation, which covers the names in a directory (RFC 8881 §18.39).
//!
//! The server sends no notifications. A change of the directory by another client waits until the holder returns the
//! delegation. The holder's own changes do not end its delegation. RFC 8881 does not define this behaviour, so only
//! clients that declare [`OWN_CHANGES`] get a delegation.

use crate::attrs::Mask;
use crate::fs::FileSystem;
use crate::name_delegations::OWN_CHANGES;
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
    // Outside of exports, the names that a client sees also change when the list of exports changes, so the server
    // grants no delegation there.
    let knows = Mask::from_bitmap(&args.gdda_notification_types).0.has(OWN_CHANGES) && !cx.ctx.place.is_outside();
    let given = match knows {
        true => cx.change(|state| state.delegate_names(client, dir, now)).await?.ok(),
        false => None,
    };
    // `GDD4_UNAVAIL(false)`: the server sends no callback when a delegation becomes available.
    let Some(gddr_stateid) = given else { return Ok(GET_DIR_DELEGATION4res_non_fatal::GDD4_UNAVAIL(false)) };
    // Check that the directory still exists. A removal before this check makes the check fail; a later removal also
    // removes the delegation.
    if let Err(gone) = cx.fs().getattr(&cx.ctx, dir).await {
        cx.change(|state| state.forget_names(dir)).await?;
        return Err(gone.into());
    }
    cx.server.note_reached(client.0, dir, cx.ctx.place);
    let given = GET_DIR_DELEGATION4resok { gddr_stateid, ..GET_DIR_DELEGATION4resok::default() };
    Ok(GET_DIR_DELEGATION4res_non_fatal::GDD4_OK(given))
}
