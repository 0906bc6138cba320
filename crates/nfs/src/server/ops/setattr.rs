//! SETATTR: changes attributes of the current file (RFC 8881 §18.30).

use crate::attrs::{self, Mask};
use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Body, Compound};
use crate::state::delegations::Use;
use crate::state::opens::Access;
use wire::nfs4::*;
use xdr::Writer;

/// The attributes that SETATTR has set (`attrsset`).
pub(super) struct Applied(Mask);

impl Body for Applied {
    fn put(&self, out: &mut Writer) {
        out.array(&self.0.to_bitmap(), |out, word| out.u32(*word));
    }
}

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: SETATTR4args,
) -> Answer<Applied> {
    let file = cx.file()?;
    let set = cx.to_set(&args.obj_attributes)?;
    let data = set.size.is_some() || set.mtime.is_some();
    cx.make_way(file, if data { Use::Write } else { Use::Metadata }).await?;
    let mut opened = false;
    if set.size.is_some() {
        opened = cx.permit(file, args.stateid, Access::Write).await?;
    }
    if data {
        // Recall the layouts of other clients, because a later LAYOUTCOMMIT of such a client overwrites the new time or
        // size.
        cx.recall_others(file).await;
    }
    cx.fs().setattr(&cx.ctx, file, set, opened).await?;
    if set.size.is_some() {
        cx.announce_size(file).await;
    }
    Ok(Applied(attrs::set_mask(&set)))
}
