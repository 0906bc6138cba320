//! LAYOUTERROR: reports to the file system the errors that a client got from data servers (RFC 7862 §15.6).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use crate::server::files::whole_range;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: LAYOUTERROR4args,
) -> Answer<Void> {
    let file = cx.file()?;
    whole_range(args.lea_offset, args.lea_length)?;
    let stateid = cx.stateid(args.lea_stateid)?;
    let client = cx.client();
    cx.state(|state| state.check_layout(client, file, &stateid))?;
    if let Some(first) = args.lea_errors.first() {
        let count = args.lea_errors.len();
        cx.fs().layout_faults(&cx.ctx, file, &(first.de_status, first.de_opnum), count);
    }
    Ok(Void)
}
