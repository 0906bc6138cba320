//! LISTXATTRS: returns as many names of extended attributes as fit into the reply (RFC 8276 §8.4.3).

use crate::fs::FileSystem;
use crate::fs::access;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use wire::nfs4::*;

/// Length in bytes of a LISTXATTRS result without the names: cookie, count and `eof`.
const FRAME: usize = 16;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: LISTXATTRS4args,
) -> Answer<LISTXATTRS4resok> {
    let file = cx.file()?;
    cx.check_access(file, access::XALIST).await?;
    let names = cx.fs().listxattrs(&cx.ctx, file).await?;
    // The cookie is the number of names that the server has already returned. If attributes change between two
    // requests, a name may be missing or appear twice (§8.4.3.3).
    let start = usize::try_from(args.lxa_cookie).unwrap_or(usize::MAX);
    if start > names.len() {
        return Err(NFS4ERR_BAD_COOKIE.into());
    }
    let mut room = (args.lxa_maxcount as usize).min(cx.room).checked_sub(FRAME).ok_or(NFS4ERR_TOOSMALL)?;
    let mut page = Vec::new();
    for name in &names[start..] {
        let Some(left) = room.checked_sub(4 + name.len().next_multiple_of(4)) else { break };
        room = left;
        page.push(name.clone());
    }
    if page.is_empty() && start < names.len() {
        return Err(NFS4ERR_TOOSMALL.into());
    }
    let end = start + page.len();
    Ok(LISTXATTRS4resok { lxr_cookie: end as u64, lxr_names: page, lxr_eof: end == names.len() })
}
