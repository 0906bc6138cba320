//! `weir mkdir`: makes directories.

use crate::failure::{Failure, Outcome};
use crate::modes;
use crate::session::{Connect, for_each, run as with_mounts};
use client::{Mount, Node, Target, in_doubt};
use std::ffi::OsString;
use types::{FileKind, Status};

/// Make directories
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir mkdir /project
  weir mkdir -p /project/runs/today
  weir mkdir -m 1777 /scratch")]
pub struct Args {
    /// The directories to make
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Also make missing parents; ignore directories that exist
    #[arg(short, long)]
    parents: bool,
    /// Permission bits, octal; without it 0777 less the umask
    #[arg(short, long, value_parser = modes::octal)]
    mode: Option<u32>,
    #[command(flatten)]
    connect: Connect,
}

/// Runs `weir mkdir`.
pub fn run(args: Args) -> Outcome {
    let targets = args.connect.targets(&args.paths)?;
    // Read the umask before this process starts threads. umask(2) can read the umask only by setting it for a moment,
    // which would affect the files that other threads create at that moment.
    let plain = modes::without_umask(0o777);
    with_mounts(&args.connect, async |mounts| {
        for_each(&targets, async |target| {
            let mount = mounts.get(target).await?;
            make(&mount, target, &args, plain).await.map_err(|e| e.about(target))
        })
        .await
    })
}

async fn make(mount: &Mount, target: &Target, args: &Args, plain: u32) -> Result<(), Failure> {
    let mode = args.mode.unwrap_or(plain);
    let Some((name, parents)) = target.path().split_last() else {
        return if args.parents { Ok(()) } else { Err(Failure::new("the root of the file system already exists")) };
    };
    if !args.parents {
        let (dir, _) = mount.resolve(parents, true).await?;
        return Ok(in_doubt::make(async || mount.mkdir(&dir, name, mode).await).await.map(drop)?);
    }
    let mut dir = mount.root();
    for (i, component) in parents.iter().enumerate() {
        dir = ensure(mount, &dir, component, &parents[..=i], plain | 0o300).await?;
    }
    ensure(mount, &dir, name, target.path(), mode).await.map(drop)
}

/// Returns the directory `name` in `dir`, and creates the directory if it is missing. `path` is its path from the root.
async fn ensure(mount: &Mount, dir: &Node, name: &[u8], path: &[Vec<u8>], mode: u32) -> Result<Node, Failure> {
    match in_doubt::make(async || mount.mkdir(dir, name, mode).await).await {
        Ok((node, _)) => Ok(node),
        Err(e) if e.is(Status::Exist) => {
            let (node, attrs) = mount.resolve(path, true).await?;
            match attrs.kind {
                FileKind::Directory => Ok(node),
                _ => Err(Failure::new(format!("{} is not a directory", crate::show::path(name)))),
            }
        }
        Err(made) => match mount.resolve(path, true).await {
            // The request to make the directory failed. If the directory exists, the command succeeds, even if the user
            // has no write permission in `dir`.
            Ok((node, attrs)) if attrs.kind == FileKind::Directory => Ok(node),
            _ => Err(made.into()),
        },
    }
}
