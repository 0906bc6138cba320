//! Fencing of files: the mgr raises the generation of a file and sends it to the file's iods, which then refuse all
//! capabilities of earlier generations.
//!
//! The namespace stores each fence as an intent. An iod that is down receives the fence before any request uses the iod
//! again (`iods/pending_fences.rs`).

use super::Volume;
use crate::clock::now;
use crate::counters::add;
use meta::schema::{FileIntent, Intent};
use nfs::fs::Ctx;
use types::{FileId, Status};

impl Volume {
    /// Revokes every capability for the file that the mgr has granted, after it has revoked a layout. A client that
    /// still holds a layout has to request a new one.
    pub(crate) async fn fence(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        add(&self.counters.layouts_revoked, 1);
        let failure = self.intents.last_failure(file);
        let generation = self.namespace.fence(ctx.now, file).await?;
        self.intents.record_fence(file, generation);
        self.intents.covered_since(file, failure);
        self.finish_fence(file).await
    }

    /// Revokes every capability for the file without revoking a layout: after a change of permissions, or because a
    /// client has abandoned requests to an iod. Does not wait for an iod that is down, because the mgr fences this iod
    /// before any request uses it again.
    pub(crate) async fn outdate(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        let generation = self.namespace.fence(ctx.now, file).await?;
        self.intents.record_fence(file, generation);
        match self.finish_fence(file).await {
            Err(Status::Delay) => Ok(()),
            other => other,
        }
    }

    /// Sends the current generation of a file to all its iods, which then refuse older capabilities. An iod that is
    /// down receives the generation when it connects, before any request uses the iod.
    pub(crate) async fn finish_fence(&self, file: FileId) -> Result<(), Status> {
        let info = match self.namespace.info(file) {
            Err(Status::Stale) => {
                self.intents.deleted(file);
                return Ok(());
            }
            info => info?,
        };
        if let Some(objects) = self.objects(&info)? {
            objects.fence(info.generation).await?;
        }
        self.intents.finish_fence(file, info.generation);
        Ok(())
    }

    /// Stores a fence with the current generation of a file as an intent, without raising the generation, and sends the
    /// fence to all iods of the file.
    pub(crate) async fn fence_again(&self, file: FileId) -> Result<(), Status> {
        let generation = self.namespace.info(file)?.generation;
        self.namespace.record_intent(now(), FileIntent { file, intent: Intent::Fence(generation) }).await?;
        self.intents.record_fence(file, generation);
        self.finish_fence(file).await
    }

    /// Fences a file with writers that can no longer report their writes to the mgr.
    ///
    /// Raises the generation under the exclusive lock of the file, which excludes writes on the mgr path and grants of
    /// write layouts. So none of these continues with the previous generation. If the mgr dies during this call, the
    /// next start finds the intents of the write (`Written`) and of the fence, and fences the file again.
    pub(super) async fn shut_out(&self, file: FileId) -> Result<(), Status> {
        {
            let _alone = self.locks.alone(file).await;
            self.shut_out_alone(file).await?;
        }
        self.finish_fence(file).await
    }

    pub(super) async fn shut_out_alone(&self, file: FileId) -> Result<(), Status> {
        // Without objects, no client can have a write layout, so there is nothing to fence.
        if self.objects(&self.namespace.info(file)?)?.is_some() {
            let generation = self.namespace.fence(now(), file).await?;
            self.intents.record_fence(file, generation);
        }
        self.intents.covered(file);
        Ok(())
    }
}
