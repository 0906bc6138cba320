//! COPY_FILE_RANGE: copies bytes within the file system, from iod to iod. A copy within one file moves the bytes
//! through the client.
//!
//! Without this operation, the kernel would copy the bytes from its page cache, but other clients may have changed
//! these bytes in the file.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::Body;
use crate::request::Header;
use types::ByteRange;

const EINVAL: Errno = Errno(22);
/// Maximum number of bytes of one request. Programs request the remaining bytes in further calls, and signals can
/// interrupt a program between two calls.
const MOST: u64 = 256 << 20;

/// Executes COPY_FILE_RANGE. `from` and `to` are pairs of a file handle and an offset.
pub(crate) async fn copy(fs: &FileSystem, header: &Header, from: (u64, u64), to: (u64, u64), len: u64) -> Answer {
    let (source, target) = (fs.opens.file(from.0)?, fs.opens.file(to.0)?);
    let range = ByteRange::new(from.1, len.min(MOST)).ok_or(EINVAL)?;
    fs.drop_privileges_of(header, &target).await?;
    let copied = target.file.copy_range(to.1, &source.file, range).await?;
    // After the reply, the kernel drops its cached pages of the target range. So the mount updates its own records of
    // these pages before the reply.
    fs.coherence.range_changed(target.file.node().id.0, ByteRange { offset: to.1, len: copied });
    fs.coherence.size_may_change(target.file.node().id.0);
    Ok(Body::with_capacity(8).u32(copied as u32).u32(0).reply())
}
