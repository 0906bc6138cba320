//! LAYOUTSTATS: receives the client's I/O statistics for a layout (RFC 7862 §15.7). The server checks the stateid and
//! ignores the statistics, because the data servers count I/O themselves.

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use crate::server::files::whole_range;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: LAYOUTSTATS4args,
) -> Answer<Void> {
    let file = cx.file()?;
    whole_range(args.lsa_offset, args.lsa_length)?;
    let stateid = cx.stateid(args.lsa_stateid)?;
    let client = cx.client();
    cx.state(|state| state.check_layout(client, file, &stateid))?;
    Ok(Void)
}
