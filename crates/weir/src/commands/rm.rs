//! `weir rm`: removes files and trees.

use crate::failure::{Failure, Outcome};
use crate::session::{Connect, for_each, run as with_mounts};
use client::{Mount, Node, Target, in_doubt};
use futures_util::{StreamExt, TryStreamExt};
use std::ffi::OsString;
use types::{FileKind, Status};

/// Maximum number of remove requests in flight.
const AT_ONCE: usize = 16;

/// Remove files and trees
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir rm /notes.txt
  weir rm -r /project
  weir rm -f /may-not-exist")]
pub struct Args {
    /// Files or directories to remove
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Remove directories and their contents
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Runs `weir rm`.
pub fn run(args: Args) -> Outcome {
    let targets = args.connect.targets(&args.paths)?;
    with_mounts(&args.connect, async |mounts| {
        for_each(&targets, async |target| {
            let mount = mounts.get(target).await?;
            remove(&mount, target, &args).await.map_err(|e| e.about(target))
        })
        .await
    })
}

async fn remove(mount: &Mount, target: &Target, args: &Args) -> Result<(), Failure> {
    let (Some(parent), Some(name)) = (target.parent(), target.name()) else {
        return Err(Failure::usage("the root of the file system cannot be removed"));
    };
    let found = async {
        let (dir, _) = mount.resolve(parent.path(), true).await?;
        let (node, attrs) = mount.lookup(&dir, name).await?;
        Ok::<_, client::Error>((dir, node, attrs))
    };
    let (dir, node, attrs) = match found.await {
        Err(e) if args.force && e.is(Status::NoEnt) => return Ok(()),
        other => other?,
    };
    if attrs.kind == FileKind::Directory {
        if !args.recursive {
            return Err(Failure::new("is a directory").next("add -r to remove it and its contents"));
        }
        empty(mount, node.clone()).await?;
    }
    gone(in_doubt::remove(mount, node.id, &dir, name).await)
}

/// Treats the removal of a name as successful if another client has removed the name first.
fn gone(removed: client::Result<()>) -> Result<(), Failure> {
    match removed {
        Err(e) if e.is(Status::NoEnt) => Ok(()),
        other => Ok(other?),
    }
}

/// Removes everything in a directory, level by level: first all files, beginning at the top level, and then all
/// directories, beginning at the lowest level.
async fn empty(mount: &Mount, top: Node) -> Result<(), Failure> {
    let mut levels: Vec<Vec<Below>> = Vec::new();
    let mut dirs = vec![top];
    while !dirs.is_empty() {
        let listed = futures_util::stream::iter(dirs).map(|dir| remove_files(mount, dir)).buffer_unordered(AT_ONCE);
        let below: Vec<Vec<Below>> = listed.try_collect().await?;
        let below: Vec<Below> = below.into_iter().flatten().collect();
        dirs = below.iter().map(|b| b.node.clone()).collect();
        levels.push(below);
    }
    for level in levels.into_iter().rev() {
        let removals =
            level.iter().map(|b| async { gone(in_doubt::remove(mount, b.node.id, &b.parent, &b.name).await) });
        futures_util::stream::iter(removals).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    }
    Ok(())
}

/// A subdirectory of the tree to remove, and its parent directory. The command removes the subdirectory after the
/// entries in it.
struct Below {
    parent: Node,
    name: Vec<u8>,
    node: Node,
}

/// Removes all files in a directory. Returns the subdirectories of the directory.
async fn remove_files(mount: &Mount, dir: Node) -> Result<Vec<Below>, Failure> {
    let mut dirs = Vec::new();
    let mut pages = mount.readdir(&dir);
    while let Some(page) = pages.next_page().await? {
        let (below, files): (Vec<_>, Vec<_>) = page.into_iter().partition(|e| e.attrs.kind == FileKind::Directory);
        dirs.extend(below.into_iter().map(|e| Below { parent: dir.clone(), name: e.name.to_vec(), node: e.node }));
        let removals = files.iter().map(|e| async {
            gone(in_doubt::remove(mount, e.node.id, &dir, &e.name).await)
                .map_err(|f| f.about(crate::show::path(&e.name)))
        });
        futures_util::stream::iter(removals).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    }
    Ok(dirs)
}
