//! LSEEK: finds the next data or the next hole.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::Body;

const ENXIO: Errno = Errno(6);
const EINVAL: Errno = Errno(22);
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Executes LSEEK with `SEEK_DATA` or `SEEK_HOLE`.
pub(crate) async fn lseek(fs: &FileSystem, fh: u64, offset: u64, whence: u32) -> Answer {
    let open = fs.opens.file(fh)?;
    let number = open.file.node().id.0;
    if fs.coherence.is_written(number) {
        // The kernel sends LSEEK without writing back its dirty pages, so make it write them back.
        fs.coherence.drop_pages(number).await;
    }
    let size = open.file.size_now().await?;
    if offset >= size {
        return Err(ENXIO);
    }
    let data = open.file.next_data(offset).await?;
    let found = match (whence, data) {
        (SEEK_DATA, Some(data)) => data.offset,
        (SEEK_DATA, None) => return Err(ENXIO),
        (SEEK_HOLE, Some(data)) if data.offset <= offset => data.end().min(size),
        (SEEK_HOLE, _) => offset,
        _ => return Err(EINVAL),
    };
    Ok(Body::with_capacity(8).u64(found).reply())
}
