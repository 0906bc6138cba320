//! Requests that the kernel write back and forget pages, and that it ask for attributes.

use crate::coherence::Coherence;
use crate::coherence::kernel_size::KernelSizes;
use crate::coherence::open_pages::PageUse;
use crate::reply::Body;
use crate::{abi, self_requests};
use client::Segment;
use std::io;
use std::time::Duration;
use types::{Attrs, ByteRange};

/// How long the kernel may take to apply an answer, and how often the mount waits for such a time.
const QUIET: Duration = Duration::from_millis(1);
const QUIET_TRIES: usize = 20;
/// How long the kernel keeps pages of a shared file at most.
pub(super) const SHARED_KEPT: Duration = Duration::from_millis(50);

impl Coherence {
    /// Makes the kernel write back and forget the pages of a file.
    pub(crate) async fn forget_pages(&self, number: u64) {
        self.forget_pages_of(number, ByteRange::ALL).await;
    }

    /// As [`Coherence::forget_pages`], for the pages that have bytes of a range.
    pub(super) async fn forget_pages_of(&self, number: u64, range: ByteRange) {
        let Some(coherence) = self.shared() else { return };
        // The call returns after the write-back, by requests that other threads here answer.
        let _ = tokio::task::spawn_blocking(move || coherence.have_pages_written(number, range)).await;
    }

    /// As [`Coherence::forget_pages_of`], but blocks this thread.
    pub(super) fn have_pages_written(&self, number: u64, range: ByteRange) -> io::Result<()> {
        let Some(transport) = self.transport() else { return Ok(()) };
        let _change = self.recent_attrs.change();
        let age = self.write_back.pages_are_being_forgotten(number);
        // No length means the rest of the file.
        let len = if range.end() > i64::MAX as u64 { 0 } else { range.len };
        let body = Body::with_capacity(24).u64(number).u64(range.offset).u64(len).into_vec();
        let forgets = self.pages.are_being_forgotten(number);
        let told = transport.notify(abi::notify::INVAL_INODE, &body);
        drop(forgets);
        if let Some(age) = age {
            self.write_back.pages_were_forgotten(number, age, range);
        }
        match told {
            // The kernel has forgotten the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            told => told,
        }
    }

    /// Lets the kernel keep pages of a shared file for a moment, which it reads for a mapping or a system call such as
    /// `sendfile`. The kernel uses them without asking whether they are still valid. So the mount makes it forget them
    /// after [`SHARED_KEPT`], and before it answers a GETATTR. It does not do so at once, as one instruction of a
    /// program may need several pages of a mapping.
    pub(super) fn let_pages_linger(&self, number: u64, pages: &PageUse) {
        let (Some(coherence), Some(lingers)) = (self.shared(), pages.pages_linger()) else { return };
        tokio::spawn(async move {
            tokio::time::sleep(SHARED_KEPT).await;
            coherence.wait_for_quiet(number).await;
            lingers.is_over();
            coherence.forget_pages(number).await;
            drop(lingers);
        });
    }

    /// Records bytes of a shared file that the kernel reads into its page cache.
    pub(super) fn kernel_gets(&self, number: u64, asked: (u64, u32), data: &[Segment]) {
        if self.write_back.got(number, asked, data)
            && let Some(coherence) = self.shared()
        {
            // In the background, as some of these pages are locked until the kernel has their bytes.
            tokio::spawn(async move { coherence.forget_pages(number).await });
        }
    }

    /// Waits a short time for a moment at which the kernel is not about to use an answer with attributes. The kernel
    /// would drop the answer if it had to forget pages at that moment.
    pub(super) async fn wait_for_quiet(&self, number: u64) {
        for _ in 0..QUIET_TRIES {
            // A kernel that writes back takes sizes from no answer.
            if self.write_back.is_on() || !self.pages.are_attributes_asked(number, QUIET) {
                return;
            }
            tokio::time::sleep(QUIET).await;
        }
    }

    /// Makes the kernel ask for the attributes of a file, and cache none any more.
    pub(super) async fn expire(&self, number: u64) {
        self.ask_of_self(number, KernelSizes::expire).await;
    }

    /// Asks until the kernel has the present size of a file cached. For kernels that do not write back; see
    /// [`KernelSizes::show_size`].
    pub(super) async fn show_size(&self, number: u64) {
        let doubts = self.cache.doubts();
        if let Some(size) = self.ask_of_self(number, KernelSizes::show_size).await {
            self.cache.shown(number, size, doubts);
        }
    }

    /// Runs `ask` on a thread of its own, because it makes requests that this process answers. Returns `None` if it
    /// fails.
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

    /// Returns whether a thread of this process makes the kernel ask for attributes at this moment.
    pub(crate) fn is_own_getattr(&self, thread: u32) -> bool {
        self.kernel_sizes.is_expiring(thread)
    }

    /// Records the answer to such a thread's GETATTR. The attributes get no lifetime.
    pub(crate) fn own_getattr_replied(&self, thread: u32, number: u64, attrs: &Attrs) {
        self.kernel_sizes.answers(thread, attrs.size);
        self.told(number, attrs);
        if !self.write_back.is_on() {
            self.cache.may_take_own(number, attrs);
        }
    }
}
