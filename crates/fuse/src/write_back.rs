//! Write-back: which files the kernel may write to its page cache and hand on later, and what is done when others want one of them.
//!
//! A file is written so when the mgr has given it to this mount alone (a write delegation), and else past the page cache. When somebody else
//! wants it, the kernel is made to write its pages back and forget them, before the delegation goes back. What is still open keeps using the
//! page cache, which cannot be helped; the file is *shared* then: the kernel asks for attributes before each read and write, as it is told that
//! they are good for no time, what it has is written back and forgotten before it is answered, and each write is written before it returns
//! ([`crate::sync_mount`]).

use crate::asking;
use crate::beliefs::{self, Beliefs};
use crate::calls;
use crate::fs::FileSystem;
use crate::mounting;
use crate::opens::OpenFile;
use crate::request::Header;
use crate::sync_mount::SyncMount;
use crate::twins::{self, Twins};
use crate::{Errno, abi};
use bytes::Bytes;
use client::{Access, File, Keeper, Segment};
use futures_util::future::BoxFuture;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};
use types::{Attrs, ByteRange, FileId, FileKind};

const EIO: Errno = Errno(5);

/// How long a request waits for the kernel to believe what is right. It is told from a thread of its own, which may have to wait for an inode
/// that is locked for this very request; the next one finds it done.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long a read or write of a shared file waits for that, before it fails.
const LONG: Duration = Duration::from_secs(20);
/// How long the kernel may take to make use of an answer, and how often such a time is waited for.
const QUIET: Duration = Duration::from_millis(1);
const QUIET_TRIES: usize = 20;
/// How long pages of a shared file are kept at most.
const SHARED_KEPT: Duration = Duration::from_millis(50);
/// How much of what may wait in the page caches of the machine may be this mount's, in percent. The kernel gives those of FUSE one, after which writers wait.
const DIRTY_PERCENT: u32 = 25;
/// Bytes of the twins of a file beyond which its pages are forgotten sooner.
const TWINS_MAX: u64 = 16 << 20;
/// How often it is asked whether a shared file can be had alone again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Corrections of files with the same number modulo this come one after the other.
const TURNS: usize = 64;

/// The part of a mount that writes back.
pub(crate) struct WriteBack {
    on: AtomicBool,
    pub(crate) beliefs: Beliefs,
    pub(crate) sync: SyncMount,
    writers: Arc<Writers>,
    turns: [tokio::sync::Mutex<()>; TURNS],
}

/// Files that are written to the page cache.
#[derive(Default)]
struct Writers(Mutex<HashMap<u64, Cached>>);

/// One of them.
#[derive(Default)]
struct Cached {
    /// How often it is open so.
    opens: usize,
    /// Others have it open, too.
    shared: bool,
    /// What the kernel has of it is not to be written any more.
    given_up: bool,
    /// Pages of it as the kernel got them, while it is shared.
    twins: Twins,
}

/// A file is open to be written to the page cache, until this is dropped.
pub(crate) struct Writing {
    writers: Arc<Writers>,
    number: u64,
}

/// A file that others have open, too, or are about to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotAlone;

/// Whether a file that is opened with these flags may be written.
fn writes(flags: u32) -> bool {
    OFlags::from_bits_retain(flags).intersects(OFlags::WRONLY | OFlags::RDWR)
}

impl Writers {
    fn table(&self) -> MutexGuard<'_, HashMap<u64, Cached>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut table = self.writers.table();
        if let Some(cached) = table.get_mut(&self.number) {
            cached.opens -= 1;
            if cached.opens == 0 {
                table.remove(&self.number);
            }
        }
    }
}

impl WriteBack {
    /// For a mount that writes back, or one that does not.
    pub(crate) fn new(on: bool) -> Self {
        let turns = std::array::from_fn(|_| tokio::sync::Mutex::default());
        WriteBack {
            on: AtomicBool::new(on),
            beliefs: Beliefs::default(),
            sync: SyncMount::default(),
            writers: Arc::default(),
            turns,
        }
    }

    /// Why a mount cannot write back.
    pub(crate) fn unavailable() -> Option<io::Error> {
        let why = "writing back needs root's right to open files by their numbers (CAP_DAC_READ_SEARCH)";
        (!beliefs::may()).then(|| io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// Whether the mount writes back.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// The kernel cannot.
    pub(crate) fn switch_off(&self) {
        self.on.store(false, Relaxed);
    }

    /// The mount is at this directory now.
    pub(crate) fn mounted_at(&self, dir: &Path) {
        self.beliefs.mounted_at(dir);
        if self.is_on() {
            self.sync.mounted_at(dir);
            let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
            let Some(device) = mounting::device_at(&mounts, dir) else { return };
            let limit = Path::new("/sys/class/bdi").join(device).join("max_ratio");
            if let Err(error) = std::fs::write(&limit, DIRTY_PERCENT.to_string()) {
                tracing::debug!(file = %limit.display(), "the kernel keeps as much as it likes: {error}");
            }
        }
    }

    /// Whether a file that is opened with these flags is to be had alone. Where the end of the file is that bytes are appended to, only the mgr
    /// knows.
    pub(crate) fn wants(&self, flags: u32) -> bool {
        self.is_on() && writes(flags) && !OFlags::from_bits_retain(flags).intersects(OFlags::APPEND | OFlags::DIRECT)
    }

    /// A file was opened with these flags, for the page cache; that it is written there begins, if it is.
    ///
    /// # Errors
    /// It has to be written past the page cache.
    pub(crate) fn begin(&self, number: u64, file: &File, flags: u32) -> Result<Option<Writing>, NotAlone> {
        if !self.is_on() || !writes(flags) {
            return Ok(None);
        }
        if !self.wants(flags) {
            return Err(NotAlone);
        }
        self.writers.table().entry(number).or_default().opens += 1;
        let writing = Writing { writers: self.writers.clone(), number };
        // Asked after that: whoever wants the file from here on finds it in the table.
        // The kernel reads what it fills up.
        if file.is_alone() && file.is_readable() { Ok(Some(writing)) } else { Err(NotAlone) }
    }

    /// Whether a file is written to the page cache, so that only the kernel knows its size.
    pub(crate) fn is_written(&self, number: u64) -> bool {
        self.writers.table().contains_key(&number)
    }

    /// Whether a file is written to the page cache though others have it open.
    pub(crate) fn is_shared(&self, number: u64) -> bool {
        self.is_on() && self.writers.table().get(&number).is_some_and(|cached| cached.shared)
    }

    /// Whether any file is written to the page cache though others have it open.
    fn is_any_shared(&self) -> bool {
        self.writers.table().values().any(|cached| cached.shared)
    }

    /// The kernel gets bytes of a file for its page cache; whether it has had so many that it should forget them.
    fn got(&self, number: u64, (offset, size): (u64, u32), data: &[Segment]) -> bool {
        let mut table = self.writers.table();
        let Some(cached) = table.get_mut(&number).filter(|cached| cached.shared) else { return false };
        let whole: Vec<u8> = data.iter().flat_map(|segment| segment_bytes(segment)).collect();
        cached.twins.got(offset, &whole);
        cached.twins.got_nothing(offset + whole.len() as u64, offset + u64::from(size));
        cached.twins.bytes() > TWINS_MAX
    }

    /// The kernel writes bytes back that it had in its page cache: those of them that programs have changed, as far as that has to be known, and how long
    /// the file has become by them, if it has.
    pub(crate) fn changed(&self, number: u64, offset: u64, data: &Bytes) -> (Vec<(u64, Bytes)>, Option<u64>) {
        let mut table = self.writers.table();
        let Some(cached) = table.get_mut(&number).filter(|cached| cached.shared) else {
            return (vec![(offset, data.clone())], None);
        };
        let twins::Changed { runs, end } = cached.twins.changed(offset, data);
        (runs.into_iter().map(|run| (offset + run.start as u64, data.slice(run))).collect(), end)
    }

    /// A thread is about to write these bytes of a file, as far as that is known, or has written them.
    pub(crate) fn thread_writes(&self, number: u64, thread: u32, range: Option<ByteRange>) {
        if let Some(cached) = self.writers.table().get_mut(&number).filter(|cached| cached.shared) {
            cached.twins.thread_writes(thread, range);
        }
    }

    /// Whether pages of a file may be written back: not once others have had it unawares.
    pub(crate) fn is_given_up(&self, number: u64) -> bool {
        self.writers.table().get(&number).is_some_and(|cached| cached.given_up)
    }

    fn set_given_up(&self, number: u64, to: bool) {
        if let Some(cached) = self.writers.table().get_mut(&number) {
            cached.given_up = to;
        }
    }

    /// The kernel knows nothing of a file but that it is so long.
    fn reaches(&self, number: u64, end: u64) {
        if let Some(cached) = self.writers.table().get_mut(&number).filter(|cached| cached.shared) {
            cached.twins.reaches(end);
        }
    }

    /// Nobody else has the file open any more, unless somebody wants it already.
    fn end_sharing(&self, number: u64, file: &File) {
        let mut table = self.writers.table();
        if let Some(cached) = table.get_mut(&number)
            && file.is_alone()
        {
            (cached.shared, cached.twins) = (false, Twins::default());
        }
    }

    /// A range of a file, or all behind its new end, was made zeros, in the page cache too.
    pub(crate) fn zeroed(&self, number: u64, range: ByteRange) {
        if self.is_on()
            && let Some(cached) = self.writers.table().get_mut(&number)
        {
            cached.twins.zeroed(range.offset, range.end());
        }
    }

    /// Others have the file open from now on; whether that is news of a file that is written.
    fn share(&self, number: u64) -> bool {
        let mut table = self.writers.table();
        table.get_mut(&number).is_some_and(|cached| !std::mem::replace(&mut cached.shared, true))
    }
}

/// The bytes of a segment.
fn segment_bytes(segment: &Segment) -> Box<dyn Iterator<Item = u8> + '_> {
    match segment {
        Segment::Data(data) => Box::new(data.iter().copied()),
        Segment::Hole(len) => Box::new(std::iter::repeat_n(0, *len as usize)),
    }
}

impl FileSystem {
    /// The kernel writes the pages of a file back and forgets them.
    pub(crate) async fn forget_pages(&self, number: u64) {
        self.forget_pages_of(number, ByteRange::ALL).await;
    }

    /// As [`FileSystem::forget_pages`], those that have bytes of a range.
    pub(crate) async fn forget_pages_of(&self, number: u64, range: ByteRange) {
        let Some(fs) = self.shared() else { return };
        // It returns when they are written back, by requests that others here answer.
        let _ = tokio::task::spawn_blocking(move || fs.have_pages_written(number, range)).await;
    }

    /// A range of a file was made zeros, cut off or copied to, which the kernel does to what it has, too.
    pub(crate) fn changed_otherwise(&self, number: u64, range: ByteRange) {
        self.write_back.zeroed(number, range);
        self.opens.changed_otherwise(number);
    }

    /// The kernel asks for the attributes of a file now, and believes in none any more.
    pub(crate) async fn expire(&self, number: u64) {
        self.ask_of_self(number, Beliefs::expire).await;
    }

    /// Asks until the kernel has the present size of a file cached. For kernels that do not write back; see [`Beliefs::show_size`].
    pub(crate) async fn show_size(&self, number: u64) {
        let doubts = self.nodes.doubts();
        if let Some(size) = self.ask_of_self(number, Beliefs::show_size).await {
            self.nodes.shown(number, size, doubts);
        }
    }

    /// Runs `ask` on a thread of its own, as it makes requests that this process answers. `None` if it failed.
    async fn ask_of_self<T: Send + 'static>(&self, number: u64, ask: fn(&Beliefs, u64) -> io::Result<T>) -> Option<T> {
        let fs = self.shared()?;
        let expire = move || {
            let of = fs.clone();
            let thread = asking::spawn("fuse-expire".to_owned(), move || ask(&of.write_back.beliefs, number))?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that asks panicked")))
        };
        let asked = tokio::task::spawn_blocking(expire).await.ok()?;
        asked.inspect_err(|error| tracing::debug!(node = number, "having the kernel ask for attributes: {error}")).ok()
    }

    /// As [`FileSystem::forget_pages_of`], waiting in this thread.
    fn have_pages_written(&self, number: u64, range: ByteRange) -> io::Result<()> {
        let Some(transport) = self.transport() else { return Ok(()) };
        let _change = self.lately.change();
        let age = self.write_back.writers.table().get_mut(&number).map(|cached| cached.twins.forgetting());
        // No length means all that follows.
        let len = if range.end() > i64::MAX as u64 { 0 } else { range.len };
        let body = crate::reply::Body::with_capacity(24).u64(number).u64(range.offset).u64(len).into_vec();
        let forgets = self.opens.pages_are_forgotten(number);
        let told = transport.notify(abi::notify::INVAL_INODE, &body);
        drop(forgets);
        if let Some(age) = age
            && let Some(cached) = self.write_back.writers.table().get_mut(&number)
        {
            cached.twins.forgotten(age, range);
        }
        match told {
            // It has forgotten the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            told => told,
        }
    }

    /// Whether a file that is opened with these flags is to be had alone, to be written to the page cache.
    pub(crate) fn wants_alone(&self, flags: u32) -> bool {
        self.write_back.wants(flags) && self.callers.anybody().policy().policy.access == Access::Page
    }

    /// The kernel has changed, or is about to change, what it believes of the size or times of a file.
    pub(crate) fn may_believe_more(&self, number: u64) {
        self.nodes.believe(number, None);
    }

    /// The kernel has a write to `end` answered, and raises its cached size to that. `None`: an append, of which the kernel does not know the place.
    pub(crate) fn believes_end(&self, number: u64, end: Option<u64>) {
        match end.filter(|_| !self.write_back.is_on()) {
            Some(end) => self.nodes.grew(number, end),
            None => self.may_believe_more(number),
        }
    }

    /// The kernel gets bytes of a shared file for its page cache.
    pub(crate) fn kernel_gets(&self, number: u64, asked: (u64, u32), data: &[Segment]) {
        if self.write_back.got(number, asked, data)
            && let Some(fs) = self.shared()
        {
            // Not waited for: some of these pages are locked until the kernel has their bytes.
            tokio::spawn(async move { fs.forget_pages(number).await });
        }
    }

    /// The kernel gets pages of a shared file, for a mapping or a system call such as `sendfile`. It uses them without asking whether they are still good, so it
    /// is made to forget them after a moment, and before it is answered how the file is (GETATTR). Not at once, as one instruction of a program may need
    /// several pages of a mapping.
    pub(crate) fn let_pages_linger(&self, number: u64, open: &OpenFile) {
        let (Some(fs), Some(lingers)) = (self.shared(), open.pages_linger()) else { return };
        tokio::spawn(async move {
            tokio::time::sleep(SHARED_KEPT).await;
            fs.wait_for_quiet(number).await;
            lingers.is_over();
            fs.forget_pages(number).await;
            drop(lingers);
        });
    }

    /// Waits, but not for long, for a moment at which nobody is about to use what the kernel was answered: it would take no notice of the answer
    /// if it were told to forget pages then.
    async fn wait_for_quiet(&self, number: u64) {
        for _ in 0..QUIET_TRIES {
            // A kernel that writes back takes sizes from no answer.
            if self.write_back.is_on() || !self.opens.are_attributes_asked(number, QUIET) {
                return;
            }
            tokio::time::sleep(QUIET).await;
        }
    }

    /// The attributes of a file as they are now, with what was written here.
    async fn fresh(&self, number: u64) -> io::Result<Attrs> {
        let unknown = |errno: Errno| io::Error::from_raw_os_error(errno.0);
        let node = self.nodes.get(number).map_err(unknown)?;
        self.callers.anybody().getattr(&node).await.map_err(|error| unknown(error.into()))
    }

    /// Whether the kernel is made sure to believe these attributes of a file that is about to be written to the page cache, which makes zeros
    /// of what lies behind the end that it believes in.
    pub(crate) async fn agree_surely(&self, number: u64, attrs: &Attrs) -> bool {
        if self.write_back.is_written(number) {
            return true;
        }
        match self.shared() {
            Some(fs) => fs.correct(number, *attrs, true).await.unwrap_or(false),
            None => false,
        }
    }

    /// Has the kernel forget its pages of an open file, and how long it is.
    pub(crate) async fn begin_anew(&self, header: &Header, open: &OpenFile) -> Result<(), Errno> {
        self.forget_pages(header.node).await;
        let attrs = open.file.refresh().await?;
        self.agree_whole(header.pid, header.node, &attrs).await;
        Ok(())
    }

    /// Sees to it that the kernel believes these attributes of a regular file, unless only the kernel knows; waits for that, but not for
    /// long. For requests that answer attributes; pages of a shared file are forgotten before these are asked for.
    pub(crate) async fn agree(&self, thread: u32, number: u64, attrs: &Attrs) {
        let _ = tokio::time::timeout(PATIENCE, self.agree_whole(thread, number, attrs)).await;
    }

    /// As [`FileSystem::agree`], before a read from or a write to a file that is shared: the kernel reads to where it believes that the file reaches, and makes
    /// zeros of what lies between that and what is written.
    ///
    /// # Errors
    /// EIO: it cannot be told.
    pub(crate) async fn agree_to_move_data(&self, number: u64, attrs: &Attrs) -> Result<(), Errno> {
        let told = async {
            let (mut attrs, mut attempt) = (*attrs, 0);
            loop {
                let Some(fs) = self.shared() else { return };
                // It is this mount's alone again: the kernel was told before that, and takes no correction since.
                if !self.write_back.is_shared(number) {
                    return;
                }
                // Another writer here may have come between, or has it locked.
                if fs.correct(number, attrs, false).await.unwrap_or(false) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1 << attempt)).await;
                attempt = (attempt + 1).min(8);
                attrs = self.fresh(number).await.unwrap_or(attrs);
            }
        };
        tokio::time::timeout(LONG, told).await.map_err(|_| EIO)
    }

    /// As [`FileSystem::agree`], for as long as it takes: for requests that nobody makes who has the inode locked.
    pub(crate) async fn agree_whole(&self, thread: u32, number: u64, attrs: &Attrs) {
        let shared = self.write_back.is_shared(number) && self.write_back.beliefs.set_by(thread).is_none();
        if (shared || self.needs_correction(thread, number, attrs))
            && let Some(fs) = self.shared()
        {
            let _ = fs.correct(number, *attrs, true).await;
        }
    }

    /// Whether the kernel may believe something else of a file than it should.
    pub(crate) fn needs_correction(&self, thread: u32, number: u64, attrs: &Attrs) -> bool {
        self.write_back.is_on()
            && attrs.kind == FileKind::Regular
            && self.write_back.beliefs.set_by(thread).is_none()
            && !self.write_back.is_written(number)
            && !self.nodes.believes(number, attrs)
    }

    /// Begins to correct what the kernel believes of a file; what is returned ends when that is done, or has failed.
    fn correct(self: Arc<Self>, number: u64, attrs: Attrs, times: bool) -> tokio::task::JoinHandle<bool> {
        let fs = self;
        tokio::spawn(async move {
            let _turn = fs.write_back.turns[number as usize % TURNS].lock().await;
            let (told, shared) = (fs.clone(), fs.write_back.is_shared(number));
            let runtime = tokio::runtime::Handle::current();
            let correct = move || corrected(&told, &runtime, number, attrs, (shared, times));
            match tokio::task::spawn_blocking(correct).await {
                Ok(Ok(changed)) => {
                    let believed = changed.unwrap_or(attrs);
                    // Of a shared file it need not believe the time.
                    fs.nodes.believe(number, (!shared).then_some(&believed));
                    fs.write_back.reaches(number, believed.size);
                    // Bytes that it has may be as old as what it believed.
                    if changed.is_some() && !fs.write_back.is_written(number) {
                        fs.forget_pages(number).await;
                    }
                    true
                }
                Ok(Err(error)) => {
                    tracing::debug!(node = number, "telling the kernel of another size: {error}");
                    fs.nodes.believe(number, None);
                    false
                }
                Err(_) => false,
            }
        })
    }

    /// Bytes that were written back of a file are lost, and with them the end that the kernel believes in, perhaps. The file counts as shared
    /// for a while: the kernel asks for the attributes before it tells them or writes, and is told the right size then. It has the inode
    /// locked at this moment, so that it cannot be told here.
    pub(crate) fn has_lost_pages(&self, number: u64) {
        let Some(fs) = self.shared().filter(|_| self.write_back.is_written(number)) else { return };
        // With the time it may just have said that it has handed everything on.
        self.may_believe_more(number);
        if self.write_back.share(number) {
            tokio::spawn(fs.look_after(number));
        }
        self.lately.changed();
        self.doubt_attributes(number);
    }

    /// Whether a request comes of the end of a write(2), as writes are synchronous, and not of what a program asks for.
    pub(crate) async fn ends_synchronous_write(&self, header: &Header) -> bool {
        // Boxed, for it is rare.
        self.write_back.sync.is_on() && Box::pin(calls::look(header.pid, |call| call.writes())).await
    }

    /// As [`FileSystem::ends_synchronous_write`], where the program has not asked for its bytes to be durable by then.
    pub(crate) async fn ends_lazy_write(&self, header: &Header) -> bool {
        // Boxed, for it is rare.
        self.write_back.sync.is_on() && Box::pin(calls::look(header.pid, |call| call.writes_lazily())).await
    }

    /// As long as any file is written to the page cache though others have it open, the mount writes synchronously.
    pub(crate) async fn settle_sync(&self) {
        if self.write_back.is_on() {
            self.write_back.sync.settle(|| self.write_back.is_any_shared()).await;
        }
    }

    /// As long as a shared file is written to the page cache it is tried to have it alone again; where writes cannot be made synchronous, nothing stays
    /// there for long.
    async fn look_after(self: Arc<Self>, number: u64) {
        let mut asked = Instant::now();
        while self.write_back.is_shared(number) {
            tokio::time::sleep(SHARED_KEPT).await;
            if !self.write_back.sync.is_on() {
                self.forget_pages(number).await;
            }
            if asked.elapsed() >= ASK_AGAIN {
                if let Err(error) = self.try_alone(number).await {
                    tracing::debug!(node = number, ?error, "asking to have a file alone");
                }
                asked = Instant::now();
            }
        }
        self.settle_sync().await;
    }

    /// Asks to have a shared file alone. Once it is so, and the kernel knows how long it is, pages may stay.
    async fn try_alone(&self, number: u64) -> Result<(), Errno> {
        let Some(open) = self.opens.writing(number) else { return Ok(()) };
        if !open.file.ask_alone().await? {
            return Ok(());
        }
        self.forget_pages(number).await;
        let attrs = open.file.refresh().await?;
        let Some(fs) = self.shared() else { return Ok(()) };
        if fs.correct(number, attrs, false).await.unwrap_or(false) {
            self.write_back.end_sharing(number, &open.file);
        }
        Ok(())
    }
}

/// Has a thread of its own correct what the kernel believes of a file ([`Beliefs::correct`]), and does for it what takes this process's descriptors.
fn corrected(
    fs: &Arc<FileSystem>,
    runtime: &tokio::runtime::Handle,
    number: u64,
    attrs: Attrs,
    (shared, times): (bool, bool),
) -> io::Result<Option<Attrs>> {
    let (ask, asked) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    let of = fs.clone();
    let correct = move || {
        let refresh = || {
            ask.send(()).map_err(io::Error::other)?;
            answered.recv().map_err(io::Error::other)?
        };
        of.write_back.beliefs.correct(number, &attrs, (shared, times), refresh)
    };
    let thread = asking::spawn("fuse-beliefs".to_owned(), correct)?;
    // Until it has ended, or given up.
    while asked.recv().is_ok() {
        let written = if shared { fs.have_pages_written(number, ByteRange::ALL) } else { Ok(()) };
        let _ = answer.send(written.and_then(|()| runtime.block_on(fs.fresh(number))));
    }
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that corrects it panicked")))
}

/// Has the kernel hand on and forget what it has of a file that others want.
pub(crate) struct Recalled(pub(crate) Weak<FileSystem>);

impl Keeper for Recalled {
    fn hand_on(&self, file: FileId) -> BoxFuture<'static, ()> {
        let fs = self.0.upgrade();
        Box::pin(async move {
            let Some(fs) = fs else { return };
            let news = fs.write_back.share(file.0);
            fs.lately.changed();
            if news {
                // Before its pages are written back: what is written later is written before write(2) returns.
                fs.settle_sync().await;
            }
            // Attributes that the kernel believes, and pages that it read or mapped, are as old as the delegation that goes.
            if fs.nodes.is_known(file.0) {
                fs.wait_for_quiet(file.0).await;
                fs.forget_pages(file.0).await;
            }
            if let Some(open) = fs.opens.writing(file.0).filter(|_| news) {
                // What the kernel has from here on behind that, and has not got here, it has made of zeros.
                fs.write_back.reaches(file.0, open.file.attrs().size);
            }
            // Before what it has is read again.
            if fs.write_back.is_written(file.0) || fs.write_back.is_on() && fs.opens.are_pages_read(file.0) {
                fs.expire(file.0).await;
            }
            if news {
                tokio::spawn(fs.look_after(file.0));
            }
        })
    }

    /// Has the kernel drop the attributes that it has asked for and not received yet: they may be older than the delegation, but would come with a lifetime.
    fn gained(&self, file: FileId) {
        if let Some(fs) = self.0.upgrade() {
            fs.lately.changed();
            fs.doubt_attributes(file.0);
        }
    }

    fn give_up(&self, file: FileId) -> BoxFuture<'static, ()> {
        let fs = self.0.upgrade();
        fs.iter().for_each(|fs| fs.write_back.set_given_up(file.0, true));
        let handing_on = self.hand_on(file);
        Box::pin(async move {
            // The kernel tries, and keeps the error for who wrote.
            handing_on.await;
            fs.iter().for_each(|fs| fs.write_back.set_given_up(file.0, false));
        })
    }
}
