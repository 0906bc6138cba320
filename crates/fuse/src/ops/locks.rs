//! GETLK, SETLK and SETLKW: byte-range locks of fcntl(2), and those of flock(2), which cover the whole file.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::{Body, Reply};
use crate::request::Lock;
use client::LockKind;
use types::ByteRange;

const EAGAIN: Errno = Errno(11);
const EINVAL: Errno = Errno(22);
const READ: u32 = 0;
const WRITE: u32 = 1;
const UNLOCK: u32 = 2;
/// The kernel's last byte of a lock that reaches to the end of the file.
const END: u64 = i64::MAX as u64;

fn range(lock: &Lock) -> Result<ByteRange, Errno> {
    if lock.start > lock.end.min(END) {
        return Err(EINVAL);
    }
    // What lies behind the last byte that the kernel can name is not the caller's to lock.
    Ok(ByteRange { offset: lock.start, len: lock.end.min(END) - lock.start + 1 })
}

fn kind(lock: &Lock) -> Result<LockKind, Errno> {
    match lock.kind {
        READ => Ok(LockKind::Read),
        WRITE => Ok(LockKind::Write),
        _ => Err(EINVAL),
    }
}

/// The lock that is in the way of one like this, if there is one.
pub(crate) async fn get(fs: &FileSystem, lock: &Lock) -> Answer {
    let open = fs.opens.file(lock.fh)?;
    let body = Body::with_capacity(24);
    let Some(held) = open.file.test_lock(lock.owner, range(lock)?, kind(lock)?).await? else {
        return Ok(body.u64(0).u64(0).u32(UNLOCK).u32(0).reply());
    };
    let end = match held.range.len {
        u64::MAX => END,
        len => held.range.offset.saturating_add(len - 1).min(END),
    };
    let kind = if held.kind == LockKind::Write { WRITE } else { READ };
    // Whose it is cannot be told: a process of another host, or one of this that another host has as well.
    Ok(body.u64(held.range.offset.min(END)).u64(end).u32(kind).u32(0).reply())
}

/// Locks or unlocks a range; waits if that is wanted and somebody else has it locked.
pub(crate) async fn set(fs: &FileSystem, lock: &Lock, sleep: bool) -> Answer {
    let open = fs.opens.file(lock.fh)?;
    let range = range(lock)?;
    if lock.kind == UNLOCK {
        if open.lockers().contains(&lock.owner) {
            open.file.unlock(lock.owner, range).await?;
        }
        return Ok(Reply::Done);
    }
    let kind = kind(lock)?;
    // Before it is asked for: should the asker go away over it, closing gives it back.
    open.lockers().insert(lock.owner);
    if sleep {
        open.file.lock(lock.owner, range, kind).await?;
    } else if !open.file.try_lock(lock.owner, range, kind).await? {
        return Err(EAGAIN);
    }
    Ok(Reply::Done)
}
