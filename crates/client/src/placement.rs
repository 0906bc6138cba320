//! Which bytes of a file are on which iod.

use layout::{Distribution, Piece};
use types::{ByteRange, FileId, IodId};

/// The object of a file on one iod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedObject {
    /// The iod.
    pub iod: IodId,
    /// Its addresses, `host:port`.
    pub addresses: Vec<String>,
    /// Length of the object in bytes.
    pub size: u64,
    /// Bytes that it occupies on the iod's disk.
    pub allocated: u64,
}

/// Where a file's bytes live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The rule by which bytes are dealt out; its indices are those of `objects`.
    pub distribution: Distribution,
    /// The object id, the same on every iod.
    pub object: FileId,
    /// The objects in index order.
    pub objects: Vec<PlacedObject>,
    /// Size of the file in bytes.
    pub file_size: u64,
}

impl Placement {
    /// The parts of a file range in file order, each with its object's index and range.
    pub fn pieces(&self, range: ByteRange) -> impl Iterator<Item = Piece> + '_ {
        self.distribution.pieces(range)
    }
}
