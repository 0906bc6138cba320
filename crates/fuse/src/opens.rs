//! The table of open files and directories, by the handle that the kernel received.

use crate::coherence::mmap::MappedPages;
use crate::coherence::recent_attrs::Mark;
use crate::coherence::writers::Writing;
use crate::lock_owners::LockOwners;
use crate::{Errno, abi};
use client::{Entry, File, ReadDir};
use rustix::fs::OFlags;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;
use types::ByteRange;

const EBADF: Errno = Errno(9);

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// Whether the kernel reads the file into its page cache.
    pub(crate) cached: bool,
    /// The guard of the kernel's writes to the page cache, if the kernel writes there.
    writing: Option<Writing>,
    /// Writes through this open that are not durable yet. The creation of the file counts as one.
    written: Written,
    /// The state of the file's pages. The kernel reads and writes them back through any open of the file.
    pages: Arc<FilePages>,
    /// Whether the program opened the file for writing.
    writes: bool,
    /// Whether the program opened the file with `O_DSYNC` or `O_SYNC`: a write is durable when it returns.
    synchronous: bool,
    /// Whether the setuid and setgid bits were seen to be clear.
    pub(crate) plain: AtomicBool,
    /// The lock owners that asked for locks through this open.
    lock_owners: Mutex<Vec<u64>>,
    /// The file opened once more, for flock(2) locks that the mode of this open does not allow.
    pub(crate) for_locks: OnceCell<File>,
}

/// Tracks whether all writes through an open file are durable. Processes that inherited a descriptor write, sync and
/// close it at the same time. While one of them still makes a write durable, the write is also due for the others.
pub(crate) struct Written {
    /// Number of writes so far.
    made: AtomicU64,
    /// Number of writes that are durable for sure.
    durable: AtomicU64,
}

/// What was due to be made durable at some moment: writes through an open file itself, and writes of pages.
#[derive(Clone, Copy)]
pub(crate) struct Due(Option<u64>, Option<u64>);

/// A write, which counts when it ends, in whatever way. A sync that began before that need not have seen all of the
/// write.
pub(crate) struct Write<'a>(&'a Written);

impl Written {
    fn new(unsynced: bool) -> Self {
        Written { made: AtomicU64::new(unsynced.into()), durable: AtomicU64::new(0) }
    }

    /// Begins a write.
    fn begin(&self) -> Write<'_> {
        Write(self)
    }

    /// Returns what is due to be made durable, or nothing if everything is durable.
    fn due(&self) -> Option<u64> {
        let made = self.made.load(SeqCst);
        (made > self.durable.load(SeqCst)).then_some(made)
    }

    /// Records that what was due is durable.
    fn made_durable(&self, due: u64) {
        self.durable.fetch_max(due, SeqCst);
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        self.0.made.fetch_add(1, SeqCst);
    }
}

/// The state of the pages of an open file.
pub(crate) struct FilePages {
    /// Written-back pages that are not durable yet. They are due for each open that may have written to them.
    written: Written,
    /// Mappings through opens that bypass the page cache otherwise.
    pub(crate) mapped: MappedPages,
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

/// A request of the kernel for the attributes of an open file, until this is dropped.
pub(crate) struct Asks(Arc<FilePages>);

impl Drop for Asks {
    fn drop(&mut self) {
        let mut forgetting = self.0.forgetting();
        forgetting.asking -= 1;
        forgetting.answered = Some(Instant::now());
    }
}

/// A request that the kernel forget pages, until this is dropped.
pub(crate) struct Forgets(Arc<FilePages>);

impl Drop for Forgets {
    fn drop(&mut self) {
        let mut forgetting = self.0.forgetting();
        forgetting.running -= 1;
        forgetting.last = Some(Instant::now());
    }
}

impl FilePages {
    fn forgetting(&self) -> std::sync::MutexGuard<'_, Forgetting> {
        self.forgetting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pages of a shared file that the kernel keeps for a moment.
#[derive(Default)]
struct Lingering {
    /// Whether a task waits that will make the kernel forget the pages that it reads now.
    expected: AtomicBool,
    /// How many such tasks have not ended.
    left: AtomicU64,
}

/// A task that will make the kernel forget pages of a shared file, until this is dropped.
pub(crate) struct Lingers(Arc<FilePages>);

impl Lingers {
    /// Declares that the task does not cover pages that the kernel reads from now on.
    pub(crate) fn is_over(&self) {
        self.0.lingering.expected.store(false, SeqCst);
    }
}

impl Drop for Lingers {
    fn drop(&mut self) {
        self.0.lingering.left.fetch_sub(1, SeqCst);
    }
}

/// The page state of open files, by file number.
#[derive(Default)]
struct Pages(Mutex<HashMap<u64, PagesOf>>);

/// The page state of an open file.
struct PagesOf {
    /// How many opens there are, and how many of them use the page cache.
    opens: usize,
    cached: usize,
    known: Arc<FilePages>,
}

impl Pages {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<u64, PagesOf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records one more open of a file, through the page cache or not, under this delegation.
    fn opened(&self, number: u64, (cached, delegation): (bool, Option<u64>)) -> Arc<FilePages> {
        let mut table = self.table();
        let (written, mapped, got_under) = (Written::new(false), MappedPages::default(), AtomicU64::new(0));
        let (lingering, forgetting) = (Lingering::default(), Mutex::default());
        let known = || Arc::new(FilePages { written, mapped, got_under, lingering, forgetting });
        let none = || PagesOf { opens: 0, cached: 0, known: known() };
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
    fn are_read(&self, number: u64) -> bool {
        self.table().get(&number).is_some_and(|pages| pages.cached > 0)
    }
}

/// An open directory.
#[derive(Default)]
pub(crate) struct OpenDir {
    pub(crate) reading: tokio::sync::Mutex<Reading>,
}

/// The position in a directory listing.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) pages: Option<ReadDir>,
    /// Entries that were read and not yet returned to the kernel.
    pub(crate) ahead: VecDeque<Entry>,
    /// The offset after which the first entry of `ahead` follows.
    pub(crate) at: u64,
    /// A moment before the mount requested the entries of `ahead`.
    pub(crate) asked: Option<Mark>,
    /// Whether OPENDIR has read the first page, and the kernel has not requested it yet.
    pub(crate) unasked: bool,
}

/// All open files and directories.
#[derive(Default)]
pub(crate) struct Opens {
    next: AtomicU64,
    files: RwLock<HashMap<u64, Arc<OpenFile>>>,
    pages: Pages,
    dirs: RwLock<HashMap<u64, Arc<OpenDir>>>,
    lockers: LockOwners,
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFile {
    /// Begins a write through this open, of the kernel's pages or of a program's own bytes.
    pub(crate) fn begin_write(&self, of_pages: bool) -> Write<'_> {
        if of_pages { self.pages.written.begin() } else { self.written.begin() }
    }

    /// Returns whether the program opened the file with `O_DSYNC` or `O_SYNC`.
    pub(crate) fn is_synchronous(&self) -> bool {
        self.synchronous
    }

    fn lock_owners(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.lock_owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what a close or sync of this open has to make durable, or nothing if everything is durable.
    pub(crate) fn due(&self) -> Option<Due> {
        let pages = if self.writes { self.pages.written.due() } else { None };
        let own = self.written.due();
        (own.is_some() || pages.is_some()).then_some(Due(own, pages))
    }

    /// Records that what was due is durable.
    pub(crate) fn made_durable(&self, Due(own, pages): Due) {
        own.inspect(|due| self.written.made_durable(*due));
        pages.inspect(|due| self.pages.written.made_durable(*due));
    }

    /// Returns the mappings of the file's pages.
    pub(crate) fn mapped(&self) -> &MappedPages {
        &self.pages.mapped
    }

    /// Counts this open, with 1 or -1, among the opens that write past the page cache.
    fn is_listed(&self, more: isize) {
        if self.writes && !self.cached {
            self.pages.mapped.add_writers(more);
        }
    }

    /// Returns whether the kernel has read all its pages under this delegation ([`File::delegation`]).
    pub(crate) fn are_pages_of(&self, delegation: u64) -> bool {
        self.pages.got_under.load(SeqCst) == delegation
    }

    /// Records that the kernel reads pages of the shared file. Returns `None` if an earlier task will make the kernel
    /// forget them.
    pub(crate) fn pages_linger(&self) -> Option<Lingers> {
        if self.pages.lingering.expected.swap(true, SeqCst) {
            return None;
        }
        self.pages.lingering.left.fetch_add(1, SeqCst);
        Some(Lingers(self.pages.clone()))
    }

    /// Records that the kernel has forgotten the pages from before this delegation.
    pub(crate) fn pages_begin_under(&self, delegation: u64) {
        self.pages.got_under.fetch_max(delegation, SeqCst);
    }

    /// Closes the file; see [`File::leave`].
    pub(crate) async fn leave(self) -> Result<(), Errno> {
        if let Some(file) = self.for_locks.into_inner() {
            Box::pin(file.leave()).await?;
        }
        Ok(self.file.leave().await?)
    }
}

impl Opens {
    /// Adds a file that was opened with these flags, and that the kernel uses in this way ([`crate::abi::fopen`]).
    /// Returns its handle.
    pub(crate) fn add_file(&self, file: File, flags: u32, (how, writing): (u32, Option<Writing>)) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        let plain = AtomicBool::new(file.attrs().mode & 0o6000 == 0);
        let unsynced = file.is_unsynced();
        let cached = how & abi::fopen::DIRECT_IO == 0;
        let pages = self.pages.opened(file.node().id.0, (cached, file.delegation()));
        let flags = OFlags::from_bits_retain(flags);
        let open = OpenFile {
            file,
            cached,
            writing,
            written: Written::new(unsynced),
            pages,
            writes: flags.intersects(OFlags::WRONLY | OFlags::RDWR),
            synchronous: flags.contains(OFlags::DSYNC),
            plain,
            lock_owners: Mutex::default(),
            for_locks: OnceCell::new(),
        };
        open.is_listed(1);
        write(&self.files).insert(handle, Arc::new(open));
        handle
    }

    /// Returns the file with this handle.
    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        read(&self.files).get(&handle).cloned().ok_or(EBADF)
    }

    /// Returns the lock owners.
    pub(crate) fn lockers(&self) -> &LockOwners {
        &self.lockers
    }

    /// Records that `owner`, a process with this number, asks for a lock of the file through this open, perhaps with
    /// flock(2).
    pub(crate) async fn asks_lock(&self, open: &OpenFile, owner: u64, by: (u32, u64, bool)) {
        {
            let mut owners = open.lock_owners();
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        self.lockers.asks(open.file.node().id.0, owner, by).await;
    }

    /// Releases all locks of `owner` on the file.
    pub(crate) async fn unlock_all(&self, file: &File, owner: u64) -> Result<(), Errno> {
        if self.lockers.take(file.node().id.0, owner) {
            // Boxed, because most owners that close have locked nothing.
            Box::pin(file.unlock(owner, ByteRange::ALL)).await?;
        }
        Ok(())
    }

    /// Records that a process closed a descriptor of this open.
    pub(crate) fn flushed(&self, handle: u64, open: &OpenFile, pid: u32) {
        let owners = open.lock_owners();
        if !owners.is_empty() {
            self.lockers.flushed(open.file.node().id.0, &owners, handle, pid);
        }
    }

    /// Releases the locks that only this open held, after its last descriptor is closed.
    pub(crate) async fn unlock_open(&self, handle: u64, open: &OpenFile) -> Result<(), Errno> {
        let (number, owners) = (open.file.node().id.0, std::mem::take(&mut *open.lock_owners()));
        if owners.is_empty() {
            return Ok(());
        }
        let owners = self.lockers.released(number, &owners, handle);
        let mut outcome = Ok(());
        for owner in &owners {
            outcome = outcome.and(Box::pin(open.file.unlock(*owner, ByteRange::ALL)).await);
        }
        self.lockers.ended(number, &owners);
        Ok(outcome?)
    }

    /// Records that the file with this number may have setuid and setgid bits from now on.
    pub(crate) fn doubt_bits(&self, number: u64) {
        for open in read(&self.files).values().filter(|open| open.file.node().id.0 == number) {
            open.plain.store(false, Relaxed);
        }
    }

    /// Returns an open that writes the file with this number to the page cache.
    pub(crate) fn writing(&self, number: u64) -> Option<Arc<OpenFile>> {
        let fits = |open: &&Arc<OpenFile>| open.writing.is_some() && open.file.node().id.0 == number;
        read(&self.files).values().find(fits).cloned()
    }

    /// Records that the kernel asks for the attributes of the file with this number. Returns `None` if the file is not
    /// open.
    pub(crate) fn attributes_are_asked(&self, number: u64) -> Option<Asks> {
        let known = self.pages.known(number)?;
        known.forgetting().asking += 1;
        Some(Asks(known))
    }

    /// Returns whether the kernel waits for the attributes of the file with this number, or received them less than
    /// `within` ago.
    pub(crate) fn are_attributes_asked(&self, number: u64, within: Duration) -> bool {
        self.pages.known(number).is_some_and(|known| {
            let forgetting = known.forgetting();
            forgetting.asking > 0 || forgetting.answered.is_some_and(|answered| answered.elapsed() < within)
        })
    }

    /// Records that the kernel is about to be asked to forget pages of the file with this number, if it is open.
    pub(crate) fn pages_are_forgotten(&self, number: u64) -> Option<Forgets> {
        let known = self.pages.known(number)?;
        known.forgetting().running += 1;
        Some(Forgets(known))
    }

    /// Returns whether the kernel has to forget pages of the file with this number, or had to less than `within` ago.
    pub(crate) fn were_pages_forgotten(&self, number: u64, within: Duration) -> bool {
        self.pages.known(number).is_some_and(|known| {
            let forgetting = known.forgetting();
            forgetting.running > 0 || forgetting.last.is_some_and(|last| last.elapsed() < within)
        })
    }

    /// Returns whether the kernel has pages of the file with this number though other clients use it.
    pub(crate) fn do_pages_linger(&self, number: u64) -> bool {
        self.pages.known(number).is_some_and(|known| known.lingering.left.load(SeqCst) > 0)
    }

    /// Returns whether the file with this number is open through the page cache.
    pub(crate) fn are_pages_read(&self, number: u64) -> bool {
        self.pages.are_read(number)
    }

    /// Removes a file from the table.
    pub(crate) fn take_file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        write(&self.files).remove(&handle).inspect(|open| self.is_taken(open)).ok_or(EBADF)
    }

    /// Removes all files from the table.
    pub(crate) fn take_files(&self) -> Vec<Arc<OpenFile>> {
        let taken = write(&self.files).drain().map(|(_, open)| open).collect::<Vec<_>>();
        taken.iter().for_each(|open| self.is_taken(open));
        taken
    }

    fn is_taken(&self, open: &OpenFile) {
        open.is_listed(-1);
        self.pages.closed(open.file.node().id.0, open.cached);
    }

    /// Records that the file with this number was changed other than by a write.
    pub(crate) fn changed_otherwise(&self, number: u64) {
        if let Some(pages) = self.pages.known(number) {
            pages.mapped.changed_otherwise();
        }
    }

    /// Returns whether any file is open.
    pub(crate) fn are_there(&self) -> bool {
        !read(&self.files).is_empty()
    }

    /// Returns whether any directory is open.
    pub(crate) fn are_there_dirs(&self) -> bool {
        !read(&self.dirs).is_empty()
    }

    /// Adds a directory with this reading position, and returns its handle.
    pub(crate) fn add_dir(&self, reading: Reading) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        write(&self.dirs).insert(handle, Arc::new(OpenDir { reading: tokio::sync::Mutex::new(reading) }));
        handle
    }

    /// Returns the directory with this handle.
    pub(crate) fn dir(&self, handle: u64) -> Result<Arc<OpenDir>, Errno> {
        read(&self.dirs).get(&handle).cloned().ok_or(EBADF)
    }

    /// Removes a directory from the table.
    pub(crate) fn take_dir(&self, handle: u64) {
        write(&self.dirs).remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_due_until_it_is_durable() {
        let written = Written::new(true);
        let first = written.due().expect("the file was made");
        assert_eq!(written.due(), Some(first), "whoever else asks waits for the same");
        written.made_durable(first);
        assert_eq!(written.due(), None);
        assert_eq!(Written::new(false).due(), None);
    }

    #[test]
    fn what_was_written_back_is_due_for_all_opens_of_the_file() {
        let pages = Pages::default();
        let [older, newer, other] = [7, 7, 8].map(|number| pages.opened(number, (number == 8, None)));
        drop(newer.written.begin());
        let due = older.written.due().expect("the kernel took the other open for these pages");
        assert_eq!(other.written.due(), None);
        assert!(pages.are_read(8) && !pages.are_read(7));
        older.written.made_durable(due);
        assert_eq!(newer.written.due(), None);
        pages.closed(7, false);
        drop(newer.written.begin());
        assert!(pages.opened(7, (false, None)).written.due().is_some(), "it was open all the time");
        pages.closed(7, false);
        pages.closed(7, false);
        assert_eq!(pages.opened(7, (false, None)).written.due(), None);
    }

    #[test]
    fn a_write_is_due_when_it_ended_after_a_sync_began() {
        let written = Written::new(false);
        drop(written.begin());
        let (due, slow) = (written.due().unwrap(), written.begin());
        drop(slow);
        written.made_durable(due);
        let later = written.due().expect("the sync need not have seen the slow write");
        written.made_durable(later);
        // A sync that began earlier and ends last takes nothing back.
        written.made_durable(due);
        assert_eq!(written.due(), None);
    }
}
