//! COPY: copies bytes of the saved file into the current file without sending the bytes through the client (RFC 7862
//! §15.2).
//!
//! The server copies synchronously and sequentially. The iods copy the bytes between each other where possible;
//! otherwise the bytes pass through this server. A hole in the source stays a hole in the copy.

use crate::fs::FileSystem;
use crate::fs::{Content, Stability, WriteOut};
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound};
use crate::server::counters;
use crate::state::opens::Access;
use types::{ByteRange, FileId, Status, Verifier};
use wire::nfs4::*;

/// Largest number of bytes that one COPY moves, holes not counted. The limit exists because a COPY occupies a session
/// slot while it runs. The client sends another COPY for the remaining bytes.
const MOVED_MAX: u64 = 32 << 20;

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: COPY4args,
) -> Answer<COPY4resok> {
    let (from, to) = (cx.saved_file()?, cx.file()?);
    if !args.ca_source_server.is_empty() {
        return Err(NFS4ERR_NOTSUPP.into());
    }
    cx.check_same_export()?;
    if from == to {
        return Err(NFS4ERR_INVAL.into());
    }
    let source = cx.saved_stateid(args.ca_src_stateid)?;
    cx.permit(from, source, Access::Read).await?;
    cx.permit(to, args.ca_dst_stateid, Access::Write).await?;
    let size = cx.regular(from).await?.size;
    let left = size.checked_sub(args.ca_src_offset).ok_or(NFS4ERR_INVAL)?;
    let count = if args.ca_count == 0 { left } else { args.ca_count };
    let end = args.ca_dst_offset.checked_add(count);
    if count > left {
        return Err(NFS4ERR_INVAL.into());
    }
    if end.is_none_or(|end| end > cx.info().max_file_size) {
        return Err(NFS4ERR_FBIG.into());
    }
    let range = ByteRange { offset: args.ca_src_offset, len: count };
    let mut copy = Copy {
        from,
        to,
        shift: args.ca_dst_offset.wrapping_sub(args.ca_src_offset),
        moved: 0,
        direct: true,
        verifier: None,
    };
    let done = copy.run(cx, range).await?;
    counters::add(&cx.server.counters.copied_bytes, copy.moved);
    let verifier = match copy.verifier {
        Some(verifier) => verifier,
        // The range contains only holes, so no write returned a verifier. Use the verifier that COMMIT returns.
        None => cx.fs().commit(&cx.ctx, to, ByteRange { offset: args.ca_dst_offset, len: done }).await?,
    };
    Ok(COPY4resok {
        cr_response: write_response4 {
            wr_callback_id: Vec::new(),
            wr_count: done,
            wr_committed: UNSTABLE4,
            wr_writeverf: verifier.0,
        },
        cr_requirements: copy_requirements4 { cr_consecutive: true, cr_synchronous: true },
    })
}

/// The state of a COPY in execution.
struct Copy {
    from: FileId,
    to: FileId,
    /// The target offset minus the source offset, modulo 2^64.
    shift: u64,
    moved: u64,
    /// Whether the server still lets the iods copy the bytes directly. Becomes false when the iods first refuse a copy.
    direct: bool,
    /// The write verifier of the first write. If a later write has another verifier, the client notices the difference
    /// at COMMIT and sends the COPY again.
    verifier: Option<Verifier>,
}

impl Copy {
    /// Copies a range until its end, or until [`MOVED_MAX`] bytes of data are copied. Returns the number of bytes
    /// copied, holes included.
    async fn run<F: FileSystem, C: Callbacks>(&mut self, cx: &Compound<'_, F, C>, range: ByteRange) -> Answer<u64> {
        let mut at = range.offset;
        while at < range.end() && self.moved < MOVED_MAX {
            let data = match cx.fs().seek(&cx.ctx, self.from, at, Content::Data).await {
                Ok(found) => found.offset.clamp(at, range.end()),
                Err(Status::NxIo) => range.end(),
                Err(error) => return Err(error.into()),
            };
            if data > at {
                self.hole(cx, ByteRange { offset: at.wrapping_add(self.shift), len: data - at }).await?;
                at = data;
                continue;
            }
            let hole = match cx.fs().seek(&cx.ctx, self.from, at, Content::Hole).await {
                Ok(found) => found.offset.clamp(at, range.end()),
                Err(Status::NxIo) => range.end(),
                Err(error) => return Err(error.into()),
            };
            let end = hole.min(at.saturating_add(MOVED_MAX - self.moved));
            let before = at;
            at = self.data(cx, at, end).await?;
            if at == before {
                // The source file has become shorter than the range, so the copy ends here.
                break;
            }
        }
        Ok(at - range.offset)
    }

    /// Copies the bytes of the source file from offset `at` up to `end`. Returns the source offset at which the copy
    /// stopped, which is smaller than `end` if the source file ends earlier.
    async fn data<F: FileSystem, C: Callbacks>(
        &mut self,
        cx: &Compound<'_, F, C>,
        mut at: u64,
        end: u64,
    ) -> Answer<u64> {
        let info = cx.info();
        let most = info.max_read.min(info.max_write);
        while at < end {
            if self.direct {
                let (range, target) = (ByteRange { offset: at, len: end - at }, at.wrapping_add(self.shift));
                match cx.fs().copy(&cx.ctx, self.from, range, self.to, target).await? {
                    Some(written) if written.count > 0 => at = self.took(at, written),
                    _ => self.direct = false,
                }
                continue;
            }
            let read = cx.fs().read(&cx.ctx, self.from, at, (end - at).min(most) as u32).await?;
            let bytes = read.data.to_bytes();
            if bytes.is_empty() {
                break;
            }
            let target = at.wrapping_add(self.shift);
            let written = cx.fs().write(&cx.ctx, self.to, target, bytes, Stability::Unstable).await?;
            at = self.took(at, written);
        }
        Ok(at)
    }

    /// Adds the length of a write to `moved`, and stores the write verifier of the first write. `at` is the offset of
    /// the copied bytes in the source file. Returns the source offset of the next byte to copy.
    fn took(&mut self, at: u64, written: WriteOut) -> u64 {
        self.verifier.get_or_insert(written.verifier);
        self.moved += u64::from(written.count);
        at + u64::from(written.count)
    }

    /// Punches a hole into the target file, and extends the file at least to the end of the hole.
    async fn hole<F: FileSystem, C: Callbacks>(&self, cx: &Compound<'_, F, C>, range: ByteRange) -> Answer<()> {
        cx.recall_others(self.to).await;
        let size = cx.fs().getattr(&cx.ctx, self.to).await?.size;
        if range.offset < size {
            cx.fs().deallocate(&cx.ctx, self.to, range).await?;
        }
        if range.end() > size {
            // Do not set the file size, because a concurrent COPY may have extended the file beyond the end of the
            // hole.
            cx.fs().extend(&cx.ctx, self.to, range.end()).await?;
        }
        Ok(())
    }
}
