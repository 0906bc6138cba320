//! `weir stat`: shows all attributes of a file, and which of its bytes are on which iod.

use crate::admin::{self, Admin};
use crate::failure::{Failure, Outcome};
use crate::session::{Connect, for_each, run as with_mounts};
use crate::show;
use client::{Mount, Placement, Target};
use layout::policy::format_size;
use serde::Serialize;
use std::ffi::OsString;
use types::{Attrs, ByteRange, FileKind, Status};
use wire::admin::{Group, PLACEMENT, PlacementArgs, Value};

/// Maximum number of byte ranges of the file that the output shows for each object.
const RANGES_SHOWN: usize = 3;

/// Show all attributes of a file, and which of its bytes are on which iod
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir stat /project/data.bin
  weir stat --json /project/data.bin
  weir stat -L /link                  the target of the symlink")]
pub struct Args {
    /// The files to show, of any type
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Follow a symlink, and show the file that it names
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Serialize)]
struct JsonStat {
    #[serde(flatten)]
    path: show::JsonPath,
    #[serde(flatten)]
    attrs: show::JsonAttrs,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<JsonPlacement>,
    /// The objects of all copies of the file. Filled only for a file that clients read and write on the mgr path alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    copies: Vec<JsonCopy>,
}

#[derive(Serialize)]
struct JsonCopy {
    copy: u64,
    column: u64,
    iod: String,
    address: String,
    state: String,
}

#[derive(Serialize)]
struct JsonPlacement {
    distribution: &'static str,
    stripe_unit: u64,
    /// The inode number, which the names of the file's objects contain.
    object: u64,
    /// The stream number, which the names of the file's objects contain.
    stream: u32,
    objects: Vec<JsonObject>,
}

#[derive(Serialize)]
struct JsonObject {
    iod: String,
    addresses: Vec<String>,
    size: u64,
    allocated: u64,
    /// The first byte ranges of the file that are in this object, as (offset, length).
    ranges: Vec<(u64, u64)>,
    /// Whether the object holds more ranges of the file than `ranges` lists. The unlisted ranges follow at the same
    /// interval as the listed ranges, because of the striping.
    more: bool,
}

/// Runs `weir stat`.
pub fn run(args: Args) -> Outcome {
    let targets = args.connect.targets(&args.paths)?;
    with_mounts(&args.connect, async |mounts| {
        for_each(&targets, async |target| {
            let mount = mounts.get(target).await?;
            stat(&mount, target, &args).await.map_err(|e| e.about(target))
        })
        .await
    })
}

async fn stat(mount: &Mount, target: &Target, args: &Args) -> Result<(), Failure> {
    let (node, attrs) = mount.resolve(target.path(), args.dereference).await?;
    let link = match attrs.kind {
        FileKind::Symlink => Some(mount.readlink(&node).await?),
        _ => None,
    };
    let placement = match attrs.kind {
        FileKind::Regular => where_known(mount.placement(&node).await)?,
        _ => None,
    };
    let copies = match (attrs.kind, &placement) {
        (FileKind::Regular, None) => copies(target, &attrs, args).await,
        _ => Vec::new(),
    };
    let path = show::absolute(target.path());
    if args.json {
        return show::json(&JsonStat {
            path: path.as_slice().into(),
            attrs: (&attrs).into(),
            target: link.map(|link| String::from_utf8_lossy(&link).into_owned()),
            placement: placement.as_ref().map(json_placement),
            copies: copies.iter().map(json_copy).collect(),
        });
    }
    let mut out = about(target, &attrs, link.as_deref());
    match placement {
        Some(placement) => out += &table(&placement),
        None if attrs.kind == FileKind::Regular => {
            out += THROUGH_MGR;
            out += &copies.iter().map(copy_line).collect::<String>();
        }
        None => {}
    }
    show::raw(out.as_bytes())
}

/// Output for a file of which the mgr grants no layout, for example a file with two copies.
const THROUGH_MGR: &str = "layout   none: clients read and write through the mgr\n";

/// Returns the placement of a file's bytes on iods. Returns `None` if the mgr grants no layout of the file.
fn where_known(placement: client::Result<Placement>) -> Result<Option<Placement>, client::Error> {
    match placement {
        Err(e) if e.is(Status::NoLayout) => Ok(None),
        other => other.map(Some),
    }
}

/// Requests the objects of a file from the mgr, because the mgr grants no layout of this file. Returns an empty list if
/// the request fails.
async fn copies(target: &Target, attrs: &Attrs, args: &Args) -> Vec<Group> {
    let asked = async {
        let admin = Admin::connect(admin::mgr_of(target), args.connect.timeout()).await?;
        admin.ask::<wire::admin::Status>(PLACEMENT, &PlacementArgs { inode: attrs.id.0 }).await
    };
    match asked.await {
        Ok(status) => status.groups.into_iter().filter(|group| group.name == "object").collect(),
        Err(failure) => {
            tracing::info!(error = failure.what, "cannot get the places of the copies from the mgr");
            Vec::new()
        }
    }
}

fn text<'a>(group: &'a Group, name: &str) -> &'a str {
    match group.get(name) {
        Some(Value::Text(text)) => text,
        _ => "?",
    }
}

fn copy_line(object: &Group) -> String {
    let (copy, column) = (object.get_number("copy") + 1, object.get_number("column") + 1);
    let [iod, address, state] = ["iod", "address", "state"].map(|name| show::path(text(object, name).as_bytes()));
    format!("  copy {copy}, part {column}: {iod} at {address}, {state}\n")
}

fn json_copy(object: &Group) -> JsonCopy {
    let [iod, address, state] = ["iod", "address", "state"].map(|name| text(object, name).to_owned());
    JsonCopy { copy: object.get_number("copy"), column: object.get_number("column"), iod, address, state }
}

fn about(target: &Target, a: &Attrs, link: Option<&[u8]>) -> String {
    let arrow = link.map(|link| format!(" -> {}", show::path(link))).unwrap_or_default();
    format!(
        "name     {target}{arrow}
kind     {}, {}, {} in use
inode    {}, {} link{}, change {}
mode     {:04o} {}, owner {}:{}
accessed {}
modified {}
changed  {}
born     {}
",
        show::kind(a.kind),
        match a.kind {
            FileKind::Directory => format!("{} names", a.size),
            _ => format!("{} bytes", a.size),
        },
        show::size(a.used),
        a.id,
        a.nlink,
        if a.nlink == 1 { "" } else { "s" },
        a.change,
        a.mode,
        show::mode(a.kind, a.mode),
        a.uid,
        a.gid,
        show::time_exact(a.atime),
        show::time_exact(a.mtime),
        show::time_exact(a.ctime),
        show::time_exact(a.btime),
    )
}

/// Returns, for each object, the first ranges of the file that are in this object, and whether the object holds more
/// ranges.
fn ranges(placement: &Placement) -> Vec<(Vec<ByteRange>, bool)> {
    let count = placement.objects.len();
    let mut found: Vec<(Vec<ByteRange>, bool)> = vec![(Vec::new(), false); count];
    let whole = ByteRange { offset: 0, len: placement.file_size };
    // Examine only the first ranges of the file. Their number suffices to find, for each object, the ranges that the
    // output shows, and whether the object holds more ranges.
    for piece in placement.pieces(whole).take(count * (RANGES_SHOWN + 1)) {
        let Some((ranges, more)) = found.get_mut(piece.index) else { continue };
        match ranges.len() < RANGES_SHOWN {
            true => ranges.push(piece.file),
            false => *more = true,
        }
    }
    found
}

fn table(placement: &Placement) -> String {
    let count = placement.objects.len();
    let unit = format_size(placement.distribution.stripe_unit());
    let plural = if count == 1 { "" } else { "s" };
    let mut out = format!(
        "striping {}, stripe unit {unit} over {count} iod{plural}, object {}\n",
        placement.distribution.id().name(),
        placement.object
    );
    for (object, (ranges, more)) in placement.objects.iter().zip(ranges(placement)) {
        let ranges: Vec<String> =
            ranges.iter().map(|r| format!("{}-{}", r.offset, r.end().saturating_sub(1))).collect();
        let bytes = match (ranges.is_empty(), more) {
            (true, _) => "none".to_owned(),
            (_, more) => ranges.join(", ") + if more { ", ..." } else { "" },
        };
        let address = object.addresses.first().map_or("-", String::as_str);
        out += &format!(
            "  {} at {address}: {}, {} on disk; bytes {bytes}\n",
            object.iod,
            show::size(object.size),
            show::size(object.allocated)
        );
    }
    out
}

fn json_placement(placement: &Placement) -> JsonPlacement {
    let objects = placement.objects.iter().zip(ranges(placement)).map(|(object, (ranges, more))| JsonObject {
        iod: object.iod.to_string(),
        addresses: object.addresses.clone(),
        size: object.size,
        allocated: object.allocated,
        ranges: ranges.into_iter().map(|r| (r.offset, r.len)).collect(),
        more,
    });
    JsonPlacement {
        distribution: placement.distribution.id().name(),
        stripe_unit: placement.distribution.stripe_unit(),
        object: placement.object.file.0,
        stream: placement.object.stream,
        objects: objects.collect(),
    }
}
