//! Constants of the kernel's FUSE protocol, version 7, named as in Linux `include/uapi/linux/fuse.h`.

/// The major version of the FUSE protocol.
pub const MAJOR: u32 = 7;
/// The newest minor protocol version whose messages this module knows.
pub const MINOR: u32 = 42;
/// The oldest supported minor protocol version, from Linux 5.4: the first version with `copy_file_range` and requests
/// of 1 MiB.
pub const MINOR_OLDEST: u32 = 31;

/// Length of `fuse_in_header` in bytes.
pub const IN_HEADER: usize = 40;
/// Length of `fuse_out_header` in bytes.
pub const OUT_HEADER: usize = 16;
/// The node id of the root directory (`FUSE_ROOT_ID`).
pub const ROOT: u64 = 1;

/// The kinds of FUSE requests (`enum fuse_opcode`).
#[allow(missing_docs)]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const STATX: u32 = 52;
}

/// Features that the kernel and the mount negotiate in INIT (`FUSE_INIT` flags; flags from bit 32 on are in
/// `flags2`).
#[allow(missing_docs)]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// The kernel requests expired attributes before it reads from cached pages, and drops these pages if the
    /// modification time has changed.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Flags in the reply to OPEN and CREATE (`FOPEN_*`).
#[allow(missing_docs)]
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Which attributes a SETATTR sets (`FATTR_*`).
#[allow(missing_docs)]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Requests over io_uring (Linux `Documentation/filesystems/fuse/fuse-io-uring.rst`).
pub mod uring {
    /// Length of `fuse_uring_req_header` in bytes.
    pub const HEADER: usize = 288;
    /// The offset in `fuse_uring_req_header` of the fixed-size arguments, which follow the header of the request or
    /// reply.
    pub const FIXED_AT: usize = 128;
    /// Bytes that `fuse_uring_req_header` reserves for the fixed-size arguments.
    pub const FIXED: usize = 128;
    /// The offset in `fuse_uring_req_header` of `fuse_uring_ent_in_out`: flags, the commit id for the reply, and the
    /// payload length in bytes.
    pub const IN_OUT: usize = 256;
    /// Command (`enum fuse_uring_cmd`): registers a ring entry. Then the kernel may put a request into the entry.
    pub const REGISTER: u32 = 1;
    /// Command (`enum fuse_uring_cmd`): the kernel takes the reply from a ring entry, and may put the next request
    /// into it.
    pub const COMMIT_AND_FETCH: u32 = 2;
    /// The offset of `len` in `struct io_uring_sqe`.
    pub const SQE_LEN: usize = 24;
    /// The file that shows whether the kernel offers FUSE over io_uring: Y or N.
    pub const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
}

/// Flag of OPEN: a program opens the file to execute it. The kernel sends its internal flag `__FMODE_EXEC` with the
/// flags of open(2).
pub const FMODE_EXEC: u32 = 1 << 5;
/// Flag of GETATTR: the field `fh` is valid and names an open file.
pub const GETATTR_FH: u32 = 1 << 0;
/// Flag of READ: the field `lock_owner` is valid. The kernel does not set this flag in READs that fill its page cache.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// Flag of WRITE: the bytes come from the page cache.
pub const WRITE_CACHE: u32 = 1 << 0;
/// Flag of OPEN and CREATE: the caller truncates the file, and the mount has to clear the setuid and setgid bits.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// Flag of WRITE: the mount has to clear the setuid and setgid bits of the file.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Flag of GETLK, SETLK and SETLKW: the lock is a flock(2) lock.
pub const LK_FLOCK: u32 = 1 << 0;

/// Notifications to the kernel (`enum fuse_notify_code`).
pub mod notify {
    /// The kernel has to drop the cached attributes of an inode and, with a byte range, the cached pages of this
    /// range.
    pub const INVAL_INODE: i32 = 2;
    /// The kernel puts bytes from the mount into the page cache of an inode; the bytes may extend the file.
    pub const STORE: i32 = 4;
    /// The kernel may drop the listed inodes if they are unused. The body of the notification has the number of
    /// inodes, twelve bytes of padding, and the node ids.
    pub const PRUNE: i32 = 9;
}
