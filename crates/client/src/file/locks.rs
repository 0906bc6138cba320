//! Byte-range locks of an open file.

pub use crate::inode::HeldLock;

use crate::{Error, File, Result};
use nfs::spans::{LockKind, Span};
use types::ByteRange;

/// The bytes of a range as locks have them.
fn span(range: ByteRange) -> Result<Span> {
    Span::new(range.offset, range.len).ok_or_else(|| Error::usage("a lock of no bytes, or of bytes past 2^64 - 1"))
}

/// Locks are advisory: they keep others' locks away and nothing else. They belong to an owner, a number that the caller
/// chooses, such as a process; owners of one mount with one number are one. A new lock takes the place of what its owner
/// held of those bytes, so that locks are split, joined and changed from one kind to the other in one step. A length of
/// `u64::MAX` reaches to the end of the file, however long it becomes. What was asked through a file goes when it is closed.
///
/// What one holder writes before it unlocks, the next one reads. When locks are lost, because the mgr did not hear of this
/// client for longer than a lease and somebody else wanted them, everything done through this file fails with
/// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) until the owner unlocks; what was written here under an exclusive
/// lock and is not durable by then is given up, for it must not land on what others write. Other files are not concerned.
impl File {
    /// Locks a range, and waits as long as others hold locks in the way. Shared locks need a file open for reading,
    /// exclusive ones a file open for writing. To give up waiting, drop the future.
    pub async fn lock(&self, owner: u64, range: ByteRange, kind: LockKind) -> Result<()> {
        self.inode().wait_for_lock(self.key(), owner, span(range)?, kind).await.map(drop)
    }

    /// Whether the file is open for what locks of this kind need.
    pub fn may_lock(&self, kind: LockKind) -> bool {
        self.inode().may_lock(self.key(), kind)
    }

    /// As [`File::lock`], without waiting: whether the range is locked now.
    pub async fn try_lock(&self, owner: u64, range: ByteRange, kind: LockKind) -> Result<bool> {
        self.inode().lock(self.key(), owner, span(range)?, kind, false).await
    }

    /// The lock that keeps `owner` from locking a range, if there is one.
    pub async fn test_lock(&self, owner: u64, range: ByteRange, kind: LockKind) -> Result<Option<HeldLock>> {
        self.inode().test_lock(owner, span(range)?, kind).await
    }

    /// Gives back what `owner` holds of a range, after what was written through this file is durable. To give back what is
    /// not held is no error.
    ///
    /// # Errors
    /// That locks were lost is told here, once; the owner may lock again then. When what was written could not be made
    /// durable, the range is unlocked all the same.
    pub async fn unlock(&self, owner: u64, range: ByteRange) -> Result<()> {
        self.inode().unlock(self.key(), owner, span(range)?).await
    }
}
