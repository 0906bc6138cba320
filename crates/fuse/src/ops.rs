//! The registry of operations: passes each request to the module in `ops/` that executes its operation.

mod copy;
mod create;
mod dirs;
mod fallocate;
mod flush;
mod fsync;
mod getattr;
mod init;
mod link;
mod locks;
mod lookup;
mod lseek;
mod mkdir;
mod mknod;
mod open;
mod read;
mod readlink;
mod release;
mod remove;
mod rename;
mod setattr;
mod statfs;
mod symlink;
mod write;
mod xattr;

use crate::Errno;
use crate::abi::opcode;
use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::{Op, Request};
use rustix::fs::OFlags;

const ENOSYS: Errno = Errno(38);

/// Executes a request.
pub(crate) async fn carry_out(fs: &FileSystem, request: Request) -> Answer {
    let header = &request.header;
    let _change = request.op.changes().then(|| fs.coherence.change_begins());
    match request.op {
        Op::Lookup { name } => lookup::lookup(fs, header, &name).await,
        Op::Getattr { fh } => getattr::getattr(fs, header, fh).await,
        Op::Read { fh, offset, size, past } => read::read(fs, header, fh, (offset, size), past).await,
        Op::Write { fh, offset, write_flags, flags, data } => {
            write::write(fs, header, fh, (offset, data), (write_flags, flags)).await
        }
        Op::Flush { fh, lock_owner } => flush::flush(fs, header, fh, lock_owner).await,
        // Boxed, so that READ, WRITE and other frequent operations reserve no memory for the largest future of the less
        // frequent operations.
        Op::Release { fh } => Box::pin(release::release(fs, fh)).await,
        _ => Box::pin(execute_rare(fs, request)).await,
    }
}

/// Executes a request that [`carry_out`] does not execute itself, because such requests are less frequent.
async fn execute_rare(fs: &FileSystem, request: Request) -> Answer {
    let header = &request.header;
    match request.op {
        Op::Init { major, minor, max_readahead, flags } => init::init(fs, (major, minor), max_readahead, flags),
        Op::Destroy => Ok(Reply::Done),
        Op::Setattr(args) => setattr::setattr(fs, header, &args).await,
        // After ENOSYS, the kernel sends no more ACCESS requests. The kernel then answers access(2) from its cached
        // attributes, and the server checks the permissions of each operation.
        Op::Access { .. } => Err(ENOSYS),
        Op::Readlink => readlink::readlink(fs, header).await,
        Op::Symlink { name, target } => symlink::symlink(fs, header, &name, &target).await,
        Op::Mknod { name, mode, rdev } => mknod::mknod(fs, header, &name, mode, rdev).await,
        Op::Mkdir { name, mode } => mkdir::mkdir(fs, header, &name, mode).await,
        Op::Unlink { name } => remove::unlink(fs, header, &name).await,
        Op::Rmdir { name } => remove::rmdir(fs, header, &name).await,
        Op::Rename { newdir, flags, name, newname } => rename::rename(fs, header, newdir, flags, &name, &newname).await,
        Op::Link { oldnode, newname } => link::link(fs, header, oldnode, &newname).await,
        Op::Open { flags, open_flags } => open::open(fs, header, flags, open_flags).await,
        Op::Create { name, flags, mode, open_flags } => {
            create::create(fs, header, &name, (flags, open_flags), mode).await
        }
        Op::Fsync { fh } => fsync::fsync(fs, header, fh).await,
        Op::Statfs => statfs::statfs(fs).await,
        // `sync_names` makes all changes durable that the mgr has confirmed before they were durable, such as
        // creations of files. Other changes of a directory are already durable, so FSYNCDIR does nothing else.
        Op::Fsyncdir { .. } => Ok(fs.callers.anybody().sync_names().await.map(|()| Reply::Done)?),
        Op::Setxattr { name, value, flags } => xattr::set(fs, header, &name, &value, flags).await,
        Op::Getxattr { name, size } => xattr::get(fs, header, &name, size).await,
        Op::Listxattr { size } => xattr::list(fs, header, size).await,
        Op::Removexattr { name } => xattr::remove(fs, header, &name).await,
        Op::Opendir => dirs::open(fs, header).await,
        Op::Readdir { fh, offset, size, plus } => dirs::read(fs, header, fh, (offset, size), plus).await,
        Op::Releasedir { fh } => dirs::release(fs, fh),
        Op::Getlk(lock) => locks::get(fs, header, &lock).await,
        Op::Setlk { lock, sleep } => locks::set(fs, header, &lock, sleep).await,
        Op::Fallocate { fh, offset, length, mode } => {
            fallocate::fallocate(fs, header, fh, (offset, length), mode).await
        }
        Op::Lseek { fh, offset, whence } => lseek::lseek(fs, fh, offset, whence).await,
        Op::CopyFileRange { fh_in, off_in, fh_out, off_out, len, .. } => {
            copy::copy(fs, header, (fh_in, off_in), (fh_out, off_out), len).await
        }
        Op::Forget { .. } | Op::BatchForget { .. } | Op::Interrupt { .. } => Ok(Reply::None),
        // `carry_out` executes these operations, so they do not arrive here.
        Op::Lookup { .. } | Op::Getattr { .. } | Op::Read { .. } | Op::Write { .. } => Err(ENOSYS),
        Op::Flush { .. } | Op::Release { .. } => Err(ENOSYS),
        Op::Syncfs | Op::Unknown => Err(ENOSYS),
    }
}

/// When the mount may abandon an operation because of a signal to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbandonWhen {
    /// The mount never abandons the operation. The operation changes something, and the caller needs to know whether
    /// the change succeeded.
    Never,
    /// The mount abandons the operation when the caller is being killed, because the caller does not need the reply.
    WhenKilled,
    /// The mount abandons the operation on any signal, as POSIX defines for operations that may wait for other
    /// programs.
    OnSignal,
}

/// The kinds of requests that concern a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryRequest {
    /// The request lists the entries of a directory.
    Entries,
    /// The request concerns a name in a directory.
    Name,
    /// The request concerns the attributes of an inode that may be a directory.
    Itself,
}

impl DirectoryRequest {
    /// Returns how the operation with this code concerns a directory, or `None` if it does not.
    pub(crate) fn of(operation: u32) -> Option<Self> {
        match operation {
            opcode::READDIR | opcode::READDIRPLUS => Some(DirectoryRequest::Entries),
            opcode::LOOKUP
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::CREATE => Some(DirectoryRequest::Name),
            opcode::GETATTR | opcode::STATX => Some(DirectoryRequest::Itself),
            _ => None,
        }
    }
}

impl Op {
    /// Returns whether the operation may change attributes that the reply does not contain.
    fn changes(&self) -> bool {
        match self {
            Op::Open { flags, .. } => OFlags::from_bits_retain(*flags).contains(OFlags::TRUNC),
            Op::Lookup { .. }
            | Op::Getattr { .. }
            | Op::Readlink
            | Op::Read { .. }
            | Op::Flush { .. }
            | Op::Release { .. }
            | Op::Fsync { .. }
            | Op::Statfs
            | Op::Getxattr { .. }
            | Op::Listxattr { .. }
            | Op::Opendir
            | Op::Readdir { .. }
            | Op::Releasedir { .. }
            | Op::Fsyncdir { .. }
            | Op::Getlk(_)
            | Op::Lseek { .. }
            | Op::Forget { .. }
            | Op::BatchForget { .. }
            | Op::Interrupt { .. } => false,
            _ => true,
        }
    }

    /// Returns when the mount may abandon the operation, even if it is only partly done.
    pub(crate) fn abandon_when(&self) -> AbandonWhen {
        match self {
            Op::Setlk { sleep: true, .. } => AbandonWhen::OnSignal,
            Op::Lookup { .. }
            | Op::Getattr { .. }
            | Op::Readlink
            | Op::Read { .. }
            | Op::Fsync { .. }
            | Op::Statfs
            | Op::Getxattr { .. }
            | Op::Listxattr { .. }
            | Op::Opendir
            | Op::Readdir { .. }
            | Op::Getlk(_)
            | Op::Lseek { .. } => AbandonWhen::WhenKilled,
            _ => AbandonWhen::Never,
        }
    }
}
