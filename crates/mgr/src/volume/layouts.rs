//! Layouts, native and for kernel clients: grants, device addresses, commits, and returned or revoked layouts.

use super::Volume;
use super::gathering::Why;
use crate::config::KernelLayout;
use crate::counters::add;
use crate::devices::DataServer;
use crate::proxy::Objects;
use bytes::Bytes;
use layout::gather::Part;
use layout::kinds::native::{self, Body, Device, Update};
use layout::kinds::{files, flexfiles};
use meta::schema::{Holes, Reach, Whole};
use net::clock::unix_now;
use nfs::fs::{Ctx, Iomode, LayoutAsk, LayoutGone, LayoutOut, Threshold};
use std::fmt::Debug;
use types::{ByteRange, FileId, Generation, IodId, Machine, Status, Timestamp, limits};
use wire::native::{DATA_HANDLE_LEN, DataHandle, Holder, Rights, Striping};
use xdr::Xdr;

impl Volume {
    pub(crate) async fn layout_get(&self, ctx: &Ctx, ask: LayoutAsk) -> Result<LayoutOut, Status> {
        // Session 0 is the mgr's own.
        if !self.exports.rule(ctx.place).offers(ask.kind) || ctx.client == 0 {
            return Err(Status::NoLayout);
        }
        if ask.kind == native::KIND {
            self.native.seen(ctx.client);
        } else if self.leads_nowhere(ask.file)? {
            // An iod of the file is down. Refuse before anything waits for the iod: kernel clients use the mgr path
            // meanwhile.
            return Err(Status::NoLayout);
        }
        let write = ask.iomode == Iomode::ReadWrite;
        // Record the rights before reading anything else: a revocation searches for the rights given before it.
        let expires = self.expires(ask.kind);
        self.rights.give(ask.file, ctx.cred.uid, unix_now(), expires);
        let info = self.regular(ask.file)?;
        if !write && !self.is_in_objects(&info) && info.attrs.size <= self.inline_max {
            // The mgr serves reads of this inline file itself.
            return Err(Status::NoLayout);
        }
        // A client with a layout reads the objects, so bytes of gathered small writes must be in them first. The bar
        // stops the gathering of further writes until the layout is on record.
        let _bar = self.gathered.bar(ask.file);
        self.settled(ask.file, Part::All, Why::Layout).await?;
        // Hold this guard until the grant is recorded: a truncation asks which clients hold layouts.
        let _shared = if write { Some(self.shared(ask.file).await?) } else { None };
        let info = self.regular(ask.file)?;
        let objects = self.objects_now(ctx.now, &info).await?;
        let (rights, counter) = match ask.iomode {
            Iomode::Read => (Rights::READ, &self.counters.layouts_read),
            Iomode::ReadWrite if ask.readable => (Rights::READ | Rights::WRITE, &self.counters.layouts_write),
            Iomode::ReadWrite => (Rights::WRITE, &self.counters.layouts_write),
        };
        let body = match ask.kind {
            files::KIND => self.files_body(ctx, &objects, (info.generation, rights), ask.max_body)?,
            flexfiles::KIND => self.flexfiles_body(ctx, &objects, info.generation, rights)?,
            _ => self.native_body(ctx, &objects, info.generation, rights)?,
        };
        if body.len() > ask.max_body {
            // Linux never offers a larger reply, and fails the write on `TooSmall`. After `NoLayout` it writes through
            // the mgr.
            return Err(if ask.kind == native::KIND { Status::TooSmall } else { Status::NoLayout });
        }
        if write {
            let writing = self.notes.writing(ask.file).await?;
            self.grants.granted(ask.file, ctx.client, ask.kind != native::KIND);
            writing.done();
        } else {
            self.grants.granted_read(ask.file, ctx.client, ask.kind != native::KIND);
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
        if objects.record.mirrors > 1 {
            // The native layout has no copies.
            return Err(Status::NoLayout);
        }
        let devices = self.devices_of(objects)?;
        let cluster = self.iods.cluster();
        let expires = self.expires(native::KIND);
        let sign = |iod: &IodId| {
            let key = cluster.key.of_iod(*iod);
            key.sign_capability(cluster.fsid, objects.object(), generation, rights, expires, ctx.client)
        };
        let capabilities: Vec<_> = devices.iter().map(sign).collect();
        let body = Body {
            distribution: objects.record.distribution,
            stripe_unit: objects.record.stripe_unit,
            object: objects.object(),
            generation,
            whole: objects.whole,
            capability: capabilities.first().ok_or(Status::Corrupt)?.to_bytes(),
            authenticators: capabilities.iter().map(|capability| capability.mac).collect(),
            secs: self.capability_secs,
            devices,
        };
        Ok(body.to_bytes())
    }

    /// Returns when the rights of a layout of this kind end if it is granted now, in Unix seconds.
    fn expires(&self, kind: u32) -> u64 {
        let secs = if kind == native::KIND { self.capability_secs } else { self.data_handle_secs };
        unix_now() + u64::from(secs)
    }

    /// Returns the iods of a file's objects, by object index.
    fn devices_of(&self, objects: &Objects<'_>) -> Result<Vec<IodId>, Status> {
        objects.record.iods.iter().map(|number| Ok(self.iods.registered(*number)?.id)).collect()
    }

    /// Returns whether a data server that a layout of this file would name is down.
    fn leads_nowhere(&self, file: FileId) -> Result<bool, Status> {
        let info = self.regular(file)?;
        match self.objects_to_be(&info)? {
            Some(objects) => Ok(self.iods.data_servers(&objects.record.iods).is_none()),
            None => Ok(self.iods.up().is_empty()),
        }
    }

    /// Returns the data servers of a file. `NoLayout` while one of its iods is down or serves no NFS: clients then use
    /// the mgr path.
    fn data_servers(&self, objects: &Objects<'_>) -> Result<Vec<DataServer>, Status> {
        self.iods.data_servers(&objects.record.iods).ok_or(Status::NoLayout)
    }

    /// Returns a function that signs the filehandle of an object at its data server, and the number of the layout. The
    /// function takes the index of the object, which counts through all copies.
    fn data_handles(
        &self,
        ctx: &Ctx,
        objects: &Objects<'_>,
        generation: Generation,
        rights: Rights,
    ) -> Result<(impl Fn(usize) -> Bytes, u64), Status> {
        let (cluster, object) = (self.iods.cluster(), (objects.object(), generation));
        let iods = self.devices_of(objects)?;
        let unit = u32::try_from(objects.record.stripe_unit).map_err(|_| Status::NoLayout)?;
        let count = objects.distribution.count();
        // Random, so that no mgr has used the number before.
        let grant = getrandom::u64().map_err(|_| Status::ServerFault)?;
        let holder = Holder { grant, session: ctx.client, expires: self.expires(files::KIND) };
        let handle = move |index: usize| {
            let striping = Striping { unit, count: count as u32, index: (index % count) as u32 };
            let key = cluster.key.of_iod(iods[index]);
            DataHandle::sign(&key, cluster.fsid, object, rights, striping, holder).to_bytes()
        };
        Ok((handle, grant))
    }

    fn files_body(
        &self,
        ctx: &Ctx,
        objects: &Objects<'_>,
        (generation, rights): (Generation, Rights),
        max: usize,
    ) -> Result<Bytes, Status> {
        let count = objects.record.iods.len();
        // Each data server accepts only its own filehandle. A file with more data servers than a body has space for
        // takes the mgr path.
        if objects.record.mirrors > 1 || !files::Body::has_room(max, count, DATA_HANDLE_LEN) {
            return Err(Status::NoLayout);
        }
        let servers = self.data_servers(objects)?;
        let (device, first_stripe_index) = self.devices.name(&objects.record.iods, servers, &self.iods.cluster().key);
        let (handle, _) = self.data_handles(ctx, objects, generation, rights)?;
        // The filehandles are in the order of the device, which need not begin with the file's first object.
        let first = first_stripe_index as usize;
        let handles = (0..count).map(|at| handle((at + count - first) % count)).collect();
        let stripe_unit = objects.record.stripe_unit as u32;
        Ok(files::Body { device, stripe_unit, first_stripe_index, handles }.to_bytes())
    }

    /// Returns a flexible files layout with a mirror for each copy. Copies with several iods each are offered only if
    /// the export says that its clients support striping: other clients would fail.
    fn flexfiles_body(
        &self,
        ctx: &Ctx,
        objects: &Objects<'_>,
        generation: Generation,
        rights: Rights,
    ) -> Result<Bytes, Status> {
        let servers = self.data_servers(objects)?;
        let width = objects.distribution.count();
        let striped = width > 1;
        if striped && self.exports.rule(ctx.place).layout != KernelLayout::FlexfilesStriped {
            return Err(Status::NoLayout);
        }
        let (handle, grant) = self.data_handles(ctx, objects, generation, rights)?;
        // The stateid must not be one of the special stateids, which data servers refuse. The seqid is 0, because the
        // stateid never changes (RFC 8881 §8.2.2).
        let mut stateid = [0; 16];
        stateid[4..8].copy_from_slice(b"weir");
        stateid[8..].copy_from_slice(&grant.to_be_bytes());
        let server = |index, at: &DataServer, efficiency| flexfiles::DataServer {
            device: self.devices.name_one(at.clone(), &self.iods.cluster().key),
            efficiency,
            stateid,
            handle: handle(index),
            user: ctx.cred.uid,
            group: ctx.cred.gid,
        };
        // All clients read the first copy while it is available, as the mgr does: bytes that no client knows to be
        // durable may be in one copy only.
        let copies = servers.chunks(width).enumerate().zip((1..=objects.record.mirrors).rev());
        let mirror = |((copy, servers), efficiency): ((usize, &[DataServer]), u32)| {
            (copy * width..).zip(servers).map(|(index, at)| server(index, at, efficiency)).collect()
        };
        let mirrors = copies.map(mirror).collect();
        let stripe_unit = if striped { objects.record.stripe_unit } else { 0 };
        Ok(flexfiles::Body { stripe_unit, mirrors, flags: 0, stats_hint: 0 }.to_bytes())
    }

    /// Returns the lengths below which a kernel client reads and writes a file through the mgr.
    ///
    /// Linux compares `write_size` with the length of the file, and `write_iosize` with all bytes written since it got
    /// the layout. It writes through the mgr only while both are below. The second covers the first request of a large
    /// file that is written without a cache: the file is empty then.
    ///
    /// A policy of the server, the directory or the file overrides the common length of the export.
    pub(crate) fn threshold(&self, ctx: &Ctx, file: FileId, dir: Option<FileId>) -> Result<Option<Threshold>, Status> {
        let rule = self.exports.rule(ctx.place);
        let Some(kind) = rule.layout.kind() else { return Ok(None) };
        let bytes = match rule.mds_threshold {
            Some(bytes) => bytes,
            None => {
                let info = self.namespace.info(file)?;
                self.objects_to_be(&info)?.map_or(rule.policy.stripe_unit, |objects| objects.record.stripe_unit)
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
        if kind != native::KIND {
            add(&self.counters.devices_told, 1);
            return self.devices.address(device, kind).ok_or(Status::NoEnt);
        }
        self.native.seen(ctx.client);
        let iod = self.iods.by_id(IodId(device)).ok_or(Status::NoEnt)?;
        let cluster = self.iods.cluster();
        let ticket = cluster.key.of_iod(iod.id).ticket(cluster.fsid, ctx.client, self.expires(kind));
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
        if update.measure || (end > 0 && self.grants.is_cut(file, ctx.client)) {
            // The range that the client reports may have been truncated since. The measurement waits for iods that are
            // down: after the reply, other clients must see the bytes that this client synced.
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
        let to = Reach { end, holes: if update.holes { Holes::Made } else { Holes::Keep }, whole };
        let changed = match update.durable {
            true => self.namespace.set_size(&ctx.cred, ctx.now, file, to, mtime).await?,
            false => self.namespace.grow(&ctx.cred, ctx.now, file, to, mtime).await?,
        };
        // Record the report only now: a report that failed for lack of space does not count. A report of a client that
        // may have failed to write something does not say how far its writes reached.
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
        if let LayoutGone::Returned(body) = &why {
            self.note_faults(client, file, body);
        }
        let mut untold = write && (revoked || self.grants.is_untold(file, client));
        if untold {
            // Note this before the grant is removed: after that, the next report of another client counts as complete.
            self.notes.abandoned(file, revoked);
        }
        if write {
            untold |= self.grants.gone(file, client);
        } else {
            self.grants.read_gone(file, client);
        }
        let result = async {
            self.given_back(file).await;
            let fenced = if revoked { self.fence(ctx, file).await } else { Ok(()) };
            if untold {
                // A client that lost its layout may have written after its last report.
                self.measure_or_later(file).await?;
            } else if write {
                self.all_told(file);
            }
            fenced
        };
        match result.await {
            // The file is gone: nothing is left to protect or to measure.
            Err(Status::Stale) => Ok(()),
            other => other,
        }
    }

    /// Logs the failures at data servers that a client reports. The report changes nothing: the mgr itself knows the
    /// state of its iods.
    fn note_faults(&self, client: u64, file: FileId, body: &Bytes) {
        if body.is_empty() {
            return;
        }
        let faults = match flexfiles::faults(body) {
            Ok(faults) => faults,
            Err(error) => {
                if let Some(left_out) = net::seldom("unreadable report of data servers", Machine::UNKNOWN) {
                    tracing::warn!(client, file = file.0, left_out, "unreadable report of data servers: {error}");
                }
                return;
            }
        };
        if let Some(first) = faults.first() {
            self.note_failures(client, file, first, faults.len());
        }
    }

    /// Counts and logs the client's report of `count` failed operations at data servers, of which `first` is the first.
    pub(crate) fn note_failures(&self, client: u64, file: FileId, first: &dyn Debug, count: usize) {
        add(&self.counters.layout_faults, count as u64);
        if let Some(left_out) = net::seldom("a client failed at a data server", Machine::UNKNOWN) {
            tracing::warn!(client, file = file.0, ?first, count, left_out, "a client failed at a data server");
        }
    }

    /// Writes held bytes to the iods when a client returns a layout, a delegation or a lock, so that later readers find
    /// them. Bytes that cannot be written now stay held, and readers at the mgr wait for them.
    pub(crate) async fn given_back(&self, file: FileId) {
        if let Err(error) = self.let_go(file, Part::All, Why::Close).await {
            tracing::debug!(file = file.0, "what is held is not written yet: {error}");
        }
    }

    /// Handles the close of a file that the client could write: if the client never reported its writes, the mgr asks
    /// the iods for the size.
    pub(crate) async fn closed(&self, ctx: &Ctx, file: FileId, wrote: bool) -> Result<(), Status> {
        self.given_back(file).await;
        if wrote && self.grants.is_untold(file, ctx.client) {
            return self.measure_or_later(file).await;
        }
        self.all_told(file);
        Ok(())
    }
}
