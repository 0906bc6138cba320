//! The workload of the simulated clients, and the record of their operations and results.

mod data;
mod listing;

use crate::cluster;
use crate::hosts::CLIENT;
use crate::model::{HandleId, Model, Moment, Reader};
use crate::names::{NameReply, NameRequest, Operation};
use crate::plan::{Level, POLICIES, Plan};
use crate::random::Rng;
use client::{Error, ErrorKind, File, Mount, Node};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use types::{FileId, Status};

/// The history of all operations of a run, for the checks.
#[derive(Debug, Default)]
pub struct History {
    /// The model of file contents, with all changes and reads.
    pub model: Model,
    /// Operations on the names of each directory: first the shared directory, then the directory of each client.
    pub names: Vec<Vec<Operation>>,
    /// The points, in the order of events, at which the mgr died.
    pub mgr_deaths: Vec<Moment>,
    /// The points, in the order of events, at which the mgr's host lost power.
    pub power_cuts: Vec<Moment>,
    /// Number of directories whose names the checker did not verify, because the search for a valid order of the
    /// operations exceeded its limit.
    pub unsearched: u64,
    /// Number of completed operations. Some operations that fail, such as writes, count here and in
    /// [`History::failed`].
    pub done: u64,
    /// Number of operations that failed. The errors `Exist` and `NoEnt` of an operation on names are answers, not
    /// failures.
    pub failed: u64,
    next_handle: HandleId,
    /// For each file: the lock owners that hold an exclusive lock on it, according to the replies that clients have
    /// received.
    locked: BTreeMap<FileId, Vec<Holder>>,
}

/// A lock owner of a client that holds a lock.
#[derive(Clone, Copy, Debug)]
struct Holder {
    client: u64,
    /// The number of the lock owner within the client.
    owner: u64,
    handle: HandleId,
}

impl History {
    /// Records that a client has received a lock.
    fn lock(&mut self, plan: &Plan, file: FileId, holder: Holder) {
        let holders = self.locked.entry(file).or_default();
        // A new lock of a lock owner replaces the old lock of this owner on the file.
        holders.retain(|other| (other.client, other.owner) != (holder.client, holder.owner));
        let wrong = (!holders.is_empty()).then(|| format!("file {} is locked by {holder:?} and {holders:?}", file.0));
        holders.push(holder);
        if let Some(wrong) = wrong.filter(|_| plan.keeps_leases()) {
            self.model.fail(wrong);
        }
    }

    /// Records that a lock owner has unlocked a file. The request may come through any open file of this owner.
    fn unlock(&mut self, file: FileId, client: u64, owner: u64) {
        if let Some(holders) = self.locked.get_mut(&file) {
            holders.retain(|holder| (holder.client, holder.owner) != (client, owner));
        }
    }

    /// Records that an open file was closed. Removes the locks that the client requested through this open file.
    fn close(&mut self, file: FileId, handle: HandleId) {
        if let Some(holders) = self.locked.get_mut(&file) {
            holders.retain(|holder| holder.handle != handle);
        }
    }

    /// Records the death of the mgr. Replies that the mgr had not sent are lost.
    pub fn mgr_died(&mut self) {
        let now = self.model.tick();
        self.mgr_deaths.push(now);
    }

    /// Records a power loss of the mgr's host. The host's disk may lose data that were not synced.
    pub fn mgr_lost_power(&mut self) {
        let now = self.model.tick();
        self.power_cuts.push(now);
    }

    /// Records that a created file is durable. `made` identifies the operation that created the file: the index of
    /// the directory, and the index of the operation in this directory.
    fn kept(&mut self, made: Option<(usize, usize)>) {
        let now = self.model.tick();
        if let Some((dir, index)) = made {
            self.names[dir][index].kept.get_or_insert(now);
        }
    }

    /// Records the death of a client. From now on, other clients may get the locks of this client.
    pub fn client_died(&mut self, client: u64) {
        self.model.client_died(client);
        self.locked.values_mut().for_each(|holders| holders.retain(|holder| holder.client != client));
    }
}

/// The state that all clients of a run share.
#[derive(Clone)]
pub struct World {
    /// The plan of the run.
    pub plan: Arc<Plan>,
    /// The history of all operations, for the checks.
    pub history: Arc<Mutex<History>>,
    /// Directories in which clients use names: first the shared directory, then the directory of each client.
    pub dirs: Arc<Vec<Node>>,
    /// The permanent files, which no client renames or removes.
    pub files: Arc<Vec<Node>>,
}

impl World {
    /// Locks the history of the run's operations. The caller must unlock the history before it awaits a future.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `write` to change the history of the run's operations, while the history is locked.
    pub fn note<T>(&self, write: impl FnOnce(&mut History) -> T) -> T {
        write(&mut self.history())
    }

    /// Counts a failed operation. Records a violation if the faults of the plan cannot cause this error.
    fn tolerate(&self, who: u64, what: &str, error: &Error) {
        self.history().failed += 1;
        crate::trace::say(format!("{} {what}: {error}", crate::hosts::name(who)));
        let fine = match self.plan.level {
            Level::Rough => error.kind() != ErrorKind::Protocol,
            // If the client sends an operation in doubt again, the operation may fail: another client may have undone
            // its change, or the mgr may have died and forgotten the first request. A power loss may also lose a file
            // that was created without waiting for durability.
            Level::Mild if error.is(Status::Stale) && !self.history().power_cuts.is_empty() => true,
            Level::Mild => error.is_in_doubt() && (error.is(Status::Stale) || !self.history().mgr_deaths.is_empty()),
            Level::Calm => false,
        };
        if !fine && error.kind() != ErrorKind::Usage {
            self.history().model.fail(format!("{}, {what}: {error}", crate::hosts::name(who)));
        }
    }
}

/// An open file of a simulated process.
struct Handle {
    file: File,
    id: FileId,
    handle: HandleId,
    opened: Moment,
    writable: bool,
    /// The point, in the order of events, at which the process locked the file; `None` while it holds no lock.
    locked: Option<Moment>,
    /// The operation that created the file, as the index of the directory and the index of the operation.
    made: Option<(usize, usize)>,
}

impl Handle {
    /// Records that a read of this file begins at `began`. The returned value says which changes of other clients the
    /// read must see: all changes before the open, or before the process got the lock of the file if it holds the lock.
    fn reader(&self, client: u64, began: Moment) -> Reader {
        Reader { client, opened: self.locked.unwrap_or(self.opened), began }
    }
}

/// A simulated process of a client.
struct Process {
    world: World,
    mount: Mount,
    client: u64,
    /// The number of the process's lock owner.
    owner: u64,
    rng: Rng,
    /// The stream of random numbers from which the process draws policy changes.
    policies: Rng,
    open: Vec<Handle>,
}

/// Runs one client from its mount to its unmount.
pub async fn client(world: World, index: usize) {
    let plan = world.plan.clone();
    let mine = &plan.clients[index];
    let host = CLIENT + index as u64;
    let policy = mine.policy;
    let options = cluster::options(&plan, host, mine.direct, mine.checksums);
    let options = client::Options { policy, ..options };
    let Ok(mount) = cluster::mount(options).await else { return };
    let mut processes = Vec::new();
    for (number, operations) in mine.processes.iter().enumerate() {
        let rng = Rng::new(plan.seed, &format!("client {index} process {number}"));
        let process = Process {
            world: world.clone(),
            mount: mount.clone(),
            client: host,
            owner: number as u64,
            rng,
            policies: Rng::new(plan.seed, &format!("policies of client {index} process {number}")),
            open: Vec::new(),
        };
        processes.push(net::task::spawn(process.run(index, *operations)));
    }
    for process in processes {
        if let Err(error) = process.await {
            world.history().model.fail(format!("a process of {} ended: {error}", crate::hosts::name(host)));
        }
    }
    match mount.disconnect().await {
        // A client that cannot reach a server cannot return its opens and locks. The mgr removes these opens and
        // locks when the client's lease expires, so ignore the error of the close.
        Err(error) if plan.level == Level::Calm || error.kind() != ErrorKind::Connection => {
            world.tolerate(host, "unmounting", &error);
        }
        _ => {}
    }
}

impl Process {
    async fn run(mut self, index: usize, operations: u64) {
        let think = self.world.plan.clients[index].think_ms;
        for _ in 0..operations {
            self.change_policy(index);
            self.operation(index).await;
            let pause = self.rng.between(0, think);
            if pause > 0 {
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
        while let Some(handle) = self.open.pop() {
            self.close(handle).await;
        }
    }

    /// Changes the policy of the mount before an operation of the process, with the probability that the plan sets.
    fn change_policy(&mut self, index: usize) {
        if self.policies.percent(self.world.plan.clients[index].policy_percent) {
            let (name, value) = *self.policies.pick(POLICIES);
            crate::trace::say(format!("{} {name}={value}", crate::hosts::name(self.client)));
            if let Err(error) = self.mount.set_policy(name.as_bytes(), Some(value.as_bytes())) {
                self.tolerate("changing the policy", &error);
            }
        }
    }

    async fn operation(&mut self, index: usize) {
        let dir = if self.rng.percent(50) { 0 } else { 1 + index };
        if self.rng.percent(self.world.plan.lock_percent) {
            return self.lock_or_unlock().await;
        }
        match self.rng.below(100) {
            0..=9 => self.open_some(dir).await,
            10..=27 => self.write().await,
            28..=29 => self.allocate().await,
            30..=44 => self.read().await,
            45..=51 => self.fsync().await,
            52..=56 => self.truncate().await,
            57..=59 => self.measure().await,
            60..=64 => self.close_some().await,
            65..=75 => self.create(dir).await,
            76..=79 => self.mkdir(dir).await,
            80..=85 => self.remove(dir).await,
            86..=91 => self.rename(dir).await,
            92..=94 => self.link(dir).await,
            _ => self.lookup(dir).await,
        }
    }

    fn tolerate(&self, what: &str, error: &Error) {
        self.world.tolerate(self.client, what, error);
    }

    /// Records that an operation on names has begun. Returns `None` if the directory already has the maximum number of
    /// operations.
    fn ask(&self, dir: usize, ask: NameRequest) -> Option<usize> {
        let mut history = self.world.history();
        let began = history.model.tick();
        let names = &mut history.names[dir];
        if names.len() + 8 > crate::names::OPERATIONS_MAX {
            return None;
        }
        names.push(Operation::new(self.client, ask, began));
        Some(names.len() - 1)
    }

    /// Records the answer to an operation on names.
    fn reply(&self, dir: usize, index: usize, what: &str, answer: Result<NameReply, Error>) {
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) if error.is(Status::Exist) => NameReply::Exists,
            Err(error) if error.is(Status::NoEnt) => NameReply::Missing,
            Err(error) => {
                self.tolerate(what, &error);
                return;
            }
        };
        let mut history = self.world.history();
        history.done += 1;
        let ended = history.model.tick();
        let operation = &mut history.names[dir][index];
        crate::trace::say(format!("{} {:?} in {dir}: {reply:?}", crate::hosts::name(self.client), operation.ask));
        (operation.ended, operation.reply) = (Some(ended), reply);
    }
}
