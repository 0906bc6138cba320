//! The negative-lookup cache: under directory delegations, it contains all names of some directories. The mgr recalls a
//! delegation before another client changes a name in the directory.
//!
//! If lookups in a directory often fail, the mount requests a directory delegation (GET_DIR_DELEGATION, RFC 8881
//! §18.39) and reads all names. From then on, a name that the cache does not contain does not exist. Creates and
//! removes by this mount do not end the delegation. The mount adds a name to the cache before it sends a request that
//! creates the name. It removes a name from the cache after the mgr has confirmed the removal of the name. For names in
//! the cache, the mount still asks the mgr.

use bytes::Bytes;
use std::collections::HashMap;
use std::time::Duration;
use types::{FileId, Timestamp};
use wire::nfs4::stateid4;

/// Maximum time between two failed lookups (misses) in a directory that the cache counts as one series of misses.
const MISSES_WITHIN: Duration = Duration::from_secs(2);
/// How long the client requests no delegation of a directory after the mgr refused or recalled such a delegation, or
/// after the directory had too many names.
const ALONE_FOR: Duration = Duration::from_secs(30);
/// Maximum number of directories in the cache.
const DIRS: usize = 1024;
/// Maximum number of cached names of one directory. The constant `NAMES` is the maximum for all directories together.
const NAMES_OF_DIR: usize = 1 << 16;
const NAMES: usize = 1 << 18;
/// Maximum number of callers with lookup permission that the cache records for one directory.
const CALLERS: usize = 16;
/// Maximum number of create requests that the mgr never answered. The mgr may still execute these requests, so the
/// cache is switched off when their number reaches this limit.
const DOUBTS: usize = 4096;
/// The length of the longest name that the mgr accepts, in bytes.
const NAME_MAX: usize = 255;

type Name = Box<[u8]>;

/// A directory delegation that the client has to return to the mgr.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DelegationToReturn {
    /// The filehandle of the directory that the delegation is for.
    pub(crate) handle: Bytes,
    pub(crate) stateid: stateid4,
}

/// A request in flight that removes or renames a name. `stamp` is the value of the logical clock that the cache stored
/// with the name before the client sent the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Removal {
    dir: FileId,
    name: Name,
    stamp: u64,
}

/// What the cache knows about one directory, and whether the client holds a delegation of the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The client holds no delegation of the directory. The values are the number of failed lookups in the directory
    /// and the time of the last failed lookup.
    Missed(u32, Timestamp),
    /// The client does not request a delegation of the directory before this time.
    Alone(Timestamp),
    /// The client has requested a delegation of the directory. The number identifies the task that sent the request.
    Asking(u64),
    /// The client holds a delegation of the directory, and the task with this number is reading the names.
    Reading(u64, stateid4),
    /// The client holds a delegation of the directory, and the cache contains every name that may exist.
    Known(stateid4),
}

struct Dir<C> {
    stage: Stage,
    handle: Bytes,
    /// The session epoch in which the delegation was granted.
    epoch: u64,
    /// The names that may exist, each with the value of the logical clock at the last create request or READDIR that
    /// added the name.
    may_be: HashMap<Name, u64>,
    /// The callers that have lookup permission in the directory.
    callers: Vec<C>,
    /// The value of the logical clock when the cache last used this directory.
    used: u64,
}

/// The negative-lookup cache; the type `C` identifies callers.
pub(crate) struct Negative<C> {
    dirs: HashMap<FileId, Dir<C>>,
    /// The names in create requests without a reply, each with the number of such requests.
    making: HashMap<(FileId, Name), usize>,
    /// Number of create requests that ended without a reply, so that the mgr may still execute them.
    doubts: usize,
    /// Number of cached names of all directories.
    names: usize,
    /// The logical clock: a counter that increases with each event that the cache records, such as a lookup or a
    /// request.
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

    /// Returns whether the cache must record the names that this mount creates in the directory.
    fn notes(&self) -> bool {
        matches!(self.stage, Stage::Asking(_) | Stage::Reading(..) | Stage::Known(_))
    }

    fn gone(&self) -> Option<DelegationToReturn> {
        self.stateid().map(|stateid| DelegationToReturn { handle: self.handle.clone(), stateid })
    }
}

impl<C: Clone + PartialEq> Negative<C> {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Removes a directory from the cache. The result is the delegation of the directory, if the client holds one. With
    /// `until`, the client requests no delegation of the directory before the time `until`.
    fn forget(&mut self, dir: FileId, until: Option<Timestamp>) -> Option<DelegationToReturn> {
        let known = self.dirs.remove(&dir)?;
        self.names -= known.may_be.len();
        if let Some(until) = until {
            let (stage, may_be, callers) = (Stage::Alone(until), HashMap::new(), Vec::new());
            self.dirs.insert(dir, Dir { stage, may_be, callers, handle: Bytes::new(), ..known });
        }
        known.gone()
    }

    /// Returns whether the cache proves that a name does not exist, and the caller has lookup permission in the
    /// directory. `epoch` is the current session epoch. A delegation that the mgr granted in an earlier session proves
    /// nothing.
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

    /// Records that the mgr did not find a name in a directory. After a series of `wanted` such failed lookups, the
    /// cache needs a task that reads all names of the directory.
    ///
    /// Returns the number of the task if the caller must start it now, and the delegations that the caller must return
    /// to the mgr.
    pub(crate) fn missed(
        &mut self,
        (dir, handle): (FileId, &Bytes),
        caller: &C,
        (epoch, now): (u64, Timestamp),
        wanted: u32,
    ) -> (Option<u64>, Vec<DelegationToReturn>) {
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
            // Copy the filehandle, because it is a slice of a network buffer and would keep the whole buffer in memory.
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
                // While a create request is in flight, the mgr may first list the names of the directory and then
                // execute the create request. The list then lacks the new name, so add the names in such create
                // requests to the cache now.
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

    /// If the cache contains the maximum number of directories, removes the least recently used directory. Passes the
    /// delegation of the removed directory to the caller, which must return it to the mgr.
    fn make_room(&mut self) -> Option<DelegationToReturn> {
        if self.dirs.len() < DIRS {
            return None;
        }
        // A task may be reading the names of the removed directory. The task stops when it finds that the cache no
        // longer contains the directory.
        let oldest = self.dirs.iter().min_by_key(|(_, known)| known.used).map(|(dir, _)| *dir)?;
        self.forget(oldest, None)
    }

    /// Records that the mgr granted a delegation to the task with this number. If the cache no longer needs the
    /// delegation, returns it as an error, and the client must return the delegation to the mgr.
    pub(crate) fn granted(
        &mut self,
        dir: FileId,
        number: u64,
        gone: DelegationToReturn,
        epoch: u64,
    ) -> Result<(), DelegationToReturn> {
        match self.dirs.get_mut(&dir) {
            Some(known) if known.is_read_by(number) && known.epoch == epoch => {
                known.stage = Stage::Reading(number, gone.stateid);
                Ok(())
            }
            _ => Err(gone),
        }
    }

    /// Adds the names that a task received in a READDIR reply. Returns false if the task may stop, because the cache
    /// has dropped the directory or contains too many names.
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

    /// Records that a task has read all names of a directory (`all` is true), or has failed. After a failure, the
    /// client requests no delegation of the directory for [`ALONE_FOR`]. If the result is a delegation, the caller must
    /// return this delegation to the mgr.
    pub(crate) fn finished(
        &mut self,
        dir: FileId,
        number: u64,
        all: bool,
        now: Timestamp,
    ) -> Option<DelegationToReturn> {
        let known = self.dirs.get_mut(&dir).filter(|known| known.is_read_by(number))?;
        match known.stage {
            Stage::Reading(_, stateid) if all => {
                known.stage = Stage::Known(stateid);
                None
            }
            _ => self.forget(dir, Some(now.after(ALONE_FOR))),
        }
    }

    /// Drops the directory of a recalled or revoked delegation. The result is the delegation, if the cache contained
    /// it.
    pub(crate) fn lose(&mut self, stateid: &stateid4, now: Timestamp) -> Option<DelegationToReturn> {
        let held = |known: &Dir<C>| known.stateid().is_some_and(|held| held.other == stateid.other);
        let dir = self.dirs.iter().find(|(_, known)| held(known)).map(|(dir, _)| *dir)?;
        self.forget(dir, Some(now.after(ALONE_FOR)))
    }

    /// Empties the cache and switches it off. Passes all delegations of the cache to the caller, which must return them
    /// to the mgr.
    pub(crate) fn leave(&mut self) -> Vec<DelegationToReturn> {
        self.doubts = DOUBTS;
        let all: Vec<FileId> = self.dirs.keys().copied().collect();
        all.into_iter().filter_map(|dir| self.forget(dir, None)).collect()
    }

    /// Records that this mount has changed the permissions of a directory. From then on, the cache answers a caller
    /// only after the mgr has answered a lookup by this caller again.
    pub(crate) fn permissions_changed(&mut self, dir: FileId) {
        if let Some(known) = self.dirs.get_mut(&dir) {
            known.callers.clear();
        }
    }

    /// Returns the stateids of all delegations in the cache.
    pub(crate) fn held(&self) -> Vec<stateid4> {
        self.dirs.values().filter_map(Dir::stateid).collect()
    }

    /// Registers a create request before the client sends it. If the directory then has too many names for the cache,
    /// drops the directory, and passes its delegation to the caller, which must return it to the mgr.
    pub(crate) fn makes(&mut self, dir: FileId, name: &[u8], now: Timestamp) -> Option<DelegationToReturn> {
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

    /// Records the end of a create request. If `answered` is false, the request ended without a reply, and the mgr may
    /// still execute it. After too many such requests, switches the cache off, and passes all its delegations to the
    /// caller, which must return them to the mgr.
    pub(crate) fn made(&mut self, dir: FileId, name: &[u8], answered: bool) -> Vec<DelegationToReturn> {
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

    /// Registers a request that removes or renames a name, before the client sends the request.
    pub(crate) fn removes(&self, dir: FileId, name: &[u8]) -> Option<Removal> {
        let name: Name = name.into();
        let stamp = *self.dirs.get(&dir)?.may_be.get(&name)?;
        let key = (dir, name);
        (!self.making.contains_key(&key)).then_some(Removal { dir, name: key.1, stamp })
    }

    /// Records that the mgr has removed or renamed a name, and removes the name from the cache.
    pub(crate) fn removed(&mut self, removal: Removal) {
        let Removal { dir, name, stamp } = removal;
        // If the value of the logical clock stored with the name has changed since the client sent the removal, the
        // client has begun to create the name since then, and the name may exist again. So keep the name in the cache.
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
