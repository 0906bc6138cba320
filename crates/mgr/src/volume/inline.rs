//! Inline files: the mgr stores the bytes of a small file with its metadata, until the file grows or a client gets a
//! write layout.
//!
//! No iod has an object of an inline file: the mgr alone creates, writes, reads and deletes the file. To move the bytes
//! to iods, the namespace first records the objects; from then on, no write changes the inline bytes. Then the mgr
//! writes the bytes to the objects durably. Finally the namespace removes the inline bytes, which are valid until then.
//! So if the mgr dies during the move, the next start moves the bytes again.

use super::Volume;
use crate::counters::add;
use crate::kinds::{Known, Opened};
use crate::proxy::zeros;
use bytes::Bytes;
use layout::Unassigned;
use layout::gather::Run;
use meta::{FileInfo, Layout};
use nfs::fs::{Content, Ctx, Stability, WriteOut};
use types::{ByteRange, FileId, Status, Timestamp};
use xdr::{Segments, Xdr};

impl Volume {
    /// Writes to an inline file, if the file stays within the size limit of inline files. Returns `None` if the caller
    /// must write to objects instead.
    pub(super) async fn write_inline(
        &self,
        ctx: &Ctx,
        info: &FileInfo,
        offset: u64,
        data: &Bytes,
        wanted: Stability,
    ) -> Result<Option<WriteOut>, Status> {
        let (file, most) = (info.attrs.id, self.inline_max);
        // Get the verifier before the write. If the mgr loses bytes during the write, COMMIT then returns a different
        // verifier.
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

    /// Reads a range within the size of an inline file; `None` if the file has objects.
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

    /// Returns the offset of the next data or the next hole of an inline file. The inline bytes are data, and the rest
    /// of the file is a hole. Returns `None` if the file has objects.
    pub(super) fn seek_inline(&self, file: FileId, offset: u64, what: Content) -> Result<Option<Option<u64>>, Status> {
        let Some((bytes, _)) = self.namespace.read_inline(file)? else { return Ok(None) };
        let end = bytes.len() as u64;
        Ok(Some(match what {
            Content::Data => (offset < end).then_some(offset),
            Content::Hole => Some(offset.max(end)),
        }))
    }

    /// Fills a range of an inline file with zeros, as far as the inline bytes reach. Returns `false` if the file has
    /// objects.
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
            // The file is too long for an inline file, or has objects now. Move its inline bytes to objects, and try
            // again.
            self.objects_now(ctx.now, &self.regular(file)?).await?;
        }
    }

    /// Returns the objects of a file. First chooses the objects if necessary, and moves the inline bytes to them.
    pub(super) async fn move_out(&self, now: Timestamp, file: FileId) -> Result<Opened<'_>, Status> {
        // Lock the file against another move of its bytes: later writes to the objects must not arrive before the moved
        // bytes.
        let _turn = self.moving.alone(file).await;
        let info = self.regular(file)?;
        if let Some(objects) = self.objects(&info)? {
            return Ok(objects);
        }
        let layout = self.decided(&info)?.map_or_else(|| self.decide(&info), Ok)?;
        let new = self.kinds.open(&self.iods, Known::nothing(file, info.generation), &layout)?;
        // Check that all iods of the objects are up before the namespace records the objects: the bytes can move only
        // while they are up.
        let has_bytes = self.namespace.read_inline(file)?.is_some_and(|(bytes, _)| !bytes.is_empty());
        if has_bytes {
            new.all_up()?;
        }
        let (info, bytes) = self.namespace.set_layout(now, file, &layout).await?;
        let Some(bytes) = bytes else { return self.objects(&info)?.ok_or(Status::ServerFault) };
        if !bytes.is_empty() {
            let new = self.kinds.open(&self.iods, Known::nothing(file, info.generation), &layout)?;
            let writing = self.intents.writing(file).await?;
            let written = new.write(&[Run { offset: 0, data: bytes }], true).await?;
            if !written.stable {
                tracing::error!(file = file.0, "an iod answered a stable write without making it durable");
                return Err(Status::Io);
            }
            writing.done();
        }
        add(&self.counters.inline_moves, 1);
        let info = self.namespace.arrived(now, file).await?;
        self.objects(&info)?.ok_or(Status::ServerFault)
    }

    /// Returns the layout record that names the objects of a file, even before its inline bytes have moved to these
    /// objects. Returns `None` if the mgr has not chosen the objects yet.
    pub(super) fn decided(&self, info: &FileInfo) -> Result<Option<Layout>, Status> {
        let decided = info.layout.as_ref().and_then(Layout::decided).transpose();
        decided.map_err(|e| {
            tracing::error!(file = info.attrs.id.0, "the layout record of a file cannot be used: {e}");
            Status::Corrupt
        })
    }

    fn decide(&self, info: &FileInfo) -> Result<Layout, Status> {
        let unassigned = info.layout.as_ref().map(|layout| Unassigned::from_bytes(&layout.body)).transpose();
        let unassigned = unassigned.map_err(|e| {
            tracing::error!(file = info.attrs.id.0, "cannot decode the placement of an inline file: {e}");
            Status::Corrupt
        })?;
        self.choose(&unassigned.map_or(self.policy, |unassigned| unassigned.policy(self.policy)))
    }
}
