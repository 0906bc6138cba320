//! Requests whose answer was lost with the mgr: each is looked after until it is known to be done, once.
//!
//! A copy works under temporary names that nobody else uses, so what is found under them is its own.

use client::{Error, Mount, Node, Result};
use types::{SetAttrs, Status};

/// How often one request may fall into doubt before the copy gives the file up.
const TRIES: usize = 10;

/// Makes `name` by `attempt`, which answers what it made; `None` when somebody else has the name.
pub async fn make(
    mount: &Mount,
    dir: &Node,
    name: &[u8],
    mut attempt: impl AsyncFnMut() -> Result<Node>,
) -> Result<Option<Node>> {
    let mut in_doubt = false;
    for _ in 1..TRIES {
        match attempt().await {
            Err(e) if e.is_in_doubt() => in_doubt = true,
            Err(e) if e.is(Status::Exist) && in_doubt => {
                return mount.lookup(dir, name).await.map(|(node, _)| Some(node));
            }
            Err(e) if e.is(Status::Exist) => return Ok(None),
            other => return other.map(Some),
        }
    }
    attempt().await.map(Some)
}

/// Renames a temporary name inside one directory.
pub async fn rename(mount: &Mount, dir: &Node, from: &[u8], to: &[u8]) -> Result<()> {
    let mut in_doubt = false;
    for _ in 1..TRIES {
        match mount.rename(dir, from, dir, to).await {
            Err(e) if e.is_in_doubt() => in_doubt = true,
            // Nobody else takes the temporary name away: it has become the other one.
            Err(e) if e.is(Status::NoEnt) && in_doubt => return Ok(()),
            other => return other,
        }
    }
    mount.rename(dir, from, dir, to).await
}

/// Removes a name; one that is not there is no failure.
pub async fn remove(mount: &Mount, dir: &Node, name: &[u8]) -> Result<()> {
    for _ in 1..TRIES {
        match mount.remove(dir, name).await {
            Err(e) if e.is_in_doubt() => {}
            Err(e) if e.is(Status::NoEnt) => return Ok(()),
            other => return other,
        }
    }
    mount.remove(dir, name).await
}

/// Ends what a close in doubt left open: `changes`, which hold the length, and the final name. The bytes are durable on
/// the iods before a close asks the mgr for anything.
pub async fn finish(mount: &Mount, file: &Node, changes: &SetAttrs, dir: &Node, names: [&[u8]; 2]) -> Result<()> {
    let [temporary, name] = names;
    let found = match mount.lookup(dir, temporary).await {
        Ok((found, _)) => found,
        // Length and attributes come before the name in that close: with the name all is done.
        Err(e) if e.is(Status::NoEnt) => return Ok(()),
        Err(e) => return Err(e),
    };
    if found.id != file.id {
        return Err(Error::usage("another file has the temporary name of this copy"));
    }
    mount.setattr(file, changes).await?;
    rename(mount, dir, temporary, name).await
}
