//! REMOVEXATTR: removes an extended attribute (RFC 8276 §8.4.4).

use crate::fs::FileSystem;
use crate::fs::access;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::change_info;
use crate::state::delegations::Use;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: REMOVEXATTR4args,
) -> Answer<change_info4> {
    let file = cx.file()?;
    cx.check_access(file, access::XAWRITE).await?;
    cx.make_way(file, Use::Metadata).await?;
    Ok(change_info(cx.fs().removexattr(&cx.ctx, file, &args.rxa_name).await?))
}
