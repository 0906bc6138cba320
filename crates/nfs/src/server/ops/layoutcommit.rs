//! LAYOUTCOMMIT: stores the size and modification time that result from a client's writes under a layout (RFC 8881
//! §18.42).

use crate::fs::{FileSystem, access};
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::whole_range;
use types::Timestamp;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: LAYOUTCOMMIT4args,
) -> Answer<LAYOUTCOMMIT4resok> {
    let file = cx.file()?;
    let range = whole_range(args.loca_offset, args.loca_length)?;
    let stateid = cx.stateid(args.loca_stateid)?;
    let kind = args.loca_layoutupdate.lou_type;
    if !cx.fs().layout_types().contains(&kind) {
        return Err(NFS4ERR_UNKNOWN_LAYOUTTYPE.into());
    }
    let client = cx.client();
    if args.loca_reclaim {
        cx.state(|state| state.check_layout_reclaim(client, &stateid))?;
        cx.regular(file).await?;
        // After a restart the server has no layout of the client, and perhaps no open. Without an open for writing, the
        // caller must have the permission to write the file.
        if !cx.state(|state| state.may_write(client, file)) {
            cx.check_access(file, access::MODIFY | access::EXTEND).await?;
        }
    } else {
        cx.check_grace()?;
        cx.regular(file).await?;
        cx.state(|state| state.check_layoutcommit(client, file, kind, &stateid, range))?;
    }
    let last = match args.loca_last_write_offset {
        newoffset4::TRUE(last) if last >= cx.info().max_file_size => return Err(NFS4ERR_FBIG.into()),
        newoffset4::TRUE(last) => Some(last),
        newoffset4::FALSE => None,
    };
    let mtime = match args.loca_time_modify {
        newtime4::TRUE(time) => Some(Timestamp::new(time.seconds, time.nseconds).ok_or(NFS4ERR_INVAL)?),
        newtime4::FALSE => None,
    };
    let body = args.loca_layoutupdate.lou_body;
    let size = cx.fs().layout_commit(&cx.ctx, file, (kind, body), last, mtime).await?;
    cx.flushes(file);
    Ok(LAYOUTCOMMIT4resok { locr_newsize: size.map_or(newsize4::FALSE, newsize4::TRUE) })
}
