//! Negative entries: names that are known not to be in a directory, because the mgr asks before others change names there.
//!
//! Where names are looked for in vain more than now and then, the mount asks for a delegation of the names (GET_DIR_DELEGATION, RFC 8881 §18.39) and
//! reads them all. From then on a name that is not among them is not there. What the mount makes and removes itself does not end that: a name
//! counts as one that may be there from before the request is sent, and no more once its removal was answered. What may be there is asked for.

use bytes::Bytes;
use std::collections::HashMap;
use std::time::Duration;
use types::{FileId, Timestamp};
use wire::nfs4::stateid4;

/// Names that are looked for in vain count together if each comes within this of the one before.
const MISSES_WITHIN: Duration = Duration::from_secs(2);
/// How long a directory is left alone whose names could not be had, or were too many.
const ALONE_FOR: Duration = Duration::from_secs(30);
/// Most directories of which anything is known.
const DIRS: usize = 1024;
/// Most names of one directory, and of all together.
const NAMES_OF_DIR: usize = 1 << 16;
const NAMES: usize = 1 << 18;
/// Most callers that are known to be allowed to look for names in a directory.
const CALLERS: usize = 16;
/// Requests that may or may not have made a name, and may still: so many, and nothing is known any more.
const DOUBTS: usize = 4096;
/// The longest name; longer ones are the mgr's to refuse.
const NAME_MAX: usize = 255;

type Name = Box<[u8]>;

/// A delegation to be given back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gone {
    /// The filehandle of its directory.
    pub(crate) handle: Bytes,
    pub(crate) stateid: stateid4,
}

/// A name that is about to be removed, as it was known when that began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Removal {
    dir: FileId,
    name: Name,
    stamp: u64,
}

/// How far the names of a directory are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// So many were looked for in vain, the last one then.
    Missed(u32, Timestamp),
    /// To be left alone until then.
    Alone(Timestamp),
    /// A delegation was asked for. The number tells who asks from who asked before.
    Asking(u64),
    /// It is there, and names are being read.
    Reading(u64, stateid4),
    /// Every name is known that may be there.
    Known(stateid4),
}

struct Dir<C> {
    stage: Stage,
    handle: Bytes,
    /// In which session the delegation was given.
    epoch: u64,
    /// Names that may be there, and when each was last about to be made.
    may_be: HashMap<Name, u64>,
    /// Who may look for names there.
    callers: Vec<C>,
    /// When it was last of use.
    used: u64,
}

/// What is known of directories. `C` is who asks.
pub(crate) struct Negative<C> {
    dirs: HashMap<FileId, Dir<C>>,
    /// Names that are being made, and by how many requests.
    making: HashMap<(FileId, Name), usize>,
    /// How many of those will never be heard of.
    doubts: usize,
    /// Names that may be there, of all directories.
    names: usize,
    /// Counts what happens.
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

    /// Whether names that are made have to be noted.
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

    /// Nothing is known of a directory any more, which is left alone until then.
    fn forget(&mut self, dir: FileId, until: Option<Timestamp>) -> Option<Gone> {
        let known = self.dirs.remove(&dir)?;
        self.names -= known.may_be.len();
        if let Some(until) = until {
            let (stage, may_be, callers) = (Stage::Alone(until), HashMap::new(), Vec::new());
            self.dirs.insert(dir, Dir { stage, may_be, callers, handle: Bytes::new(), ..known });
        }
        known.gone()
    }

    /// Whether a caller can be told that there is no such name, in the session of this epoch.
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

    /// The mgr has told a caller that there is no such name; all names are asked for where so many were looked for in vain as `wanted` says.
    ///
    /// The number of who is to ask for them, if somebody is; and what is to be given back for that.
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
            // The filehandle is a piece of what came from the network, all of which it keeps in memory.
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
                // What is on its way may be carried out after the names were read.
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

    /// Makes room for one directory more.
    fn make_room(&mut self) -> Option<Gone> {
        if self.dirs.len() < DIRS {
            return None;
        }
        // Who reads names goes on, and finds that they are not wanted any more.
        let oldest = self.dirs.iter().min_by_key(|(_, known)| known.used).map(|(dir, _)| *dir)?;
        self.forget(oldest, None)
    }

    /// The mgr has given the delegation; if that is of no use any more, it is to be given back.
    pub(crate) fn granted(&mut self, dir: FileId, number: u64, gone: Gone, epoch: u64) -> Result<(), Gone> {
        match self.dirs.get_mut(&dir) {
            Some(known) if known.is_read_by(number) && known.epoch == epoch => {
                known.stage = Stage::Reading(number, gone.stateid);
                Ok(())
            }
            _ => Err(gone),
        }
    }

    /// Names that are there; false if no more are wanted.
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

    /// All names were read, or it failed: then the directory is left alone for a while. What is to be given back.
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

    /// The mgr wants a delegation back, or has taken it: whether it is known, and then no more.
    pub(crate) fn lose(&mut self, stateid: &stateid4, now: Timestamp) -> Option<Gone> {
        let held = |known: &Dir<C>| known.stateid().is_some_and(|held| held.other == stateid.other);
        let dir = self.dirs.iter().find(|(_, known)| held(known)).map(|(dir, _)| *dir)?;
        self.forget(dir, Some(now.after(ALONE_FOR)))
    }

    /// Nothing is known any more, and nothing is asked for. All delegations.
    pub(crate) fn leave(&mut self) -> Vec<Gone> {
        self.doubts = DOUBTS;
        let all: Vec<FileId> = self.dirs.keys().copied().collect();
        all.into_iter().filter_map(|dir| self.forget(dir, None)).collect()
    }

    /// The mount has changed who may look for names there.
    pub(crate) fn permissions_changed(&mut self, dir: FileId) {
        if let Some(known) = self.dirs.get_mut(&dir) {
            known.callers.clear();
        }
    }

    /// All delegations.
    pub(crate) fn held(&self) -> Vec<stateid4> {
        self.dirs.values().filter_map(Dir::stateid).collect()
    }

    /// A request that may make a name is about to be sent. What is to be given back, as there are too many names.
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

    /// The mgr has answered that request; or it will never be heard of, and may still be carried out. What is to be given back, as there were too
    /// many of those.
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

    /// A request that removes a name, or moves it away, is about to be sent.
    pub(crate) fn removes(&self, dir: FileId, name: &[u8]) -> Option<Removal> {
        let name: Name = name.into();
        let stamp = *self.dirs.get(&dir)?.may_be.get(&name)?;
        let key = (dir, name);
        (!self.making.contains_key(&key)).then_some(Removal { dir, name: key.1, stamp })
    }

    /// The mgr has done that.
    pub(crate) fn removed(&mut self, removal: Removal) {
        let Removal { dir, name, stamp } = removal;
        // Who makes it anew has set another stamp.
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
