//! RENAME: moving a name.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;
use types::{FileKind, Status};

const EEXIST: Errno = Errno(17);
const EINVAL: Errno = Errno(22);
/// `RENAME_NOREPLACE` of renameat2(2).
const NOREPLACE: u32 = 1;

/// See the head of this file. Of the flags of renameat2(2) there is RENAME_NOREPLACE, and that for all but directories: NFS
/// has no such operation, but a link is never made over another name.
pub(crate) async fn rename(
    fs: &FileSystem,
    header: &Header,
    newdir: u64,
    flags: u32,
    name: &[u8],
    newname: &[u8],
) -> Answer {
    let (mount, from, to) = (fs.acting(header), fs.node(header)?, fs.nodes.get(newdir)?);
    let _changing = (fs.nodes.changing(header.node), fs.nodes.changing(newdir));
    match flags {
        0 => {}
        NOREPLACE => {
            let (node, attrs) = mount.lookup(&from, name).await?;
            match mount.lookup(&to, newname).await {
                Ok(_) => return Err(EEXIST),
                Err(error) if error.is(Status::NoEnt) => {}
                Err(error) => return Err(error.into()),
            }
            if attrs.kind == FileKind::Directory {
                return Err(EINVAL);
            }
            client::doubt::link(&mount, &node, &to, newname).await?;
            client::doubt::remove(&mount, node.id, &from, name).await?;
            return Ok(Reply::Done);
        }
        _ => return Err(EINVAL),
    }
    match mount.rename(&from, name, &to, newname).await {
        Err(error) if error.is_in_doubt() => match mount.lookup(&from, name).await {
            Ok((node, _)) => {
                client::doubt::rename(&mount, node.id, (&from, name), (&to, newname)).await?;
                Ok(Reply::Done)
            }
            // Nobody else is known to have moved it.
            Err(gone) if gone.is(Status::NoEnt) => Ok(Reply::Done),
            Err(_) => Err(error.into()),
        },
        outcome => Ok(outcome.map(|()| Reply::Done)?),
    }
}
