//! `weir fsck`: makes the mgr check a running file system for damage, and prints the findings.

use crate::admin;
use crate::failure::{Exit, Failure, Outcome, UNREACHABLE};
use crate::session::{Connect, runtime};
use crate::show;
use net::Address;
use net::rpc::Connection;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use tokio::time::Instant;
use wire::admin::{CHECK, CheckArgs, CheckReply, Finding, Mended, PROGRAM, Severity, VERSION};
use xdr::Xdr;

/// Maximum number of rounds of a check with repairs. Each round looks for the damage that the previous round has left.
const ROUNDS_MAX: usize = 5;
/// Time limit for one page of findings. It is long, because the mgr looks up the path of each finding before it sends
/// the page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(300);
/// Pause before the command connects to the mgr again after a failed attempt.
const PAUSE: Duration = Duration::from_millis(500);

/// Check a running file system for damage, and repair it
#[derive(clap::Args)]
#[command(after_help = "The mgr runs the check while the file system is in use. Without --repair nothing changes.
It compares names, inodes, counts and lists with one another, and the files with the objects on all iods.
A file has lost bytes if one of its objects is missing, or shorter than at the last sync of the file. \"weir scrub\" finds
bytes that changed on a disk, in stores with block checksums. A check after it lists the files that are still damaged;
--repair restores the bytes of files that have a second copy.

Exit codes, as in e2fsck; the highest that applies:
  0  no damage
  1  all damage is repaired
  4  damage is left
  8  the check is incomplete: it could not reach the cluster or an iod, or it was aborted
  2  wrong usage; 130 interrupted

Examples:
  weir fsck
  weir fsck --json weir://host | jq 'select(.severity == \"loss\")'
  weir fsck --repair weir://host")]
pub struct Args {
    /// The file system [default: WEIR_URL]
    system: Option<OsString>,
    /// Repair the damage, as far as possible
    #[arg(long)]
    repair: bool,
    /// Print one JSON object per line: each finding, then a summary
    #[arg(long)]
    json: bool,
    /// Print only findings
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Serialize)]
struct JsonFinding<'a> {
    code: &'a str,
    severity: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    paths: Vec<show::JsonPath>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iod: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<(u64, u64)>,
    text: &'a str,
    remedy: &'a str,
    outcome: &'static str,
}

#[derive(Serialize)]
struct JsonSummary<'a> {
    summary: bool,
    findings: u64,
    repaired: u64,
    left: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    broken_off: Option<&'a str>,
    counts: BTreeMap<&'a str, u64>,
}

/// Totals over all pages of findings of one round of the check; `repaired` is the total of all rounds.
#[derive(Default)]
struct Sum {
    repaired: u64,
    left: u64,
    unchecked: bool,
    broken_off: Option<String>,
    counts: Vec<(String, u64)>,
}

/// Runs `weir fsck`.
pub fn run(args: Args) -> Outcome {
    let target = args.connect.target_or_base(args.system.as_ref())?;
    let address = admin::mgr_of(&target);
    let runtime = runtime()?;
    if let Err(failure) = runtime.block_on(admin::must_exist(&args.connect, &target)) {
        runtime.shutdown_background();
        return Err(failure);
    }
    let sum = runtime.block_on(check(&address, &args)).map_err(|failure| match failure.code {
        Exit::Usage | Exit::Interrupted => failure,
        _ => Failure { code: Exit::Unchecked, ..failure },
    });
    runtime.shutdown_background();
    let sum = sum?;
    summary(&sum, &args)?;
    Ok(match &sum {
        Sum { unchecked: true, .. } | Sum { broken_off: Some(_), .. } => Exit::Unchecked,
        Sum { left: 1.., .. } => Exit::Left,
        Sum { repaired: 1.., .. } => Exit::Failed,
        _ => Exit::Done,
    })
}

/// Runs a check. As long as a round has repaired damage, runs another round, at most [`ROUNDS_MAX`] rounds in total.
async fn check(address: &Address, args: &Args) -> Result<Sum, Failure> {
    let mut sum = Sum::default();
    for _ in 0..ROUNDS_MAX {
        let before = sum.repaired;
        // Over all rounds of the check, add up only the number of repairs. Each round finds the unrepaired damage
        // again, so a sum of the findings would count this damage several times.
        sum = Sum { repaired: before, ..Sum::default() };
        round(address, args, &mut sum).await?;
        if sum.repaired == before || sum.broken_off.is_some() {
            break;
        }
    }
    Ok(sum)
}

async fn round(address: &Address, args: &Args, sum: &mut Sum) -> Result<(), Failure> {
    let mut progress = Progress::new(args);
    let mut asker = Asker { address, args, connection: None };
    let mut ask = CheckArgs { run: 0, page: 0, repair: args.repair };
    loop {
        let page = asker.page(ask).await?;
        if let Some(why) = page.refused {
            return Err(Failure::new(format!("{address}: {why}")));
        }
        progress.clear();
        for finding in &page.findings {
            sum.add(finding);
            show_finding(finding, args)?;
        }
        progress.draw(&page);
        if page.end {
            progress.clear();
            (sum.broken_off, sum.counts) = (page.broken_off, page.counts);
            return Ok(());
        }
        ask = CheckArgs { run: page.run, page: page.page + 1, repair: args.repair };
    }
}

/// The connection over which the command requests pages of findings. After a connection failure, the command connects
/// again.
struct Asker<'a> {
    address: &'a Address,
    args: &'a Args,
    connection: Option<Connection>,
}

impl Asker<'_> {
    async fn page(&mut self, ask: CheckArgs) -> Result<CheckReply, Failure> {
        let until = Instant::now() + self.args.connect.retry_timeout();
        let auth = admin::auth();
        loop {
            let failure = match self.connection().await {
                Ok(connection) => {
                    tracing::debug!(mgr = %self.address, procedure = CHECK, "request");
                    match connection.call(PROGRAM, VERSION, CHECK, &auth, ask.to_bytes().into(), PAGE_TIMEOUT).await {
                        Ok(mut reply) => {
                            let malformed = |e| Failure::new(format!("{}: malformed reply: {e}", self.address));
                            return CheckReply::decode(&mut reply.body).map_err(malformed);
                        }
                        Err(net::Error::Refused(refusal)) => return Err(admin::no_mgr(self.address, refusal)),
                        Err(e) => e,
                    }
                }
                // Before the first page of findings arrives, no check is running that the command could continue. So
                // report a failed connection at once, without a retry.
                Err(e) if ask.run == 0 => return Err(Failure::new(e).next(UNREACHABLE)),
                Err(e) => e,
            };
            self.connection = None;
            if Instant::now() >= until {
                return Err(Failure::new(failure)
                    .next("the mgr ends the unfinished check by itself; run the same command again"));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn connection(&mut self) -> Result<Connection, net::Error> {
        if let Some(connection) = self.connection.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let made = admin::connect(self.address, self.args.connect.timeout()).await?;
        Ok(self.connection.insert(made).clone())
    }
}

impl Sum {
    fn add(&mut self, finding: &Finding) {
        match (finding.severity, finding.mended) {
            (Severity::Unchecked, _) => self.unchecked = true,
            (_, Mended::Yes) => self.repaired += 1,
            (_, Mended::No | Mended::Failed) => self.left += 1,
        }
    }
}

fn severity(finding: &Finding) -> &'static str {
    match finding.severity {
        Severity::Unchecked => "unchecked",
        Severity::Error => "error",
        Severity::Loss => "loss",
    }
}

fn show_finding(finding: &Finding, args: &Args) -> Result<(), Failure> {
    if args.json {
        return show::json(&JsonFinding {
            code: &finding.code,
            severity: severity(finding),
            inode: finding.inode,
            paths: finding.paths.iter().map(|path| path[..].into()).collect(),
            iod: finding.iod.as_deref(),
            range: finding.range,
            text: &finding.text,
            remedy: &finding.remedy,
            outcome: match finding.mended {
                Mended::No => "found",
                Mended::Yes => "repaired",
                Mended::Failed => "left",
            },
        });
    }
    let mut about: Vec<String> = finding.paths.iter().map(|path| show::path(path)).collect();
    about.extend(finding.inode.map(|inode| format!("inode {inode}")));
    about.extend(finding.iod.as_ref().map(|iod| format!("iod {}", show::path(iod.as_bytes()))));
    about.extend(finding.range.map(|(from, to)| format!("bytes {from}-{}", to.saturating_sub(1))));
    let outcome = match finding.mended {
        Mended::No => format!("repair: {}", finding.remedy),
        Mended::Yes => "repaired".to_owned(),
        Mended::Failed => format!("left; repair: {}", finding.remedy),
    };
    let (code, text) = (show::path(finding.code.as_bytes()), show::path(finding.text.as_bytes()));
    show::line(&format!(
        "{} {code}: {}: {text} ({})",
        severity(finding),
        about.join(", "),
        show::path(outcome.as_bytes())
    ))
}

fn summary(sum: &Sum, args: &Args) -> Result<(), Failure> {
    if args.json {
        let counts = sum.counts.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        return show::json(&JsonSummary {
            summary: true,
            findings: sum.repaired + sum.left,
            repaired: sum.repaired,
            left: sum.left,
            broken_off: sum.broken_off.as_deref(),
            counts,
        });
    }
    if let Some(why) = &sum.broken_off {
        eprintln!("weir: the check is incomplete {}", show::path(why.as_bytes()));
    }
    if args.quiet {
        return Ok(());
    }
    let count = |name: &str| sum.counts.iter().find(|(n, _)| n == name).map_or(0, |(_, value)| *value);
    let verdict = match (sum.repaired, sum.left) {
        (0, 0) if sum.unchecked || sum.broken_off.is_some() => {
            "no damage in the records and objects that could be checked".to_owned()
        }
        (0, 0) => "clean".to_owned(),
        (repaired, left) => format!("{} found, {repaired} repaired, {left} left", repaired + left),
    };
    let (records, files, objects) = (count("records"), count("files"), count("objects"));
    show::line(&format!("checked {records} records, {files} files, {objects} objects: {verdict}"))
}

/// The line on the terminal that shows the progress of the check.
struct Progress {
    on: bool,
    drawn: bool,
}

impl Progress {
    fn new(args: &Args) -> Self {
        Progress { on: !args.quiet && !args.json && std::io::stderr().is_terminal(), drawn: false }
    }

    fn draw(&mut self, page: &CheckReply) {
        if !self.on || page.end {
            return;
        }
        let phase = show::path(page.phase.as_bytes());
        let of = if page.total > 0 { format!(" of about {}", page.total) } else { String::new() };
        // Ignore write errors: if the user has closed the terminal, the progress line is not needed any more.
        let _ = write!(std::io::stderr(), "\r\x1b[Kchecking {phase}: {}{of}", page.done);
        self.drawn = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
