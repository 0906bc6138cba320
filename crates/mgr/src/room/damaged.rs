//! Files that have lost bytes: those with copies are made whole again, of others it is logged once.

use super::Room;
use crate::counters::add;
use crate::proxy::Objects;
use meta::FileState;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use types::{FileId, Status};

/// Most files remembered: the others are found by `weir fsck`, or when they are read next.
const MOST: usize = 4096;

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
    waiting: BTreeSet<FileId>,
    /// Logged already.
    told: BTreeSet<FileId>,
}

impl Damaged {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of this file has lost or damaged bytes.
    pub(crate) fn found(&self, file: FileId) {
        let mut state = self.state();
        if state.waiting.len() < MOST && state.waiting.insert(file) {
            self.met.notify_one();
        }
    }

    /// The files that were met since the last call.
    pub(crate) fn take(&self) -> BTreeSet<FileId> {
        std::mem::take(&mut self.state().waiting)
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
    pub(crate) async fn has_lost_copy(&self, file: &FileState, iods: &BTreeSet<u16>) -> Result<bool, Status> {
        let layout = file.layout.as_ref().filter(|layout| layout.is_final());
        let objects = layout.map(|layout| Objects::new(&self.iods, file.id, file.generation, layout));
        let Some(Ok(objects)) = objects else { return Ok(false) };
        let concerned = objects.record.mirrors > 1 && objects.record.iods.iter().any(|iod| iods.contains(iod));
        if !concerned || objects.all_up().is_err() {
            return Ok(false);
        }
        objects.with_whole(file.whole).has_lost_copy().await
    }

    /// Makes the copies of a file whole that have lost bytes; how many there were.
    ///
    /// # Errors
    /// `Lost` when bytes are in no copy; `Delay` while an iod is away, or a client writes the copies itself.
    pub(crate) async fn rebuild(&self, file: FileId) -> Result<usize, Status> {
        // What writes through the mgr waits meanwhile, and so do new layouts to write.
        let _alone = self.locks.alone(file).await;
        // Clients of the kernel write both copies themselves, and those from before a restart of the mgr may still be doing it.
        if self.notes.cut(file).is_some() || self.grants.written(file) || self.notes.is_exposed(file) {
            return Err(Status::Delay);
        }
        let info = self.regular(file)?;
        let Some(objects) = self.objects(&info)? else { return Ok(0) };
        let rebuilt = objects.rebuild().await?;
        for copy in &rebuilt {
            let iod = self.iods.registered(objects.iod(copy.index)).map(|iod| iod.id.to_string()).unwrap_or_default();
            tracing::warn!(file = file.0, iod, bytes = copy.bytes, "made a copy of an object again");
        }
        add(&self.counters.copies_rebuilt, rebuilt.len() as u64);
        Ok(rebuilt.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_wait_once_and_are_told_of_once() {
        let damaged = Damaged::default();
        (0..2).for_each(|_| [7, 9].into_iter().for_each(|file| damaged.found(FileId(file))));
        assert_eq!(damaged.take(), BTreeSet::from([FileId(7), FileId(9)]));
        assert_eq!(damaged.take(), BTreeSet::new());
        assert_eq!([3, 3, 4].map(|file| damaged.is_new(FileId(file))), [true, false, true]);
        (0..2 * MOST as u64).for_each(|file| damaged.found(FileId(file)));
        assert_eq!(damaged.take().len(), MOST);
    }
}
