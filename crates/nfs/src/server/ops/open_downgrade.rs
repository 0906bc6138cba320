//! OPEN_DOWNGRADE: removes share bits from an open (RFC 8881 §18.18).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: OPEN_DOWNGRADE4args,
) -> Answer<OPEN_DOWNGRADE4resok> {
    let file = cx.file()?;
    let stateid = cx.exact_stateid(args.open_stateid)?;
    let client = cx.client();
    let access = args.share_access & !OPEN4_SHARE_ACCESS_WANT_DELEG_MASK;
    let lowered = cx.change(|state| state.open_downgrade(client, file, &stateid, access, args.share_deny)).await??;
    cx.set_stateid(lowered);
    Ok(OPEN_DOWNGRADE4resok { open_stateid: lowered })
}
