//! The online check (`weir fsck`): a task that checks the namespace, the mgr's registry records, and the objects of
//! every iod while the mgr serves clients.
//!
//! A check sends its findings through a bounded channel. The admin client fetches the findings page by page, and may
//! continue over a new connection. Before the check reports a problem, it checks the same file or object again, so that
//! a change in progress does not look like damage.

mod files;
mod finding;
mod names;
mod objects;
mod run;
mod scrubbed;
mod truncations;

use crate::fs::NfsServer;
use crate::paths;
use bytes::Bytes;
use run::Step;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use types::FileId;
use wire::admin::{CheckArgs, CheckReply, FINDINGS_MAX};

/// Largest number of checks that run at a time.
const RUNS_MAX: usize = 4;
/// Number of ended checks that the mgr keeps, so that a client can request the last page of its check again.
const ENDED_MAX: usize = 16;
/// How long the mgr keeps a check after the last page request of the client.
const IDLE: Duration = Duration::from_secs(120);
/// How long the mgr waits for further findings before it replies to a page request with the findings that it has.
const PATIENCE: Duration = Duration::from_millis(500);
/// Capacity of the channel between a check and its page requests, in messages.
const WAITING: usize = 256;

/// Checks that are running, and completed checks that the mgr has not discarded yet. The key is the random number of
/// the check.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    runs: Mutex<HashMap<u64, Arc<Run>>>,
}

#[derive(Debug)]
struct Run {
    taking: tokio::sync::Mutex<Taking>,
    asked: Mutex<Instant>,
    task: JoinHandle<()>,
}

/// The receiving end of a check: its channel of messages, and the last page that the mgr sent.
#[derive(Debug)]
struct Taking {
    steps: mpsc::Receiver<Step>,
    last: Option<CheckReply>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn refused(why: &str) -> CheckReply {
    CheckReply { refused: Some(why.to_owned()), ..CheckReply::default() }
}

impl Checks {
    /// Executes one CHECK request of the admin program: starts a check, or returns the next page of a running check.
    pub(crate) async fn call(&self, server: &Arc<NfsServer>, args: CheckArgs) -> CheckReply {
        let run = match args.run {
            0 => match self.start(server, args.repair) {
                Ok(run) => run,
                Err(why) => return refused(why),
            },
            number => match self.runs().get(&number).cloned() {
                Some(run) => (number, run),
                None => return refused("this check has ended, or the mgr has restarted: begin again"),
            },
        };
        let (number, run) = run;
        let mut taking = run.taking.lock().await;
        *run.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let last = taking.last.as_ref().map(|last| last.page);
        let next = last.map_or(0, |last| last + 1);
        match &taking.last {
            Some(told) if told.page == args.page => return told.clone(),
            Some(told) if told.end => return refused("this check has ended"),
            _ if args.page != next => return refused("this page is no longer available: begin again"),
            _ => {}
        }
        let mut page = CheckReply { run: number, page: next, ..CheckReply::default() };
        if let Some(last) = &taking.last {
            (page.phase, page.done, page.total) = (last.phase.clone(), last.done, last.total);
        }
        gather(&mut taking.steps, &mut page).await;
        name(server, &mut page).await;
        taking.last = Some(page.clone());
        page
    }

    fn start(&self, server: &Arc<NfsServer>, repair: bool) -> Result<(u64, Arc<Run>), &'static str> {
        let mut runs = self.runs();
        runs.retain(|_, run| run.asked.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < IDLE);
        // The table keeps ended checks, so that a client can request the last page of its check again. To bound the
        // table, discard all ended checks once there are `ENDED_MAX` of them.
        if runs.values().filter(|run| run.task.is_finished()).count() >= ENDED_MAX {
            runs.retain(|_, run| !run.task.is_finished());
        }
        if runs.values().filter(|run| !run.task.is_finished()).count() >= RUNS_MAX {
            return Err("too many checks are running: wait for one to end");
        }
        let number = getrandom::u64().map_err(|_| "the operating system returned no random numbers")?.max(1);
        let (tell, steps) = mpsc::channel(WAITING);
        let task = net::task::spawn(run::run(server.clone(), repair, tell));
        let taking = tokio::sync::Mutex::new(Taking { steps, last: None });
        let run = Arc::new(Run { taking, asked: Mutex::new(Instant::now()), task });
        runs.insert(number, run.clone());
        Ok((number, run))
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<u64, Arc<Run>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Collects messages of the check until the page is full, the check is complete, or [`PATIENCE`] has passed.
async fn gather(steps: &mut mpsc::Receiver<Step>, page: &mut CheckReply) {
    let until = Instant::now() + PATIENCE;
    while page.findings.len() < FINDINGS_MAX {
        match tokio::time::timeout_at(until, steps.recv()).await {
            Err(_) => return,
            Ok(Some(Step::Found(finding))) => page.findings.push(*finding),
            Ok(Some(Step::At { phase, done, total })) => {
                (page.phase, page.done, page.total) = (phase.to_owned(), done, total);
            }
            Ok(Some(Step::End { broken_off, counts })) => {
                page.end = true;
                page.broken_off = broken_off;
                page.counts = counts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                return;
            }
            Ok(None) => {
                page.end = true;
                page.broken_off = Some("the check failed in the mgr: see the log of the mgr".to_owned());
                return;
            }
        }
    }
}

/// Adds the paths of the files to the findings of a page.
async fn name(server: &NfsServer, page: &mut CheckReply) {
    let unnamed = page.findings.iter().filter(|finding| finding.paths.is_empty());
    let files: Vec<FileId> = unnamed.filter_map(|finding| finding.inode.map(FileId)).collect();
    if files.is_empty() {
        return;
    }
    match paths::of(&server.fs().0.namespace, &files).await {
        Ok(found) => {
            for finding in page.findings.iter_mut().filter(|finding| finding.paths.is_empty()) {
                let paths = finding.inode.and_then(|inode| found.get(&FileId(inode)));
                finding.paths.extend(paths.into_iter().flatten().map(|path| Bytes::copy_from_slice(path)));
            }
        }
        Err(e) => tracing::warn!("cannot find the paths of what a check found: {e}"),
    }
}
