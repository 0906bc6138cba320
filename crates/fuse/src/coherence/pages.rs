//! Requests to the kernel to write back and drop its pages, and to request attributes again.

use crate::coherence::Coherence;
use crate::coherence::kernel_size::KernelSizes;
use crate::coherence::open_pages::PageUse;
use crate::reply::Body;
use crate::{abi, self_requests};
use client::Segment;
use std::io;
use std::time::Duration;
use types::{Attrs, ByteRange};

/// How long the kernel may take to apply a reply.
const QUIET: Duration = Duration::from_millis(1);
/// Largest number of pauses of length [`QUIET`] in one call of [`Coherence::wait_for_quiet`].
const QUIET_TRIES: usize = 20;
/// Longest time for which the kernel keeps pages of a file that other clients use.
pub(super) const SHARED_KEPT: Duration = Duration::from_millis(50);

impl Coherence {
    /// Makes the kernel write back and drop all pages of a file.
    pub(crate) async fn drop_pages(&self, number: u64) {
        self.drop_pages_of(number, ByteRange::ALL).await;
    }

    /// Makes the kernel write back and drop the pages of a file that contain bytes of a range.
    pub(super) async fn drop_pages_of(&self, number: u64, range: ByteRange) {
        let Some(coherence) = self.shared() else { return };
        // The `INVAL_INODE` notification returns after the kernel has written back dirty pages. Other threads of this
        // process execute the WRITE requests of this write-back, so send the notification from a blocking thread.
        let _ = tokio::task::spawn_blocking(move || coherence.drop_pages_blocking(number, range)).await;
    }

    /// Makes the kernel write back and drop pages like [`Coherence::drop_pages_of`], but blocks the calling thread.
    pub(super) fn drop_pages_blocking(&self, number: u64, range: ByteRange) -> io::Result<()> {
        let Some(transport) = self.transport() else { return Ok(()) };
        let _change = self.recent_attrs.change();
        let age = self.write_back.begin_invalidation(number);
        // In an `INVAL_INODE` notification, the length 0 means the rest of the file.
        let len = if range.end() > i64::MAX as u64 { 0 } else { range.len };
        let body = Body::with_capacity(24).u64(number).u64(range.offset).u64(len).into_vec();
        let invalidation = self.pages.begin_invalidation(number);
        let notified = transport.notify(abi::notify::INVAL_INODE, &body);
        drop(invalidation);
        if let Some(age) = age {
            self.write_back.end_invalidation(number, age, range);
        }
        match notified {
            // The kernel has no inode of the file, so it has no pages to drop.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            notified => notified,
        }
    }

    /// Lets the kernel keep pages for a moment, for a mapping or a system call such as `sendfile`, although other
    /// clients use the file. The kernel uses such pages without checking that they are valid. So the mount makes the
    /// kernel drop them after [`SHARED_KEPT`], and before it replies to a GETATTR. The mount does not do so at once,
    /// because one instruction of a program may need several pages of a mapping.
    pub(super) fn keep_pages_briefly(&self, number: u64, pages: &PageUse) {
        let (Some(coherence), Some(guard)) = (self.shared(), pages.begin_keeping()) else { return };
        tokio::spawn(async move {
            tokio::time::sleep(SHARED_KEPT).await;
            coherence.wait_for_quiet(number).await;
            guard.expire();
            coherence.drop_pages(number).await;
            drop(guard);
        });
    }

    /// Records the bytes of a file that other clients use, when the kernel reads these bytes into its page cache. If
    /// the page twins of the file then take too much memory, makes the kernel drop the file's pages.
    pub(super) fn kernel_gets(&self, number: u64, asked: (u64, u32), data: &[Segment]) {
        if self.write_back.got(number, asked, data)
            && let Some(coherence) = self.shared()
        {
            // Drop the pages in the background, because the kernel keeps some of these pages locked until it receives
            // the bytes of this READ.
            tokio::spawn(async move { coherence.drop_pages(number).await });
        }
    }

    /// Waits a short time, so that the kernel can apply replies with attributes that it has just received. The kernel
    /// discards a reply if it has to drop pages before it applies the reply.
    pub(super) async fn wait_for_quiet(&self, number: u64) {
        for _ in 0..QUIET_TRIES {
            // With write-back, the kernel ignores the size in replies, so a discarded reply does no harm.
            if self.write_back.is_on() || !self.pages.has_recent_getattr(number, QUIET) {
                return;
            }
            tokio::time::sleep(QUIET).await;
        }
    }

    /// Makes the kernel request the attributes of a file now, and again before each later use.
    pub(super) async fn expire(&self, number: u64) {
        self.ask_of_self(number, KernelSizes::expire).await;
    }

    /// Makes the kernel request attributes until it has the current size of a file cached. For mounts without
    /// write-back; see [`KernelSizes::show_size`].
    pub(super) async fn show_size(&self, number: u64) {
        let doubts = self.cache.doubts();
        if let Some(size) = self.ask_of_self(number, KernelSizes::show_size).await {
            self.cache.shown(number, size, doubts);
        }
    }

    /// Runs `ask` on its own thread, because `ask` makes requests to which this process itself replies. Returns `None`
    /// if `ask` fails.
    pub(super) async fn ask_of_self<T: Send + 'static>(
        &self,
        number: u64,
        ask: fn(&KernelSizes, u64) -> io::Result<T>,
    ) -> Option<T> {
        let coherence = self.shared()?;
        let expire = move || {
            let of = coherence.clone();
            let thread = self_requests::spawn("fuse-expire".to_owned(), move || ask(&of.kernel_sizes, number))?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that asks panicked")))
        };
        let asked = tokio::task::spawn_blocking(expire).await.ok()?;
        asked
            .inspect_err(|error| tracing::debug!(node = number, "cannot make the kernel ask for attributes: {error}"))
            .ok()
    }

    /// Returns whether a thread of this process is making the kernel request attributes.
    pub(crate) fn is_own_getattr(&self, thread: u32) -> bool {
        self.kernel_sizes.is_expiring(thread)
    }

    /// Records the reply to a GETATTR that a thread of this process caused. The attributes in the reply have no
    /// lifetime.
    pub(crate) fn own_getattr_replied(&self, thread: u32, number: u64, attrs: &Attrs) {
        self.kernel_sizes.answers(thread, attrs.size);
        self.attrs_sent(number, attrs);
        if !self.write_back.is_on() {
            self.cache.may_take_own(number, attrs);
        }
    }
}
