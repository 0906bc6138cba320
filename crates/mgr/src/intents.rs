//! Intents: durable records of unfinished work on files (unreported sizes, truncations, fences). The mgr also keeps a
//! copy of all intents in memory.
//!
//! Before a client can write bytes beyond the recorded size of a file, the mgr stores the intent `Written` for this
//! file. The mgr removes the intent once no client writes the file and the namespace has the final size of the file. So
//! after a crash, only files with this intent may have a wrong size. The objects of every other file end within the
//! size of the file.

use meta::schema::{FileIntent, Intent};
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
    truncations: HashMap<FileId, Truncation>,
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
    done: Vec<FileIntent>,
}

/// A truncation of a file that some of its objects may not have executed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Truncation {
    /// The namespace has stored this new size of the file (in bytes), and the intent to truncate the objects to it.
    To(u64),
    /// The task that requested the truncation was cancelled before the namespace confirmed or refused the intent. So
    /// the mgr does not know whether the intent is stored.
    Unknown,
}

/// For a file with the intent `Written`: which clients may have written the file without a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Written {
    /// Clients of this start of the mgr may have written without a report. They may still write, and report later.
    Active,
    /// The mgr can no longer get a report from some writers. The writes of these clients may still be in flight.
    Unfenced,
    /// The mgr can no longer get a report from some writers. Every iod refuses the writes in flight of these clients,
    /// or will refuse them once a pending fence has reached all iods.
    Fenced,
    /// All writers have reported all bytes that they wrote, so the mgr removes the intent.
    Reported,
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
pub(crate) struct Counts {
    pub(crate) written: usize,
    pub(crate) lost_writers: usize,
    pub(crate) truncations: usize,
    pub(crate) fences: usize,
}

/// Guard of a write in progress. If the write fails, or the guard is dropped before the write is complete, the write
/// may have changed some objects. The mgr then queries the iods for the size of the file.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    intents: &'a Intents,
    file: FileId,
    whole: bool,
}

impl Writing<'_> {
    /// Records that the write is complete, and that the namespace has the size of the file after this write.
    pub(crate) fn done(mut self) {
        self.whole = true;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if !self.whole {
            self.intents.lose_writer(self.file);
        }
        let mut inner = self.intents.inner();
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
    /// Gives the file the next failure number, so that the mgr ignores size measurements that began before this
    /// failure.
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
            Written::Unfenced => Written::Unfenced,
            Written::Fenced if fencing => Written::Fenced,
            Written::Fenced if goes_on => Written::Active,
            written if goes_on => written,
            _ if fencing => Written::Fenced,
            _ => Written::Reported,
        };
        *written == Written::Reported && !goes_on
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
            for FileIntent { file, intent } in page {
                match intent {
                    Intent::Written => drop(inner.written.insert(file, Written::Unfenced)),
                    Intent::Truncate(size) => drop(inner.truncations.insert(file, Truncation::To(size))),
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
    /// the client that created the file without waiting for durability; the file and the intent may not be durable
    /// then.
    pub(crate) fn made(&self, file: FileId, unsynced_by: Option<u64>) {
        let mut inner = self.inner();
        inner.written.insert(file, Written::Active);
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
    pub(crate) fn is_unwritten(&self, file: FileId) -> bool {
        self.inner().unsynced.contains_key(&file)
    }

    /// Waits until the creation of the file with this name is durable, whichever client created the file.
    pub(crate) async fn settle_name(&self, dir: FileId, name: &[u8]) -> Result<(), Status> {
        if self.inner().unsynced.is_empty() {
            return Ok(());
        }
        match self.namespace.lookup(&Cred::root(), dir, name) {
            Ok(found) if self.inner().unsynced.get(&found.id).is_some_and(|made| !made.settled) => {
                self.settle(found.id).await
            }
            // The creation is durable already, or a later change has removed the name. In both cases there is nothing
            // to wait for.
            _ => Ok(()),
        }
    }

    /// Durably stores the intent `Written` (a client may be writing the file), before a client writes the file. The
    /// caller keeps the returned [`Writing`] until the namespace has the new size, or until the layout grant is
    /// recorded.
    pub(crate) async fn writing(&self, file: FileId) -> Result<Writing<'_>, Status> {
        *self.inner().writers.entry(file).or_default() += 1;
        let writing = Writing { intents: self, file, whole: false };
        self.store_writing(file).await?;
        Ok(writing)
    }

    async fn store_writing(&self, file: FileId) -> Result<(), Status> {
        let is_stored = |inner: &mut Inner| {
            match inner.unsynced.get(&file) {
                Some(made) if !made.settled => return false,
                Some(_) => drop(inner.unsynced.remove(&file)),
                None => {}
            }
            let written = inner.written.get_mut(&file);
            let reported = written.map(|written| match written {
                Written::Reported => *written = Written::Active,
                // The store has this intent already, because some earlier writers have not reported their writes. So
                // change nothing.
                Written::Unfenced | Written::Fenced | Written::Active => {}
            });
            reported.is_some()
        };
        if is_stored(&mut self.inner()) {
            return Ok(());
        }
        let _shared = self.forgetting.read().await;
        if is_stored(&mut self.inner()) {
            return Ok(());
        }
        // The flush that makes this intent durable also makes all earlier changes durable, including the creation of
        // the file.
        self.namespace.record_intent(now(), FileIntent { file, intent: Intent::Written }).await?;
        let mut inner = self.inner();
        inner.unsynced.remove(&file);
        if !is_stored(&mut inner) {
            inner.written.insert(file, Written::Active);
        }
        Ok(())
    }

    /// Records that a client has reported all its writes of the file. `held` returns whether another client holds a
    /// write layout. If the mgr cannot get reports from some writers, the intent stays until the mgr has queried the
    /// iods for the size of the file.
    pub(crate) fn reported(&self, file: FileId, held: impl FnOnce() -> bool) {
        let mut inner = self.inner();
        let lost = matches!(inner.written.get(&file), Some(Written::Unfenced | Written::Fenced));
        if !lost && inner.known(file, held) {
            self.done.notify_one();
        }
    }

    /// Returns the number of the file's last failure: a failed write, or a client that lost or returned its layout
    /// without a report of its writes. The caller gets this number before it queries the iods for the file size, and
    /// passes the number to [`Self::measured`].
    pub(crate) fn last_failure(&self, file: FileId) -> Option<u64> {
        self.inner().failures.get(&file).copied()
    }

    /// Records that all iods of the file have reported its size since the failure (such as a failed write) with number
    /// `failure`. The reported size does not count if another failure followed, because the mgr may have queried some
    /// iods before that failure. Nor does the size count while unfenced writes may be in flight. In both cases the mgr
    /// queries the iods again.
    pub(crate) fn measured(&self, file: FileId, failure: Option<u64>, held: impl FnOnce() -> bool) {
        let mut inner = self.inner();
        if inner.failures.get(&file).copied() == failure && inner.known(file, held) {
            self.done.notify_one();
        }
    }

    /// Records that a write failed or was cancelled while its requests to the iods may still be in flight. The mgr
    /// fences the file, and then queries the iods for the size of the file.
    fn lose_writer(&self, file: FileId) {
        if let Some(written) = self.inner().written.get_mut(&file) {
            *written = Written::Unfenced;
        }
    }

    /// Records that a client lost its write layout (`revoked`), or returned it, without a report of its writes. The mgr
    /// then queries the iods for the size of the file. Writes under a revoked layout may stay in flight until the mgr
    /// has fenced the file.
    ///
    /// The caller calls this function while the client still counts as a writer of the file. Otherwise the reports of
    /// other clients count as complete, and the mgr removes the intent without a query of the iods.
    pub(crate) fn abandoned(&self, file: FileId, revoked: bool) {
        let mut inner = self.inner();
        match inner.written.get_mut(&file) {
            Some(written) if revoked => *written = Written::Unfenced,
            Some(written @ (Written::Active | Written::Reported)) => *written = Written::Fenced,
            None | Some(Written::Unfenced | Written::Fenced) => {}
        }
        inner.failed(file);
    }

    /// Records that an iod did not reply with the size of its object, so that the mgr later queries the iods for the
    /// size of the file.
    pub(crate) fn unknown(&self, file: FileId) {
        if let Some(written @ (Written::Active | Written::Reported)) = self.inner().written.get_mut(&file) {
            *written = Written::Fenced;
        }
    }

    /// Returns whether unfenced writes may be in flight from clients that can no longer report them to the mgr.
    pub(crate) fn is_unfenced(&self, file: FileId) -> bool {
        self.inner().written.get(&file) == Some(&Written::Unfenced)
    }

    /// Records that no write in flight can change the file any more: either the namespace has stored a fence, because
    /// of which every iod will refuse these writes, or the file has no objects. The caller holds the file's lock, so
    /// that no write on the mgr path is in flight.
    pub(crate) fn covered(&self, file: FileId) {
        if let Some(written @ Written::Unfenced) = self.inner().written.get_mut(&file) {
            *written = Written::Fenced;
        }
    }

    /// Does the same as [`Self::covered`], if `failure` is still the number of the file's last failure. After a later
    /// failure, the function does nothing: the later failed write may carry the generation of the fence, and the iods
    /// then do not refuse this write.
    pub(crate) fn covered_since(&self, file: FileId, failure: Option<u64>) {
        let mut inner = self.inner();
        if failure.is_some()
            && inner.failures.get(&file).copied() == failure
            && let Some(written @ Written::Unfenced) = inner.written.get_mut(&file)
        {
            *written = Written::Fenced;
        }
    }

    /// Loads the intent that a repair of the namespace may have stored for a file.
    pub(crate) fn reload(&self, file: FileId) -> Result<(), Status> {
        if self.namespace.intents_of(file)?.contains(&Intent::Written) {
            self.inner().written.insert(file, Written::Unfenced);
        }
        Ok(())
    }

    /// Returns whether the objects may reach beyond the reported size of the file because of clients that can no longer
    /// report their writes.
    pub(crate) fn has_lost_writers(&self, file: FileId) -> bool {
        matches!(self.inner().written.get(&file), Some(Written::Unfenced | Written::Fenced))
    }

    /// Returns whether a client may have written the file without a complete report, so that the namespace may not have
    /// the final size.
    pub(crate) fn is_unreported(&self, file: FileId) -> bool {
        self.inner().written.get(&file).is_some_and(|written| *written != Written::Reported)
    }

    /// Returns the files with the intent `Written` whose writers have not reported all writes.
    pub(crate) fn unreported(&self) -> Vec<FileId> {
        let inner = self.inner();
        let unreported = inner.written.iter().filter(|(_, written)| **written != Written::Reported);
        let mut files: Vec<FileId> = unreported.map(|(file, _)| *file).collect();
        files.sort_unstable();
        files
    }

    /// Returns the truncation of a file that some objects may not have executed yet.
    pub(crate) fn truncation(&self, file: FileId) -> Option<Truncation> {
        self.inner().truncations.get(&file).copied()
    }

    /// Returns every file with an unfinished truncation.
    pub(crate) fn truncations(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = self.inner().truncations.keys().copied().collect();
        files.sort_unstable();
        files
    }

    /// Records that the caller is about to store the intent of a truncation. Until the caller records the outcome of
    /// storing it, no operation may extend the file. The caller holds the file's lock.
    pub(crate) fn truncating(&self, file: FileId) {
        self.inner().truncations.insert(file, Truncation::Unknown);
    }

    /// Records the outcome of a truncation that [`Self::truncating`] announced: the namespace has stored an intent to
    /// truncate to `size`, or no intent (`None`).
    pub(crate) fn record_truncation(&self, file: FileId, size: Option<u64>) {
        match size {
            Some(size) => self.inner().truncations.insert(file, Truncation::To(size)),
            None => self.inner().truncations.remove(&file),
        };
    }

    /// Removes the intent of a finished truncation durably, so that the next start of the mgr does not truncate bytes
    /// that clients write after this truncation. The caller holds the file's lock.
    pub(crate) async fn finish_truncation(&self, file: FileId, size: u64) -> Result<(), Status> {
        self.namespace.remove_intents(now(), &[FileIntent { file, intent: Intent::Truncate(size) }], true).await?;
        self.inner().truncations.remove(&file);
        Ok(())
    }

    /// Records that the namespace has stored the intent of a fence.
    pub(crate) fn record_fence(&self, file: FileId, generation: Generation) {
        let mut inner = self.inner();
        let stored = inner.fences.entry(file).or_insert(generation);
        *stored = (*stored).max(generation);
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
    pub(crate) fn finish_fence(&self, file: FileId, generation: Generation) {
        let mut inner = self.inner();
        if inner.fences.get(&file) == Some(&generation) {
            inner.fences.remove(&file);
            inner.done.push(FileIntent { file, intent: Intent::Fence(generation) });
            self.done.notify_one();
        }
    }

    /// Removes all intents of a deleted file from memory. The namespace has removed them together with the file.
    pub(crate) fn deleted(&self, file: FileId) {
        let mut inner = self.inner();
        inner.written.remove(&file);
        inner.failures.remove(&file);
        inner.unsynced.remove(&file);
        inner.truncations.remove(&file);
        inner.fences.remove(&file);
    }

    /// Returns the number of files for each kind of intent.
    pub(crate) fn counts(&self) -> Counts {
        let inner = self.inner();
        Counts {
            written: inner.written.len(),
            lost_writers: inner.written.values().filter(|w| matches!(w, Written::Unfenced | Written::Fenced)).count(),
            truncations: inner.truncations.len(),
            fences: inner.fences.len(),
        }
    }

    /// Completes when the work of an intent is complete, so that the mgr can remove the intent from the store.
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
                let reported = *written == Written::Reported;
                if reported {
                    failures.remove(file);
                    unsynced.remove(file);
                    done.push(FileIntent { file: *file, intent: Intent::Written });
                }
                !reported
            });
            done
        };
        if done.is_empty() {
            return Ok(());
        }
        self.namespace.remove_intents(now(), &done, false).await
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

    async fn intents(dir: &std::path::Path) -> Intents {
        let engine = Embedded::create(&dir.join("store"), [3; 16], meta::merge).unwrap();
        let (fsid, cookie_key) = (types::Fsid([1; 16]), [7; 16]);
        let format = Format { fsid, now: now(), cookie_key, root_mode: 0o755, root_uid: 0, root_gid: 0 };
        Intents::load(Arc::new(Namespace::format(engine, format).await.unwrap())).unwrap()
    }

    #[tokio::test]
    async fn a_size_measured_before_a_failed_write_is_not_final() {
        let dir = tempfile::tempdir().unwrap();
        let (intents, file) = (intents(dir.path()).await, FileId(9));
        intents.made(file, None);
        let writing = intents.writing(file).await.unwrap();
        let begun = intents.last_failure(file);
        drop(writing);
        intents.covered(file);
        intents.measured(file, begun, || false);
        assert!(intents.has_lost_writers(file), "an iod may have been measured before the write arrived");
        intents.measured(file, intents.last_failure(file), || false);
        assert!(!intents.has_lost_writers(file) && intents.unreported().is_empty());
    }

    #[tokio::test]
    async fn the_size_after_an_abandoned_layout_is_measured_despite_reports_of_other_clients() {
        let dir = tempfile::tempdir().unwrap();
        let (intents, file) = (intents(dir.path()).await, FileId(9));
        intents.made(file, None);
        intents.writing(file).await.unwrap().done();
        intents.reported(file, || true);
        assert!(intents.is_unreported(file), "another client may write");
        let early = intents.last_failure(file);
        intents.abandoned(file, false);
        intents.reported(file, || false);
        intents.measured(file, early, || false);
        assert!(intents.has_lost_writers(file), "the iods were measured before the last write");
        // A failed write of another file does not invalidate the size that the iods report for this file.
        let begun = intents.last_failure(file);
        intents.made(FileId(10), None);
        intents.abandoned(FileId(10), false);
        // `|| true`: another client holds a write layout, and continues to write and to report its writes.
        intents.measured(file, begun, || true);
        assert!(!intents.has_lost_writers(file) && intents.is_unreported(file));
        intents.reported(file, || false);
        assert!(!intents.is_unreported(file));
        // `forget` removes the intent and the failure number of the file. So a query for the file size that began
        // before `forget` does not complete an intent that is stored after `forget`.
        intents.abandoned(file, false);
        let begun = intents.last_failure(file);
        intents.measured(file, begun, || false);
        intents.forget().await.unwrap();
        intents.made(file, None);
        intents.abandoned(file, false);
        intents.measured(file, begun, || false);
        assert!(intents.has_lost_writers(file));
    }

    #[tokio::test]
    async fn a_later_fence_covers_a_revoked_layout() {
        let dir = tempfile::tempdir().unwrap();
        let (intents, file) = (intents(dir.path()).await, FileId(9));
        let measure = || intents.measured(file, intents.last_failure(file), || false);
        intents.made(file, None);
        intents.abandoned(file, true);
        measure();
        assert!(intents.is_unfenced(file), "writes of the client may be in progress");
        let before = intents.last_failure(file);
        intents.record_fence(file, Generation(5));
        drop(intents.writing(file).await.unwrap());
        intents.covered_since(file, before);
        assert!(intents.is_unfenced(file), "that write may be of the new generation");
        intents.covered_since(file, intents.last_failure(file));
        measure();
        assert!(intents.has_lost_writers(file) && !intents.is_unfenced(file));
        intents.finish_fence(file, Generation(5));
        measure();
        assert!(!intents.has_lost_writers(file));
        // A file with an intent from an earlier start of the mgr has no failure number, because failure numbers are
        // only in memory.
        let earlier = FileId(10);
        intents.inner().written.insert(earlier, Written::Unfenced);
        intents.covered_since(earlier, intents.last_failure(earlier));
        assert!(intents.is_unfenced(earlier));
    }

    #[tokio::test]
    async fn an_intent_of_an_unsynced_create_is_flushed_before_the_first_write() {
        let dir = tempfile::tempdir().unwrap();
        let (intents, root) = (intents(dir.path()).await, types::Cred::root());
        let flushes = || intents.namespace.status().counters.flushes;
        let how = meta::CreateMode::Guarded(types::SetAttrs { mode: Some(0o644), ..Default::default() });
        let make = async |name: &str, durable: bool| {
            let (namespace, name) = (&intents.namespace, name.as_bytes());
            let made = match durable {
                true => namespace.create(&root, now(), FileId::ROOT, name, &how, None).await,
                false => namespace.create_soon(&root, now(), FileId::ROOT, name, &how, None).await,
            };
            let file = made.unwrap().file.attrs.id;
            intents.made(file, (!durable).then_some(1));
            file
        };
        let file = make("durable", true).await;
        let before = flushes();
        intents.writing(file).await.unwrap().done();
        assert_eq!(flushes(), before, "the intent was recorded with the create");
        let file = make("soon", false).await;
        assert_eq!(flushes(), before);
        intents.writing(file).await.unwrap().done();
        intents.writing(file).await.unwrap().done();
        assert_eq!(flushes(), before + 1);
        let found = make("found", false).await;
        intents.found(found, 1).await.unwrap();
        assert_eq!(flushes(), before + 1, "the creating client already knows the intent");
        intents.found(found, 2).await.unwrap();
        intents.found(found, 3).await.unwrap();
        assert_eq!(flushes(), before + 2);
        make("in the way", false).await;
        for _ in 0..2 {
            intents.settle_name(FileId::ROOT, b"in the way").await.unwrap();
            assert_eq!(flushes(), before + 3);
        }
        intents.reported(file, || false);
        let reported = make("reported", false).await;
        intents.reported(reported, || false);
        intents.forget().await.unwrap();
        assert_eq!((intents.counts().written, intents.inner().unsynced.len()), (3, 2));
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
        let intents = Intents::load(Arc::new(made.await.unwrap())).unwrap();
        let (root, how) = (types::Cred::root(), meta::CreateMode::Guarded(types::SetAttrs::default()));
        let mut files = Vec::new();
        for n in 0..32 {
            let name = format!("{n}");
            let mut made = pin!(intents.namespace.create_soon(&root, now(), FileId::ROOT, name.as_bytes(), &how, None));
            let made = loop {
                match poll!(made.as_mut()) {
                    Poll::Ready(made) => break made.unwrap(),
                    Poll::Pending => stepper.step(Duration::ZERO),
                };
            };
            intents.made(made.file.attrs.id, Some(1));
            files.push(made.file.attrs.id);
        }
        let before = intents.namespace.status().counters.flushes;
        let mut all = pin!(join_all(files.iter().map(|file| intents.writing(*file))));
        assert!(poll!(all.as_mut()).is_pending());
        stepper.step(Duration::ZERO);
        let Poll::Ready(all) = poll!(all.as_mut()) else { panic!("one waits for another") };
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(intents.namespace.status().counters.flushes, before + 1);
    }

    #[tokio::test]
    async fn a_size_measured_before_all_iods_are_fenced_is_not_final() {
        let dir = tempfile::tempdir().unwrap();
        let (intents, file) = (intents(dir.path()).await, FileId(9));
        let measure = || intents.measured(file, intents.last_failure(file), || false);
        intents.made(file, None);
        drop(intents.writing(file).await.unwrap());
        measure();
        assert!(intents.is_unfenced(file), "the write may still be in progress");
        intents.record_fence(file, Generation(5));
        intents.covered(file);
        measure();
        assert!(intents.has_lost_writers(file) && !intents.is_unfenced(file), "an iod may still execute the write");
        // Before the first fence is done, another write fails. This write carries the new generation, so this fence
        // does not make the iods refuse the write.
        drop(intents.writing(file).await.unwrap());
        intents.finish_fence(file, Generation(5));
        measure();
        assert!(intents.is_unfenced(file), "the fence is older than the write");
        intents.covered(file);
        intents.unknown(file);
        measure();
        assert!(!intents.has_lost_writers(file) && intents.unreported().is_empty());
        // The client has reported all its writes, but an abandoned write of this client is still in flight.
        intents.writing(file).await.unwrap().done();
        intents.record_fence(file, Generation(6));
        intents.reported(file, || false);
        assert!(intents.has_lost_writers(file) && !intents.is_unfenced(file));
    }
}
