//! An open file: reading, writing behind, and making it durable.

use crate::{Error, Node, Placement, Result};
use bytes::Bytes;
use types::{Attrs, ByteRange, SetAttrs};

/// An open regular file.
///
/// Methods may run at the same time from several tasks. Writes are accepted before they are on a server: an error of
/// theirs surfaces at the next write, [`File::fsync`], [`File::close`] or [`File::finish`], exactly once.
pub struct File {}

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

fn pending<T>() -> Result<T> {
    Err(Error::protocol("this build cannot reach a server"))
}

#[allow(unused_variables)]
impl File {
    /// The file.
    pub fn node(&self) -> Node {
        Node { id: types::FileId::ROOT, handle: Bytes::new() }
    }

    /// The attributes at opening, with the size as this client knows it now, own writes included.
    pub fn attrs(&self) -> Attrs {
        unreachable!("no file can be opened")
    }

    /// The size as this client knows it now.
    pub fn size(&self) -> u64 {
        0
    }

    /// Asks the server for the attributes, own unsent writes included in the size.
    pub async fn refresh(&self) -> Result<Attrs> {
        pending()
    }

    /// Reads `len` bytes from `offset`.
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<ReadResult> {
        pending()
    }

    /// Writes `data` at `offset`; returns when there was room for it in the window. `data` is kept, not copied, until it
    /// is durable.
    pub async fn write_at(&self, offset: u64, data: Bytes) -> Result<()> {
        pending()
    }

    /// The first run of written bytes at or after `offset`, `None` when there is none. Runs may be reported longer than
    /// they are, as storage keeps whole blocks, but never shorter.
    pub async fn next_data(&self, offset: u64) -> Result<Option<ByteRange>> {
        pending()
    }

    /// Turns a range into a hole; the size stays.
    pub async fn punch(&self, range: ByteRange) -> Result<()> {
        pending()
    }

    /// Cuts or extends the file to `size` bytes; new bytes are a hole.
    pub async fn set_len(&self, size: u64) -> Result<()> {
        pending()
    }

    /// Returns when every byte written before and the size are on disk.
    pub async fn fsync(&self) -> Result<()> {
        pending()
    }

    /// Makes everything durable and gives the file back to the server.
    pub async fn close(self) -> Result<()> {
        pending()
    }

    /// Like [`File::close`], and in the same round trip sets attributes and moves the name under which the file was
    /// created or opened to `rename_to` (directory and name), so that a copied file appears under its final name
    /// complete. Answers the final attributes.
    ///
    /// Moving needs a file made by [`Mount::create`](crate::Mount::create).
    pub async fn finish(self, changes: SetAttrs, rename_to: Option<(&Node, &[u8])>) -> Result<Attrs> {
        pending()
    }

    /// Where the bytes of the file live.
    pub async fn placement(&self) -> Result<Placement> {
        pending()
    }
}
