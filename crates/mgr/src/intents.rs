//! Intents: durable notes of unfinished work on files (unreported sizes, truncations, fences), with a copy in memory.
//!
//! The mgr notes a file as written before any client can write bytes to its objects that its size does not cover. It
//! forgets the note once no client writes the file and the size is known. So after a crash the files whose size may be
//! wrong are exactly the noted files: no object of any other file reaches beyond the size of its file.

use meta::schema::{Intent, Noted};
use meta::{Embedded, Namespace};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use types::{Cred, FileId, Generation, Status};

use crate::clock::now;

/// Number of notes that one read of the namespace returns at most.
const PAGE: usize = 4096;

/// All notes of the mgr.
#[derive(Debug)]
pub(crate) struct Intents {
    namespace: Arc<Namespace<Embedded>>,
    inner: Mutex<Inner>,
    /// Held exclusively while notes are being forgotten, and shared while notes are made, so that new notes share
    /// flushes too.
    forgetting: tokio::sync::RwLock<()>,
    /// Notified when there is a note to forget.
    done: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    written: HashMap<FileId, Written>,
    /// Files whose creator did not wait for durability, until a client begins to write them: neither the creation nor
    /// the note may be durable yet.
    unsynced: HashMap<FileId, Unsynced>,
    cuts: HashMap<FileId, Cut>,
    fences: HashMap<FileId, Generation>,
    /// Writes in progress: while a file has one, reports about its size are not complete.
    writers: HashMap<FileId, u32>,
    /// The last failure of each file: a write that failed, or a client that lost or returned its layout without a
    /// report of its writes. Failures are numbered across all files, so that no number is used twice.
    failures: HashMap<FileId, u64>,
    /// Number of the last failure of any file.
    last_failure: u64,
    /// Notes of finished work, to be forgotten.
    done: Vec<Noted>,
}

/// A truncation that may not have reached every object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    /// The namespace has this size, and a note of the truncation.
    To(u64),
    /// The task that requested the truncation ended before the namespace had answered.
    Perhaps,
}

/// Which clients wrote a file that is noted as written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Written {
    /// Clients of this start of the mgr; some of them may still write.
    Now,
    /// Clients that the mgr can no longer ask, and whose writes may still be in flight.
    Before,
    /// As `Before`, but every iod refuses the writes in flight, or will refuse them once the noted fence has reached
    /// all iods.
    Fenced,
    /// Clients that have all reported the bytes that they wrote, and no others: the mgr forgets the note next.
    Told,
}

/// A file whose creator did not wait for durability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unsynced {
    /// The client that created the file.
    maker: u64,
    /// Whether the creation is durable by now.
    settled: bool,
}

/// Numbers of notes by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) written: usize,
    pub(crate) left: usize,
    pub(crate) cuts: usize,
    pub(crate) fences: usize,
}

/// A write in progress. A write that fails or is dropped may have changed some objects. The mgr then learns the size of
/// the file from the iods again.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    notes: &'a Intents,
    file: FileId,
    whole: bool,
}

impl Writing<'_> {
    /// Marks the write as complete: the namespace knows of all of it.
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
    /// Records a failure: a measurement that began earlier no longer counts.
    fn failed(&mut self, file: FileId) {
        if self.written.contains_key(&file) {
            self.last_failure += 1;
            self.failures.insert(file, self.last_failure);
        }
    }

    /// Records that the size of the file covers everything written so far, unless iods may still execute writes of
    /// clients that are not fenced yet. Returns whether the note can be removed. The note stays while a client writes
    /// through the mgr or has a layout to write the file (`held`).
    ///
    /// `held` is called under this lock, so that no client gets a layout in between without a note. A layout grant
    /// counts as a write in progress until the layout is on record.
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

impl Intents {
    /// Loads the notes that earlier starts of the mgr left.
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
        Ok(Intents { namespace, inner: Mutex::new(inner), forgetting, done })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a new file, which the namespace noted as written in the same change. If the client `unsynced_by` does
    /// not wait for durability, neither the file nor the note is durable yet.
    pub(crate) fn made(&self, file: FileId, unsynced_by: Option<u64>) {
        let mut inner = self.inner();
        inner.written.insert(file, Written::Now);
        if let Some(client) = unsynced_by {
            inner.unsynced.insert(file, Unsynced { maker: client, settled: false });
        }
    }

    /// Waits until the creation of a file is durable, before a client learns that the file exists. It waits only if
    /// another client created the file and did not wait itself.
    pub(crate) async fn found(&self, file: FileId, client: u64) -> Result<(), Status> {
        match self.inner().unsynced.get(&file) {
            Some(made) if !made.settled && made.maker != client => {}
            _ => return Ok(()),
        }
        self.settle(file).await
    }

    /// Waits until all earlier changes are durable, among them the creation of this file.
    pub(crate) async fn settle(&self, file: FileId) -> Result<(), Status> {
        self.namespace.settle().await?;
        if let Some(made) = self.inner().unsynced.get_mut(&file) {
            made.settled = true;
        }
        Ok(())
    }

    /// Returns whether it is certain that no client has begun to write the file since its creation: no iod has bytes of
    /// it.
    pub(crate) fn is_untouched(&self, file: FileId) -> bool {
        self.inner().unsynced.contains_key(&file)
    }

    /// As [`Self::found`], for the file that already has a name, whichever client created it.
    pub(crate) async fn found_in_the_way(&self, dir: FileId, name: &[u8]) -> Result<(), Status> {
        if self.inner().unsynced.is_empty() {
            return Ok(());
        }
        match self.namespace.lookup(&Cred::root(), dir, name) {
            Ok(found) if self.inner().unsynced.get(&found.id).is_some_and(|made| !made.settled) => {
                self.settle(found.id).await
            }
            // A later change took the name away; it follows the creation in the log and is durable.
            _ => Ok(()),
        }
    }

    /// Notes durably that a client is about to write the file. The caller keeps the returned [`Writing`] until the
    /// namespace knows of the write, or until the clients that may write are on record.
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
                // The mgr measures these files anyway, because other clients wrote them too.
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
        // This flush also makes all earlier changes durable, such as the creation of the file.
        self.namespace.note(now(), Noted { file, intent: Intent::Written }).await?;
        let mut inner = self.inner();
        inner.unsynced.remove(&file);
        if !noted(&mut inner) {
            inner.written.insert(file, Written::Now);
        }
        Ok(())
    }

    /// Records that a client has reported all that it wrote; `held` says whether another client has a layout to write
    /// the file. If the mgr can no longer ask some of the writers, it measures the file anyway.
    pub(crate) fn told(&self, file: FileId, held: impl FnOnce() -> bool) {
        let mut inner = self.inner();
        let left = matches!(inner.written.get(&file), Some(Written::Before | Written::Fenced));
        if !left && inner.known(file, held) {
            self.done.notify_one();
        }
    }

    /// Returns the last failure of the file; read it before the file is measured.
    pub(crate) fn last_failure(&self, file: FileId) -> Option<u64> {
        self.inner().failures.get(&file).copied()
    }

    /// Records that all iods of the file were asked for its size after this [`Self::last_failure`]. The answers do not
    /// count if another failure came in between, because some iod may have been asked too early. They do not count
    /// either while writes are in flight that nothing refuses yet. In both cases the mgr measures the file again.
    pub(crate) fn measured(&self, file: FileId, failure: Option<u64>, held: impl FnOnce() -> bool) {
        let mut inner = self.inner();
        if inner.failures.get(&file).copied() == failure && inner.known(file, held) {
            self.done.notify_one();
        }
    }

    /// Records that a writer is gone while its writes may be in flight: the mgr fences the file and then measures it.
    fn left(&self, file: FileId) {
        if let Some(written) = self.inner().written.get_mut(&file) {
            *written = Written::Before;
        }
    }

    /// Records that a client has lost its layout to write the file (`revoked`), or has returned it, without a report of
    /// its writes: the mgr measures the file. Writes of a client with a revoked layout may stay in flight until the
    /// client is fenced.
    ///
    /// Called while the client still counts as a writer. Before the iods have answered, other clients may close the
    /// file and the mgr may end. Without this call their reports would pass for complete, and the note would be
    /// forgotten.
    pub(crate) fn abandoned(&self, file: FileId, revoked: bool) {
        let mut inner = self.inner();
        match inner.written.get_mut(&file) {
            Some(written) if revoked => *written = Written::Before,
            Some(written @ (Written::Now | Written::Told)) => *written = Written::Fenced,
            None | Some(Written::Before | Written::Fenced) => {}
        }
        inner.failed(file);
    }

    /// Records that an iod could not be asked for the size of the file: the mgr measures it later.
    pub(crate) fn unknown(&self, file: FileId) {
        if let Some(written @ (Written::Now | Written::Told)) = self.inner().written.get_mut(&file) {
            *written = Written::Fenced;
        }
    }

    /// Returns whether writes of clients that can no longer be asked may be in flight without any fence to refuse them.
    pub(crate) fn is_exposed(&self, file: FileId) -> bool {
        self.inner().written.get(&file) == Some(&Written::Before)
    }

    /// Records that the writes in flight are refused: by the noted fence, or because no iod has bytes of the file.
    /// Called by the holder of the file's lock, so that no write of this start is in flight.
    pub(crate) fn covered(&self, file: FileId) {
        if let Some(written @ Written::Before) = self.inner().written.get_mut(&file) {
            *written = Written::Fenced;
        }
    }

    /// As [`Self::covered`], for a fence that was made after `failure`, if no failure followed. A write that fails
    /// later may carry the new generation.
    pub(crate) fn covered_since(&self, file: FileId, failure: Option<u64>) {
        let mut inner = self.inner();
        if failure.is_some()
            && inner.failures.get(&file).copied() == failure
            && let Some(written @ Written::Before) = inner.written.get_mut(&file)
        {
            *written = Written::Fenced;
        }
    }

    /// Loads the note that a repair of the namespace may have made for a file.
    pub(crate) fn look_again(&self, file: FileId) -> Result<(), Status> {
        if self.namespace.intents_of(file)?.contains(&Intent::Written) {
            self.inner().written.insert(file, Written::Before);
        }
        Ok(())
    }

    /// Returns whether the objects may reach further than the reports of all clients that can be asked.
    pub(crate) fn is_left(&self, file: FileId) -> bool {
        matches!(self.inner().written.get(&file), Some(Written::Before | Written::Fenced))
    }

    /// Returns whether a client has written, or may have written, without a complete report: the namespace may not know
    /// the size.
    pub(crate) fn is_untold(&self, file: FileId) -> bool {
        self.inner().written.get(&file).is_some_and(|written| *written != Written::Told)
    }

    /// Returns the files that are noted as written and lack a complete report.
    pub(crate) fn untold(&self) -> Vec<FileId> {
        let inner = self.inner();
        let untold = inner.written.iter().filter(|(_, written)| **written != Written::Told);
        let mut files: Vec<FileId> = untold.map(|(file, _)| *file).collect();
        files.sort_unstable();
        files
    }

    /// Returns the truncation of a file that may not have reached every object.
    pub(crate) fn cut(&self, file: FileId) -> Option<Cut> {
        self.inner().cuts.get(&file).copied()
    }

    /// Returns every file with an unfinished truncation.
    pub(crate) fn cuts(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = self.inner().cuts.keys().copied().collect();
        files.sort_unstable();
        files
    }

    /// Records that the holder of the file's lock is about to note a truncation. Until the outcome is known, nothing
    /// may make the file grow.
    pub(crate) fn cutting(&self, file: FileId) {
        self.inner().cuts.insert(file, Cut::Perhaps);
    }

    /// Records the outcome after [`Self::cutting`]: the namespace has noted a truncation to `size`; with `None`, it has
    /// noted no truncation.
    pub(crate) fn cut_noted(&self, file: FileId, size: Option<u64>) {
        match size {
            Some(size) => self.inner().cuts.insert(file, Cut::To(size)),
            None => self.inner().cuts.remove(&file),
        };
    }

    /// Forgets a finished truncation durably, because bytes written from now on must not be truncated again. Called by
    /// the holder of the file's lock.
    pub(crate) async fn cut_done(&self, file: FileId, size: u64) -> Result<(), Status> {
        self.namespace.forget(now(), &[Noted { file, intent: Intent::Cut(size) }], true).await?;
        self.inner().cuts.remove(&file);
        Ok(())
    }

    /// Records that the namespace has noted a fence.
    pub(crate) fn fence_noted(&self, file: FileId, generation: Generation) {
        let mut inner = self.inner();
        let noted = inner.fences.entry(file).or_insert(generation);
        *noted = (*noted).max(generation);
    }

    /// Returns whether some iod may not know of a fence of the file.
    pub(crate) fn is_fencing(&self, file: FileId) -> bool {
        self.inner().fences.contains_key(&file)
    }

    /// Returns every file with a fence that some iod may not know of.
    pub(crate) fn fences(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = self.inner().fences.keys().copied().collect();
        files.sort_unstable();
        files
    }

    /// Records that every iod refuses capabilities of generations before this one.
    pub(crate) fn fence_done(&self, file: FileId, generation: Generation) {
        let mut inner = self.inner();
        if inner.fences.get(&file) == Some(&generation) {
            inner.fences.remove(&file);
            inner.done.push(Noted { file, intent: Intent::Fence(generation) });
            self.done.notify_one();
        }
    }

    /// Drops every note about a file that has been deleted.
    pub(crate) fn gone(&self, file: FileId) {
        let mut inner = self.inner();
        inner.written.remove(&file);
        inner.failures.remove(&file);
        inner.unsynced.remove(&file);
        inner.cuts.remove(&file);
        inner.fences.remove(&file);
    }

    /// Returns the numbers of notes.
    pub(crate) fn counted(&self) -> Counted {
        let inner = self.inner();
        Counted {
            written: inner.written.len(),
            left: inner.written.values().filter(|w| matches!(w, Written::Before | Written::Fenced)).count(),
            cuts: inner.cuts.len(),
            fences: inner.fences.len(),
        }
    }

    /// Completes when there is a note to forget.
    pub(crate) async fn something_done(&self) {
        self.done.notified().await;
    }

    /// Forgets finished work. After a failure the notes stay in the namespace, and the next start of the mgr does the
    /// work again.
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

    /// The file of a metadata store, in memory.
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

    async fn notes(dir: &std::path::Path) -> Intents {
        let engine = Embedded::create(&dir.join("store"), [3; 16], meta::merge).unwrap();
        let (fsid, cookie_key) = (types::Fsid([1; 16]), [7; 16]);
        let format = Format { fsid, now: now(), cookie_key, root_mode: 0o755, root_uid: 0, root_gid: 0 };
        Intents::load(Arc::new(Namespace::format(engine, format).await.unwrap())).unwrap()
    }

    #[tokio::test]
    async fn a_size_measured_before_a_failed_write_is_not_final() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, file) = (notes(dir.path()).await, FileId(9));
        notes.made(file, None);
        let writing = notes.writing(file).await.unwrap();
        let begun = notes.last_failure(file);
        drop(writing);
        notes.covered(file);
        notes.measured(file, begun, || false);
        assert!(notes.is_left(file), "an iod may have been measured before the write arrived");
        notes.measured(file, notes.last_failure(file), || false);
        assert!(!notes.is_left(file) && notes.untold().is_empty());
    }

    #[tokio::test]
    async fn the_size_after_an_abandoned_layout_is_measured_despite_reports_of_other_clients() {
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
        assert!(notes.is_left(file), "the iods were measured before the last write");
        // Failures of other files do not matter.
        let begun = notes.last_failure(file);
        notes.made(FileId(10), None);
        notes.abandoned(FileId(10), false);
        // Other clients go on writing, and report.
        notes.measured(file, begun, || true);
        assert!(!notes.is_left(file) && notes.is_untold(file));
        notes.told(file, || false);
        assert!(!notes.is_untold(file));
        // The note and its failures are forgotten; a measurement from before does not count for the next note.
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
    async fn a_later_fence_covers_a_revoked_layout() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, file) = (notes(dir.path()).await, FileId(9));
        let measure = || notes.measured(file, notes.last_failure(file), || false);
        notes.made(file, None);
        notes.abandoned(file, true);
        measure();
        assert!(notes.is_exposed(file), "writes of the client may be in progress");
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
        // A file that an earlier start of the mgr left has no failure number.
        let earlier = FileId(10);
        notes.inner().written.insert(earlier, Written::Before);
        notes.covered_since(earlier, notes.last_failure(earlier));
        assert!(notes.is_exposed(earlier));
    }

    #[tokio::test]
    async fn an_intent_of_an_unsynced_create_is_flushed_before_the_first_write() {
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
        assert_eq!(flushes(), before, "the intent was recorded with the create");
        let file = make("soon", false).await;
        assert_eq!(flushes(), before);
        notes.writing(file).await.unwrap().done();
        notes.writing(file).await.unwrap().done();
        assert_eq!(flushes(), before + 1);
        let found = make("found", false).await;
        notes.found(found, 1).await.unwrap();
        assert_eq!(flushes(), before + 1, "the creating client already knows the intent");
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

    /// Every file that a mount creates is noted this way at its first write.
    #[tokio::test]
    async fn intents_that_are_recorded_at_the_same_time_share_a_flush() {
        let dir = tempfile::tempdir().unwrap();
        let log = meta::FileLog::create(&dir.path().join("log")).unwrap();
        let (engine, mut stepper) = Embedded::stepped(Ram::default(), log, [3; 16], meta::merge, || None).unwrap();
        let (fsid, cookie_key) = (types::Fsid([1; 16]), [7; 16]);
        let format = Format { fsid, now: now(), cookie_key, root_mode: 0o755, root_uid: 0, root_gid: 0 };
        let mut made = pin!(Namespace::format(engine, format));
        assert!(poll!(made.as_mut()).is_pending());
        stepper.step(Duration::ZERO);
        let notes = Intents::load(Arc::new(made.await.unwrap())).unwrap();
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
    async fn a_size_measured_before_all_iods_are_fenced_is_not_final() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, file) = (notes(dir.path()).await, FileId(9));
        let measure = || notes.measured(file, notes.last_failure(file), || false);
        notes.made(file, None);
        drop(notes.writing(file).await.unwrap());
        measure();
        assert!(notes.is_exposed(file), "the write may still be in progress");
        notes.fence_noted(file, Generation(5));
        notes.covered(file);
        measure();
        assert!(notes.is_left(file) && !notes.is_exposed(file), "an iod may still execute the write");
        // Another write fails in the meantime, under the new generation.
        drop(notes.writing(file).await.unwrap());
        notes.fence_done(file, Generation(5));
        measure();
        assert!(notes.is_exposed(file), "the fence is older than the write");
        notes.covered(file);
        notes.unknown(file);
        measure();
        assert!(!notes.is_left(file) && notes.untold().is_empty());
        // A write that the client abandoned is in flight, though the client has reported everything.
        notes.writing(file).await.unwrap().done();
        notes.fence_noted(file, Generation(6));
        notes.told(file, || false);
        assert!(notes.is_left(file) && !notes.is_exposed(file));
    }
}
