//! The trait [`DataServer`]: the interface between the NFS server of an iod and the object store, for clients with a
//! files layout (RFC 8881 §13).
//!
//! A data server has no names and no opens. The mgr issues the filehandles, and each filehandle states what the client
//! may do. A server that is only a data server offers sessions, READ, WRITE and COMMIT ([`crate::server`]).

use crate::exports::{Place, View};
use crate::fs::*;
use bytes::Bytes;
use std::future::Future;
use types::{Attrs, ByteRange, FileId, Fsid, Renaming, SetAttrs, StatFs, Status, Timestamp, Verifier};

/// The object store that an NFS data server serves. The filehandle of each call states the client's rights
/// ([`Ctx::handle`]).
pub trait DataServer: Send + Sync + 'static {
    /// Returns the identity of the file system, which the server reports as its scope (`eir_server_scope`).
    fn fsid(&self) -> Fsid;

    /// Checks the form and signature of a filehandle and returns its file. Returns `BadHandle` if no mgr of this file
    /// system issued the bytes.
    fn decode_handle(&self, handle: &[u8]) -> Result<FileId>;

    /// Reads up to `len` bytes from `offset` of the file, as far as this data server holds these bytes.
    fn read(&self, ctx: &Ctx, offset: u64, len: u32) -> impl Future<Output = Result<ReadOut>> + Send;

    /// Writes `data` at `offset` of the file, at least as durably as `stable`.
    fn write(
        &self,
        ctx: &Ctx,
        offset: u64,
        data: Bytes,
        stable: Stability,
    ) -> impl Future<Output = Result<WriteOut>> + Send;

    /// Makes all unstable writes to the bytes of the file on this data server durable, and returns the write verifier.
    fn commit(&self, ctx: &Ctx) -> impl Future<Output = Result<Verifier>> + Send;
}

/// Adapter from [`DataServer`] to [`FileSystem`], for a server that is only a data server (RFC 8881 §13.1).
#[derive(Clone, Copy, Debug)]
pub struct DataOnly<D>(
    /// The object store of the data server, which reads and writes the bytes of files.
    pub D,
);

const REFUSED: Status = Status::NotSupp;

impl<D: DataServer> FileSystem for DataOnly<D> {
    fn fsid(&self) -> Fsid {
        self.0.fsid()
    }

    fn root(&self, _: View) -> (FileId, Place) {
        (FileId::ROOT, Place::default())
    }

    fn layout_types(&self) -> Vec<u32> {
        Vec::new()
    }

    fn info(&self, _: Place) -> FsInfo {
        FsInfo {
            lease_secs: 0,
            max_file_size: types::limits::FILE_SIZE_MAX,
            max_read: types::limits::PAYLOAD_MAX as u64,
            max_write: types::limits::PAYLOAD_MAX as u64,
            max_link: 1,
            max_name: types::limits::NAME_MAX as u32,
            layout_types: Vec::new(),
            layout_block: 0,
            xattrs: false,
            thresholds: false,
        }
    }

    fn encode_handle(&self, _: FileId, _: Place) -> Bytes {
        Bytes::new()
    }

    fn decode_handle(&self, _: View, handle: &[u8]) -> Result<(FileId, Place)> {
        Ok((self.0.decode_handle(handle)?, Place::default()))
    }

    async fn read(&self, ctx: &Ctx, _: FileId, offset: u64, len: u32) -> Result<ReadOut> {
        self.0.read(ctx, offset, len).await
    }

    async fn write(&self, ctx: &Ctx, _: FileId, offset: u64, data: Bytes, stable: Stability) -> Result<WriteOut> {
        self.0.write(ctx, offset, data, stable).await
    }

    async fn commit(&self, ctx: &Ctx, _: FileId, _: ByteRange) -> Result<Verifier> {
        self.0.commit(ctx).await
    }

    /// Stores nothing, because the mgr stores the client records, and a data server has no state that clients could
    /// reclaim.
    async fn persist_client(&self, _: ClientRecord) -> Result<()> {
        Ok(())
    }

    async fn forget_client(&self, _: Bytes) -> Result<()> {
        Ok(())
    }

    async fn clients(&self) -> Result<Vec<ClientRecord>> {
        Ok(Vec::new())
    }

    async fn getattr(&self, _: &Ctx, _: FileId) -> Result<Attrs> {
        Err(REFUSED)
    }

    async fn setattr(&self, _: &Ctx, _: FileId, _: SetAttrs, _: bool) -> Result<Attrs> {
        Err(REFUSED)
    }

    async fn access(&self, _: &Ctx, _: FileId, _: u32) -> Result<u32> {
        Err(REFUSED)
    }

    async fn lookup(&self, _: &Ctx, _: FileId, _: &Bytes) -> Result<Attrs> {
        Err(REFUSED)
    }

    async fn lookup_parent(&self, _: &Ctx, _: FileId) -> Result<Attrs> {
        Err(REFUSED)
    }

    async fn readdir(&self, _: &Ctx, _: FileId, _: u64, _: usize) -> Result<DirPage> {
        Err(REFUSED)
    }

    async fn create(&self, _: &Ctx, _: FileId, _: &Bytes, _: CreateKind, _: SetAttrs) -> Result<Created> {
        Err(REFUSED)
    }

    async fn open_create(&self, _: &Ctx, _: FileId, _: &Bytes, _: OpenHow, _: SetAttrs, _: bool) -> Result<Opened> {
        Err(REFUSED)
    }

    async fn remove(&self, _: &Ctx, _: FileId, _: &Bytes, _: Ends<'_>) -> Result<Removed> {
        Err(REFUSED)
    }

    async fn rename(&self, _: &Ctx, _: (FileId, &Bytes), _: (FileId, &Bytes), _: Renaming) -> Result<Renamed> {
        Err(REFUSED)
    }

    async fn link(&self, _: &Ctx, _: FileId, _: FileId, _: &Bytes) -> Result<Change> {
        Err(REFUSED)
    }

    async fn readlink(&self, _: &Ctx, _: FileId) -> Result<Bytes> {
        Err(REFUSED)
    }

    async fn reap(&self, _: &Ctx, _: FileId) -> Result<()> {
        Err(REFUSED)
    }

    async fn statfs(&self, _: &Ctx) -> Result<StatFs> {
        Err(REFUSED)
    }

    async fn getxattr(&self, _: &Ctx, _: FileId, _: &Bytes) -> Result<Bytes> {
        Err(REFUSED)
    }

    async fn setxattr(&self, _: &Ctx, _: FileId, _: &Bytes, _: Bytes, _: XattrHow) -> Result<Change> {
        Err(REFUSED)
    }

    async fn listxattrs(&self, _: &Ctx, _: FileId) -> Result<Vec<Bytes>> {
        Err(REFUSED)
    }

    async fn removexattr(&self, _: &Ctx, _: FileId, _: &Bytes) -> Result<Change> {
        Err(REFUSED)
    }

    async fn seek(&self, _: &Ctx, _: FileId, _: u64, _: Content) -> Result<SeekOut> {
        Err(REFUSED)
    }

    async fn allocate(&self, _: &Ctx, _: FileId, _: ByteRange) -> Result<()> {
        Err(REFUSED)
    }

    async fn extend(&self, _: &Ctx, _: FileId, _: u64) -> Result<()> {
        Err(REFUSED)
    }

    async fn deallocate(&self, _: &Ctx, _: FileId, _: ByteRange) -> Result<()> {
        Err(REFUSED)
    }

    async fn layout_get(&self, _: &Ctx, _: LayoutAsk) -> Result<LayoutOut> {
        Err(REFUSED)
    }

    async fn device_info(&self, _: &Ctx, _: [u8; 16], _: u32) -> Result<Bytes> {
        Err(REFUSED)
    }

    async fn layout_commit(
        &self,
        _: &Ctx,
        _: FileId,
        _: (u32, Bytes),
        _: Option<u64>,
        _: Option<Timestamp>,
    ) -> Result<Option<u64>> {
        Err(REFUSED)
    }

    async fn layout_gone(&self, _: &Ctx, _: u64, _: FileId, _: Iomode, _: ByteRange, _: LayoutGone) -> Result<()> {
        Err(REFUSED)
    }
}
