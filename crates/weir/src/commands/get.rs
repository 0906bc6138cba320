//! `weir get`: writes one file, or a range of it, to standard output.

use crate::content;
use crate::failure::{Exit, Failure, Outcome};
use crate::session::{Connect, run as with_mounts};
use layout::policy::parse_size;
use std::ffi::OsString;
use types::ByteRange;

/// Write one file, or a range of it, to standard output
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir get /backup.tar | tar tf -
  weir get --offset 1G --length 4K /big > part")]
pub struct Args {
    /// The file to write to standard output
    path: OsString,
    /// Offset of the first byte; a number, optionally with K, M, G or T
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size)]
    offset: u64,
    /// Number of bytes [default: up to the end of the file]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    length: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text)
        .ok_or_else(|| "not a size; write a number of bytes, or a number with K, M, G or T, such as 64K".to_owned())
}

/// Runs `weir get`.
pub fn run(args: Args) -> Outcome {
    let target = args.connect.target(&args.path)?;
    let len = args.length.unwrap_or(u64::MAX - args.offset);
    let range =
        ByteRange::new(args.offset, len).ok_or_else(|| Failure::usage("--offset plus --length is too large"))?;
    with_mounts(&args.connect, async |mounts| {
        let mount = mounts.get(&target).await?;
        content::print(&mount, &target, range).await.map_err(|e| e.about(&target))?;
        Ok(Exit::Done)
    })
}
