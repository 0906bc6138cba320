//! The placement of a file: which of its bytes are on which iod.

use layout::{Distribution, Piece};
use types::{ByteRange, IodId, ObjectId};

/// The object on one iod that stores a part of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedObject {
    /// The id of the iod.
    pub iod: IodId,
    /// The addresses of the iod, `host:port`.
    pub addresses: Vec<String>,
    /// Size of the object in bytes.
    pub size: u64,
    /// Number of bytes that the object occupies on the iod's disk.
    pub allocated: u64,
}

/// The iods and objects that store the bytes of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The distribution, which maps file ranges to indices into `objects`.
    pub distribution: Distribution,
    /// The object id, which is the same on every iod.
    pub object: ObjectId,
    /// The objects, in the order of the indices that the distribution uses.
    pub objects: Vec<PlacedObject>,
    /// Size of the file in bytes.
    pub file_size: u64,
}

impl Placement {
    /// Divides a file range into subranges that each lie in one object. Returns the subranges in file order, each with
    /// the index of its object and the range in the object.
    pub fn pieces(&self, range: ByteRange) -> impl Iterator<Item = Piece> + '_ {
        self.distribution.pieces(range)
    }
}
