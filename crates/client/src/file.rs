//! An open file: reads, asynchronous writes, and making the writes durable.

mod append;
mod close;
mod locks;
mod read_ahead;

pub(crate) use append::Appending;
pub use locks::HeldLock;

use crate::compound::Caller;
use crate::effective_policy::Ruling;
use crate::inode::Inode;
use crate::mount::{Node, OpenFlags};
use crate::{Error, Placement, Result};
use bytes::Bytes;
use layout::policy::{Effective, Policy};
use std::sync::Arc;
use types::limits::PAYLOAD_MAX;
use types::{Attrs, ByteRange, SetAttrs, Status};

/// An open regular file.
///
/// Several tasks may call its methods at the same time. A write is accepted before a server has its bytes. The next
/// write, [`File::fsync`], [`File::close`] or [`File::finish`] reports a write error. Every open of the file in this
/// client that can write reports the error exactly once, whichever open wrote the lost bytes. A file that is dropped
/// without a close is closed in the background, and then no caller learns of errors.
pub struct File {
    open: Option<Open>,
    opened_as: Attrs,
}

/// The state of an open file that a close ends.
pub(crate) struct Open {
    inode: Arc<Inode>,
    key: u64,
    origin: Origin,
    ahead: read_ahead::ReadAhead,
}

/// How the file was opened.
pub(crate) struct Origin {
    /// The open owner.
    pub(crate) key: u64,
    /// The caller that opened the file.
    pub(crate) caller: Caller,
    /// The node that the caller opened, if it opened the file by node.
    pub(crate) node: Option<Node>,
    /// The name under which the file was created.
    pub(crate) name: Option<Name>,
    pub(crate) flags: OpenFlags,
    /// The policy settings that apply to this open.
    pub(crate) ruling: Arc<Ruling>,
}

/// A name in a directory.
pub(crate) struct Name {
    pub(crate) dir: Node,
    pub(crate) name: Bytes,
}

/// A run of bytes that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Segment {
    /// Data bytes.
    Data(Bytes),
    /// This many zeros that occupy no storage.
    Hole(u64),
}

impl Segment {
    /// Number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Segment::Data(data) => data.len() as u64,
            Segment::Hole(len) => *len,
        }
    }

    /// Returns whether the segment is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The result of a read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadResult {
    /// The bytes in order; no segment is empty. The result is shorter than requested only at the end of the file.
    pub segments: Vec<Segment>,
    /// Whether the read reached the end of the file.
    pub eof: bool,
}

impl ReadResult {
    /// Number of bytes, holes included.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(Segment::len).sum()
    }

    /// Returns whether the result is empty.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns everything in one buffer, holes as zeros.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len() as usize);
        for segment in &self.segments {
            match segment {
                Segment::Data(data) => out.extend_from_slice(data),
                Segment::Hole(len) => out.resize(out.len() + *len as usize, 0),
            }
        }
        out
    }
}

impl File {
    pub(crate) fn new(inode: Arc<Inode>, key: u64, opened_as: Attrs, origin: Origin) -> Self {
        File { open: Some(Open { inode, key, origin, ahead: read_ahead::ReadAhead::default() }), opened_as }
    }

    fn open(&self) -> &Open {
        self.open.as_ref().expect("only closing takes it, and that takes the file")
    }

    pub(crate) fn inode(&self) -> &Arc<Inode> {
        &self.open().inode
    }

    fn key(&self) -> u64 {
        self.open().key
    }

    /// Fails if locks that were requested through this file are lost.
    fn check_locks(&self) -> Result<()> {
        self.inode().all_locks_kept(self.key())
    }

    /// Returns the outcome of an operation. If the operation failed and locks are lost, returns the loss as the reason.
    fn why<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| self.check_locks().err().unwrap_or(error))
    }

    /// The file.
    pub fn node(&self) -> Node {
        self.inode().node.clone()
    }

    /// Returns the attributes at open time, with the size that this client knows now, including its own writes.
    pub fn attrs(&self) -> Attrs {
        self.inode().shown(Attrs { size: self.size(), ..self.opened_as })
    }

    /// Returns the size that this client knows now. Other clients may have changed it: see [`File::refresh`].
    pub fn size(&self) -> u64 {
        self.inode().size()
    }

    /// Returns the current size: the cached size if no other client can have changed it, otherwise the mgr's answer.
    ///
    /// # Errors
    /// The mgr cannot be reached.
    pub async fn size_now(&self) -> Result<u64> {
        self.inode().size_now().await
    }

    /// Fetches the attributes from the mgr. The size includes this client's writes that the mgr does not know of yet.
    pub async fn refresh(&self) -> Result<Attrs> {
        self.inode().learn_attrs().await
    }

    /// Reads `len` bytes from `offset`, from all iods in parallel. Reads of several MiB keep many iods busy. For
    /// sequential and strided readers that ask for less, the client reads ahead (`read_ahead` of the policy).
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<ReadResult> {
        if !self.open().origin.flags.read {
            return Err(Error::usage("reading a file that was opened for writing only"));
        }
        self.check_locks()?;
        self.why(self.open().ahead.read(self.inode(), self.policy(), offset, len).await)
    }

    /// Writes `data` at `offset`, and returns as soon as the window has space for it. The client keeps `data`, without
    /// a copy, until it is durable.
    ///
    /// # Errors
    /// The error of an earlier write, if one failed in the meantime. In this case the client has not accepted this
    /// write.
    pub async fn write_at(&self, offset: u64, data: Bytes) -> Result<()> {
        self.for_writing()?;
        self.inode().write(Some(self.key()), &self.open().origin.ruling, [(offset, data)]).await
    }

    /// Writes several runs of bytes, each at its own offset, like [`File::write_at`]. Runs that are not gathered are
    /// sent together.
    ///
    /// # Errors
    /// As for [`File::write_at`]; some of the runs may have been accepted.
    pub async fn write_list(&self, runs: Vec<(u64, Bytes)>) -> Result<()> {
        self.for_writing()?;
        self.inode().write(Some(self.key()), &self.open().origin.ruling, runs).await
    }

    /// Writes bytes like [`File::write_at`], on behalf of an earlier writer. An example is a kernel that writes back
    /// its page cache. The call does not report the error of an earlier write: the error stays for the next `write_at`,
    /// `fsync` or `close`.
    pub async fn write_behind(&self, offset: u64, data: Bytes) -> Result<()> {
        self.write_list_behind(vec![(offset, data)]).await
    }

    /// Writes several runs of bytes like [`File::write_behind`].
    pub async fn write_list_behind(&self, runs: Vec<(u64, Bytes)>) -> Result<()> {
        self.for_writing()?;
        self.inode().write(None, &self.open().origin.ruling, runs).await
    }

    /// Extends the file to `end`, unless it is already that long. No written byte changes; the new bytes are a hole.
    pub async fn grow(&self, end: u64) -> Result<()> {
        self.for_writing()?;
        self.inode().grow(self.key(), &self.open().origin.ruling, end).await
    }

    /// Returns whether this client has exclusive use of the file, which an open on this client has requested. While
    /// this is true, no other client has the file open or waits for it. Other clients see writes of this client only
    /// after [`crate::Keeper::hand_on`].
    pub fn is_alone(&self) -> bool {
        self.inode().is_alone()
    }

    /// Returns whether the file was opened for reading, or for reading and writing.
    pub fn is_readable(&self) -> bool {
        self.open().origin.flags.read
    }

    /// Returns the number of the delegation under which the mgr promises that no other client writes the file, if there
    /// is one. The first delegation since the file is open here has number 1. A delegation granted after a lost one has
    /// a different number.
    pub fn delegation(&self) -> Option<u64> {
        self.inode().delegation_number()
    }

    /// Returns whether bytes and attributes may be cached until [`crate::Keeper::hand_on`]. That is so if no other
    /// client writes the file, or if no open here requested more than close-to-open.
    pub fn may_be_cached(&self) -> bool {
        !self.inode().is_shared()
    }

    /// Returns whether the file was created without waiting for the disk ([`crate::CreateOptions::unsynced`]), and
    /// nothing has made the creation durable since.
    pub fn is_unsynced(&self) -> bool {
        self.inode().is_unsynced()
    }

    /// Requests the delegation for exclusive use again; returns whether this client holds it.
    pub async fn ask_alone(&self) -> Result<bool> {
        self.inode().ask_delegation().await
    }

    /// Returns the current policy: the settings of all places that apply to this open. A change of the mount's options
    /// also applies here. A change of the directory's settings applies only to later opens.
    pub fn policy(&self) -> Policy {
        self.inode().policy_by(&self.open().origin.ruling)
    }

    /// Returns the policy like [`File::policy`], with the place that each part comes from.
    pub fn effective_policy(&self) -> Effective {
        let inode = self.inode();
        self.open().origin.ruling.effective(&inode.mount.effective_policy, inode.own())
    }

    /// Returns the first run of written bytes at or after `offset`, or `None` if there is none before the end of the
    /// file. A run may be reported longer than it is, because storage keeps whole blocks. It is never reported shorter
    /// than up to the next hole.
    pub async fn next_data(&self, offset: u64) -> Result<Option<ByteRange>> {
        self.inode().next_data(offset).await
    }

    /// Turns a range into a hole; the size does not change. Earlier writes are made durable first.
    pub async fn punch(&self, range: ByteRange) -> Result<()> {
        self.for_writing()?;
        self.inode().punch(self.key(), range).await
    }

    /// Reserves space for a range on the iods, so that later writes to it find free space. Extends the file to the end
    /// of the range if the file is shorter, as `posix_fallocate` does. No byte changes; new bytes are zeros.
    ///
    /// # Errors
    /// `NoSpc` if an iod has no free space, `NotSupp` if the iod's file system cannot reserve space. The file may be
    /// longer then.
    pub async fn allocate(&self, range: ByteRange) -> Result<()> {
        self.for_writing()?;
        self.why(self.inode().allocate(range).await)
    }

    /// Copies a range of another file of this mount to `target` in this file. The data moves from iod to iod without
    /// passing this client, and holes stay holes. Earlier writes to both files are made durable first, and the copy is
    /// durable. Returns the number of copied bytes: the whole range, or less if the source file ends inside it.
    ///
    /// Within one file, where RFC 7862 §15.2.3 offers no COPY, the bytes pass this client, and holes become zeros.
    ///
    /// # Errors
    /// `Inval` if both ranges are of one file and overlap. After any error parts may have been copied.
    pub async fn copy_range(&self, target: u64, source: &File, range: ByteRange) -> Result<u64> {
        self.for_writing()?;
        if !source.open().origin.flags.read {
            return Err(Error::usage("copying from a file that was opened for writing only"));
        }
        source.check_locks()?;
        if self.node().id == source.node().id {
            return self.copy_within(target, source, range).await;
        }
        let keys = (self.key(), source.key());
        self.why(self.inode().copy_range(keys, target, source.inode(), range).await)
    }

    /// Copies within one file, see [`File::copy_range`].
    async fn copy_within(&self, target: u64, source: &File, range: ByteRange) -> Result<u64> {
        let to = ByteRange::new(target, range.len).ok_or_else(|| Error::status(Status::FBig, "copying"))?;
        if to.overlaps(range) {
            return Err(Error::status(Status::Inval, "copying within one file to a range that overlaps the source"));
        }
        let mut done = 0;
        while done < range.len {
            let len = (range.len - done).min(PAYLOAD_MAX as u64) as usize;
            let found = source.read_at(range.offset + done, len).await?;
            if found.is_empty() {
                break;
            }
            let data = Bytes::from(found.to_vec());
            let count = data.len() as u64;
            self.write_at(target + done, data).await?;
            done += count;
        }
        Ok(done)
    }

    /// Truncates or extends the file to `size` bytes; new bytes are a hole. Earlier writes are made durable first.
    pub async fn set_len(&self, size: u64) -> Result<()> {
        self.for_writing()?;
        let changes = SetAttrs { size: Some(size), ..SetAttrs::default() };
        self.inode().set_attrs(Some(self.key()), &self.open().origin.caller, &changes).await.map(|_| ())
    }

    /// Sets attributes, including the size, under the rights of this open; returns all attributes after the change.
    /// Earlier writes are made durable first.
    pub async fn set_attrs(&self, changes: &SetAttrs) -> Result<Attrs> {
        self.for_writing()?;
        self.inode().set_attrs(Some(self.key()), &self.open().origin.caller, changes).await
    }

    /// Sets attributes like [`File::set_attrs`], but does not report the error of an earlier write. The error stays for
    /// the next `write_at`, `fsync` or `close`.
    pub async fn set_attrs_behind(&self, changes: &SetAttrs) -> Result<Attrs> {
        self.for_writing()?;
        self.inode().set_attrs(None, &self.open().origin.caller, changes).await
    }

    /// Returns when servers have received every byte that was written before. The servers may still lose the bytes: see
    /// [`File::fsync`]. Callers use it when their writes must not be gathered.
    pub async fn push(&self) -> Result<()> {
        self.check_locks()?;
        self.why(self.inode().push(self.key()).await)
    }

    /// Returns when every byte written before and the size are durable.
    pub async fn fsync(&self) -> Result<()> {
        self.check_locks()?;
        self.why(self.inode().fsync(self.key()).await)
    }

    /// Makes writes durable like [`File::fsync`], for one of several users of this open file, such as a process that
    /// inherited and closes it. The call reports a write error and keeps it, so that the next call reports it again.
    pub async fn flush(&self) -> Result<()> {
        self.check_locks()?;
        self.why(self.inode().flush(self.key()).await)
    }

    /// Makes everything durable and closes the file at the mgr. If this fails, written bytes may not be durable; the
    /// file is nevertheless closed.
    pub async fn close(mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => open.close().await,
            None => Ok(()),
        }
    }

    /// Closes the file like [`File::close`], but the mgr may receive the CLOSE a little later, together with other
    /// deferred closes.
    pub async fn leave(mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => open.leave().await,
            None => Ok(()),
        }
    }

    /// Closes the file like [`File::close`], and in the same round trip sets attributes and renames the file. The new
    /// name is `rename_to` (directory and name), so a copied file appears under its final name complete. Returns the
    /// final attributes. On failure the file is closed, and not renamed, unless the failure came after the rename.
    ///
    /// Renaming requires a file made by [`Mount::create`](crate::Mount::create).
    pub async fn finish(mut self, changes: SetAttrs, rename_to: Option<(&Node, &[u8])>) -> Result<Attrs> {
        match self.open.take() {
            Some(open) => open.finish(changes, rename_to).await,
            None => Err(Error::usage("the file is closed")),
        }
    }

    /// Returns where the bytes of the file are stored.
    pub async fn placement(&self) -> Result<Placement> {
        self.inode().placement().await
    }

    fn for_writing(&self) -> Result<()> {
        if self.open().origin.flags.write {
            return self.check_locks();
        }
        Err(Error::usage("writing to a file that was opened for reading only"))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let runtime = open.inode.mount.runtime.clone();
        let closing = open.inode.mount.dropped.clone().try_read_owned();
        net::task::spawn_on(&runtime, async move {
            // The task holds this permit to its end, because the mount waits for it when it disconnects.
            let _closing = closing;
            let id = open.inode.node.id;
            if let Err(error) = open.close().await {
                tracing::warn!(file = %id, "closing a file after its handle was dropped: {error}");
            }
        });
    }
}
