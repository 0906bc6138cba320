//! Appending: of several who append to one file through whichever mounts, all find their bytes there, one behind the other.
//!
//! Whoever appends holds a lock of a byte behind all that fcntl(2) can lock, asks how long the file is, and writes behind its end. While
//! nobody else wants the lock it is kept for a moment: what is appended meanwhile needs neither it nor the question.

use crate::inode::{Inode, Waited};
use crate::{File, Result};
use bytes::Bytes;
use nfs::spans::{LockKind, Span};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The byte that is locked while somebody appends: one behind the last that fcntl(2) can lock.
const APPENDING: Span = Span { first: 1 << 63, last: 1 << 63 };
/// The owner of that lock. Others who choose it may be let in beside an appender of the same mount.
const APPENDER: u64 = u64::MAX;
/// For how long the lock is kept where no other client has the file open: as long others may wait who begin to append.
const KEPT: Duration = Duration::from_millis(100);
/// For how long it is not kept after somebody else was found to have it.
const CONTENDED: Duration = Duration::from_secs(1);

/// What is known of the lock of appenders, under the lock of those of this mount.
#[derive(Debug, Default)]
pub(crate) struct Appending {
    /// It is held under this open, until then at the latest.
    kept: Option<(u64, Instant)>,
    /// Others want it too; it is not kept before then.
    contended: Option<Instant>,
}

impl File {
    /// Writes `data` at the end of the file, wherever that is by then, and answers where that was. Of several who append at
    /// the same time, through whichever mounts, all find their bytes there, one behind the other.
    ///
    /// The bytes are gathered as those of [`File::write_at`] are, and like them durable with [`File::fsync`] or [`File::close`]. With
    /// `sharing=close-to-open` other clients find them within a tenth of a second, and as long this mount may take the end of the file to be where it
    /// left it.
    pub async fn append(&self, data: Bytes) -> Result<u64> {
        self.for_writing()?;
        let inode = self.inode();
        let mut appending = inode.appending().await;
        if appending.kept.is_some_and(|(_, until)| until <= Instant::now()) {
            inode.let_go(&mut appending).await;
        }
        let (alone, end) = match appending.kept {
            // The lock keeps off others that append, and not those that write or truncate.
            Some(_) => (true, inode.size_now().await?),
            None => self.begin(&mut appending).await?,
        };
        let written = self.write_at(end, data).await;
        if alone {
            return written.map(|()| end);
        }
        // It is somebody else's turn, who has to find the bytes.
        appending.kept = None;
        let given_back = inode.unlock(self.key(), APPENDER, APPENDING).await;
        written.and(given_back).map(|()| end)
    }

    /// Gets the lock and the size of the file; whether the lock may be kept, and that size.
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
    /// Makes durable what was appended, and gives the lock back. Failures of writes are told by what comes next.
    async fn let_go(self: &Arc<Self>, appending: &mut Appending) {
        let Some((key, _)) = appending.kept.take() else { return };
        if let Err(error) = self.unlock_quietly(key, APPENDER, APPENDING).await {
            tracing::debug!(file = %self.node.id, "giving back the lock of appenders: {error}");
        }
    }

    fn let_go_at(self: &Arc<Self>, until: Instant) {
        let inode = Arc::downgrade(self);
        net::task::spawn_on(&self.mount.runtime, async move {
            tokio::time::sleep_until(until).await;
            let Some(inode) = inode.upgrade() else { return };
            let mut appending = inode.appending().await;
            // It may have been given back, and be held anew.
            if appending.kept.is_some_and(|(_, kept)| kept <= until) {
                inode.let_go(&mut appending).await;
            }
        });
    }

    /// An open is about to be closed: the lock that is kept under it is given back.
    pub(crate) async fn end_appending(self: &Arc<Self>, key: u64) {
        let mut appending = self.appending().await;
        if appending.kept.is_some_and(|(holder, _)| holder == key) {
            self.let_go(&mut appending).await;
        }
    }
}
