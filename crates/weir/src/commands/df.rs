//! `weir df`: shows the used and free space of a file system.

use crate::failure::{Exit, Failure, Outcome};
use crate::session::{Connect, run as with_mounts};
use crate::show;
use serde::Serialize;
use std::ffi::OsString;

/// Show the used and free space of a file system
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:
  weir df
  weir df --json weir://host"
)]
pub struct Args {
    /// Any path of the file system [default: WEIR_URL]
    path: Option<OsString>,
    /// Print one JSON object, with sizes in bytes
    #[arg(long)]
    json: bool,
    /// Print sizes in KiB, MiB, GiB; has no effect, because this is the default
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Serialize)]
struct JsonCapacity {
    server: String,
    bytes_total: u64,
    bytes_used: u64,
    bytes_free: u64,
    bytes_available: u64,
    files_total: u64,
    files_free: u64,
}

/// Runs `weir df`.
pub fn run(args: Args) -> Outcome {
    let target = args.connect.target_or_base(args.path.as_ref())?;
    with_mounts(&args.connect, async |mounts| {
        let mount = mounts.get(&target).await?;
        mount.resolve(target.path(), true).await.map_err(|e| Failure::from(e).about(&target))?;
        let fs = mount.statfs().await?;
        let used = fs.bytes_total.saturating_sub(fs.bytes_free);
        if args.json {
            show::json(&JsonCapacity {
                server: target.address(),
                bytes_total: fs.bytes_total,
                bytes_used: used,
                bytes_free: fs.bytes_free,
                bytes_available: fs.bytes_avail,
                files_total: fs.files_total,
                files_free: fs.files_free,
            })?;
            return Ok(Exit::Done);
        }
        let percent = match used.checked_add(fs.bytes_avail) {
            Some(all) if all > 0 => format!("{} %", (u128::from(used) * 100).div_ceil(u128::from(all))),
            _ => "-".to_owned(),
        };
        let server = format!("weir://{}", target.address());
        let columns = [show::size(fs.bytes_total), show::size(used), show::size(fs.bytes_avail)];
        show::line(&format!("{:<28} {:>10} {:>10} {:>10} {:>6}", "file system", "size", "used", "available", "use"))?;
        let [total, used, available] = columns;
        show::line(&format!("{server:<28} {total:>10} {used:>10} {available:>10} {percent:>6}"))?;
        Ok(Exit::Done)
    })
}
