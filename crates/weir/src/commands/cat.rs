//! `weir cat`: prints the content of files on standard output.

use crate::content::print;
use crate::failure::Outcome;
use crate::session::{Connect, for_each, run as with_mounts};
use std::ffi::OsString;
use types::ByteRange;

/// Print the content of files
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir cat /notes.txt
  weir cat /logs/a.log /logs/b.log | grep error")]
pub struct Args {
    /// The files, printed in this order
    #[arg(required = true)]
    paths: Vec<OsString>,
    #[command(flatten)]
    connect: Connect,
}

/// Prints the content of each file in `args` on standard output.
pub fn run(args: Args) -> Outcome {
    let targets = args.connect.targets(&args.paths)?;
    with_mounts(&args.connect, async |mounts| {
        for_each(&targets, async |target| {
            let mount = mounts.get(target).await?;
            print(&mount, target, ByteRange::ALL).await.map_err(|e| e.about(target))
        })
        .await
    })
}
