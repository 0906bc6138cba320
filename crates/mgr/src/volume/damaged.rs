//! Files with lost or damaged bytes: repair from another copy, or one log message if there is none.

use super::Volume;
use crate::counters::add;
use crate::proxy::{Suspect, remember};
use meta::FileState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use types::{FileId, Status};

/// Largest number of files remembered: `weir fsck` and the next read of a file find the files that are not remembered.
const MOST: usize = 4096;

/// Files to be repaired, with the damaged ranges found inside of their objects.
pub(crate) type Suspects = BTreeMap<FileId, Vec<Suspect>>;

/// Files in which lost or damaged bytes were found.
#[derive(Debug, Default)]
pub(crate) struct Damaged {
    state: Mutex<State>,
    /// Notified when there is a file to repair.
    pub(crate) met: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Files to be repaired from another copy.
    waiting: Suspects,
    /// Files whose loss is already logged.
    told: BTreeSet<FileId>,
    /// Number of further files that wait for an iod or for their writers.
    left: usize,
    /// The last file that the running check of all files has reached.
    looked: Option<FileId>,
}

impl Damaged {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a copy of this file has lost bytes, or that these ranges are damaged.
    pub(crate) fn found(&self, file: FileId, suspects: &[Suspect]) {
        let waiting = &mut self.state().waiting;
        if waiting.len() < MOST || waiting.contains_key(&file) {
            remember(waiting.entry(file).or_default(), suspects);
            self.met.notify_one();
        }
    }

    /// Returns the files that were found since the last call.
    pub(crate) fn take(&self) -> Suspects {
        std::mem::take(&mut self.state().waiting)
    }

    /// Sets how many files wait for an iod or for their writers, and the last file that the running check of all files
    /// has reached.
    pub(crate) fn set_left(&self, left: usize, looked: Option<FileId>) {
        let mut state = self.state();
        (state.left, state.looked) = (left, looked);
    }

    /// Returns how many files are known to need repair, and the last file that the running check of all files has
    /// reached.
    pub(crate) fn standing(&self) -> (usize, Option<FileId>) {
        let state = self.state();
        (state.left + state.waiting.len(), state.looked)
    }

    /// Returns whether a file's loss is reported for the first time.
    fn is_new(&self, file: FileId) -> bool {
        let mut state = self.state();
        if state.told.len() >= MOST {
            state.told.clear();
        }
        state.told.insert(file)
    }
}

impl Volume {
    /// Logs once for each file that bytes are lost, if that is the error.
    pub(crate) fn tell_lost(&self, file: FileId, error: Status) {
        if error == Status::Lost && self.damaged.is_new(file) {
            add(&self.counters.files_lost, 1);
            tracing::error!(file = file.0, "an iod has lost durable bytes of the file; run weir fsck");
        }
    }

    /// Returns whether a copy on one of these iods has lost bytes; `false` while some iod of the file is down.
    ///
    /// # Errors
    /// `Delay` while a client may write the copies.
    pub(crate) async fn has_lost_copy(&self, file: &FileState, iods: &BTreeSet<u16>) -> Result<bool, Status> {
        let Ok(Some(objects)) = self.stored(file.into(), file.layout.as_ref()) else { return Ok(false) };
        let concerned = objects.mirrors() > 1 && objects.iods().iter().any(|iod| iods.contains(iod));
        // When the missing iod returns, its copies are checked.
        if !concerned || objects.all_up().is_err() {
            return Ok(false);
        }
        self.check_unwritten(file.id)?;
        objects.has_lost_copy().await
    }

    /// Truncates the bytes behind the size that only one copy of a file has; returns whether there were any.
    ///
    /// # Errors
    /// The errors of [`Self::rebuild`].
    pub(crate) async fn cut_copies(&self, file: FileId) -> Result<bool, Status> {
        let _alone = self.locks.alone(file).await;
        self.check_unwritten(file)?;
        let info = self.regular(file)?;
        let Some(objects) = self.objects(&info)? else { return Ok(false) };
        objects.cut_copies(info.attrs.size).await
    }

    /// Returns `Delay` while a client may write the copies of a file: kernel clients write both copies themselves.
    /// Clients from before a restart of the mgr may still write.
    fn check_unwritten(&self, file: FileId) -> Result<(), Status> {
        let written = self.notes.cut(file).is_some() || self.grants.written(file) || self.notes.is_exposed(file);
        if written { Err(Status::Delay) } else { Ok(()) }
    }

    /// Repairs the copies of a file that have lost bytes, and these ranges if they are damaged; returns the number of
    /// repaired copies and blocks.
    ///
    /// # Errors
    /// `Lost` when no copy has the bytes; `Delay` while an iod is down, or while a client writes the copies itself.
    pub(crate) async fn rebuild(&self, file: FileId, suspects: &[Suspect]) -> Result<usize, Status> {
        // Writes through the mgr and new layouts to write wait meanwhile.
        let _alone = self.locks.alone(file).await;
        self.check_unwritten(file)?;
        let info = self.regular(file)?;
        let Some(objects) = self.objects(&info)? else { return Ok(0) };
        let rebuilt = objects.rebuild().await?;
        for copy in &rebuilt {
            let iod = self.iods.registered(objects.iod(copy.index)).map(|iod| iod.id.to_string()).unwrap_or_default();
            tracing::warn!(file = file.0, iod, bytes = copy.bytes, "rebuilt the copy of an object");
        }
        add(&self.counters.copies_rebuilt, rebuilt.len() as u64);
        let healed = objects.heal(suspects).await?;
        if healed > 0 {
            tracing::warn!(file = file.0, blocks = healed, "rewrote damaged blocks of a copy from the other copy");
        }
        add(&self.counters.blocks_healed, healed);
        Ok(rebuilt.len() + healed as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_queued_once_and_logged_once() {
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
