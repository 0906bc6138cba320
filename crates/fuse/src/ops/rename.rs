//! RENAME: moves a name, or exchanges two names.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;
use types::{Attrs, FileKind, Renaming, Status};

const EINVAL: Errno = Errno(22);

/// Executes RENAME. Supports the flags RENAME_NOREPLACE and RENAME_EXCHANGE of renameat2(2). If the mgr does not
/// support them, the reply is EINVAL, as the kernel returns for file systems without these flags.
pub(crate) async fn rename(
    fs: &FileSystem,
    header: &Header,
    newdir: u64,
    flags: u32,
    name: &[u8],
    newname: &[u8],
) -> Answer {
    let how = Renaming::from_flags(flags).ok_or(EINVAL)?;
    let (mount, from, to) = (fs.by_names(header, Some(newdir)), fs.node(header)?, fs.nodes.get(newdir)?);
    let _removal = match how {
        Renaming::Replace => Some(fs.open_unlink_races.removes(header.pid, newdir, newname).await),
        Renaming::NoReplace | Renaming::Exchange => None,
    };
    let _changing = (fs.coherence.directory_changes(header.node), fs.coherence.directory_changes(newdir));
    let (from, to) = ((&from, name), (&to, newname));
    // A caller that has a replaced directory open sees an empty directory after the rename, as after RMDIR. So find out
    // whether the rename replaces a directory.
    let replaces = how == Renaming::Replace && fs.opens.are_there_dirs();
    let replaced = if replaces { mount.lookup(to.0, newname).await.ok() } else { None };
    let renamed = match how {
        // Both names exist before and after an exchange, so their existence does not show whether the mgr executed a
        // request in doubt. So look up before the request which file the old name stands for.
        Renaming::Exchange => {
            let moved = mount.lookup(from.0, name).await?.0.id;
            client::in_doubt::rename(&mount, moved, from, to, how).await
        }
        Renaming::Replace | Renaming::NoReplace => match mount.rename_as(from, to, how).await {
            Err(error) if error.is_in_doubt() => match mount.lookup(from.0, name).await {
                Ok((node, _)) => client::in_doubt::rename(&mount, node.id, from, to, how).await,
                // The old name no longer exists, so assume that the mgr executed this rename, not that another client
                // removed the name.
                Err(gone) if gone.is(Status::NoEnt) => Ok(()),
                Err(_) => Err(error),
            },
            outcome => outcome,
        },
    };
    if let (Ok(()), Some((node, Attrs { kind: FileKind::Directory, .. }))) = (&renamed, replaced) {
        fs.nodes.removed_here(node.id);
    }
    if renamed.is_ok() {
        fs.nodes.renamed((header.node, name), (newdir, newname), how);
    }
    match renamed {
        Err(error) if error.is(Status::AttrNotSupp) => Err(EINVAL),
        outcome => Ok(outcome.map(|()| Reply::Done)?),
    }
}
