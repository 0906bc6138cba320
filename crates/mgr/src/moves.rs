//! Moves in progress: the files whose bytes the mgr is moving to new objects, or whose unused objects it is deleting.
//! While the mgr moves bytes, no client gets a layout of the file. In the stage `Closed`, no client may change the
//! file.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use types::{FileId, Status};

/// The moves of files to new objects that are in progress, by file.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    inner: Mutex<Inner>,
    /// Number of layout swaps since the start of the mgr. Each layout swap gives a file new objects.
    swapped: AtomicU64,
    /// Notified when a move of a file has ended, because the move may have left unused objects.
    pub(crate) ended: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    files: HashMap<FileId, Stage>,
    /// For each file: the number of layout grants in progress.
    granting: HashMap<FileId, u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The mgr deletes the unused objects of the file. Clients may use the file as usual.
    Removing,
    /// The mgr recalls the layouts of the file, and grants no layout.
    Recalling,
    /// The mgr grants no layout, and refuses all changes of the file.
    Closed,
}

/// Guard of a move: dropping it ends the move of the file.
#[derive(Debug)]
pub(crate) struct Moving<'a> {
    moves: &'a Moves,
    file: FileId,
}

impl Moves {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a move of a file in this stage. Fails with `Delay` if another move of the file is in progress.
    pub(crate) fn begin(&self, file: FileId, stage: Stage) -> Result<Moving<'_>, Status> {
        let mut inner = self.inner();
        if inner.files.contains_key(&file) {
            return Err(Status::Delay);
        }
        inner.files.insert(file, stage);
        Ok(Moving { moves: self, file })
    }

    /// Begins a layout grant. The caller drops the returned guard when it has recorded the grant. Fails with `Delay`
    /// while a move of the file forbids layout grants.
    pub(crate) fn granting(&self, file: FileId) -> Result<Granting<'_>, Status> {
        let mut inner = self.inner();
        if matches!(inner.files.get(&file), Some(Stage::Recalling | Stage::Closed)) {
            return Err(Status::Delay);
        }
        *inner.granting.entry(file).or_default() += 1;
        Ok(Granting { moves: self, file })
    }

    /// Returns whether a layout grant for the file is in progress.
    pub(crate) fn is_granting(&self, file: FileId) -> bool {
        self.inner().granting.contains_key(&file)
    }

    /// Returns `Delay` while a move forbids changes of the file. The client's request then fails at once, instead of
    /// waiting for the lock of the file until the move ends.
    pub(crate) fn check_changes(&self, file: FileId) -> Result<(), Status> {
        if self.inner().files.get(&file) == Some(&Stage::Closed) { Err(Status::Delay) } else { Ok(()) }
    }

    /// Returns the number of layout swaps of all files. If the number stays the same during a read, the read has used
    /// the current objects of its file.
    pub(crate) fn swapped(&self) -> u64 {
        self.swapped.load(SeqCst)
    }
}

impl Moving<'_> {
    /// Enters the stage `Closed`: the mgr refuses new changes of the file, and completes changes in progress.
    pub(crate) fn close(&self) {
        self.moves.inner().files.insert(self.file, Stage::Closed);
    }

    /// Records that the layout record of the file now names the new objects.
    pub(crate) fn swapped(&self) {
        self.moves.swapped.fetch_add(1, SeqCst);
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let stage = self.moves.inner().files.remove(&self.file);
        // Do not notify the deletion job after its own deletion of unused objects. Otherwise the job retries without a
        // pause while an iod is down.
        if stage != Some(Stage::Removing) {
            self.moves.ended.notify_one();
        }
    }
}

/// Guard of a layout grant in progress.
#[derive(Debug)]
pub(crate) struct Granting<'a> {
    moves: &'a Moves,
    file: FileId,
}

impl Drop for Granting<'_> {
    fn drop(&mut self) {
        let mut inner = self.moves.inner();
        if let Some(count) = inner.granting.get_mut(&self.file) {
            *count -= 1;
            if *count == 0 {
                inner.granting.remove(&self.file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const FILE: FileId = FileId(5);

    #[test]
    fn a_file_is_closed_in_steps_and_one_move_runs_at_a_time() {
        let moves = Moves::default();
        let state = || (moves.granting(FILE).is_ok(), moves.check_changes(FILE).is_ok());
        let removing = moves.begin(FILE, Stage::Removing).unwrap();
        assert_eq!((state(), moves.begin(FILE, Stage::Recalling).err()), ((true, true), Some(Status::Delay)));
        drop(removing);
        let is_notified = || moves.ended.notified().now_or_never().is_some();
        assert!(!is_notified(), "no move has ended");
        let granting = (moves.granting(FILE).unwrap(), moves.granting(FILE).unwrap());
        let moving = moves.begin(FILE, Stage::Recalling).unwrap();
        drop(granting.0);
        assert!(moves.is_granting(FILE), "a layout was about to be granted before");
        drop(granting.1);
        assert!(!moves.is_granting(FILE));
        assert_eq!(state(), (false, true));
        moving.close();
        assert_eq!((state(), moves.check_changes(FileId(6))), ((false, false), Ok(())));
        moving.swapped();
        drop(moving);
        assert_eq!((state(), moves.swapped(), is_notified()), ((true, true), 1, true));
    }
}
