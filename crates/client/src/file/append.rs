//! Atomic appends to one file by several mounts: every appender's bytes follow those of the appender before it.
//!
//! An appender locks one byte beyond the range that fcntl(2) can lock, asks for the size of the file, and writes at its
//! end. If no other client wants the lock, the client keeps it for a moment. Appends in that time need neither the lock
//! request nor the size request.

use crate::inode::{Inode, Waited};
use crate::{File, Result};
use bytes::Bytes;
use nfs::spans::{LockKind, Span};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The byte that an appender locks: one beyond the last that fcntl(2) can lock.
const APPENDING: Span = Span { first: 1 << 63, last: 1 << 63 };
/// The owner of that lock. A caller that uses the same owner may get the lock beside an appender of the same mount.
const APPENDER: u64 = u64::MAX;
/// How long the client keeps the lock while no other client has the file open. Other appenders may have to wait this
/// long.
const KEPT: Duration = Duration::from_millis(100);
/// How long the client does not keep the lock after it found another holder.
const CONTENDED: Duration = Duration::from_secs(1);

/// The state of the append lock, protected by the inode's mutex for the appenders of this mount.
#[derive(Debug, Default)]
pub(crate) struct Appending {
    /// The open under which the lock is held, and the latest time of its release.
    kept: Option<(u64, Instant)>,
    /// Other clients want the lock too; it is not kept before this time.
    contended: Option<Instant>,
}

impl File {
    /// Appends `data` at the current end of the file and returns the offset of that end. If several mounts append at
    /// the same time, all bytes are kept, one append after another.
    ///
    /// The client gathers the bytes as those of [`File::write_at`], and [`File::fsync`] or [`File::close`] makes them
    /// durable. With `sharing=close-to-open` other clients see the bytes within a tenth of a second. For the same time
    /// this mount may assume that the end of the file has not moved.
    pub async fn append(&self, data: Bytes) -> Result<u64> {
        self.for_writing()?;
        let inode = self.inode();
        let mut appending = inode.appending().await;
        if appending.kept.is_some_and(|(_, until)| until <= Instant::now()) {
            inode.let_go(&mut appending).await;
        }
        let (alone, end) = match appending.kept {
            // The lock excludes other appenders, but not clients that write or truncate.
            Some(_) => (true, inode.size_now().await?),
            None => self.begin(&mut appending).await?,
        };
        let written = self.write_at(end, data).await;
        if alone {
            return written.map(|()| end);
        }
        // Another client's turn is next, and that client must see the bytes.
        appending.kept = None;
        let given_back = inode.unlock(self.key(), APPENDER, APPENDING).await;
        written.and(given_back).map(|()| end)
    }

    /// Acquires the lock and fetches the size of the file; returns whether the lock may be kept, and the size.
    async fn begin(&self, appending: &mut Appending) -> Result<(bool, u64)> {
        let inode = self.inode();
        if inode.wait_for_lock(self.key(), APPENDER, APPENDING, LockKind::Write).await? == Waited(true) {
            appending.contended = Some(Instant::now() + CONTENDED);
        }
        let until = Instant::now() + KEPT;
        appending.kept = Some((self.key(), until));
        let end = match self.refresh().await {
            Ok(attrs) => attrs.size,
            Err(error) => {
                inode.let_go(appending).await;
                return Err(error);
            }
        };
        if appending.contended.is_some_and(|end| Instant::now() < end) || inode.is_shared() {
            return Ok((false, end));
        }
        inode.let_go_at(until);
        Ok((true, end))
    }
}

impl Inode {
    /// Makes appended bytes durable and releases the lock. The next operation reports write errors.
    async fn let_go(self: &Arc<Self>, appending: &mut Appending) {
        let Some((key, _)) = appending.kept.take() else { return };
        if let Err(error) = self.unlock_quietly(key, APPENDER, APPENDING).await {
            tracing::debug!(file = %self.node.id, "releasing the append lock: {error}");
        }
    }

    fn let_go_at(self: &Arc<Self>, until: Instant) {
        let inode = Arc::downgrade(self);
        net::task::spawn_on(&self.mount.runtime, async move {
            tokio::time::sleep_until(until).await;
            let Some(inode) = inode.upgrade() else { return };
            let mut appending = inode.appending().await;
            // The lock may have been released and acquired again.
            if appending.kept.is_some_and(|(_, kept)| kept <= until) {
                inode.let_go(&mut appending).await;
            }
        });
    }

    /// Releases the lock that is kept under an open which is about to be closed.
    pub(crate) async fn end_appending(self: &Arc<Self>, key: u64) {
        let mut appending = self.appending().await;
        if appending.kept.is_some_and(|(holder, _)| holder == key) {
            self.let_go(&mut appending).await;
        }
    }
}
