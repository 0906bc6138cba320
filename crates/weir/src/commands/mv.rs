//! `weir mv`: renames and moves files and directories.

use crate::failure::{Failure, Outcome};
use crate::session::{Connect, for_each, is_directory, run as with_mounts};
use client::{Mount, Target, in_doubt};
use std::ffi::OsString;
use types::Renaming;

/// Rename and move files and directories
///
/// Each move is atomic: other clients see the old name or the new one. A move replaces an existing file, unless an option
/// says otherwise.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir mv /draft.txt /final.txt
  weir mv /a.log /b.log /archive
  weir mv --no-clobber /result.tmp /result      # fails if /result exists
  weir mv --exchange -T /next /current          # both names always exist")]
pub struct Args {
    /// Files or directories to move; with more than one the destination must be a directory
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// The destination: the new name, or an existing directory
    destination: OsString,
    /// Use the destination as the new name even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Fail if the new name exists; atomic
    #[arg(short, long)]
    no_clobber: bool,
    /// Exchange the two names atomically; both must exist
    #[arg(long, conflicts_with = "no_clobber")]
    exchange: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Runs `weir mv`.
pub fn run(args: Args) -> Outcome {
    let how = match (args.no_clobber, args.exchange) {
        (_, true) => Renaming::Exchange,
        (true, false) => Renaming::NoReplace,
        (false, false) => Renaming::Replace,
    };
    let sources = args.connect.targets(&args.sources)?;
    let destination = args.connect.target(&args.destination)?;
    if let Some(other) = sources.iter().find(|source| !source.same_server(&destination)) {
        return Err(Failure::usage(format!("{other} and {destination} are on different file systems"))
            .next("copy it with \"weir cp -r\", then remove it with \"weir rm -r\""));
    }
    with_mounts(&args.connect, async |mounts| {
        let mount = mounts.get(&destination).await?;
        let inside = !args.no_target_directory && is_directory(&mount, &destination).await?;
        if sources.len() > 1 && !inside {
            return Err(Failure::usage(format!("{destination}: not a directory"))
                .next("to move several sources, name an existing directory"));
        }
        for_each(&sources, async |source| {
            rename(&mount, source, &destination, inside, how).await.map_err(|e| e.about(source))
        })
        .await
    })
}

async fn rename(
    mount: &Mount,
    source: &Target,
    destination: &Target,
    inside: bool,
    how: Renaming,
) -> Result<(), Failure> {
    let top = || Failure::usage("the top directory cannot be moved or replaced");
    let (from, from_name) = source.parent().zip(source.name()).ok_or_else(top)?;
    let to = if inside { destination.join(from_name) } else { destination.clone() };
    let (to_dir, to_name) = to.parent().zip(to.name()).ok_or_else(top)?;
    let (from, _) = mount.resolve(from.path(), true).await?;
    let (to_dir, _) = mount.resolve(to_dir.path(), true).await?;
    let (node, _) = mount.lookup(&from, from_name).await?;
    Ok(in_doubt::rename(mount, node.id, (&from, from_name), (&to_dir, to_name), how).await?)
}
