//! READ_PLUS: reads bytes of a file, and returns a leading hole as a range instead of zeros (RFC 7862 §15.10).

use crate::fs::FileSystem;
use crate::fs::{Content, ReadOut};
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Body, Compound};
use crate::server::counters;
use crate::state::opens::Access;
use types::Status;
use wire::nfs4::*;
use xdr::Writer;

/// Length in bytes of a READ_PLUS result without the data: end-of-file flag, count, one hole, and the header of the
/// data.
const FRAME: usize = 4 + 4 + 20 + 16;

/// The result of READ_PLUS: at most one hole, followed by at most one range of data. Holes after the first byte of data
/// are sent as zeros, which the RFC permits and which saves queries to data servers.
pub(super) struct Pieces {
    hole: Option<(u64, u64)>,
    offset: u64,
    out: ReadOut,
}

impl Body for Pieces {
    fn put(&self, out: &mut Writer) {
        out.bool(self.out.eof);
        out.u32(u32::from(self.hole.is_some()) + u32::from(!self.out.data.is_empty()));
        if let Some((offset, len)) = self.hole {
            out.u32(NFS4_CONTENT_HOLE as u32);
            out.u64(offset);
            out.u64(len);
        }
        if !self.out.data.is_empty() {
            out.u32(NFS4_CONTENT_DATA as u32);
            out.u64(self.offset);
            out.opaque_segments(&self.out.data);
        }
    }
}

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: READ_PLUS4args,
) -> Answer<Pieces> {
    let file = cx.file()?;
    cx.permit(file, args.rpa_stateid, Access::Read).await?;
    let count = u64::from(args.rpa_count).min(cx.info().max_read);
    if count as usize + FRAME + 3 > cx.room {
        return Err(cx.beyond.into());
    }
    let end = args.rpa_offset.saturating_add(count);
    let size = cx.fs().getattr(&cx.ctx, file).await?.size;
    if args.rpa_offset >= size || count == 0 {
        let out = ReadOut { data: Default::default(), eof: args.rpa_offset >= size };
        return Ok(Pieces { hole: None, offset: args.rpa_offset, out });
    }
    let start = match cx.fs().seek(&cx.ctx, file, args.rpa_offset, Content::Data).await {
        Ok(found) => found.offset,
        // No data follows the offset, so the rest of the file is a hole.
        Err(Status::NxIo) => u64::MAX,
        // A data server did not reply to the search for data ranges. Read the requested bytes without the search,
        // because all requested bytes may be on data servers that do reply.
        Err(_) => args.rpa_offset,
    };
    let start = start.min(end).min(size).max(args.rpa_offset);
    let hole = (start > args.rpa_offset).then_some((args.rpa_offset, start - args.rpa_offset));
    let out = match start < end.min(size) {
        true => cx.fs().read(&cx.ctx, file, start, (end - start) as u32).await?,
        false => ReadOut { data: Default::default(), eof: start >= size },
    };
    counters::add(&cx.server.counters.read_bytes, out.data.len() as u64);
    Ok(Pieces { hole, offset: start, out })
}
