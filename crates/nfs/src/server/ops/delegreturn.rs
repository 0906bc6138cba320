//! DELEGRETURN: the client returns a delegation (RFC 8881 §18.6).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use crate::state::delegations::DelegationKind;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: DELEGRETURN4args,
) -> Answer<Void> {
    let file = cx.file()?;
    let stateid = cx.stateid(args.deleg_stateid)?;
    let client = cx.client();
    let (returned, effects) = cx.server.change(|state| state.return_delegation(client, file, &stateid));
    // Query the final file size before carrying out the effects of this DELEGRETURN, because the return of the last
    // delegation of a file without a name frees the file.
    if returned == Ok(DelegationKind::Write)
        && let Err(error) = cx.fs().closed(&cx.ctx, file, true).await
    {
        tracing::warn!(%error, file = file.0, "cannot finish a DELEGRETURN");
    }
    cx.server.settle(&cx.ctx, effects).await?;
    returned?;
    Ok(Void)
}
