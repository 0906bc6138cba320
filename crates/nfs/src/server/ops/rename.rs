//! RENAME: moves a directory entry from the saved directory to the current directory (RFC 8881 §18.26).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::files::change_info;
use crate::state::State;
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: RENAME4args,
) -> Answer<RENAME4resok> {
    let how = std::mem::take(&mut cx.renaming);
    let (from, to) = (cx.saved_file()?, cx.file()?);
    cx.check_same_export()?;
    cx.check_grace()?;
    cx.make_way_in(from).await?;
    cx.make_way_in(to).await?;
    cx.make_way_by_name(from, &args.oldname).await?;
    let expected = cx.make_way_by_name(to, &args.newname).await?;
    let renamed = cx.fs().rename(&cx.ctx, (from, &args.oldname), (to, &args.newname), how).await?;
    if let Some(replaced) = renamed.replaced {
        if cx.state(State::any_whole_delegation) {
            cx.recall_late(replaced.id, replaced.orphaned, expected).await;
        }
        if replaced.orphaned {
            cx.server.replaced(&cx.ctx, replaced).await;
        }
    }
    Ok(RENAME4resok { source_cinfo: change_info(renamed.from), target_cinfo: change_info(renamed.to) })
}
