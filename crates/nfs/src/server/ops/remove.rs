//! REMOVE: removes a directory entry (RFC 8881 §18.25).

use crate::fs::FileSystem;
use crate::server::Ending;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::change_info;
use crate::state::State;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: REMOVE4args,
) -> Answer<REMOVE4resok> {
    let dir = cx.file()?;
    cx.check_grace()?;
    cx.make_way_in(dir).await?;
    let expected = cx.make_way_by_name(dir, &args.target).await?;
    let ending = Ending::new(cx.server);
    let removed = cx.fs().remove(&cx.ctx, dir, &args.target, &|file| ending.may_end(file)).await?;
    drop(ending);
    if cx.state(State::any_whole_delegation) {
        cx.recall_late(removed.id, removed.orphaned, expected).await;
    }
    if removed.orphaned {
        cx.server.orphaned(&cx.ctx, removed.id).await;
    }
    Ok(REMOVE4resok { cinfo: change_info(removed.change) })
}
