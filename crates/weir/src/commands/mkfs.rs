//! `weir mkfs`: make the stores of an mgr and of iods.

use crate::failure::{Exit, Failure, Outcome};
use crate::session::runtime;
use crate::show;
use mgr::ClusterFile;
use std::path::{Path, PathBuf};

/// Make the stores of a file system: one for its mgr, one for each iod
///
/// All daemons of a file system share a cluster file: its identity and its secret. A directory that holds anything is
/// refused; nothing is ever formatted over.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir mkfs mgr --dir /srv/weir/mgr --cluster-file /etc/weir/cluster.toml
  scp -p /etc/weir/cluster.toml node1:/etc/weir/
  weir mkfs iod --dir /srv/weir/iod --cluster-file /etc/weir/cluster.toml      (on node1)")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Make the metadata store, and the cluster file when it is not there yet
    Mgr(Place),
    /// Make an object store
    Iod(Iod),
}

#[derive(clap::Args)]
struct Place {
    /// An empty or missing directory on a local disk
    #[arg(long, value_name = "DIRECTORY")]
    dir: PathBuf,
    /// The cluster file of the file system
    #[arg(long, value_name = "FILE")]
    cluster_file: PathBuf,
}

#[derive(clap::Args)]
struct Iod {
    #[command(flatten)]
    place: Place,
    /// Keep checksums of the blocks of all data, verified by every read and by "weir scrub"; cannot be changed later
    #[arg(long)]
    block_checksums: bool,
}

/// Makes it.
pub fn run(args: Args) -> Outcome {
    match args.what {
        What::Mgr(place) => {
            let cluster = match ClusterFile::load(&place.cluster_file) {
                Err(mgr::Error::Missing { .. }) => ClusterFile::create(&place.cluster_file)?,
                other => other?,
            };
            runtime()?.block_on(mgr::format(&place.dir, &cluster))?;
            done("metadata store", &place.dir, cluster.fsid)
        }
        What::Iod(Iod { place, block_checksums }) => {
            let cluster = ClusterFile::load(&place.cluster_file)?;
            let features = iod::Features { block_checksums };
            let iod = iod::Store::format_with(&iod::Local::new(&place.dir), cluster.fsid, features)?;
            done(&format!("object store {iod}"), &place.dir, cluster.fsid)
        }
    }
}

fn done(what: &str, dir: &Path, fsid: types::Fsid) -> Result<Exit, Failure> {
    show::line(&format!("made {what} of file system {fsid} in {}", dir.display()))?;
    Ok(Exit::Done)
}
