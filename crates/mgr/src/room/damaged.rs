//! Files that have lost bytes: those with copies are made whole again, of others it is logged once.

use super::Room;
use crate::counters::add;
use crate::proxy::{Objects, Suspect, remember};
use meta::FileState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use types::{FileId, Status};

/// Most files remembered: the others are found by `weir fsck`, or when they are read next.
const MOST: usize = 4096;

/// Files to be made whole, with what was met damaged inside of objects.
pub(crate) type Suspects = BTreeMap<FileId, Vec<Suspect>>;

/// Files that were met with lost or damaged bytes.
#[derive(Debug, Default)]
pub(crate) struct Damaged {
    state: Mutex<State>,
    /// Told when there is a file to be made whole.
    pub(crate) met: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// To be made whole from another copy.
    waiting: Suspects,
    /// Logged already.
    told: BTreeSet<FileId>,
    /// How many more wait for an iod or for who writes them.
    left: usize,
    /// Up to which file all were looked at, while that is being done.
    looked: Option<FileId>,
}

impl Damaged {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of this file has lost bytes, or these are damaged.
    pub(crate) fn found(&self, file: FileId, suspects: &[Suspect]) {
        let waiting = &mut self.state().waiting;
        if waiting.len() < MOST || waiting.contains_key(&file) {
            remember(waiting.entry(file).or_default(), suspects);
            self.met.notify_one();
        }
    }

    /// The files that were met since the last call.
    pub(crate) fn take(&self) -> Suspects {
        std::mem::take(&mut self.state().waiting)
    }

    /// So many files wait for an iod or for who writes them, and all up to this one were looked at, while that is being done.
    pub(crate) fn set_left(&self, left: usize, looked: Option<FileId>) {
        let mut state = self.state();
        (state.left, state.looked) = (left, looked);
    }

    /// How many files are to be made whole, as far as that is known, and up to which all were looked at, while that is being done.
    pub(crate) fn standing(&self) -> (usize, Option<FileId>) {
        let state = self.state();
        (state.left + state.waiting.len(), state.looked)
    }

    /// Whether this is the first time that it is asked about a file.
    fn is_new(&self, file: FileId) -> bool {
        let mut state = self.state();
        if state.told.len() >= MOST {
            state.told.clear();
        }
        state.told.insert(file)
    }
}

impl Room {
    /// Logs once of a file that it has lost bytes, if that is what failed.
    pub(crate) fn tell_lost(&self, file: FileId, error: Status) {
        if error == Status::Lost && self.damaged.is_new(file) {
            add(&self.counters.files_lost, 1);
            tracing::error!(file = file.0, "bytes that were on the disk of an iod are lost; run weir fsck");
        }
    }

    /// Whether a copy on one of these iods has lost bytes; not of a file whose iods are not all there.
    ///
    /// # Errors
    /// `Delay` while somebody may write the copies.
    pub(crate) async fn has_lost_copy(&self, file: &FileState, iods: &BTreeSet<u16>) -> Result<bool, Status> {
        let layout = file.layout.as_ref().filter(|layout| layout.is_final());
        let objects = layout.map(|layout| Objects::new(&self.iods, file.id, file.generation, layout));
        let Some(Ok(objects)) = objects else { return Ok(false) };
        let concerned = objects.record.mirrors > 1 && objects.record.iods.iter().any(|iod| iods.contains(iod));
        // The iod that is not there has them looked at when it comes up.
        if !concerned || objects.all_up().is_err() {
            return Ok(false);
        }
        self.check_unwritten(file.id)?;
        objects.knowing(file.size, file.whole, file.written).has_lost_copy().await
    }

    /// Cuts what one copy of a file has behind its size, and the other has not; whether there was any.
    ///
    /// # Errors
    /// As those of [`Self::rebuild`].
    pub(crate) async fn cut_copies(&self, file: FileId) -> Result<bool, Status> {
        let _alone = self.locks.alone(file).await;
        self.check_unwritten(file)?;
        let info = self.regular(file)?;
        let Some(objects) = self.objects(&info)? else { return Ok(false) };
        objects.cut_copies(info.attrs.size).await
    }

    /// `Delay` while somebody may write the copies of a file: clients of the kernel write both themselves, and those from before a restart of the
    /// mgr may still be doing it.
    fn check_unwritten(&self, file: FileId) -> Result<(), Status> {
        let written = self.notes.cut(file).is_some() || self.grants.written(file) || self.notes.is_exposed(file);
        if written { Err(Status::Delay) } else { Ok(()) }
    }

    /// Makes the copies of a file whole that have lost bytes, and those of these bytes that are damaged; how many copies and blocks there were.
    ///
    /// # Errors
    /// `Lost` when bytes are in no copy; `Delay` while an iod is away, or a client writes the copies itself.
    pub(crate) async fn rebuild(&self, file: FileId, suspects: &[Suspect]) -> Result<usize, Status> {
        // What writes through the mgr waits meanwhile, and so do new layouts to write.
        let _alone = self.locks.alone(file).await;
        self.check_unwritten(file)?;
        let info = self.regular(file)?;
        let Some(objects) = self.objects(&info)? else { return Ok(0) };
        let rebuilt = objects.rebuild().await?;
        for copy in &rebuilt {
            let iod = self.iods.registered(objects.iod(copy.index)).map(|iod| iod.id.to_string()).unwrap_or_default();
            tracing::warn!(file = file.0, iod, bytes = copy.bytes, "made a copy of an object again");
        }
        add(&self.counters.copies_rebuilt, rebuilt.len() as u64);
        let healed = objects.heal(suspects).await?;
        if healed > 0 {
            tracing::warn!(file = file.0, blocks = healed, "wrote damaged blocks of a copy again from the other copy");
        }
        add(&self.counters.blocks_healed, healed);
        Ok(rebuilt.len() + healed as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_wait_once_and_are_told_of_once() {
        let damaged = Damaged::default();
        let suspect = Suspect { index: 1, range: types::ByteRange { offset: 5, len: 6 } };
        (0..2).for_each(|_| [7, 9].into_iter().for_each(|file| damaged.found(FileId(file), &[])));
        damaged.found(FileId(9), &[suspect]);
        assert_eq!(damaged.take(), Suspects::from([(FileId(7), vec![]), (FileId(9), vec![suspect])]));
        assert_eq!(damaged.take(), Suspects::new());
        assert_eq!([3, 3, 4].map(|file| damaged.is_new(FileId(file))), [true, false, true]);
        (0..2 * MOST as u64).for_each(|file| damaged.found(FileId(file), &[]));
        assert_eq!(damaged.take().len(), MOST);
    }
}
