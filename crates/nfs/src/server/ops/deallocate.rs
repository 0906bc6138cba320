//! DEALLOCATE: punches a hole into a file (RFC 7862 §15.4).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use crate::state::opens::Access;
use types::ByteRange;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: DEALLOCATE4args,
) -> Answer<Void> {
    let file = cx.file()?;
    cx.permit(file, args.da_stateid, Access::Write).await?;
    let range = ByteRange::new(args.da_offset, args.da_length).ok_or(NFS4ERR_INVAL)?;
    if range.is_empty() {
        return Err(NFS4ERR_INVAL.into());
    }
    if range.end() > cx.info().max_file_size {
        return Err(NFS4ERR_FBIG.into());
    }
    cx.recall_others(file).await;
    cx.fs().deallocate(&cx.ctx, file, range).await?;
    Ok(Void)
}
