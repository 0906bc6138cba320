//! `weir restore`: makes a metadata store from a dump.

use crate::dumps::tell;
use crate::failure::{Exit, Outcome};
use crate::session::runtime;
use crate::show;
use mgr::ClusterFile;
use std::path::PathBuf;

/// Make a metadata store from a dump
///
/// The command verifies the whole dump before it makes anything. The directory must be missing or empty. The new store
/// has the content that the old store had at the moment of the dump.
#[derive(clap::Args)]
#[command(
    after_help = "If the file system was used after the dump, the store is an older copy of it. An mgr that starts on it ends with an
error and changes nothing, so that it does not overwrite newer objects on the iods. Then start the mgr once with
--recover-old-store, and run \"weir fsck\", which lists what changed after the dump.

Examples:
  weir restore /backup/weir.dump --dir /srv/weir/mgr --cluster-file /etc/weir/cluster.toml
  weir mgr --config /etc/weir/mgr.toml --recover-old-store
  weir fsck"
)]
pub struct Args {
    /// The file with the dump
    file: PathBuf,
    /// The directory of the metadata store: missing or empty
    #[arg(long, value_name = "DIRECTORY")]
    dir: PathBuf,
    /// The cluster file of the file system
    #[arg(long, value_name = "FILE")]
    cluster_file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `weir restore`.
pub fn run(args: Args) -> Outcome {
    let cluster = ClusterFile::load(&args.cluster_file)?;
    let runtime = runtime()?;
    let dumped = runtime.block_on(mgr::restore(&args.file, &args.dir, &cluster, &args.cluster_file))?;
    tell("restored", &args.file, &dumped, Some(&args.dir), args.json)?;
    if !args.json {
        let hint = "if the file system was used after the dump, start the mgr once with --recover-old-store";
        show::line(&format!("made a metadata store in {}; {hint}", args.dir.display()))?;
    }
    Ok(Exit::Done)
}
