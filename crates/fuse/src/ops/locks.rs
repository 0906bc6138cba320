//! GETLK, SETLK and SETLKW: byte-range locks of fcntl(2), and the locks of flock(2), which cover the whole file.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::opens::OpenFile;
use crate::reply::{Body, Reply};
use crate::request::{Header, Lock};
use client::{File, LockKind, OpenFlags, OpenOptions};
use types::{ByteRange, Status};

const EAGAIN: Errno = Errno(11);
const EINVAL: Errno = Errno(22);
const READ: u32 = 0;
const WRITE: u32 = 1;
const UNLOCK: u32 = 2;
/// The offset of the last byte in the kernel's request for a lock that extends to the end of the file (`OFFSET_MAX`).
const END: u64 = i64::MAX as u64;

fn range(lock: &Lock) -> Result<ByteRange, Errno> {
    if lock.start > lock.end.min(END) {
        return Err(EINVAL);
    }
    // No byte of a file has an offset above `END`, so end the range of the lock there.
    Ok(ByteRange { offset: lock.start, len: lock.end.min(END) - lock.start + 1 })
}

fn kind(lock: &Lock) -> Result<LockKind, Errno> {
    match lock.kind {
        READ => Ok(LockKind::Read),
        WRITE => Ok(LockKind::Write),
        _ => Err(EINVAL),
    }
}

/// Executes GETLK: returns a conflicting lock, or that there is none.
pub(crate) async fn get(fs: &FileSystem, header: &Header, lock: &Lock) -> Answer {
    let open = fs.opens.file(lock.fh)?;
    let (lockers, range, kind) = (fs.opens.lockers(), range(lock)?, kind(lock)?);
    let held = loop {
        let mark = lockers.mark();
        let found = open.file.test_lock(lock.owner, range, kind).await?;
        let owner = found.as_ref().and_then(|held| held.owner);
        if owner.is_none() || !lockers.may_be_free(header.node, owner, mark).await {
            break found;
        }
    };
    let body = Body::with_capacity(24);
    let Some(held) = held else {
        return Ok(body.u64(0).u64(0).u32(UNLOCK).u32(0).reply());
    };
    let end = match held.range.len {
        u64::MAX => END,
        len => held.range.offset.saturating_add(len - 1).min(END),
    };
    let kind = if held.kind == LockKind::Write { WRITE } else { READ };
    // The process id of the conflicting lock is unknown if the owner of this lock uses another mount. Then the reply
    // has the id 0.
    let pid = held.owner.and_then(|owner| lockers.process(header.node, owner)).unwrap_or(0);
    Ok(body.u64(held.range.offset.min(END)).u64(end).u32(kind).u32(pid).reply())
}

/// Executes SETLK and SETLKW: locks or unlocks a range. With `sleep`, waits until conflicting locks end.
pub(crate) async fn set(fs: &FileSystem, header: &Header, lock: &Lock, sleep: bool) -> Answer {
    let open = fs.opens.file(lock.fh)?;
    // Without a write delegation, other clients may write the file. At the lock, the page cache may lack their writes.
    // At the unlock, the page cache may have writes that other clients cannot see yet. So both make the kernel write
    // back and drop its pages. Check for the delegation each time: the mount may lose it while the call waits for a
    // lock.
    let cached = || open.pages.is_cached() && !open.file.is_alone();
    let range = range(lock)?;
    if lock.kind == UNLOCK {
        if fs.opens.lockers().process(header.node, lock.owner).is_some() {
            if cached() {
                fs.coherence.drop_pages(header.node).await;
            }
            open.file.unlock(lock.owner, range).await?;
        }
        return Ok(Reply::Done);
    }
    let kind = kind(lock)?;
    // Record the lock owner before the mount requests the lock from the mgr. If the caller ends before the mgr
    // replies, the close of its descriptor releases the lock.
    fs.opens.asks_lock(&open, lock.owner, (lock.pid, lock.fh, lock.flock)).await;
    if !take(fs, header, &open, lock, (range, kind), sleep).await? {
        return Err(EAGAIN);
    }
    if cached()
        && let Err(error) = fs.coherence.lock_taken(header.pid, header.node, &open).await
    {
        // The mount has got the lock, but not the current attributes of the file. The caller receives this error, and
        // will not release the lock, so release the lock here.
        open.for_locks.get().unwrap_or(&open.file).unlock(lock.owner, range).await?;
        return Err(error);
    }
    Ok(Reply::Done)
}

/// Tries to lock a range of a file for a caller, and returns whether the caller has got the lock. Servers and fcntl(2)
/// require an open for writing for an exclusive lock, and an open for reading for a shared lock (RFC 8881 §18.10.4,
/// NFS4ERR_OPENMODE). flock(2) has no such rule, so the mount opens the file a second time for a flock(2) lock.
async fn take(
    fs: &FileSystem,
    header: &Header,
    open: &OpenFile,
    lock: &Lock,
    what: (ByteRange, LockKind),
    sleep: bool,
) -> Result<bool, Errno> {
    let through = match open.for_locks.get() {
        Some(file) => file,
        None if open.file.may_lock(what.1) || !lock.flock => &open.file,
        None => {
            let file = open.for_locks.get_or_try_init(|| Box::pin(open_for_locks(fs, header))).await?;
            // A lock through the second open does not replace a lock that the same owner got through the first open, so
            // release that lock first. Another caller may get a lock in between: flock(2) does not convert atomically.
            open.file.unlock(lock.owner, what.0).await?;
            file
        }
    };
    if sleep {
        through.lock(lock.owner, what.0, what.1).await?;
        return Ok(true);
    }
    let lockers = fs.opens.lockers();
    loop {
        let mark = lockers.mark();
        if through.try_lock(lock.owner, what.0, what.1).await? {
            return Ok(true);
        }
        if !lockers.may_be_free(header.node, None, mark).await {
            return Ok(false);
        }
    }
}

/// Opens a file for reading and writing, with the mount's own credentials if necessary. The mount uses this open only
/// for flock(2), and a caller that has the file open may use flock(2).
async fn open_for_locks(fs: &FileSystem, header: &Header) -> Result<File, Errno> {
    let node = fs.node(header)?;
    let flags = OpenFlags::READ_WRITE;
    let options = OpenOptions { flags, ..OpenOptions::default() };
    match fs.acting(header).open_with(&node, options).await {
        Err(error) if error.is(Status::Access) => Ok(fs.callers.anybody().open_with(&node, options).await?),
        outcome => Ok(outcome?),
    }
}
