//! `weir umount`: what `weir mount` mounted is unmounted.

use crate::failure::{Exit, Failure, Outcome};
use crate::identity::Identity;
use crate::show;
use std::path::PathBuf;
use std::time::Duration;

/// How long the mount has to say good-bye to its servers.
const PATIENCE: Duration = Duration::from_secs(30);

/// Unmount what "weir mount" mounted
///
/// Everything that was written to files closed by then is durable, and the mount is at its end when this is. Where another
/// mount namespace (a container, a service) has the file system mounted as well, this says so and does not wait for it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir umount /mnt/weir
  weir umount --lazy /mnt/weir          also while programs use it; it ends with the last of them")]
pub struct Args {
    /// Where it is mounted
    #[arg(required = true, value_name = "DIRECTORY")]
    dirs: Vec<PathBuf>,
    /// Let it vanish at once, and end when nobody uses it any more
    #[arg(short, long)]
    lazy: bool,
}

/// Unmounts it.
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
                    "weir: {dir} is unmounted; what mounted it has not ended for {secs} s: {source} may not answer"
                );
            }
            Ok(_) => {}
            Err(error) => {
                let busy = error.kind() == std::io::ErrorKind::ResourceBusy;
                let failure = Failure::from(error).about(dir.display());
                let hint = "leave the directory and end what uses it, or say --lazy";
                eprintln!("{}", if busy { failure.next(hint) } else { failure });
                code = Exit::Failed;
            }
        }
    }
    Ok(code)
}
