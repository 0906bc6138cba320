//! GETLK, SETLK and SETLKW: byte-range locks of fcntl(2), and those of flock(2), which cover the whole file.

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
    // A process that uses another mount cannot be told.
    let pid = held.owner.and_then(|owner| lockers.process(header.node, owner)).unwrap_or(0);
    Ok(body.u64(held.range.offset.min(END)).u64(end).u32(kind).u32(pid).reply())
}

/// Locks or unlocks a range; waits if that is wanted and somebody else has it locked.
pub(crate) async fn set(fs: &FileSystem, header: &Header, lock: &Lock, sleep: bool) -> Answer {
    let open = fs.opens.file(lock.fh)?;
    // What others wrote under their locks before is not in the page cache, and what was written under this one is nowhere else. Whether
    // there are others may change while a lock is waited for.
    let cached = || open.cached && !open.file.is_alone();
    let range = range(lock)?;
    if lock.kind == UNLOCK {
        if fs.opens.lockers().process(header.node, lock.owner).is_some() {
            if cached() {
                fs.forget_pages(header.node).await;
            }
            open.file.unlock(lock.owner, range).await?;
        }
        return Ok(Reply::Done);
    }
    let kind = kind(lock)?;
    // Before it is asked for: should the asker go away over it, closing gives it back.
    fs.opens.asks_lock(&open, lock.owner, (lock.pid, lock.fh, lock.flock)).await;
    if !take(fs, header, &open, lock, (range, kind), sleep).await? {
        return Err(EAGAIN);
    }
    if cached()
        && let Err(error) = fs.begin_anew(header, &open).await
    {
        // Who is told that it has no lock does not give it back.
        open.for_locks.get().unwrap_or(&open.file).unlock(lock.owner, range).await?;
        return Err(error);
    }
    Ok(Reply::Done)
}

/// Whether the lock is had. Servers want a file open for writing under an exclusive lock, and for reading under a shared one (RFC 8881
/// §18.10.4, NFS4ERR_OPENMODE), and so does fcntl(2); flock(2) does not, so for that the file is opened once more.
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
            // What it has by the other open would be held beside; flock(2) may let others in while it changes the kind.
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

/// Opens a file for reading and writing, if need be in the mount's own name: who has it open may lock it, and nothing else comes of this.
async fn open_for_locks(fs: &FileSystem, header: &Header) -> Result<File, Errno> {
    let node = fs.node(header)?;
    let flags = OpenFlags::READ_WRITE;
    let options = OpenOptions { flags, ..OpenOptions::default() };
    match fs.acting(header).open_with(&node, options).await {
        Err(error) if error.is(Status::Access) => Ok(fs.callers.anybody().open_with(&node, options).await?),
        outcome => Ok(outcome?),
    }
}
