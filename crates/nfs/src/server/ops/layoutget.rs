//! LAYOUTGET: grants a layout, under which the client does I/O directly to the data servers (RFC 8881 §18.43).

use crate::fs::FileSystem;
use crate::fs::{Iomode, LayoutAsk, LayoutGone};
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::counters;
use crate::server::files::whole_range;
use crate::state::layouts::{Filter, Segment};
use wire::nfs4::*;

/// Length in bytes of a LAYOUTGET result without the layout body: flag, stateid, count, range, iomode, type and length.
const FRAME: usize = 4 + 16 + 4 + 16 + 4 + 4 + 4;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: LAYOUTGET4args,
) -> Answer<LAYOUTGET4resok> {
    let file = cx.file()?;
    let kind = args.loga_layout_type;
    if !cx.fs().layout_types().contains(&kind) {
        return Err(NFS4ERR_UNKNOWN_LAYOUTTYPE.into());
    }
    let iomode = match args.loga_iomode {
        LAYOUTIOMODE4_READ => Iomode::Read,
        LAYOUTIOMODE4_RW => Iomode::ReadWrite,
        LAYOUTIOMODE4_ANY => return Err(NFS4ERR_BADIOMODE.into()),
    };
    let range = whole_range(args.loga_offset, args.loga_length)?;
    if range.is_empty() || args.loga_minlength > args.loga_length {
        return Err(NFS4ERR_INVAL.into());
    }
    let max_body = (args.loga_maxcount as usize).min(cx.room).checked_sub(FRAME).ok_or(NFS4ERR_TOOSMALL)?;
    let stateid = cx.stateid(args.loga_stateid)?;
    let client = cx.client();
    cx.check_grace()?;
    cx.regular(file).await?;
    let filter = Filter { iomode: Some(iomode), range };
    let readable = cx.state(|state| {
        state.check_layoutget(client, file, kind, &stateid, filter)?;
        let readable = state.may_read(client, file);
        if iomode == Iomode::Read && !readable { Err(NFS4ERR_OPENMODE) } else { Ok(readable) }
    })?;
    let ask = LayoutAsk { file, kind, iomode, readable, range, min_len: args.loga_minlength, max_body };
    let out = cx.fs().layout_get(&cx.ctx, ask).await?;
    let segment = Segment { iomode: out.iomode, range: out.range, return_on_close: out.return_on_close };
    let granted = cx.change(|state| state.grant_layout(client, file, kind, &stateid, segment)).await?;
    let stateid = match granted {
        Ok(stateid) => stateid,
        Err(status) => {
            // The state tables refused the layout, so LAYOUTGET fails. The client never receives this layout, so no
            // fence is needed.
            cx.fs().layout_gone(&cx.ctx, client.0, file, out.iomode, out.range, LayoutGone::Forgotten).await?;
            return Err(status.into());
        }
    };
    cx.set_stateid(stateid);
    cx.flushes(file);
    counters::add(&cx.server.counters.layouts, 1);
    let layout = layout4 {
        lo_offset: out.range.offset,
        lo_length: out.range.len,
        lo_iomode: if out.iomode == Iomode::Read { LAYOUTIOMODE4_READ } else { LAYOUTIOMODE4_RW },
        lo_content: layout_content4 { loc_type: out.kind, loc_body: out.body },
    };
    Ok(LAYOUTGET4resok { logr_return_on_close: out.return_on_close, logr_stateid: stateid, logr_layout: vec![layout] })
}
