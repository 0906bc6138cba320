//! ACCESS: returns the caller's permissions on the current file (RFC 8881 §18.1, RFC 8276 §8.5).

use crate::fs::FileSystem;
use crate::fs::access;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: ACCESS4args,
) -> Answer<ACCESS4resok> {
    let known = if cx.ctx.minor == 1 { access::ALL & 0x3f } else { access::ALL };
    let supported = args.access & known;
    let granted = cx.fs().access(&cx.ctx, cx.file()?, supported).await?;
    let granted = if cx.terms.read_only { granted & !access::CHANGES } else { granted };
    Ok(ACCESS4resok { supported, access: granted & supported })
}
