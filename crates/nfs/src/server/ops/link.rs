//! LINK: adds a hard link to the saved file in the current directory (RFC 8881 §18.9).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::change_info;
use crate::state::delegations::Use;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: LINK4args,
) -> Answer<LINK4resok> {
    let (file, dir) = (cx.saved_file()?, cx.file()?);
    cx.check_same_export()?;
    cx.make_way_in(dir).await?;
    cx.make_way(file, Use::Metadata).await?;
    let change = cx.fs().link(&cx.ctx, file, dir, &args.newname).await?;
    Ok(LINK4resok { cinfo: change_info(change) })
}
