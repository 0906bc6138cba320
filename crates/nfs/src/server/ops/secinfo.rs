//! SECINFO: returns the security flavors for a name in the current directory, and clears the current filehandle (RFC
//! 8881 §18.29).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::Flavors;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: SECINFO4args,
) -> Answer<Flavors> {
    cx.fs().lookup(&cx.ctx, cx.file()?, &args.name).await?;
    cx.current = None;
    Ok(Flavors)
}
