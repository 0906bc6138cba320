//! `weir policy`: shows and sets how files are laid out, read and written.

use crate::deprecated;
use crate::failure::{Exit, Failure, Outcome};
use crate::session::{Connect, run as with_mounts};
use crate::show;
use client::{Mount, Node, Options, Target, XattrMode};
use layout::{Origin, Part, Settings};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use types::{FileKind, Status};

/// Show and set how files are laid out, read and written
///
/// Each part of a policy can be set in several places: on the server, a directory, a mount, in the environment
/// (WEIR_POLICY="access=page,write_threshold=32K"), on a file, and at open. Later places in this list override earlier
/// ones. A new directory gets a copy of the policy of its parent, which later changes of the parent do not affect. The
/// layout of a file is fixed when it is created. All other parts take effect when the file is opened.
#[derive(clap::Args)]
#[command(after_help = "Parts, with their defaults in parentheses:
  layout            how new files are stored: stripe: striped over the iods; log (experimental, for files that many
                    processes write together): each writing client appends to a data log of its own (stripe)
  stripe_unit       bytes on one iod before the next one follows: 64 to 1G, a multiple of 64 (1M)
  stripe_count      number of iods for each file; 0: all (0)
  mirrors           copies of each file, 1 or 2; Weir's clients use files with 2 copies through the mgr (1)
  distribution      simple_stripe
  layout_when       when a client fetches the layout: open, first-io, a size (when the file is that long; until
                    then all data go through the mgr), auto: open if both thresholds are 0, else first-io (auto)
  write_threshold   gathered writes shorter than this take the mgr path, others the direct path to the iods: a size,
                    0 (all on the direct path), max (all on the mgr path), auto (the path that was faster lately)
                    (mounts 64K, else 0); writes to a file that several clients have open take the direct path,
                    except with max
  read_threshold    the same for reads, by the requested length: a size, 0, max (0)
  access            page: use the page cache; direct: bypass it, the client gathers writes; unbuffered: send each write
                    before it returns (direct)
  sharing           for clients that use a file at the same time. coherent: a call sees the effect of every call that
                    returned before, on all clients; close-to-open: an open sees all data written before another
                    client's close (coherent)
  gather_size       bytes to gather before they are sent: a size, 0 (send each write), full: one request per iod (full)
  gather_delay      longest time to gather, for example 5ms; the data are durable 5 s later. max: until gather_size,
                    fsync or close (mounts 1s, else max)
  mgr_gather_delay  the same on the mgr; mgr_gather_delay_ms in its configuration sets it (2ms)
  read_ahead        how far to read ahead of sequential and strided reads; with access=page, only mounts by root can
                    exceed 128K (1M)

Examples:
  weir policy show /project                          the policy of mounts without options, and where it is set
  weir policy show --mount /mnt/weir/project         the policy of this mount
  weir policy set /project stripe_unit=4M write_threshold=32K
  weir policy unset /project write_threshold
  weir policy set /project/log access=unbuffered     for every open of one file
  weir policy set --mount /mnt/weir write_threshold=1M     a running mount, from the next read or write
  setfattr -n user.weir.write_threshold -v 32K /mnt/weir/project       the same as policy set, through a mount")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the policy of a directory or file, and where each part is set
    #[command(alias = "get")]
    Show(Show),
    /// Set parts of the policy of a directory or file, or of a mount
    Set(Set),
    /// Remove settings, so that the inherited value applies
    Unset(Set),
}

#[derive(clap::Args)]
struct Show {
    /// The directory or file whose policy to show [default: the directory that WEIR_URL names]
    path: Option<OsString>,
    /// The path is on a mount of this machine. This is the default if WEIR_URL is not set
    #[arg(long)]
    mount: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: Connect,
}

#[derive(clap::Args)]
struct Set {
    /// The directory, file or mount point whose policy to change
    path: OsString,
    /// Parts of the policy, as NAME=VALUE (for unset: NAME)
    #[arg(required = true, value_name = "PART")]
    parts: Vec<String>,
    /// The path is a mount point: change the policy of the mount
    #[arg(long)]
    mount: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Runs `weir policy`.
pub fn run(args: Args) -> Outcome {
    match args.action {
        Action::Show(args) => show_policy(args),
        Action::Set(args) if args.mount => set_mount(&args, true),
        Action::Unset(args) if args.mount => set_mount(&args, false),
        Action::Set(args) => set(args, true),
        Action::Unset(args) => set(args, false),
    }
}

/// Name of the extended attribute from which a mount returns the effective policy of a file or directory.
const EFFECTIVE: &str = "user.weir.effective";
/// Prefix of the extended attributes through which programs set policy settings of the mount.
const OPTION: &str = "user.weir.mount.";
/// Size of the buffer for the value of [`EFFECTIVE`], in bytes.
const ROOM: usize = 64 << 10;

/// The value of one policy setting that is in effect.
#[derive(Serialize)]
struct Row {
    value: String,
    /// Where the policy setting was made, for example on a directory or by an option of the mount.
    origin: String,
}

type Rows = Vec<(String, Row)>;

fn show_policy(args: Show) -> Outcome {
    let is_url = args.path.as_ref().is_some_and(|path| path.as_encoded_bytes().starts_with(b"weir:"));
    let mounted = args.mount || args.connect.base()?.is_none() && !is_url;
    let rows = match &args.path {
        Some(path) if mounted => of_mounted(Path::new(path))?,
        _ if args.mount => {
            return Err(Failure::usage("--mount: the path is missing").next("name a directory of a mount"));
        }
        _ => return show_remote(&args),
    };
    print(rows, args.json)
}

fn show_remote(args: &Show) -> Outcome {
    let target = args.connect.target_or_base(args.path.as_ref())?;
    let connect = &args.connect;
    crate::session::runtime()?.block_on(async {
        // The path is below a URL, not on a mount. So show the policy that a mount without policy options uses.
        let options = Options { driver: fuse::driver(), ..connect.options()? };
        let mount = Mount::connect(&target, options).await?;
        let rows = of_remote(&mount, &target).await.map_err(|e| e.about(&target));
        // Ignore an error when the session ends, because the command has already received the policy.
        let _ = mount.disconnect().await;
        print(rows?, args.json)
    })
}

async fn of_remote(mount: &Mount, target: &Target) -> Result<Rows, Failure> {
    let (node, kind) = find(mount, target).await?;
    let dir = match target.path().split_last() {
        Some((_, above)) => Some(mount.resolve(above, true).await?.0),
        None => None,
    };
    let (_, effective) = mount.policy_of(&node, dir.as_ref()).await?;
    let file = kind == FileKind::Regular;
    let shown = effective.rows().filter(|(part, ..)| !(file && part.is_placement()));
    Ok(shown.map(|(part, value, origin)| (part.name().into(), Row { value, origin: origin.name().into() })).collect())
}

/// Returns the effective policy of `path`. The process that serves the mount reports it in an extended attribute.
fn of_mounted(path: &Path) -> Result<Rows, Failure> {
    let mut room = vec![0; ROOM];
    let len = rustix::fs::getxattr(path, EFFECTIVE, &mut room).map_err(|e| not_mounted(path, e))?;
    let text = String::from_utf8_lossy(&room[..len]).into_owned();
    let row = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        let (value, origin) = rest.rsplit_once(' ')?;
        Some((name.to_owned(), Row { value: value.to_owned(), origin: origin.to_owned() }))
    };
    Ok(text.lines().filter_map(row).collect())
}

fn not_mounted(path: &Path, error: rustix::io::Errno) -> Failure {
    let none = [rustix::io::Errno::NODATA, rustix::io::Errno::NOTSUP].contains(&error);
    let failure = if none { Failure::new("no Weir file system is mounted there") } else { Failure::new(error) };
    failure.about(path.display())
}

fn print(rows: Rows, json: bool) -> Outcome {
    if json {
        show::json(&rows.into_iter().collect::<BTreeMap<_, _>>())?;
        return Ok(Exit::Done);
    }
    for (name, Row { value, origin }) in rows {
        show::line(&format!("{name:<17} {value:<14} {origin}"))?;
    }
    Ok(Exit::Done)
}

async fn find(mount: &Mount, target: &Target) -> Result<(Node, FileKind), Failure> {
    let (node, attrs) = mount.resolve(target.path(), true).await?;
    match attrs.kind {
        FileKind::Directory | FileKind::Regular => Ok((node, attrs.kind)),
        other => Err(Failure::new(format!("a {} has no policy", show::kind(other)))),
    }
}

/// Returns the policy settings that the command line sets or unsets, each with its value. Checks each value as far as
/// possible without the directory, file or mount.
fn parts(args: &Set, give: bool) -> Result<Vec<(Part, Option<&str>)>, Failure> {
    let mut parts = Vec::new();
    for text in &args.parts {
        let (name, value) = match (text.split_once('='), give) {
            (Some((name, value)), true) => (name, Some(value)),
            (None, false) => (text.as_str(), None),
            (None, true) => return Err(Failure::usage(format!("{text}: no value")).next("write NAME=VALUE")),
            (Some(_), false) => {
                return Err(
                    Failure::usage(format!("{text}: \"unset\" takes no value")).next("write only the name of the part")
                );
            }
        };
        let part = Part::named(name.as_bytes()).map_err(Failure::usage)?;
        if let Some((old, new)) = value.and_then(|value| Some((value, part.present_value(value)?))) {
            deprecated::warn(old, new);
        }
        check(part, value, if args.mount { Origin::Mount } else { Origin::Directory })?;
        parts.push((part, value));
    }
    Ok(parts)
}

fn check(part: Part, value: Option<&str>, origin: Origin) -> Result<(), Failure> {
    let Some(value) = value else { return Ok(()) };
    let checked = Settings::default().set(origin, part.name().as_bytes(), value.as_bytes());
    checked.map(drop).map_err(Failure::usage)
}

/// Sets or removes policy settings of the mount at a path.
fn set_mount(args: &Set, give: bool) -> Outcome {
    let path = Path::new(OsStr::new(&args.path));
    // Read the policy of the path first. This fails for a path outside a mount, so that such a path gets its own error
    // message.
    of_mounted(path)?;
    for (part, value) in parts(args, give)? {
        let name = format!("{OPTION}{}", part.name());
        let done = match value {
            Some(value) => rustix::fs::setxattr(path, name.as_str(), value.as_bytes(), rustix::fs::XattrFlags::empty()),
            None => match rustix::fs::removexattr(path, name.as_str()) {
                Err(rustix::io::Errno::NODATA) => Ok(()),
                other => other,
            },
        };
        done.map_err(|e| Failure::new(e).about(format_args!("{}: {}", path.display(), part.name())))?;
    }
    Ok(Exit::Done)
}

fn set(args: Set, give: bool) -> Outcome {
    let target = args.connect.target(&args.path)?;
    let parts = parts(&args, give)?;
    with_mounts(&args.connect, async |mounts| {
        let mount = mounts.get(&target).await?;
        let (node, kind) = find(&mount, &target).await.map_err(|e| e.about(&target))?;
        let origin = if kind == FileKind::Directory { Origin::Directory } else { Origin::File };
        for (part, value) in &parts {
            check(*part, *value, origin).map_err(|e| e.about(&target))?;
        }
        for (part, value) in &parts {
            let failed = |e: client::Error| Failure::from(e).about(format!("{target}: {}", part.name()));
            let name = part.xattr();
            let done = match value {
                Some(value) => mount.setxattr(&node, name.as_bytes(), value.as_bytes(), XattrMode::Either).await,
                None => match mount.removexattr(&node, name.as_bytes()).await {
                    Err(e) if e.is(Status::NoXattr) => Ok(()),
                    done => done,
                },
            };
            done.map_err(failed)?;
        }
        Ok(Exit::Done)
    })
}
