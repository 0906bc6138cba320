//! How long a file is: what the namespace knows, what the iods know better, and cutting.
//!
//! The namespace is told of growth by LAYOUTCOMMIT and by writes through the mgr. A client that writes past the mgr may
//! be ahead of that, or may end without a word; then the iods are asked: one past the last byte that any object holds
//! is written data, as every cut takes the objects first.

use super::Room;
use crate::counters::add;
use nfs::fs::Ctx;
use types::{Attrs, Cred, FileId, SetAttrs, SetTime, Status, Timestamp, limits};

impl Room {
    /// The attributes as they are now; the iods are asked only while others than the asking client may be writing.
    pub(crate) async fn attrs(&self, ctx: &Ctx, file: FileId) -> Result<Attrs, Status> {
        if self.grants.written_by_others(file, ctx.client) {
            return self.learn_size(ctx.now, file).await;
        }
        self.namespace.getattr(file)
    }

    /// Takes over the size that the iods know of.
    pub(crate) async fn learn_size(&self, now: Timestamp, file: FileId) -> Result<Attrs, Status> {
        let _shared = self.locks.shared(file).await;
        let info = self.namespace.info(file)?;
        let Some(objects) = self.objects(&info)? else { return Ok(info.attrs) };
        add(&self.counters.size_queries, 1);
        let end = objects.end().await;
        if end <= info.attrs.size {
            return Ok(info.attrs);
        }
        // Not on behalf of anybody: the writer's permissions were checked when it got its layout.
        Ok(self.namespace.note_write(&Cred::root(), now, file, end).await?.after)
    }

    /// Changes attributes, a size among them: permission first, then the objects, then the namespace.
    ///
    /// Cutting before the namespace says so is safe at every moment: a mgr that dies in between leaves a file of the
    /// old size whose end reads as zeros, and the client asks again. The other order would leave bytes behind the end
    /// that come back when the file grows.
    pub(crate) async fn set_size(
        &self,
        ctx: &Ctx,
        file: FileId,
        size: u64,
        set: SetAttrs,
        opened: bool,
    ) -> Result<Attrs, Status> {
        self.regular(file).map_err(|e| if e == Status::IsDir { e } else { Status::Inval })?;
        if size > limits::FILE_SIZE_MAX {
            return Err(Status::FBig);
        }
        let _alone = self.locks.alone(file).await;
        let info = self.namespace.info(file)?;
        let beyond = size < info.attrs.size || self.grants.may_hold_more(file, ctx.client);
        let objects = if beyond { self.objects(&info)? } else { None };
        let Some(objects) = objects else {
            return Ok(self.namespace.setattr(&ctx.cred, ctx.now, file, &set, opened).await?.after);
        };
        if !opened && !self.namespace.access(&ctx.cred, file)?.write {
            return Err(Status::Access);
        }
        let chosen = |time: &SetTime| matches!(time, SetTime::To(_));
        let rest = SetAttrs { size: None, atime: set.atime.filter(chosen), mtime: set.mtime.filter(chosen), ..set };
        if !rest.is_empty() {
            // Whoever may not change the rest changes nothing.
            self.namespace.setattr(&ctx.cred, ctx.now, file, &rest, opened).await?;
        }
        add(&self.counters.truncates, 1);
        objects.truncate(size).await?;
        let after = SetAttrs { size: Some(size), atime: set.atime, mtime: set.mtime, ..SetAttrs::default() };
        Ok(self.namespace.setattr(&ctx.cred, ctx.now, file, &after, true).await?.after)
    }
}
