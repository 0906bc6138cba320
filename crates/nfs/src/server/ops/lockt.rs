//! LOCKT: tests whether a byte range could be locked (RFC 8881 §18.11).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use crate::server::files::{denied, lock_kind, lock_span};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, args: LOCKT4args) -> Answer<Void> {
    let file = cx.file()?;
    let span = lock_span(args.offset, args.length)?;
    let (kind, _) = lock_kind(args.locktype);
    // During the grace period LOCKT fails, because clients may still reclaim locks that the server does not know.
    cx.check_grace()?;
    cx.regular(file).await?;
    let client = cx.client();
    match cx.state(|state| state.test_lock(client, file, &args.owner.owner, span, kind)) {
        Some(by) => Err(denied(by)),
        None => Ok(Void),
    }
}
