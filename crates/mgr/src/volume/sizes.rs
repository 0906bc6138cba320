//! File sizes: the size in the namespace, larger sizes that the iods know of, and truncation.
//!
//! LAYOUTCOMMIT and writes through the mgr report growth to the namespace. A client on the direct path may have written
//! further than it has reported, or may end without a report. Then the mgr asks the iods: one past the last byte that
//! any object holds is written data, because no file grows before every truncation has reached its objects.

use super::Volume;
use super::gathering::Why;
use crate::clock::now;
use crate::counters::add;
use crate::intents::Cut;
use crate::locks::FileGuard;
use layout::gather::Part;
use meta::schema::Intent;
use nfs::fs::Ctx;
use types::{Attrs, Cred, FileId, SetAttrs, Status, Timestamp, limits};

impl Volume {
    /// Returns the current attributes; asks the iods only while clients other than the caller may be writing.
    pub(crate) async fn attrs(&self, ctx: &Ctx, file: FileId) -> Result<Attrs, Status> {
        if self.is_untold(ctx, file) {
            // Boxed, because the future is large and this branch is rare.
            return match Box::pin(self.learn_size(ctx.now, file)).await {
                Ok((attrs, _)) => Ok(attrs),
                // Until its objects are truncated nothing makes the file grow: its size is the requested one. An iod
                // that is down, or refuses to truncate its object, prevents no client from reading the attributes.
                Err(_) if self.notes.cut(file).is_some() => self.namespace.getattr(file),
                Err(e) => Err(e),
            };
        }
        self.namespace.getattr(file)
    }

    /// Returns whether the iods may know of bytes that clients other than the caller have not reported to the
    /// namespace.
    pub(crate) fn is_untold(&self, ctx: &Ctx, file: FileId) -> bool {
        let by_others = self.grants.written_by_others(file, ctx.client) || self.grants.is_silent(file, ctx.client);
        by_others || self.notes.is_left(file)
    }

    /// Stores the size that the iods know of; also returns whether all of them were asked.
    pub(crate) async fn learn_size(&self, now: Timestamp, file: FileId) -> Result<(Attrs, bool), Status> {
        let _shared = self.shared(file).await?;
        let info = self.namespace.info(file)?;
        let Some(objects) = self.objects(&info)? else { return Ok((info.attrs, true)) };
        add(&self.counters.size_queries, 1);
        let end = objects.end().await;
        if end.reached <= info.attrs.size && !end.changed {
            return Ok((info.attrs, end.complete));
        }
        // With root's credentials: the writer's permissions were checked when it got its layout.
        let changed = match end.changed {
            true => self.namespace.note_write(&Cred::root(), now, file, end.reached).await?,
            // The writer may have reported and set a later time in the meantime; that time stays.
            false => self.namespace.learn_size(now, file, end.reached).await?,
        };
        Ok((changed.after, end.complete))
    }

    /// Learns the size of a file that no client writes any more, from all of its iods.
    pub(crate) async fn measure(&self, file: FileId) -> Result<(), Status> {
        let failure = self.notes.last_failure(file);
        let outcome = match self.learn_size(now(), file).await {
            Ok((_, true)) => {
                self.notes.measured(file, failure, || self.grants.written(file));
                Ok(())
            }
            Ok((_, false)) => Err(Status::Delay),
            Err(Status::Stale) => {
                self.notes.gone(file);
                Ok(())
            }
            Err(e) => Err(e),
        };
        if outcome.is_err() {
            // No client is left that could report the size: tried again until the size is known.
            self.notes.unknown(file);
        }
        outcome
    }

    /// As [`Self::measure`], for a file that no possible writer has open. Writes in flight from clients that can no
    /// longer be asked are fenced first: they must not extend the file after it was measured. Returns `Delay` until
    /// every iod refuses them.
    pub(crate) async fn measure_for_good(&self, file: FileId) -> Result<(), Status> {
        if self.notes.is_exposed(file) {
            match self.shut_out(file).await {
                Ok(()) | Err(Status::Stale) => {}
                Err(e) => return Err(e),
            }
        }
        if self.notes.is_fencing(file) {
            return Err(Status::Delay);
        }
        self.measure(file).await
    }

    /// As [`Self::measure`], but a size that cannot be learnt or stored now is left for a later attempt.
    pub(crate) async fn measure_or_later(&self, file: FileId) -> Result<(), Status> {
        match self.measure(file).await {
            Err(Status::Delay | Status::NoSpc) => Ok(()),
            // No client has written since: an iod that refuses a truncation blocks every write.
            Err(_) if self.notes.cut(file).is_some() => Ok(()),
            other => other,
        }
    }

    /// Records that everything written so far is reported, and drops the note unless a client may still write.
    pub(crate) fn all_told(&self, file: FileId) {
        self.notes.told(file, || self.grants.written(file));
    }

    /// Locks a file shared, once all its objects are truncated to its size.
    pub(crate) async fn shared(&self, file: FileId) -> Result<FileGuard<'_>, Status> {
        loop {
            let shared = self.locks.shared(file).await;
            if self.notes.cut(file).is_none() {
                return Ok(shared);
            }
            drop(shared);
            self.finish_cut(file).await?;
        }
    }

    /// Truncates the objects of a file whose truncation is unfinished; `Delay` while that is impossible.
    pub(crate) async fn finish_cut(&self, file: FileId) -> Result<(), Status> {
        let _alone = self.locks.alone(file).await;
        self.finish_cut_alone(file).await
    }

    pub(super) async fn finish_cut_alone(&self, file: FileId) -> Result<(), Status> {
        let size = match self.notes.cut(file) {
            None => return Ok(()),
            Some(Cut::To(size)) => size,
            Some(Cut::Perhaps) => {
                // After this call the view contains every change that was submitted before.
                self.namespace.settle().await?;
                let noted = self.namespace.intents_of(file)?;
                let size = noted.iter().find_map(|intent| match intent {
                    Intent::Cut(size) => Some(*size),
                    _ => None,
                });
                self.notes.cut_noted(file, size);
                let Some(size) = size else { return Ok(()) };
                size
            }
        };
        let info = match self.namespace.info(file) {
            Err(Status::Stale) => {
                self.notes.gone(file);
                return Ok(());
            }
            info => info?,
        };
        if let Some(objects) = self.objects(&info)? {
            add(&self.counters.truncates, 1);
            objects.truncate(size).await?;
        }
        self.notes.cut_done(file, size).await
    }

    /// Abandons a truncation that an iod refuses permanently, after one more attempt, which truncates the other
    /// objects. Returns whether the file had such a truncation.
    ///
    /// From then on the bytes of the object behind the size count as written. Only an administrator decides this: until
    /// then nothing makes the file grow.
    pub(crate) async fn give_up_cut(&self, file: FileId) -> Result<bool, Status> {
        let _alone = self.locks.alone(file).await;
        match self.finish_cut_alone(file).await {
            Ok(()) => return Ok(false),
            // The truncation waits for an iod that is down.
            Err(Status::Delay) => return Err(Status::Delay),
            Err(_) => {}
        }
        let Some(Cut::To(size)) = self.notes.cut(file) else { return Ok(false) };
        self.notes.cut_done(file, size).await?;
        Ok(true)
    }

    /// Changes attributes including the size: first in the namespace, with a note that the objects are to be truncated,
    /// then in the objects.
    ///
    /// A mgr that dies before the namespace confirms the change has changed nothing. A mgr that dies later finds the
    /// note, and truncates the objects before any file growth can expose the bytes that they still hold.
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
        // A note of a larger size is replaced: an iod may refuse that truncation.
        let replaces = matches!(self.notes.cut(file), Some(Cut::To(noted)) if size <= noted);
        if !replaces {
            self.finish_cut_alone(file).await?;
        }
        self.settled_held(file, Part::All, Why::Write).await?;
        let mut info = self.namespace.info(file)?;
        if info.layout.as_ref().is_some_and(meta::Layout::is_moving) {
            // Objects may already hold bytes that are to be truncated.
            self.objects_now(ctx.now, &info).await?;
            info = self.namespace.info(file)?;
        }
        if self.notes.is_exposed(file) {
            // Clients that are gone, or have returned and not written again, received no layout recall. Their writes
            // under the old layout must not arrive after the truncation.
            self.objects(&info)?.map_or(Ok(()), |objects| objects.all_up())?;
            self.shut_out_alone(file).await?;
            self.finish_fence(file).await?;
            info = self.namespace.info(file)?;
        }
        let unknown = self.grants.may_hold_more(file, ctx.client) || self.notes.is_left(file) || replaces;
        let objects = if size < info.attrs.size || unknown { self.objects(&info)? } else { None };
        let Some(objects) = objects else {
            return Ok(self.namespace.setattr(&ctx.cred, ctx.now, file, &set, opened).await?.after);
        };
        // An impossible truncation must change nothing.
        objects.may_be_cut(size).await?;
        let noted = self.notes.cut(file);
        self.notes.cutting(file);
        self.grants.cut_by(file, ctx.client);
        let changed = self.namespace.cut(&ctx.cred, ctx.now, file, &set, opened).await;
        match (&changed, noted) {
            (Err(_), Some(Cut::To(earlier))) => self.notes.cut_noted(file, Some(earlier)),
            _ => self.notes.cut_noted(file, changed.is_ok().then_some(size)),
        }
        let changed = changed?;
        add(&self.counters.truncates, 1);
        objects.truncate(size).await?;
        self.notes.cut_done(file, size).await?;
        Ok(changed.after)
    }
}
