//! READ: reads bytes of a file through this server (RFC 8881 §18.22).

use crate::fs::FileSystem;
use crate::fs::ReadOut;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Body, Compound};
use crate::server::counters;
use crate::state::opens::Access;
use wire::nfs4::*;
use xdr::Writer;

impl Body for ReadOut {
    fn put(&self, out: &mut Writer) {
        out.bool(self.eof);
        out.opaque_segments(&self.data);
    }
}

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, args: READ4args) -> Answer<ReadOut> {
    let file = cx.file()?;
    cx.permit(file, args.stateid, Access::Read).await?;
    let info = cx.info();
    let count = u64::from(args.count).min(info.max_read) as u32;
    if count as usize + 8 + 3 > cx.room {
        return Err(cx.beyond.into());
    }
    let out = cx.fs().read(&cx.ctx, file, args.offset, count).await?;
    counters::add(&cx.server.counters.read_bytes, out.data.len() as u64);
    Ok(out)
}
