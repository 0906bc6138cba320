//! `weir scrub`: looks for damage on the disks of the iods.

use crate::admin::{self, Admin};
use crate::failure::{Exit, Failure, Outcome};
use crate::session::{Connect, runtime};
use crate::show;
use crate::stop::Stop;
use indicatif::{ProgressBar, ProgressStyle};
use layout::policy::parse_size;
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::time::Duration;
use types::Timestamp;
use wire::admin::{SCRUB, SCRUB_FINDINGS_MAX, ScrubAction, ScrubArgs, ScrubFinding, ScrubReply, ScrubState};
use wire::native::Damage;

/// Interval between two requests for the progress of the running scrub.
const EVERY: Duration = Duration::from_millis(300);
/// Maximum number of damaged byte ranges that one output line shows.
const RANGES_SHOWN: usize = 4;

/// Read all data on the iods and report damage
///
/// The iods read all objects from their disks and verify their checksums. The mgr names the damaged files and byte ranges.
/// The scrub runs in the cluster, and continues after restarts. It changes no data, except that it restores damaged bytes
/// of a file with two copies from the other copy. Exit code 0: no damage; 1: damage, or the scrub did not finish.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir scrub                         at full speed
  weir scrub --rate 50M              slowly, to leave the disks to other work
  weir scrub --no-wait               start the scrub and return
  weir scrub --status --json | jq .findings")]
pub struct Args {
    /// The file system [default: WEIR_URL]
    system: Option<OsString>,
    /// Read at most this many bytes per second, on all iods together; a number, optionally with K, M, G or T
    #[arg(long, value_name = "BYTES", value_parser = size, conflicts_with_all = ["status", "cancel", "wait"])]
    rate: Option<u64>,
    /// Show the state of the last scrub; do not start one
    #[arg(long, conflicts_with_all = ["cancel", "wait"])]
    status: bool,
    /// Cancel the running scrub
    #[arg(long, conflicts_with = "wait")]
    cancel: bool,
    /// Wait for the running scrub; do not start one
    #[arg(long)]
    wait: bool,
    /// Start a scrub and return
    #[arg(long, conflicts_with_all = ["status", "cancel", "wait"])]
    no_wait: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Serialize)]
struct JsonScrub {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<String>,
    rate: u64,
    objects: u64,
    objects_total: u64,
    bytes: u64,
    bytes_total: u64,
    verified: u64,
    rebuilt: u64,
    found: u64,
    findings: Vec<JsonFinding>,
}

#[derive(Serialize)]
struct JsonFinding {
    paths: Vec<show::JsonPath>,
    /// Damaged byte ranges of the file, each as (offset, length).
    ranges: Vec<(u64, u64)>,
    more_ranges: bool,
    damage: &'static str,
    iod: String,
    object: u64,
    object_offset: u64,
    object_length: u64,
}

fn size(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => Err("not a rate; write bytes per second, as a number or with K, M, G or T, such as 50M".to_owned()),
    }
}

/// Runs `weir scrub`: starts, cancels or awaits a scrub as the options say, and prints the state and the findings.
pub fn run(args: Args) -> Outcome {
    let target = args.connect.target_or_base(args.system.as_ref())?;
    let address = admin::mgr_of(&target);
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        let stop = Stop::listen()?;
        admin::must_exist(&args.connect, &target).await?;
        let admin = Admin::connect(address, args.connect.timeout()).await?;
        let action = match (args.status || args.wait, args.cancel) {
            (true, _) => ScrubAction::Status,
            (_, true) => ScrubAction::Cancel,
            _ => ScrubAction::Start,
        };
        let rate = args.rate.unwrap_or(0);
        let mut reply = ask(&admin, action, rate, None).await?;
        if action == ScrubAction::Start && args.no_wait {
            show::line("the scrub is running; \"weir scrub --status\" shows its progress")?;
            return Ok(Exit::Done);
        }
        if !args.status && !args.cancel {
            tokio::select! {
                waited = wait(&admin, args.json) => reply = waited?,
                () = stop.wait() => {
                    return Err(Failure::interrupted()
                        .next("the cluster continues the scrub; \"weir scrub --wait\" waits for it, --cancel cancels it"));
                }
            }
        }
        let findings = findings(&admin, reply.kept).await?;
        if args.json {
            show::json(&json(&reply, &findings))?;
        } else {
            show::raw(text(&reply, &findings).as_bytes())?;
        }
        // A scrub that was cancelled on request, or that still runs, is not a failure of this command.
        let ended = match reply.state {
            ScrubState::Done | ScrubState::Never => true,
            ScrubState::Running => args.status,
            ScrubState::Cancelled => args.cancel || args.status,
            ScrubState::Failed => false,
        };
        Ok(if ended && reply.found == 0 { Exit::Done } else { Exit::Failed })
    });
    runtime.shutdown_background();
    outcome
}

async fn ask(admin: &Admin, action: ScrubAction, rate: u64, from: Option<u32>) -> Result<ScrubReply, Failure> {
    let reply: ScrubReply = admin.ask(SCRUB, &ScrubArgs { action, rate, findings_from: from }).await?;
    match reply.refused {
        Some(why) => {
            Err(Failure::new(why)
                .next("\"weir scrub --status\" shows the state of the scrub, --wait waits for its end"))
        }
        None => Ok(reply),
    }
}

/// Requests the state of the scrub from the mgr repeatedly until the scrub ends, and shows its progress.
async fn wait(admin: &Admin, quiet: bool) -> Result<ScrubReply, Failure> {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let style =
        ProgressStyle::with_template("{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {msg}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    loop {
        let reply = ask(admin, ScrubAction::Status, 0, None).await?;
        bar.set_length(reply.bytes_total.max(reply.bytes));
        bar.set_position(reply.bytes);
        bar.set_message(match (&reply.problem, reply.found) {
            (Some(problem), _) => problem.clone(),
            (None, 0) => String::new(),
            (None, found) => format!("{found} damaged"),
        });
        if reply.state != ScrubState::Running {
            bar.finish_and_clear();
            return Ok(reply);
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Requests from the mgr all stored findings of the last scrub.
async fn findings(admin: &Admin, kept: u32) -> Result<Vec<ScrubFinding>, Failure> {
    let mut all = Vec::new();
    while (all.len() as u32) < kept {
        let page = ask(admin, ScrubAction::Status, 0, Some(all.len() as u32)).await?.findings;
        let last = page.len() < SCRUB_FINDINGS_MAX;
        all.extend(page);
        if last {
            break;
        }
    }
    Ok(all)
}

fn state(state: ScrubState) -> &'static str {
    match state {
        ScrubState::Never => "never",
        ScrubState::Running => "running",
        ScrubState::Done => "done",
        ScrubState::Cancelled => "cancelled",
        ScrubState::Failed => "failed",
    }
}

fn damage(damage: Damage) -> &'static str {
    match damage {
        Damage::Object => "object",
        Damage::Checksum => "checksum",
        Damage::Unreadable => "unreadable",
    }
}

fn started(reply: &ScrubReply) -> Option<Timestamp> {
    (reply.started > 0).then(|| Timestamp { secs: i64::try_from(reply.started).unwrap_or(i64::MAX), nanos: 0 })
}

fn json(reply: &ScrubReply, findings: &[ScrubFinding]) -> JsonScrub {
    let finding = |f: &ScrubFinding| JsonFinding {
        paths: f.paths.iter().map(|path| (&path[..]).into()).collect(),
        ranges: f.ranges.iter().map(|(start, end)| (*start, end.saturating_sub(*start))).collect(),
        more_ranges: f.more,
        damage: damage(f.damage),
        iod: f.iod.clone(),
        object: f.object,
        object_offset: f.offset,
        object_length: f.len,
    };
    JsonScrub {
        state: state(reply.state),
        problem: reply.problem.clone(),
        started: started(reply).map(show::time_exact),
        rate: reply.rate,
        objects: reply.objects,
        objects_total: reply.objects_total,
        bytes: reply.bytes,
        bytes_total: reply.bytes_total,
        verified: reply.verified,
        rebuilt: reply.rebuilt,
        found: reply.found,
        findings: findings.iter().map(finding).collect(),
    }
}

fn text(reply: &ScrubReply, findings: &[ScrubFinding]) -> String {
    let mut out = String::new();
    for finding in findings {
        out += &line(finding);
    }
    if reply.found > findings.len() as u64 {
        let _ = writeln!(out, "and {} more", reply.found - findings.len() as u64);
    }
    let Some(started) = started(reply) else { return "no scrub yet\n".to_owned() };
    let _ = writeln!(out, "scrub of {} UTC: {}", show::time(started), state(reply.state));
    if let Some(problem) = &reply.problem {
        let _ = writeln!(out, "  {}", show::path(problem.as_bytes()));
    }
    let _ = writeln!(
        out,
        "  read {} of {} in {} of {} objects; {} have checksums",
        show::size(reply.bytes),
        show::size(reply.bytes_total.max(reply.bytes)),
        reply.objects,
        reply.objects_total.max(reply.objects),
        show::size(reply.verified),
    );
    if reply.rebuilt > 0 {
        let _ = writeln!(out, "  {} blocks without checksums after a crash have new checksums", reply.rebuilt);
    }
    let _ = writeln!(out, "  damaged places: {}", reply.found);
    out
}

/// Formats a damaged object as one line.
fn line(finding: &ScrubFinding) -> String {
    let names: Vec<_> = finding.paths.iter().map(|path| show::path(path)).collect();
    let name = if names.is_empty() { format!("inode {} (no name)", finding.object) } else { names.join(" = ") };
    let what = match finding.damage {
        Damage::Object => "a whole object is damaged",
        Damage::Checksum => "the data do not match their checksum",
        Damage::Unreadable => "cannot be read",
    };
    let mut ranges: Vec<_> = finding
        .ranges
        .iter()
        .take(RANGES_SHOWN)
        .map(|(start, end)| format!("{start}-{}", end.saturating_sub(1)))
        .collect();
    if finding.more || finding.ranges.len() > RANGES_SHOWN {
        ranges.push("...".to_owned());
    }
    let bytes = if ranges.is_empty() { String::new() } else { format!(" bytes {}:", ranges.join(", ")) };
    format!("{name}:{bytes} {what} (iod {})\n", show::path(finding.iod.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> ScrubFinding {
        ScrubFinding {
            iod: "i".into(),
            object: 5,
            damage: Damage::Checksum,
            offset: 0,
            len: 100,
            paths: vec!["/a".into(), "/b\n".into()],
            ranges: vec![(0, 64), (128, 164)],
            more: false,
        }
    }

    #[test]
    fn a_finding_names_file_and_bytes() {
        assert_eq!(
            line(&finding()),
            "/a = \"/b\\n\": bytes 0-63, 128-163: the data do not match their checksum (iod i)\n"
        );
        let gone = ScrubFinding { paths: vec![], ranges: vec![], damage: Damage::Object, ..finding() };
        assert_eq!(line(&gone), "inode 5 (no name): a whole object is damaged (iod i)\n");
        let many = ScrubFinding { ranges: vec![(0, 1); 9], ..finding() };
        assert!(line(&many).contains("0-0, ...:"));
    }

    #[test]
    fn text_reports_a_missing_scrub_and_omitted_findings() {
        assert_eq!(text(&ScrubReply::default(), &[]), "no scrub yet\n");
        let reply = ScrubReply { started: 1, found: 3, state: ScrubState::Done, ..ScrubReply::default() };
        let text = text(&reply, &[finding()]);
        assert!(text.contains("and 2 more\n") && text.contains(": done\n"), "{text}");
    }
}
