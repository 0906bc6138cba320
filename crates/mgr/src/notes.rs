//! Notes of what is still to be done about files: the durable intents of the namespace, at hand in memory.
//!
//! A file is noted as written before anything can reach its objects that its size does not tell of, and forgotten once
//! nobody writes and the size is known. So the files whose size may be wrong after a crash are known: they are those
//! that were noted, and no object of any other file reaches beyond its file's size.

use meta::schema::{Intent, Noted};
use meta::{Embedded, Namespace};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use types::{Cred, FileId, Generation, Status};

use crate::room::now;

/// Notes read from the namespace at a time.
const PAGE: usize = 4096;

/// All notes.
#[derive(Debug)]
pub(crate) struct Notes {
    namespace: Arc<Namespace<Embedded>>,
    inner: Mutex<Inner>,
    /// Held alone while notes are being forgotten, and shared by those who make one anew: they share flushes too.
    forgetting: tokio::sync::RwLock<()>,
    /// Told when there is something to forget.
    done: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    written: HashMap<FileId, Written>,
    /// Files made by clients that did not wait, until somebody begins to write them: neither their making nor the note may be
    /// durable yet.
    unsynced: HashMap<FileId, Unsynced>,
    cuts: HashMap<FileId, Cut>,
    fences: HashMap<FileId, Generation>,
    /// Writes in progress: until they are over nobody has told all.
    writers: HashMap<FileId, u32>,
    /// The last failure of each file: a write that failed, or a client that lost or returned its layout without a report of
    /// what it wrote. Failures are numbered over all files, so that no number comes twice.
    failures: HashMap<FileId, u64>,
    /// Number of the last failure of any file.
    last_failure: u64,
    /// Done, to be forgotten.
    done: Vec<Noted>,
}

/// A cut that may not have reached every object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    /// The namespace has this size, and a note.
    To(u64),
    /// Whoever asked for it went away before the namespace had answered.
    Perhaps,
}

/// Who wrote a file that is noted as written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Written {
    /// Clients of this start, some of which may go on.
    Now,
    /// Somebody who cannot be asked any more, and whose writes may still be under way.
    Before,
    /// As `Before`, but what is under way is refused by every iod, or will be once the fence that is noted has reached all
    /// of them.
    Fenced,
    /// Somebody who told all, and nobody else: to be forgotten.
    Told,
}

/// A file whose maker did not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unsynced {
    /// The client that made it.
    maker: u64,
    /// Whether it is there to stay by now.
    settled: bool,
}

/// How many notes there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) written: usize,
    pub(crate) left: usize,
    pub(crate) cuts: usize,
    pub(crate) fences: usize,
}

/// A write in progress. One that fails or is given up may have reached some objects: the file is to be measured.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    notes: &'a Notes,
    file: FileId,
    whole: bool,
}

impl Writing<'_> {
    /// The namespace knows of all of it.
    pub(crate) fn done(mut self) {
        self.whole = true;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if !self.whole {
            self.notes.left(self.file);
        }
        let mut inner = self.notes.inner();
        if !self.whole {
            inner.failed(self.file);
        }
        if let Some(count) = inner.writers.get_mut(&self.file) {
            *count -= 1;
            if *count == 0 {
                inner.writers.remove(&self.file);
            }
        }
    }
}

impl Inner {
    /// From now on no measurement counts that began earlier.
    fn failed(&mut self, file: FileId) {
        if self.written.contains_key(&file) {
            self.last_failure += 1;
            self.failures.insert(file, self.last_failure);
        }
    }

    /// The size tells of all that was written so far, unless nothing refuses what is under way. Answers whether the note is to
    /// be forgotten. It stays for clients that write through the mgr or have a layout to write the file (`held`).
    ///
    /// `held` is asked under this lock, so that no client gets a layout in between without a note: it counts as a write in
    /// progress until its layout is on record.
    fn known(&mut self, file: FileId, held: impl FnOnce() -> bool) -> bool {
        let goes_on = self.writers.contains_key(&file) || held();
        let fencing = self.fences.contains_key(&file);
        let Some(written) = self.written.get_mut(&file) else { return false };
        *written = match *written {
            Written::Before => Written::Before,
            Written::Fenced if fencing => Written::Fenced,
            Written::Fenced if goes_on => Written::Now,
            written if goes_on => written,
            _ if fencing => Written::Fenced,
            _ => Written::Told,
        };
        *written == Written::Told && !goes_on
    }
}

impl Notes {
    /// Those that earlier starts left.
    pub(crate) fn load(namespace: Arc<Namespace<Embedded>>) -> Result<Self, Status> {
        let mut inner = Inner::default();
        let mut after = None;
        loop {
            let page = namespace.intents(after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = Some(*last);
            for Noted { file, intent } in page {
                match intent {
                    Intent::Written => drop(inner.written.insert(file, Written::Before)),
                    Intent::Cut(size) => drop(inner.cuts.insert(file, Cut::To(size))),
                    Intent::Fence(generation) => drop(inner.fences.insert(file, generation)),
                }
            }
        }
        let (forgetting, done) = Default::default();
        Ok(Notes { namespace, inner: Mutex::new(inner), forgetting, done })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file was made: the namespace has noted it as written in the same change. That is not durable if this client does
    /// not wait for it.
    pub(crate) fn made(&self, file: FileId, unsynced_by: Option<u64>) {
        let mut inner = self.inner();
        inner.written.insert(file, Written::Now);
        if let Some(client) = unsynced_by {
            inner.unsynced.insert(file, Unsynced { maker: client, settled: false });
        }
    }

    /// A client is about to be told that a file is there: if it was made by another that does not wait until it is there to
    /// stay, this does.
    pub(crate) async fn found(&self, file: FileId, client: u64) -> Result<(), Status> {
        match self.inner().unsynced.get(&file) {
            Some(made) if !made.settled && made.maker != client => {}
            _ => return Ok(()),
        }
        self.settle(file).await
    }

    /// Returns when everything is there to stay that was done before, and so the making of this file.
    pub(crate) async fn settle(&self, file: FileId) -> Result<(), Status> {
        self.namespace.settle().await?;
        if let Some(made) = self.inner().unsynced.get_mut(&file) {
            made.settled = true;
        }
        Ok(())
    }

    /// Whether it is known that nobody has begun to write the file since it was made: no iod has anything of it.
    pub(crate) fn is_untouched(&self, file: FileId) -> bool {
        self.inner().unsynced.contains_key(&file)
    }

    /// As [`Self::found`], for what stands in the way of a name, whoever made it.
    pub(crate) async fn found_in_the_way(&self, dir: FileId, name: &[u8]) -> Result<(), Status> {
        if self.inner().unsynced.is_empty() {
            return Ok(());
        }
        match self.namespace.lookup(&Cred::root(), dir, name) {
            Ok(found) if self.inner().unsynced.get(&found.id).is_some_and(|made| !made.settled) => {
                self.settle(found.id).await
            }
            // What took it away since is behind it, and durable.
            _ => Ok(()),
        }
    }

    /// Somebody is about to write: returns when that is noted durably. What is returned is to be kept until the namespace
    /// knows of the write, or it is known who may write.
    pub(crate) async fn writing(&self, file: FileId) -> Result<Writing<'_>, Status> {
        *self.inner().writers.entry(file).or_default() += 1;
        let writing = Writing { notes: self, file, whole: false };
        self.note_writing(file).await?;
        Ok(writing)
    }

    async fn note_writing(&self, file: FileId) -> Result<(), Status> {
        let noted = |inner: &mut Inner| {
            match inner.unsynced.get(&file) {
                Some(made) if !made.settled => return false,
                Some(_) => drop(inner.unsynced.remove(&file)),
                None => {}
            }
            let written = inner.written.get_mut(&file);
            let told = written.map(|written| match written {
                Written::Told => *written = Written::Now,
                // Measured all the same: others were writing too.
                Written::Before | Written::Fenced | Written::Now => {}
            });
            told.is_some()
        };
        if noted(&mut self.inner()) {
            return Ok(());
        }
        let _shared = self.forgetting.read().await;
        if noted(&mut self.inner()) {
            return Ok(());
        }
        // With it everything is durable that was changed before, such as the making of the file.
        self.namespace.note(now(), Noted { file, intent: Intent::Written }).await?;
        let mut inner = self.inner();
        inner.unsynced.remove(&file);
        if !noted(&mut inner) {
            inner.written.insert(file, Written::Now);
        }
        Ok(())
    }

    /// A client has reported all that it wrote, and `held` says whether another one has a layout to write the file. If there
    /// are clients that cannot be asked, the file is measured all the same.
    pub(crate) fn told(&self, file: FileId, held: impl FnOnce() -> bool) {
        let mut inner = self.inner();
        let left = matches!(inner.written.get(&file), Some(Written::Before | Written::Fenced));
        if !left && inner.known(file, held) {
            self.done.notify_one();
        }
    }

    /// The last failure of the file: to be asked before it is measured.
    pub(crate) fn last_failure(&self, file: FileId) -> Option<u64> {
        self.inner().failures.get(&file).copied()
    }

    /// All iods of the file were asked for its size after this [`Self::last_failure`]. If another one came in between, some
    /// iod may have been asked too early. So it may while writes are under way that nothing refuses yet: then the file is to
    /// be measured again.
    pub(crate) fn measured(&self, file: FileId, failure: Option<u64>, held: impl FnOnce() -> bool) {
        let mut inner = self.inner();
        if inner.failures.get(&file).copied() == failure && inner.known(file, held) {
            self.done.notify_one();
        }
    }

    /// A writer is gone, and what it sent may still be under way: the file is to be fenced and then measured.
    fn left(&self, file: FileId) {
        if let Some(written) = self.inner().written.get_mut(&file) {
            *written = Written::Before;
        }
    }

    /// A client has lost its layout to write the file (`revoked`), or returned it, without a report of what it wrote: the file
    /// is to be measured. What a client sends whose layout is revoked may still be under way, until it is fenced.
    ///
    /// Called while the client still counts as a writer. Between that and the answers of the iods, other clients close the
    /// file, and the mgr may end: without this their reports would be taken for all there is to tell, and the note forgotten.
    pub(crate) fn abandoned(&self, file: FileId, revoked: bool) {
        let mut inner = self.inner();
        match inner.written.get_mut(&file) {
            Some(written) if revoked => *written = Written::Before,
            Some(written @ (Written::Now | Written::Told)) => *written = Written::Fenced,
            None | Some(Written::Before | Written::Fenced) => {}
        }
        inner.failed(file);
    }

    /// An iod could not be asked for the size of the file: it is to be measured.
    pub(crate) fn unknown(&self, file: FileId) {
        if let Some(written @ (Written::Now | Written::Told)) = self.inner().written.get_mut(&file) {
            *written = Written::Fenced;
        }
    }

    /// Whether writes may be under way of somebody who cannot be asked any more, and nothing is to refuse them yet.
    pub(crate) fn is_exposed(&self, file: FileId) -> bool {
        self.inner().written.get(&file) == Some(&Written::Before)
    }

    /// The fence that is noted, or none if no iod has anything of the file, refuses what is under way. Called by the holder
    /// of the file's lock: no write of this start is.
    pub(crate) fn covered(&self, file: FileId) {
        if let Some(written @ Written::Before) = self.inner().written.get_mut(&file) {
            *written = Written::Fenced;
        }
    }

    /// As [`Self::covered`], for a fence that was made after this failure, which was the last one then. A write that fails
    /// later may be of the new generation.
    pub(crate) fn covered_since(&self, file: FileId, failure: Option<u64>) {
        let mut inner = self.inner();
        if failure.is_some()
            && inner.failures.get(&file).copied() == failure
            && let Some(written @ Written::Before) = inner.written.get_mut(&file)
        {
            *written = Written::Fenced;
        }
    }

    /// The namespace has noted something about a file by itself.
    pub(crate) fn look_again(&self, file: FileId) -> Result<(), Status> {
        if self.namespace.intents_of(file)?.contains(&Intent::Written) {
            self.inner().written.insert(file, Written::Before);
        }
        Ok(())
    }

    /// Whether the objects may reach further than anybody who could be asked knows.
    pub(crate) fn is_left(&self, file: FileId) -> bool {
        matches!(self.inner().written.get(&file), Some(Written::Before | Written::Fenced))
    }

    /// Whether somebody has written, or may, who has not told all yet: what the namespace knows need not be all.
    pub(crate) fn is_untold(&self, file: FileId) -> bool {
        self.inner().written.get(&file).is_some_and(|written| *written != Written::Told)
    }

    /// The files noted as written that nobody has told of.
    pub(crate) fn untold(&self) -> Vec<FileId> {
        let inner = self.inner();
        let untold = inner.written.iter().filter(|(_, written)| **written != Written::Told);
        let mut files: Vec<FileId> = untold.map(|(file, _)| *file).collect();
        files.sort_unstable();
        files
    }

    /// The cut of a file that may not have reached every object.
    pub(crate) fn cut(&self, file: FileId) -> Option<Cut> {
        self.inner().cuts.get(&file).copied()
    }

    /// Every cut that is not done.
    pub(crate) fn cuts(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = self.inner().cuts.keys().copied().collect();
        files.sort_unstable();
        files
    }

    /// A cut is about to be noted by the holder of the file's lock. Until it is known what became of it, nothing may make
    /// the file grow.
    pub(crate) fn cutting(&self, file: FileId) {
        self.inner().cuts.insert(file, Cut::Perhaps);
    }

    /// The namespace has noted a cut to this size, or none.
    pub(crate) fn cut_noted(&self, file: FileId, size: Option<u64>) {
        match size {
            Some(size) => self.inner().cuts.insert(file, Cut::To(size)),
            None => self.inner().cuts.remove(&file),
        };
    }

    /// The objects were cut: forgets that durably, for what is written from now on must not be cut once more. Called by
    /// the holder of the file's lock.
    pub(crate) async fn cut_done(&self, file: FileId, size: u64) -> Result<(), Status> {
        self.namespace.forget(now(), &[Noted { file, intent: Intent::Cut(size) }], true).await?;
        self.inner().cuts.remove(&file);
        Ok(())
    }

    /// The namespace has noted a fence.
    pub(crate) fn fence_noted(&self, file: FileId, generation: Generation) {
        let mut inner = self.inner();
        let noted = inner.fences.entry(file).or_insert(generation);
        *noted = (*noted).max(generation);
    }

    /// Whether some iod may not know of a fence of the file.
    pub(crate) fn is_fencing(&self, file: FileId) -> bool {
        self.inner().fences.contains_key(&file)
    }

    /// Every fence that some iod may not know of.
    pub(crate) fn fences(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = self.inner().fences.keys().copied().collect();
        files.sort_unstable();
        files
    }

    /// Every iod knows that capabilities of generations before this one are worth nothing.
    pub(crate) fn fence_done(&self, file: FileId, generation: Generation) {
        let mut inner = self.inner();
        if inner.fences.get(&file) == Some(&generation) {
            inner.fences.remove(&file);
            inner.done.push(Noted { file, intent: Intent::Fence(generation) });
            self.done.notify_one();
        }
    }

    /// The file is gone, and every note about it went along.
    pub(crate) fn gone(&self, file: FileId) {
        let mut inner = self.inner();
        inner.written.remove(&file);
        inner.failures.remove(&file);
        inner.unsynced.remove(&file);
        inner.cuts.remove(&file);
        inner.fences.remove(&file);
    }

    /// How many notes there are.
    pub(crate) fn counted(&self) -> Counted {
        let inner = self.inner();
        Counted {
            written: inner.written.len(),
            left: inner.written.values().filter(|w| matches!(w, Written::Before | Written::Fenced)).count(),
            cuts: inner.cuts.len(),
            fences: inner.fences.len(),
        }
    }

    /// Completes when there is something to forget.
    pub(crate) async fn something_done(&self) {
        self.done.notified().await;
    }

    /// Forgets what is done. After a failure it stays in the namespace, and is done again by the next start.
    pub(crate) async fn forget(&self) -> Result<(), Status> {
        let _alone = self.forgetting.write().await;
        let done = {
            let mut inner = self.inner();
            let Inner { written, failures, unsynced, done, .. } = &mut *inner;
            let mut done = std::mem::take(done);
            written.retain(|file, written| {
                let told = *written == Written::Told;
                if told {
                    failures.remove(file);
                    unsynced.remove(file);
                    done.push(Noted { file: *file, intent: Intent::Written });
                }
                !told
            });
            done
        };
        if done.is_empty() {
            return Ok(());
        }
        self.namespace.forget(now(), &done, false).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use futures_util::poll;
    use meta::Format;
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    /// A store's file in memory.
    #[derive(Debug, Default)]
    struct Ram(Mutex<Vec<u8>>);

    impl meta::StorageBackend for Ram {
        fn len(&self) -> std::io::Result<u64> {
            Ok(self.0.lock().unwrap().len() as u64)
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
            out.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..out.len()]);
            Ok(())
        }
        fn set_len(&self, len: u64) -> std::io::Result<()> {
            self.0.lock().unwrap().resize(len as usize, 0);
            Ok(())
        }
        fn sync_data(&self) -> std::io::Result<()> {
            Ok(())
        }
        fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
            self.0.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        }
    }

    async fn notes(dir: &std::path::Path) -> Notes {
        let engine = Embedded::create(&dir.join("store"), [3; 16], meta::merge).unwrap();
        let (fsid, cookie_key) = (types::Fsid([1; 16]), [7; 16]);
        let format = Format { fsid, now: now(), cookie_key, root_mode: 0o755, root_uid: 0, root_gid: 0 };
        Notes::load(Arc::new(Namespace::format(engine, format).await.unwrap())).unwrap()
    }

    #[tokio::test]
    async fn a_measurement_that_a_failed_write_overtook_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, file) = (notes(dir.path()).await, FileId(9));
        notes.made(file, None);
        let writing = notes.writing(file).await.unwrap();
        let begun = notes.last_failure(file);
        drop(writing);
        notes.covered(file);
        notes.measured(file, begun, || false);
        assert!(notes.is_left(file), "some iod may have been asked before the write came");
        notes.measured(file, notes.last_failure(file), || false);
        assert!(!notes.is_left(file) && notes.untold().is_empty());
    }

    #[tokio::test]
    async fn what_an_abandoned_layout_left_is_measured_whatever_others_report() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, file) = (notes(dir.path()).await, FileId(9));
        notes.made(file, None);
        notes.writing(file).await.unwrap().done();
        notes.told(file, || true);
        assert!(notes.is_untold(file), "another client may write");
        let early = notes.last_failure(file);
        notes.abandoned(file, false);
        notes.told(file, || false);
        notes.measured(file, early, || false);
        assert!(notes.is_left(file), "the iods were asked before the last write");
        // Failures of other files change nothing.
        let begun = notes.last_failure(file);
        notes.made(FileId(10), None);
        notes.abandoned(FileId(10), false);
        // Other clients go on writing, and tell.
        notes.measured(file, begun, || true);
        assert!(!notes.is_left(file) && notes.is_untold(file));
        notes.told(file, || false);
        assert!(!notes.is_untold(file));
        // The note is forgotten, and so are its failures; a measurement of that time does not count for the next note.
        notes.abandoned(file, false);
        let begun = notes.last_failure(file);
        notes.measured(file, begun, || false);
        notes.forget().await.unwrap();
        notes.made(file, None);
        notes.abandoned(file, false);
        notes.measured(file, begun, || false);
        assert!(notes.is_left(file));
    }

    #[tokio::test]
    async fn a_revoked_layout_is_covered_by_the_fence_that_came_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, file) = (notes(dir.path()).await, FileId(9));
        let measure = || notes.measured(file, notes.last_failure(file), || false);
        notes.made(file, None);
        notes.abandoned(file, true);
        measure();
        assert!(notes.is_exposed(file), "its writes may be under way");
        let before = notes.last_failure(file);
        notes.fence_noted(file, Generation(5));
        drop(notes.writing(file).await.unwrap());
        notes.covered_since(file, before);
        assert!(notes.is_exposed(file), "that write may be of the new generation");
        notes.covered_since(file, notes.last_failure(file));
        measure();
        assert!(notes.is_left(file) && !notes.is_exposed(file));
        notes.fence_done(file, Generation(5));
        measure();
        assert!(!notes.is_left(file));
        // What an earlier start of the mgr left has no number.
        let earlier = FileId(10);
        notes.inner().written.insert(earlier, Written::Before);
        notes.covered_since(earlier, notes.last_failure(earlier));
        assert!(notes.is_exposed(earlier));
    }

    #[tokio::test]
    async fn what_is_made_without_waiting_is_noted_once_more_before_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, root) = (notes(dir.path()).await, types::Cred::root());
        let flushes = || notes.namespace.standing().counters.flushes;
        let how = meta::How::Guarded(types::SetAttrs { mode: Some(0o644), ..Default::default() });
        let make = async |name: &str, durable: bool| {
            let (namespace, name) = (&notes.namespace, name.as_bytes());
            let made = match durable {
                true => namespace.create(&root, now(), FileId::ROOT, name, &how, None).await,
                false => namespace.create_soon(&root, now(), FileId::ROOT, name, &how, None).await,
            };
            let file = made.unwrap().file.attrs.id;
            notes.made(file, (!durable).then_some(1));
            file
        };
        let file = make("durable", true).await;
        let before = flushes();
        notes.writing(file).await.unwrap().done();
        assert_eq!(flushes(), before, "it was noted with the making");
        let file = make("soon", false).await;
        assert_eq!(flushes(), before);
        notes.writing(file).await.unwrap().done();
        notes.writing(file).await.unwrap().done();
        assert_eq!(flushes(), before + 1);
        let found = make("found", false).await;
        notes.found(found, 1).await.unwrap();
        assert_eq!(flushes(), before + 1, "its maker knows");
        notes.found(found, 2).await.unwrap();
        notes.found(found, 3).await.unwrap();
        assert_eq!(flushes(), before + 2);
        make("in the way", false).await;
        for _ in 0..2 {
            notes.found_in_the_way(FileId::ROOT, b"in the way").await.unwrap();
            assert_eq!(flushes(), before + 3);
        }
        notes.told(file, || false);
        let told = make("told", false).await;
        notes.told(told, || false);
        notes.forget().await.unwrap();
        assert_eq!((notes.counted().written, notes.inner().unsynced.len()), (3, 2));
    }

    /// Every file that a mount makes comes here when it is first written.
    #[tokio::test]
    async fn many_that_are_noted_at_the_same_time_share_a_flush() {
        let dir = tempfile::tempdir().unwrap();
        let log = meta::FileLog::create(&dir.path().join("log")).unwrap();
        let (engine, mut stepper) = Embedded::stepped(Ram::default(), log, [3; 16], meta::merge, || None).unwrap();
        let (fsid, cookie_key) = (types::Fsid([1; 16]), [7; 16]);
        let format = Format { fsid, now: now(), cookie_key, root_mode: 0o755, root_uid: 0, root_gid: 0 };
        let mut made = pin!(Namespace::format(engine, format));
        assert!(poll!(made.as_mut()).is_pending());
        stepper.step(Duration::ZERO);
        let notes = Notes::load(Arc::new(made.await.unwrap())).unwrap();
        let (root, how) = (types::Cred::root(), meta::How::Guarded(types::SetAttrs::default()));
        let mut files = Vec::new();
        for n in 0..32 {
            let name = format!("{n}");
            let mut made = pin!(notes.namespace.create_soon(&root, now(), FileId::ROOT, name.as_bytes(), &how, None));
            let made = loop {
                match poll!(made.as_mut()) {
                    Poll::Ready(made) => break made.unwrap(),
                    Poll::Pending => stepper.step(Duration::ZERO),
                };
            };
            notes.made(made.file.attrs.id, Some(1));
            files.push(made.file.attrs.id);
        }
        let before = notes.namespace.standing().counters.flushes;
        let mut all = pin!(join_all(files.iter().map(|file| notes.writing(*file))));
        assert!(poll!(all.as_mut()).is_pending());
        stepper.step(Duration::ZERO);
        let Poll::Ready(all) = poll!(all.as_mut()) else { panic!("one waits for another") };
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(notes.namespace.standing().counters.flushes, before + 1);
    }

    #[tokio::test]
    async fn a_measurement_before_all_iods_are_fenced_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, file) = (notes(dir.path()).await, FileId(9));
        let measure = || notes.measured(file, notes.last_failure(file), || false);
        notes.made(file, None);
        drop(notes.writing(file).await.unwrap());
        measure();
        assert!(notes.is_exposed(file), "the write may still be under way");
        notes.fence_noted(file, Generation(5));
        notes.covered(file);
        measure();
        assert!(notes.is_left(file) && !notes.is_exposed(file), "an iod may still take it");
        // Another write fails meanwhile, under the new generation.
        drop(notes.writing(file).await.unwrap());
        notes.fence_done(file, Generation(5));
        measure();
        assert!(notes.is_exposed(file), "the fence is older than the write");
        notes.covered(file);
        notes.unknown(file);
        measure();
        assert!(!notes.is_left(file) && notes.untold().is_empty());
        // What a client gave up is under way, though the client told all.
        notes.writing(file).await.unwrap().done();
        notes.fence_noted(file, Generation(6));
        notes.told(file, || false);
        assert!(notes.is_left(file) && !notes.is_exposed(file));
    }
}
