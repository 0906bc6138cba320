//! The placement of a file: which of its bytes are on which iod.

use layout::{Distribution, Piece};
use types::{ByteRange, IodId, ObjectId};

/// The object of a file on one iod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedObject {
    /// The iod.
    pub iod: IodId,
    /// The addresses of the iod, `host:port`.
    pub addresses: Vec<String>,
    /// Length of the object in bytes.
    pub size: u64,
    /// Allocated bytes on the iod's disk.
    pub allocated: u64,
}

/// Where a file's bytes are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The distribution, whose indices are those of `objects`.
    pub distribution: Distribution,
    /// The object id, the same on every iod.
    pub object: ObjectId,
    /// The objects in index order.
    pub objects: Vec<PlacedObject>,
    /// Size of the file in bytes.
    pub file_size: u64,
}

impl Placement {
    /// Returns the pieces of a file range in file order, each with its object's index and range.
    pub fn pieces(&self, range: ByteRange) -> impl Iterator<Item = Piece> + '_ {
        self.distribution.pieces(range)
    }
}
