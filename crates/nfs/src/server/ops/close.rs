//! CLOSE: ends an open (RFC 8881 §18.2).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::state::stateids::INVALID;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: CLOSE4args,
) -> Answer<stateid4> {
    let file = cx.file()?;
    let stateid = cx.exact_stateid(args.open_stateid)?;
    let client = cx.client();
    let (closed, effects) = cx.server.change(|state| state.close(client, file, &stateid));
    // Query the final file size before carrying out the effects of this CLOSE, because the last CLOSE of a file without
    // a name frees the file.
    let told = match &closed {
        Ok(closed) if closed.wrote || closed.last_of_client => cx.fs().closed(&cx.ctx, file, closed.wrote).await,
        _ => Ok(()),
    };
    if let Err(error) = told {
        tracing::warn!(%error, file = file.0, "cannot finish a CLOSE");
    }
    cx.server.settle(&cx.ctx, effects).await?;
    closed?;
    cx.set_stateid(INVALID);
    Ok(INVALID)
}
