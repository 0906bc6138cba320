//! Files with lost or damaged bytes: the mgr repairs them from another copy, or logs the loss once for each file.

use super::Volume;
use crate::counters::add;
use crate::proxy::{Suspect, remember};
use meta::FileState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use types::{FileId, Status};

/// Largest number of files that the mgr remembers for repair. For damaged files beyond this number, `weir fsck` or the
/// next read finds the damage again.
const MOST: usize = 4096;

/// Files to repair, each with the damaged ranges of its objects.
pub(crate) type Suspects = BTreeMap<FileId, Vec<Suspect>>;

/// The files in which requests and scrubs found lost or damaged bytes.
#[derive(Debug, Default)]
pub(crate) struct Damaged {
    state: Mutex<State>,
    /// Notified when a file is added to the files to repair.
    pub(crate) met: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Files that the rebuilder job must repair from another copy.
    waiting: Suspects,
    /// Files whose lost bytes the mgr has already logged.
    reported: BTreeSet<FileId>,
    /// Number of files whose repair the rebuilder job has postponed.
    left: usize,
    /// Progress of the rebuilder job when it checks all files: the inode number of the file that it checked last.
    /// `None` if it does not check all files now.
    looked: Option<FileId>,
}

impl Damaged {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a copy of this file has lost bytes, or that the ranges `suspects` are damaged, and wakes the
    /// rebuilder job.
    pub(crate) fn found(&self, file: FileId, suspects: &[Suspect]) {
        let waiting = &mut self.state().waiting;
        if waiting.len() < MOST || waiting.contains_key(&file) {
            remember(waiting.entry(file).or_default(), suspects);
            self.met.notify_one();
        }
    }

    /// Returns the files to repair that [`Self::found`] has recorded since the last call, and removes them from the
    /// record.
    pub(crate) fn take(&self) -> Suspects {
        std::mem::take(&mut self.state().waiting)
    }

    /// Sets the number of files whose repair is postponed, and the progress of the running check of all files.
    pub(crate) fn set_left(&self, left: usize, looked: Option<FileId>) {
        let mut state = self.state();
        (state.left, state.looked) = (left, looked);
    }

    /// Returns the number of files that need a repair, and the progress of the running check of all files.
    pub(crate) fn progress(&self) -> (usize, Option<FileId>) {
        let state = self.state();
        (state.left + state.waiting.len(), state.looked)
    }

    /// Records that the mgr logs the lost bytes of this file now. Returns whether the mgr has not logged the loss for
    /// this file before.
    fn is_new(&self, file: FileId) -> bool {
        let mut state = self.state();
        if state.reported.len() >= MOST {
            state.reported.clear();
        }
        state.reported.insert(file)
    }
}

impl Volume {
    /// Logs and counts the loss of a file's bytes, once for each file, if `error` is `Lost`.
    pub(crate) fn tell_lost(&self, file: FileId, error: Status) {
        if error == Status::Lost && self.damaged.is_new(file) {
            add(&self.counters.files_lost, 1);
            tracing::error!(file = file.0, "an iod has lost durable bytes of the file; run weir fsck");
        }
    }

    /// Returns whether a copy of the file on one of the iods `iods` has lost bytes. Returns `false` while some iod of
    /// the file is down.
    ///
    /// # Errors
    /// `Delay` while a client may write the copies.
    pub(crate) async fn has_lost_copy(&self, file: &FileState, iods: &BTreeSet<u16>) -> Result<bool, Status> {
        let Ok(Some(objects)) = self.stored(file.into(), file.layout.as_ref()) else { return Ok(false) };
        let concerned = objects.mirrors() > 1 && objects.iods().iter().any(|iod| iods.contains(iod));
        // While an iod of the file is down, skip the file. When the iod that is down connects, the rebuilder job checks
        // the file again.
        if !concerned || objects.all_up().is_err() {
            return Ok(false);
        }
        self.check_unwritten(file.id)?;
        objects.has_lost_copy().await
    }

    /// If only one copy of an object has bytes after the end of the file, truncates these bytes. Returns whether it has
    /// truncated any copy.
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

    /// Fails with `Delay` while a client may write the copies of a file. Kernel clients write both copies themselves,
    /// and clients with layouts from before a restart of the mgr may still write.
    fn check_unwritten(&self, file: FileId) -> Result<(), Status> {
        let written =
            self.intents.truncation(file).is_some() || self.grants.written(file) || self.intents.is_unfenced(file);
        if written { Err(Status::Delay) } else { Ok(()) }
    }

    /// Repairs the copies of a file that have lost bytes, and the ranges `suspects` if they are damaged. Returns the
    /// number of repaired copies and blocks of the file.
    ///
    /// # Errors
    /// `Lost` if no copy has the bytes. `Delay` while an iod is down, or while a client may write the copies.
    pub(crate) async fn rebuild(&self, file: FileId, suspects: &[Suspect]) -> Result<usize, Status> {
        // The exclusive lock blocks writes on the mgr path and grants of write layouts during the repair.
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
