//! `weir du`: shows the space that the files of a tree use.

use crate::failure::{Failure, Outcome};
use crate::session::{Connect, for_each, run as with_mounts};
use crate::show;
use client::{Mount, Node, Target};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsString;
use types::{Attrs, FileId, FileKind};

/// Show the space that the files of a tree use
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "A file with several hard links counts once.

Examples:
  weir du -s /project              one line
  weir du -d 1 /                   one line for each directory at the top
  weir du -s --apparent-size /x    file sizes instead of used space: holes count"
)]
pub struct Args {
    /// Files or directories [default: the directory that WEIR_URL names]
    paths: Vec<OsString>,
    /// Print only one line for each argument
    #[arg(short, long, conflicts_with = "max_depth")]
    summarize: bool,
    /// Also print a line for each file
    #[arg(short, long)]
    all: bool,
    /// Print lines down to this many levels below each argument
    #[arg(short = 'd', long, value_name = "LEVELS")]
    max_depth: Option<usize>,
    /// Sum file sizes instead of used space
    #[arg(long)]
    apparent_size: bool,
    /// Print bytes instead of KiB, MiB, GiB
    #[arg(short, long)]
    bytes: bool,
    /// Print one JSON object per line, with sizes in bytes
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
struct JsonSum {
    #[serde(flatten)]
    path: show::JsonPath,
    bytes: u64,
    files: u64,
}

/// A directory of which the command is adding up the used space.
struct Level {
    path: Vec<u8>,
    sum: u64,
    files: u64,
    /// Subdirectories whose used space is not added yet.
    dirs: Vec<(Vec<u8>, Node)>,
}

/// Runs `weir du`.
pub fn run(args: Args) -> Outcome {
    let targets = match args.paths.is_empty() {
        true => vec![args.connect.target_or_base(None)?],
        false => args.connect.targets(&args.paths)?,
    };
    with_mounts(&args.connect, async |mounts| {
        for_each(&targets, async |target| {
            let mount = mounts.get(target).await?;
            count(&mount, target, &args).await.map_err(|e| e.about(target))
        })
        .await
    })
}

async fn count(mount: &Mount, target: &Target, args: &Args) -> Result<(), Failure> {
    let (node, attrs) = mount.resolve(target.path(), false).await?;
    let path = show::absolute(target.path());
    let size = |attrs: &Attrs| if args.apparent_size { attrs.size } else { attrs.used };
    if attrs.kind != FileKind::Directory {
        return print(args, 0, &path, size(&attrs), 1);
    }
    let mut seen: HashSet<FileId> = HashSet::new();
    let mut levels: Vec<Level> = Vec::new();
    let mut next = Some((path, node));
    loop {
        if let Some((path, node)) = next.take() {
            let mut level = Level { path, sum: 0, files: 0, dirs: Vec::new() };
            let mut pages = mount.readdir(&node);
            while let Some(page) = pages.next_page().await? {
                for entry in page {
                    let path = crate::locator::join(&level.path, &entry.name);
                    if entry.attrs.kind == FileKind::Directory {
                        level.dirs.push((path, entry.node));
                    } else if entry.attrs.nlink < 2 || seen.insert(entry.attrs.id) {
                        let size = size(&mount.entry_attrs(&entry).await?);
                        level.sum += size;
                        level.files += 1;
                        if args.all {
                            print(args, levels.len() + 1, &path, size, 1)?;
                        }
                    }
                }
            }
            level.dirs.sort_unstable_by(|a, b| b.0.cmp(&a.0));
            levels.push(level);
        }
        let Some(level) = levels.last_mut() else { return Ok(()) };
        next = level.dirs.pop();
        if next.is_none() {
            let Some(done) = levels.pop() else { return Ok(()) };
            print(args, levels.len(), &done.path, done.sum, done.files)?;
            if let Some(above) = levels.last_mut() {
                above.sum += done.sum;
                above.files += done.files;
            }
        }
    }
}

fn print(args: &Args, depth: usize, path: &[u8], bytes: u64, files: u64) -> Result<(), Failure> {
    let deepest = if args.summarize { 0 } else { args.max_depth.unwrap_or(usize::MAX) };
    if depth > deepest {
        return Ok(());
    }
    if args.json {
        return show::json(&JsonSum { path: path.into(), bytes, files });
    }
    let size = if args.bytes { bytes.to_string() } else { show::size(bytes) };
    show::line(&format!("{size:>10}  {}", show::path(path)))
}
