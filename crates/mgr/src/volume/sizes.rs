//! File sizes: the size in the namespace, larger sizes according to the iods, and truncation.
//!
//! LAYOUTCOMMIT and writes on the mgr path record growth in the namespace. A client on the direct path may write beyond
//! the size that it reported, or disappear without a report. The mgr then queries the iods for the lengths of the
//! objects. These lengths count only written data, because no file grows before every truncation has reached all its
//! objects.

use super::Volume;
use super::gathering::Why;
use crate::clock::now;
use crate::counters::add;
use crate::intents::Truncation;
use crate::locks::FileGuard;
use layout::gather::Part;
use meta::schema::Intent;
use nfs::fs::Ctx;
use types::{Attrs, Cred, FileId, SetAttrs, Status, Timestamp, limits};

impl Volume {
    /// Returns the current attributes of a file. Queries the iods for the size only if clients other than the caller
    /// may be writing.
    pub(crate) async fn attrs(&self, ctx: &Ctx, file: FileId) -> Result<Attrs, Status> {
        if self.is_untold(ctx, file) {
            // Box the future of `learn_size`, because it is large and rarely needed here.
            return match Box::pin(self.learn_size(ctx.now, file)).await {
                Ok((attrs, _)) => Ok(attrs),
                // While a truncation is pending, no operation extends the file. So the file has the size that the
                // truncation requested, and no query of the iods is needed. An iod that is down, or refuses to truncate
                // its object, must not prevent clients from reading the attributes.
                Err(_) if self.intents.truncation(file).is_some() => self.namespace.getattr(file),
                Err(e) => Err(e),
            };
        }
        self.namespace.getattr(file)
    }

    /// Returns whether the iods may have bytes that clients other than the caller have not reported to the namespace.
    pub(crate) fn is_untold(&self, ctx: &Ctx, file: FileId) -> bool {
        let by_others = self.grants.written_by_others(file, ctx.client) || self.grants.is_silent(file, ctx.client);
        by_others || self.intents.has_lost_writers(file)
    }

    /// Queries the iods for the size of a file, and stores the size if it is larger than the recorded one. Returns the
    /// attributes, and whether all iods replied.
    pub(crate) async fn learn_size(&self, now: Timestamp, file: FileId) -> Result<(Attrs, bool), Status> {
        let _shared = self.shared(file).await?;
        let info = self.namespace.info(file)?;
        let Some(objects) = self.objects(&info)? else { return Ok((info.attrs, true)) };
        add(&self.counters.size_queries, 1);
        let end = objects.end().await;
        if end.reached <= info.attrs.size && !end.changed {
            return Ok((info.attrs, end.complete));
        }
        // Use root's credentials: the mgr checked the permissions of the client when it granted the layout to the
        // client.
        let changed = match end.changed {
            true => self.namespace.record_write(&Cred::root(), now, file, end.reached).await?,
            // The client may have reported its writes and set a later change time during the query. `learn_size` keeps
            // this later time.
            false => self.namespace.learn_size(now, file, end.reached).await?,
        };
        Ok((changed.after, end.complete))
    }

    /// Measures the size of a file by querying all its iods, and records that the size is measured. The caller must
    /// know that no client writes the file any more.
    pub(crate) async fn measure(&self, file: FileId) -> Result<(), Status> {
        let failure = self.intents.last_failure(file);
        let outcome = match self.learn_size(now(), file).await {
            Ok((_, true)) => {
                self.intents.measured(file, failure, || self.grants.written(file));
                Ok(())
            }
            Ok((_, false)) => Err(Status::Delay),
            Err(Status::Stale) => {
                self.intents.deleted(file);
                Ok(())
            }
            Err(e) => Err(e),
        };
        if outcome.is_err() {
            // No client is left that could report the size, so the mgr repeats the measurement until it succeeds.
            self.intents.unknown(file);
        }
        outcome
    }

    /// Measures the size of a file that no client has open or can write under a layout. First fences the writes in
    /// flight of clients that can no longer report them, so that these writes cannot extend the file after the
    /// measurement. Fails with `Delay` until every iod refuses these writes.
    pub(crate) async fn measure_for_good(&self, file: FileId) -> Result<(), Status> {
        if self.intents.is_unfenced(file) {
            match self.shut_out(file).await {
                Ok(()) | Err(Status::Stale) => {}
                Err(e) => return Err(e),
            }
        }
        if self.intents.is_fencing(file) {
            return Err(Status::Delay);
        }
        self.measure(file).await
    }

    /// Measures the size of a file like [`Self::measure`]. If the mgr cannot measure or store the size now, leaves the
    /// measurement to a background job and returns no error.
    pub(crate) async fn measure_or_later(&self, file: FileId) -> Result<(), Status> {
        match self.measure(file).await {
            Err(Status::Delay | Status::NoSpc) => Ok(()),
            // A truncation is pending, which blocks every write. So no client has written since the truncation, and no
            // measurement is needed.
            Err(_) if self.intents.truncation(file).is_some() => Ok(()),
            other => other,
        }
    }

    /// Records that a client has reported all its writes of the file. If no other client holds a write layout, the mgr
    /// then removes the file's write intent.
    pub(crate) fn all_told(&self, file: FileId) {
        self.intents.reported(file, || self.grants.written(file));
    }

    /// Returns the shared lock of a file. First completes a pending truncation of the file.
    pub(crate) async fn shared(&self, file: FileId) -> Result<FileGuard<'_>, Status> {
        loop {
            let shared = self.locks.shared(file).await;
            if self.intents.truncation(file).is_none() {
                return Ok(shared);
            }
            drop(shared);
            self.finish_cut(file).await?;
        }
    }

    /// Completes a pending truncation of a file: truncates its objects. Fails with `Delay` while an iod is down.
    pub(crate) async fn finish_cut(&self, file: FileId) -> Result<(), Status> {
        let _alone = self.locks.alone(file).await;
        self.finish_cut_alone(file).await
    }

    pub(super) async fn finish_cut_alone(&self, file: FileId) -> Result<(), Status> {
        let size = match self.intents.truncation(file) {
            None => return Ok(()),
            Some(Truncation::To(size)) => size,
            Some(Truncation::Unknown) => {
                // `settle` waits for all changes of the namespace that were submitted earlier. So the namespace then
                // shows whether the intent of the truncation is stored.
                self.namespace.settle().await?;
                let noted = self.namespace.intents_of(file)?;
                let size = noted.iter().find_map(|intent| match intent {
                    Intent::Truncate(size) => Some(*size),
                    _ => None,
                });
                self.intents.record_truncation(file, size);
                let Some(size) = size else { return Ok(()) };
                size
            }
        };
        let info = match self.namespace.info(file) {
            Err(Status::Stale) => {
                self.intents.deleted(file);
                return Ok(());
            }
            info => info?,
        };
        if let Some(objects) = self.objects(&info)? {
            add(&self.counters.truncates, 1);
            objects.truncate(size).await?;
        }
        self.intents.finish_truncation(file, size).await
    }

    /// Abandons a truncation that an iod refuses permanently. First tries once to complete the truncation, which also
    /// truncates the objects on the other iods. Returns whether it has abandoned a truncation.
    ///
    /// Once the truncation is abandoned, a file that grows again may contain the bytes that the refusing iod still has
    /// beyond the file size. So only an administrator may abandon the truncation. While the truncation is pending, no
    /// operation can extend the file.
    pub(crate) async fn give_up_cut(&self, file: FileId) -> Result<bool, Status> {
        let _alone = self.locks.alone(file).await;
        match self.finish_cut_alone(file).await {
            Ok(()) => return Ok(false),
            // An iod is down, so leave the truncation pending.
            Err(Status::Delay) => return Err(Status::Delay),
            Err(_) => {}
        }
        let Some(Truncation::To(size)) = self.intents.truncation(file) else { return Ok(false) };
        self.intents.finish_truncation(file, size).await?;
        Ok(true)
    }

    /// Changes attributes of a file including its size. First stores the change and the intent to truncate in the
    /// namespace, and then truncates the objects.
    ///
    /// If the mgr dies before the namespace confirms the change, nothing has changed. If the mgr dies later, its next
    /// start finds the intent, and truncates the objects before the file can grow over bytes that the objects still
    /// hold.
    pub(crate) async fn set_size(
        &self,
        ctx: &Ctx,
        file: FileId,
        size: u64,
        set: SetAttrs,
        opened: bool,
    ) -> Result<Attrs, Status> {
        self.regular(file).map_err(|e| match e {
            Status::Symlink | Status::WrongType => Status::Inval,
            e => e,
        })?;
        if size > limits::FILE_SIZE_MAX {
            return Err(Status::FBig);
        }
        self.moves.check_changes(file)?;
        let _alone = self.locks.alone(file).await;
        // If the new size is not larger than that of a pending truncation, replace the pending truncation instead of
        // completing it first, because an iod may refuse the pending one.
        let replaces = matches!(self.intents.truncation(file), Some(Truncation::To(noted)) if size <= noted);
        if !replaces {
            self.finish_cut_alone(file).await?;
        }
        self.settled_held(file, Part::All, Why::Write).await?;
        let mut info = self.namespace.info(file)?;
        if info.layout.as_ref().is_some_and(meta::Layout::is_moving) {
            // Inline bytes are moving to objects, which may already hold bytes beyond the new size. Complete the move
            // before the truncation.
            self.objects_now(ctx.now, &info).await?;
            info = self.namespace.info(file)?;
        }
        if self.intents.is_unfenced(file) {
            // A client that disappeared, or has returned its layout, gets no layout recall. Fence the file, so that the
            // iods refuse writes of such a client that are still in flight after the truncation.
            self.objects(&info)?.map_or(Ok(()), |objects| objects.all_up())?;
            self.shut_out_alone(file).await?;
            self.finish_fence(file).await?;
            info = self.namespace.info(file)?;
        }
        let unknown = self.grants.may_hold_more(file, ctx.client) || self.intents.has_lost_writers(file) || replaces;
        let objects = if size < info.attrs.size || unknown { self.objects(&info)? } else { None };
        let Some(objects) = objects else {
            return Ok(self.namespace.setattr(&ctx.cred, ctx.now, file, &set, opened).await?.after);
        };
        // Check first that every iod can truncate its object, because a failed truncation must change nothing.
        objects.may_be_cut(size).await?;
        let noted = self.intents.truncation(file);
        self.intents.truncating(file);
        self.grants.truncated_by(file, ctx.client);
        let changed = self.namespace.truncate(&ctx.cred, ctx.now, file, &set, opened).await;
        match (&changed, noted) {
            (Err(_), Some(Truncation::To(earlier))) => self.intents.record_truncation(file, Some(earlier)),
            _ => self.intents.record_truncation(file, changed.is_ok().then_some(size)),
        }
        let changed = changed?;
        add(&self.counters.truncates, 1);
        objects.truncate(size).await?;
        self.intents.finish_truncation(file, size).await?;
        Ok(changed.after)
    }
}
