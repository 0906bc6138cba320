//! FALLOCATE: reserves space and punches holes.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;
use client::File;
use types::ByteRange;

const EINVAL: Errno = Errno(22);
const EOPNOTSUPP: Errno = Errno(95);
/// Modes of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE_KEEP_SIZE: u32 = 2 | KEEP_SIZE;
const ZERO_RANGE: u32 = 0x10;
const ZERO_RANGE_KEEP_SIZE: u32 = ZERO_RANGE | KEEP_SIZE;

/// Executes FALLOCATE. Refuses to reserve space after the end of a file without changing the file size, because NFS
/// has no operation for this.
pub(crate) async fn fallocate(
    fs: &FileSystem,
    header: &Header,
    fh: u64,
    (offset, length): (u64, u64),
    mode: u32,
) -> Answer {
    let open = fs.opens.file(fh)?;
    let range = ByteRange::new(offset, length).ok_or(EINVAL)?;
    fs.drop_privileges_of(header, &open).await?;
    let file = &open.file;
    let resizing = fs.coherence.size_change_begins(header.node);
    match mode {
        0 => file.allocate(range).await?,
        PUNCH_HOLE_KEEP_SIZE => zero(fs, file, range).await?,
        ZERO_RANGE => {
            zero(fs, file, range).await?;
            file.allocate(range).await?;
        }
        KEEP_SIZE | ZERO_RANGE_KEEP_SIZE => {
            let mut size = file.refresh().await?.size;
            if size < range.end() && fs.coherence.is_written(header.node) {
                // The kernel's page cache may have bytes after the end of the file that the mgr knows. So make the
                // kernel write its pages back before the mount requests the size again.
                fs.coherence.drop_pages(header.node).await;
                size = file.refresh().await?.size;
            }
            let within = range.intersection(ByteRange { offset: 0, len: size });
            if mode == KEEP_SIZE && within != Some(range) {
                return Err(EOPNOTSUPP);
            }
            // Bytes after the end of the file are zeros in any case, so change only the range before the end.
            if let Some(within) = within {
                if mode != KEEP_SIZE {
                    zero(fs, file, within).await?;
                }
                file.allocate(within).await?;
            }
        }
        _ => return Err(EOPNOTSUPP),
    }
    fs.coherence.size_changed_unseen(resizing);
    fs.coherence.size_may_change(open.file.node().id.0);
    Ok(Reply::Done)
}

async fn zero(fs: &FileSystem, file: &File, range: ByteRange) -> client::Result<()> {
    file.punch(range).await?;
    fs.coherence.range_changed(file.node().id.0, range);
    Ok(())
}
