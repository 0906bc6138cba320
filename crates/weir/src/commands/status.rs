//! `weir status`: prints the health of a cluster, which the command computes from the mgr's status report.

use crate::admin::{self, Admin};
use crate::failure::{Exit, Failure, Outcome};
use crate::health::Health;
use crate::session::{Connect, runtime};
use crate::show;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use wire::admin::{Group, STATUS, Status, Value};

/// Show the health of a cluster: daemons that are down, capacity, clients, pending work
///
/// Exit code 0: healthy; 1: degraded, and the lines "problem" say why; 3: the mgr cannot be reached.
#[derive(clap::Args)]
#[command(after_help = "docs/status.md explains every line.

Examples:
  weir status
  weir status -v                        also every daemon, counter and export
  weir status --json weir://host | jq '.[0].values'")]
pub struct Args {
    /// The file system, or a directory in it [default: WEIR_URL]
    system: Option<OsString>,
    /// Print everything as one JSON array of groups; the first group is the health
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Serialize)]
struct JsonGroup<'a> {
    group: &'a str,
    values: BTreeMap<&'a str, JsonValue<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonValue<'a> {
    Number(u64),
    Text(&'a str),
}

/// Requests the status from the mgr and prints it. If `details` is set, prints all groups of the status.
pub fn run(args: Args, details: bool) -> Outcome {
    let target = args.connect.target_or_base(args.system.as_ref())?;
    let runtime = runtime()?;
    let status = runtime.block_on(async {
        admin::must_exist(&args.connect, &target).await?;
        Admin::connect(admin::mgr_of(&target), args.connect.timeout()).await?.ask_for::<Status>(STATUS).await
    });
    runtime.shutdown_background();
    let status = status?;
    if status.group("work").is_none() {
        return Err(Failure::new("the mgr is running, but shows its status only to clients that can use an export")
            .next(
                "run this as root on a machine that an [[export]] names, or as root on the mgr's machine; or set \
                 \"privileged_ports = false\" for the export",
            ));
    }
    let health = Health::of(&status);
    if args.json {
        let judged = judged(&health);
        let groups: Vec<JsonGroup> = std::iter::once(&judged).chain(&status.groups).map(json_group).collect();
        show::json(&groups)?;
    } else {
        show::raw(health.text().as_bytes())?;
        if details {
            show::raw(text(&status).as_bytes())?;
        }
    }
    Ok(if health.is_degraded() { Exit::Failed } else { Exit::Done })
}

/// Returns the health of the cluster as a [`Group`] of named values, like the groups in the mgr's status report.
fn judged(health: &Health) -> Group {
    let mut group = Group::new("health");
    group.text("verdict", health.verdict());
    group.number("problems", health.problems.len() as u64);
    for (number, problem) in health.problems.iter().enumerate() {
        group.text(&format!("problem_{}", number + 1), problem);
    }
    group
}

fn json_group(group: &Group) -> JsonGroup<'_> {
    let values = group.values.iter().map(|(name, value)| {
        let value = match value {
            Value::Number(n) => JsonValue::Number(*n),
            Value::Text(text) => JsonValue::Text(text),
        };
        (name.as_str(), value)
    });
    JsonGroup { group: &group.name, values: values.collect() }
}

fn text(status: &Status) -> String {
    let mut out = String::new();
    for group in &status.groups {
        out += &format!("\n{}\n", show::path(group.name.as_bytes()));
        let width = group.values.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &group.values {
            let value = match value {
                // Print each size also with a unit, because a large number of bytes is hard to read.
                Value::Number(n) if name.contains("bytes") => format!("{n} ({})", show::size(*n)),
                Value::Number(n) => n.to_string(),
                Value::Text(text) => show::path(text.as_bytes()),
            };
            out += &format!("  {:<width$}  {value}\n", show::path(name.as_bytes()));
        }
    }
    out
}
