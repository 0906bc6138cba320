//! COMMIT: makes earlier unstable writes durable (RFC 8881 §18.3).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use types::ByteRange;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: COMMIT4args,
) -> Answer<COMMIT4resok> {
    let file = cx.file()?;
    let len = if args.count == 0 { u64::MAX - args.offset } else { u64::from(args.count) };
    let range = ByteRange::new(args.offset, len).ok_or(NFS4ERR_INVAL)?;
    if !cx.server.is_data_only() {
        cx.regular(file).await?;
    }
    let verifier = cx.fs().commit(&cx.ctx, file, range).await?;
    cx.flushes(file);
    Ok(COMMIT4resok { writeverf: verifier.0 })
}
