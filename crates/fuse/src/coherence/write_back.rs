//! Write-back: decides which files the kernel may write to its page cache, and takes the pages back when other clients
//! want the file.
//!
//! A file is written to the page cache while the mgr has given this mount a write delegation for it, and past the page
//! cache otherwise. When another client wants the file, the mount makes the kernel write its pages back and forget
//! them, before the delegation is returned. Opens that already use the page cache continue to use it. The file is
//! *shared* then. Its attributes have no lifetime, so the kernel asks for them before each read and write. The kernel
//! writes its pages back and forgets them before the mount answers. Each write is written back before it returns
//! ([`crate::coherence::sync_mount`]).

use crate::caller_syscall;
use crate::coherence::kernel_size::{self, KernelSizes};
use crate::coherence::page_twins::{self, PageTwins};
use crate::coherence::sync_mount::SyncMount;
use crate::coherence::writers::{Writers, Writing};
use crate::fs::FileSystem;
use crate::mounting;
use crate::opens::OpenFile;
use crate::request::Header;
use crate::self_requests;
use crate::{Errno, abi};
use bytes::Bytes;
use client::{Access, File, Keeper, Segment};
use futures_util::future::BoxFuture;
use rustix::fs::OFlags;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};
use types::{Attrs, ByteRange, FileId, FileKind};

const EIO: Errno = Errno(5);

/// How long a request waits until the kernel's cached attributes are correct. A separate thread corrects them. It may
/// have to wait for an inode that the kernel has locked for this very request. The next request finds the attributes
/// corrected.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long a read or write of a shared file waits for the correction before it fails.
const LONG: Duration = Duration::from_secs(20);
/// How long the kernel may take to apply an answer, and how often the mount waits for such a time.
const QUIET: Duration = Duration::from_millis(1);
const QUIET_TRIES: usize = 20;
/// How long the kernel keeps pages of a shared file at most.
const SHARED_KEPT: Duration = Duration::from_millis(50);
/// The share of the machine's dirty page limit that this mount may use, in percent. The kernel gives FUSE file systems
/// one percent, beyond which writers wait.
const DIRTY_PERCENT: u32 = 25;
/// Bytes of the twins of a file beyond which the kernel has to forget its pages sooner.
const TWINS_MAX: u64 = 16 << 20;
/// How often the mount tries to get the delegation of a shared file again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Corrections of files with the same number modulo `TURNS` run one after the other.
const TURNS: usize = 64;

/// The write-back state of a mount.
pub(crate) struct WriteBack {
    on: AtomicBool,
    pub(crate) kernel_sizes: KernelSizes,
    pub(crate) sync: SyncMount,
    writers: Arc<Writers>,
    turns: [tokio::sync::Mutex<()>; TURNS],
}

/// The file is not exclusive to this mount, so it has to be written past the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotAlone;

/// Returns whether these open flags allow writes.
fn writes(flags: u32) -> bool {
    OFlags::from_bits_retain(flags).intersects(OFlags::WRONLY | OFlags::RDWR)
}

impl WriteBack {
    /// Creates the state of a mount, with write-back or without.
    pub(crate) fn new(on: bool) -> Self {
        let turns = std::array::from_fn(|_| tokio::sync::Mutex::default());
        WriteBack {
            on: AtomicBool::new(on),
            kernel_sizes: KernelSizes::default(),
            sync: SyncMount::default(),
            writers: Arc::default(),
            turns,
        }
    }

    /// Returns the reason why this process cannot write back, if there is one.
    pub(crate) fn unavailable() -> Option<io::Error> {
        let why = "writing back needs root's right to open files by their numbers (CAP_DAC_READ_SEARCH)";
        (!kernel_size::may()).then(|| io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// Returns whether the mount writes back.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Turns write-back off, as the kernel does not support it.
    pub(crate) fn switch_off(&self) {
        self.on.store(false, Relaxed);
    }

    /// Records where the file system is mounted, and with write-back sets its share of dirty pages.
    pub(crate) fn mounted_at(&self, dir: &Path) {
        self.kernel_sizes.mounted_at(dir);
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

    /// Returns whether a file opened with these flags needs a write delegation. Appends do not use one: only the mgr
    /// knows the end of the file to which bytes are appended.
    pub(crate) fn wants(&self, flags: u32) -> bool {
        self.is_on() && writes(flags) && !OFlags::from_bits_retain(flags).intersects(OFlags::APPEND | OFlags::DIRECT)
    }

    /// Begins an open with these flags that may use the page cache. Returns the guard of its writes to the page cache,
    /// if it writes there.
    ///
    /// # Errors
    /// The open has to write past the page cache.
    pub(crate) fn begin(&self, number: u64, file: &File, flags: u32) -> Result<Option<Writing>, NotAlone> {
        if !self.is_on() || !writes(flags) {
            return Ok(None);
        }
        if !self.wants(flags) {
            return Err(NotAlone);
        }
        let writing = Writing::begin(&self.writers, number);
        // Checked after that, so that a recall from here on finds the file in the table. A writer has to be able to
        // read, as the kernel fills up pages by reading.
        if file.is_alone() && file.is_readable() { Ok(Some(writing)) } else { Err(NotAlone) }
    }

    /// Returns whether a file is written to the page cache, so that only the kernel knows its size.
    pub(crate) fn is_written(&self, number: u64) -> bool {
        self.writers.table().contains_key(&number)
    }

    /// Returns whether a file is written to the page cache though other clients have it open.
    pub(crate) fn is_shared(&self, number: u64) -> bool {
        self.is_on() && self.writers.table().get(&number).is_some_and(|cached| cached.shared)
    }

    /// Returns whether any file is written to the page cache though other clients have it open.
    fn is_any_shared(&self) -> bool {
        self.writers.table().values().any(|cached| cached.shared)
    }

    /// Records bytes that the kernel reads into its page cache. Returns whether it has read so many that it should
    /// forget its pages.
    fn got(&self, number: u64, (offset, size): (u64, u32), data: &[Segment]) -> bool {
        let mut table = self.writers.table();
        let Some(cached) = table.get_mut(&number).filter(|cached| cached.shared) else { return false };
        let whole: Vec<u8> = data.iter().flat_map(|segment| segment_bytes(segment)).collect();
        cached.twins.got(offset, &whole);
        cached.twins.got_nothing(offset + whole.len() as u64, offset + u64::from(size));
        cached.twins.bytes() > TWINS_MAX
    }

    /// Records bytes that the kernel writes back from its page cache. Returns those that programs have changed, as far
    /// as that matters, and the new size of the file if the write-back extends it.
    pub(crate) fn changed(&self, number: u64, offset: u64, data: &Bytes) -> (Vec<(u64, Bytes)>, Option<u64>) {
        let mut table = self.writers.table();
        let Some(cached) = table.get_mut(&number).filter(|cached| cached.shared) else {
            return (vec![(offset, data.clone())], None);
        };
        let page_twins::Changed { runs, end } = cached.twins.changed(offset, data);
        (runs.into_iter().map(|run| (offset + run.start as u64, data.slice(run))).collect(), end)
    }

    /// Records the bytes of a file that a thread is about to write or has written, as far as known.
    pub(crate) fn thread_writes(&self, number: u64, thread: u32, range: Option<ByteRange>) {
        if let Some(cached) = self.writers.table().get_mut(&number).filter(|cached| cached.shared) {
            cached.twins.thread_writes(thread, range);
        }
    }

    /// Returns whether the mount refuses dirty pages of a file, because other clients may have written the file without
    /// a recall.
    pub(crate) fn is_given_up(&self, number: u64) -> bool {
        self.writers.table().get(&number).is_some_and(|cached| cached.given_up)
    }

    fn set_given_up(&self, number: u64, to: bool) {
        if let Some(cached) = self.writers.table().get_mut(&number) {
            cached.given_up = to;
        }
    }

    /// Records that the kernel knows nothing of a file but that its size is `end`.
    pub(crate) fn reaches(&self, number: u64, end: u64) {
        if let Some(cached) = self.writers.table().get_mut(&number).filter(|cached| cached.shared) {
            cached.twins.reaches(end);
        }
    }

    /// Ends the sharing of a file, unless another client wants it already.
    fn end_sharing(&self, number: u64, file: &File) {
        let mut table = self.writers.table();
        if let Some(cached) = table.get_mut(&number)
            && file.is_alone()
        {
            (cached.shared, cached.twins) = (false, PageTwins::default());
        }
    }

    /// Records that a range of a file, or everything behind its new end, became zeros, in the page cache too.
    pub(crate) fn zeroed(&self, number: u64, range: ByteRange) {
        if self.is_on()
            && let Some(cached) = self.writers.table().get_mut(&number)
        {
            cached.twins.zeroed(range.offset, range.end());
        }
    }

    /// Marks a file as open on other clients. Returns whether that is new for a file that is written to the page cache.
    fn share(&self, number: u64) -> bool {
        let mut table = self.writers.table();
        table.get_mut(&number).is_some_and(|cached| !std::mem::replace(&mut cached.shared, true))
    }
}

/// Returns the bytes of a segment.
pub(crate) fn segment_bytes(segment: &Segment) -> Box<dyn Iterator<Item = u8> + '_> {
    match segment {
        Segment::Data(data) => Box::new(data.iter().copied()),
        Segment::Hole(len) => Box::new(std::iter::repeat_n(0, *len as usize)),
    }
}

impl FileSystem {
    /// Makes the kernel write back and forget the pages of a file.
    pub(crate) async fn forget_pages(&self, number: u64) {
        self.forget_pages_of(number, ByteRange::ALL).await;
    }

    /// As [`FileSystem::forget_pages`], for the pages that have bytes of a range.
    pub(crate) async fn forget_pages_of(&self, number: u64, range: ByteRange) {
        let Some(fs) = self.shared() else { return };
        // The call returns after the write-back, by requests that other threads here answer.
        let _ = tokio::task::spawn_blocking(move || fs.have_pages_written(number, range)).await;
    }

    /// Records that a range of a file was zeroed, truncated or copied to. The kernel changes its pages likewise.
    pub(crate) fn changed_otherwise(&self, number: u64, range: ByteRange) {
        self.write_back.zeroed(number, range);
        self.opens.changed_otherwise(number);
    }

    /// Makes the kernel ask for the attributes of a file, and cache none any more.
    pub(crate) async fn expire(&self, number: u64) {
        self.ask_of_self(number, KernelSizes::expire).await;
    }

    /// Asks until the kernel has the present size of a file cached. For kernels that do not write back; see
    /// [`KernelSizes::show_size`].
    pub(crate) async fn show_size(&self, number: u64) {
        let doubts = self.nodes.doubts();
        if let Some(size) = self.ask_of_self(number, KernelSizes::show_size).await {
            self.nodes.shown(number, size, doubts);
        }
    }

    /// Runs `ask` on a thread of its own, because it makes requests that this process answers. Returns `None` if it
    /// fails.
    pub(crate) async fn ask_of_self<T: Send + 'static>(
        &self,
        number: u64,
        ask: fn(&KernelSizes, u64) -> io::Result<T>,
    ) -> Option<T> {
        let fs = self.shared()?;
        let expire = move || {
            let of = fs.clone();
            let thread =
                self_requests::spawn("fuse-expire".to_owned(), move || ask(&of.write_back.kernel_sizes, number))?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that asks panicked")))
        };
        let asked = tokio::task::spawn_blocking(expire).await.ok()?;
        asked.inspect_err(|error| tracing::debug!(node = number, "having the kernel ask for attributes: {error}")).ok()
    }

    /// As [`FileSystem::forget_pages_of`], but blocks this thread.
    fn have_pages_written(&self, number: u64, range: ByteRange) -> io::Result<()> {
        let Some(transport) = self.transport() else { return Ok(()) };
        let _change = self.recent_attrs.change();
        let age = self.write_back.writers.table().get_mut(&number).map(|cached| cached.twins.forgetting());
        // No length means the rest of the file.
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
            // The kernel has forgotten the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            told => told,
        }
    }

    /// Returns whether a file opened with these flags needs a write delegation, to be written to the page cache.
    pub(crate) fn wants_alone(&self, flags: u32) -> bool {
        self.write_back.wants(flags) && self.callers.anybody().policy().policy.access == Access::Page
    }

    /// Records that the kernel has changed, or is about to change, its cached size or times of a file.
    pub(crate) fn may_believe_more(&self, number: u64) {
        self.nodes.believe(number, None);
    }

    /// Records that the kernel receives the answer to a write up to `end`, and raises its cached size to that. `None`:
    /// an append, at an offset that the kernel does not know.
    pub(crate) fn believes_end(&self, number: u64, end: Option<u64>) {
        match end.filter(|_| !self.write_back.is_on()) {
            Some(end) => self.nodes.grew(number, end),
            None => self.may_believe_more(number),
        }
    }

    /// Records bytes of a shared file that the kernel reads into its page cache.
    pub(crate) fn kernel_gets(&self, number: u64, asked: (u64, u32), data: &[Segment]) {
        if self.write_back.got(number, asked, data)
            && let Some(fs) = self.shared()
        {
            // In the background, as some of these pages are locked until the kernel has their bytes.
            tokio::spawn(async move { fs.forget_pages(number).await });
        }
    }

    /// Lets the kernel keep pages of a shared file for a moment, which it reads for a mapping or a system call such as
    /// `sendfile`. The kernel uses them without asking whether they are still valid. So the mount makes it forget them
    /// after [`SHARED_KEPT`], and before it answers a GETATTR. It does not do so at once, as one instruction of a
    /// program may need several pages of a mapping.
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

    /// Waits a short time for a moment at which the kernel is not about to use an answer with attributes. The kernel
    /// would drop the answer if it had to forget pages at that moment.
    async fn wait_for_quiet(&self, number: u64) {
        for _ in 0..QUIET_TRIES {
            // A kernel that writes back takes sizes from no answer.
            if self.write_back.is_on() || !self.opens.are_attributes_asked(number, QUIET) {
                return;
            }
            tokio::time::sleep(QUIET).await;
        }
    }

    /// Returns the present attributes of a file, including the effects of writes by this mount.
    pub(crate) async fn fresh(&self, number: u64) -> io::Result<Attrs> {
        let unknown = |errno: Errno| io::Error::from_raw_os_error(errno.0);
        let node = self.nodes.get(number).map_err(unknown)?;
        self.callers.anybody().getattr(&node).await.map_err(|error| unknown(error.into()))
    }

    /// Makes the kernel cache these attributes of a file that is about to be written to the page cache; returns whether
    /// that succeeded. The kernel turns bytes behind its cached end of the file into zeros.
    pub(crate) async fn agree_surely(&self, number: u64, attrs: &Attrs) -> bool {
        if self.write_back.is_written(number) {
            return true;
        }
        match self.shared() {
            Some(fs) => fs.correct(number, *attrs, true).await.unwrap_or(false),
            None => false,
        }
    }

    /// Makes the kernel forget its pages and its cached size of an open file.
    pub(crate) async fn begin_anew(&self, header: &Header, open: &OpenFile) -> Result<(), Errno> {
        self.forget_pages(header.node).await;
        let attrs = open.file.refresh().await?;
        self.agree_whole(header.pid, header.node, &attrs).await;
        Ok(())
    }

    /// Makes the kernel cache these attributes of a regular file, unless only the kernel knows them. Waits for
    /// [`PATIENCE`] at most. For requests that answer attributes. Pages of a shared file are forgotten before the mount
    /// asks for its attributes.
    pub(crate) async fn agree(&self, thread: u32, number: u64, attrs: &Attrs) {
        let _ = tokio::time::timeout(PATIENCE, self.agree_whole(thread, number, attrs)).await;
    }

    /// As [`FileSystem::agree`], before a read or a write of a shared file. The kernel reads up to its cached end of
    /// the file. It writes zeros between that end and the written bytes.
    ///
    /// # Errors
    /// EIO: the kernel cannot be corrected.
    pub(crate) async fn agree_to_move_data(&self, number: u64, attrs: &Attrs) -> Result<(), Errno> {
        let told = async {
            let (mut attrs, mut attempt) = (*attrs, 0);
            loop {
                let Some(fs) = self.shared() else { return };
                // The mount has the file's delegation again. It corrected the kernel before, and the kernel accepts no
                // correction since.
                if !self.write_back.is_shared(number) {
                    return;
                }
                // Another writer here may have come between, or may have the file locked.
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

    /// As [`FileSystem::agree`], without a time limit: for requests that no thread makes while it has the inode locked.
    pub(crate) async fn agree_whole(&self, thread: u32, number: u64, attrs: &Attrs) {
        let shared = self.write_back.is_shared(number) && self.write_back.kernel_sizes.set_by(thread).is_none();
        if (shared || self.needs_correction(thread, number, attrs))
            && let Some(fs) = self.shared()
        {
            let _ = fs.correct(number, *attrs, true).await;
        }
    }

    /// Returns whether the kernel may have other attributes of a file cached than it should.
    pub(crate) fn needs_correction(&self, thread: u32, number: u64, attrs: &Attrs) -> bool {
        self.write_back.is_on()
            && attrs.kind == FileKind::Regular
            && self.write_back.kernel_sizes.set_by(thread).is_none()
            && !self.write_back.is_written(number)
            && !self.nodes.believes(number, attrs)
    }

    /// Begins to correct the kernel's cached attributes of a file. The task ends when that is done or has failed.
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
                    // The kernel need not have the time of a shared file cached.
                    fs.nodes.believe(number, (!shared).then_some(&believed));
                    fs.write_back.reaches(number, believed.size);
                    // Pages of the kernel may be as old as its earlier attributes.
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

    /// Records that written-back bytes of a file are lost, and perhaps the end of the file that the kernel has cached.
    /// The file counts as shared for a while. So the kernel asks for the attributes before it returns them or writes,
    /// and then receives the right size. The kernel has the inode locked at this moment, so the mount cannot correct it
    /// here.
    pub(crate) fn has_lost_pages(&self, number: u64) {
        let Some(fs) = self.shared().filter(|_| self.write_back.is_written(number)) else { return };
        // With the time, the kernel may just have reported that it has written everything back.
        self.may_believe_more(number);
        if self.write_back.share(number) {
            tokio::spawn(fs.look_after(number));
        }
        self.recent_attrs.changed();
        self.doubt_attributes(number);
    }

    /// Returns whether a request ends a write(2), because writes are synchronous, and is not a request of the program.
    pub(crate) async fn ends_synchronous_write(&self, header: &Header) -> bool {
        // Boxed, because it is rare.
        self.write_back.sync.is_on() && Box::pin(caller_syscall::look(header.pid, |call| call.writes())).await
    }

    /// As [`FileSystem::ends_synchronous_write`], where the program has not asked for its bytes to be durable by then.
    pub(crate) async fn ends_lazy_write(&self, header: &Header) -> bool {
        // Boxed, because it is rare.
        self.write_back.sync.is_on() && Box::pin(caller_syscall::look(header.pid, |call| call.writes_lazily())).await
    }

    /// Makes the mount write synchronously while any file is written to the page cache and other clients have it open.
    pub(crate) async fn settle_sync(&self) {
        if self.write_back.is_on() {
            self.write_back.sync.settle(|| self.write_back.is_any_shared()).await;
        }
    }

    /// Tries to get the delegation of a shared file again, as long as the file is written to the page cache. Where
    /// writes cannot be made synchronous, also makes the kernel forget the file's pages at short intervals.
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

    /// Asks for the delegation of a shared file. Once the mount has it and the kernel has the right size, pages may
    /// stay.
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

/// Corrects the kernel's attributes of a file on a separate thread ([`KernelSizes::correct`]). This thread makes the calls
/// that need this process's descriptors.
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
        of.write_back.kernel_sizes.correct(number, &attrs, (shared, times), refresh)
    };
    let thread = self_requests::spawn("fuse-beliefs".to_owned(), correct)?;
    // Until the thread has ended or given up.
    while asked.recv().is_ok() {
        let written = if shared { fs.have_pages_written(number, ByteRange::ALL) } else { Ok(()) };
        let _ = answer.send(written.and_then(|()| runtime.block_on(fs.fresh(number))));
    }
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that corrects it panicked")))
}

/// The handler of delegation recalls: makes the kernel write back and forget its data of a file that another client
/// wants.
pub(crate) struct Recalled(pub(crate) Weak<FileSystem>);

impl Keeper for Recalled {
    fn hand_on(&self, file: FileId) -> BoxFuture<'static, ()> {
        let fs = self.0.upgrade();
        Box::pin(async move {
            let Some(fs) = fs else { return };
            let news = fs.write_back.share(file.0);
            fs.recent_attrs.changed();
            if news {
                // Before the kernel writes its pages back: later writes are written back before write(2) returns.
                fs.settle_sync().await;
            }
            // The kernel's cached attributes and pages, read or mapped, are as old as the delegation that this client
            // returns.
            if fs.nodes.is_known(file.0) {
                fs.wait_for_quiet(file.0).await;
                fs.forget_pages(file.0).await;
            }
            if let Some(open) = fs.opens.writing(file.0).filter(|_| news) {
                // Pages that the kernel has behind this end from now on, and has not read from here, are zeros of its
                // own.
                fs.write_back.reaches(file.0, open.file.attrs().size);
            }
            // Before a program reads cached pages again, or asks for the end of the file.
            if fs.write_back.is_on() && fs.nodes.is_known(file.0) {
                fs.expire(file.0).await;
            }
            if news {
                tokio::spawn(fs.look_after(file.0));
            }
        })
    }

    /// Makes the kernel drop answers with attributes that it waits for. They may be older than the delegation, but
    /// would carry a lifetime.
    fn gained(&self, file: FileId) {
        if let Some(fs) = self.0.upgrade() {
            fs.recent_attrs.changed();
            fs.doubt_attributes(file.0);
        }
    }

    fn resized(&self, file: FileId) -> BoxFuture<'static, ()> {
        let fs = self.0.upgrade();
        Box::pin(async move {
            if let Some(fs) = fs {
                fs.follow_size(file.0).await;
            }
        })
    }

    fn give_up(&self, file: FileId) -> BoxFuture<'static, ()> {
        let fs = self.0.upgrade();
        fs.iter().for_each(|fs| fs.write_back.set_given_up(file.0, true));
        let handing_on = self.hand_on(file);
        Box::pin(async move {
            // The kernel tries to write back, and reports the error to the writing program.
            handing_on.await;
            fs.iter().for_each(|fs| fs.write_back.set_given_up(file.0, false));
        })
    }
}
