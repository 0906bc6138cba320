//! SETXATTR: sets an extended attribute (RFC 8276 §8.4.2).

use crate::fs::FileSystem;
use crate::fs::{XattrHow, access};
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::change_info;
use crate::state::delegations::Use;
use types::limits::XATTR_VALUE_MAX;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: SETXATTR4args,
) -> Answer<change_info4> {
    let file = cx.file()?;
    cx.check_access(file, access::XAWRITE).await?;
    if args.sxa_value.len() > XATTR_VALUE_MAX {
        return Err(NFS4ERR_XATTR2BIG.into());
    }
    let how = match args.sxa_option {
        SETXATTR4_EITHER => XattrHow::Either,
        SETXATTR4_CREATE => XattrHow::Create,
        SETXATTR4_REPLACE => XattrHow::Replace,
    };
    cx.make_way(file, Use::Metadata).await?;
    Ok(change_info(cx.fs().setxattr(&cx.ctx, file, &args.sxa_key, args.sxa_value, how).await?))
}
