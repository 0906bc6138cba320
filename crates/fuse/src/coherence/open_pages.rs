//! The pages that the kernel may have of open files: which opens use the page cache, and which pages the kernel has to
//! forget.

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

/// The page state of an open file.
struct PagesOf {
    /// How many opens there are, and how many of them use the page cache.
    opens: usize,
    cached: usize,
    known: Arc<FilePages>,
}

/// The state of the pages of an open file.
struct FilePages {
    /// Written-back pages that are not durable yet. They are due for each open that may have written to them.
    unsynced: Unsynced,
    /// Mappings through opens that bypass the page cache otherwise.
    mapped: MappedPages,
    /// The number of the delegation under which the kernel has read all the pages that it has.
    got_under: AtomicU64,
    lingering: Lingering,
    forgetting: Mutex<Forgetting>,
}

/// Requests to forget pages, and the kernel's requests for attributes: the kernel drops an answer if it has to forget
/// pages meanwhile.
#[derive(Default)]
struct Forgetting {
    /// How many requests to forget pages are running.
    running: u32,
    /// When the last of them ended.
    last: Option<Instant>,
    /// How many requests for attributes are not answered yet.
    asking: u32,
    /// When the last of them was answered.
    answered: Option<Instant>,
}

/// Pages of a shared file that the kernel keeps for a moment.
#[derive(Default)]
struct Lingering {
    /// Whether a task waits that will make the kernel forget the pages that it reads now.
    expected: AtomicBool,
    /// How many such tasks have not ended.
    left: AtomicU64,
}

/// How an open file uses the page cache.
pub(crate) struct PageUse {
    table: Arc<OpenPages>,
    number: u64,
    /// Whether the kernel reads the file into its page cache.
    cached: bool,
    /// Whether the program opened the file for writing.
    writes: bool,
    /// The guard of the kernel's writes to the page cache, if the kernel writes there.
    writing: Option<Writing>,
    /// The state of the file's pages. The kernel reads and writes them back through any open of the file.
    pages: Arc<FilePages>,
}

/// A GETATTR of the kernel for an open file, in progress until this is dropped.
pub(crate) struct Asks(Arc<FilePages>);

impl Drop for Asks {
    fn drop(&mut self) {
        let mut forgetting = self.0.forgetting();
        forgetting.asking -= 1;
        forgetting.answered = Some(Instant::now());
    }
}

/// A request that the kernel forget pages, until this is dropped.
pub(super) struct Forgets(Arc<FilePages>);

impl Drop for Forgets {
    fn drop(&mut self) {
        let mut forgetting = self.0.forgetting();
        forgetting.running -= 1;
        forgetting.last = Some(Instant::now());
    }
}

/// A task that will make the kernel forget pages of a shared file, until this is dropped.
pub(super) struct Lingers(Arc<FilePages>);

impl Lingers {
    /// Declares that the task does not cover pages that the kernel reads from now on.
    pub(super) fn is_over(&self) {
        self.0.lingering.expected.store(false, SeqCst);
    }
}

impl Drop for Lingers {
    fn drop(&mut self) {
        self.0.lingering.left.fetch_sub(1, SeqCst);
    }
}

impl FilePages {
    fn new() -> Self {
        FilePages {
            unsynced: Unsynced::new(false),
            mapped: MappedPages::default(),
            got_under: AtomicU64::new(0),
            lingering: Lingering::default(),
            forgetting: Mutex::default(),
        }
    }

    fn forgetting(&self) -> MutexGuard<'_, Forgetting> {
        self.forgetting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageUse {
    /// Records an open of a file with these flags of open(2), through the page cache or not.
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

    /// Records that the open has ended. Requests that hold it may still run.
    pub(crate) fn end(&self) {
        self.count_writer(-1);
        self.table.closed(self.number, self.cached);
    }

    /// Counts this open, with 1 or -1, among the opens that write past the page cache.
    fn count_writer(&self, more: isize) {
        if self.writes && !self.cached {
            self.pages.mapped.add_writers(more);
        }
    }

    /// Returns whether the kernel reads the file into its page cache.
    pub(crate) fn is_cached(&self) -> bool {
        self.cached
    }

    /// Returns whether the kernel writes the file to its page cache through this open.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Begins a write of the kernel's pages to the servers.
    pub(crate) fn begin_write_back(&self) -> Write<'_> {
        self.pages.unsynced.begin()
    }

    /// Returns the writes of pages that a close or sync of this open must make durable, if there are any.
    pub(crate) fn due(&self) -> Option<u64> {
        if self.writes { self.pages.unsynced.due() } else { None }
    }

    /// Records that these writes of pages are durable.
    pub(crate) fn made_durable(&self, due: u64) {
        self.pages.unsynced.made_durable(due);
    }

    /// Returns the mappings of the file's pages.
    pub(super) fn mapped(&self) -> &MappedPages {
        &self.pages.mapped
    }

    /// Returns whether the kernel has read all its pages under this delegation ([`File::delegation`]).
    pub(super) fn are_pages_of(&self, delegation: u64) -> bool {
        self.pages.got_under.load(SeqCst) == delegation
    }

    /// Records that the kernel has forgotten the pages from before this delegation.
    pub(super) fn pages_begin_under(&self, delegation: u64) {
        self.pages.got_under.fetch_max(delegation, SeqCst);
    }

    /// Records that the kernel reads pages of the shared file. Returns `None` if an earlier task will make the kernel
    /// forget them.
    pub(super) fn pages_linger(&self) -> Option<Lingers> {
        if self.pages.lingering.expected.swap(true, SeqCst) {
            return None;
        }
        self.pages.lingering.left.fetch_add(1, SeqCst);
        Some(Lingers(self.pages.clone()))
    }
}

impl OpenPages {
    fn table(&self) -> MutexGuard<'_, HashMap<u64, PagesOf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records one more open of a file, through the page cache or not, under this delegation.
    fn opened(&self, number: u64, (cached, delegation): (bool, Option<u64>)) -> Arc<FilePages> {
        let mut table = self.table();
        let none = || PagesOf { opens: 0, cached: 0, known: Arc::new(FilePages::new()) };
        let pages = table.entry(number).or_insert_with(none);
        pages.opens += 1;
        if cached && pages.cached == 0 {
            // The kernel keeps pages only if they belong to the present version of the file.
            pages.known.got_under.store(delegation.unwrap_or(0), SeqCst);
        }
        pages.cached += usize::from(cached);
        pages.known.clone()
    }

    /// Records one open less.
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

    /// Returns the page state of a file, if it is open.
    fn known(&self, number: u64) -> Option<Arc<FilePages>> {
        self.table().get(&number).map(|pages| pages.known.clone())
    }

    /// Returns whether a file is open through the page cache.
    pub(super) fn are_read(&self, number: u64) -> bool {
        self.table().get(&number).is_some_and(|pages| pages.cached > 0)
    }

    /// Records that the kernel asks for the attributes of a file. Returns `None` if the file is not open.
    pub(super) fn attributes_are_asked(&self, number: u64) -> Option<Asks> {
        let known = self.known(number)?;
        known.forgetting().asking += 1;
        Some(Asks(known))
    }

    /// Returns whether the kernel waits for the attributes of a file, or received them less than `within` ago.
    pub(super) fn are_attributes_asked(&self, number: u64, within: Duration) -> bool {
        self.known(number).is_some_and(|known| {
            let forgetting = known.forgetting();
            forgetting.asking > 0 || forgetting.answered.is_some_and(|answered| answered.elapsed() < within)
        })
    }

    /// Records that the kernel is about to be asked to forget pages of a file, if the file is open.
    pub(super) fn are_being_forgotten(&self, number: u64) -> Option<Forgets> {
        let known = self.known(number)?;
        known.forgetting().running += 1;
        Some(Forgets(known))
    }

    /// Returns whether the kernel has to forget pages of a file, or had to less than `within` ago.
    pub(super) fn were_forgotten(&self, number: u64, within: Duration) -> bool {
        self.known(number).is_some_and(|known| {
            let forgetting = known.forgetting();
            forgetting.running > 0 || forgetting.last.is_some_and(|last| last.elapsed() < within)
        })
    }

    /// Returns whether the kernel has pages of a file though other clients use the file.
    pub(super) fn do_linger(&self, number: u64) -> bool {
        self.known(number).is_some_and(|known| known.lingering.left.load(SeqCst) > 0)
    }

    /// Records that a file was changed other than by a write. The kernel changes its pages likewise.
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
