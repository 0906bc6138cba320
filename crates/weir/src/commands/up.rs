//! `weir up`: runs a whole cluster in one process, for trials, tests and single machines.

use crate::cluster::{self, Cluster};
use crate::daemon::{self, Ready, ReadyLine};
use crate::failure::{Exit, Failure, Outcome};
use crate::identity::Identity;
use crate::mounted::{MountOptions, Mounting, must_be_free};
use crate::session::{environment, runtime};
use crate::show;
use crate::stop::Stop;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use std::io::{ErrorKind, IsTerminal};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between two updates of the status line.
const TICK: Duration = Duration::from_secs(1);

/// Run a local cluster in the foreground: one mgr and some iods
///
/// The first start in a directory makes the file system; later starts use the same file system. Ctrl-C stops the
/// cluster.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir up                                          reachable from this machine only
  weir up --mount /mnt                             the same, and mount it at /mnt
  weir up --listen 127.0.0.1:12049                 another port
  weir up --dir /mnt/disk/weir --iods 8            another directory, eight iods
  weir up --listen 10.0.0.5:2049                   reachable from other machines")]
pub struct Args {
    /// Directory for the data of the cluster [default: $XDG_DATA_HOME/weir or ~/.local/share/weir]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// Number of iods; cannot be changed later [default: 4]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    iods: Option<u16>,
    /// Keep checksums of all data blocks, which reads and "weir scrub" verify; cannot be changed later
    #[arg(long)]
    block_checksums: bool,
    /// Address of the mgr; port 0: a free port. The iods listen on the same address, on other ports
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:2049")]
    listen: SocketAddr,
    /// The address of this machine for NFS clients, if it differs from --listen: for example 10.0.2.2 for guests of QEMU
    #[arg(long, value_name = "ADDRESS")]
    nfs_host: Option<IpAddr>,
    /// Also mount the file system at this directory, and make the directory if it is missing. This mount calls the mgr
    /// inside the process: operations on names and small files take less time than with "weir mount"
    #[arg(long, value_name = "DIRECTORY")]
    mount: Option<PathBuf>,
    #[command(flatten)]
    how: MountOptions,
    /// Accept an older copy of the metadata store, for example a restored backup, for this one start
    #[arg(long)]
    recover_old_store: bool,
    #[command(flatten)]
    ready: Ready,
}

/// Runs the cluster until SIGINT or SIGTERM.
pub fn run(args: Args) -> Outcome {
    if args.listen.ip().is_unspecified() {
        return Err(Failure::usage(format!("--listen {}: clients cannot connect to this address", args.listen))
            .next("name one address of this machine, for example --listen 10.0.0.5:2049"));
    }
    let dir = match args.dir {
        Some(dir) => dir,
        None => default_dir()?,
    };
    if let Some(mount) = &args.mount {
        must_not_hide(mount, &dir)?;
        must_be_free(mount, args.how.over)?;
    }
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        let stop = Stop::listen()?;
        let features = iod::Features { block_checksums: args.block_checksums };
        let cluster =
            Cluster::start(&dir, args.iods, features, (args.listen, args.nfs_host), args.recover_old_store).await?;
        let url = format!("weir://{}", cluster.address());
        let mounting = match &args.mount {
            Some(dir) => Some(mount(&cluster, &url, dir, &args.how).await?),
            None => None,
        };
        args.ready.tell(&ReadyLine {
            daemon: "up",
            url: Some(format!("{url}/")),
            addresses: vec![cluster.address().to_string()],
            dir: Some(dir.clone()),
            iods: Some(cluster.iods()),
        })?;
        let quiet = args.ready.is_json();
        if !quiet {
            show::raw(welcome(&cluster, &dir, &url, mounting.as_ref().map(Mounting::dir)).as_bytes())?;
        }
        let stopped = async {
            tokio::select! {
                // This future completes only when the user stops the cluster. If the mgr fails, the future ends the
                // process.
                () = daemon::until_stopped(&stop, cluster.mgr()) => {}
                () = show_status(&cluster, quiet) => {}
            }
        };
        let unmounted = match mounting {
            Some(mounting) => mounting.until(stopped, !quiet).await,
            None => {
                stopped.await;
                Ok(Exit::Done)
            }
        };
        // If another process has unmounted the file system, keep the cluster running until the user stops it.
        stop.wait().await;
        cluster.stop().await;
        unmounted?;
        if !quiet {
            show::line("stopped; the files are kept")?;
        }
        Ok(Exit::Done)
    });
    runtime.shutdown_background();
    outcome
}

/// Fails if a mount at `mount` hides some of the data that the cluster in `dir` stores.
fn must_not_hide(mount: &Path, dir: &Path) -> Result<(), Failure> {
    let (at, stores) = (whole(mount), cluster::home(&whole(dir)));
    if !stores.starts_with(&at) && !at.starts_with(&stores) {
        return Ok(());
    }
    let (at, stores) = (at.display(), stores.display());
    Err(Failure::usage(format!("--mount {at} would hide {stores}, where the cluster keeps its data"))
        .next("mount at another directory, or keep the data elsewhere with --dir"))
}

/// Returns `path` as an absolute path. Resolves symlinks in the components that exist.
fn whole(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for above in path.ancestors() {
        if let (Ok(found), Ok(rest)) = (above.canonicalize(), path.strip_prefix(above)) {
            return found.join(rest);
        }
    }
    path
}

/// Mounts the file system in this process. The mount calls the mgr directly, without a socket.
async fn mount(cluster: &Cluster, url: &str, dir: &Path, how: &MountOptions) -> Result<Mounting, Failure> {
    fuse::detach_dead(dir).map_err(|e| Failure::from(e).about(dir.display()))?;
    std::fs::create_dir_all(dir).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => Failure::usage(format_args!("--mount {}: not a directory", dir.display())),
        _ => Failure::from(e).about(dir.display()),
    })?;
    let target = client::Target::parse(url)?;
    let identity = Identity::of_mount(&target.to_string(), dir);
    let options = client::Options {
        environment: environment()?,
        identity: identity.as_ref().map(Identity::name),
        connector: cluster.mgr().door(),
        // The mgr runs in this process on the same machine. A power loss that loses unflushed changes also ends all
        // programs on the mount, so the guarantees of a local file system suffice.
        durable: client::Durable::Fsync,
        ..client::Options::default()
    };
    let mount = client::Mount::connect(&target, how.options(options)).await?;
    let root = mount.root();
    Mounting::start(mount, root, dir, how.config(&target.to_string()), identity)
}

fn default_dir() -> Result<PathBuf, Failure> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
    data.map(|data| data.join("weir"))
        .ok_or_else(|| Failure::usage("HOME is not set").next("name a directory for the data with --dir"))
}

fn welcome(cluster: &Cluster, dir: &Path, url: &str, mounted: Option<&Path>) -> String {
    let state = if cluster.is_new() { "new file system" } else { "file system" };
    let count = cluster.iods().len();
    let plural = if count == 1 { "" } else { "s" };
    format!(
        "Weir {}: {state} with one mgr and {count} iod{plural} in {}\n\
         listening at {url}\n{}\n\
         Type in another terminal:\n{}  export WEIR_URL={url}\n  weir cp -r /some/directory weir:/\n  weir ls -l /\n  \
         weir status\n\nCtrl-C stops it.\n",
        env!("CARGO_PKG_VERSION"),
        dir.display(),
        mounted.map(|at| format!("mounted at {}\n", at.display())).unwrap_or_default(),
        path_line()
    )
}

/// Returns a shell line that adds the directory of the `weir` binary to PATH. Returns an empty string if the shell
/// finds this binary already.
fn path_line() -> String {
    let Ok(own) = std::env::current_exe().and_then(std::fs::canonicalize) else { return String::new() };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find_map(|dir| std::fs::canonicalize(dir.join("weir")).ok());
    match own.parent() {
        Some(dir) if found.as_ref() != Some(&own) => format!("  export PATH={}:$PATH\n", dir.display()),
        _ => String::new(),
    }
}

/// Prints the state of the cluster at regular intervals. Never returns, so the caller must drop the future.
async fn show_status(cluster: &Cluster, quiet: bool) {
    if quiet || !std::io::stdout().is_terminal() {
        return std::future::pending().await;
    }
    let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout()).with_finish(ProgressFinish::AndClear);
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        line.set_style(style);
    }
    let start = Instant::now();
    let mut before = cluster.traffic();
    let mut tick = tokio::time::interval(TICK);
    loop {
        tick.tick().await;
        let now = cluster.traffic();
        line.set_message(status_line(start.elapsed(), &before, &now));
        before = now;
    }
}

fn status_line(up: Duration, before: &cluster::Traffic, now: &cluster::Traffic) -> String {
    let secs = up.as_secs();
    let rate = |now: u64, before: u64| show::size((now.saturating_sub(before) as f64 / TICK.as_secs_f64()) as u64);
    format!(
        "up {}:{:02}:{:02}   {} connections to the iods   in {}/s   out {}/s   {} in all",
        secs / 3600,
        secs / 60 % 60,
        secs % 60,
        now.connections,
        rate(now.written, before.written),
        rate(now.read, before.read),
        show::size(now.written + now.read),
    )
}
