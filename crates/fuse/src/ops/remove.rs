//! UNLINK and RMDIR: remove a name. The kernel has checked whether the name stands for a directory.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;
use types::{Attrs, Status};

/// Executes UNLINK.
pub(crate) async fn unlink(fs: &FileSystem, header: &Header, name: &[u8]) -> Answer {
    let (mount, dir) = (fs.by_name(header), fs.node(header)?);
    let _removal = fs.open_unlink_races.removes(header.pid, header.node, name).await;
    let mark = fs.coherence.directory_mark();
    let removed = mount.remove_telling(&dir, name).await;
    ended(fs, header, name, mark, removed).await
}

/// Executes RMDIR. A caller that has the directory open sees an empty directory after the removal.
pub(crate) async fn rmdir(fs: &FileSystem, header: &Header, name: &[u8]) -> Answer {
    let (mount, dir) = (fs.by_name(header), fs.node(header)?);
    let mark = fs.coherence.directory_mark();
    let removed = mount.rmdir_telling(&dir, name).await;
    let removed = removed.map(|(id, after)| {
        fs.nodes.removed_here(id);
        after
    });
    ended(fs, header, name, mark, removed).await
}

/// Completes UNLINK or RMDIR. `removed` has the attributes of the parent directory after the removal.
async fn ended(
    fs: &FileSystem,
    header: &Header,
    name: &[u8],
    mark: u64,
    removed: client::Result<Option<Attrs>>,
) -> Answer {
    if removed.is_ok() {
        fs.nodes.unnamed(header.node, name);
    }
    fs.coherence.directory_changed(header.node, removed.as_ref().ok().copied().flatten(), mark);
    let (mount, dir) = (fs.acting(header), fs.node(header)?);
    match removed {
        // The mgr crashed before it replied, so look up the name to find out whether the removal succeeded.
        Err(error) if error.is_in_doubt() => match mount.lookup(&dir, name).await {
            Err(gone) if gone.is(Status::NoEnt) => Ok(Reply::Done),
            Ok((node, _)) => Ok(client::in_doubt::remove(&mount, node.id, &dir, name).await.map(|()| Reply::Done)?),
            Err(error) => Err(error.into()),
        },
        outcome => Ok(outcome.map(|_| Reply::Done)?),
    }
}
