//! SEEK: finds the next data or the next hole in a file (RFC 7862 §15.11).

use crate::fs::Content;
use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::state::opens::Access;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: SEEK4args,
) -> Answer<seek_res4> {
    let file = cx.file()?;
    // An open for reading or for writing permits SEEK, as with lseek(2).
    match cx.permit(file, args.sa_stateid, Access::Read).await {
        Err(refusal) if refusal.status == NFS4ERR_OPENMODE => cx.permit(file, args.sa_stateid, Access::Write).await?,
        permitted => permitted?,
    };
    let what = match args.sa_what {
        NFS4_CONTENT_DATA => Content::Data,
        NFS4_CONTENT_HOLE => Content::Hole,
    };
    let out = cx.fs().seek(&cx.ctx, file, args.sa_offset, what).await?;
    Ok(seek_res4 { sr_eof: out.eof, sr_offset: out.offset })
}
