//! The driver of one simulated run, from the start of the cluster to the last final check.

use crate::checks;
use crate::cluster::{self, Cluster};
use crate::faults::Faults;
use crate::hosts::{AUDITOR, CLIENT};
use crate::model::Model;
use crate::plan::Plan;
use crate::workload::{self, History, World};
use crate::{random, trace, watch};
use client::{CreateOptions, Node};
use net::task::Group;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use types::planted::Planted;

/// Time limit for the clients to finish after all faults are over, in simulated time.
const PATIENCE: Duration = Duration::from_secs(1200);
/// Time limit for the mgr to begin to serve requests, in simulated time.
const START: Duration = Duration::from_secs(60);
/// The simulated time at the start of every run, in seconds since 1970.
const DAY: u64 = 1_700_000_000;

/// The result of one run.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Verdict {
    /// The seed of the run.
    pub seed: u64,
    /// Descriptions of the violations of the promises; empty if the run passed.
    pub failures: Vec<String>,
    /// Hash of all events. Two runs with the same hash had the same events.
    pub hash: u64,
    /// Number of events that the run has recorded.
    pub events: u64,
    /// Duration of the run in simulated milliseconds.
    pub simulated_ms: u64,
    /// Number of completed client operations. Some operations that fail, such as writes, count here and in `failed`.
    pub done: u64,
    /// Number of client operations that failed.
    pub failed: u64,
    /// Number of reads whose result was compared with the model.
    pub reads: u64,
    /// Number of directories whose names the checker did not verify, because the search for a valid order of the
    /// operations exceeded its limit.
    pub unsearched: u64,
}

/// Runs the plan of a seed in a new thread.
pub fn run(seed: u64, focus: Option<Focus>, print: bool) -> Verdict {
    let plan = focus.map_or_else(|| Plan::new(seed), |focus| Plan::focused(seed, focus.on));
    let planted = focus.filter(|focus| focus.planted).map(|focus| focus.on);
    run_plan(Plan { planted, ..plan }, print)
}

/// A planted bug (a bug that a test adds to Weir on purpose) for which runs use special plans.
#[derive(Clone, Copy, Debug)]
pub struct Focus {
    /// The planted bug.
    pub on: Planted,
    /// Whether the runs enable the bug.
    pub planted: bool,
}

/// Prepares the state that all runs of this process share: logging, and the image of an empty file system.
pub(crate) fn prepare(print: bool) {
    if print {
        // Set up logging before the first run. During a run, the setup of logging would take random bytes, and so
        // change the keys of the run's hash maps.
        watch::show_logs();
    }
    // Ignore the error here: `empty` stores the error, and each run reports it.
    let _ = cluster::empty();
}

/// Returns the verdict of a run that ended without results, because of the failure `why`.
pub(crate) fn broken(seed: u64, why: String) -> Verdict {
    let failures = vec![why];
    Verdict { seed, failures, hash: 0, events: 0, simulated_ms: 0, done: 0, failed: 0, reads: 0, unsearched: 0 }
}

/// Runs a plan in a new thread.
pub fn run_plan(plan: Plan, print: bool) -> Verdict {
    let seed = plan.seed;
    let work = move || {
        random::seed_thread(seed);
        types::planted::plant(plan.planted);
        watch::begin();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        match runtime {
            Ok(runtime) => {
                let mut verdict = runtime.block_on(all(plan, print));
                drop(runtime);
                verdict.failures.extend(watch::end());
                verdict
            }
            Err(error) => broken(seed, format!("no runtime: {error}")),
        }
    };
    let thread = std::thread::Builder::new().name(format!("seed {seed}")).spawn(work);
    match thread.map(|thread| thread.join()) {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(_)) => broken(seed, "the run ended in a panic".into()),
        Err(error) => broken(seed, format!("no thread: {error}")),
    }
}

async fn all(plan: Plan, print: bool) -> Verdict {
    trace::begin(print);
    trace::say(format!("{plan:?}"));
    net::clock::simulate(Some(SystemTime::UNIX_EPOCH + Duration::from_secs(DAY)));
    let seed = plan.seed;
    let history: Arc<Mutex<History>> = Arc::default();
    let ended = stages(Arc::new(plan), history.clone()).await;
    net::memory::install(None);
    let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(why) = ended {
        history.model.fail(why);
    }
    history.model.judge();
    let simulated_ms = trace::elapsed().as_millis() as u64;
    let (hash, events) = trace::end();
    let History { model, done, failed, unsearched, .. } = &mut *history;
    let Model { failures, reads, .. } = model;
    let failures = std::mem::take(failures);
    let (done, failed, reads, unsearched) = (*done, *failed, *reads, *unsearched);
    Verdict { seed, failures, hash, events, simulated_ms, done, failed, reads, unsearched }
}

async fn stages(plan: Arc<Plan>, history: Arc<Mutex<History>>) -> Result<(), String> {
    let cluster = RefCell::new(Cluster::new(&plan).await?);
    for iod in 0..plan.iods {
        cluster.borrow_mut().start_iod(iod)?;
    }
    cluster.borrow_mut().start_mgr();
    checks::within(START, || cluster.borrow().mgr.serves()).await.map_err(|()| "the mgr does not begin to serve")?;
    let (dirs, files) = cluster::on_host(AUDITOR, set_up(plan.clone())).await??;
    {
        let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
        history.names = vec![Vec::new(); dirs.len()];
        history.model.coherent = plan.faults.is_empty();
    }
    let world = World { plan: plan.clone(), history, dirs: Arc::new(dirs), files: Arc::new(files) };
    let groups: Vec<Group> = (0..plan.clients.len() as u64).map(|c| Group::new(CLIENT + c)).collect();
    let mut lives = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        lives.push(group.spawn(workload::client(world.clone(), index)));
    }
    let mut faults = Faults::new(&plan, &world, &cluster, &groups);
    let work = async {
        for (index, life) in lives.into_iter().enumerate() {
            if let Err(error) = life.await
                && !groups[index].is_dead()
            {
                world.history().model.fail(format!("client{index} ended: {error}"));
            }
        }
        trace::say("all clients have ended");
    };
    let limit = Duration::from_millis(plan.quiet_ms) + PATIENCE;
    let work = tokio::time::timeout(limit, work);
    let worked = {
        let running = std::pin::pin!(faults.run());
        tokio::select! {
            biased;
            () = running => unreachable!("faults go on for ever"),
            worked = work => worked,
        }
    };
    if worked.is_err() {
        world.history().model.fail("clients did not come to an end although nothing was wrong any more".into());
        return Ok(());
    }
    let rest = checks::all(&world, &cluster);
    // Execute the remaining faults of the plan while the checks wait for the end of the last fault.
    let running = std::pin::pin!(faults.run());
    tokio::select! {
        biased;
        () = running => Ok(()),
        checked = rest => checked,
    }
}

/// Creates the directories and the permanent files that all clients use.
async fn set_up(plan: Arc<Plan>) -> Result<(Vec<Node>, Vec<Node>), String> {
    let mount = cluster::mount(cluster::options(&plan, AUDITOR, true, true)).await?;
    let root = mount.root();
    let mut dirs = Vec::new();
    for number in 0..=plan.clients.len() {
        let made = mount.mkdir(&root, format!("dir{number}").as_bytes(), 0o755).await;
        dirs.push(made.map_err(|e| e.to_string())?.0);
    }
    let mut files = Vec::new();
    for number in 0..plan.files {
        let name = format!("file{number}");
        let file = mount.create(&root, name.as_bytes(), CreateOptions::default()).await.map_err(|e| e.to_string())?;
        files.push(file.node());
        file.close().await.map_err(|e| e.to_string())?;
    }
    mount.disconnect().await.map_err(|e| e.to_string())?;
    Ok((dirs, files))
}
