//! Intents: durable records of unfinished work on files (unreported sizes, truncations, fences). The mgr also keeps a
//! copy of all intents in memory.
//!
//! Before a client can write bytes beyond the recorded size of a file, the mgr stores the intent `Written` for this
//! file. The mgr removes the intent once no client writes the file and the namespace has the final size of the file. So
//! after a crash, only files with this intent may have a wrong size. The objects of every other file end within the
//! size of the file.

use meta::schema::{Intent, Noted};
use meta::{Embedded, Namespace};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use types::{Cred, FileId, Generation, Status};

use crate::clock::now;

/// Largest number of intents that one read of the namespace returns.
const PAGE: usize = 4096;

/// All intents of the mgr: the records in the store, and their copy in memory.
#[derive(Debug)]
pub(crate) struct Intents {
    namespace: Arc<Namespace<Embedded>>,
    inner: Mutex<Inner>,
    /// Locked exclusively while the mgr removes intents from the store, and shared while it stores intents. Several
    /// tasks may store intents at the same time, so that they share a flush.
    forgetting: tokio::sync::RwLock<()>,
    /// Notified when an intent is complete and can be removed from the store.
    done: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    written: HashMap<FileId, Written>,
    /// Files that no client has begun to write, and whose creator did not wait for durability. The creation and the
    /// intent of such a file may not be durable yet.
    unsynced: HashMap<FileId, Unsynced>,
    cuts: HashMap<FileId, Cut>,
    fences: HashMap<FileId, Generation>,
    /// For each file, the number of writes in progress. Until this number is 0, reports about the size of the file are
    /// incomplete.
    writers: HashMap<FileId, u32>,
    /// For each file, the number of its last failure: a failed write, or a client that lost or returned its layout
    /// without a report of its writes. All files share one sequence of numbers, so that no number is used twice.
    failures: HashMap<FileId, u64>,
    /// Number of the last failure of any file. The next failure gets the next number.
    last_failure: u64,
    /// Intents of completed work that the mgr has to remove from the store.
    done: Vec<Noted>,
}

/// A truncation of a file that some of its objects may not have executed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    /// The namespace has stored this size of the file in bytes, and the intent of the truncation.
    To(u64),
    /// The task that requested the truncation was cancelled before the namespace confirmed or refused the intent. So
    /// the mgr does not know whether the intent is stored.
    Perhaps,
}

/// For a file with the intent `Written`: which clients may have written the file without a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Written {
    /// The possible writers are clients of this start of the mgr. Some of them may still write.
    Now,
    /// The mgr can no longer get a report from some writers. The writes of these clients may still be in flight.
    Before,
    /// The mgr can no longer get a report from some writers. Every iod refuses the writes of these clients in flight,
    /// or will refuse them once a pending fence has reached all iods.
    Fenced,
    /// All writers have reported all bytes that they wrote, so the mgr removes the intent.
    Told,
}

/// A file whose creator did not wait until the creation was durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unsynced {
    /// Id of the client that created the file.
    maker: u64,
    /// Whether the creation of the file is durable by now.
    settled: bool,
}

/// Number of files for each kind of intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) written: usize,
    pub(crate) left: usize,
    pub(crate) cuts: usize,
    pub(crate) fences: usize,
}

/// Guard of a write in progress. If the write fails, or the guard is dropped before the write is complete, the write
/// may have changed some objects. The mgr then queries the iods for the size of the file.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    notes: &'a Intents,
    file: FileId,
    whole: bool,
}

impl Writing<'_> {
    /// Records that the write is complete: the namespace has the size of the file after the write.
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
    /// Records a failure of the file, so that a size measurement that began earlier does not count.
    fn failed(&mut self, file: FileId) {
        if self.written.contains_key(&file) {
            self.last_failure += 1;
            self.failures.insert(file, self.last_failure);
        }
    }

    /// Records that the size in the namespace includes all writes of the file. Records nothing if iods may still
    /// execute writes of clients that are not fenced. Returns whether the mgr can remove the intent. The intent stays
    /// while a write is in progress, or while `held` returns that a client holds a write layout.
    ///
    /// The function calls `held` under the lock of the intents, so that no client gets a layout between `held` and the
    /// removal of the intent. A layout grant counts as a write in progress until the grant is recorded.
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
    /// Loads the intents that earlier starts of the mgr left in the store.
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

    /// Records a new file, whose intent `Written` the namespace has stored in one batch with the file. `unsynced_by` is
    /// the client, if it does not wait for durability. Neither the file nor the intent is durable then.
    pub(crate) fn made(&self, file: FileId, unsynced_by: Option<u64>) {
        let mut inner = self.inner();
        inner.written.insert(file, Written::Now);
        if let Some(client) = unsynced_by {
            inner.unsynced.insert(file, Unsynced { maker: client, settled: false });
        }
    }

    /// Waits until the creation of a file is durable, before `client` learns that the file exists. Waits only if
    /// another client created the file without waiting for durability.
    pub(crate) async fn found(&self, file: FileId, client: u64) -> Result<(), Status> {
        match self.inner().unsynced.get(&file) {
            Some(made) if !made.settled && made.maker != client => {}
            _ => return Ok(()),
        }
        self.settle(file).await
    }

    /// Waits until all earlier changes of the namespace are durable, including the creation of this file.
    pub(crate) async fn settle(&self, file: FileId) -> Result<(), Status> {
        self.namespace.settle().await?;
        if let Some(made) = self.inner().unsynced.get_mut(&file) {
            made.settled = true;
        }
        Ok(())
    }

    /// Returns whether no client can have begun to write the file since its creation, so that no iod has bytes of the
    /// file.
    pub(crate) fn is_untouched(&self, file: FileId) -> bool {
        self.inner().unsynced.contains_key(&file)
    }

    /// Waits until the creation of the file with this name is durable, whichever client created the file.
    pub(crate) async fn found_in_the_way(&self, dir: FileId, name: &[u8]) -> Result<(), Status> {
        if self.inner().unsynced.is_empty() {
            return Ok(());
        }
        match self.namespace.lookup(&Cred::root(), dir, name) {
            Ok(found) if self.inner().unsynced.get(&found.id).is_some_and(|made| !made.settled) => {
                self.settle(found.id).await
            }
            // A later change has removed the name. The change follows the creation of the file in the log, so the
            // creation is durable.
            _ => Ok(()),
        }
    }

    /// Stores the intent that a client is about to write the file, durably. The caller keeps the returned [`Writing`]
    /// until the namespace has the new size, or until the layout grant is recorded.
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
                // Leave the state unchanged: other clients also wrote the file, so the mgr measures the file in any
                // case.
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
        // The flush that makes this intent durable also makes all earlier changes durable, including the creation of
        // the file.
        self.namespace.note(now(), Noted { file, intent: Intent::Written }).await?;
        let mut inner = self.inner();
        inner.unsynced.remove(&file);
        if !noted(&mut inner) {
            inner.written.insert(file, Written::Now);
        }
        Ok(())
    }

    /// Records that a client has reported all its writes of the file. `held` returns whether another client holds a
    /// write layout. If the mgr cannot get reports from some writers, the intent stays until the mgr has measured the
    /// file.
    pub(crate) fn told(&self, file: FileId, held: impl FnOnce() -> bool) {
        let mut inner = self.inner();
        let left = matches!(inner.written.get(&file), Some(Written::Before | Written::Fenced));
        if !left && inner.known(file, held) {
            self.done.notify_one();
        }
    }

    /// Returns the number of the file's last failure. The caller gets this number before it measures the file, and
    /// passes it to [`Self::measured`].
    pub(crate) fn last_failure(&self, file: FileId) -> Option<u64> {
        self.inner().failures.get(&file).copied()
    }

    /// Records that all iods of the file have reported its size since the failure with number `failure`. The
    /// measurement does not count if another failure followed, because the mgr may have queried some iod too early. Nor
    /// does it count while unfenced writes may be in flight. In both cases the mgr measures the file again.
    pub(crate) fn measured(&self, file: FileId, failure: Option<u64>, held: impl FnOnce() -> bool) {
        let mut inner = self.inner();
        if inner.failures.get(&file).copied() == failure && inner.known(file, held) {
            self.done.notify_one();
        }
    }

    /// Records that a writer disappeared while its writes may be in flight. The mgr fences the file and then measures
    /// it.
    fn left(&self, file: FileId) {
        if let Some(written) = self.inner().written.get_mut(&file) {
            *written = Written::Before;
        }
    }

    /// Records that a client lost its write layout (`revoked`), or returned it, without a report of its writes. The mgr
    /// then measures the file. Writes under a revoked layout may stay in flight until the mgr has fenced the file.
    ///
    /// The caller calls this function while the client still counts as a writer of the file. Otherwise the reports of
    /// other clients count as complete, and the mgr removes the intent without a measurement.
    pub(crate) fn abandoned(&self, file: FileId, revoked: bool) {
        let mut inner = self.inner();
        match inner.written.get_mut(&file) {
            Some(written) if revoked => *written = Written::Before,
            Some(written @ (Written::Now | Written::Told)) => *written = Written::Fenced,
            None | Some(Written::Before | Written::Fenced) => {}
        }
        inner.failed(file);
    }

    /// Records that an iod did not reply with the size of its object, so that the mgr measures the file later.
    pub(crate) fn unknown(&self, file: FileId) {
        if let Some(written @ (Written::Now | Written::Told)) = self.inner().written.get_mut(&file) {
            *written = Written::Fenced;
        }
    }

    /// Returns whether unfenced writes may be in flight from clients that can no longer report them to the mgr.
    pub(crate) fn is_exposed(&self, file: FileId) -> bool {
        self.inner().written.get(&file) == Some(&Written::Before)
    }

    /// Records that every iod will refuse the writes in flight, because of the stored fence, or because no iod has
    /// bytes of the file. The caller holds the file's lock, so that no write of this start of the mgr is in flight.
    pub(crate) fn covered(&self, file: FileId) {
        if let Some(written @ Written::Before) = self.inner().written.get_mut(&file) {
            *written = Written::Fenced;
        }
    }

    /// Does the same as [`Self::covered`] for a fence that the mgr made after the failure with number `failure`. Does
    /// nothing if another failure followed, because that failed write may carry the new generation.
    pub(crate) fn covered_since(&self, file: FileId, failure: Option<u64>) {
        let mut inner = self.inner();
        if failure.is_some()
            && inner.failures.get(&file).copied() == failure
            && let Some(written @ Written::Before) = inner.written.get_mut(&file)
        {
            *written = Written::Fenced;
        }
    }

    /// Loads the intent that a repair of the namespace may have stored for a file.
    pub(crate) fn look_again(&self, file: FileId) -> Result<(), Status> {
        if self.namespace.intents_of(file)?.contains(&Intent::Written) {
            self.inner().written.insert(file, Written::Before);
        }
        Ok(())
    }

    /// Returns whether the objects may reach beyond the reported size of the file because of clients that can no longer
    /// report their writes.
    pub(crate) fn is_left(&self, file: FileId) -> bool {
        matches!(self.inner().written.get(&file), Some(Written::Before | Written::Fenced))
    }

    /// Returns whether a client may have written the file without a complete report, so that the namespace may not have
    /// the final size.
    pub(crate) fn is_untold(&self, file: FileId) -> bool {
        self.inner().written.get(&file).is_some_and(|written| *written != Written::Told)
    }

    /// Returns the files with the intent `Written` whose writers have not reported all writes.
    pub(crate) fn untold(&self) -> Vec<FileId> {
        let inner = self.inner();
        let untold = inner.written.iter().filter(|(_, written)| **written != Written::Told);
        let mut files: Vec<FileId> = untold.map(|(file, _)| *file).collect();
        files.sort_unstable();
        files
    }

    /// Returns the truncation of a file that some objects may not have executed yet.
    pub(crate) fn cut(&self, file: FileId) -> Option<Cut> {
        self.inner().cuts.get(&file).copied()
    }

    /// Returns every file with an unfinished truncation.
    pub(crate) fn cuts(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = self.inner().cuts.keys().copied().collect();
        files.sort_unstable();
        files
    }

    /// Records that the caller is about to store the intent of a truncation. Until the caller records the outcome, no
    /// operation may extend the file. The caller holds the file's lock.
    pub(crate) fn cutting(&self, file: FileId) {
        self.inner().cuts.insert(file, Cut::Perhaps);
    }

    /// Records the outcome of a truncation that [`Self::cutting`] announced: the namespace has stored an intent to
    /// truncate to `size`, or no intent (`None`).
    pub(crate) fn cut_noted(&self, file: FileId, size: Option<u64>) {
        match size {
            Some(size) => self.inner().cuts.insert(file, Cut::To(size)),
            None => self.inner().cuts.remove(&file),
        };
    }

    /// Removes the intent of a finished truncation durably, so that the next start of the mgr does not truncate bytes
    /// that clients write after it. The caller holds the file's lock.
    pub(crate) async fn cut_done(&self, file: FileId, size: u64) -> Result<(), Status> {
        self.namespace.forget(now(), &[Noted { file, intent: Intent::Cut(size) }], true).await?;
        self.inner().cuts.remove(&file);
        Ok(())
    }

    /// Records that the namespace has stored the intent of a fence.
    pub(crate) fn fence_noted(&self, file: FileId, generation: Generation) {
        let mut inner = self.inner();
        let noted = inner.fences.entry(file).or_insert(generation);
        *noted = (*noted).max(generation);
    }

    /// Returns whether some iod may not have executed a fence of the file.
    pub(crate) fn is_fencing(&self, file: FileId) -> bool {
        self.inner().fences.contains_key(&file)
    }

    /// Returns every file with a fence that some iod may not have executed.
    pub(crate) fn fences(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = self.inner().fences.keys().copied().collect();
        files.sort_unstable();
        files
    }

    /// Records that every iod of the file refuses capabilities of generations before `generation`.
    pub(crate) fn fence_done(&self, file: FileId, generation: Generation) {
        let mut inner = self.inner();
        if inner.fences.get(&file) == Some(&generation) {
            inner.fences.remove(&file);
            inner.done.push(Noted { file, intent: Intent::Fence(generation) });
            self.done.notify_one();
        }
    }

    /// Removes all intents of a deleted file from memory. The namespace has removed them together with the file.
    pub(crate) fn gone(&self, file: FileId) {
        let mut inner = self.inner();
        inner.written.remove(&file);
        inner.failures.remove(&file);
        inner.unsynced.remove(&file);
        inner.cuts.remove(&file);
        inner.fences.remove(&file);
    }

    /// Returns the number of files for each kind of intent.
    pub(crate) fn counted(&self) -> Counted {
        let inner = self.inner();
        Counted {
            written: inner.written.len(),
            left: inner.written.values().filter(|w| matches!(w, Written::Before | Written::Fenced)).count(),
            cuts: inner.cuts.len(),
            fences: inner.fences.len(),
        }
    }

    /// Completes when the mgr can remove an intent from the store.
    pub(crate) async fn something_done(&self) {
        self.done.notified().await;
    }

    /// Removes the intents of completed work from the store. If this fails, the intents stay in the store, and the next
    /// start of the mgr repeats the work.
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

    /// A metadata store in memory, so that the tests need no file.
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
        // Failures of another file do not affect the measurement of this file.
        let begun = notes.last_failure(file);
        notes.made(FileId(10), None);
        notes.abandoned(FileId(10), false);
        // `true` stands for a write layout of another client, which continues to write and to report its writes.
        notes.measured(file, begun, || true);
        assert!(!notes.is_left(file) && notes.is_untold(file));
        notes.told(file, || false);
        assert!(!notes.is_untold(file));
        // After `forget`, neither the intent nor its failure number exists. So a measurement that began before does not
        // count for the next intent.
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
        // A file with an intent from an earlier start of the mgr has no failure number, because failure numbers are
        // only in memory.
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

    /// The mgr stores the intent `Written` at the first write to every file that a mount creates.
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
        // Before the first fence is done, another write fails. This write carries the new generation, so the fence does
        // not refuse it.
        drop(notes.writing(file).await.unwrap());
        notes.fence_done(file, Generation(5));
        measure();
        assert!(notes.is_exposed(file), "the fence is older than the write");
        notes.covered(file);
        notes.unknown(file);
        measure();
        assert!(!notes.is_left(file) && notes.untold().is_empty());
        // The client has reported all its writes, but an abandoned write of this client is still in flight.
        notes.writing(file).await.unwrap().done();
        notes.fence_noted(file, Generation(6));
        notes.told(file, || false);
        assert!(notes.is_left(file) && !notes.is_exposed(file));
    }
}
