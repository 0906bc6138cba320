//! `weir ln`: makes hard and symbolic links.

use crate::failure::{Exit, Failure, Outcome};
use crate::session::{Connect, is_directory, run as with_mounts};
use client::{Target, in_doubt};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Make hard and symbolic links
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir ln /data/input /data/same-file     a second name of the same file
  weir ln -s ../shared/input /data/link   a symlink with exactly this text")]
pub struct Args {
    /// The file that gets another name; with -s, the text of the symlink
    target: OsString,
    /// The new name, or an existing directory for it
    name: OsString,
    /// Make a symbolic link
    #[arg(short, long)]
    symbolic: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Runs `weir ln`.
pub fn run(args: Args) -> Outcome {
    let place = args.connect.target(&args.name)?;
    let file = match args.symbolic {
        true => None,
        false => Some(args.connect.target(&args.target)?),
    };
    if let Some(file) = file.as_ref().filter(|file| !file.same_server(&place)) {
        return Err(Failure::usage(format!("{file} and {place} are on different file systems"))
            .next("a hard link cannot lead to another file system; make a symlink with -s"));
    }
    with_mounts(&args.connect, async |mounts| {
        let mount = mounts.get(&place).await?;
        let last = match &file {
            Some(file) => file.name(),
            None => args.target.as_bytes().rsplit(|b| *b == b'/').find(|part| !part.is_empty()),
        };
        let place: Target = match (is_directory(&mount, &place).await?, last) {
            (true, Some(last)) => place.join(last),
            _ => place.clone(),
        };
        let (Some(parent), Some(name)) = (place.parent(), place.name()) else {
            return Err(Failure::usage("a link cannot replace the root of the file system"));
        };
        let (dir, _) = mount.resolve(parent.path(), true).await.map_err(|e| e.context(&parent))?;
        match &file {
            None => {
                let made = in_doubt::make(async || mount.symlink(&dir, name, args.target.as_bytes()).await).await;
                made.map_err(|e| e.context(&place))?;
            }
            Some(file) => {
                let (node, _) = mount.resolve(file.path(), false).await.map_err(|e| e.context(file))?;
                in_doubt::link(&mount, &node, &dir, name).await.map_err(|e| e.context(&place))?;
            }
        }
        Ok(Exit::Done)
    })
}
