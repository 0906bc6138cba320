//! Byte-range locks of an open file.

pub use crate::inode::HeldLock;

use crate::{Error, File, Result};
use nfs::spans::{LockKind, Span};
use types::ByteRange;

/// Converts a byte range to the range of a lock.
fn span(range: ByteRange) -> Result<Span> {
    Span::new(range.offset, range.len)
        .ok_or_else(|| Error::usage("the byte range of a lock is empty or ends past 2^64 - 1"))
}

/// Advisory byte-range locks: a lock conflicts only with other locks, not with I/O.
///
/// A lock belongs to an owner, a number that the caller chooses, for example for a process. Equal numbers in one mount
/// mean the same owner. A new lock atomically replaces all locks of its owner on its bytes. A length of `u64::MAX`
/// means up to the end of the file, however long it becomes. Closing a file releases the locks that were requested
/// through it.
///
/// A lock holder sees all bytes that the previous holder wrote before it unlocked. The client loses a lock if its lease
/// expires and the mgr grants a conflicting lock to another client. Then every operation through this file fails with
/// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost), until the owner unlocks. If the lost lock was exclusive, the
/// client drops bytes that are not durable, because they could overwrite newer bytes of other clients. Other files are
/// not affected.
impl File {
    /// Locks a range, and waits while another owner holds a conflicting lock. A shared lock requires that the file is
    /// open for reading; an exclusive lock requires that it is open for writing. Dropping the future cancels the wait.
    pub async fn lock(&self, owner: u64, range: ByteRange, kind: LockKind) -> Result<()> {
        self.inode().wait_for_lock(self.key(), owner, span(range)?, kind).await.map(drop)
    }

    /// Returns whether the open has the access mode that a lock of this kind requires.
    pub fn may_lock(&self, kind: LockKind) -> bool {
        self.inode().may_lock(self.key(), kind)
    }

    /// Tries to lock like [`File::lock`] without waiting; returns whether the owner holds the lock now.
    pub async fn try_lock(&self, owner: u64, range: ByteRange, kind: LockKind) -> Result<bool> {
        self.inode().lock(self.key(), owner, span(range)?, kind, false).await
    }

    /// Returns a lock that would conflict with a lock of `owner` on this range, if there is one.
    pub async fn test_lock(&self, owner: u64, range: ByteRange, kind: LockKind) -> Result<Option<HeldLock>> {
        self.inode().test_lock(owner, span(range)?, kind).await
    }

    /// Makes writes through this file durable, then releases the locks of `owner` on a range. If the owner holds no
    /// locks there, does nothing.
    ///
    /// # Errors
    /// If the owner lost locks, reports the loss once; after this report the owner may lock again. If writes could not
    /// be made durable, the locks are released nevertheless.
    pub async fn unlock(&self, owner: u64, range: ByteRange) -> Result<()> {
        self.inode().unlock(self.key(), owner, span(range)?).await
    }
}
