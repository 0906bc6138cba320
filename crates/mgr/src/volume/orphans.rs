//! Deletion of orphans: files without a name that no client has open. The background job `delete_objects` deletes the
//! objects of these files later.

use super::Volume;
use crate::fs::own_ctx;
use meta::Ending;
use std::sync::atomic::Ordering::SeqCst;
use types::{FileId, Status};

impl Volume {
    /// Deletes the inode of a file without a name (orphan) that no client has open.
    pub(crate) async fn reap(&self, file: FileId) -> Result<(), Status> {
        let reaped = self.namespace.reap(own_ctx().now, file).await;
        if reaped.is_err() {
            self.orphans_left.store(true, SeqCst);
        }
        self.ended(file, if reaped?.is_some() { Ending::Doomed } else { Ending::Whole });
        Ok(())
    }

    /// Removes the mgr's state of a deleted file from memory. If the file had objects, wakes the background job that
    /// deletes them.
    pub(crate) fn ended(&self, file: FileId, ending: Ending) {
        if ending == Ending::Doomed {
            self.doomed.notify_one();
        }
        self.intents.deleted(file);
        self.gathered.deleted(file);
    }
}
