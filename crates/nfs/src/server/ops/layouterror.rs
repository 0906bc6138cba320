//! LAYOUTERROR: what went wrong for a client at data servers (RFC 7862 §15.6).

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
        tracing::warn!(
            client = client.0,
            file = file.0,
            status = ?first.de_status,
            op = ?first.de_opnum,
            count = args.lea_errors.len(),
            "a client failed at a data server"
        );
        cx.fs().layout_faults(file, args.lea_errors.len());
    }
    Ok(Void)
}
