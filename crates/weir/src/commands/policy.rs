//! `weir policy`: how new files of a directory are laid out.

use crate::failure::{Exit, Failure, Outcome};
use crate::session::{Connect, run as with_mounts};
use crate::show;
use client::{Mount, Node, Target, XattrMode};
use layout::policy::is_policy_name;
use layout::{Origin, Part, Policy, Settings};
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
            let values: BTreeMap<_, _> = Part::ALL.iter().map(|part| (part.name(), policy.get(*part))).collect();
            show::json(&values)?;
            return Ok(Exit::Done);
        }
        for part in Part::ALL {
            let note = if own.contains(part) { "" } else { "  (default)" };
            show::line(&format!("{:<16} {}{note}", part.name(), policy.get(*part)))?;
        }
        Ok(Exit::Done)
    })
}

/// The policy in force, and the names of the parts that are set.
async fn read(mount: &Mount, target: &Target) -> Result<(Policy, Vec<Part>), Failure> {
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
    let origin = if kind == FileKind::Directory { Origin::Directory } else { Origin::File };
    let settings = Settings::of_xattrs(origin, pairs, |e| tracing::debug!("passed over: {e}"));
    let mut policy = Policy::default().with(&settings);
    let mut own: Vec<Part> = settings.parts().collect();
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
        own.extend(Part::ALL.iter().filter(|part| part.is_placement()));
    }
    Ok((policy, own))
}

fn set(args: Set, give: bool) -> Outcome {
    let target = args.connect.target(&args.path)?;
    let mut parts = Vec::new();
    for part in &args.parts {
        let (name, value) = match (part.split_once('='), give) {
            (Some((name, value)), true) => (name, Some(value)),
            (None, false) => (part.as_str(), None),
            (None, true) => return Err(Failure::usage(format!("{part}: no value")).next("write NAME=VALUE")),
            (Some(_), false) => return Err(Failure::usage(format!("{part}: a value")).next("write only the name")),
        };
        parts.push((Part::named(name.as_bytes()).map_err(Failure::usage)?, value));
    }
    with_mounts(&args.connect, async |mounts| {
        let mount = mounts.get(&target).await?;
        let (node, kind) = find(&mount, &target).await.map_err(|e| e.about(&target))?;
        let origin = if kind == FileKind::Directory { Origin::Directory } else { Origin::File };
        for (part, value) in &parts {
            if let Some(value) = value {
                let checked = Settings::default().set(origin, part.name().as_bytes(), value.as_bytes());
                checked.map_err(|e| Failure::usage(format!("{target}: {e}")))?;
            }
        }
        for (part, value) in &parts {
            let name = part.xattr();
            let done = match value {
                Some(value) => mount.setxattr(&node, name.as_bytes(), value.as_bytes(), XattrMode::Either).await,
                None => match mount.removexattr(&node, name.as_bytes()).await {
                    Err(e) if e.is(Status::NoXattr) => Ok(()),
                    other => other,
                },
            };
            done.map_err(|e| Failure::from(e).about(format!("{target}: {}", part.name())))?;
        }
        Ok(Exit::Done)
    })
}
