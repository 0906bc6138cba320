//! `weir dump`: backs up the metadata store of a running or stopped file system.

use crate::admin::Admin;
use crate::dumps::tell;
use crate::failure::{Exit, Failure, Outcome};
use crate::session::{Connect, runtime};
use indicatif::{ProgressBar, ProgressStyle};
use mgr::ClusterFile;
use net::Address;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wire::admin::{DUMP, DumpArgs, DumpReply};

/// Time limit for one page of the dump. It is long, because the mgr queries all iods before it sends the first page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(120);

/// Back up the metadata store: names, attributes, the placement of files, and the content of small files
///
/// The dump has the state of the store at one moment; the file system stays in use meanwhile. The dump file gets its
/// name when it is complete. "weir restore" verifies its checksums. The dump does not contain file data that are on
/// iods.
#[derive(clap::Args)]
#[command(
    after_help = "The dump contains the content of small files, so only its owner can read it. Only root and the owner of
the root directory may make one.

Examples:
  weir dump /backup/weir-$(date +%F).dump
  weir dump /backup/weir.dump weir://host
  weir dump /backup/weir.dump --dir /srv/weir/mgr --cluster-file /etc/weir/cluster.toml     (with the mgr stopped)"
)]
pub struct Args {
    /// The file to write; it replaces an existing file when it is complete
    file: PathBuf,
    /// The file system [default: WEIR_URL]
    #[arg(conflicts_with = "dir")]
    system: Option<OsString>,
    /// The directory of the metadata store; only for a stopped mgr
    #[arg(long, value_name = "DIRECTORY", requires = "cluster_file")]
    dir: Option<PathBuf>,
    /// The cluster file of the file system; with --dir only
    #[arg(long, value_name = "FILE", requires = "dir")]
    cluster_file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Runs `weir dump`.
pub fn run(args: Args) -> Outcome {
    let failed = |e: std::io::Error| Failure::from(e).about(args.file.display());
    let mut name = args
        .file
        .file_name()
        .ok_or_else(|| Failure::usage(format!("{}: the path has no file name", args.file.display())))?
        .to_owned();
    name.push(".new");
    let new = args.file.with_file_name(name);
    // An interrupted dump may have left a file under the temporary name of the new dump, so remove this file.
    let _ = std::fs::remove_file(&new);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
    let written = write(&args, &mut file).and_then(|()| file.sync_all().map_err(failed));
    // Read the dump file back and verify its checksums, because a restore will use the bytes that are on the disk.
    let dumped = written.and_then(|()| mgr::check_dump(&new).map_err(Failure::from));
    let dumped = dumped.inspect_err(|_| drop(std::fs::remove_file(&new)))?;
    std::fs::rename(&new, &args.file).map_err(failed)?;
    let dir = args.file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
    if !args.quiet {
        tell("dumped", &args.file, &dumped, None, args.json)?;
    }
    Ok(Exit::Done)
}

fn write(args: &Args, file: &mut File) -> Result<(), Failure> {
    let runtime = runtime()?;
    let written = match (&args.dir, &args.cluster_file) {
        (Some(dir), Some(cluster_file)) => {
            let cluster = ClusterFile::load(cluster_file)?;
            runtime.block_on(mgr::dump(dir, &cluster, cluster_file, file)).map_err(Failure::from)
        }
        _ => {
            let target = args.connect.target_or_base(args.system.as_ref())?;
            let address = Address::Tcp { host: target.host().to_owned(), port: target.port() };
            runtime.block_on(receive(address, args, file))
        }
    };
    runtime.shutdown_background();
    written
}

/// Requests the dump from the mgr page by page, and writes each page to `file`.
async fn receive(address: Address, args: &Args, file: &mut File) -> Result<(), Failure> {
    let name = address.to_string();
    let admin = Admin::connect(address, args.connect.timeout()).await?.patient(PAGE_TIMEOUT);
    let bar = if args.quiet || args.json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos} of about {len} records  {elapsed}") {
        bar.set_style(style);
    }
    let mut ask = DumpArgs { run: 0, page: 0 };
    loop {
        let page: DumpReply = admin.ask(DUMP, &ask).await?;
        if let Some(why) = page.refused {
            return Err(Failure::from_message(why).about(name));
        }
        file.write_all(&page.bytes).map_err(|e| Failure::from(e).about(args.file.display()))?;
        bar.set_length(page.total);
        bar.set_position(page.records);
        if page.end {
            bar.finish_and_clear();
            return Ok(());
        }
        ask = DumpArgs { run: page.run, page: page.page.saturating_add(1) };
    }
}
