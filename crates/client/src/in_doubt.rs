//! Retries of requests that end in doubt: a restarted mgr has lost the answer, and only the file system shows whether
//! it executed them.
//!
//! If only the connection lost an answer, the client asks again, and the mgr executes nothing twice. A restarted mgr
//! has forgotten its answers. A request that must not be repeated then ends in doubt ([`crate::Error::is_in_doubt`]).
//! The functions here look at the names and try again if nothing was done. They report success if the names are as
//! requested. Whether this client or another one with the same request was first cannot be known any more.

use crate::{File, Mount, Node, Result};
use types::{Attrs, FileId, Renaming, SetAttrs, Status};

/// How often one request may end in doubt before the error is returned.
const TRIES: usize = 10;

/// Creates a directory, symbolic link or special file with `attempt`, which is repeated while it ends in doubt.
/// [`Mount`] recognizes a file that its own lost request created, and reports success. So an attempt that ends in doubt
/// created nothing, and a name that exists belongs to another client.
pub async fn make<T, F: Future<Output = Result<T>>>(mut attempt: impl FnMut() -> F) -> Result<T> {
    for _ in 1..TRIES {
        match attempt().await {
            Err(error) if error.is_in_doubt() => {}
            other => return other,
        }
    }
    attempt().await
}

/// Looks up `name` in `dir`, without expectations about the path of `dir`; `None` if the name does not exist.
async fn look(mount: &Mount, dir: &Node, name: &[u8]) -> Result<Option<(Node, Attrs)>> {
    match mount.expecting(Vec::new()).lookup(dir, name).await {
        Err(error) if error.is(Status::NoEnt) => Ok(None),
        other => other.map(Some),
    }
}

/// Links like [`Mount::link`].
pub async fn link(mount: &Mount, node: &Node, dir: &Node, name: &[u8]) -> Result<Attrs> {
    for _ in 1..TRIES {
        match mount.link(node, dir, name).await {
            Err(error) if error.is_in_doubt() => match look(mount, dir, name).await? {
                Some((found, attrs)) if found.id == node.id => return Ok(attrs),
                _ => {}
            },
            other => return other,
        }
    }
    mount.link(node, dir, name).await
}

/// Renames the file `id` like [`Mount::rename_as`].
pub async fn rename(mount: &Mount, id: FileId, from: (&Node, &[u8]), to: (&Node, &[u8]), how: Renaming) -> Result<()> {
    for _ in 1..TRIES {
        match mount.rename_as(from, to, how).await {
            Err(error) if error.is_in_doubt() => {
                if look(mount, from.0, from.1).await?.is_some_and(|(found, _)| found.id == id) {
                    continue;
                }
                let moved = look(mount, to.0, to.1).await?.is_some_and(|(found, _)| found.id == id);
                return if moved { Ok(()) } else { Err(error) };
            }
            other => return other,
        }
    }
    mount.rename_as(from, to, how).await
}

/// Removes a name of the file `id` like [`Mount::remove`]. Another file under this name afterwards is left alone.
pub async fn remove(mount: &Mount, id: FileId, dir: &Node, name: &[u8]) -> Result<()> {
    for _ in 1..TRIES {
        match mount.remove(dir, name).await {
            Err(error) if error.is_in_doubt() => {
                if look(mount, dir, name).await?.is_none_or(|(found, _)| found.id != id) {
                    return Ok(());
                }
            }
            other => return other,
        }
    }
    mount.remove(dir, name).await
}

/// Closes a file like [`File::finish`]. The file was created as `temporary`, which no other client uses, and is renamed
/// to `name`.
///
/// Its bytes are durable on the iods before the close sends anything to the mgr, so only size, attributes and name can
/// be missing.
pub async fn finish(
    mount: &Mount,
    file: File,
    changes: SetAttrs,
    dir: &Node,
    [temporary, name]: [&[u8]; 2],
) -> Result<Attrs> {
    let (node, written) = (file.node(), file.size());
    let error = match file.finish(changes, Some((dir, name))).await {
        Err(error) if error.is_in_doubt() => error,
        other => return other,
    };
    // Set the attributes even if the mgr executed the whole request: the client may have reported its writes again to
    // the restarted mgr, and such a report sets the modification time.
    let changes = SetAttrs { size: changes.size.or(Some(written)), ..changes };
    if look(mount, dir, temporary).await?.is_some_and(|(found, _)| found.id == node.id) {
        mount.setattr(&node, &changes).await?;
        rename(mount, node.id, (dir, temporary), (dir, name), Renaming::Replace).await?;
    }
    match look(mount, dir, name).await? {
        Some((found, _)) if found.id == node.id => mount.setattr(&node, &changes).await,
        _ => Err(error),
    }
}
