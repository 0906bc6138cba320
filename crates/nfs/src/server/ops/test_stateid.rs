//! TEST_STATEID: returns for each stateid whether it is valid or revoked (RFC 8881 §18.48).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: TEST_STATEID4args,
) -> Answer<TEST_STATEID4resok> {
    let client = cx.client();
    let tested = cx.state(|state| args.ts_stateids.iter().map(|s| state.test_stateid(client, s)).collect());
    Ok(TEST_STATEID4resok { tsr_status_codes: tested })
}
