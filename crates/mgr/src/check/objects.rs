//! The check of objects: every object on every iod must belong to a file that has an object on this iod, with the right
//! size and generation.

use super::finding::Kind;
use super::run::{Check, Checked};
use crate::background::collect_unowned_objects;
use crate::clock::now;
use crate::iods::objects;
use crate::iods::{Link, Registered};
use crate::kinds::Known;
use meta::schema::Intent;
use meta::{FileState, Layout};
use types::{FileId, FileKind, ObjectId, Status};
use wire::native::{HeadState, LIST_MAX, ListEntry};

/// Largest number of objects that one list request returns.
const PAGE: u32 = 256;
/// Largest number of times that the check compares an object with its file if either of them changes during the
/// comparison.
const TRIES: usize = 4;

/// The result of the comparison of an object with its file.
enum Comparison {
    /// The object agrees with its file, so there is no problem.
    No,
    /// The object disagrees with its file. The values are the kind of damage and a description.
    Is(Kind, String),
}

impl Check {
    pub(super) async fn objects(&mut self) -> Checked {
        self.begin("objects", 0).await?;
        for iod in self.volume.iods.all() {
            match self.volume.iods.link(iod.number) {
                Ok(link) => match self.objects_of(&iod, &link).await {
                    Err(super::run::Stop::Failed(Status::Delay)) => self.unreached(iod.number, iod.id).await?,
                    other => other?,
                },
                Err(_) => self.unreached(iod.number, iod.id).await?,
            }
        }
        Ok(())
    }

    async fn objects_of(&mut self, iod: &Registered, link: &Link) -> Checked {
        let mut after = None;
        loop {
            let next = self.volume.namespace.next_id()?;
            let page = objects::list(link, after, PAGE).await?;
            self.counts.objects += page.entries.len() as u64;
            for entry in &page.entries {
                self.object(iod, link, (next, after), entry).await?;
            }
            self.looked(page.entries.len() as u64).await?;
            let Some(last) = page.entries.last().filter(|_| !page.eof) else { return Ok(()) };
            after = Some(last.object);
        }
    }

    async fn object(
        &mut self,
        iod: &Registered,
        link: &Link,
        (next, from): (FileId, Option<ObjectId>),
        entry: &ListEntry,
    ) -> Checked {
        let file = entry.object.file;
        match entry.head {
            HeadState::Own | HeadState::Damaged => {}
            HeadState::Foreign => {
                let text = format!("the file of object {} has the head of another object or file system", entry.object);
                return self.left(Kind::ObjectForeign, iod, entry, text).await;
            }
            HeadState::Newer => {
                let text = format!("the head of object {} has a version that its iod does not know", entry.object);
                return self.left(Kind::ObjectNewer, iod, entry, text).await;
            }
        }
        if file >= next {
            if file >= self.volume.namespace.next_id()? {
                let text = "its number was never given to a file".to_owned();
                return self.left(Kind::ObjectUnknown, iod, entry, text).await;
            }
            return Ok(());
        }
        if collect_unowned_objects::is_of_no_file(&self.volume, next, file)? {
            if file < self.volume.kept_below {
                let text = format!("{} bytes of a file that the recovered metadata store does not know", entry.size);
                return self.left(Kind::ObjectUnknown, iod, entry, text).await;
            }
            return self.stray(iod, link, from, entry).await;
        }
        if self.unsettled(file)? {
            self.counts.unsettled += 1;
        }
        match self.compare(iod, link, from, entry).await? {
            Comparison::No => Ok(()),
            Comparison::Is(kind, text) => self.wrong(kind, iod, entry, text).await,
        }
    }

    /// Reports or deletes an object whose file does not exist, unless the object has disappeared since the iod listed
    /// it.
    async fn stray(&mut self, iod: &Registered, link: &Link, from: Option<ObjectId>, entry: &ListEntry) -> Checked {
        let text = format!("{} bytes of a file that does not exist", entry.size);
        let finding = Kind::ObjectStray.found(Some(entry.object.file), Some(iod.id), text);
        if self.again(link, from, entry).await?.is_none() {
            return Ok(());
        }
        if !self.repair {
            return self.found(finding).await;
        }
        let removed = objects::remove(link, entry).await;
        self.mended(finding, removed.map(|()| true)).await
    }

    /// Reports a problem of an object. A check never repairs problems of this kind.
    async fn left(&mut self, kind: Kind, iod: &Registered, entry: &ListEntry, text: String) -> Checked {
        let finding = kind.found(Some(entry.object.file), Some(iod.id), text);
        if self.repair { self.mended(finding, Ok(false)).await } else { self.found(finding).await }
    }

    async fn wrong(&mut self, kind: Kind, iod: &Registered, entry: &ListEntry, text: String) -> Checked {
        let file = entry.object.file;
        let finding = kind.found(Some(file), Some(iod.id), text);
        if !self.repair {
            return self.found(finding).await;
        }
        let outcome = match kind {
            Kind::ObjectBeyond => match self.volume.cut_copies(file).await {
                Ok(false) => self.volume.learn_size(now(), file).await.map(|_| true),
                other => other,
            },
            Kind::GenerationNewer => {
                match self.volume.namespace.raise_generation(now(), file, entry.generation).await {
                    // The namespace has raised the generation of the file to that of this object. The other objects of
                    // the file must also get this generation, so fence them.
                    Ok(_) => self.volume.fence_again(file).await.map(|()| true),
                    Err(e) => Err(e),
                }
            }
            Kind::GenerationOlder => self.volume.fence_again(file).await.map(|()| true),
            _ => Ok(false),
        };
        self.mended(finding, outcome).await
    }

    /// Compares an object with its file until neither has changed during the comparison, at most [`TRIES`] times.
    async fn compare(
        &self,
        iod: &Registered,
        link: &Link,
        from: Option<ObjectId>,
        listed: &ListEntry,
    ) -> Result<Comparison, Status> {
        let mut entry = *listed;
        for _ in 0..TRIES {
            let Some(file) = self.volume.namespace.file_state(entry.object.file)? else {
                let other = self
                    .volume
                    .namespace
                    .info(entry.object.file)
                    .is_ok_and(|info| info.attrs.kind != FileKind::Regular);
                let text = "its number is that of something that has no bytes".to_owned();
                return Ok(if other { Comparison::Is(Kind::ObjectForeign, text) } else { Comparison::No });
            };
            let wrong = self.differs(iod, &entry, &file)?;
            if matches!(wrong, Comparison::No) {
                return Ok(wrong);
            }
            // List the object again: the list reply may be older than the state of the file that the check compares.
            let Some(now) = self.again(link, from, &entry).await? else { return Ok(Comparison::No) };
            let same = self.volume.namespace.file_state(entry.object.file)?.as_ref() == Some(&file);
            if same && now == entry {
                return Ok(wrong);
            }
            entry = now;
        }
        Ok(Comparison::No)
    }

    /// Returns whether the object is an unused object of its file, which a layout swap has left. The mgr deletes such
    /// an object.
    fn is_unused(&self, iod: &Registered, object: ObjectId) -> Result<bool, Status> {
        let file = object.file;
        let Some(unused) = self.volume.namespace.unused_of(file)? else { return Ok(false) };
        let known = Known::nothing(file, unused.generation);
        let objects = self.volume.kinds.open(&self.volume.iods, known, &unused.layout)?;
        let is_named = objects.object() == object || (object.is_of_logs() && objects.index().is_some());
        Ok(is_named && objects.index_on(iod.number).is_some())
    }

    /// Lists an object again and returns its list entry; `None` if the object no longer exists. `from` is the start of
    /// the list page that contained the object.
    async fn again(&self, link: &Link, from: Option<ObjectId>, entry: &ListEntry) -> Result<Option<ListEntry>, Status> {
        let page = objects::list(link, from, LIST_MAX as u32).await?;
        Ok(page.entries.into_iter().find(|now| now.object == entry.object))
    }

    fn differs(&self, iod: &Registered, entry: &ListEntry, file: &FileState) -> Result<Comparison, Status> {
        if entry.head == HeadState::Damaged {
            return Ok(Comparison::Is(Kind::ObjectDamaged, "the head of its object cannot be read".to_owned()));
        }
        // The mgr may be moving the bytes of an inline file to objects. The layout record of the file then already
        // names these objects, so the objects belong to the file.
        let layout = file.layout.as_ref().filter(|layout| !layout.is_inline());
        let objects = layout.and_then(Layout::decided).map(|layout| {
            let layout = layout.map_err(|_| Status::Corrupt)?;
            let known = Known::nothing(file.id, file.generation);
            self.volume.kinds.open(&self.volume.iods, known, &layout)
        });
        let Some(Ok(objects)) = objects else {
            // The check of files reports a layout record that cannot be used, so the check of objects does not.
            return Ok(match layout {
                Some(_) => Comparison::No,
                None => Comparison::Is(Kind::ObjectForeign, "its file lies on no iod".to_owned()),
            });
        };
        let of_logs = entry.object.is_of_logs();
        let is_used = if of_logs { objects.index().is_some() } else { entry.object == objects.object() };
        if !is_used && self.is_unused(iod, entry.object)? {
            return Ok(Comparison::No);
        }
        let Some(index) = objects.index_on(iod.number) else {
            return Ok(Comparison::Is(Kind::ObjectForeign, "its file does not lie on this iod".to_owned()));
        };
        if !is_used && of_logs {
            let text = "its object is of a data log or of an index, and the file is not a log file".to_owned();
            return Ok(Comparison::Is(Kind::ObjectReplaced, text));
        }
        if !is_used {
            let (has, wants) = (entry.object.stream, objects.object().stream);
            let text = format!("its object is of stream {has}, the bytes of the file are in stream {wants}");
            return Ok(Comparison::Is(Kind::ObjectReplaced, text));
        }
        let (has, wants) = (entry.generation, file.generation);
        if has > wants {
            let text = format!("its object has generation {}, the file {}: no client can use it", has.0, wants.0);
            return Ok(Comparison::Is(Kind::GenerationNewer, text));
        }
        // The mgr fences the index of a log file, and not its data logs: no client sees bytes that are not registered.
        let is_fenced = !of_logs || objects.index() == Some(entry.object);
        let intents = self.volume.namespace.intents_of(file.id)?;
        if has < wants && is_fenced && !intents.iter().any(|intent| matches!(intent, Intent::Fence(_))) {
            let text = format!("its object has generation {}, the file {}: revoked layouts still work", has.0, wants.0);
            return Ok(Comparison::Is(Kind::GenerationOlder, text));
        }
        if of_logs {
            return Ok(Comparison::No);
        }
        let most = objects.object_size(file.size, objects.column(index));
        if entry.size > most && !self.unsettled(file.id)? {
            let text =
                format!("its object has {} bytes, but a file of {} bytes has {most} there", entry.size, file.size);
            return Ok(Comparison::Is(Kind::ObjectBeyond, text));
        }
        Ok(Comparison::No)
    }
}
