//! Layouts of both kinds: granting them, telling device addresses, and what follows when they are committed or gone.

use super::Room;
use crate::counters::add;
use crate::proxy::Objects;
use bytes::Bytes;
use layout::kinds::native::{Body, Device, Update};
use layout::kinds::{files, native};
use net::clock::unix_now;
use nfs::fs::{Ctx, Iomode, LayoutAsk, LayoutGone, LayoutOut, Threshold};
use types::{ByteRange, FileId, Generation, IodId, Status, Timestamp, limits};
use wire::native::{DataHandle, Rights};
use xdr::Xdr;

impl Room {
    pub(crate) async fn layout_get(&self, ctx: &Ctx, ask: LayoutAsk) -> Result<LayoutOut, Status> {
        // Session 0 is the mgr's own.
        if !self.exports.rule(ctx.place).layout_kinds.contains(&ask.kind) || ctx.client == 0 {
            return Err(Status::NoLayout);
        }
        if ask.kind == native::KIND {
            self.native.seen(ctx.client);
        } else if self.leads_nowhere(ask.file)? {
            // Before anything waits for an iod that is away: a kernel comes to the mgr meanwhile.
            return Err(Status::NoLayout);
        }
        let write = ask.iomode == Iomode::ReadWrite;
        // Held until the grant is known: a cut asks who was granted what.
        let _shared = if write { Some(self.shared(ask.file).await?) } else { None };
        let info = self.regular(ask.file)?;
        let objects = self.objects_now(ctx.now, &info).await?;
        let (rights, counter) = match ask.iomode {
            Iomode::Read => (Rights::READ, &self.counters.layouts_read),
            Iomode::ReadWrite if ask.readable => (Rights::READ | Rights::WRITE, &self.counters.layouts_write),
            Iomode::ReadWrite => (Rights::WRITE, &self.counters.layouts_write),
        };
        let body = match ask.kind {
            files::KIND => self.files_body(&objects, info.generation, rights)?,
            _ => self.native_body(ctx, &objects, info.generation, rights)?,
        };
        if body.len() > ask.max_body {
            return Err(Status::TooSmall);
        }
        if write {
            let writing = self.notes.writing(ask.file).await?;
            self.grants.granted(ask.file, ctx.client, ask.kind == files::KIND);
            writing.done();
        }
        add(counter, 1);
        Ok(LayoutOut { range: ByteRange::ALL, iomode: ask.iomode, kind: ask.kind, body, return_on_close: true })
    }

    fn native_body(
        &self,
        ctx: &Ctx,
        objects: &Objects<'_>,
        generation: Generation,
        rights: Rights,
    ) -> Result<Bytes, Status> {
        let devices = objects.record.iods.iter().map(|number| Ok(self.iods.registered(*number)?.id));
        let cluster = self.iods.cluster();
        let expires = unix_now() + u64::from(self.capability_secs);
        let capability =
            cluster.key.sign_capability(cluster.fsid, objects.file, generation, rights, expires, ctx.client);
        let body = Body {
            distribution: objects.record.distribution,
            stripe_unit: objects.record.stripe_unit,
            devices: devices.collect::<Result<_, Status>>()?,
            object: objects.file,
            generation,
            capability: capability.to_bytes(),
        };
        Ok(body.to_bytes())
    }

    /// Whether a data server that a layout of this file would name is away.
    fn leads_nowhere(&self, file: FileId) -> Result<bool, Status> {
        let info = self.regular(file)?;
        match self.objects(&info)? {
            Some(objects) => Ok(self.iods.data_servers(&objects.record.iods).is_none()),
            None => Ok(self.iods.up().is_empty()),
        }
    }

    /// `NoLayout` while one of the iods is down or serves no NFS: clients come to the mgr then.
    fn files_body(&self, objects: &Objects<'_>, generation: Generation, rights: Rights) -> Result<Bytes, Status> {
        let record = &objects.record;
        let servers = self.iods.data_servers(&record.iods).ok_or(Status::NoLayout)?;
        let cluster = self.iods.cluster();
        let (device, first_stripe_index) = self.devices.name(&record.iods, servers, &cluster.key);
        let unit = u32::try_from(record.stripe_unit).map_err(|_| Status::NoLayout)?;
        let geometry = (unit, record.iods.len() as u32);
        // Random, so that no mgr has given it out before.
        let grant = getrandom::u64().map_err(|_| Status::ServerFault)?;
        let handle = DataHandle::sign(&cluster.key, cluster.fsid, objects.file, generation, rights, geometry, grant);
        let handle = handle.to_bytes();
        Ok(files::Body { device, stripe_unit: unit, first_stripe_index, handle }.to_bytes())
    }

    /// Below which lengths a kernel reads and writes a file here.
    ///
    /// Linux compares `write_size` with the length of the file and `write_iosize` with all the bytes written since it has
    /// the layout, and comes here only while both are below. The second is there for the first request of a large file
    /// written without a cache: the file is empty then.
    pub(crate) fn threshold(&self, ctx: &Ctx, file: FileId) -> Result<Option<Threshold>, Status> {
        let rule = self.exports.rule(ctx.place);
        if !rule.layout_kinds.contains(&files::KIND) {
            return Ok(None);
        }
        let bytes = match rule.mds_threshold {
            Some(bytes) => bytes,
            None => {
                let info = self.namespace.info(file)?;
                self.objects(&info)?.map_or(rule.policy.stripe_unit, |objects| objects.record.stripe_unit)
            }
        };
        let size = (bytes > 0).then_some(bytes);
        let threshold =
            Threshold { kind: files::KIND, read_size: size, write_size: size, read_iosize: None, write_iosize: size };
        Ok(size.map(|_| threshold))
    }

    pub(crate) fn device_info(&self, ctx: &Ctx, device: [u8; 16], kind: u32) -> Result<Bytes, Status> {
        if ctx.client == 0 {
            return Err(Status::NoEnt);
        }
        if kind == files::KIND {
            add(&self.counters.devices_told, 1);
            return self.devices.address(device).ok_or(Status::NoEnt);
        }
        self.native.seen(ctx.client);
        let iod = self.iods.by_id(IodId(device)).ok_or(Status::NoEnt)?;
        let cluster = self.iods.cluster();
        let expires = unix_now() + u64::from(self.capability_secs);
        let ticket = cluster.key.sign_ticket(cluster.fsid, ctx.client, expires);
        add(&self.counters.devices_told, 1);
        Ok(Device { iod: iod.id, tcp: iod.tcp, local: iod.local, ticket: ticket.to_bytes() }.to_bytes())
    }

    pub(crate) async fn layout_commit(
        &self,
        ctx: &Ctx,
        file: FileId,
        last_byte: Option<u64>,
        mtime: Option<Timestamp>,
        body: &Bytes,
    ) -> Result<Option<u64>, Status> {
        let update = match body.is_empty() {
            true => Update::default(),
            false => Update::from_bytes(body).map_err(|_| Status::Inval)?,
        };
        let end = last_byte.map_or(Some(0), |last| last.checked_add(1)).filter(|end| *end <= limits::FILE_SIZE_MAX);
        let mut end = end.ok_or(Status::FBig)?;
        if update.fence {
            self.outdate(ctx, file).await?;
        }
        if update.measure {
            // What the client says may have been cut off since. It waits for iods that are down: once this is answered,
            // the bytes that it synced have to be seen.
            self.measure(file).await?;
            end = 0;
        }
        let _shared = self.shared(file).await?;
        if last_byte.is_none() && mtime.is_none() {
            if update.durable {
                self.grants.committed(file, ctx.client);
            }
            return Ok(None);
        }
        let changed = match update.durable {
            true => self.namespace.set_size(&ctx.cred, ctx.now, file, end, mtime).await?,
            false => self.namespace.grow(&ctx.cred, ctx.now, file, end, mtime).await?,
        };
        // Only now: a report that found no room has told nothing. And one of a client that may have failed to write
        // something does not tell how far that has come.
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
        let untold = write && self.grants.gone(file, client);
        let result = async {
            let fenced = if revoked { self.fence(ctx, file).await } else { Ok(()) };
            if untold || (write && revoked) {
                // Whoever lost its layout may have written since it last told how far.
                self.measure_or_later(file).await?;
            } else if write {
                self.all_told(file);
            }
            fenced
        };
        match result.await {
            // Nothing is left to protect or to measure.
            Err(Status::Stale) => Ok(()),
            other => other,
        }
    }

    /// A client closed a file that it could write: if it never told how far it wrote, the iods do.
    pub(crate) async fn closed(&self, ctx: &Ctx, file: FileId, wrote: bool) -> Result<(), Status> {
        if wrote && self.grants.is_untold(file, ctx.client) {
            return self.measure_or_later(file).await;
        }
        self.all_told(file);
        Ok(())
    }
}
