//! `weir ls`: lists the names in a directory.

use crate::failure::{Failure, Outcome};
use crate::session::{Connect, for_each, run as with_mounts};
use crate::show;
use client::{Mount, Node, Target};
use serde::Serialize;
use std::ffi::OsString;
use types::{Attrs, FileKind};

/// List files
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:
  weir ls                          the directory that WEIR_URL names
  weir ls -l /project              with mode, links, owner, size and time (UTC)
  weir ls -laR weir://host/        the whole tree, including hidden names
  weir ls --json /project          one JSON object per line"
)]
pub struct Args {
    /// Files or directories [default: the directory that WEIR_URL names]
    paths: Vec<OsString>,
    /// Show mode, links, owner, size and time of modification
    #[arg(short)]
    long: bool,
    /// Show names that begin with a dot
    #[arg(short)]
    all: bool,
    /// Also list the entries of all subdirectories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show a directory itself, not its entries
    #[arg(short)]
    directory: bool,
    /// Print one JSON object per line, with all attributes
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

/// One line of the listing: a name, and the file or directory of this name.
struct Item {
    name: Vec<u8>,
    node: Node,
    attrs: Attrs,
}

/// A line of the listing as JSON.
#[derive(Serialize)]
struct JsonItem {
    #[serde(flatten)]
    path: show::JsonPath,
    #[serde(flatten)]
    attrs: show::JsonAttrs,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// Runs `weir ls`.
pub fn run(args: Args) -> Outcome {
    let targets = match args.paths.is_empty() {
        true => vec![args.connect.target_or_base(None)?],
        false => args.connect.targets(&args.paths)?,
    };
    let titled = args.recursive || targets.len() > 1;
    with_mounts(&args.connect, async |mounts| {
        for_each(&targets, async |target| {
            let mount = mounts.get(target).await?;
            list_target(&mount, target, &args, titled).await.map_err(|e| e.about(target))
        })
        .await
    })
}

async fn list_target(mount: &Mount, target: &Target, args: &Args, titled: bool) -> Result<(), Failure> {
    let (node, attrs) = mount.resolve(target.path(), !args.directory).await?;
    let path = show::absolute(target.path());
    if attrs.kind != FileKind::Directory || args.directory {
        return print(mount, args, &[], vec![Item { name: path, node, attrs }]).await;
    }
    let mut waiting = vec![(path, node)];
    while let Some((path, node)) = waiting.pop() {
        let mut items = Vec::new();
        let mut pages = mount.readdir(&node);
        while let Some(page) = pages.next_page().await? {
            for entry in page.into_iter().filter(|entry| args.all || !entry.name.starts_with(b".")) {
                let attrs = mount.entry_attrs(&entry).await?;
                items.push(Item { name: entry.name.to_vec(), node: entry.node, attrs });
            }
        }
        items.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let below: Vec<_> = items
            .iter()
            .filter(|item| args.recursive && item.attrs.kind == FileKind::Directory)
            .map(|item| (crate::locator::join(&path, &item.name), item.node.clone()))
            .collect();
        if titled && !args.json {
            show::line(&format!("{}:", show::path(&path)))?;
        }
        print(mount, args, &path, items).await?;
        waiting.extend(below.into_iter().rev());
        if titled && !args.json && !waiting.is_empty() {
            show::line("")?;
        }
    }
    Ok(())
}

/// Returns the file size as text. Returns no size for a directory, because the size attribute of a directory is its
/// number of names.
fn size(attrs: &Attrs) -> String {
    if attrs.kind == FileKind::Directory { "-".to_owned() } else { show::size(attrs.size) }
}

async fn print(mount: &Mount, args: &Args, dir: &[u8], items: Vec<Item>) -> Result<(), Failure> {
    let width = |f: fn(&Attrs) -> String| items.iter().map(|item| f(&item.attrs).len()).max().unwrap_or(0);
    let links = width(|a| a.nlink.to_string());
    let owners = width(|a| format!("{}:{}", a.uid, a.gid));
    let sizes = width(size);
    let mut out = String::new();
    for item in items {
        let a = &item.attrs;
        let target = match a.kind == FileKind::Symlink && (args.long || args.json) {
            true => Some(mount.readlink(&item.node).await?),
            false => None,
        };
        if args.json {
            let path = if dir.is_empty() { item.name } else { crate::locator::join(dir, &item.name) };
            let target = target.map(|t| String::from_utf8_lossy(&t).into_owned());
            show::json(&JsonItem { path: path.as_slice().into(), attrs: a.into(), target })?;
            continue;
        }
        if args.long {
            let owner = format!("{}:{}", a.uid, a.gid);
            out += &format!(
                "{} {:>links$} {owner:<owners$} {:>sizes$} {} ",
                show::mode(a.kind, a.mode),
                a.nlink,
                size(a),
                show::time(a.mtime),
            );
        }
        out += &show::path(&item.name);
        if let Some(target) = target {
            out += &format!(" -> {}", show::path(&target));
        }
        out.push('\n');
    }
    show::raw(out.as_bytes())
}
