//! An open file: reads, asynchronous writes, locks, and fsync.

mod append;
mod close;
mod locks;
mod read_ahead;

pub(crate) use append::Appending;
pub use locks::HeldLock;

use crate::compound::Caller;
use crate::effective_policy::OpenPolicy;
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
/// Several tasks may call its methods at the same time. A write returns before a server has received its bytes. The
/// next write, [`File::fsync`], [`File::close`] or [`File::finish`] reports a write error. Each open for writing of the
/// file in this client reports the error exactly once, even if another open wrote the lost bytes. A file that is
/// dropped without a close is closed in the background; its errors are only logged.
pub struct File {
    open: Option<Open>,
    opened_as: Attrs,
}

/// The state that [`File`] owns until it is closed.
pub(crate) struct Open {
    inode: Arc<Inode>,
    key: u64,
    origin: Origin,
    ahead: read_ahead::ReadAhead,
}

/// How a caller opened the file, and the policy settings of the open.
pub(crate) struct Origin {
    /// The identifier of the open owner at the mgr.
    pub(crate) key: u64,
    /// The credentials of the caller that opened the file.
    pub(crate) caller: Caller,
    /// The node (file id and filehandle) that the caller opened; `None` if the caller opened the file by name.
    pub(crate) node: Option<Node>,
    /// The name under which the open created the file; `None` if the open did not create the file.
    pub(crate) name: Option<Name>,
    pub(crate) flags: OpenFlags,
    /// The policy settings of this open, and its effective policy.
    pub(crate) open_policy: Arc<OpenPolicy>,
}

/// A name in a directory.
pub(crate) struct Name {
    pub(crate) dir: Node,
    pub(crate) name: Bytes,
}

/// A part of the bytes that a read returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Segment {
    /// Data: bytes that a server stores.
    Data(Bytes),
    /// A hole of this many zero bytes.
    Hole(u64),
}

impl Segment {
    /// Returns the number of bytes in the segment.
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
    /// The bytes in file order; no segment is empty. They are fewer than requested only at the end of the file.
    pub segments: Vec<Segment>,
    /// Whether the read reached the end of the file.
    pub eof: bool,
}

impl ReadResult {
    /// Returns the number of bytes, including holes.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(Segment::len).sum()
    }

    /// Returns whether the read returned no bytes.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Copies all segments into one buffer, with zeros for holes.
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

    /// Returns an error if the client lost locks that were requested through this open file.
    fn check_locks(&self) -> Result<()> {
        self.inode().all_locks_kept(self.key())
    }

    /// Returns the outcome of an operation. If the operation failed and locks are lost, returns the error about the
    /// lost locks.
    fn why<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| self.check_locks().err().unwrap_or(error))
    }

    /// Returns the node (file id and filehandle) of the file.
    pub fn node(&self) -> Node {
        self.inode().node.clone()
    }

    /// Returns the attributes that the mgr sent at open, with the size that the client knows now, including unsent
    /// writes.
    pub fn attrs(&self) -> Attrs {
        self.inode().shown(Attrs { size: self.size(), ..self.opened_as })
    }

    /// Returns the size that this client knows, including its own writes. Another client may have changed the size;
    /// [`File::refresh`] asks the mgr.
    pub fn size(&self) -> u64 {
        self.inode().size()
    }

    /// Returns the current size. If another client may have changed the size, the client requests it from the mgr;
    /// otherwise it returns the cached size.
    ///
    /// # Errors
    /// The mgr cannot be reached.
    pub async fn size_now(&self) -> Result<u64> {
        self.inode().size_now().await
    }

    /// Requests the attributes from the mgr. The returned size includes this client's writes that the mgr does not know
    /// of.
    pub async fn refresh(&self) -> Result<Attrs> {
        self.inode().learn_attrs().await
    }

    /// Reads `len` bytes at `offset`, from all iods in parallel. Requests of several MiB keep many iods busy. For
    /// sequential and strided readers with smaller requests, the client reads ahead (`read_ahead` of the policy).
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<ReadResult> {
        if !self.open().origin.flags.read {
            return Err(Error::usage("reading a file that was opened for writing only"));
        }
        self.check_locks()?;
        self.why(self.open().ahead.read(self.inode(), self.policy(), offset, len).await)
    }

    /// Writes `data` at `offset`. Returns as soon as the write window has space for the data. The client holds `data`,
    /// without copying it, until the data are durable.
    ///
    /// # Errors
    /// An earlier write failed. The client then has not accepted `data`.
    pub async fn write_at(&self, offset: u64, data: Bytes) -> Result<()> {
        self.for_writing()?;
        self.inode().write(Some(self.key()), &self.open().origin.open_policy, [(offset, data)]).await
    }

    /// Writes several byte ranges, each at its own offset, like [`File::write_at`]. If the client does not gather the
    /// writes, it sends all ranges together.
    ///
    /// # Errors
    /// The errors of [`File::write_at`]; the client may have accepted some of the ranges.
    pub async fn write_list(&self, runs: Vec<(u64, Bytes)>) -> Result<()> {
        self.for_writing()?;
        self.inode().write(Some(self.key()), &self.open().origin.open_policy, runs).await
    }

    /// Writes like [`File::write_at`], for callers that cannot report the error of an earlier write to its writer. An
    /// example is a kernel that writes back its page cache. The client keeps an earlier error for the next `write_at`,
    /// `fsync` or `close`.
    pub async fn write_behind(&self, offset: u64, data: Bytes) -> Result<()> {
        self.write_list_behind(vec![(offset, data)]).await
    }

    /// Writes several byte ranges, each at its own offset, like [`File::write_behind`].
    pub async fn write_list_behind(&self, runs: Vec<(u64, Bytes)>) -> Result<()> {
        self.for_writing()?;
        self.inode().write(None, &self.open().origin.open_policy, runs).await
    }

    /// Extends the file to `end` bytes with a hole, unless the file is already that long. Never changes written bytes.
    pub async fn grow(&self, end: u64) -> Result<()> {
        self.for_writing()?;
        self.inode().grow(self.key(), &self.open().origin.open_policy, end).await
    }

    /// Returns whether this client holds a write delegation of the file that the mgr has not recalled. Until the
    /// recall, no other client has the file open. Other clients see the writes of this client only after
    /// [`crate::UpperCache::flush_and_invalidate`].
    pub fn is_alone(&self) -> bool {
        self.inode().is_alone()
    }

    /// Returns whether the file was opened for reading.
    pub fn is_readable(&self) -> bool {
        self.open().origin.flags.read
    }

    /// Returns the number of the delegation of the file, if the client holds a delegation. Under a delegation, no other
    /// client writes the file. The client counts the delegations of an open file from 1, so a caller with an old number
    /// can see that the client did not hold a delegation all the time.
    pub fn delegation(&self) -> Option<u64> {
        self.inode().delegation_number()
    }

    /// Returns whether a cache above the client, such as the kernel's page cache, may keep bytes and attributes of the
    /// file until [`crate::UpperCache::flush_and_invalidate`]: the client holds a delegation, or all opens of the file
    /// on this client ask only for close-to-open consistency.
    pub fn may_be_cached(&self) -> bool {
        !self.inode().is_shared()
    }

    /// Returns whether a crash of the mgr may still lose the creation of the file, because the client created it with
    /// [`crate::CreateOptions::unsynced`].
    pub fn is_unsynced(&self) -> bool {
        self.inode().is_unsynced()
    }

    /// Requests a write delegation again; returns whether this client now holds one.
    pub async fn ask_alone(&self) -> Result<bool> {
        self.inode().ask_delegation().await
    }

    /// Returns the effective policy of this open. Changes of the mount options after the open affect it; changes of the
    /// directory's policy settings do not.
    pub fn policy(&self) -> Policy {
        self.inode().policy_by(&self.open().origin.open_policy)
    }

    /// Returns the policy like [`File::policy`], with the origin of each policy setting: server, directory, mount and
    /// so on.
    pub fn effective_policy(&self) -> Effective {
        let inode = self.inode();
        self.open().origin.open_policy.effective(&inode.mount.effective_policy, inode.own())
    }

    /// Returns the first data range at or after `offset`, or `None` if only a hole follows. The range may be longer
    /// than what was written, because servers store whole blocks. The range never ends before the next hole begins.
    pub async fn next_data(&self, offset: u64) -> Result<Option<ByteRange>> {
        self.inode().next_data(offset).await
    }

    /// Punches a hole into a range, after making earlier writes durable. The size does not change.
    pub async fn punch(&self, range: ByteRange) -> Result<()> {
        self.for_writing()?;
        self.inode().punch(self.key(), range).await
    }

    /// Reserves space for a range on the iods, so that later writes to the range do not run out of space. Extends a
    /// shorter file with zeros to the end of the range, as `posix_fallocate` does. Never changes written bytes.
    ///
    /// # Errors
    /// `NoSpc` if an iod has no free space, `NotSupp` if the iod's file system cannot reserve space. The file may have
    /// been extended nevertheless.
    pub async fn allocate(&self, range: ByteRange) -> Result<()> {
        self.for_writing()?;
        self.why(self.inode().allocate(range).await)
    }

    /// Copies a range of another file of this mount to offset `target` of this file. Returns the number of copied
    /// bytes, which is less than requested only if the source file ends inside the range.
    ///
    /// The servers copy the data without sending it to the client, and holes stay holes. The client first makes earlier
    /// writes to both files durable; the copied bytes are durable on return.
    ///
    /// RFC 7862 §15.2.3 has no COPY within one file. In this case the client reads and writes the bytes, and holes
    /// become zeros.
    ///
    /// # Errors
    /// `Inval` if both ranges belong to one file and overlap. After any error, part of the range may have been copied.
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

    /// Copies within one file by reading and writing, see [`File::copy_range`].
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

    /// Truncates or extends the file to `size` bytes, after making earlier writes durable. An extension is a hole.
    pub async fn set_len(&self, size: u64) -> Result<()> {
        self.for_writing()?;
        let changes = SetAttrs { size: Some(size), ..SetAttrs::default() };
        self.inode().set_attrs(Some(self.key()), &self.open().origin.caller, &changes).await.map(|_| ())
    }

    /// Sets attributes, including the size, under the stateid of this open, after making earlier writes durable.
    /// Returns all attributes after the change.
    pub async fn set_attrs(&self, changes: &SetAttrs) -> Result<Attrs> {
        self.for_writing()?;
        self.inode().set_attrs(Some(self.key()), &self.open().origin.caller, changes).await
    }

    /// Sets attributes like [`File::set_attrs`], but does not report the error of an earlier write. The client keeps
    /// the error for the next `write_at`, `fsync` or `close`.
    pub async fn set_attrs_behind(&self, changes: &SetAttrs) -> Result<Attrs> {
        self.for_writing()?;
        self.inode().set_attrs(None, &self.open().origin.caller, changes).await
    }

    /// Sends all earlier writes to servers at once instead of gathering more, and waits until the servers have received
    /// them. The servers may still lose the bytes until [`File::fsync`].
    pub async fn push(&self) -> Result<()> {
        self.check_locks()?;
        self.why(self.inode().push(self.key()).await)
    }

    /// Waits until all earlier writes and the size are durable.
    pub async fn fsync(&self) -> Result<()> {
        self.check_locks()?;
        self.why(self.inode().fsync(self.key()).await)
    }

    /// Makes writes durable like [`File::fsync`], for one of several users of this open file, such as a process that
    /// closes an inherited descriptor. Reports a write error without clearing it, so that the next call reports it too.
    pub async fn flush(&self) -> Result<()> {
        self.check_locks()?;
        self.why(self.inode().flush(self.key()).await)
    }

    /// Makes all writes durable, and closes the file at the mgr. On an error, written bytes may be lost, and the file
    /// is closed nevertheless.
    pub async fn close(mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => open.close().await,
            None => Ok(()),
        }
    }

    /// Closes the file like [`File::close`]. The client may send the CLOSE a little later, together with other deferred
    /// closes.
    pub async fn leave(mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => open.leave().await,
            None => Ok(()),
        }
    }

    /// Closes the file like [`File::close`]; in the same round trip sets attributes and renames the file to `rename_to`
    /// (directory and name). So a copied file appears under its final name only when it is complete. Returns the final
    /// attributes.
    ///
    /// Only a file that [`Mount::create`](crate::Mount::create) created can be renamed. After an error the file is
    /// closed. If a write of the file failed, the file has its old name; after any other error it may have either name.
    pub async fn finish(mut self, changes: SetAttrs, rename_to: Option<(&Node, &[u8])>) -> Result<Attrs> {
        match self.open.take() {
            Some(open) => open.finish(changes, rename_to).await,
            None => Err(Error::usage("the file is closed")),
        }
    }

    /// Returns the servers that store the bytes of the file.
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
            // Hold this permit until the file is closed: a mount disconnects only when no task holds such a permit.
            let _closing = closing;
            let id = open.inode.node.id;
            if let Err(error) = open.close().await {
                tracing::warn!(file = %id, "closing a file after its handle was dropped: {error}");
            }
        });
    }
}
