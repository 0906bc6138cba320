//! The mgr of the simulated cluster: the real mgr with a disk in memory. A simulated task, not a thread, writes the
//! commit groups and checkpoints of the mgr's metadata store.

use super::{Death, MGR, MGR_PORT};
use crate::network::Net;
use crate::plan::TRIES;
use crate::random::Rng;
use crate::storage::{MetaDisk, Part};
use crate::trace;
use meta::{Embedded, Namespace, Step, Stepper};
use mgr::{ClusterFile, Config, Mgr, Running};
use net::task::Group;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use types::{FileId, Status};

/// The mgr while it serves requests; `None` before the mgr serves requests and after its end.
type Slot = Arc<Mutex<Option<Up>>>;

/// An mgr that serves requests.
struct Up {
    running: Running,
    namespace: Arc<Namespace<Embedded>>,
}

/// The mgr and its simulated host.
pub struct MgrHost {
    net: Net,
    disk: MetaDisk,
    config: Config,
    cluster: ClusterFile,
    rng: Rng,
    /// Maximum duration of a flush of the disk in milliseconds.
    flush_ms: Arc<Mutex<u64>>,
    process: Option<(Group, Slot)>,
    /// The notification that is sent when the mgr process ends by itself.
    ended: Arc<Notify>,
}

impl MgrHost {
    /// Returns a host whose metadata store is on `disk`. The mgr process does not run yet.
    pub fn new(net: Net, disk: MetaDisk, mut config: Config, cluster: ClusterFile, rng: Rng) -> Self {
        config.listen = vec![format!("mgr:{MGR_PORT}")];
        let (flush_ms, ended) = (Arc::new(Mutex::new(2)), Arc::default());
        MgrHost { net, disk, config, cluster, rng, flush_ms, process: None, ended }
    }

    /// Returns the disk of the mgr.
    pub fn disk(&self) -> &MetaDisk {
        &self.disk
    }

    /// Returns the notification that is sent when the mgr process ends by itself, because it could not start or its
    /// store has failed.
    pub fn ended(&self) -> Arc<Notify> {
        self.ended.clone()
    }

    /// Returns whether the mgr process runs.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Returns whether the mgr has started completely and serves requests.
    pub fn serves(&self) -> bool {
        self.with(|_| ()).is_some()
    }

    /// Sets the maximum duration in milliseconds of each later flush of the disk.
    pub fn set_flush_ms(&self, longest: u64) {
        *self.flush_ms.lock().unwrap_or_else(PoisonError::into_inner) = longest;
    }

    fn with<T>(&self, act: impl FnOnce(&Up) -> T) -> Option<T> {
        let (_, slot) = self.process.as_ref()?;
        slot.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(act)
    }

    /// Returns the status of the mgr, or `None` if it does not serve requests.
    pub fn status(&self) -> Option<wire::admin::Status> {
        self.with(|up| up.running.status())
    }

    /// Returns the namespace of the mgr, or `None` if it does not serve requests.
    pub fn namespace(&self) -> Option<Arc<Namespace<Embedded>>> {
        self.with(|up| up.namespace.clone())
    }

    /// Starts a task that moves the bytes of a file to new objects on `iods`. While the move fails with `Delay`, which
    /// means that it may succeed later, the task tries again, at most `TRIES` times. Does nothing if the mgr does not
    /// serve requests.
    pub fn swap_layout(&self, file: FileId, iods: Vec<u16>) {
        let Some((group, slot)) = &self.process else { return };
        let slot = slot.clone();
        group.spawn(async move {
            for _ in 0..TRIES {
                let outcome = attempt(&slot, file, &iods).await;
                trace::say(format!("moving file {}: {outcome:?}", file.0));
                if outcome != Err(Status::Delay) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
        });
    }

    /// Starts the mgr process, unless it is running.
    pub fn start(&mut self) {
        if self.is_up() {
            return;
        }
        trace::say("mgr starts");
        let (group, slot) = (Group::new(MGR), Slot::default());
        let run = Run {
            disk: self.disk.clone(),
            config: self.config.clone(),
            cluster: self.cluster.clone(),
            rng: Rng::new(self.rng.draw(), "flushes"),
            flush_ms: self.flush_ms.clone(),
            slot: slot.clone(),
        };
        let ended = self.ended.clone();
        group.spawn(async move {
            let why = run.serve().await;
            trace::say(format!("mgr ends: {why}"));
            ended.notify_one();
        });
        self.process = Some((group, slot));
    }

    /// Ends the mgr process, if it is running. A power loss also affects the disk.
    pub fn die(&mut self, death: Death) {
        let Some((group, slot)) = self.process.take() else {
            if death == Death::PowerCut {
                self.disk.power_off();
            }
            return;
        };
        trace::say(format!("mgr dies: {death:?}"));
        match death {
            Death::Killed => {
                self.net.process_died(MGR);
                self.disk.process_died();
            }
            Death::PowerCut => {
                self.net.power_off(MGR);
                self.disk.power_off();
            }
        }
        group.kill();
        let up = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(up);
    }
}

/// Moves the bytes of a file to new objects on `iods`. Returns the error `Delay` if the mgr does not serve requests.
async fn attempt(slot: &Slot, file: FileId, iods: &[u16]) -> Result<(), Status> {
    let swap = {
        let up = slot.lock().unwrap_or_else(PoisonError::into_inner);
        up.as_ref().map(|up| up.running.swap_layout(file, iods.to_vec())).ok_or(Status::Delay)?
    };
    swap.await
}

/// Everything that an mgr process needs for its start.
struct Run {
    disk: MetaDisk,
    config: Config,
    cluster: ClusterFile,
    rng: Rng,
    flush_ms: Arc<Mutex<u64>>,
    slot: Slot,
}

impl Run {
    /// Runs the mgr until its metadata store fails. Returns the reason of the failure.
    async fn serve(mut self) -> String {
        let (store, log) = (self.disk.open(Part::Store), self.disk.open(Part::Log));
        let disk = self.disk.clone();
        let opened = Embedded::stepped(store, log, self.cluster.fsid.0, meta::merge, move || Some(disk.free()));
        let (engine, stepper) = match opened {
            Ok(opened) => opened,
            Err(error) => return error.to_string(),
        };
        let namespace = match Namespace::open(engine) {
            Ok(namespace) => Arc::new(namespace),
            Err(error) => return error.to_string(),
        };
        let seed = self.rng.draw();
        let stepping = step(stepper, Rng::new(seed, "steps"), self.flush_ms.clone(), namespace.clone());
        let starting = Mgr::start_on(&self.config, self.cluster.clone(), namespace.clone(), self.disk.boots());
        let mut stepping = std::pin::pin!(stepping);
        let running = tokio::select! {
            biased;
            () = &mut stepping => return "the store is broken".into(),
            running = starting => running,
        };
        match running {
            Ok(running) => {
                let up = Up { running, namespace };
                *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(up);
            }
            Err(error) => return error.to_string(),
        }
        stepping.await;
        "the store is broken".into()
    }
}

/// Waits until the metadata store has work to do. Returns `true` if the wait ended because a timer of the store
/// expired, and `false` if a request gave the store work.
pub(crate) async fn wait(stepper: &Stepper) -> bool {
    match stepper.due() {
        None => stepper.ready().await,
        Some(due) => {
            let left = due.saturating_sub(trace::elapsed());
            return tokio::time::timeout(left, stepper.ready()).await.is_err();
        }
    }
    false
}

/// Runs the writer of the metadata store, which writes commit groups and checkpoints. Delays each commit group by a
/// random time, which simulates the flush of a real disk. Returns when the store has failed.
pub(crate) async fn step(
    mut stepper: Stepper,
    mut rng: Rng,
    flush_ms: Arc<Mutex<u64>>,
    namespace: Arc<Namespace<Embedded>>,
) {
    loop {
        let only_time = wait(&stepper).await;
        let longest = *flush_ms.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = rng.between(0, longest);
        if pause > 0 && !only_time {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let step = stepper.step(trace::elapsed());
        trace::event(&[21, matches!(step, Step::CommitGroup(_)).into()], || format!("mgr store: {step:?}"));
        if namespace.status().broken.is_some() {
            return;
        }
    }
}
