//! IO_ADVISE: passes the client's hints about its next I/O to the file system (RFC 7862 §15.5).

use crate::attrs::Mask;
use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::whole_range;
use crate::state::opens::Access;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: IO_ADVISE4args,
) -> Answer<IO_ADVISE4resok> {
    let file = cx.file()?;
    let stateid = cx.stateid(args.iaa_stateid)?;
    // An open for reading or an open for writing suffices for IO_ADVISE.
    if cx.permit(file, stateid, Access::Read).await.is_err() {
        cx.permit(file, stateid, Access::Write).await?;
    }
    let len = if args.iaa_count == 0 { u64::MAX } else { args.iaa_count };
    let range = whole_range(args.iaa_offset, len)?;
    let (hints, _) = Mask::from_bitmap(&args.iaa_hints);
    let honoured = cx.fs().advise(&cx.ctx, file, range, hints.0 as u32).await?;
    Ok(IO_ADVISE4resok { ior_hints: Mask(u128::from(honoured)).to_bitmap() })
}
