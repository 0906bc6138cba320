//! Retries of requests in doubt: the mgr restarted and lost its reply cache, so the client cannot know whether the mgr
//! executed a request.
//!
//! After a lost connection the client sends the request again, and the reply cache keeps the mgr from executing it
//! twice. After a restart of the mgr, a non-idempotent request fails in doubt ([`crate::Error::is_in_doubt`]). The
//! functions of this module then look up the names, and repeat the request if the mgr did not execute it. They report
//! success if the names are as requested, even if another client made the same change.

use crate::{File, Mount, Node, Result};
use types::{Attrs, FileId, Renaming, SetAttrs, Status};

/// Maximum number of attempts that may end in doubt before a function of this module returns the error.
const TRIES: usize = 10;

/// Creates a directory, symbolic link or special file with the request that `attempt` sends. Sends the request again
/// while its outcome is in doubt.
///
/// If the first request did create the file, [`Mount`] recognizes the file as its own when it sends the request again,
/// and reports success. So if the repeated request fails because the name exists, another client created the name.
pub async fn make<T, F: Future<Output = Result<T>>>(mut attempt: impl FnMut() -> F) -> Result<T> {
    for _ in 1..TRIES {
        match attempt().await {
            Err(error) if error.is_in_doubt() => {}
            other => return other,
        }
    }
    attempt().await
}

/// Looks up `name` in `dir`, without checking the path expectations for `dir`. Returns `None` if the name does not
/// exist.
async fn look(mount: &Mount, dir: &Node, name: &[u8]) -> Result<Option<(Node, Attrs)>> {
    match mount.expecting(Vec::new()).lookup(dir, name).await {
        Err(error) if error.is(Status::NoEnt) => Ok(None),
        other => other.map(Some),
    }
}

/// Creates a hard link like [`Mount::link`], even if the mgr restarts during the call.
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

/// Renames the file `id` like [`Mount::rename_as`], even if the mgr restarts during the call.
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

/// Removes a name of the file `id` like [`Mount::remove`], even if the mgr restarts during the call. If another file
/// gets the name after the first attempt, does not remove that file.
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

/// Closes a file like [`File::finish`], even if the mgr restarts during the call. The file was created under the name
/// `temporary`, which no other client uses, and is renamed to `name`.
///
/// The bytes are durable on the iods before the close sends anything to the mgr. So only the size, attributes and name
/// can be lost.
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
    // Set the attributes again even if the mgr executed the whole close: after the restart of the mgr, the client may
    // have reported its writes again, and such a report changes the modification time.
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
