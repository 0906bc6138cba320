//! Small files: their bytes are kept with the metadata until there are too many, or somebody wants a layout to write them.
//!
//! While a file is short no iod knows of it: making, writing, reading and removing it are the mgr's own. Then its bytes move: the namespace
//! says where they are going, and from then on nothing changes those that are kept; they are written to the objects, durably;
//! and then the namespace forgets them. Until it has, they are what counts. So a mgr that dies in between begins anew.

use super::Room;
use crate::counters::add;
use crate::proxy::{Objects, zeros};
use bytes::Bytes;
use layout::Later;
use layout::gather::Run;
use meta::{FileInfo, Layout};
use nfs::fs::{Content, Ctx, Stability, WriteOut};
use types::{ByteRange, FileId, Status, Timestamp};
use xdr::{Segments, Xdr};

impl Room {
    /// Writes into a file that has no objects and stays short. `None` for any other.
    pub(super) async fn write_inline(
        &self,
        ctx: &Ctx,
        info: &FileInfo,
        offset: u64,
        data: &Bytes,
        wanted: Stability,
    ) -> Result<Option<WriteOut>, Status> {
        let (file, most) = (info.attrs.id, self.inline_max);
        // Before the bytes are looked at, so that this does not look like a COMMIT which some of them missed.
        let verifier = self.iods.verifiers.combine(&[]);
        if !info.layout.as_ref().is_some_and(Layout::is_inline) || offset.saturating_add(data.len() as u64) > most {
            return Ok(None);
        }
        let durable = wanted > Stability::Unstable;
        let names = self.names(ctx);
        let written = names.write_inline(&ctx.cred, ctx.now, file, (offset, &data[..], most), durable).await?;
        if written.is_none() {
            return Ok(None);
        }
        add(&self.counters.inline_writes, 1);
        let stable = if durable { Stability::FileSync } else { Stability::Unstable };
        Ok(Some(WriteOut { count: data.len() as u32, stable, verifier }))
    }

    /// A range of a file that has no objects, which ends within it; `None` if it has.
    pub(super) fn read_inline(&self, file: FileId, range: ByteRange) -> Result<Option<Segments>, Status> {
        let Some((bytes, _)) = self.namespace.read_inline(file)? else { return Ok(None) };
        add(&self.counters.inline_reads, 1);
        let kept = (bytes.len() as u64).saturating_sub(range.offset).min(range.len);
        let mut all = Segments::default();
        if kept > 0 {
            let from = range.offset as usize;
            all.push(bytes.slice(from..from + kept as usize));
        }
        if kept < range.len {
            all.extend(zeros(ByteRange { offset: range.offset + kept, len: range.len - kept }));
        }
        Ok(Some(all))
    }

    /// Where the next data or hole of a file without objects is: what is kept is data, what follows is a hole. `None` if it has
    /// objects.
    pub(super) fn seek_inline(&self, file: FileId, offset: u64, what: Content) -> Result<Option<Option<u64>>, Status> {
        let Some((bytes, _)) = self.namespace.read_inline(file)? else { return Ok(None) };
        let end = bytes.len() as u64;
        Ok(Some(match what {
            Content::Data => (offset < end).then_some(offset),
            Content::Hole => Some(offset.max(end)),
        }))
    }

    /// Fills a range of a file without objects with zeros, as far as anything is kept there; whether it has none.
    pub(super) async fn punch_inline(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> Result<bool, Status> {
        loop {
            let Some((bytes, _)) = self.namespace.read_inline(file)? else { return Ok(false) };
            let kept = (bytes.len() as u64).min(range.end()).saturating_sub(range.offset);
            if kept == 0 {
                return Ok(true);
            }
            let (blank, most) = (vec![0; kept as usize], range.offset + kept);
            let most = most.max(self.inline_max);
            let written = self.namespace.write_inline(&ctx.cred, ctx.now, file, (range.offset, &blank, most), true);
            if written.await?.is_some() {
                return Ok(true);
            }
            // It has become longer, or has got objects.
            self.objects_now(ctx.now, &self.regular(file)?).await?;
        }
    }

    /// The objects of a file that has them not yet, or whose bytes have not arrived there.
    pub(super) async fn move_out(&self, now: Timestamp, file: FileId) -> Result<Objects<'_>, Status> {
        // One at a time: what is written to the objects after the bytes have arrived must not come before them.
        let _turn = self.moving.alone(file).await;
        let info = self.regular(file)?;
        if let Some(objects) = self.objects(&info)? {
            return Ok(objects);
        }
        let layout = self.decided(&info)?.map_or_else(|| self.decide(&info), Ok)?;
        let new = Objects::new(&self.iods, file, info.generation, &layout)?;
        // Bytes that cannot arrive stay where they are.
        let has_bytes = self.namespace.read_inline(file)?.is_some_and(|(bytes, _)| !bytes.is_empty());
        if has_bytes {
            new.all_up()?;
        }
        let (info, bytes) = self.namespace.set_layout(now, file, &layout).await?;
        let Some(bytes) = bytes else { return self.objects(&info)?.ok_or(Status::ServerFault) };
        if !bytes.is_empty() {
            let new = Objects::new(&self.iods, file, info.generation, &layout)?;
            let writing = self.notes.writing(file).await?;
            let written = new.write(&[Run { offset: 0, data: bytes }], true).await?;
            if !written.stable {
                tracing::error!(file = file.0, "an iod did not make a write durable as it was told to");
                return Err(Status::Io);
            }
            writing.done();
        }
        add(&self.counters.inline_moves, 1);
        let info = self.namespace.arrived(now, file).await?;
        self.objects(&info)?.ok_or(Status::ServerFault)
    }

    /// The layout that a file has or is to have, if that is decided.
    pub(super) fn decided(&self, info: &FileInfo) -> Result<Option<Layout>, Status> {
        let decided = info.layout.as_ref().and_then(Layout::decided).transpose();
        decided.map_err(|e| {
            tracing::error!(file = info.attrs.id.0, "the layout record of a file cannot be used: {e}");
            Status::Corrupt
        })
    }

    fn decide(&self, info: &FileInfo) -> Result<Layout, Status> {
        let later = info.layout.as_ref().map(|layout| Later::from_bytes(&layout.body)).transpose();
        let later = later.map_err(|e| {
            tracing::error!(file = info.attrs.id.0, "how a file is to be laid out cannot be read: {e}");
            Status::Corrupt
        })?;
        self.choose(&later.map_or(self.policy, |later| later.policy(self.policy)))
    }
}
