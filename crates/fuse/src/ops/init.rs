//! INIT: negotiates the features that the kernel and the file system use.

use crate::Errno;
use crate::abi::{self, init as flag};
use crate::fs::{Answer, FileSystem};
use crate::reply::Body;
use std::sync::atomic::Ordering::Relaxed;
use types::limits::PAYLOAD_MAX;

const EPROTO: Errno = Errno(71);
const ENODEV: Errno = Errno(19);

/// Features that the mount uses if the kernel offers them.
const WANTED: u64 = flag::ASYNC_READ
    | flag::POSIX_LOCKS
    | flag::FLOCK_LOCKS
    | flag::ATOMIC_O_TRUNC
    | flag::BIG_WRITES
    | flag::AUTO_INVAL_DATA
    | flag::DO_READDIRPLUS
    | flag::READDIRPLUS_AUTO
    | flag::ASYNC_DIO
    | flag::PARALLEL_DIROPS
    | flag::MAX_PAGES
    | flag::CACHE_SYMLINKS
    | flag::INIT_EXT
    | flag::DIRECT_IO_ALLOW_MMAP
    | flag::HANDLE_KILLPRIV_V2;
/// Largest number of background requests of the kernel, such as read-ahead, in flight at the same time.
const BACKGROUND: u16 = 128;
/// Size of a page in bytes.
const PAGE: usize = 4096;

/// Executes INIT: decides which of the kernel's features the mount uses.
pub(crate) fn init(fs: &FileSystem, (major, minor): (u32, u32), max_readahead: u32, offered: u64) -> Answer {
    if major != abi::MAJOR || minor < abi::MINOR_OLDEST {
        let (ours, least) = (abi::MAJOR, abi::MINOR_OLDEST);
        tracing::error!(
            "the kernel has FUSE {major}.{minor}, but a mount needs {ours}.{least} or later: use Linux 5.4 or later"
        );
        return Err(EPROTO);
    }
    let transport = fs.transport().ok_or(ENODEV)?;
    if fs.coherence.writes_back() && offered & flag::DIRECT_IO_ALLOW_MMAP == 0 {
        tracing::warn!(
            "write-back is disabled: before Linux 6.6, writes that bypass the page cache and cached writes would overwrite each other"
        );
        fs.coherence.write_back_unsupported();
    }
    let writeback = if fs.coherence.writes_back() { flag::WRITEBACK_CACHE } else { 0 };
    let flags = offered & (WANTED | writeback | transport.wants());
    transport.agreed(flags);
    fs.drops_privileges.store(flags & flag::HANDLE_KILLPRIV_V2 != 0, Relaxed);
    // The read-ahead limit in the reply to INIT cannot exceed the limit that the kernel offers. Root can set a larger
    // limit in sysfs after the mount.
    let wanted = fs.callers.anybody().policy().policy.read_ahead;
    let read_ahead = u32::try_from(wanted).unwrap_or(u32::MAX).min(max_readahead);
    let body = Body::with_capacity(64)
        .u32(abi::MAJOR)
        .u32(abi::MINOR.min(minor))
        .u32(read_ahead)
        .u32(flags as u32)
        .u16(BACKGROUND)
        .u16(BACKGROUND / 4 * 3)
        .u32(PAYLOAD_MAX as u32)
        // The granularity of file times in nanoseconds.
        .u32(1)
        .u16((PAYLOAD_MAX / PAGE) as u16)
        .u16(0)
        .u32((flags >> 32) as u32)
        .zeros(28);
    Ok(body.reply())
}
