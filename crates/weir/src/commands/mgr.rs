//! `weir mgr`: runs a metadata server.

use crate::daemon;
use crate::deprecated;
use crate::failure::{Exit, Failure, Outcome};
use crate::session::runtime;
use crate::stop::Stop;
use mgr::{Config, Export, KernelLayout, Mgr};
use std::path::PathBuf;

/// Run a metadata server
///
/// Settings come from a TOML file, from options, or from both. Options override the file. The iods must be running, or
/// start soon.
#[derive(clap::Args)]
#[command(
    after_help = "Configuration file (TOML). The keys are the names of the options; the values shown are defaults:
  dir = \"/srv/weir/mgr\"                       made by \"weir mkfs mgr\"
  cluster_file = \"/etc/weir/cluster.toml\"
  iods = [\"node1:2050\", \"node2:2050\"]
  listen = [\"0.0.0.0:2049\"]
  lease_secs = 90
  capability_secs = 600
  data_handle_secs = 21600
  stripe_unit = \"1M\"
  stripe_count = 0
  mirrors = 1
  kernel_layout = \"files\"
  iod_wait_secs = 6
  mgr_gather_delay_ms = 2
  gather_memory = \"64M\"
  inline_max = \"4K\"
  mds_threshold = \"1M\"                         default: the stripe unit of each file
  policy = \"write_threshold=64K\"            policy of clients; default: none

  [[export]]                                  may be repeated; default: the whole file system, to all clients
  path = \"/home\"
  clients = [\"10.1.0.0/16\", \"fd00::7\"]     default: all clients
  privileged_ports = true                     other machines must use ports below 1024, which only their root can
  access = \"rw\"                             or \"ro\"
  squash = \"root\"                           \"none\" (the default), \"root\", \"all\": which users become anon_uid and anon_gid
  anon_uid = 65534
  anon_gid = 65534
  kernel_layout, stripe_unit, stripe_count, mirrors, mds_threshold, policy: as above, for this export

Examples:
  weir mgr --config /etc/weir/mgr.toml
  weir mgr --dir /srv/weir/mgr --cluster-file /etc/weir/cluster.toml --iod node1:2050 --iod node2:2050"
)]
pub struct Args {
    /// The configuration file, in TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory of the metadata store
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// The cluster file of the file system
    #[arg(long, value_name = "FILE")]
    cluster_file: Option<PathBuf>,
    /// Address to listen on, host:port; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// Address of an iod, host:port; once for each iod
    #[arg(long = "iod", value_name = "ADDRESS")]
    iods: Vec<String>,
    /// Duration of a lease: how long the mgr keeps the state of a client that sends no request
    #[arg(long, value_name = "SECONDS")]
    lease_secs: Option<u32>,
    /// Lifetime of a capability (the right to use a file's objects on the iods); clients renew it in time
    #[arg(long, value_name = "SECONDS")]
    capability_secs: Option<u32>,
    /// Lifetime of the filehandles that kernel NFS clients use at the iods
    #[arg(long, value_name = "SECONDS")]
    data_handle_secs: Option<u32>,
    /// Stripe unit of new files, unless a directory sets it
    #[arg(long, value_name = "SIZE")]
    stripe_unit: Option<String>,
    /// Number of iods for each new file, unless a directory sets it; 0: all
    #[arg(long, value_name = "COUNT")]
    stripe_count: Option<u32>,
    /// Number of copies of new files, 1 or 2, unless a directory sets it
    #[arg(long, value_name = "COUNT")]
    mirrors: Option<u32>,
    /// What kernel NFS clients get: "files" (direct path to the iods, pNFS), "flexfiles" (direct path, each file on one
    /// iod), "flexfiles-striped" (on several; Linux 6.18 and later), "none" (all data through the mgr)
    #[arg(long, value_name = "KIND")]
    kernel_layout: Option<KernelLayout>,
    /// How long kernel NFS clients wait for an unreachable iod before its data return EIO
    #[arg(long, value_name = "SECONDS")]
    iod_wait_secs: Option<u32>,
    /// How long the mgr holds small writes, to join them before it sends them to the iods; 0: not at all
    #[arg(long, value_name = "MILLISECONDS")]
    mgr_gather_delay_ms: Option<u32>,
    /// Memory for the small writes that the mgr holds; when it is full, the mgr sends writes to the iods at once
    #[arg(long, value_name = "SIZE")]
    gather_memory: Option<String>,
    /// Store files of up to this size with their metadata, without an iod; 0: none
    #[arg(long, value_name = "SIZE")]
    inline_max: Option<String>,
    /// Kernel NFS clients send requests shorter than this through the mgr; 0: none [default: the file's stripe unit]
    #[arg(long, value_name = "SIZE")]
    mds_threshold: Option<String>,
    /// Policy of Weir's clients where no directory sets it, for example "write_threshold=32K,access=page". "weir policy
    /// --help" lists the parts of a policy
    #[arg(long, value_name = "PART=VALUE,...")]
    policy: Option<String>,
    /// A directory that clients may mount, and the conditions of access, for example
    /// "/home,clients=10.1.0.0/16+fd00::7,access=ro,squash=root"; may be repeated [default: /, for all clients]
    #[arg(long = "export", value_name = "PATH[,KEY=VALUE...]", value_parser = deprecated::export)]
    exports: Vec<Export>,
    /// Accept an older copy of the metadata store, for example a restored backup, for this one start. All iods must run.
    /// The mgr skips all object numbers that were used after the copy. Then run "weir fsck", which lists the differences
    #[arg(long)]
    recover_old_store: bool,
    #[command(flatten)]
    ready: daemon::Ready,
}

/// Runs the mgr until SIGINT or SIGTERM.
pub fn run(args: Args) -> Outcome {
    let ready = args.ready.clone();
    let config = config(args)?;
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        let stop = Stop::listen_as_daemon("mgr")?;
        let mgr = Mgr::start(config).await?;
        let addresses = mgr.addresses();
        ready.tell(&daemon::ReadyLine {
            daemon: "mgr",
            url: addresses.first().map(|address| format!("weir://{address}/")),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            dir: None,
            iods: None,
        })?;
        daemon::until_stopped(&stop, &mgr).await;
        mgr.stop().await;
        daemon::stopped("mgr");
        Ok(Exit::Done)
    });
    runtime.shutdown_background();
    outcome
}

fn config(args: Args) -> Result<Config, Failure> {
    let mut config = match &args.config {
        Some(path) => Config::load(path).map_err(|e| match e {
            mgr::Error::BadFile { .. } => daemon::bad_config(e),
            other => other.into(),
        })?,
        None => {
            let (Some(dir), Some(file)) = (&args.dir, &args.cluster_file) else {
                return Err(Failure::usage("the metadata store and the cluster file are not given")
                    .next("give --config FILE, or --dir, --cluster-file and --iod"));
            };
            Config::new(dir, file, Vec::new())
        }
    };
    if let Some(dir) = args.dir {
        config.dir = dir;
    }
    if let Some(file) = args.cluster_file {
        config.cluster_file = file;
    }
    if !args.listen.is_empty() {
        config.listen = args.listen;
    }
    if !args.iods.is_empty() {
        config.iods = args.iods;
    }
    config.lease_secs = args.lease_secs.unwrap_or(config.lease_secs);
    config.iod_wait_secs = args.iod_wait_secs.unwrap_or(config.iod_wait_secs);
    config.mgr_gather_delay_ms = args.mgr_gather_delay_ms.unwrap_or(config.mgr_gather_delay_ms);
    config.inline_max = args.inline_max.unwrap_or(config.inline_max);
    config.gather_memory = args.gather_memory.unwrap_or(config.gather_memory);
    config.capability_secs = args.capability_secs.unwrap_or(config.capability_secs);
    config.data_handle_secs = args.data_handle_secs.unwrap_or(config.data_handle_secs);
    config.stripe_unit = args.stripe_unit.unwrap_or(config.stripe_unit);
    config.stripe_count = args.stripe_count.unwrap_or(config.stripe_count);
    config.mirrors = args.mirrors.unwrap_or(config.mirrors);
    config.kernel_layout = args.kernel_layout.unwrap_or(config.kernel_layout);
    if !args.exports.is_empty() {
        config.exports = args.exports;
    }
    config.policy = args.policy.or(config.policy);
    config.mds_threshold = args.mds_threshold.or(config.mds_threshold);
    config.recover_old_store = args.recover_old_store;
    Ok(config)
}
