//! VERIFY: continues the COMPOUND only if the attributes have the given values (RFC 8881 §18.31). Weir's client also
//! uses VERIFY to send the renameat2(2) flags of the next RENAME.

use crate::attrs::decode_renaming;
use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, args: VERIFY4args) -> Answer<Void> {
    if let Some(renaming) = decode_renaming(&args.obj_attributes) {
        cx.renaming = renaming?;
        return Ok(Void);
    }
    let same = cx.same_attributes(&args.obj_attributes).await?;
    if same { Ok(Void) } else { Err(NFS4ERR_NOT_SAME.into()) }
}
