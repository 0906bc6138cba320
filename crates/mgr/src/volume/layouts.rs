//! Layouts, native and for kernel clients: LAYOUTGET, GETDEVICEINFO, LAYOUTCOMMIT, and layouts that a client has
//! returned or the mgr has revoked.

use super::Volume;
use super::gathering::Why;
use crate::counters::add;
use crate::kinds::{DeviceAsk, Faults, Grant, LayoutType};
use bytes::Bytes;
use layout::gather::Part;
use meta::schema::{Holes, Whole, WriteEnd};
use net::clock::unix_now;
use nfs::fs::{Ctx, Iomode, LayoutAsk, LayoutGone, LayoutOut, Threshold};
use std::fmt::Debug;
use types::{ByteRange, FileId, Machine, Status, Timestamp, limits};
use wire::native::Rights;

impl Volume {
    pub(crate) async fn layout_get(&self, ctx: &Ctx, ask: LayoutAsk) -> Result<LayoutOut, Status> {
        let (layout, setting) = (self.kinds.layout_type(ask.kind)?, self.exports.rule(ctx.place).kernel_layout);
        // Client id 0 stands for operations of the mgr itself, which need no layouts.
        if !layout.is_offered(setting) || ctx.client == 0 {
            return Err(Status::NoLayout);
        }
        // Keep the guard `_granting` until the layout grant is recorded, so that a move of the file waits for this
        // grant.
        let _granting = self.moves.granting(ask.file)?;
        if !layout.is_for_kernels() {
            self.native.seen(ctx.client);
        } else if self.leads_nowhere(ask.file)? {
            // An iod of the file is down. Refuse the layout now instead of waiting for the iod, because kernel clients
            // can use the mgr path.
            return Err(Status::NoLayout);
        }
        let write = ask.iomode == Iomode::ReadWrite;
        // Record the rights of this layout before reading the state of the file. A concurrent revocation searches the
        // table of recorded rights, and must find these rights there.
        let expires = self.expires(layout);
        self.rights.give(ask.file, ctx.cred.uid, unix_now(), expires);
        let info = self.regular(ask.file)?;
        if !write && !self.is_in_objects(&info) && info.attrs.size <= self.inline_max {
            // The mgr serves reads of an inline file itself, so a reader needs no layout.
            return Err(Status::NoLayout);
        }
        // A client with a layout reads the objects itself. So first flush the held bytes of the file to the objects,
        // and hold no writes of the file until the layout grant is recorded.
        let _block = self.gathered.block_gathering(ask.file);
        self.settled(ask.file, Part::All, Why::Layout).await?;
        // Keep the file's shared lock until the layout grant is recorded, because a truncation takes the exclusive lock
        // and then checks which clients hold layouts.
        let _shared = if write { Some(self.shared(ask.file).await?) } else { None };
        let info = self.regular(ask.file)?;
        let objects = self.objects_now(ctx.now, &info).await?;
        let (rights, counter) = match ask.iomode {
            Iomode::Read => (Rights::READ, &self.counters.layouts_read),
            Iomode::ReadWrite if ask.readable => (Rights::READ | Rights::WRITE, &self.counters.layouts_write),
            Iomode::ReadWrite => (Rights::WRITE, &self.counters.layouts_write),
        };
        if !layout.expresses(&*objects, setting) {
            return Err(Status::NoLayout);
        }
        let (iods, devices, max_body) = (&*self.iods, &self.devices, ask.max_body);
        let (file, generation, secs) = (&*objects, info.generation, layout.lifetime(self.lifetimes));
        let body = layout.grant(&Grant { iods, devices, ctx, file, generation, rights, secs, max_body })?;
        if body.len() > max_body {
            return Err(layout.too_large());
        }
        if write {
            let writing = self.intents.writing(ask.file).await?;
            self.grants.granted(ask.file, ctx.client, layout.is_for_kernels());
            writing.done();
        } else {
            self.grants.granted_read(ask.file, ctx.client, layout.is_for_kernels());
        }
        add(counter, 1);
        Ok(LayoutOut { range: ByteRange::ALL, iomode: ask.iomode, kind: ask.kind, body, return_on_close: true })
    }

    /// Returns when the rights of a layout of this type expire if the mgr grants the layout now, in Unix seconds.
    fn expires(&self, layout: &dyn LayoutType) -> u64 {
        unix_now() + u64::from(layout.lifetime(self.lifetimes))
    }

    /// Returns whether a data server that a layout of this file must name is down.
    fn leads_nowhere(&self, file: FileId) -> Result<bool, Status> {
        let info = self.regular(file)?;
        match self.objects_to_be(&info)? {
            Some(objects) => Ok(self.iods.data_servers(objects.iods()).is_none()),
            None => Ok(self.iods.up().is_empty()),
        }
    }

    /// Returns the file lengths below which a kernel client reads and writes a file on the mgr path (`mdsthreshold4`).
    ///
    /// Linux compares `write_size` with the length of the file, and `write_iosize` with the bytes written since it got
    /// the layout. Linux writes through the mgr only while both are below their thresholds. `write_iosize` matters for
    /// the first uncached write to a new large file, when the file is still empty.
    ///
    /// A policy of the server, the directory or the file overrides the threshold of the export.
    pub(crate) fn threshold(&self, ctx: &Ctx, file: FileId, dir: Option<FileId>) -> Result<Option<Threshold>, Status> {
        let rule = self.exports.rule(ctx.place);
        let Some(kind) = self.kinds.offered_to_kernels(rule.kernel_layout) else { return Ok(None) };
        let bytes = match rule.mds_threshold {
            Some(bytes) => bytes,
            None => {
                let info = self.namespace.info(file)?;
                self.objects_to_be(&info)?.map_or(rule.policy.stripe_unit, |objects| objects.unit())
            }
        };
        let (read, write) = self.thresholds_of(ctx, file, dir)?;
        let [read, write] = [read, write].map(|t| Some(t.unwrap_or(bytes)).filter(|t| *t > 0));
        let threshold = Threshold { kind, read_size: read, write_size: write, read_iosize: None, write_iosize: write };
        Ok(read.or(write).map(|_| threshold))
    }

    pub(crate) fn device_info(&self, ctx: &Ctx, device: [u8; 16], kind: u32) -> Result<Bytes, Status> {
        if ctx.client == 0 {
            return Err(Status::NoEnt);
        }
        let layout = self.kinds.layout_type(kind).map_err(|_| Status::NoEnt)?;
        if !layout.is_for_kernels() {
            self.native.seen(ctx.client);
        }
        let (iods, devices) = (&*self.iods, &self.devices);
        let ask = DeviceAsk { iods, devices, client: ctx.client, device, expires: self.expires(layout) };
        let body = layout.device(&ask)?;
        add(&self.counters.devices_told, 1);
        Ok(body)
    }

    pub(crate) async fn layout_commit(
        &self,
        ctx: &Ctx,
        file: FileId,
        (kind, body): (u32, &Bytes),
        last_byte: Option<u64>,
        mtime: Option<Timestamp>,
    ) -> Result<Option<u64>, Status> {
        let update = self.kinds.layout_type(kind)?.update(body)?;
        let end = last_byte.map_or(Some(0), |last| last.checked_add(1)).filter(|end| *end <= limits::FILE_SIZE_MAX);
        let mut end = end.ok_or(Status::FBig)?;
        if update.fence {
            self.outdate(ctx, file).await?;
        }
        if update.measure || (end > 0 && self.grants.is_truncated(file, ctx.client)) {
            // Another client may have truncated the range that this client reports, so query the iods for the size.
            // While an iod is down, the query fails. The LAYOUTCOMMIT must then fail too, because after its reply,
            // other clients must see the bytes that this client reports.
            self.measure(file).await?;
            end = 0;
        }
        let _shared = self.shared(file).await?;
        if last_byte.is_none() && mtime.is_none() && !update.holes {
            if update.durable {
                self.grants.committed(file, ctx.client);
            }
            return Ok(None);
        }
        let whole = (update.whole && update.durable).then_some(Whole { from: 0, end });
        let to = WriteEnd { end, holes: if update.holes { Holes::Made } else { Holes::Keep }, whole };
        let changed = match update.durable {
            true => self.namespace.set_size(&ctx.cred, ctx.now, file, to, mtime).await?,
            false => self.namespace.grow(&ctx.cred, ctx.now, file, to, mtime).await?,
        };
        // Record in the grant that the client has reported its writes only after the namespace has stored the size,
        // because storing the size may fail for lack of space. A report without `durable` does not change the grant,
        // because it does not say how far the client's writes reached.
        if update.durable {
            self.grants.committed(file, ctx.client);
        }
        add(&self.counters.layout_commits, 1);
        Ok((changed.after.size != changed.before.size).then_some(changed.after.size))
    }

    pub(crate) async fn layout_gone(
        &self,
        ctx: &Ctx,
        client: u64,
        file: FileId,
        iomode: Iomode,
        why: LayoutGone,
    ) -> Result<(), Status> {
        let write = iomode == Iomode::ReadWrite;
        let revoked = why == LayoutGone::Revoked;
        if let LayoutGone::Returned { kind, body } = &why {
            self.note_faults(client, file, (*kind, body));
        }
        let mut unreported = write && (revoked || self.grants.is_untold(file, client));
        if unreported {
            // Before removing the layout grant of this client, record that the client may have unreported writes.
            // Otherwise, after the next LAYOUTCOMMIT of another client, the mgr would assume that all clients have
            // reported their writes.
            self.intents.abandoned(file, revoked);
        }
        if write {
            unreported |= self.grants.gone(file, client);
        } else {
            self.grants.read_gone(file, client);
        }
        let result = async {
            self.given_back(file).await;
            let fenced = if revoked { self.fence(ctx, file).await } else { Ok(()) };
            if unreported {
                // The client may have written after its last report, so query the iods for the size.
                self.measure_or_later(file).await?;
            } else if write {
                self.all_told(file);
            }
            fenced
        };
        match result.await {
            // The file was deleted, so the mgr need not fence it or query the iods for its size.
            Err(Status::Stale) => Ok(()),
            other => other,
        }
    }

    /// Logs the failures at data servers that a client reports in a LAYOUTRETURN. The mgr only logs them, because it
    /// monitors its iods itself.
    fn note_faults(&self, client: u64, file: FileId, (kind, body): (u32, &Bytes)) {
        let Ok(layout) = self.kinds.layout_type(kind) else { return };
        let faults = match layout.faults(body) {
            Ok(faults) => faults,
            Err(error) => {
                if let Some(left_out) = net::may_log("unreadable report of data servers", Machine::UNKNOWN) {
                    tracing::warn!(client, file = file.0, left_out, "unreadable report of data servers: {error}");
                }
                return;
            }
        };
        if let Some(Faults { first, count }) = faults {
            self.note_failures(client, file, &*first, count);
        }
    }

    /// Counts and logs `count` failed operations at data servers that a client has reported. `first` is the first of
    /// these failures.
    pub(crate) fn note_failures(&self, client: u64, file: FileId, first: &dyn Debug, count: usize) {
        add(&self.counters.layout_faults, count as u64);
        if let Some(left_out) = net::may_log("a client failed at a data server", Machine::UNKNOWN) {
            tracing::warn!(client, file = file.0, ?first, count, left_out, "a client failed at a data server");
        }
    }

    /// Flushes held bytes to the iods when a client returns a layout, a delegation or a lock, so that later readers
    /// find these bytes. If the mgr cannot write the bytes now, it still holds them, and reads on the mgr path wait
    /// until they are flushed.
    pub(crate) async fn given_back(&self, file: FileId) {
        if let Err(error) = self.let_go(file, Part::All, Why::Close).await {
            tracing::debug!(file = file.0, "gathered writes did not reach the iods yet: {error}");
        }
    }

    /// Handles the close of a file that the client could write. If the client has not reported all its writes, queries
    /// the iods for the size of the file.
    pub(crate) async fn closed(&self, ctx: &Ctx, file: FileId, wrote: bool) -> Result<(), Status> {
        self.given_back(file).await;
        if wrote && self.grants.is_untold(file, ctx.client) {
            return self.measure_or_later(file).await;
        }
        self.all_told(file);
        Ok(())
    }
}
