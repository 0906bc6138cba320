//! Corrections of the kernel's cached attributes of a file: the kernel gets the size and the times that the mgr
//! reports.

use crate::Errno;
use crate::coherence::Coherence;
use crate::request::SetAttr;
use crate::{abi::fattr, self_requests};
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use types::{Attrs, ByteRange, FileKind};

const EIO: Errno = Errno(5);
const EBUSY: Errno = Errno(16);

/// How long a request waits until the kernel's cached attributes are correct. A separate thread corrects the
/// attributes, and may have to wait for an inode that the kernel has locked for this very request. In that case, the
/// attributes are correct for the next request.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long a read or write of a file that other clients use waits for the correction of the kernel's cached
/// attributes before the call fails.
const LONG: Duration = Duration::from_secs(20);
/// Number of locks that serialize corrections of the kernel's cached attributes. Corrections of files with the same
/// inode number modulo `CORRECTION_LOCKS` run one after the other.
const CORRECTION_LOCKS: usize = 64;

/// The locks that serialize corrections of the kernel's cached attributes, by inode number modulo
/// [`CORRECTION_LOCKS`].
pub(super) struct CorrectionLocks([tokio::sync::Mutex<()>; CORRECTION_LOCKS]);

impl Default for CorrectionLocks {
    fn default() -> Self {
        CorrectionLocks(std::array::from_fn(|_| tokio::sync::Mutex::default()))
    }
}

impl Coherence {
    /// Returns the current attributes of a file from the mgr, including the effects of writes by this mount.
    pub(super) async fn present_attrs(&self, number: u64) -> io::Result<Attrs> {
        let unknown = |errno: Errno| io::Error::from_raw_os_error(errno.0);
        let node = self.nodes.get(number).map_err(unknown)?;
        self.mount.getattr(&node).await.map_err(|error| unknown(error.into()))
    }

    /// Makes the kernel cache the given attributes of a file, before the kernel writes the file through its page
    /// cache. Returns false if the kernel may still have a wrong size cached. The kernel replaces bytes after its
    /// cached end of the file by zeros, so a wrong size loses data.
    pub(super) async fn correct_for_page_cache(&self, number: u64, attrs: &Attrs) -> bool {
        if self.write_back.is_written(number) {
            return true;
        }
        match self.shared() {
            Some(coherence) => coherence.correct(number, *attrs, true).await.unwrap_or(false),
            None => false,
        }
    }

    /// Makes the kernel cache the given attributes of a regular file, unless the kernel's own attributes are newer.
    /// Waits at most [`PATIENCE`]. The mount calls this before a reply that contains attributes.
    pub(super) async fn correct_for_reply(&self, thread: u32, number: u64, attrs: &Attrs) {
        let _ = tokio::time::timeout(PATIENCE, self.correct_if_needed(thread, number, attrs)).await;
    }

    /// Makes the kernel cache the given attributes before a read or write of a file that other clients use. The kernel
    /// reads only up to its cached end of the file. The kernel writes zeros between this end and the written bytes.
    ///
    /// # Errors
    /// EIO: the kernel's cached attributes cannot be corrected in time.
    pub(super) async fn correct_for_data(&self, number: u64, attrs: &Attrs) -> Result<(), Errno> {
        let correction = async {
            let (mut attrs, mut attempt) = (*attrs, 0);
            loop {
                let Some(coherence) = self.shared() else { return };
                // The mount has the file's delegation again. The mount corrected the kernel's attributes before it got
                // the delegation, so no further correction is necessary.
                if !self.write_back.is_shared(number) {
                    return;
                }
                // The correction of the kernel's attributes fails if another writer on this mount changes the
                // attributes at the same time, or has the inode locked. So try again after a pause.
                if coherence.correct(number, attrs, false).await.unwrap_or(false) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1 << attempt)).await;
                attempt = (attempt + 1).min(8);
                attrs = self.present_attrs(number).await.unwrap_or(attrs);
            }
        };
        tokio::time::timeout(LONG, correction).await.map_err(|_| EIO)
    }

    /// Corrects the kernel's cached attributes like [`Coherence::correct_for_reply`], but without a time limit. Only
    /// for requests whose thread does not have the inode locked.
    pub(super) async fn correct_if_needed(&self, thread: u32, number: u64, attrs: &Attrs) {
        let shared = self.write_back.is_shared(number) && self.kernel_sizes.set_by(thread).is_none();
        if (shared || self.needs_correction(thread, number, attrs))
            && let Some(coherence) = self.shared()
        {
            let _ = coherence.correct(number, *attrs, true).await;
        }
    }

    /// Returns whether the kernel's cached attributes of a file may differ from `attrs` and have to be corrected.
    pub(super) fn needs_correction(&self, thread: u32, number: u64, attrs: &Attrs) -> bool {
        self.write_back.is_on()
            && attrs.kind == FileKind::Regular
            && self.kernel_sizes.set_by(thread).is_none()
            && !self.write_back.is_written(number)
            && !self.cache.has(number, attrs)
    }

    /// Returns the reply to a SETATTR that a thread of the mount process made to correct the kernel's attributes.
    /// Returns `None` for any other SETATTR.
    ///
    /// # Errors
    /// EBUSY: the kernel writes or has written the file through its page cache since the correction began, so the
    /// kernel's attributes are newer.
    pub(crate) fn own_setattr(&self, thread: u32, number: u64, args: &SetAttr) -> Option<Result<Attrs, Errno>> {
        let setting = self.kernel_sizes.set_by(thread)?;
        let (written, shared) = (self.write_back.is_written(number), self.write_back.is_shared(number));
        // The kernel has locked the inode for this SETATTR, so no program can write to the file between this check and
        // the reply to the SETATTR.
        let sizes = args.valid & fattr::SIZE != 0;
        if written && !(shared && setting.is_of_shared() && (!sizes || setting.is_untouched())) {
            return Some(Err(EBUSY));
        }
        let attrs = setting.attrs();
        Some(Ok(Attrs { size: if sizes { args.size } else { attrs.size }, ..attrs }))
    }

    /// Begins to correct the kernel's cached attributes of a file. The returned task yields whether the correction
    /// succeeded.
    pub(super) fn correct(self: Arc<Self>, number: u64, attrs: Attrs, times: bool) -> tokio::task::JoinHandle<bool> {
        let coherence = self;
        tokio::spawn(async move {
            let _lock = coherence.correction_locks.0[number as usize % CORRECTION_LOCKS].lock().await;
            let (of, shared) = (coherence.clone(), coherence.write_back.is_shared(number));
            let runtime = tokio::runtime::Handle::current();
            let correct = move || corrected(&of, &runtime, number, attrs, (shared, times));
            match tokio::task::spawn_blocking(correct).await {
                Ok(Ok(changed)) => {
                    let cached = changed.unwrap_or(attrs);
                    match shared {
                        // For a file that other clients use, the correction may leave in the kernel's cache a
                        // modification time that is not the file's. So record the kernel's cached size and time as
                        // unknown.
                        true => coherence.cache.is_unknown(number),
                        false => coherence.cache.has_now(number, &cached),
                    }
                    coherence.write_back.reaches(number, cached.size);
                    // The kernel's cached pages may be as old as the kernel's attributes before the correction, so the
                    // kernel has to drop the pages.
                    if changed.is_some() && !coherence.write_back.is_written(number) {
                        coherence.drop_pages(number).await;
                    }
                    true
                }
                Ok(Err(error)) => {
                    tracing::debug!(node = number, "cannot correct the size that the kernel has cached: {error}");
                    coherence.cache.is_unknown(number);
                    false
                }
                Err(_) => false,
            }
        })
    }
}

/// Corrects the kernel's attributes of a file on a separate thread
/// ([`KernelSizes::correct`](super::kernel_size::KernelSizes::correct)). That thread does not have the descriptors of
/// this process. So the calling thread writes back the kernel's pages and fetches the attributes on its behalf.
fn corrected(
    coherence: &Arc<Coherence>,
    runtime: &tokio::runtime::Handle,
    number: u64,
    attrs: Attrs,
    (shared, times): (bool, bool),
) -> io::Result<Option<Attrs>> {
    let (ask, asked) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    let of = coherence.clone();
    let correct = move || {
        let refresh = || {
            ask.send(()).map_err(io::Error::other)?;
            answered.recv().map_err(io::Error::other)?
        };
        of.kernel_sizes.correct(number, &attrs, (shared, times), refresh)
    };
    let thread = self_requests::spawn("fuse-correction".to_owned(), correct)?;
    // The separate thread cannot write back the kernel's pages or fetch the attributes, because both need descriptors
    // of this process. So do both here whenever the separate thread requests it, until that thread has ended.
    while asked.recv().is_ok() {
        let written = if shared { coherence.drop_pages_blocking(number, ByteRange::ALL) } else { Ok(()) };
        let _ = answer.send(written.and_then(|()| runtime.block_on(coherence.present_attrs(number))));
    }
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that corrects it panicked")))
}
