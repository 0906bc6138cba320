//! `weir mkfs`: makes the stores of an mgr and of iods.

use crate::config_files;
use crate::failure::{Exit, Failure, Outcome};
use crate::session::runtime;
use crate::show;
use mgr::ClusterFile;
use std::path::{Path, PathBuf};

/// Make the stores of a file system: one for its mgr, one for each iod
///
/// All daemons of a file system share a cluster file, which contains the identity and the secret key of the file
/// system. The command refuses a directory that is not empty, and never overwrites a store.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  mkdir -p /srv/weir /etc/weir
  weir mkfs mgr --dir /srv/weir/mgr --cluster-file /etc/weir/cluster.toml
  weir mkfs mgr --dir /srv/weir/mgr --cluster-file /etc/weir/cluster.toml --print-config > /etc/weir/mgr.toml
  scp -p /etc/weir/cluster.toml node1:/etc/weir/
  weir mkfs iod --dir /srv/weir/iod --cluster-file /etc/weir/cluster.toml      (on node1)
  weir mkfs iod --dir /srv/new/iod --cluster-file /etc/weir/cluster.toml --replace 8b4eba1d-bb31-4f67-8135-25dc27c62821")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Make the metadata store and the cluster file; neither may exist yet
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
    /// Only print a complete configuration file for the daemon, with these paths
    #[arg(long)]
    print_config: bool,
}

#[derive(clap::Args)]
struct Iod {
    #[command(flatten)]
    place: Place,
    /// Keep checksums of all data blocks, which reads and "weir scrub" verify; cannot be changed later
    #[arg(long)]
    block_checksums: bool,
    /// Make the store of an iod that replaces the iod with this identity, whose disk is lost; "weir status" shows
    /// identities. The mgr then rebuilds the lost copies of files with two copies. The lost iod must never run again
    #[arg(long, value_name = "IOD")]
    replace: Option<types::IodId>,
}

/// Runs `weir mkfs`.
pub fn run(args: Args) -> Outcome {
    match args.what {
        What::Mgr(place) if place.print_config => {
            show::raw(config_files::mgr(&place.dir, &place.cluster_file).as_bytes())?;
            Ok(Exit::Done)
        }
        What::Iod(Iod { place, .. }) if place.print_config => {
            show::raw(config_files::iod(&place.dir, &place.cluster_file).as_bytes())?;
            Ok(Exit::Done)
        }
        What::Mgr(place) => {
            must_be_empty(&place.dir)?;
            let mut cluster = match ClusterFile::load(&place.cluster_file) {
                Err(mgr::Error::Missing { .. }) => ClusterFile::create(&place.cluster_file)?,
                other => return Err(second(&place.cluster_file, &other?)),
            };
            let made = runtime()?.block_on(mgr::format(&place.dir, &cluster));
            // The metadata store could not be made. Remove the cluster file, because the next `weir mkfs` of this
            // metadata store fails if the cluster file exists.
            let store = made.inspect_err(|_| drop(std::fs::remove_file(&place.cluster_file)))?;
            cluster.name_store(&place.cluster_file, store)?;
            done("metadata store", &place.dir, cluster.fsid)
        }
        What::Iod(Iod { place, block_checksums, replace }) => {
            let cluster = ClusterFile::load(&place.cluster_file)?;
            let (features, disk) = (iod::Features { block_checksums }, iod::Local::new(&place.dir));
            let iod = match replace {
                Some(lost) => iod::Store::format_as(&disk, cluster.fsid, features, lost).map(|()| lost)?,
                None => iod::Store::format_with(&disk, cluster.fsid, features)?,
            };
            done(&format!("object store {iod}"), &place.dir, cluster.fsid)
        }
    }
}

/// Returns the failure for an attempt to make a second metadata store of a file system. Two mgrs with separate stores
/// would assign the same inode numbers.
fn second(path: &Path, cluster: &ClusterFile) -> Failure {
    let has = match cluster.store {
        Some(store) => format!("its file system already has the metadata store {store}"),
        None => "its file system may already have a metadata store".to_owned(),
    };
    Failure::new(format!("the cluster file {} exists: {has}", path.display())).next(
        "a second one would destroy its files, and nothing was changed. To start the mgr on that store, run \"weir mgr\"; to \
         replace a lost one, run \"weir restore\"; for another file system with iods of its own, name a --cluster-file that does \
         not exist yet",
    )
}

/// Fails if a directory is not empty. Ignores `lost+found`, because the root of a new ext4 file system has one.
fn must_be_empty(dir: &Path) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::from(e).about(dir.display());
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        if name != "lost+found" {
            return Err(Failure::new(format!("{} contains {}", dir.display(), name.display()))
                .next("choose an empty or missing directory with --dir; mkfs never overwrites a store"));
        }
    }
    Ok(())
}

fn done(what: &str, dir: &Path, fsid: types::Fsid) -> Result<Exit, Failure> {
    show::line(&format!("made {what} of file system {fsid} in {}", dir.display()))?;
    Ok(Exit::Done)
}
