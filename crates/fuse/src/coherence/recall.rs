//! Recalls of delegations by the mgr, and the files that are shared from then on though the kernel writes them to its
//! page cache.

use crate::coherence::Coherence;
use crate::coherence::pages::SHARED_KEPT;
use crate::{Errno, caller_syscall};
use client::Keeper;
use futures_util::future::BoxFuture;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use types::FileId;

/// How often the mount tries to get the delegation of a shared file again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The handler of delegation recalls: makes the kernel write back and forget its data of a file that another client
/// wants.
pub(super) struct Recalled(pub(super) Weak<Coherence>);

impl Keeper for Recalled {
    fn hand_on(&self, file: FileId) -> BoxFuture<'static, ()> {
        let coherence = self.0.upgrade();
        Box::pin(async move {
            let Some(coherence) = coherence else { return };
            let news = coherence.write_back.share(file.0);
            coherence.recent_attrs.changed();
            if news {
                // Before the kernel writes its pages back: later writes are written back before write(2) returns.
                coherence.settle_sync().await;
            }
            // The kernel's cached attributes and pages, read or mapped, are as old as the delegation that this client
            // returns.
            if coherence.cache.is_known(file.0) {
                coherence.wait_for_quiet(file.0).await;
                coherence.forget_pages(file.0).await;
            }
            if let Some(open) = coherence.opens.writing(file.0).filter(|_| news) {
                // Pages that the kernel has behind this end from now on, and has not read from here, are zeros of its
                // own.
                coherence.write_back.reaches(file.0, open.file.attrs().size);
            }
            // Before a program reads cached pages again, or asks for the end of the file.
            if coherence.write_back.is_on() && coherence.cache.is_known(file.0) {
                coherence.expire(file.0).await;
            }
            if news {
                tokio::spawn(coherence.look_after(file.0));
            }
        })
    }

    /// Makes the kernel discard the attributes in answers to its pending requests. These attributes may be older than
    /// the delegation, but would carry a lifetime.
    fn gained(&self, file: FileId) {
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

    fn give_up(&self, file: FileId) -> BoxFuture<'static, ()> {
        let coherence = self.0.upgrade();
        coherence.iter().for_each(|coherence| coherence.write_back.set_given_up(file.0, true));
        let handing_on = self.hand_on(file);
        Box::pin(async move {
            // The kernel tries to write back, and reports the error to the writing program.
            handing_on.await;
            coherence.iter().for_each(|coherence| coherence.write_back.set_given_up(file.0, false));
        })
    }
}

impl Coherence {
    /// Records that written-back bytes of a file are lost, and perhaps the end of the file that the kernel has cached.
    /// The file counts as shared for a while. So the kernel asks for the attributes before it returns them or writes,
    /// and then receives the right size. The kernel has the inode locked at this moment, so the mount cannot correct it
    /// here.
    pub(crate) fn write_failed(&self, number: u64) {
        let Some(coherence) = self.shared().filter(|_| self.write_back.is_written(number)) else { return };
        // With the time, the kernel may just have reported that it has written everything back.
        self.size_may_change(number);
        if self.write_back.share(number) {
            tokio::spawn(coherence.look_after(number));
        }
        self.recent_attrs.changed();
        self.invalidate_attributes(number);
    }

    /// Returns whether a request ends a write(2), because writes are synchronous, and is not a request of the program.
    pub(crate) async fn ends_synchronous_write(&self, thread: u32) -> bool {
        // Boxed, because the future is rarely needed, and every request would reserve memory for it.
        self.sync.is_on() && Box::pin(caller_syscall::look(thread, |call| call.writes())).await
    }

    /// As [`Coherence::ends_synchronous_write`], where the program has not asked for its bytes to be durable by then.
    pub(crate) async fn ends_lazy_write(&self, thread: u32) -> bool {
        // Boxed, because the future is rarely needed, and every request would reserve memory for it.
        self.sync.is_on() && Box::pin(caller_syscall::look(thread, |call| call.writes_lazily())).await
    }

    /// Makes the mount write synchronously while any file is written to the page cache and other clients have it open.
    pub(super) async fn settle_sync(&self) {
        if self.write_back.is_on() {
            self.sync.settle(|| self.write_back.is_any_shared()).await;
        }
    }

    /// Tries to get the delegation of a shared file again, as long as the file is written to the page cache. Where
    /// writes cannot be made synchronous, also makes the kernel forget the file's pages at short intervals.
    async fn look_after(self: Arc<Self>, number: u64) {
        let mut asked = Instant::now();
        while self.write_back.is_shared(number) {
            tokio::time::sleep(SHARED_KEPT).await;
            if !self.sync.is_on() {
                self.forget_pages(number).await;
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

    /// Asks for the delegation of a shared file. Once the mount has it and the kernel has the right size, pages may
    /// stay.
    async fn try_alone(&self, number: u64) -> Result<(), Errno> {
        let Some(open) = self.opens.writing(number) else { return Ok(()) };
        if !open.file.ask_alone().await? {
            return Ok(());
        }
        self.forget_pages(number).await;
        let attrs = open.file.refresh().await?;
        let Some(coherence) = self.shared() else { return Ok(()) };
        if coherence.correct(number, attrs, false).await.unwrap_or(false) {
            self.write_back.end_sharing(number, &open.file);
        }
        Ok(())
    }
}
