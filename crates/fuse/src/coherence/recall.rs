//! Recalls of delegations by the mgr. After a recall, a file is *shared*: other clients use the file while the kernel
//! still writes it through its page cache.

use crate::coherence::Coherence;
use crate::coherence::pages::SHARED_KEPT;
use crate::{Errno, caller_syscall};
use client::UpperCache;
use futures_util::future::BoxFuture;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use types::FileId;

/// The interval at which the mount requests the delegation of a shared file from the mgr again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The handler of delegation recalls: makes the kernel write back and drop its cached data of a file that another
/// client wants.
pub(super) struct RecallHandler(pub(super) Weak<Coherence>);

impl UpperCache for RecallHandler {
    fn flush_and_invalidate(&self, file: FileId) -> BoxFuture<'static, ()> {
        let coherence = self.0.upgrade();
        Box::pin(async move {
            let Some(coherence) = coherence else { return };
            let newly_shared = coherence.write_back.share(file.0);
            coherence.recent_attrs.changed();
            if newly_shared {
                // Turn on synchronous writes before the kernel writes back its pages. Then later writes are written
                // back before write(2) returns.
                coherence.settle_sync().await;
            }
            // The kernel's cached attributes and pages, mapped or not, are valid only under the delegation. So the
            // kernel drops them before this client returns the delegation.
            if coherence.cache.is_known(file.0) {
                coherence.wait_for_quiet(file.0).await;
                coherence.drop_pages(file.0).await;
            }
            if let Some(open) = coherence.opens.writing(file.0).filter(|_| newly_shared) {
                // From now on, other clients may extend the file. The kernel fills bytes after its cached end of the
                // file with zeros. Such zeros after the present end of the file must not replace bytes of other
                // clients, so record this end.
                coherence.write_back.reaches(file.0, open.file.attrs().size);
            }
            // Expire the kernel's cached attributes, so that the kernel requests them before the next read or seek to
            // the end of the file.
            if coherence.write_back.is_on() && coherence.cache.is_known(file.0) {
                coherence.expire(file.0).await;
            }
            if newly_shared {
                tokio::spawn(coherence.look_after(file.0));
            }
        })
    }

    /// Makes the kernel discard the attributes in replies that are in flight. These attributes have a lifetime, but may
    /// be older than the new delegation.
    fn delegation_gained(&self, file: FileId) {
        if let Some(coherence) = self.0.upgrade() {
            coherence.recent_attrs.changed();
            coherence.invalidate_attributes(file.0);
        }
    }

    fn resized(&self, file: FileId) -> BoxFuture<'static, ()> {
        let coherence = self.0.upgrade();
        Box::pin(async move {
            if let Some(coherence) = coherence {
                coherence.follow_size(file.0).await;
            }
        })
    }

    fn discard(&self, file: FileId) -> BoxFuture<'static, ()> {
        let coherence = self.0.upgrade();
        coherence.iter().for_each(|coherence| coherence.write_back.set_given_up(file.0, true));
        let flushed = self.flush_and_invalidate(file);
        Box::pin(async move {
            // The kernel tries to write back its dirty pages. The mount refuses these pages, so the kernel reports an
            // error to the program that wrote the pages.
            flushed.await;
            coherence.iter().for_each(|coherence| coherence.write_back.set_given_up(file.0, false));
        })
    }
}

impl Coherence {
    /// Records that a write-back of a file failed. The written bytes are lost, and the size that the kernel has
    /// cached may be wrong. The mount cannot correct the size here, because the kernel has the inode locked. So the
    /// file counts as shared for a while: the kernel requests attributes before each use, and receives the right
    /// size.
    pub(crate) fn write_failed(&self, number: u64) {
        let Some(coherence) = self.shared().filter(|_| self.write_back.is_written(number)) else { return };
        // The record of the kernel's cached size and times may be wrong, even if the kernel has just sent its time of
        // the last write in a SETATTR. So mark the cached size and times as unknown.
        self.size_may_change(number);
        if self.write_back.share(number) {
            tokio::spawn(coherence.look_after(number));
        }
        self.recent_attrs.changed();
        self.invalidate_attributes(number);
    }

    /// Returns whether the kernel itself, and not the program, made a request of `thread` at the end of a synchronous
    /// write(2).
    pub(crate) async fn ends_synchronous_write(&self, thread: u32) -> bool {
        // Boxed, because few mounts are synchronous, and otherwise every request reserves memory for this future.
        self.sync.is_on() && Box::pin(caller_syscall::look(thread, |call| call.writes())).await
    }

    /// Like [`Coherence::ends_synchronous_write`], but returns false if the flags of the system call may require that
    /// the bytes are durable when the call returns.
    pub(crate) async fn ends_lazy_write(&self, thread: u32) -> bool {
        // Boxed, because few mounts are synchronous, and otherwise every request reserves memory for this future.
        self.sync.is_on() && Box::pin(caller_syscall::look(thread, |call| call.writes_lazily())).await
    }

    /// Makes the kernel write synchronously as long as any file is shared, and ends synchronous writes otherwise.
    pub(super) async fn settle_sync(&self) {
        if self.write_back.is_on() {
            self.sync.settle(|| self.write_back.is_any_shared()).await;
        }
    }

    /// Requests the delegation of a shared file from the mgr at intervals, as long as the file is shared. If writes
    /// cannot be made synchronous, also makes the kernel drop the file's pages at short intervals.
    async fn look_after(self: Arc<Self>, number: u64) {
        let mut asked = Instant::now();
        while self.write_back.is_shared(number) {
            tokio::time::sleep(SHARED_KEPT).await;
            if !self.sync.is_on() {
                self.drop_pages(number).await;
            }
            if asked.elapsed() >= ASK_AGAIN {
                if let Err(error) = self.try_alone(number).await {
                    tracing::debug!(node = number, ?error, "cannot get the delegation of a shared file");
                }
                asked = Instant::now();
            }
        }
        self.settle_sync().await;
    }

    /// Requests the delegation of a shared file from the mgr. If the mgr grants the delegation and the kernel gets the
    /// right size, the file is no longer shared. Then the kernel may keep its pages.
    async fn try_alone(&self, number: u64) -> Result<(), Errno> {
        let Some(open) = self.opens.writing(number) else { return Ok(()) };
        if !open.file.ask_alone().await? {
            return Ok(());
        }
        self.drop_pages(number).await;
        let attrs = open.file.refresh().await?;
        let Some(coherence) = self.shared() else { return Ok(()) };
        if coherence.correct(number, attrs, false).await.unwrap_or(false) {
            self.write_back.end_sharing(number, &open.file);
        }
        Ok(())
    }
}
