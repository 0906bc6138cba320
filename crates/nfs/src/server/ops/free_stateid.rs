//! FREE_STATEID: frees a revoked stateid, or a lock stateid without locks (RFC 8881 §18.38).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: FREE_STATEID4args,
) -> Answer<Void> {
    let stateid = cx.stateid(args.fsa_stateid)?;
    let client = cx.client();
    cx.change(|state| state.free_stateid(client, &stateid)).await??;
    Ok(Void)
}
