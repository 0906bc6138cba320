//! COPY_FILE_RANGE: copying within the file system, from iod to iod; within one file, through the client. The kernel would copy what it has in its page
//! cache, which others may have changed since.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::Body;
use crate::request::Header;
use types::ByteRange;

const EINVAL: Errno = Errno(22);
/// Most bytes of one request: programs ask again for the rest, and may be stopped in between.
const MOST: u64 = 256 << 20;

/// See the head of this file. `from` and `to` are handles and offsets.
pub(crate) async fn copy(fs: &FileSystem, header: &Header, from: (u64, u64), to: (u64, u64), len: u64) -> Answer {
    let (source, target) = (fs.opens.file(from.0)?, fs.opens.file(to.0)?);
    let range = ByteRange::new(from.1, len.min(MOST)).ok_or(EINVAL)?;
    fs.drop_privileges_of(header, &target).await?;
    let copied = target.file.copy_range(to.1, &source.file, range).await?;
    // Of pages that were copied to, the kernel keeps nothing.
    fs.changed_otherwise(target.file.node().id.0, ByteRange { offset: to.1, len: copied });
    fs.may_believe_more(target.file.node().id.0);
    Ok(Body::with_capacity(8).u32(copied as u32).u32(0).reply())
}
