//! PLACEMENT: returns which iods have the objects of a file. The mgr reads the layout from its metadata, and sends no
//! request to an iod.

use xdr::{Malformed, Reader, Writer, Xdr};

/// Arguments of PLACEMENT. The result is a [`Status`](super::Status) with one group for the file and one group for each
/// object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlacementArgs {
    /// Inode number of the file.
    pub inode: u64,
}

impl Xdr for PlacementArgs {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.inode);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(PlacementArgs { inode: input.u64()? })
    }
}
