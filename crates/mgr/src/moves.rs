//! The files whose objects are being moved or removed: while objects move, no client gets a layout of the file, and at
//! last no client may change it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use types::{FileId, Status};

/// The moves in progress.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    inner: Mutex<Inner>,
    /// Number of files that got other objects since the start.
    swapped: AtomicU64,
    /// Notified when a move has ended: it may have left unused objects.
    pub(crate) ended: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    files: HashMap<FileId, Stage>,
    /// Numbers of requests that are about to be granted a layout.
    granting: HashMap<FileId, u32>,
}

/// The stage of a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The unused objects of the file are being removed, which concerns no client.
    Removing,
    /// The layouts of the file are being recalled, and no client gets another one.
    Recalling,
    /// As `Recalling`, and nothing may change the file.
    Closed,
}

/// Marks a file until dropped.
#[derive(Debug)]
pub(crate) struct Moving<'a> {
    moves: &'a Moves,
    file: FileId,
}

impl Moves {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a file as being moved. Fails with `Delay` if the file is marked already.
    pub(crate) fn begin(&self, file: FileId, stage: Stage) -> Result<Moving<'_>, Status> {
        let mut inner = self.inner();
        if inner.files.contains_key(&file) {
            return Err(Status::Delay);
        }
        inner.files.insert(file, stage);
        Ok(Moving { moves: self, file })
    }

    /// Begins to grant a layout, which is on record when the result is dropped; `Delay` while no client may get one.
    pub(crate) fn granting(&self, file: FileId) -> Result<Granting<'_>, Status> {
        let mut inner = self.inner();
        if matches!(inner.files.get(&file), Some(Stage::Recalling | Stage::Closed)) {
            return Err(Status::Delay);
        }
        *inner.granting.entry(file).or_default() += 1;
        Ok(Granting { moves: self, file })
    }

    /// Returns whether a layout is about to be granted.
    pub(crate) fn is_granting(&self, file: FileId) -> bool {
        self.inner().granting.contains_key(&file)
    }

    /// Returns `Delay` while nothing may change the file. A request that changes the file fails with it at once. Other
    /// requests that need the lock of the file wait for it: a client may have sent changes in front of them.
    pub(crate) fn check_changes(&self, file: FileId) -> Result<(), Status> {
        if self.inner().files.get(&file) == Some(&Stage::Closed) { Err(Status::Delay) } else { Ok(()) }
    }

    /// Returns a number that rises whenever a file gets other objects: a reader that sees it unchanged has read objects
    /// that were those of the file all the time.
    pub(crate) fn swapped(&self) -> u64 {
        self.swapped.load(SeqCst)
    }
}

impl Moving<'_> {
    /// Blocks all further changes of the file; changes that have begun may complete.
    pub(crate) fn close(&self) {
        self.moves.inner().files.insert(self.file, Stage::Closed);
    }

    /// Records that the file has got other objects.
    pub(crate) fn swapped(&self) {
        self.moves.swapped.fetch_add(1, SeqCst);
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let stage = self.moves.inner().files.remove(&self.file);
        // The removal itself must not call for another pass: it would repeat without a pause while an iod is down.
        if stage != Some(Stage::Removing) {
            self.moves.ended.notify_one();
        }
    }
}

/// A layout that is about to be granted.
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
