//! An open file: reading, writing behind, and making it durable.

mod ahead;
mod append;
mod finish;
mod locks;

pub(crate) use append::Appending;
pub use locks::HeldLock;

use crate::compound::Caller;
use crate::governor::Ruling;
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
/// Methods may run at the same time from several tasks. Writes are accepted before they are on a server: an error of
/// theirs surfaces at the next write, [`File::fsync`], [`File::close`] or [`File::finish`], exactly once for each open of
/// the file here that can write, whoever wrote the bytes that were lost. A file that is dropped without being closed is
/// closed in the background, where nobody learns of errors.
pub struct File {
    open: Option<Open>,
    opened_as: Attrs,
}

/// What there is to close.
pub(crate) struct Open {
    inode: Arc<Inode>,
    key: u64,
    origin: Origin,
    ahead: ahead::Ahead,
}

/// How the file came to be open.
pub(crate) struct Origin {
    /// The open owner.
    pub(crate) key: u64,
    /// Who opened it.
    pub(crate) caller: Caller,
    /// What was asked for, when it was a node.
    pub(crate) node: Option<Node>,
    /// The name it was created under.
    pub(crate) name: Option<Name>,
    pub(crate) flags: OpenFlags,
    /// What counts for it.
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
    /// These bytes.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a read found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadResult {
    /// The bytes in order; none is empty. Shorter than asked for only at the end of the file.
    pub segments: Vec<Segment>,
    /// Whether the end of the file was met.
    pub eof: bool,
}

impl ReadResult {
    /// Number of bytes, holes included.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(Segment::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Everything in one buffer, holes as zeros.
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
        File { open: Some(Open { inode, key, origin, ahead: ahead::Ahead::default() }), opened_as }
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

    /// Fails if locks that were asked through this file are lost.
    fn check_locks(&self) -> Result<()> {
        self.inode().all_locks_kept(self.key())
    }

    /// What came of something; a failure has its reason in locks that turned out to be lost, if any did.
    fn why<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| self.check_locks().err().unwrap_or(error))
    }

    /// The file.
    pub fn node(&self) -> Node {
        self.inode().node.clone()
    }

    /// The attributes at opening, with the size as this client knows it now, own writes included.
    pub fn attrs(&self) -> Attrs {
        self.inode().shown(Attrs { size: self.size(), ..self.opened_as })
    }

    /// The size as this client knows it now. Others may have changed it: see [`File::refresh`].
    pub fn size(&self) -> u64 {
        self.inode().size()
    }

    /// The size: as this client knows it while no other one may have changed it, else as the mgr says.
    ///
    /// # Errors
    /// The mgr cannot be asked.
    pub async fn size_now(&self) -> Result<u64> {
        self.inode().size_now().await
    }

    /// Asks the server for the attributes; the size counts own writes that the server does not know of yet.
    pub async fn refresh(&self) -> Result<Attrs> {
        self.inode().learn_attrs().await
    }

    /// Reads `len` bytes from `offset`, the pieces on all iods at the same time. Reading several MiB at once is the way
    /// to keep many iods busy; of readers in order or in strides that ask for less, so much is read ahead (`read_ahead` of the policy).
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<ReadResult> {
        if !self.open().origin.flags.read {
            return Err(Error::usage("reading a file that was opened for writing only"));
        }
        self.check_locks()?;
        self.why(self.open().ahead.read(self.inode(), self.policy(), offset, len).await)
    }

    /// Writes `data` at `offset`; returns when there was room for it in the window. `data` is kept, not copied, until it
    /// is durable.
    ///
    /// # Errors
    /// That of an earlier write, if one failed meanwhile: this write has then not been accepted.
    pub async fn write_at(&self, offset: u64, data: Bytes) -> Result<()> {
        self.for_writing()?;
        self.inode().write(Some(self.key()), &self.open().origin.ruling, [(offset, data)]).await
    }

    /// As [`File::write_at`], of several runs of bytes, each with its place, that leave together where they do not gather.
    ///
    /// # Errors
    /// As there; then some of the runs may have been accepted.
    pub async fn write_list(&self, runs: Vec<(u64, Bytes)>) -> Result<()> {
        self.for_writing()?;
        self.inode().write(Some(self.key()), &self.open().origin.ruling, runs).await
    }

    /// As [`File::write_at`], for bytes that somebody else wrote before, such as a kernel that writes its page cache back.
    /// The failure of an earlier write is not reported to the one who hands them on: it stays for the next `write_at`,
    /// `fsync` or `close`.
    pub async fn write_behind(&self, offset: u64, data: Bytes) -> Result<()> {
        self.write_list_behind(vec![(offset, data)]).await
    }

    /// As [`File::write_behind`], of several runs of bytes.
    pub async fn write_list_behind(&self, runs: Vec<(u64, Bytes)>) -> Result<()> {
        self.for_writing()?;
        self.inode().write(None, &self.open().origin.ruling, runs).await
    }

    /// Lets the file reach to `end`, unless it does already: no byte that anybody wrote changes, and new ones are a hole.
    pub async fn grow(&self, end: u64) -> Result<()> {
        self.for_writing()?;
        self.inode().grow(self.key(), &self.open().origin.ruling, end).await
    }

    /// Whether nobody else has the file open, as was asked for at opening by this or another open here, and nobody has asked for it
    /// since: until [`crate::Keeper::hand_on`] what is written here need not be seen by others.
    pub fn is_alone(&self) -> bool {
        self.inode().is_alone()
    }

    /// Whether it was opened for reading, too or only.
    pub fn is_readable(&self) -> bool {
        self.open().origin.flags.read
    }

    /// Under which delegation no other client writes it, as far as the mgr has promised that: the first one since it is open here is 1, and one that
    /// is given after another was lost has another number.
    pub fn delegation(&self) -> Option<u64> {
        self.inode().delegation_number()
    }

    /// Whether no other client writes it, so that bytes and attributes may be cached until [`crate::Keeper::hand_on`]; or nobody asked for more than
    /// close-to-open.
    pub fn may_be_cached(&self) -> bool {
        !self.inode().is_shared()
    }

    /// Whether it was made without waiting for the disk ([`crate::CreateOptions::unsynced`]), and nothing has made that durable since.
    pub fn is_unsynced(&self) -> bool {
        self.inode().is_unsynced()
    }

    /// Asks once more to have it alone; whether it is so.
    pub async fn ask_alone(&self) -> Result<bool> {
        self.inode().ask_delegation().await
    }

    /// How it is used at present: by what all places say that count for it. A change of the mount's options counts here, too; of
    /// the directory's, it counts for who opens the file afterwards.
    pub fn policy(&self) -> Policy {
        self.inode().policy_by(&self.open().origin.ruling)
    }

    /// As [`File::policy`], with the places that each part comes from.
    pub fn effective_policy(&self) -> Effective {
        let inode = self.inode();
        self.open().origin.ruling.effective(&inode.mount.governor, inode.own())
    }

    /// The first run of written bytes at or after `offset`, `None` when there is none up to the end. Runs may be
    /// reported longer than they are, as storage keeps whole blocks, but never shorter than to the next hole.
    pub async fn next_data(&self, offset: u64) -> Result<Option<ByteRange>> {
        self.inode().next_data(offset).await
    }

    /// Turns a range into a hole; the size stays. What was written before is made durable first.
    pub async fn punch(&self, range: ByteRange) -> Result<()> {
        self.for_writing()?;
        self.inode().punch(self.key(), range).await
    }

    /// Reserves room for a range on the iods, so that writing it finds some, and lets the file reach to its end if it is
    /// shorter, as `posix_fallocate` does. No byte changes; new ones are zeros.
    ///
    /// # Errors
    /// `NoSpc` when an iod has no room, `NotSupp` when its file system cannot reserve any. The file may be longer then.
    pub async fn allocate(&self, range: ByteRange) -> Result<()> {
        self.for_writing()?;
        self.why(self.inode().allocate(range).await)
    }

    /// Copies a range of another file of the mount to `target` of this one: from iod to iod, without passing this client, holes as
    /// holes. What was written to both before is made durable first, and so is the copy. Answers how many bytes were copied: all but where the other
    /// file ends before.
    ///
    /// Within one file, where RFC 7862 §15.2.3 offers no COPY, the bytes pass this client, and holes become zeros.
    ///
    /// # Errors
    /// `Inval` when the ranges are of one file and overlap. After any error parts may have been copied.
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

    /// See [`File::copy_range`].
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

    /// Cuts or extends the file to `size` bytes; new bytes are a hole. What was written before is made durable first.
    pub async fn set_len(&self, size: u64) -> Result<()> {
        self.for_writing()?;
        let changes = SetAttrs { size: Some(size), ..SetAttrs::default() };
        self.inode().set_attrs(Some(self.key()), &self.open().origin.caller, &changes).await.map(|_| ())
    }

    /// Changes attributes, the length among them, under what the file was opened for; answers all as they are afterwards.
    /// What was written before is made durable first.
    pub async fn set_attrs(&self, changes: &SetAttrs) -> Result<Attrs> {
        self.for_writing()?;
        self.inode().set_attrs(Some(self.key()), &self.open().origin.caller, changes).await
    }

    /// As [`File::set_attrs`], but that an earlier write failed is not reported here: it stays for the next `write_at`,
    /// `fsync` or `close`.
    pub async fn set_attrs_behind(&self, changes: &SetAttrs) -> Result<Attrs> {
        self.for_writing()?;
        self.inode().set_attrs(None, &self.open().origin.caller, changes).await
    }

    /// Returns when servers have every byte that was written before. They may still lose them: see [`File::fsync`]. For those who
    /// want their writes not to gather.
    pub async fn push(&self) -> Result<()> {
        self.check_locks()?;
        self.why(self.inode().push(self.key()).await)
    }

    /// Returns when every byte written before and the size are on disk.
    pub async fn fsync(&self) -> Result<()> {
        self.check_locks()?;
        self.why(self.inode().fsync(self.key()).await)
    }

    /// As [`File::fsync`], for somebody who is only one of several that use this open file, such as a process that
    /// inherited it and closes it: that a write failed is told, and told again to the next who asks.
    pub async fn flush(&self) -> Result<()> {
        self.check_locks()?;
        self.why(self.inode().flush(self.key()).await)
    }

    /// Makes everything durable and gives the file back to the server. When it fails, something written may not be
    /// durable; the file is closed all the same.
    pub async fn close(mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => open.close().await,
            None => Ok(()),
        }
    }

    /// Like [`File::close`], but the server may hear of it a little later, together with other files that are left.
    pub async fn leave(mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => open.leave().await,
            None => Ok(()),
        }
    }

    /// Like [`File::close`], and in the same round trip sets attributes and moves the name under which the file was
    /// created to `rename_to` (directory and name), so that a copied file appears under its final name complete.
    /// Answers the final attributes. When it fails, nothing was renamed unless the failure came after the renaming, and
    /// the file is closed.
    ///
    /// Moving needs a file made by [`Mount::create`](crate::Mount::create).
    pub async fn finish(mut self, changes: SetAttrs, rename_to: Option<(&Node, &[u8])>) -> Result<Attrs> {
        match self.open.take() {
            Some(open) => open.finish(changes, rename_to).await,
            None => Err(Error::usage("the file is closed")),
        }
    }

    /// Where the bytes of the file live.
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
            // Held until the end: the mount waits for it when it disconnects.
            let _closing = closing;
            let id = open.inode.node.id;
            if let Err(error) = open.close().await {
                tracing::warn!(file = %id, "closing a file that was dropped: {error}");
            }
        });
    }
}
