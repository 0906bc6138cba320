//! LAYOUTRETURN: the client returns layouts (RFC 8881 §18.44).

use crate::fs::FileSystem;
use crate::fs::{Iomode, LayoutGone};
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::whole_range;
use crate::state::layouts::Filter;
use crate::state::stateids::ANONYMOUS;
use bytes::Bytes;
use types::{ByteRange, FileId};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: LAYOUTRETURN4args,
) -> Answer<layoutreturn_stateid> {
    let iomode = match args.lora_iomode {
        LAYOUTIOMODE4_READ => Some(Iomode::Read),
        LAYOUTIOMODE4_RW => Some(Iomode::ReadWrite),
        LAYOUTIOMODE4_ANY => None,
    };
    let kind = args.lora_layout_type;
    if !cx.fs().layout_types().contains(&kind) {
        return Err(NFS4ERR_UNKNOWN_LAYOUTTYPE.into());
    }
    if args.lora_reclaim {
        // No layout survives a restart of the server, so a reclaiming client has no layout to return.
        return Ok(layoutreturn_stateid::FALSE);
    }
    let client = cx.client();
    let one = match args.lora_layoutreturn {
        layoutreturn4::LAYOUTRETURN4_FILE(one) => one,
        layoutreturn4::Default(which) => {
            if which == LAYOUTRETURN4_FSID {
                cx.file()?;
            }
            let server = cx.server;
            let gone = cx.change(|state| server.count_returned(state.return_all_layouts(client, kind, iomode))).await?;
            tell(cx, gone, (kind, Bytes::new())).await?;
            return Ok(layoutreturn_stateid::FALSE);
        }
    };
    let file = cx.file()?;
    let range = whole_range(one.lrf_offset, one.lrf_length)?;
    let stateid = cx.stateid(one.lrf_stateid)?;
    let filter = Filter { iomode, range };
    let server = cx.server;
    let returned = cx.change(|state| {
        let returned = state.return_layout(client, file, kind, &stateid, filter)?;
        let gone = returned.pieces.into_iter().map(|(iomode, range)| (file, iomode, range)).collect();
        Ok::<_, nfsstat4>((returned.stateid, server.count_returned(gone)))
    });
    let (stateid, gone) = returned.await??;
    tell(cx, gone, (kind, one.lrf_body)).await?;
    Ok(match stateid {
        Some(stateid) => {
            cx.set_stateid(stateid);
            layoutreturn_stateid::TRUE(stateid)
        }
        None => {
            // The client holds no layout of the file any more, so the current stateid is no longer valid (§18.44.3).
            cx.set_stateid(ANONYMOUS);
            layoutreturn_stateid::FALSE
        }
    })
}

/// Reports the returned layouts to the file system, and wakes the tasks that wait for the return.
async fn tell<F: FileSystem, C: Callbacks>(
    cx: &Compound<'_, F, C>,
    gone: Vec<(FileId, Iomode, ByteRange)>,
    (kind, body): (u32, Bytes),
) -> Answer<()> {
    let mut outcome = Ok(());
    for (file, iomode, range) in gone {
        let why = LayoutGone::Returned { kind, body: body.clone() };
        let told = cx.server.layout_gone(&cx.ctx, cx.ctx.client, file, (iomode, range), why).await;
        outcome = outcome.and(told);
    }
    Ok(outcome?)
}
