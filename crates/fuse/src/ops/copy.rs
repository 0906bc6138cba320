//! COPY_FILE_RANGE: copies within the file system, from iod to iod, and within one file through the client.
//!
//! The kernel itself would copy the bytes in its page cache, which other clients may have changed since.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::Body;
use crate::request::Header;
use types::ByteRange;

const EINVAL: Errno = Errno(22);
/// Maximum number of bytes of one request: programs ask again for the rest, and can be interrupted in between.
const MOST: u64 = 256 << 20;

/// Executes COPY_FILE_RANGE. `from` and `to` are handles and offsets.
pub(crate) async fn copy(fs: &FileSystem, header: &Header, from: (u64, u64), to: (u64, u64), len: u64) -> Answer {
    let (source, target) = (fs.opens.file(from.0)?, fs.opens.file(to.0)?);
    let range = ByteRange::new(from.1, len.min(MOST)).ok_or(EINVAL)?;
    fs.drop_privileges_of(header, &target).await?;
    let copied = target.file.copy_range(to.1, &source.file, range).await?;
    // The kernel drops its pages of the target range.
    fs.coherence.range_changed(target.file.node().id.0, ByteRange { offset: to.1, len: copied });
    fs.coherence.size_may_change(target.file.node().id.0);
    Ok(Body::with_capacity(8).u32(copied as u32).u32(0).reply())
}
