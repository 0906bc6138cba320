//! RECLAIM_COMPLETE: records that the client has finished its reclaims (RFC 8881 §18.51).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: RECLAIM_COMPLETE4args,
) -> Answer<Void> {
    if args.rca_one_fs {
        cx.file()?;
    }
    let client = cx.client();
    cx.change(|state| state.reclaim_complete(client, args.rca_one_fs)).await??;
    Ok(Void)
}
