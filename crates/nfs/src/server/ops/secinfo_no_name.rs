//! SECINFO_NO_NAME: returns the security flavors for the current file or its parent directory (RFC 8881 §18.45).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::Flavors;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: SECINFO_NO_NAME4args,
) -> Answer<Flavors> {
    let file = cx.file()?;
    if args == SECINFO_STYLE4_PARENT {
        cx.fs().lookup_parent(&cx.ctx, file).await?;
    }
    cx.current = None;
    Ok(Flavors)
}
