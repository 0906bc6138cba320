//! Atomic appends to one file by several mounts: concurrent appends never overwrite each other.
//!
//! An appender locks a byte beyond the range that fcntl(2) can lock, asks the mgr for the size of the file, and writes
//! at the end. The client keeps this lock for a tenth of a second, unless the file is shared or the client recently
//! waited for another client's append lock. Appends in this time need neither a LOCK nor a size request.

use crate::inode::{Inode, Waited};
use crate::{File, Result};
use bytes::Bytes;
use nfs::spans::{LockKind, Span};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The byte that an appender locks: the first byte beyond the range that fcntl(2) can lock.
const APPENDING: Span = Span { first: 1 << 63, last: 1 << 63 };
/// The owner of the append lock. Callers must not use this owner number, because locks of the same owner do not
/// conflict with the append lock.
const APPENDER: u64 = u64::MAX;
/// How long the client keeps the append lock after an append, unless the file is shared or another client appended
/// recently. An appender on another client may wait this long for the lock.
const KEPT: Duration = Duration::from_millis(100);
/// After the client had to wait for another client's append lock: for this time, the client releases its append lock
/// directly after each append.
const CONTENDED: Duration = Duration::from_secs(1);

/// The state of the append lock. The inode's `appending` mutex protects it, so the appenders of one mount exclude each
/// other.
#[derive(Debug, Default)]
pub(crate) struct Appending {
    /// The open under which the client keeps the append lock, and when it releases the lock.
    kept: Option<(u64, Instant)>,
    /// Set when the client had to wait for another client's append lock: until this time, the client releases the lock
    /// after each append.
    contended: Option<Instant>,
}

impl File {
    /// Appends `data` at the current end of the file, and returns the offset at which `data` begins. If several mounts
    /// append at the same time, the file gets all of their data, one append after the other.
    ///
    /// The client gathers appended bytes like those of [`File::write_at`]; [`File::fsync`] or [`File::close`] makes
    /// them durable. With `sharing=close-to-open`, other clients see the bytes within a tenth of a second. This client
    /// may notice up to a tenth of a second late that another client truncated the file, or wrote without `append`.
    pub async fn append(&self, data: Bytes) -> Result<u64> {
        self.for_writing()?;
        let inode = self.inode();
        let mut appending = inode.appending().await;
        if appending.kept.is_some_and(|(_, until)| until <= Instant::now()) {
            inode.let_go(&mut appending).await;
        }
        let (alone, end) = match appending.kept {
            // The append lock does not stop clients that write or truncate without the lock, so get the current size.
            Some(_) => (true, inode.size_now().await?),
            None => self.begin(&mut appending).await?,
        };
        let written = self.write_at(end, data).await;
        if alone {
            return written.map(|()| end);
        }
        // Release the append lock, because another client may wait for it. The client first makes the appended bytes
        // durable.
        appending.kept = None;
        let given_back = inode.unlock(self.key(), APPENDER, APPENDING).await;
        written.and(given_back).map(|()| end)
    }

    /// Acquires the append lock and requests the size of the file. Returns whether the client may keep the lock, and
    /// the size.
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
    /// Makes appended bytes durable and releases the append lock. Keeps a write error for the next operation that
    /// reports errors.
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
            // If the client has acquired the append lock again since this timer started, the new timer releases the
            // lock.
            if appending.kept.is_some_and(|(_, kept)| kept <= until) {
                inode.let_go(&mut appending).await;
            }
        });
    }

    /// Releases the append lock if it was acquired under an open that is about to be closed.
    pub(crate) async fn end_appending(self: &Arc<Self>, key: u64) {
        let mut appending = self.appending().await;
        if appending.kept.is_some_and(|(holder, _)| holder == key) {
            self.let_go(&mut appending).await;
        }
    }
}
