//! In-memory [`FileSystem`] for tests and fuzz targets of the NFS server.
//!
//! Files are small ([`SIZE_MAX`]), and nothing survives the process. Permissions follow POSIX as far as the tests need.

mod namespace;

use crate::exports::{Place, View};
use crate::fs::*;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use types::{
    Attrs, ByteRange, Cred, FileId, FileKind, Fsid, Renaming, SetAttrs, SetTime, StatFs, Status, Timestamp, Verifier,
};
use xdr::Segments;

/// Largest file size in bytes.
pub const SIZE_MAX: u64 = 4 << 20;
/// Block size in bytes; each block is either data or a hole.
const BLOCK: usize = 4096;
/// The only layout type that the file system grants, from the range for private use.
pub const LAYOUT_KIND: u32 = 0x8000_5745;
/// The device id of the only data server.
pub const DEVICE: [u8; 16] = [7; 16];

/// The content of an inode, according to its type.
#[derive(Debug)]
enum Content {
    Bytes(Vec<u8>),
    Entries { by_cookie: BTreeMap<u64, (Bytes, FileId)>, by_name: HashMap<Bytes, u64>, parent: FileId },
    Target(Bytes),
    Nothing,
}

#[derive(Debug)]
struct Inode {
    attrs: Attrs,
    content: Content,
    xattrs: BTreeMap<Bytes, Bytes>,
    verifier: Option<Verifier>,
}

/// Calls that the server has made to the file system, for tests to check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordedCalls {
    /// Files that the server freed, in order.
    pub reaped: Vec<FileId>,
    /// Layouts that ended: client id, file, and reason.
    pub gone: Vec<(u64, FileId, LayoutGone)>,
    /// Files that a client closed, and whether the open permitted writing.
    pub closed: Vec<(FileId, bool)>,
}

#[derive(Debug)]
struct Inner {
    inodes: HashMap<FileId, Inode>,
    next_id: u64,
    next_cookie: u64,
    change: u64,
    clients: BTreeMap<Bytes, u64>,
    calls: RecordedCalls,
    return_on_close: bool,
    /// Whether the data servers are unresponsive, so that the file system cannot fence a client. `fencing` holds the
    /// wakers of the tasks that wait for a fence.
    silent: bool,
    fencing: Vec<Waker>,
}

/// A file system in memory, behind one lock.
#[derive(Debug)]
pub struct Memory {
    inner: Mutex<Inner>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory::new()
    }
}

impl Memory {
    /// Creates a file system with only a root directory, in which every user may create names.
    pub fn new() -> Self {
        let mut inner = Inner {
            inodes: HashMap::new(),
            next_id: 1,
            next_cookie: 3,
            change: 1,
            clients: BTreeMap::new(),
            calls: RecordedCalls::default(),
            return_on_close: false,
            silent: false,
            fencing: Vec::new(),
        };
        let set = SetAttrs { mode: Some(0o777), ..SetAttrs::default() };
        let entries = Content::Entries { by_cookie: BTreeMap::new(), by_name: HashMap::new(), parent: FileId::ROOT };
        inner.add(&Ctx::default(), FileKind::Directory, (0, 0), entries, set);
        Memory { inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the calls that the server has made since the creation of the file system.
    pub fn calls(&self) -> RecordedCalls {
        self.lock().calls.clone()
    }

    /// Returns whether a file exists, with or without a name.
    pub fn exists(&self, file: FileId) -> bool {
        self.lock().inodes.contains_key(&file)
    }

    /// Returns the client owners of the stored client records.
    pub fn owners(&self) -> Vec<Bytes> {
        self.lock().clients.keys().cloned().collect()
    }

    /// Sets whether clients must return new layouts before the last CLOSE.
    pub fn set_return_on_close(&self, on: bool) {
        self.lock().return_on_close = on;
    }

    /// Sets whether the data servers are unresponsive. While the data servers are unresponsive, the file system cannot
    /// fence a client.
    pub fn set_silent(&self, on: bool) {
        let fencing = {
            let mut inner = self.lock();
            inner.silent = on;
            std::mem::take(&mut inner.fencing)
        };
        fencing.into_iter().for_each(Waker::wake);
    }
}

/// Returns the [`access`] bits that the mode of a file grants to `cred`.
fn granted(cred: &Cred, attrs: &Attrs) -> u32 {
    let class = match () {
        () if cred.is_root() => 7,
        () if cred.uid == attrs.uid => attrs.mode >> 6 & 7,
        () if cred.in_group(attrs.gid) => attrs.mode >> 3 & 7,
        () => attrs.mode & 7,
    };
    let mut bits = 0;
    if class & 4 != 0 {
        bits |= access::READ | access::XAREAD | access::XALIST;
    }
    if class & 2 != 0 {
        bits |= access::MODIFY | access::EXTEND | access::DELETE | access::XAWRITE;
    }
    if class & 1 != 0 {
        bits |= access::LOOKUP | access::EXECUTE;
    }
    bits
}

impl Inner {
    fn get(&self, file: FileId) -> Result<&Inode> {
        self.inodes.get(&file).ok_or(Status::Stale)
    }

    fn get_mut(&mut self, file: FileId) -> Result<&mut Inode> {
        self.inodes.get_mut(&file).ok_or(Status::Stale)
    }

    fn allowed(&self, ctx: &Ctx, file: FileId, bits: u32) -> Result<()> {
        if granted(&ctx.cred, &self.get(file)?.attrs) & bits == bits { Ok(()) } else { Err(Status::Access) }
    }

    fn bytes(&mut self, file: FileId) -> Result<&mut Vec<u8>> {
        match &mut self.get_mut(file)?.content {
            Content::Bytes(bytes) => Ok(bytes),
            _ => Err(Status::Inval),
        }
    }

    /// Updates the change attribute and the times of a file after a change of its data (if `data` is set) or of its
    /// attributes. Returns the change attribute before and after the change.
    fn touch(&mut self, file: FileId, now: Timestamp, data: bool) -> Result<Change> {
        self.change += 1;
        let after = self.change;
        let inode = self.get_mut(file)?;
        let before = std::mem::replace(&mut inode.attrs.change, after);
        inode.attrs.ctime = now;
        if data {
            inode.attrs.mtime = now;
        }
        match &inode.content {
            Content::Bytes(bytes) => {
                inode.attrs.size = bytes.len() as u64;
                inode.attrs.used = inode.attrs.size.next_multiple_of(4096);
            }
            Content::Entries { by_cookie, .. } => inode.attrs.size = by_cookie.len() as u64,
            Content::Target(target) => inode.attrs.size = target.len() as u64,
            Content::Nothing => {}
        }
        Ok(Change { before, after, atomic: true })
    }

    /// Creates an inode without a name, and returns its attributes.
    fn add(&mut self, ctx: &Ctx, kind: FileKind, rdev: (u32, u32), content: Content, set: SetAttrs) -> Attrs {
        let id = FileId(self.next_id);
        self.next_id += 1;
        self.change += 1;
        let nlink = if kind == FileKind::Directory { 2 } else { 1 };
        let size = if let Content::Target(target) = &content { target.len() as u64 } else { 0 };
        let attrs = Attrs {
            id,
            kind,
            mode: set.mode.unwrap_or(0o644),
            nlink,
            uid: set.uid.unwrap_or(ctx.cred.uid),
            gid: set.gid.unwrap_or(ctx.cred.gid),
            size,
            used: 0,
            holes: false,
            atime: time(set.atime, ctx.now).unwrap_or(ctx.now),
            mtime: time(set.mtime, ctx.now).unwrap_or(ctx.now),
            ctime: ctx.now,
            btime: ctx.now,
            change: self.change,
            rdev,
        };
        self.inodes.insert(id, Inode { attrs, content, xattrs: BTreeMap::new(), verifier: None });
        attrs
    }

    fn resize(&mut self, file: FileId, size: u64) -> Result<()> {
        if size > SIZE_MAX {
            return Err(Status::FBig);
        }
        self.bytes(file)?.resize(size as usize, 0);
        Ok(())
    }

    fn set(&mut self, ctx: &Ctx, file: FileId, set: SetAttrs, opened: bool) -> Result<Attrs> {
        let attrs = self.get(file)?.attrs;
        let owner = ctx.cred.is_root() || ctx.cred.uid == attrs.uid;
        let owned = set.mode.is_some() || set.gid.is_some() || set.atime.is_some() || set.mtime.is_some();
        if (owned && !owner) || (set.uid.is_some_and(|uid| uid != attrs.uid) && !ctx.cred.is_root()) {
            return Err(Status::Perm);
        }
        if let Some(size) = set.size {
            if !opened {
                self.allowed(ctx, file, access::MODIFY)?;
            }
            self.resize(file, size)?;
        }
        let inode = self.get_mut(file)?;
        inode.verifier = None;
        let attrs = &mut inode.attrs;
        attrs.mode = set.mode.unwrap_or(attrs.mode);
        attrs.uid = set.uid.unwrap_or(attrs.uid);
        attrs.gid = set.gid.unwrap_or(attrs.gid);
        self.touch(file, ctx.now, set.size.is_some())?;
        let attrs = &mut self.get_mut(file)?.attrs;
        attrs.atime = time(set.atime, ctx.now).unwrap_or(attrs.atime);
        attrs.mtime = time(set.mtime, ctx.now).unwrap_or(attrs.mtime);
        Ok(*attrs)
    }

    fn write(&mut self, ctx: &Ctx, file: FileId, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX).ok_or(Status::FBig)?;
        if data.is_empty() {
            return Ok(());
        }
        let bytes = self.bytes(file)?;
        if bytes.len() < end as usize {
            bytes.resize(end as usize, 0);
        }
        bytes[offset as usize..end as usize].copy_from_slice(data);
        self.touch(file, ctx.now, true).map(|_| ())
    }
}

fn time(set: Option<SetTime>, now: Timestamp) -> Option<Timestamp> {
    set.map(|set| match set {
        SetTime::Now => now,
        SetTime::To(time) => time,
    })
}

/// The first bytes of every filehandle; the inode number follows them.
const MARK: &[u8] = b"memory:";

impl FileSystem for Memory {
    fn fsid(&self) -> Fsid {
        Fsid(*b"a file system in")
    }

    fn root(&self, _: View) -> (FileId, Place) {
        (FileId::ROOT, Place::default())
    }

    fn layout_types(&self) -> Vec<u32> {
        vec![LAYOUT_KIND]
    }

    fn info(&self, _: Place) -> FsInfo {
        FsInfo {
            lease_secs: 90,
            max_file_size: SIZE_MAX,
            max_read: 1 << 20,
            max_write: 1 << 20,
            max_link: 100,
            max_name: types::limits::NAME_MAX as u32,
            layout_types: vec![LAYOUT_KIND],
            layout_block: 4096,
            xattrs: true,
            thresholds: true,
        }
    }

    fn encode_handle(&self, file: FileId, _: Place) -> Bytes {
        [MARK, &file.0.to_be_bytes()].concat().into()
    }

    fn decode_handle(&self, _: View, handle: &[u8]) -> Result<(FileId, Place)> {
        let id = handle.strip_prefix(MARK).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
        id.map(|id| (FileId(id), Place::default())).ok_or(Status::BadHandle)
    }

    async fn getattr(&self, _: &Ctx, file: FileId) -> Result<Attrs> {
        Ok(self.lock().get(file)?.attrs)
    }

    async fn setattr(&self, ctx: &Ctx, file: FileId, set: SetAttrs, opened: bool) -> Result<Attrs> {
        self.lock().set(ctx, file, set, opened)
    }

    async fn access(&self, ctx: &Ctx, file: FileId, asked: u32) -> Result<u32> {
        Ok(granted(&ctx.cred, &self.lock().get(file)?.attrs) & asked)
    }

    async fn lookup(&self, ctx: &Ctx, dir: FileId, name: &Bytes) -> Result<Attrs> {
        self.lock().lookup(ctx, dir, name)
    }

    async fn lookup_parent(&self, ctx: &Ctx, dir: FileId) -> Result<Attrs> {
        self.lock().lookup_parent(ctx, dir)
    }

    async fn readdir(&self, ctx: &Ctx, dir: FileId, after: u64, max: usize) -> Result<DirPage> {
        self.lock().readdir(ctx, dir, after, max)
    }

    async fn create(&self, ctx: &Ctx, dir: FileId, name: &Bytes, kind: CreateKind, set: SetAttrs) -> Result<Created> {
        self.lock().create(ctx, dir, name, kind, set)
    }

    async fn open_create(
        &self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        how: OpenHow,
        set: SetAttrs,
        _: bool,
    ) -> Result<Opened> {
        self.lock().open_create(ctx, dir, name, how, set)
    }

    async fn remove(&self, ctx: &Ctx, dir: FileId, name: &Bytes, ends: Ends<'_>) -> Result<Removed> {
        let removed = self.lock().remove(ctx, dir, name)?;
        if !removed.orphaned || !ends(removed.id) {
            return Ok(removed);
        }
        self.reap(ctx, removed.id).await?;
        Ok(Removed { orphaned: false, ..removed })
    }

    async fn rename(&self, ctx: &Ctx, from: (FileId, &Bytes), to: (FileId, &Bytes), how: Renaming) -> Result<Renamed> {
        self.lock().rename(ctx, from, to, how)
    }

    async fn link(&self, ctx: &Ctx, file: FileId, dir: FileId, name: &Bytes) -> Result<Change> {
        self.lock().link(ctx, file, dir, name)
    }

    async fn readlink(&self, _: &Ctx, file: FileId) -> Result<Bytes> {
        match &self.lock().get(file)?.content {
            Content::Target(target) => Ok(target.clone()),
            _ => Err(Status::Inval),
        }
    }

    async fn read(&self, _: &Ctx, file: FileId, offset: u64, len: u32) -> Result<ReadOut> {
        let mut inner = self.lock();
        let bytes = inner.bytes(file)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = start.saturating_add(len as usize).min(bytes.len());
        let data = Segments::from(Bytes::copy_from_slice(&bytes[start..end]));
        Ok(ReadOut { data, eof: end == bytes.len() })
    }

    async fn write(&self, ctx: &Ctx, file: FileId, offset: u64, data: Bytes, stable: Stability) -> Result<WriteOut> {
        self.lock().write(ctx, file, offset, &data)?;
        Ok(WriteOut { count: data.len() as u32, stable, verifier: Verifier(*b"memory!!") })
    }

    async fn commit(&self, _: &Ctx, file: FileId, _: ByteRange) -> Result<Verifier> {
        self.lock().get(file)?;
        Ok(Verifier(*b"memory!!"))
    }

    async fn settle(&self) -> Result<Option<u64>> {
        Ok(Some(7))
    }

    async fn reap(&self, _: &Ctx, file: FileId) -> Result<()> {
        let mut inner = self.lock();
        inner.calls.reaped.push(file);
        inner.inodes.remove(&file).map(|_| ()).ok_or(Status::Stale)
    }

    async fn closed(&self, _: &Ctx, file: FileId, wrote: bool) -> Result<()> {
        self.lock().calls.closed.push((file, wrote));
        Ok(())
    }

    async fn statfs(&self, _: &Ctx) -> Result<StatFs> {
        let files = self.lock().inodes.len() as u64;
        let (bytes_total, files_total) = (1 << 30, 1 << 20);
        let files_free = files_total - files;
        Ok(StatFs { bytes_total, bytes_free: bytes_total, bytes_avail: bytes_total, files_total, files_free })
    }

    async fn getxattr(&self, _: &Ctx, file: FileId, name: &Bytes) -> Result<Bytes> {
        self.lock().get(file)?.xattrs.get(name).cloned().ok_or(Status::NoXattr)
    }

    async fn setxattr(&self, ctx: &Ctx, file: FileId, name: &Bytes, value: Bytes, how: XattrHow) -> Result<Change> {
        let mut inner = self.lock();
        let inode = inner.get_mut(file)?;
        match (how, inode.xattrs.contains_key(name)) {
            (XattrHow::Create, true) => return Err(Status::Exist),
            (XattrHow::Replace, false) => return Err(Status::NoXattr),
            _ => inode.xattrs.insert(name.clone(), value),
        };
        inner.touch(file, ctx.now, false)
    }

    async fn listxattrs(&self, _: &Ctx, file: FileId) -> Result<Vec<Bytes>> {
        Ok(self.lock().get(file)?.xattrs.keys().cloned().collect())
    }

    async fn removexattr(&self, ctx: &Ctx, file: FileId, name: &Bytes) -> Result<Change> {
        let mut inner = self.lock();
        inner.get_mut(file)?.xattrs.remove(name).ok_or(Status::NoXattr)?;
        inner.touch(file, ctx.now, false)
    }

    async fn seek(&self, _: &Ctx, file: FileId, offset: u64, what: crate::fs::Content) -> Result<SeekOut> {
        let mut inner = self.lock();
        let bytes = inner.bytes(file)?;
        let size = bytes.len() as u64;
        if offset >= size {
            return Err(Status::NxIo);
        }
        // A block that contains only zeros counts as a hole.
        let is_hole = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        let wanted = what == crate::fs::Content::Hole;
        let first = offset / BLOCK as u64;
        let blocks = (first..).zip(bytes.chunks(BLOCK).skip(first as usize));
        let found = blocks.into_iter().find(|(_, block)| is_hole(block) == wanted).map(|(n, _)| n * BLOCK as u64);
        match found.map(|found| found.max(offset)) {
            Some(offset) => Ok(SeekOut { offset, eof: false }),
            None if wanted => Ok(SeekOut { offset: size, eof: true }),
            None => Err(Status::NxIo),
        }
    }

    async fn allocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> Result<()> {
        let mut inner = self.lock();
        let size = inner.bytes(file)?.len() as u64;
        inner.resize(file, size.max(range.end()))?;
        inner.touch(file, ctx.now, true).map(|_| ())
    }

    async fn extend(&self, ctx: &Ctx, file: FileId, end: u64) -> Result<()> {
        self.allocate(ctx, file, ByteRange { offset: 0, len: end }).await
    }

    async fn deallocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> Result<()> {
        let mut inner = self.lock();
        let bytes = inner.bytes(file)?;
        let end = range.end().min(bytes.len() as u64) as usize;
        let start = range.offset.min(end as u64) as usize;
        bytes[start..end].fill(0);
        inner.touch(file, ctx.now, true).map(|_| ())
    }

    async fn layout_get(&self, _: &Ctx, ask: LayoutAsk) -> Result<LayoutOut> {
        let body = Bytes::from(DEVICE.to_vec());
        if body.len() > ask.max_body {
            return Err(Status::TooSmall);
        }
        let return_on_close = self.lock().return_on_close;
        Ok(LayoutOut { range: ByteRange::ALL, iomode: ask.iomode, kind: ask.kind, body, return_on_close })
    }

    async fn device_info(&self, _: &Ctx, device: [u8; 16], _: u32) -> Result<Bytes> {
        if device == DEVICE { Ok(Bytes::from_static(b"one device")) } else { Err(Status::NoEnt) }
    }

    async fn layout_commit(
        &self,
        ctx: &Ctx,
        file: FileId,
        _: (u32, Bytes),
        last_byte: Option<u64>,
        mtime: Option<Timestamp>,
    ) -> Result<Option<u64>> {
        let mut inner = self.lock();
        let old = inner.bytes(file)?.len() as u64;
        let new = last_byte.map_or(old, |last| old.max(last.saturating_add(1)));
        inner.resize(file, new)?;
        inner.touch(file, mtime.unwrap_or(ctx.now), true)?;
        Ok((new != old).then_some(new))
    }

    async fn layout_gone(
        &self,
        _: &Ctx,
        client: u64,
        file: FileId,
        _: Iomode,
        _: ByteRange,
        why: LayoutGone,
    ) -> Result<()> {
        if why == LayoutGone::Revoked {
            poll_fn(|task| {
                let mut inner = self.lock();
                inner.fencing.push(task.waker().clone());
                if inner.silent { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
        }
        self.lock().calls.gone.push((client, file, why));
        Ok(())
    }

    async fn threshold(&self, _: &Ctx, _: FileId, _: Option<FileId>) -> Result<Option<Threshold>> {
        let (read_size, write_size) = (Some(4096), Some(4096));
        Ok(Some(Threshold { kind: LAYOUT_KIND, read_size, write_size, read_iosize: None, write_iosize: None }))
    }

    async fn persist_client(&self, record: ClientRecord) -> Result<()> {
        self.lock().clients.insert(record.owner, record.clientid);
        Ok(())
    }

    async fn forget_client(&self, owner: Bytes) -> Result<()> {
        self.lock().clients.remove(&owner);
        Ok(())
    }

    async fn clients(&self) -> Result<Vec<ClientRecord>> {
        let clients = self.lock().clients.clone();
        Ok(clients.into_iter().map(|(owner, clientid)| ClientRecord { owner, clientid }).collect())
    }
}
