//! Seeking data and holes, hole punching, space reservation, SETATTR, and the placement of an open file.

use super::opens::TRIES;
use super::{Inode, Lane};
use crate::compound::{Caller, Compound};
use crate::drivers::NotDone;
use crate::{Error, Placement, Result};
use std::pin::pin;
use std::sync::Arc;
use types::{Attrs, ByteRange, SetAttrs, Status};
use wire::nfs4::*;

impl Inode {
    /// Returns the next data range, see [`crate::File::next_data`].
    pub(crate) async fn next_data(self: &Arc<Self>, offset: u64) -> Result<Option<ByteRange>> {
        self.expose(ByteRange::ALL).await;
        let size = self.size_now().await?;
        if offset >= size {
            return Ok(None);
        }
        // Get a layout, because the mgr then stops gathering other clients' writes. Drop the use of the layout at once,
        // because a task that waits for the mgr must not keep a layout in use.
        drop(self.layout(false, None).await?);
        self.expose_to_iods().await;
        let layout = self.layout(false, None).await?;
        let found = match layout {
            Some(layout) => match layout.next_data(offset).await {
                Ok(found) => Some(found),
                Err(NotDone::Failed(error)) => return Err(error),
                Err(_) => None,
            },
            None => None,
        };
        let found = match found {
            Some(found) => found,
            None => self.next_via_mgr(offset).await?,
        };
        // Another client may have truncated the file before the iods replied, so cut the range to the size.
        Ok(found.and_then(|run| run.intersection(ByteRange { offset, len: size - offset })))
    }

    /// Ensures that the iods have the bytes that this client sent to the mgr: the mgr may still be gathering these
    /// bytes.
    async fn expose_to_iods(self: &Arc<Self>) {
        if self.state().dirty.is_uncommitted(Lane::Mgr) {
            self.commit_lane(Lane::Mgr).await;
        }
    }

    async fn next_via_mgr(&self, offset: u64) -> Result<Option<ByteRange>> {
        // The mgr seeks up to the size that it knows.
        self.report().await?;
        let Some(start) = self.mgr_seek(offset, NFS4_CONTENT_DATA).await? else { return Ok(None) };
        let end = self.mgr_seek(start, NFS4_CONTENT_HOLE).await?.unwrap_or(self.size());
        Ok(Some(ByteRange { offset: start, len: end.saturating_sub(start).max(1) }))
    }

    /// Punches a hole, see [`crate::File::punch`].
    pub(crate) async fn punch(self: &Arc<Self>, key: u64, range: ByteRange) -> Result<()> {
        // Make all writes durable first. Otherwise, if a server restarted, the client would send lost bytes again after
        // the punch, and fill the hole.
        self.fsync_data(key).await?;
        let _invalidate = InvalidateReads(self);
        let size = self.size_now().await?;
        let Some(range) = range.intersection(ByteRange { offset: 0, len: size }) else { return Ok(()) };
        let mut stale = None;
        for _ in 0..3 {
            let Some(layout) = self.layout(true, stale.take()).await? else { break };
            let grant = {
                let mut state = self.state();
                state.dirty.made_hole();
                state.dirty.grant()
            };
            match layout.punch(range).await {
                Ok(()) => {
                    self.state().dirty.became_durable(0, grant);
                    return Ok(());
                }
                Err(NotDone::Failed(error)) => return Err(error),
                Err(NotDone::Unanswered(_)) => {
                    self.state().abandoned = true;
                    break;
                }
                Err(NotDone::NotAttempted(_)) => break,
                Err(NotDone::Stale(_)) => stale = Some(layout),
            }
        }
        self.end_strays().await?;
        self.mgr_punch(range).await
    }

    /// Reserves space, see [`crate::File::allocate`].
    pub(crate) async fn allocate(&self, range: ByteRange) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.mgr_allocate(range).await?;
        let mut state = self.state();
        state.size.extend_to(range.end(), self.mount.next_stamp());
        Ok(())
    }

    /// Sets the size like [`crate::File::set_len`], together with other attributes. Reports write errors of the open
    /// `key`.
    pub(crate) async fn set_attrs(
        self: &Arc<Self>,
        key: Option<u64>,
        caller: &Caller,
        changes: &SetAttrs,
    ) -> Result<Attrs> {
        // Make all writes durable first. Otherwise, if a server restarted, the client would send lost bytes again after
        // the truncate, and restore bytes beyond the new end.
        self.make_durable().await;
        key.map_or(Ok(()), |key| self.take_error(key))?;
        self.order.hold(pin!(self.set_attrs_in_order(caller, changes))).await
    }

    async fn set_attrs_in_order(self: &Arc<Self>, caller: &Caller, changes: &SetAttrs) -> Result<Attrs> {
        self.cutting.send_replace(true);
        let _truncate = TruncateGuard(self);
        // Wait for bytes that other tasks of this mount sent before this task locked `order`. Neither these bytes nor a
        // report of them may reach a server after the truncate.
        self.settle_all().await;
        self.reporting.hold_write(pin!(self.report_and_set_attrs(caller, changes))).await
    }

    async fn report_and_set_attrs(self: &Arc<Self>, caller: &Caller, changes: &SetAttrs) -> Result<Attrs> {
        let settled = async { self.end_strays().await.and(self.report().await) }.await;
        // Without an open for writing, the client cannot send a size report, so ignore an error of the size report.
        // Each close of an open for writing has already sent the report, or failed.
        if self.is_open_for_writing() {
            settled?;
        }
        if changes.size.is_some() {
            self.forget_lengths().await;
        }
        let mut tries = TRIES;
        let attrs = loop {
            // If the last open for writing closes before SETATTR is sent, SETATTR carries the anonymous stateid.
            let opened = changes.size.and_then(|_| self.opened(true).ok());
            let stateid = opened.map_or(stateid4 { seqid: 0, other: [0; 12] }, |opened| opened.stateid);
            match self.send_attrs(stateid, caller, changes).await {
                Err(error) if error.is_state_lost() => self.open_again(stateid, &mut tries, error).await?,
                Err(error) => {
                    if changes.size.is_some() {
                        self.distrust_layout().await;
                    }
                    return Err(error);
                }
                Ok(attrs) => break attrs,
            }
        };
        if changes.size.is_some() {
            self.forget_lengths().await;
            let mut state = self.state();
            // Programs may have written during the truncate. The client sends these bytes after the truncate, so the
            // size includes them.
            let size = attrs.size.max(state.dirty.own_end());
            state.size.set(size, self.mount.next_stamp());
        }
        Ok(attrs)
    }

    async fn send_attrs(&self, stateid: stateid4, caller: &Caller, changes: &SetAttrs) -> Result<Attrs> {
        let mut compound = Compound::new("setting size and attributes").by(caller).cached();
        compound.putfh(&self.node.handle);
        let obj_attributes = nfs::attrs::encode_set(changes);
        compound.op(OP_SETATTR, &SETATTR4args { stateid, obj_attributes }).getattr();
        let mut results = self.mount.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        results.take::<StatusOnly>(OP_SETATTR)?;
        results.attrs()
    }

    /// Returns the servers that store the bytes of the file.
    pub(crate) async fn placement(self: &Arc<Self>) -> Result<Placement> {
        self.expose(ByteRange::ALL).await;
        drop(self.layout(false, None).await?);
        self.expose_to_iods().await;
        let layout = self.layout(false, None).await?;
        let layout = layout.ok_or_else(|| Error::status(Status::NoLayout, "asking where the data are stored"))?;
        layout.placement(self.size()).await.map_err(NotDone::into_error)
    }
}

/// A guard: when it is dropped, all bytes that the client has read so far count as outdated.
struct InvalidateReads<'a>(&'a Inode);

impl Drop for InvalidateReads<'_> {
    fn drop(&mut self) {
        self.0.state().size.invalidate_reads();
    }
}

/// A guard: when it is dropped, the SETATTR counts as finished ([`Inode::cutting`]).
struct TruncateGuard<'a>(&'a Inode);

impl Drop for TruncateGuard<'_> {
    fn drop(&mut self) {
        self.0.cutting.send_replace(false);
    }
}

/// The SETATTR result after the status (RFC 8881 §18.30.2): the bitmap of the attributes that the mgr set. Decoding
/// discards the bitmap, because no caller needs it.
pub(crate) struct StatusOnly;

impl xdr::Xdr for StatusOnly {
    fn encode(&self, out: &mut xdr::Writer) {
        out.u32(0);
    }

    fn decode(input: &mut xdr::Reader) -> std::result::Result<Self, xdr::Malformed> {
        input.array(types::limits::BITMAP_WORDS_MAX, xdr::Reader::u32)?;
        Ok(StatusOnly)
    }
}
