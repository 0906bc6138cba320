//! `weir umount`: unmounts file systems that `weir mount` mounted.

use crate::failure::{Exit, Failure, Outcome};
use crate::identity::Identity;
use crate::show;
use std::path::PathBuf;
use std::time::Duration;

/// How long the command waits until the process that serves the mount has ended its sessions.
const PATIENCE: Duration = Duration::from_secs(30);

/// Unmount a file system that "weir mount" mounted
///
/// When the command returns, the mount has ended, and all data of closed files are durable. If another mount namespace (of
/// a container or service) has the mount as well, the command reports it and does not wait for that namespace.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir umount /mnt/weir
  weir umount --lazy /mnt/weir          even if programs use it")]
pub struct Args {
    /// The mount points to unmount
    #[arg(required = true, value_name = "DIRECTORY")]
    dirs: Vec<PathBuf>,
    /// Detach the mount at once; the mount ends when the last open file is closed
    #[arg(short, long)]
    lazy: bool,
}

/// Runs `weir umount`.
pub fn run(args: Args) -> Outcome {
    let mut code = Exit::Done;
    for dir in &args.dirs {
        let device = fuse::device_at(dir);
        let held_elsewhere = || device.as_deref().and_then(fuse::holder);
        match fuse::unmount(dir, args.lazy) {
            Ok(_) if let Some(holder) = held_elsewhere() => {
                let (dir, process, name) = (dir.display(), holder.process, show::path(holder.name.as_bytes()));
                eprintln!(
                    "weir: {dir} is unmounted here; it stays mounted in the mount namespace of process {process} ({name})\n      \
                     it ends when that process ends, or after: nsenter -t {process} -m umount {dir}"
                );
            }
            Ok(source) if !args.lazy && !Identity::unused(&source, dir, PATIENCE) => {
                let (dir, secs) = (dir.display(), PATIENCE.as_secs());
                eprintln!(
                    "weir: {dir} is unmounted, but its process has not ended after {secs} s: does {source} answer?"
                );
            }
            Ok(_) => {}
            Err(error) => {
                let busy = error.kind() == std::io::ErrorKind::ResourceBusy;
                let failure = Failure::from(error).about(dir.display());
                let hint = "end the programs that use the directory (shells in it, too), or use --lazy";
                eprintln!("{}", if busy { failure.next(hint) } else { failure });
                code = Exit::Failed;
            }
        }
    }
    Ok(code)
}
