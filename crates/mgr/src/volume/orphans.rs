//! Deletion of orphans: files without a name that no client has open. Their objects are deleted later
//! (`background/delete_objects.rs`).

use super::Volume;
use crate::fs::own_ctx;
use meta::Ending;
use std::sync::atomic::Ordering::SeqCst;
use types::{FileId, Status};

impl Volume {
    /// Deletes an orphan that no client has open, on the mgr's own behalf.
    pub(crate) async fn reap(&self, file: FileId) -> Result<(), Status> {
        let reaped = self.namespace.reap(own_ctx().now, file).await;
        if reaped.is_err() {
            self.orphans_left.store(true, SeqCst);
        }
        self.ended(file, if reaped?.is_some() { Ending::Doomed } else { Ending::Whole });
        Ok(())
    }

    /// Drops the state of a deleted file, and wakes the deletion of its objects if it had any.
    pub(crate) fn ended(&self, file: FileId, ending: Ending) {
        if ending == Ending::Doomed {
            self.doomed.notify_one();
        }
        self.notes.gone(file);
        self.gathered.gone(file);
    }
}
