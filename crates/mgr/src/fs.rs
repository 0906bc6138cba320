//! The file system of the NFS server: it implements the trait `nfs::fs::FileSystem` and passes each call to the
//! namespace or to [`Volume`].

use crate::backchannel::Backchannel;
use crate::clock::now;
use crate::handle;
use crate::volume::Volume;
use bytes::Bytes;
use meta::{ChangeInfo, CreateMode, SetXattr};
use nfs::exports::{Place, Terms, View};
use nfs::fs::*;
use nfs::server::Server;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use types::{
    Attrs, ByteRange, Cred, FileId, FileKind, Fsid, Renaming, SetAttrs, StatFs, Status, Timestamp, Verifier, limits,
};

/// The file system that the NFS server of the mgr uses. Clones share one volume.
#[derive(Clone, Debug)]
pub struct Files(pub(crate) Arc<Volume>);

pub(crate) type NfsServer = Server<Files, Backchannel>;

/// The ACCESS bits that every client has on a pseudo directory above an export.
const ON_THE_WAY: u32 = access::READ | access::LOOKUP | access::EXECUTE;

/// Number of free inodes that the mgr reports (`files_free`). The number is fixed, because only free space limits the
/// number of files.
const FILES_FREE: u64 = 1 << 32;

fn change(info: ChangeInfo) -> Change {
    Change { before: info.before, after: info.after, atomic: info.atomic }
}

impl Files {
    /// Returns the status for the client when an operation in `dir` fails: `Symlink` instead of `NotDir` if `dir` is a
    /// symbolic link.
    fn in_dir(&self, dir: FileId, status: Status) -> Status {
        let is_symlink = || self.0.namespace.getattr(dir).is_ok_and(|a| a.kind == FileKind::Symlink);
        if status == Status::NotDir && is_symlink() { Status::Symlink } else { status }
    }

    /// Returns the status for the client when it cannot create `name` in `dir`. If the name exists, first waits until
    /// its file is durable, because the client relies on this file after `Exist`.
    async fn in_the_way(&self, dir: FileId, name: &[u8], status: Status) -> Status {
        match status {
            Status::Exist => self.0.intents.settle_name(dir, name).await.err().unwrap_or(status),
            status => self.in_dir(dir, status),
        }
    }
}

/// Returns the ACCESS bits that correspond to permissions of the namespace (RFC 8881 §18.1).
fn access_bits(rights: meta::Rights, kind: FileKind) -> u32 {
    let directory = kind == FileKind::Directory;
    // Every caller that can reach a file may list its extended attributes, as on Linux.
    let mut bits = access::XALIST;
    if rights.read {
        bits |= access::READ | access::XAREAD;
    }
    if rights.write {
        bits |= access::MODIFY | access::EXTEND | access::XAWRITE;
    }
    match (directory, rights.execute) {
        (true, true) => bits |= access::LOOKUP,
        (false, true) => bits |= access::EXECUTE,
        _ => {}
    }
    // A caller can create or remove names only in a directory that it may also search.
    if directory && rights.write && rights.execute {
        bits |= access::DELETE;
    }
    bits
}

impl FileSystem for Files {
    fn fsid(&self) -> Fsid {
        self.0.namespace.fsid()
    }

    fn fsid_in(&self, place: Place) -> Fsid {
        self.0.exports.fsid(self.fsid(), place)
    }

    fn root(&self, view: View) -> (FileId, Place) {
        (FileId::ROOT, self.0.exports.root(view))
    }

    fn layout_types(&self) -> Vec<u32> {
        self.0.kinds.layout_types()
    }

    fn terms(&self, place: Place) -> Terms {
        self.0.exports.rule(place).terms
    }

    fn reached_now(&self, place: Place) -> Place {
        self.0.exports.reached_now(place)
    }

    fn descend(&self, ctx: &Ctx, child: FileId) -> Result<Place> {
        self.0.exports.descend(ctx.place, ctx.view, child)
    }

    fn ascend(&self, ctx: &Ctx, dir: FileId) -> Result<Place> {
        self.0.exports.ascend(ctx.place, ctx.view, dir)
    }

    fn info(&self, place: Place) -> FsInfo {
        let rule = self.0.exports.rule(place);
        FsInfo {
            lease_secs: self.0.lease_secs,
            max_file_size: limits::FILE_SIZE_MAX,
            max_read: limits::PAYLOAD_MAX as u64,
            max_write: limits::PAYLOAD_MAX as u64,
            max_link: limits::LINK_MAX,
            max_name: limits::NAME_MAX as u32,
            layout_types: self.0.kinds.offered(rule.kernel_layout),
            layout_block: rule.policy.stripe_unit as u32,
            xattrs: true,
            thresholds: self.0.kinds.offered_to_kernels(rule.kernel_layout).is_some() && rule.mds_threshold != Some(0),
        }
    }

    fn encode_handle(&self, file: FileId, place: Place) -> Bytes {
        let named = handle::Named { file, root: place.root, epoch: place.epoch };
        handle::encode(&self.0.iods.cluster().key, self.fsid(), named)
    }

    fn decode_handle(&self, view: View, handle: &[u8]) -> Result<(FileId, Place)> {
        let named = handle::decode(&self.0.iods.cluster().key, self.fsid(), handle)?;
        Ok((named.file, self.0.exports.enter(named, view)?))
    }

    async fn getattr(&self, ctx: &Ctx, file: FileId) -> Result<Attrs> {
        self.0.intents.found(file, ctx.client).await?;
        self.0.attrs(ctx, file).await
    }

    fn is_written_elsewhere(&self, ctx: &Ctx, file: FileId) -> bool {
        self.0.is_untold(ctx, file)
    }

    async fn correct_space(&self, files: &mut [&mut Attrs]) {
        self.0.correct_space(files).await;
    }

    async fn setattr(&self, ctx: &Ctx, file: FileId, set: SetAttrs, opened: bool) -> Result<Attrs> {
        match set.size {
            Some(size) => {
                let before = self.0.namespace.getattr(file)?;
                let outcome = self.0.set_size(ctx, file, size, set, opened).await;
                let after = self.0.unless_lost(ctx, file, None, outcome)?;
                self.0.end_rights(ctx, &before, &after).await?;
                Ok(after)
            }
            None if set.mtime.is_some() && self.0.grants.is_silent(file, ctx.client) => {
                // First record the size after the client's earlier, unreported writes. Otherwise the mgr later treats
                // these writes as newer than this SETATTR, and replaces the mtime that this SETATTR sets.
                self.0.attrs(ctx, file).await?;
                self.0.set_attributes(ctx, file, &set, opened).await
            }
            None => self.0.set_attributes(ctx, file, &set, opened).await,
        }
    }

    async fn access(&self, ctx: &Ctx, file: FileId, asked: u32) -> Result<u32> {
        if ctx.place.is_outside() {
            return Ok(asked & ON_THE_WAY);
        }
        let rights = self.0.namespace.access(&ctx.cred, file)?;
        Ok(asked & access_bits(rights, self.0.namespace.getattr(file)?.kind))
    }

    async fn lookup(&self, ctx: &Ctx, dir: FileId, name: &Bytes) -> Result<Attrs> {
        if ctx.place.is_outside() {
            return self.0.exports.lookup(ctx.view, dir, name);
        }
        let found = self.0.namespace.lookup(&ctx.cred, dir, name).map_err(|e| self.in_dir(dir, e))?;
        self.0.exports.passed(dir);
        self.0.intents.found(found.id, ctx.client).await?;
        Ok(found)
    }

    async fn lookup_parent(&self, ctx: &Ctx, dir: FileId) -> Result<Attrs> {
        let root = Cred::root();
        // Looking up the parent of a pseudo directory, or of the root of an export, needs no permission.
        let cred = if ctx.place.is_outside() || ctx.place.root == dir { &root } else { &ctx.cred };
        self.0.namespace.lookup_parent(cred, dir).map_err(|e| self.in_dir(dir, e))
    }

    async fn readdir(&self, ctx: &Ctx, dir: FileId, after: u64, max: usize) -> Result<DirPage> {
        if ctx.place.is_outside() {
            return self.0.exports.readdir(ctx.view, dir, after);
        }
        let page = self.0.namespace.readdir(&ctx.cred, dir, after, max)?;
        self.0.exports.passed(dir);
        Ok(DirPage { entries: page.entries, eof: page.eof })
    }

    async fn create(&self, ctx: &Ctx, dir: FileId, name: &Bytes, kind: CreateKind, set: SetAttrs) -> Result<Created> {
        let (namespace, cred, now) = (self.0.names(ctx), &ctx.cred, ctx.now);
        let made = match kind {
            CreateKind::Directory => namespace.mkdir(cred, now, dir, name, &set).await,
            CreateKind::Symlink(target) => namespace.symlink(cred, now, dir, name, &target, &set).await,
            CreateKind::Fifo => namespace.mknod(cred, now, dir, name, FileKind::Fifo, (0, 0), &set).await,
            CreateKind::Socket => namespace.mknod(cred, now, dir, name, FileKind::Socket, (0, 0), &set).await,
            CreateKind::Block(major, minor) => {
                namespace.mknod(cred, now, dir, name, FileKind::Block, (major, minor), &set).await
            }
            CreateKind::Char(major, minor) => {
                namespace.mknod(cred, now, dir, name, FileKind::Char, (major, minor), &set).await
            }
        };
        let made = match made {
            Ok(made) => made,
            Err(e) => return Err(self.in_the_way(dir, name, e).await),
        };
        self.0.exports.passed(dir);
        Ok(Created { attrs: made.attrs, change: change(made.dir) })
    }

    async fn open_create(
        &self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        how: OpenHow,
        set: SetAttrs,
        unsynced: bool,
    ) -> Result<Opened> {
        let how = match how {
            OpenHow::Unchecked => CreateMode::Unchecked(set),
            OpenHow::Guarded => CreateMode::Guarded(set),
            OpenHow::Exclusive(verifier) => CreateMode::Exclusive(verifier.0, set),
        };
        let unsynced = unsynced || ctx.soon;
        let layout = self.0.layout_in(ctx.place, dir)?;
        let (namespace, layout) = (&self.0.namespace, Some(&layout));
        let made = match unsynced {
            true => namespace.create_soon(&ctx.cred, ctx.now, dir, name, &how, layout).await,
            false => namespace.create(&ctx.cred, ctx.now, dir, name, &how, layout).await,
        };
        match made {
            Ok(made) => {
                // A client may repeat an exclusive create whose reply was lost. The file of the first attempt then
                // exists, and the directory stays unchanged.
                if made.created && made.dir.before != made.dir.after {
                    self.0.intents.made(made.file.attrs.id, unsynced.then_some(ctx.client));
                } else if !(made.created && unsynced) {
                    // The file existed before this OPEN. Its creator may not have waited for durability, so wait now.
                    namespace.settle().await?;
                }
                Ok(Opened { attrs: made.file.attrs, created: made.created, change: change(made.dir) })
            }
            // The name belongs to an inode that is no regular file. The NFS server decides which error to return.
            Err(Status::IsDir | Status::Symlink | Status::WrongType) => {
                let attrs = self.lookup(ctx, dir, name).await?;
                let now = self.0.namespace.getattr(dir)?.change;
                Ok(Opened { attrs, created: false, change: Change { before: now, after: now, atomic: true } })
            }
            Err(e) => Err(self.in_the_way(dir, name, e).await),
        }
    }

    async fn remove(&self, ctx: &Ctx, dir: FileId, name: &Bytes, ends: Ends<'_>) -> Result<Removed> {
        self.0.exports.may_move((dir, name), false)?;
        let removed = self.0.names(ctx).remove_ending(&ctx.cred, ctx.now, dir, name, ends).await;
        let removed = removed.map_err(|e| self.in_dir(dir, e))?;
        let id = removed.file.attrs.id;
        if let Some(ending) = removed.end {
            self.0.ended(id, ending);
        }
        Ok(Removed { id, orphaned: removed.file.orphan, change: change(removed.dir) })
    }

    async fn rename(&self, ctx: &Ctx, from: (FileId, &Bytes), to: (FileId, &Bytes), how: Renaming) -> Result<Renamed> {
        // In an exchange of two names, each name is both source and target, so check `from` as a target as well.
        self.0.exports.may_move(from, how == Renaming::Exchange)?;
        self.0.exports.may_move(to, true)?;
        let (from, to) = ((from.0, &from.1[..]), (to.0, &to.1[..]));
        let renamed = self.0.names(ctx).rename(&ctx.cred, ctx.now, from, to, how).await?;
        let replaced = renamed.replaced.map(|file| {
            let (id, orphaned, bytes) = (file.attrs.id, file.orphan, file.attrs.size);
            let room = if orphaned && bytes > 0 { self.0.iods.capacity().1 } else { 0 };
            Replaced { id, orphaned, bytes, room }
        });
        Ok(Renamed { from: change(renamed.from), to: change(renamed.to), replaced })
    }

    async fn link(&self, ctx: &Ctx, file: FileId, dir: FileId, name: &Bytes) -> Result<Change> {
        match self.0.names(ctx).link(&ctx.cred, ctx.now, file, dir, name).await {
            Ok(made) => Ok(change(made.dir)),
            Err(e) => Err(self.in_the_way(dir, name, e).await),
        }
    }

    async fn readlink(&self, _: &Ctx, file: FileId) -> Result<Bytes> {
        self.0.namespace.readlink(file).map_err(|e| if e == Status::WrongType { Status::Inval } else { e })
    }

    async fn read(&self, ctx: &Ctx, file: FileId, offset: u64, len: u32) -> Result<ReadOut> {
        let outcome = self.0.read(ctx, file, offset, len).await;
        let range = ByteRange::new(offset, len.into());
        match self.0.unless_lost(ctx, file, range, outcome) {
            Err(Status::Io) if let Some(first) = self.0.before_lost(ctx, file, range) => {
                self.0.read(ctx, file, offset, first as u32).await
            }
            outcome => outcome,
        }
    }

    async fn write(&self, ctx: &Ctx, file: FileId, offset: u64, data: Bytes, stable: Stability) -> Result<WriteOut> {
        let range = ByteRange::new(offset, data.len() as u64);
        let outcome = self.0.write(ctx, file, offset, data.clone(), stable).await;
        match self.0.unless_lost(ctx, file, range, outcome) {
            Err(Status::Io) if let Some(first) = self.0.before_lost(ctx, file, range) => {
                self.0.write(ctx, file, offset, data.slice(..first as usize), stable).await
            }
            outcome => outcome,
        }
    }

    async fn copy(
        &self,
        ctx: &Ctx,
        from: FileId,
        range: ByteRange,
        to: FileId,
        target: u64,
    ) -> Result<Option<WriteOut>> {
        self.0.copy(ctx, (from, range), (to, target)).await
    }

    async fn commit(&self, ctx: &Ctx, file: FileId, _: ByteRange) -> Result<Verifier> {
        self.0.unless_lost(ctx, file, None, self.0.commit(ctx, file).await)
    }

    async fn reap(&self, _: &Ctx, file: FileId) -> Result<()> {
        self.0.reap(file).await
    }

    async fn unlocking(&self, _: &Ctx, file: FileId) {
        self.0.given_back(file).await;
    }

    async fn closed(&self, ctx: &Ctx, file: FileId, wrote: bool) -> Result<()> {
        self.0.closed(ctx, file, wrote).await
    }

    async fn statfs(&self, _: &Ctx) -> Result<StatFs> {
        let (bytes_total, bytes_free) = self.0.iods.capacity();
        let files = self.0.namespace.files()?;
        let files_total = files.saturating_add(FILES_FREE);
        Ok(StatFs { bytes_total, bytes_free, bytes_avail: bytes_free, files_total, files_free: FILES_FREE })
    }

    async fn getxattr(&self, ctx: &Ctx, file: FileId, name: &Bytes) -> Result<Bytes> {
        self.0.namespace.getxattr(&ctx.cred, file, name)
    }

    async fn setxattr(&self, ctx: &Ctx, file: FileId, name: &Bytes, value: Bytes, how: XattrHow) -> Result<Change> {
        if layout::policy::is_policy_name(name) {
            self.0.check_policy(file, name, &value)?;
        }
        let how = match how {
            XattrHow::Either => SetXattr::Either,
            XattrHow::Create => SetXattr::Create,
            XattrHow::Replace => SetXattr::Replace,
        };
        self.0.names(ctx).setxattr(&ctx.cred, ctx.now, file, name, &value, how).await.map(change)
    }

    async fn listxattrs(&self, _: &Ctx, file: FileId) -> Result<Vec<Bytes>> {
        self.0.namespace.listxattr(file)
    }

    async fn removexattr(&self, ctx: &Ctx, file: FileId, name: &Bytes) -> Result<Change> {
        self.0.names(ctx).removexattr(&ctx.cred, ctx.now, file, name).await.map(change)
    }

    async fn seek(&self, ctx: &Ctx, file: FileId, offset: u64, what: Content) -> Result<SeekOut> {
        self.0.unless_lost(ctx, file, None, self.0.seek(ctx, file, offset, what).await)
    }

    async fn allocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> Result<()> {
        self.0.unless_lost(ctx, file, None, self.0.allocate(ctx, file, range).await)
    }

    async fn extend(&self, ctx: &Ctx, file: FileId, end: u64) -> Result<()> {
        self.0.extend(ctx, file, end).await
    }

    async fn deallocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> Result<()> {
        self.0.unless_lost(ctx, file, None, self.0.deallocate(ctx, file, range).await)
    }

    async fn layout_get(&self, ctx: &Ctx, ask: LayoutAsk) -> Result<LayoutOut> {
        self.0.layout_get(ctx, ask).await
    }

    async fn device_info(&self, ctx: &Ctx, device: [u8; 16], kind: u32) -> Result<Bytes> {
        // The reply contains a ticket for the iod beside the device address, so refuse clients that see no export.
        if ctx.view == View::NONE {
            return Err(Status::NoEnt);
        }
        self.0.device_info(ctx, device, kind)
    }

    async fn layout_commit(
        &self,
        ctx: &Ctx,
        file: FileId,
        (kind, body): (u32, Bytes),
        last_byte: Option<u64>,
        mtime: Option<Timestamp>,
    ) -> Result<Option<u64>> {
        self.0.layout_commit(ctx, file, (kind, &body), last_byte, mtime).await
    }

    fn layout_faults(&self, ctx: &Ctx, file: FileId, first: &dyn Debug, count: usize) {
        self.0.note_failures(ctx.client, file, first, count);
    }

    async fn layout_gone(
        &self,
        ctx: &Ctx,
        client: u64,
        file: FileId,
        iomode: Iomode,
        _: ByteRange,
        why: LayoutGone,
    ) -> Result<()> {
        self.0.layout_gone(ctx, client, file, iomode, why).await
    }

    async fn threshold(&self, ctx: &Ctx, file: FileId, dir: Option<FileId>) -> Result<Option<Threshold>> {
        self.0.threshold(ctx, file, dir)
    }

    fn policy(&self, ctx: &Ctx, file: FileId) -> Result<Option<PolicyText>> {
        self.0.policy_text(ctx, file).map(Some)
    }

    async fn settle(&self) -> Result<Option<u64>> {
        self.0.namespace.settle().await?;
        Ok(Some(self.0.boot))
    }

    fn queue_delay(&self) -> Option<Duration> {
        Some(self.0.queue_delay())
    }

    async fn persist_client(&self, record: ClientRecord) -> Result<()> {
        match self.0.clients.put(now(), record).await {
            // Accept a client whose record does not fit on the disk. This client can use the mgr, but cannot reclaim
            // after a restart of the mgr. If the mgr refused the client, the client could not even read.
            Err(Status::NoSpc) => {
                tracing::warn!(
                    "the disk of the metadata store is full: the mgr cannot record a new client, which cannot reclaim its state after a restart"
                );
                Ok(())
            }
            other => other,
        }
    }

    async fn forget_client(&self, owner: Bytes) -> Result<()> {
        self.0.clients.forget(now(), &owner).await
    }

    async fn clients(&self) -> Result<Vec<ClientRecord>> {
        self.0.clients.all()
    }
}

/// Returns the context, with root's credentials, for operations that the mgr executes on its own behalf.
pub(crate) fn own_ctx() -> Ctx {
    Ctx { cred: Cred::root(), now: now(), ..Ctx::default() }
}
