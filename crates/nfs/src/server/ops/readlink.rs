//! READLINK: returns the target of a symbolic link (RFC 8881 §18.24).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use types::FileKind;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, _: Void) -> Answer<READLINK4resok> {
    let file = cx.file()?;
    if cx.fs().getattr(&cx.ctx, file).await?.kind != FileKind::Symlink {
        return Err(NFS4ERR_WRONG_TYPE.into());
    }
    Ok(READLINK4resok { link: cx.fs().readlink(&cx.ctx, file).await? })
}
