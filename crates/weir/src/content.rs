//! Output of a file's content on standard output. Several reads are in flight at the same time.

use crate::failure::Failure;
use crate::show;
use client::{Mount, OpenFlags, Segment, Target};
use futures_util::StreamExt;
use types::limits::PAYLOAD_MAX;
use types::{ByteRange, FileKind};

/// Length of one read in bytes. At most [`AHEAD`] reads are in flight at the same time.
const READ: u64 = 4 * PAYLOAD_MAX as u64;
const AHEAD: usize = 3;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Writes the bytes of `range` to standard output. Omits the part of `range` beyond the end of the file.
pub async fn print(mount: &Mount, target: &Target, range: ByteRange) -> Result<(), Failure> {
    let (node, attrs) = mount.resolve(target.path(), true).await?;
    if attrs.kind != FileKind::Regular {
        return Err(Failure::new(format!("is a {}", show::kind(attrs.kind))).next("only regular files have content"));
    }
    let file = mount.open(&node, OpenFlags::READ).await?;
    let end = range.end().min(file.size());
    let starts = (0..end.saturating_sub(range.offset).div_ceil(READ)).map(|i| range.offset + i * READ);
    let reads = starts.map(|at| file.read_at(at, (end - at).min(READ) as usize));
    let mut answers = futures_util::stream::iter(reads).buffered(AHEAD);
    while let Some(answer) = answers.next().await {
        for segment in answer?.segments {
            match segment {
                Segment::Data(data) => show::raw(&data)?,
                Segment::Hole(mut len) => {
                    while len > 0 {
                        let part = len.min(ZEROS.len() as u64);
                        show::raw(&ZEROS[..part as usize])?;
                        len -= part;
                    }
                }
            }
        }
    }
    drop(answers);
    Ok(file.close().await?)
}
