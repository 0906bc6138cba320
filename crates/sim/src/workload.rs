//! The workload of the simulated clients, and the record of its operations and results.

mod data;
mod listing;

use crate::cluster;
use crate::hosts::CLIENT;
use crate::model::{HandleId, Model, Moment, Reader};
use crate::names::{Ask, Operation, Said};
use crate::plan::{Level, POLICIES, Plan};
use crate::random::Rng;
use client::{Error, ErrorKind, File, Mount, Node};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use types::{FileId, Status};

/// The record of a run.
#[derive(Debug, Default)]
pub struct Book {
    /// The model of file contents.
    pub model: Model,
    /// Operations on the names of each directory: first the shared directory, then those of the clients.
    pub names: Vec<Vec<Operation>>,
    /// The times at which the mgr died.
    pub mgr_deaths: Vec<Moment>,
    /// The times at which the mgr's host lost power.
    pub power_cuts: Vec<Moment>,
    /// Number of directories whose names were not checked, because the search for a valid order was given up.
    pub unsearched: u64,
    /// Number of operations that were answered; [`Book::failed`] counts those that failed.
    pub done: u64,
    /// See [`Book::done`].
    pub failed: u64,
    next_handle: HandleId,
    /// Holders of exclusive locks, according to the clients.
    locked: BTreeMap<FileId, Vec<Holder>>,
}

/// The holder of a lock.
#[derive(Clone, Copy, Debug)]
struct Holder {
    client: u64,
    /// The lock owner in the client.
    owner: u64,
    handle: HandleId,
}

impl Book {
    /// Records a granted lock.
    fn lock(&mut self, plan: &Plan, file: FileId, holder: Holder) {
        let holders = self.locked.entry(file).or_default();
        // A new lock of an owner replaces its old one.
        holders.retain(|other| (other.client, other.owner) != (holder.client, holder.owner));
        let wrong = (!holders.is_empty()).then(|| format!("file {} is locked by {holder:?} and {holders:?}", file.0));
        holders.push(holder);
        if let Some(wrong) = wrong.filter(|_| plan.keeps_leases()) {
            self.model.fail(wrong);
        }
    }

    /// Records that an owner has unlocked a file, through any open.
    fn unlock(&mut self, file: FileId, client: u64, owner: u64) {
        if let Some(holders) = self.locked.get_mut(&file) {
            holders.retain(|holder| (holder.client, holder.owner) != (client, owner));
        }
    }

    /// Records a close, which releases the locks requested through this open.
    fn close(&mut self, file: FileId, handle: HandleId) {
        if let Some(holders) = self.locked.get_mut(&file) {
            holders.retain(|holder| holder.handle != handle);
        }
    }

    /// Records the death of the mgr, which loses its unsent answers.
    pub fn mgr_died(&mut self) {
        let now = self.model.tick();
        self.mgr_deaths.push(now);
    }

    /// Records a power loss of the mgr's host, which loses unsynced data.
    pub fn mgr_lost_power(&mut self) {
        let now = self.model.tick();
        self.power_cuts.push(now);
    }

    /// Records that the file created by an operation on names is durable.
    fn kept(&mut self, made: Option<(usize, usize)>) {
        let now = self.model.tick();
        if let Some((dir, index)) = made {
            self.names[dir][index].kept.get_or_insert(now);
        }
    }

    /// Records the death of a client, whose locks become free for other clients.
    pub fn client_died(&mut self, client: u64) {
        self.model.client_died(client);
        self.locked.values_mut().for_each(|holders| holders.retain(|holder| holder.client != client));
    }
}

/// The state that all clients share.
#[derive(Clone)]
pub struct World {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The record of the run.
    pub book: Arc<Mutex<Book>>,
    /// Directories in which clients use names: first the shared directory, then those of the clients.
    pub dirs: Arc<Vec<Node>>,
    /// Files that keep their names.
    pub files: Arc<Vec<Node>>,
}

impl World {
    /// Locks the record; the caller must release it soon.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the record.
    pub fn note<T>(&self, write: impl FnOnce(&mut Book) -> T) -> T {
        write(&mut self.book())
    }

    /// Counts a failed operation; records a violation if this run does not allow the error.
    fn tolerate(&self, who: u64, what: &str, error: &Error) {
        self.book().failed += 1;
        crate::trace::say(format!("{} {what}: {error}", crate::hosts::name(who)));
        let fine = match self.plan.level {
            Level::Rough => error.kind() != ErrorKind::Protocol,
            // A live mgr knows the changes that it has executed; if an operation in doubt fails, another client has
            // undone it. A file created without waiting for durability may be lost in a power loss.
            Level::Mild if error.is(Status::Stale) && !self.book().power_cuts.is_empty() => true,
            Level::Mild => error.is_in_doubt() && (error.is(Status::Stale) || !self.book().mgr_deaths.is_empty()),
            Level::Calm => false,
        };
        if !fine && error.kind() != ErrorKind::Usage {
            self.book().model.fail(format!("{}, {what}: {error}", crate::hosts::name(who)));
        }
    }
}

/// An open file of a process.
struct Handle {
    file: File,
    id: FileId,
    handle: HandleId,
    opened: Moment,
    writable: bool,
    /// When the process locked the file, while the lock is held.
    locked: Option<Moment>,
    /// The operation that created the file, by directory and index.
    made: Option<(usize, usize)>,
}

impl Handle {
    /// Returns a reader through this file that begins now. A process that holds a lock sees the changes that other
    /// clients made before they unlocked.
    fn reader(&self, client: u64, began: Moment) -> Reader {
        Reader { client, opened: self.locked.unwrap_or(self.opened), began }
    }
}

/// A process of a client.
struct Process {
    world: World,
    mount: Mount,
    client: u64,
    /// The owner of the process's locks.
    owner: u64,
    rng: Rng,
    /// The stream for changes of the policy.
    policies: Rng,
    open: Vec<Handle>,
}

/// Runs one client from mount to unmount.
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
            world.book().model.fail(format!("a process of {} ended: {error}", crate::hosts::name(host)));
        }
    }
    match mount.disconnect().await {
        // State that cannot be released now ends with the lease.
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

    /// Changes the policy of the mount at random, before any operation of the process.
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

    /// Records the begin of an operation on names; `None` if the directory already has enough operations.
    fn ask(&self, dir: usize, ask: Ask) -> Option<usize> {
        let mut book = self.world.book();
        let began = book.model.tick();
        let names = &mut book.names[dir];
        if names.len() + 8 > crate::names::OPERATIONS_MAX {
            return None;
        }
        names.push(Operation::new(self.client, ask, began));
        Some(names.len() - 1)
    }

    /// Records the answer to an operation on names.
    fn said(&self, dir: usize, index: usize, what: &str, answer: Result<Said, Error>) {
        let said = match answer {
            Ok(said) => said,
            Err(error) if error.is(Status::Exist) => Said::Exists,
            Err(error) if error.is(Status::NoEnt) => Said::Missing,
            Err(error) => {
                self.tolerate(what, &error);
                return;
            }
        };
        let mut book = self.world.book();
        book.done += 1;
        let ended = book.model.tick();
        let operation = &mut book.names[dir][index];
        crate::trace::say(format!("{} {:?} in {dir}: {said:?}", crate::hosts::name(self.client), operation.ask));
        (operation.ended, operation.said) = (Some(ended), said);
    }
}
