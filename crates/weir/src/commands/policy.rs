//! `weir policy`: how new files of a directory are laid out.

use crate::failure::{Exit, Failure, Outcome};
use crate::session::{Connect, run as with_mounts};
use crate::show;
use client::{Mount, Node, Target, XattrMode};
use layout::policy::{CACHE, NAMES, PREFIX, Policy, THRESHOLD, is_policy_name};
use std::collections::BTreeMap;
use std::ffi::OsString;
use types::{FileKind, Status};

/// Show and set how new files of a directory are laid out
///
/// A new directory takes the policy of its parent, a new file that of its directory; both keep it when the
/// directory's policy changes later.
#[derive(clap::Args)]
#[command(after_help = "Parts of a policy:
  stripe_unit    bytes that go to one iod before the next: 64 to 1G, a multiple of 64 (1M)
  stripe_count   over how many iods a file is striped; 0 means all (0)
  mirrors        copies of each file, 1 or 2; clients of ours read and write files with 2 through the mgr (1)
  threshold      requests shorter than this go through the mgr; 0 means none does (0)
  cache          none or delegation (none)
  distribution   simple_stripe

Examples:
  weir policy get /project
  weir policy set /project stripe_unit=4M stripe_count=2
  weir policy unset /project stripe_count")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the policy of a directory or file
    Get(Get),
    /// Set parts of the policy of a directory or file
    Set(Set),
    /// Take parts back to what they are without a policy
    Unset(Set),
}

#[derive(clap::Args)]
struct Get {
    /// The directory or file; without it, the directory WEIR_URL names
    path: Option<OsString>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: Connect,
}

#[derive(clap::Args)]
struct Set {
    /// The directory or file
    path: OsString,
    /// Parts, as NAME=VALUE (for unset: NAME)
    #[arg(required = true, value_name = "PART")]
    parts: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Shows or sets.
pub fn run(args: Args) -> Outcome {
    match args.action {
        Action::Get(args) => get(args),
        Action::Set(args) => set(args, true),
        Action::Unset(args) => set(args, false),
    }
}

async fn find(mount: &Mount, target: &Target) -> Result<(Node, FileKind), Failure> {
    let (node, attrs) = mount.resolve(target.path(), true).await?;
    match attrs.kind {
        FileKind::Directory | FileKind::Regular => Ok((node, attrs.kind)),
        other => Err(Failure::new(format!("a {} has no policy", show::kind(other)))),
    }
}

fn get(args: Get) -> Outcome {
    let target = args.connect.target_or_base(args.path.as_ref())?;
    with_mounts(&args.connect, async |mounts| {
        let mount = mounts.get(&target).await?;
        let (policy, own) = read(&mount, &target).await.map_err(|e| e.about(&target))?;
        if args.json {
            let values = NAMES.map(|name| (short(name), policy.get(name).unwrap_or_default()));
            show::json(&BTreeMap::from(values))?;
            return Ok(Exit::Done);
        }
        for name in NAMES {
            let note = if own.iter().any(|set| set == name) { "" } else { "  (default)" };
            show::line(&format!("{:<14} {}{note}", short(name), policy.get(name).unwrap_or_default()))?;
        }
        Ok(Exit::Done)
    })
}

fn short(name: &'static str) -> &'static str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

/// The policy in force, and the names of the parts that are set.
async fn read(mount: &Mount, target: &Target) -> Result<(Policy, Vec<String>), Failure> {
    let (node, kind) = find(mount, target).await?;
    let mut found = Vec::new();
    for name in mount.listxattr(&node).await? {
        if is_policy_name(&name) {
            match mount.getxattr(&node, &name).await {
                Ok(value) => found.push((name, value)),
                Err(e) if e.is(Status::NoXattr) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    let pairs = found.iter().map(|(name, value)| (&name[..], &value[..]));
    let mut policy = Policy::default().with_xattrs(pairs).map_err(Failure::new)?;
    let mut own: Vec<String> = found.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect();
    if kind == FileKind::Regular {
        // What a file is laid out by is what its layout says, whatever its xattrs say.
        let placement = match mount.placement(&node).await {
            // With copies, which the mgr tells nobody of.
            Err(e) if e.is(Status::NoLayout) => {
                return Err(Failure::new(
                    "this file is read and written through the mgr alone, which does not tell how it lies",
                ));
            }
            placement => placement?,
        };
        policy.stripe_unit = placement.distribution.stripe_unit();
        policy.stripe_count = u32::try_from(placement.objects.len()).unwrap_or(u32::MAX);
        policy.distribution = placement.distribution.id();
        own.extend(NAMES.map(str::to_owned));
    }
    Ok((policy, own))
}

fn set(args: Set, give: bool) -> Outcome {
    let target = args.connect.target(&args.path)?;
    let mut check = Policy::default();
    let mut parts = Vec::new();
    for part in &args.parts {
        let (name, value) = match (part.split_once('='), give) {
            (Some((name, value)), true) => (name, Some(value)),
            (None, false) => (part.as_str(), None),
            (None, true) => return Err(Failure::usage(format!("{part}: no value")).next("write NAME=VALUE")),
            (Some(_), false) => return Err(Failure::usage(format!("{part}: a value")).next("write only the name")),
        };
        let Some(full) = NAMES.into_iter().find(|known| short(known) == name || *known == name) else {
            let known = NAMES.map(short).join(", ");
            return Err(
                Failure::usage(format!("no part of a policy is called {name:?}")).next(format!("there are {known}"))
            );
        };
        if let Some(value) = value {
            check.set(full.as_bytes(), value.as_bytes()).map_err(Failure::usage)?;
        }
        parts.push((full, value));
    }
    with_mounts(&args.connect, async |mounts| {
        let mount = mounts.get(&target).await?;
        let (node, kind) = find(&mount, &target).await.map_err(|e| e.about(&target))?;
        if let Some((name, _)) =
            parts.iter().find(|(name, _)| kind == FileKind::Regular && ![THRESHOLD, CACHE].contains(name))
        {
            return Err(Failure::usage(format!("{target}: a file keeps the {} it was made with", short(name)))
                .next("set it for the directory, then copy the file to a new name in it"));
        }
        for (name, value) in &parts {
            let done = match value {
                Some(value) => mount.setxattr(&node, name.as_bytes(), value.as_bytes(), XattrMode::Either).await,
                None => match mount.removexattr(&node, name.as_bytes()).await {
                    Err(e) if e.is(Status::NoXattr) => Ok(()),
                    other => other,
                },
            };
            done.map_err(|e| Failure::from(e).about(format!("{target}: {}", short(name))))?;
        }
        Ok(Exit::Done)
    })
}
