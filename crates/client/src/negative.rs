//! The negative-lookup cache: directories whose names are all known, under delegations that the mgr recalls before
//! other clients change names.
//!
//! If lookups in a directory often fail, the mount requests a delegation of its names (GET_DIR_DELEGATION, RFC 8881
//! §18.39) and reads them all. From then on a name that is not among them does not exist. Creates and removes by this
//! mount do not end the delegation. A name counts as possibly existing from before its create request is sent until its
//! removal is answered. The mount asks the mgr for names that possibly exist.

use bytes::Bytes;
use std::collections::HashMap;
use std::time::Duration;
use types::{FileId, Timestamp};
use wire::nfs4::stateid4;

/// Failed lookups count together if each comes within this time of the one before.
const MISSES_WITHIN: Duration = Duration::from_secs(2);
/// How long a directory is not tried again after its names were refused or too many.
const ALONE_FOR: Duration = Duration::from_secs(30);
/// Maximum number of directories in the cache.
const DIRS: usize = 1024;
/// Maximum number of names of one directory, and of all directories together.
const NAMES_OF_DIR: usize = 1 << 16;
const NAMES: usize = 1 << 18;
/// Maximum number of callers per directory that are known to have lookup permission.
const CALLERS: usize = 16;
/// Number of unanswered requests that may still create a name, at which the cache is switched off.
const DOUBTS: usize = 4096;
/// The longest name; the mgr refuses longer ones.
const NAME_MAX: usize = 255;

type Name = Box<[u8]>;

/// A delegation to return to the mgr.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gone {
    /// The filehandle of its directory.
    pub(crate) handle: Bytes,
    pub(crate) stateid: stateid4,
}

/// A name that is about to be removed, as the cache knew it before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Removal {
    dir: FileId,
    name: Name,
    stamp: u64,
}

/// The cache state of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// This many lookups failed; the last one failed at this time.
    Missed(u32, Timestamp),
    /// The client does not request a delegation before this time.
    Alone(Timestamp),
    /// The delegation was requested. The number identifies the requesting task.
    Asking(u64),
    /// The delegation is held, and the names are being read.
    Reading(u64, stateid4),
    /// Every name that may exist is known.
    Known(stateid4),
}

struct Dir<C> {
    stage: Stage,
    handle: Bytes,
    /// The session epoch in which the delegation was granted.
    epoch: u64,
    /// Names that may exist, and when each was last about to be created.
    may_be: HashMap<Name, u64>,
    /// Callers that may look up names in the directory.
    callers: Vec<C>,
    /// When the entry was last used.
    used: u64,
}

/// The negative-lookup cache. `C` identifies callers.
pub(crate) struct Negative<C> {
    dirs: HashMap<FileId, Dir<C>>,
    /// Names that are being created, and by how many requests.
    making: HashMap<(FileId, Name), usize>,
    /// How many of these requests will never be answered.
    doubts: usize,
    /// Number of names that may exist, of all directories.
    names: usize,
    /// A logical clock: the number of events so far.
    clock: u64,
}

impl<C> Default for Negative<C> {
    fn default() -> Self {
        Negative { dirs: HashMap::new(), making: HashMap::new(), doubts: 0, names: 0, clock: 0 }
    }
}

impl<C: Clone + PartialEq> Dir<C> {
    fn stateid(&self) -> Option<stateid4> {
        match self.stage {
            Stage::Reading(_, stateid) | Stage::Known(stateid) => Some(stateid),
            Stage::Missed(..) | Stage::Alone(_) | Stage::Asking(_) => None,
        }
    }

    fn is_read_by(&self, number: u64) -> bool {
        matches!(self.stage, Stage::Asking(n) | Stage::Reading(n, _) if n == number)
    }

    /// Returns whether created names must be recorded.
    fn notes(&self) -> bool {
        matches!(self.stage, Stage::Asking(_) | Stage::Reading(..) | Stage::Known(_))
    }

    fn gone(&self) -> Option<Gone> {
        self.stateid().map(|stateid| Gone { handle: self.handle.clone(), stateid })
    }
}

impl<C: Clone + PartialEq> Negative<C> {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Forgets a directory; with `until` it is not tried again before that time.
    fn forget(&mut self, dir: FileId, until: Option<Timestamp>) -> Option<Gone> {
        let known = self.dirs.remove(&dir)?;
        self.names -= known.may_be.len();
        if let Some(until) = until {
            let (stage, may_be, callers) = (Stage::Alone(until), HashMap::new(), Vec::new());
            self.dirs.insert(dir, Dir { stage, may_be, callers, handle: Bytes::new(), ..known });
        }
        known.gone()
    }

    /// Returns whether the cache shows a caller, in the session of this epoch, that a name does not exist.
    pub(crate) fn is_absent(&mut self, dir: FileId, name: &[u8], caller: &C, epoch: u64) -> bool {
        let clock = self.tick();
        let Some(known) = self.dirs.get_mut(&dir) else { return false };
        let is_absent = matches!(known.stage, Stage::Known(_))
            && known.epoch == epoch
            && !name.is_empty()
            && name.len() <= NAME_MAX
            && !known.may_be.contains_key(name)
            && known.callers.contains(caller);
        if is_absent {
            known.used = clock;
        }
        is_absent
    }

    /// Records the mgr's answer that a name does not exist. After `wanted` failed lookups the names of the directory
    /// are to be read.
    ///
    /// Returns the number of the task that must read them, if any, and delegations to return.
    pub(crate) fn missed(
        &mut self,
        (dir, handle): (FileId, &Bytes),
        caller: &C,
        (epoch, now): (u64, Timestamp),
        wanted: u32,
    ) -> (Option<u64>, Vec<Gone>) {
        let clock = self.tick();
        if self.doubts >= DOUBTS {
            return (None, Vec::new());
        }
        let mut back = Vec::new();
        if self.dirs.get(&dir).is_some_and(|known| known.stateid().is_some() && known.epoch != epoch) {
            back.extend(self.forget(dir, None));
        }
        let Some(known) = self.dirs.get_mut(&dir) else {
            back.extend(self.make_room());
            let stage = Stage::Missed(0, now);
            let (may_be, callers) = (HashMap::new(), Vec::new());
            // The filehandle is a slice of a network buffer and would keep the whole buffer in memory.
            let handle = Bytes::copy_from_slice(handle);
            let new = Dir { stage, handle: handle.clone(), epoch, may_be, callers, used: clock };
            self.dirs.insert(dir, new);
            let asked = self.missed((dir, &handle), caller, (epoch, now), wanted);
            return (asked.0, back);
        };
        known.used = clock;
        match known.stage {
            Stage::Missed(misses, last) if now.since(last) > MISSES_WITHIN && misses > 0 && wanted > 1 => {
                known.stage = Stage::Missed(1, now);
            }
            Stage::Missed(misses, _) if misses + 1 < wanted => known.stage = Stage::Missed(misses + 1, now),
            Stage::Alone(until) if now < until => {}
            Stage::Missed(..) | Stage::Alone(_) => {
                known.stage = Stage::Asking(clock);
                known.handle = Bytes::copy_from_slice(handle);
                known.epoch = epoch;
                known.callers = vec![caller.clone()];
                // A request in flight may be executed after the names were read.
                let making = self.making.keys().filter(|(of, _)| *of == dir);
                known.may_be = making.map(|(_, name)| (name.clone(), clock)).collect();
                self.names += known.may_be.len();
                return (Some(clock), back);
            }
            Stage::Known(_) if !known.callers.contains(caller) && known.callers.len() < CALLERS => {
                known.callers.push(caller.clone());
            }
            Stage::Asking(_) | Stage::Reading(..) | Stage::Known(_) => {}
        }
        (None, back)
    }

    /// Frees space for one more directory.
    fn make_room(&mut self) -> Option<Gone> {
        if self.dirs.len() < DIRS {
            return None;
        }
        // A task that reads the names of this directory then finds that they are not wanted any more.
        let oldest = self.dirs.iter().min_by_key(|(_, known)| known.used).map(|(dir, _)| *dir)?;
        self.forget(oldest, None)
    }

    /// Records the granted delegation; returns it as an error if it is not wanted any more and must be returned.
    pub(crate) fn granted(&mut self, dir: FileId, number: u64, gone: Gone, epoch: u64) -> Result<(), Gone> {
        match self.dirs.get_mut(&dir) {
            Some(known) if known.is_read_by(number) && known.epoch == epoch => {
                known.stage = Stage::Reading(number, gone.stateid);
                Ok(())
            }
            _ => Err(gone),
        }
    }

    /// Adds names that exist; returns false if no more are wanted.
    pub(crate) fn read(&mut self, dir: FileId, number: u64, names: impl Iterator<Item = Bytes>) -> bool {
        let clock = self.tick();
        let Some(known) = self.dirs.get_mut(&dir).filter(|known| known.is_read_by(number)) else { return false };
        for name in names {
            if known.may_be.insert(name.as_ref().into(), clock).is_none() {
                self.names += 1;
            }
        }
        known.may_be.len() <= NAMES_OF_DIR && self.names <= NAMES
    }

    /// Records that all names were read, or that reading failed: then the directory is not tried again for a while.
    /// Returns a delegation to return.
    pub(crate) fn finished(&mut self, dir: FileId, number: u64, all: bool, now: Timestamp) -> Option<Gone> {
        let known = self.dirs.get_mut(&dir).filter(|known| known.is_read_by(number))?;
        match known.stage {
            Stage::Reading(_, stateid) if all => {
                known.stage = Stage::Known(stateid);
                None
            }
            _ => self.forget(dir, Some(now.after(ALONE_FOR))),
        }
    }

    /// Handles a recalled or revoked delegation: forgets its directory, and returns the delegation if it was known.
    pub(crate) fn lose(&mut self, stateid: &stateid4, now: Timestamp) -> Option<Gone> {
        let held = |known: &Dir<C>| known.stateid().is_some_and(|held| held.other == stateid.other);
        let dir = self.dirs.iter().find(|(_, known)| held(known)).map(|(dir, _)| *dir)?;
        self.forget(dir, Some(now.after(ALONE_FOR)))
    }

    /// Empties the cache and switches it off. Returns all delegations.
    pub(crate) fn leave(&mut self) -> Vec<Gone> {
        self.doubts = DOUBTS;
        let all: Vec<FileId> = self.dirs.keys().copied().collect();
        all.into_iter().filter_map(|dir| self.forget(dir, None)).collect()
    }

    /// Records that the mount has changed the permissions of a directory.
    pub(crate) fn permissions_changed(&mut self, dir: FileId) {
        if let Some(known) = self.dirs.get_mut(&dir) {
            known.callers.clear();
        }
    }

    /// Returns the stateids of all delegations.
    pub(crate) fn held(&self) -> Vec<stateid4> {
        self.dirs.values().filter_map(Dir::stateid).collect()
    }

    /// Registers a request that may create a name and is about to be sent. Returns a delegation to return, if there are
    /// too many names.
    pub(crate) fn makes(&mut self, dir: FileId, name: &[u8], now: Timestamp) -> Option<Gone> {
        let clock = self.tick();
        *self.making.entry((dir, name.into())).or_default() += 1;
        let known = self.dirs.get_mut(&dir).filter(|known| known.notes())?;
        if known.may_be.insert(name.into(), clock).is_none() {
            self.names += 1;
        }
        match known.may_be.len() > NAMES_OF_DIR || self.names > NAMES {
            true => self.forget(dir, Some(now.after(ALONE_FOR))),
            false => None,
        }
    }

    /// Records that the mgr has answered such a request, or that it will never be answered and may still be executed.
    /// Returns delegations to return, if there are too many unanswered requests.
    pub(crate) fn made(&mut self, dir: FileId, name: &[u8], answered: bool) -> Vec<Gone> {
        if !answered {
            self.doubts += 1;
            return if self.doubts < DOUBTS { Vec::new() } else { self.leave() };
        }
        let key = (dir, Name::from(name));
        if let Some(many) = self.making.get_mut(&key) {
            *many -= 1;
            if *many == 0 {
                self.making.remove(&key);
            }
        }
        Vec::new()
    }

    /// Registers a request that removes or renames a name and is about to be sent.
    pub(crate) fn removes(&self, dir: FileId, name: &[u8]) -> Option<Removal> {
        let name: Name = name.into();
        let stamp = *self.dirs.get(&dir)?.may_be.get(&name)?;
        let key = (dir, name);
        (!self.making.contains_key(&key)).then_some(Removal { dir, name: key.1, stamp })
    }

    /// Records that the mgr has executed the removal.
    pub(crate) fn removed(&mut self, removal: Removal) {
        let Removal { dir, name, stamp } = removal;
        // A later create has set another stamp.
        if let Some(known) = self.dirs.get_mut(&dir)
            && known.may_be.get(&name) == Some(&stamp)
        {
            known.may_be.remove(&name);
            self.names -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
