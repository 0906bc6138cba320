//! Fencing of files: the mgr raises the generation of a file, and announces it to the file's iods, which then refuse
//! all capabilities granted before.
//!
//! The namespace notes each fence, so an iod that is down receives it before it is used again
//! (`iods/fencing.rs`).

use super::Volume;
use crate::clock::now;
use crate::counters::add;
use meta::schema::{Intent, Noted};
use nfs::fs::Ctx;
use types::{FileId, Status};

impl Volume {
    /// Invalidates every capability granted so far; a client that still holds a layout has to request a new one.
    pub(crate) async fn fence(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        add(&self.counters.layouts_revoked, 1);
        let failure = self.notes.last_failure(file);
        let generation = self.namespace.fence(ctx.now, file).await?;
        self.notes.fence_noted(file, generation);
        self.notes.covered_since(file, failure);
        self.finish_fence(file).await
    }

    /// As [`Self::fence`], for a client that keeps its layout and has abandoned requests that it sent under it. This
    /// does not wait for an iod that is down: that iod is fenced before it is used again.
    pub(crate) async fn outdate(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        let generation = self.namespace.fence(ctx.now, file).await?;
        self.notes.fence_noted(file, generation);
        match self.finish_fence(file).await {
            Err(Status::Delay) => Ok(()),
            other => other,
        }
    }

    /// Announces the current generation to all iods of a file, which then refuse older capabilities. An iod that is
    /// down learns of it when it returns, before it is used for anything.
    pub(crate) async fn finish_fence(&self, file: FileId) -> Result<(), Status> {
        let info = match self.namespace.info(file) {
            Err(Status::Stale) => {
                self.notes.gone(file);
                return Ok(());
            }
            info => info?,
        };
        if let Some(objects) = self.objects(&info)? {
            objects.fence(info.generation).await?;
        }
        self.notes.fence_done(file, info.generation);
        Ok(())
    }

    /// Announces the current generation to all iods of a file again.
    pub(crate) async fn fence_again(&self, file: FileId) -> Result<(), Status> {
        let generation = self.namespace.info(file)?.generation;
        self.namespace.note(now(), Noted { file, intent: Intent::Fence(generation) }).await?;
        self.notes.fence_noted(file, generation);
        self.finish_fence(file).await
    }

    /// Fences a file whose writers can no longer be asked.
    ///
    /// The generation rises under the exclusive lock of the file, so that no write through the mgr and no layout for
    /// writing has the previous generation. A mgr that dies in between finds both notes, and fences again.
    pub(super) async fn shut_out(&self, file: FileId) -> Result<(), Status> {
        {
            let _alone = self.locks.alone(file).await;
            self.shut_out_alone(file).await?;
        }
        self.finish_fence(file).await
    }

    pub(super) async fn shut_out_alone(&self, file: FileId) -> Result<(), Status> {
        // Without objects no client ever got a layout to write.
        if self.objects(&self.namespace.info(file)?)?.is_some() {
            let generation = self.namespace.fence(now(), file).await?;
            self.notes.fence_noted(file, generation);
        }
        self.notes.covered(file);
        Ok(())
    }
}
