//! UNLINK and RMDIR: taking a name away. The kernel has looked which of the two it is.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;
use types::Status;

/// See the head of this file.
pub(crate) async fn remove(fs: &FileSystem, header: &Header, name: &[u8]) -> Answer {
    let (mount, dir) = (fs.acting(header), fs.node(header)?);
    let unseen = fs.nodes.unseen();
    let removed = mount.remove_telling(&dir, name).await;
    fs.changed_in(header, removed.as_ref().ok().copied().flatten(), unseen);
    match removed {
        // The mgr died over the answer: the name tells how it ended.
        Err(error) if error.is_in_doubt() => match mount.lookup(&dir, name).await {
            Err(gone) if gone.is(Status::NoEnt) => Ok(Reply::Done),
            Ok((node, _)) => Ok(client::doubt::remove(&mount, node.id, &dir, name).await.map(|()| Reply::Done)?),
            Err(error) => Err(error.into()),
        },
        outcome => Ok(outcome.map(|_| Reply::Done)?),
    }
}
