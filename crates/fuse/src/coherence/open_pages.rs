//! Cached pages of open files: which opens use the page cache, and which pages the kernel has to drop.

use crate::coherence::mmap::MappedPages;
use crate::coherence::writers::Writing;
use crate::unsynced::{Unsynced, Write};
use client::File;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The page state of open files, by file number.
#[derive(Default)]
pub(super) struct OpenPages(Mutex<HashMap<u64, PagesOf>>);

/// The number of opens and the page state of an open file.
struct PagesOf {
    /// Number of opens, and number of opens that use the page cache.
    opens: usize,
    cached: usize,
    known: Arc<FilePages>,
}

/// The state of the cached pages of a file, which all its opens share.
struct FilePages {
    /// Written-back pages that are not durable yet. A sync or close of each open that may have written to these pages
    /// makes them durable.
    unsynced: Unsynced,
    /// Keeps memory mappings of the file coherent with direct I/O (`mmap.rs`).
    mapped: MappedPages,
    /// The number of the delegation under which the kernel has read all its cached pages of the file.
    read_under: AtomicU64,
    shared_pages: SharedPages,
    invalidations: Mutex<Invalidations>,
}

/// Requests of the mount to drop pages, and GETATTR requests of the kernel. The kernel discards the reply to a GETATTR
/// if it has to drop pages before it receives the reply.
#[derive(Default)]
struct Invalidations {
    /// Number of requests in progress by which the mount makes the kernel drop pages.
    running: u32,
    /// When the mount's last request to drop pages of the file ended.
    last: Option<Instant>,
    /// Number of GETATTR requests for the file that have no reply yet.
    getattrs: u32,
    /// When the mount last replied to a GETATTR for the file.
    answered: Option<Instant>,
}

/// Pages that the kernel may keep for a short time (`pages::SHARED_KEPT`) although other clients use the file.
#[derive(Default)]
struct SharedPages {
    /// Whether a waiting task will make the kernel drop its pages, including pages that the kernel reads during the
    /// wait.
    expected: AtomicBool,
    /// Number of unfinished tasks that will make the kernel drop pages of the file.
    left: AtomicU64,
}

/// How one open of a file uses the page cache.
pub(crate) struct PageUse {
    table: Arc<OpenPages>,
    number: u64,
    /// Whether the kernel reads the file into its page cache through this open.
    cached: bool,
    /// Whether the program opened the file for writing.
    writes: bool,
    /// Keeps this open in the table of writers; `None` if this open does not write through the page cache.
    writing: Option<Writing>,
    /// The page state of the file. All opens share this state, because the kernel reads and writes back pages through
    /// any open.
    pages: Arc<FilePages>,
}

/// Guard of a GETATTR for an open file. Dropping the guard records that the mount has replied.
pub(crate) struct GetattrGuard(Arc<FilePages>);

impl Drop for GetattrGuard {
    fn drop(&mut self) {
        let mut invalidations = self.0.invalidations();
        invalidations.getattrs -= 1;
        invalidations.answered = Some(Instant::now());
    }
}

/// Guard of a request to the kernel to drop pages. Dropping the guard records that the request has ended.
pub(super) struct InvalidationGuard(Arc<FilePages>);

impl Drop for InvalidationGuard {
    fn drop(&mut self) {
        let mut invalidations = self.0.invalidations();
        invalidations.running -= 1;
        invalidations.last = Some(Instant::now());
    }
}

/// Guard of a task that makes the kernel drop pages of a file that other clients use. Dropping the guard records that
/// the task has ended.
pub(super) struct SharedPagesGuard(Arc<FilePages>);

impl SharedPagesGuard {
    /// Records that the task now begins to drop pages. Pages that the kernel reads from now on need another task.
    pub(super) fn expire(&self) {
        self.0.shared_pages.expected.store(false, SeqCst);
    }
}

impl Drop for SharedPagesGuard {
    fn drop(&mut self) {
        self.0.shared_pages.left.fetch_sub(1, SeqCst);
    }
}

impl FilePages {
    fn new() -> Self {
        FilePages {
            unsynced: Unsynced::new(false),
            mapped: MappedPages::default(),
            read_under: AtomicU64::new(0),
            shared_pages: SharedPages::default(),
            invalidations: Mutex::default(),
        }
    }

    fn invalidations(&self) -> MutexGuard<'_, Invalidations> {
        self.invalidations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageUse {
    /// Records an open of a file with the given flags of open(2). `cached`: the open uses the page cache.
    pub(super) fn begin(
        table: &Arc<OpenPages>,
        file: &File,
        flags: u32,
        (cached, writing): (bool, Option<Writing>),
    ) -> PageUse {
        let number = file.node().id.0;
        let pages = table.opened(number, (cached, file.delegation()));
        let writes = OFlags::from_bits_retain(flags).intersects(OFlags::WRONLY | OFlags::RDWR);
        let page_use = PageUse { table: table.clone(), number, cached, writes, writing, pages };
        page_use.count_writer(1);
        page_use
    }

    /// Records that this open of the file has ended. Requests that use the open may still run.
    pub(crate) fn end(&self) {
        self.count_writer(-1);
        self.table.closed(self.number, self.cached);
    }

    /// Adds 1 or -1 to the number of opens for writing that bypass the page cache, if this open is such an open.
    fn count_writer(&self, more: isize) {
        if self.writes && !self.cached {
            self.pages.mapped.add_writers(more);
        }
    }

    /// Returns whether the kernel reads the file into its page cache through this open.
    pub(crate) fn is_cached(&self) -> bool {
        self.cached
    }

    /// Returns whether the kernel writes the file to its page cache through this open.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Begins a write-back of dirty pages to the servers.
    pub(crate) fn begin_write_back(&self) -> Write<'_> {
        self.pages.unsynced.begin()
    }

    /// Returns the number of write-backs that a close or sync of this open must make durable, or `None` if all are
    /// durable.
    pub(crate) fn due(&self) -> Option<u64> {
        if self.writes { self.pages.unsynced.due() } else { None }
    }

    /// Records that the write-backs that [`PageUse::due`] returned are durable.
    pub(crate) fn made_durable(&self, due: u64) {
        self.pages.unsynced.made_durable(due);
    }

    /// Returns the state that keeps memory mappings of the file coherent with direct I/O.
    pub(super) fn mapped(&self) -> &MappedPages {
        &self.pages.mapped
    }

    /// Returns whether the kernel has read all its cached pages under the given delegation ([`File::delegation`]).
    pub(super) fn are_pages_of(&self, delegation: u64) -> bool {
        self.pages.read_under.load(SeqCst) == delegation
    }

    /// Records that the kernel has dropped the pages that the kernel read before the mount got the given delegation.
    pub(super) fn pages_begin_under(&self, delegation: u64) {
        self.pages.read_under.fetch_max(delegation, SeqCst);
    }

    /// Records that the kernel reads pages of a file that other clients use. Returns the guard of a task that has to
    /// make the kernel drop these pages, or `None` if an earlier task will do so.
    pub(super) fn begin_keeping(&self) -> Option<SharedPagesGuard> {
        if self.pages.shared_pages.expected.swap(true, SeqCst) {
            return None;
        }
        self.pages.shared_pages.left.fetch_add(1, SeqCst);
        Some(SharedPagesGuard(self.pages.clone()))
    }
}

impl OpenPages {
    fn table(&self) -> MutexGuard<'_, HashMap<u64, PagesOf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an open of a file. `cached`: the open uses the page cache. `delegation`: the file's delegation at the
    /// open.
    fn opened(&self, number: u64, (cached, delegation): (bool, Option<u64>)) -> Arc<FilePages> {
        let mut table = self.table();
        let none = || PagesOf { opens: 0, cached: 0, known: Arc::new(FilePages::new()) };
        let pages = table.entry(number).or_insert_with(none);
        pages.opens += 1;
        if cached && pages.cached == 0 {
            // At the first open that uses the page cache, the kernel keeps cached pages only if they belong to the
            // opened version of the file. So all kept pages are valid under the delegation of this open.
            pages.known.read_under.store(delegation.unwrap_or(0), SeqCst);
        }
        pages.cached += usize::from(cached);
        pages.known.clone()
    }

    /// Records that an open of a file has ended.
    fn closed(&self, number: u64, cached: bool) {
        let mut table = self.table();
        if let Some(pages) = table.get_mut(&number) {
            pages.opens -= 1;
            pages.cached -= usize::from(cached);
            if pages.opens == 0 {
                table.remove(&number);
            }
        }
    }

    /// Returns the page state of a file, or `None` if the file is not open.
    fn known(&self, number: u64) -> Option<Arc<FilePages>> {
        self.table().get(&number).map(|pages| pages.known.clone())
    }

    /// Returns whether any open of a file uses the page cache.
    pub(super) fn are_read(&self, number: u64) -> bool {
        self.table().get(&number).is_some_and(|pages| pages.cached > 0)
    }

    /// Records that the kernel requests the attributes of a file. Returns `None` if the file is not open.
    pub(super) fn begin_getattr(&self, number: u64) -> Option<GetattrGuard> {
        let known = self.known(number)?;
        known.invalidations().getattrs += 1;
        Some(GetattrGuard(known))
    }

    /// Returns whether a GETATTR of a file is in progress, or got its reply less than `within` ago.
    pub(super) fn has_recent_getattr(&self, number: u64, within: Duration) -> bool {
        self.known(number).is_some_and(|known| {
            let invalidations = known.invalidations();
            invalidations.getattrs > 0 || invalidations.answered.is_some_and(|answered| answered.elapsed() < within)
        })
    }

    /// Records that the mount is about to make the kernel drop pages of a file. Returns `None` if the file is not
    /// open.
    pub(super) fn begin_invalidation(&self, number: u64) -> Option<InvalidationGuard> {
        let known = self.known(number)?;
        known.invalidations().running += 1;
        Some(InvalidationGuard(known))
    }

    /// Returns whether the mount is making the kernel drop pages of a file, or did so less than `within` ago.
    pub(super) fn had_recent_invalidation(&self, number: u64, within: Duration) -> bool {
        self.known(number).is_some_and(|known| {
            let invalidations = known.invalidations();
            invalidations.running > 0 || invalidations.last.is_some_and(|last| last.elapsed() < within)
        })
    }

    /// Returns whether a task has yet to make the kernel drop pages of a file that other clients use.
    pub(super) fn keeps_shared_pages(&self, number: u64) -> bool {
        self.known(number).is_some_and(|known| known.shared_pages.left.load(SeqCst) > 0)
    }

    /// Records that a file was changed other than by a write. The kernel applies the same change to its pages.
    pub(super) fn changed_otherwise(&self, number: u64) {
        if let Some(known) = self.known(number) {
            known.mapped.changed_otherwise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_back_pages_are_due_for_every_open_of_the_file() {
        let pages = OpenPages::default();
        let [older, newer, other] = [7, 7, 8].map(|number| pages.opened(number, (number == 8, None)));
        drop(newer.unsynced.begin());
        let due = older.unsynced.due().expect("the kernel wrote these pages back through the other open");
        assert_eq!(other.unsynced.due(), None);
        assert!(pages.are_read(8) && !pages.are_read(7));
        older.unsynced.made_durable(due);
        assert_eq!(newer.unsynced.due(), None);
        pages.closed(7, false);
        drop(newer.unsynced.begin());
        assert!(pages.opened(7, (false, None)).unsynced.due().is_some(), "the file stayed open throughout");
        pages.closed(7, false);
        pages.closed(7, false);
        assert_eq!(pages.opened(7, (false, None)).unsynced.due(), None);
    }
}
