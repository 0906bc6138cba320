//! How long a file is: what the namespace knows, what the iods know better, and cutting.
//!
//! The namespace is told of growth by LAYOUTCOMMIT and by writes through the mgr. A client that writes past the mgr may
//! be ahead of that, or may end without a word; then the iods are asked: one past the last byte that any object holds
//! is written data, as nothing grows before every cut has reached the objects.

use super::Room;
use super::gathering::Why;
use crate::counters::add;
use crate::fs::own_ctx;
use crate::locks::FileGuard;
use crate::notes::Cut;
use crate::room::now;
use layout::gather::Part;
use meta::Ending;
use meta::schema::{Intent, Noted};
use nfs::fs::Ctx;
use std::sync::atomic::Ordering::SeqCst;
use types::{Attrs, Cred, FileId, SetAttrs, Status, Timestamp, limits};

impl Room {
    /// The attributes as they are now; the iods are asked only while others than the asking client may be writing.
    pub(crate) async fn attrs(&self, ctx: &Ctx, file: FileId) -> Result<Attrs, Status> {
        if self.is_untold(ctx, file) {
            // Boxed, for it is large and rare.
            return match Box::pin(self.learn_size(ctx.now, file)).await {
                Ok((attrs, _)) => Ok(attrs),
                // Until its objects are cut nothing makes it grow: it is as long as was asked for. An iod that is down, or
                // refuses to cut its object, keeps nobody from looking at the file.
                Err(_) if self.notes.cut(file).is_some() => self.namespace.getattr(file),
                Err(e) => Err(e),
            };
        }
        self.namespace.getattr(file)
    }

    /// Whether iods may know of more than the namespace has been told by others than the asking client.
    pub(crate) fn is_untold(&self, ctx: &Ctx, file: FileId) -> bool {
        let by_others = self.grants.written_by_others(file, ctx.client) || self.grants.is_silent(file, ctx.client);
        by_others || self.notes.is_left(file)
    }

    /// Takes over the size that the iods know of; also tells whether all of them were asked.
    pub(crate) async fn learn_size(&self, now: Timestamp, file: FileId) -> Result<(Attrs, bool), Status> {
        let _shared = self.shared(file).await?;
        let info = self.namespace.info(file)?;
        let Some(objects) = self.objects(&info)? else { return Ok((info.attrs, true)) };
        add(&self.counters.size_queries, 1);
        let end = objects.end().await;
        if end.reached <= info.attrs.size && !end.changed {
            return Ok((info.attrs, end.complete));
        }
        // Not on behalf of anybody: the writer's permissions were checked when it got its layout.
        let changed = match end.changed {
            true => self.namespace.note_write(&Cred::root(), now, file, end.reached).await?,
            // The writer may have reported meanwhile, and set a time after that, which stays.
            false => self.namespace.learn_size(now, file, end.reached).await?,
        };
        Ok((changed.after, end.complete))
    }

    /// Learns the size of a file that nobody writes any more, from all of its iods.
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
            // Whoever might tell has gone: tried again until it is known.
            self.notes.unknown(file);
        }
        outcome
    }

    /// As [`Self::measure`], of a file that nobody has open who may have written it. What others sent, who cannot be asked
    /// any more, is refused from then on: it must not come behind the end that was found. `Delay` until every iod refuses it.
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

    /// Fences a file whose writers cannot be asked any more.
    ///
    /// The generation rises while nobody else works on the file, so that no write through the mgr and no layout for writing
    /// is of the one before. A mgr that dies in between finds both notes, and fences once more.
    async fn shut_out(&self, file: FileId) -> Result<(), Status> {
        {
            let _alone = self.locks.alone(file).await;
            self.shut_out_alone(file).await?;
        }
        self.finish_fence(file).await
    }

    async fn shut_out_alone(&self, file: FileId) -> Result<(), Status> {
        // Without objects nobody was ever told where to write.
        if self.objects(&self.namespace.info(file)?)?.is_some() {
            let generation = self.namespace.fence(now(), file).await?;
            self.notes.fence_noted(file, generation);
        }
        self.notes.covered(file);
        Ok(())
    }

    /// As [`Self::measure`], but what cannot be learnt or stored now is tried again later.
    pub(crate) async fn measure_or_later(&self, file: FileId) -> Result<(), Status> {
        match self.measure(file).await {
            Err(Status::Delay | Status::NoSpc) => Ok(()),
            // Nobody has written since: a cut that an iod refuses keeps every write away.
            Err(_) if self.notes.cut(file).is_some() => Ok(()),
            other => other,
        }
    }

    /// What was written is known: forgets that somebody might write, unless somebody still might.
    pub(crate) fn all_told(&self, file: FileId) {
        self.notes.told(file, || self.grants.written(file));
    }

    /// Shares a file whose objects have all been cut as its size says.
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

    /// Cuts the objects of a file whose cut was not done to its end; `Delay` while that cannot be.
    pub(crate) async fn finish_cut(&self, file: FileId) -> Result<(), Status> {
        let _alone = self.locks.alone(file).await;
        self.finish_cut_alone(file).await
    }

    async fn finish_cut_alone(&self, file: FileId) -> Result<(), Status> {
        let size = match self.notes.cut(file) {
            None => return Ok(()),
            Some(Cut::To(size)) => size,
            Some(Cut::Perhaps) => {
                // What was handed over before is in the view after this.
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

    /// Gives up a cut that an iod refuses for good, after everything else that it asks for; answers whether there was one.
    ///
    /// What the object on that iod holds behind the size counts as written from then on. Only a person decides that:
    /// until then nothing makes the file grow.
    pub(crate) async fn give_up_cut(&self, file: FileId) -> Result<bool, Status> {
        let _alone = self.locks.alone(file).await;
        match self.finish_cut_alone(file).await {
            Ok(()) => return Ok(false),
            // It waits for an iod that is down.
            Err(Status::Delay) => return Err(Status::Delay),
            Err(_) => {}
        }
        let Some(Cut::To(size)) = self.notes.cut(file) else { return Ok(false) };
        self.notes.cut_done(file, size).await?;
        Ok(true)
    }

    /// Changes attributes, a size among them: first the namespace, with a note that the objects are to be cut, then the
    /// objects.
    ///
    /// A mgr that dies before the namespace says so has changed nothing. One that dies later finds the note, and cuts
    /// the objects before anything can make the file grow over what they still hold.
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
        let _alone = self.locks.alone(file).await;
        // A note of a larger size is replaced: its cut may be one that an iod refuses.
        let replaces = matches!(self.notes.cut(file), Some(Cut::To(noted)) if size <= noted);
        if !replaces {
            self.finish_cut_alone(file).await?;
        }
        self.settled_held(file, Part::All, Why::Write).await?;
        let mut info = self.namespace.info(file)?;
        if info.layout.as_ref().is_some_and(meta::Layout::is_moving) {
            // Objects may have what is to be cut.
            self.objects_now(ctx.now, &info).await?;
            info = self.namespace.info(file)?;
        }
        if self.notes.is_exposed(file) {
            // Who is away, or back and not yet writing again, was not asked to give its layout back: what it wrote under
            // that must not come behind the cut.
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
        // A cut that cannot be done shall change nothing.
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

    /// Makes every capability given out so far worthless; whoever still has a layout has to ask for a new one.
    pub(crate) async fn fence(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        add(&self.counters.layouts_revoked, 1);
        let failure = self.notes.last_failure(file);
        let generation = self.namespace.fence(ctx.now, file).await?;
        self.notes.fence_noted(file, generation);
        self.notes.covered_since(file, failure);
        self.finish_fence(file).await
    }

    /// As [`Self::fence`], for a client that keeps its layout and gave up what it had sent under it. An iod that is down is
    /// fenced before it is used for anything, so that this does not wait for it.
    pub(crate) async fn outdate(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        let generation = self.namespace.fence(ctx.now, file).await?;
        self.notes.fence_noted(file, generation);
        match self.finish_fence(file).await {
            Err(Status::Delay) => Ok(()),
            other => other,
        }
    }

    /// Tells all iods of a file that older capabilities are worth nothing. One that is down is told when it comes back,
    /// before it is used for anything.
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

    /// Tells all iods of a file once more which capabilities are worth nothing.
    pub(crate) async fn fence_again(&self, file: FileId) -> Result<(), Status> {
        let generation = self.namespace.info(file)?.generation;
        self.namespace.note(now(), Noted { file, intent: Intent::Fence(generation) }).await?;
        self.notes.fence_noted(file, generation);
        self.finish_fence(file).await
    }

    /// As whoever acts when nobody asked: ends an orphan that nobody has open.
    pub(crate) async fn reap(&self, file: FileId) -> Result<(), Status> {
        let reaped = self.namespace.reap(own_ctx().now, file).await;
        if reaped.is_err() {
            self.orphans_left.store(true, SeqCst);
        }
        self.ended(file, if reaped?.is_some() { Ending::Doomed } else { Ending::Whole });
        Ok(())
    }

    /// A file is gone.
    pub(crate) fn ended(&self, file: FileId, ending: Ending) {
        if ending == Ending::Doomed {
            self.doomed.notify_one();
        }
        self.notes.gone(file);
        self.gathered.gone(file);
    }
}
