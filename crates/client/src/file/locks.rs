//! Byte-range locks of an open file.

pub use crate::inode::HeldLock;

use crate::{Error, File, Result};
use nfs::spans::{LockKind, Span};
use types::ByteRange;

/// Converts a byte range to the span of a lock.
fn span(range: ByteRange) -> Result<Span> {
    Span::new(range.offset, range.len)
        .ok_or_else(|| Error::usage("the byte range of a lock is empty or ends past 2^64 - 1"))
}

/// Locks are advisory: a lock only excludes conflicting locks. A lock belongs to an owner, a number that the caller
/// chooses, such as a process. Equal numbers in one mount are the same owner. A new lock replaces all locks of its
/// owner on those bytes: one step splits, joins or changes locks from one kind to the other. A length of `u64::MAX`
/// reaches to the end of the file, however long it becomes. Closing a file releases the locks that were requested
/// through it.
///
/// The next lock holder reads the bytes that the previous holder wrote before it unlocked. Locks are lost if the mgr
/// did not hear from this client for longer than a lease and another client requested a conflicting lock. Then every
/// operation through this file fails with [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) until the owner unlocks.
/// The client drops bytes written here under a lost exclusive lock that are not durable, because they must not
/// overwrite the bytes that other clients write. Other files are not affected.
impl File {
    /// Locks a range, and waits while other owners hold conflicting locks. Shared locks need a file open for reading,
    /// exclusive locks need a file open for writing. To stop waiting, drop the future.
    pub async fn lock(&self, owner: u64, range: ByteRange, kind: LockKind) -> Result<()> {
        self.inode().wait_for_lock(self.key(), owner, span(range)?, kind).await.map(drop)
    }

    /// Returns whether the file is open in the mode that locks of this kind need.
    pub fn may_lock(&self, kind: LockKind) -> bool {
        self.inode().may_lock(self.key(), kind)
    }

    /// Tries to lock like [`File::lock`], without waiting; returns whether the range is locked now.
    pub async fn try_lock(&self, owner: u64, range: ByteRange, kind: LockKind) -> Result<bool> {
        self.inode().lock(self.key(), owner, span(range)?, kind, false).await
    }

    /// Returns a lock that prevents `owner` from locking a range, if there is one.
    pub async fn test_lock(&self, owner: u64, range: ByteRange, kind: LockKind) -> Result<Option<HeldLock>> {
        self.inode().test_lock(owner, span(range)?, kind).await
    }

    /// Makes the writes through this file durable, then releases the locks of `owner` on a range. Releasing a range
    /// that is not held is no error.
    ///
    /// # Errors
    /// Reports lost locks once; then the owner may lock again. If the writes could not be made durable, the range is
    /// nevertheless unlocked.
    pub async fn unlock(&self, owner: u64, range: ByteRange) -> Result<()> {
        self.inode().unlock(self.key(), owner, span(range)?).await
    }
}
