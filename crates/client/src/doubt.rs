//! Requests whose answer was lost together with the mgr: looked after until it is known how they ended.
//!
//! An answer that only its connection lost is asked for again, and the mgr sees to it that nothing is done twice. An mgr
//! that restarts has forgotten what it answered: what must not be done twice then ends in doubt
//! ([`crate::Error::is_in_doubt`]), and only the file system itself can tell. The functions here look and, where nothing was
//! done, try again. They call something done when the names are as they were wanted: whether this client or another one
//! that wanted exactly the same was first, nobody can tell any more.

use crate::{File, Mount, Node, Result};
use types::{Attrs, FileId, Renaming, SetAttrs, Status};

/// How often one request may fall into doubt before that is told.
const TRIES: usize = 10;

/// Makes something by `attempt` (a directory, symbolic link or special file): one that was made in doubt is known by
/// [`Mount`] itself, so that one that is in doubt here was not made, and a name that is taken is taken by somebody else.
pub async fn make<T, F: Future<Output = Result<T>>>(mut attempt: impl FnMut() -> F) -> Result<T> {
    for _ in 1..TRIES {
        match attempt().await {
            Err(error) if error.is_in_doubt() => {}
            other => return other,
        }
    }
    attempt().await
}

/// What `name` in `dir` is now, if it is anything, whatever paths lead to `dir` by now.
async fn look(mount: &Mount, dir: &Node, name: &[u8]) -> Result<Option<(Node, Attrs)>> {
    match mount.expecting(Vec::new()).lookup(dir, name).await {
        Err(error) if error.is(Status::NoEnt) => Ok(None),
        other => other.map(Some),
    }
}

/// As [`Mount::link`].
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

/// As [`Mount::rename_as`], of the file `id`.
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

/// As [`Mount::remove`], of a name that the file `id` has. Something else that stands there afterwards is left alone.
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

/// As [`File::finish`] of a file that was made under `temporary`, which nobody else uses, and gets the name `name`.
///
/// Its bytes are durable on the iods before a close asks the mgr for anything, so that only length, attributes and name
/// can be missing.
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
    // Also where all was done: what was written may have been reported once more to the mgr that came after, and that sets
    // the time.
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
