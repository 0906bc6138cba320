//! NVERIFY: continues the COMPOUND only if the attributes differ from the given values (RFC 8881 §18.15).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, args: NVERIFY4args) -> Answer<Void> {
    let same = cx.same_attributes(&args.obj_attributes).await?;
    if same { Err(NFS4ERR_SAME.into()) } else { Ok(Void) }
}
