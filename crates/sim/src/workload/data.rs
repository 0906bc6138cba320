//! Workload operations on the contents of files.

use super::{Handle, Holder, Process};
use crate::model::{HandleId, payload};
use crate::trace;
use nfs::spans::LockKind;
use types::ByteRange;

/// Maximum number of files that a process has open.
const OPEN_MAX: usize = 4;
/// Approximate maximum offset of a write in bytes.
const LONGEST: u64 = 48 << 10;

impl Process {
    pub(super) fn new_handle(&self) -> HandleId {
        let mut history = self.world.history();
        history.next_handle += 1;
        history.next_handle
    }

    /// Adds an open file to the process. If the process has too many open files, closes the file that was opened first.
    pub(super) async fn keep(&mut self, handle: Handle) {
        self.world.history().done += 1;
        self.open.push(handle);
        if self.open.len() > OPEN_MAX {
            let oldest = self.open.remove(0);
            self.close(oldest).await;
        }
    }

    fn some_open(&mut self) -> Option<usize> {
        (!self.open.is_empty()).then(|| self.rng.below(self.open.len() as u64) as usize)
    }

    /// Returns a random offset: zero, near a stripe border, at a stripe border, or anywhere.
    fn offset(&mut self) -> u64 {
        let unit = self.world.plan.unit;
        let stripes = (LONGEST / unit).min(12);
        match self.rng.below(4) {
            0 => 0,
            1 => (unit * self.rng.between(0, stripes) + self.rng.between(0, 2)).saturating_sub(1),
            2 => unit * self.rng.between(0, stripes),
            _ => self.rng.below((unit * stripes).max(1)),
        }
    }

    /// Returns a random length: short, about one stripe unit, or several stripe units.
    fn length(&mut self) -> u64 {
        let unit = self.world.plan.unit;
        match self.rng.below(4) {
            0 => self.rng.between(1, 20),
            1 => (unit + self.rng.between(0, 2)).saturating_sub(1).max(1),
            2 => self.rng.between(1, unit * 2),
            _ => self.rng.between(1, (unit * 8).min(16 << 10)),
        }
    }

    pub(super) async fn write(&mut self) {
        let Some(at) = self.some_open().filter(|at| self.open[*at].writable) else { return };
        let (offset, len) = (self.offset(), self.length());
        let Handle { file, id, handle, .. } = &self.open[at];
        let change = self.world.history().model.write(*id, self.client, *handle, offset, len);
        trace::say(format!("{} writes {change}: file {}, {len} at {offset}", crate::hosts::name(self.client), id.0));
        let written = file.write_at(offset, payload(change, offset, len)).await;
        self.world.note(|history| {
            history.model.returned(*id, change, written.is_ok());
            history.done += 1;
        });
        if let Err(error) = written {
            self.failed(at, "write", &error).await;
        }
    }

    pub(super) async fn read(&mut self) {
        let Some(at) = self.some_open() else { return };
        let (offset, len) = (self.offset(), self.length());
        let reader = self.open[at].reader(self.client, self.world.history().model.tick());
        let Handle { file, id, .. } = &self.open[at];
        let got = file.read_at(offset, len as usize).await;
        match got {
            Ok(got) => {
                let bytes = got.to_vec();
                trace::say(format!(
                    "{} reads file {}: {} of {len} at {offset}, {:x}",
                    crate::hosts::name(self.client),
                    id.0,
                    bytes.len(),
                    trace::digest(&bytes)
                ));
                let mut history = self.world.history();
                history.done += 1;
                history.model.check_read(*id, reader, offset, len, &bytes);
            }
            Err(error) => self.failed(at, "read", &error).await,
        }
    }

    pub(super) async fn measure(&mut self) {
        let Some(at) = self.some_open() else { return };
        let reader = self.open[at].reader(self.client, self.world.history().model.tick());
        let Handle { file, id, .. } = &self.open[at];
        match file.refresh().await {
            Ok(attrs) => self.world.history().model.check_size(*id, reader, attrs.size),
            Err(error) => self.failed(at, "asking for the size", &error).await,
        }
    }

    pub(super) async fn fsync(&mut self) {
        let Some(at) = self.some_open() else { return };
        let Handle { file, id, handle, made, .. } = &self.open[at];
        let began = self.world.history().model.tick();
        let synced = file.fsync().await;
        trace::say(format!("{} syncs file {}: {}", crate::hosts::name(self.client), id.0, synced.is_ok()));
        self.world.note(|history| {
            history.model.synced(*id, self.client, *handle, began, synced.is_ok());
            history.kept(made.filter(|_| synced.is_ok()));
            history.done += 1;
        });
        if let Err(error) = synced {
            self.failed(at, "fsync", &error).await;
        }
    }

    pub(super) async fn truncate(&mut self) {
        let Some(at) = self.some_open().filter(|at| self.open[*at].writable) else { return };
        let size = if self.rng.percent(30) { 0 } else { self.offset() };
        let Handle { file, id, handle, .. } = &self.open[at];
        let change = self.world.history().model.cut(*id, self.client, *handle, size);
        trace::say(format!("{} cuts {change}: file {} to {size}", crate::hosts::name(self.client), id.0));
        let cut = file.set_len(size).await;
        trace::say(format!("{} has cut {change}: {}", crate::hosts::name(self.client), cut.is_ok()));
        self.world.note(|history| {
            history.model.returned(*id, change, cut.is_ok());
            history.done += 1;
        });
        if let Err(error) = cut {
            self.failed(at, "set_len", &error).await;
        }
    }

    pub(super) async fn allocate(&mut self) {
        let Some(at) = self.some_open().filter(|at| self.open[*at].writable) else { return };
        let range = ByteRange { offset: self.offset(), len: self.length() };
        let Handle { file, id, handle, .. } = &self.open[at];
        let change = self.world.history().model.grow(*id, self.client, *handle, range.end());
        let (client, offset, len) = (crate::hosts::name(self.client), range.offset, range.len);
        trace::say(format!("{client} allocates {change}: file {}, {len} at {offset}", id.0));
        let allocated = file.allocate(range).await;
        trace::say(format!("{client} has allocated {change}: {}", allocated.is_ok()));
        self.world.note(|history| {
            history.model.returned(*id, change, allocated.is_ok());
            history.done += 1;
        });
        if let Err(error) = allocated {
            self.failed(at, "allocate", &error).await;
        }
    }

    pub(super) async fn close_some(&mut self) {
        if let Some(at) = self.some_open() {
            let handle = self.open.remove(at);
            self.close(handle).await;
        }
    }

    /// Takes an exclusive lock on an open file. If the process already holds the lock, releases it.
    pub(super) async fn lock_or_unlock(&mut self) {
        let Some(at) = self.some_open().filter(|at| self.open[*at].writable) else { return };
        let Handle { file, id, handle, locked, .. } = &self.open[at];
        let (client, id, handle, owner) = (self.client, *id, *handle, self.owner);
        if locked.is_none() {
            match file.try_lock(owner, ByteRange::ALL, LockKind::Write).await {
                Ok(granted) => {
                    trace::say(format!("{} locks file {}: {granted}", crate::hosts::name(client), id.0));
                    let plan = self.world.plan.clone();
                    self.open[at].locked = self.world.note(|history| {
                        history.done += 1;
                        granted
                            .then(|| history.lock(&plan, id, Holder { client, owner, handle }))
                            .map(|()| history.model.tick())
                    });
                }
                Err(error) => self.failed(at, "lock", &error).await,
            }
            return;
        }
        let began = self.world.note(|history| {
            history.unlock(id, client, owner);
            history.model.tick()
        });
        let unlocked = file.unlock(owner, ByteRange::ALL).await;
        trace::say(format!("{} unlocks file {}: {}", crate::hosts::name(client), id.0, unlocked.is_ok()));
        self.world.note(|history| {
            history.done += 1;
            history.model.synced(id, client, handle, began, unlocked.is_ok());
        });
        self.open.iter_mut().filter(|open| open.id == id).for_each(|open| open.locked = None);
        if let Err(error) = unlocked {
            self.failed(at, "unlock", &error).await;
        }
    }

    pub(super) async fn close(&mut self, handle: Handle) {
        let Handle { file, id, handle, made, .. } = handle;
        let began = self.world.note(|history| {
            history.close(id, handle);
            history.model.tick()
        });
        let closed = if handle % 2 == 0 { file.close().await } else { file.leave().await };
        trace::say(format!("{} closes file {}: {}", crate::hosts::name(self.client), id.0, closed.is_ok()));
        self.world.note(|history| {
            history.model.synced(id, self.client, handle, began, closed.is_ok());
            history.kept(made.filter(|_| closed.is_ok()));
            history.done += 1;
        });
        if let Err(error) = closed {
            self.tolerate("close", &error);
        }
    }

    /// Handles a failed operation on an open file: closes the file, and marks those changes of the file by this
    /// client as doubtful that are not durable yet.
    async fn failed(&mut self, at: usize, what: &str, error: &client::Error) {
        self.tolerate(what, error);
        let handle = self.open.remove(at);
        self.world.note(|history| {
            let now = history.model.tick();
            history.model.synced(handle.id, self.client, handle.handle, now, false);
        });
        self.close(handle).await;
    }
}
