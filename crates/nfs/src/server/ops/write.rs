//! WRITE: writes bytes of a file through this server (RFC 8881 §18.32).

use crate::fs::FileSystem;
use crate::fs::Stability;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::counters;
use crate::state::opens::Access;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: WRITE4args,
) -> Answer<WRITE4resok> {
    let file = cx.file()?;
    cx.permit(file, args.stateid, Access::Write).await?;
    let end = args.offset.checked_add(args.data.len() as u64);
    if end.is_none_or(|end| end > cx.info().max_file_size) {
        return Err(NFS4ERR_FBIG.into());
    }
    let stable = match args.stable {
        UNSTABLE4 => Stability::Unstable,
        DATA_SYNC4 => Stability::DataSync,
        FILE_SYNC4 => Stability::FileSync,
    };
    let out = cx.fs().write(&cx.ctx, file, args.offset, args.data, stable).await?;
    cx.flushes(file);
    counters::add(&cx.server.counters.write_bytes, u64::from(out.count));
    let committed = match out.stable {
        Stability::Unstable => UNSTABLE4,
        Stability::DataSync => DATA_SYNC4,
        Stability::FileSync => FILE_SYNC4,
    };
    Ok(WRITE4resok { count: out.count, committed, writeverf: out.verifier.0 })
}
