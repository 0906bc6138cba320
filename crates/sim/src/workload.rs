//! What clients do, and what they write down about it.

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

/// Everything that a run writes down.
#[derive(Debug, Default)]
pub struct Book {
    /// The bytes.
    pub model: Model,
    /// What was asked about the names of each directory: the shared one, then those of the clients.
    pub names: Vec<Vec<Operation>>,
    /// When the mgr died.
    pub mgr_deaths: Vec<Moment>,
    /// When its host lost power.
    pub power_cuts: Vec<Moment>,
    /// Directories whose names have too many orders to search all of them, and so were not judged.
    pub unsearched: u64,
    /// Operations that were answered, and those that failed.
    pub done: u64,
    /// See [`Book::done`].
    pub failed: u64,
    next_handle: HandleId,
    /// Who believes to have a file locked alone.
    locked: BTreeMap<FileId, Vec<Holder>>,
}

/// Who holds a lock.
#[derive(Clone, Copy, Debug)]
struct Holder {
    client: u64,
    /// The owner in its client.
    owner: u64,
    handle: HandleId,
}

impl Book {
    /// A lock was granted.
    fn lock(&mut self, plan: &Plan, file: FileId, holder: Holder) {
        let holders = self.locked.entry(file).or_default();
        // An owner's new lock takes the place of its old one.
        holders.retain(|other| (other.client, other.owner) != (holder.client, holder.owner));
        let wrong = (!holders.is_empty()).then(|| format!("file {} is locked by {holder:?} and {holders:?}", file.0));
        holders.push(holder);
        if let Some(wrong) = wrong.filter(|_| plan.keeps_leases()) {
            self.model.fail(wrong);
        }
    }

    /// An owner gives back what it has locked, through whichever open.
    fn unlock(&mut self, file: FileId, client: u64, owner: u64) {
        if let Some(holders) = self.locked.get_mut(&file) {
            holders.retain(|holder| (holder.client, holder.owner) != (client, owner));
        }
    }

    /// An open is closed, and with it go the locks that were asked for through it.
    fn close(&mut self, file: FileId, handle: HandleId) {
        if let Some(holders) = self.locked.get_mut(&file) {
            holders.retain(|holder| holder.handle != handle);
        }
    }

    /// The mgr is gone, and with it what it has answered.
    pub fn mgr_died(&mut self) {
        let now = self.model.tick();
        self.mgr_deaths.push(now);
    }

    /// The host of the mgr has lost power, and with it what was not synced.
    pub fn mgr_lost_power(&mut self) {
        let now = self.model.tick();
        self.power_cuts.push(now);
    }

    /// What was made by an operation on names is there to stay.
    fn kept(&mut self, made: Option<(usize, usize)>) {
        let now = self.model.tick();
        if let Some((dir, index)) = made {
            self.names[dir][index].kept.get_or_insert(now);
        }
    }

    /// A client is gone, and what it has locked is free for others.
    pub fn client_died(&mut self, client: u64) {
        self.model.client_died(client);
        self.locked.values_mut().for_each(|holders| holders.retain(|holder| holder.client != client));
    }
}

/// What all clients know.
#[derive(Clone)]
pub struct World {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The book.
    pub book: Arc<Mutex<Book>>,
    /// Directories whose names are used: the shared one, then those of the clients.
    pub dirs: Arc<Vec<Node>>,
    /// Files that stay where they are.
    pub files: Arc<Vec<Node>>,
}

impl World {
    /// The book, for a short time.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes something down.
    pub fn note<T>(&self, write: impl FnOnce(&mut Book) -> T) -> T {
        write(&mut self.book())
    }

    /// Whether an operation may fail like this in this run; writes it down when it may not.
    fn tolerate(&self, who: u64, what: &str, error: &Error) {
        self.book().failed += 1;
        crate::trace::say(format!("{} {what}: {error}", crate::hosts::name(who)));
        let fine = match self.plan.level {
            Level::Rough => error.kind() != ErrorKind::Protocol,
            // A mgr that lives knows what it has done, and what is in doubt then somebody else has undone.
            // What was made without waiting may be lost with the power.
            Level::Mild if error.is(Status::Stale) && !self.book().power_cuts.is_empty() => true,
            Level::Mild => error.is_in_doubt() && (error.is(Status::Stale) || !self.book().mgr_deaths.is_empty()),
            Level::Calm => false,
        };
        if !fine && error.kind() != ErrorKind::Usage {
            self.book().model.fail(format!("{}, {what}: {error}", crate::hosts::name(who)));
        }
    }
}

/// A file that a process has open.
struct Handle {
    file: File,
    id: FileId,
    handle: HandleId,
    opened: Moment,
    writable: bool,
    /// When it was locked, while it is.
    locked: Option<Moment>,
    /// The operation on names that made it, by directory and number.
    made: Option<(usize, usize)>,
}

impl Handle {
    /// A reader through this file that begins now. What others did before they unlocked is there for who locks after them.
    fn reader(&self, client: u64, began: Moment) -> Reader {
        Reader { client, opened: self.locked.unwrap_or(self.opened), began }
    }
}

/// A process of a client.
struct Process {
    world: World,
    mount: Mount,
    client: u64,
    /// The owner of its locks.
    owner: u64,
    rng: Rng,
    /// For changes of the policy.
    policies: Rng,
    open: Vec<Handle>,
}

/// A client's whole life.
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
        // What cannot be ended now ends with the lease.
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

    /// Now and then the mount is used in another way, whatever it is doing.
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

    /// Begins an operation on names; `None` when there were enough of them in this directory.
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

    /// Writes down the answer to an operation on names.
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
