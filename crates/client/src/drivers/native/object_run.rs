//! Runs of bytes of an object, as an iod or a lent file returns them.

use bytes::Bytes;

/// A run of bytes of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ObjectRun {
    /// Data bytes.
    Data(Bytes),
    /// This many bytes of a hole.
    Hole(u64),
    /// This many bytes beyond the end of the object: never written, unless the object has lost some.
    Beyond(u64),
}

impl ObjectRun {
    /// Number of bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            ObjectRun::Data(data) => data.len() as u64,
            ObjectRun::Hole(len) | ObjectRun::Beyond(len) => *len,
        }
    }

    /// Number of data bytes.
    pub(super) fn data_len(&self) -> u64 {
        if let ObjectRun::Data(data) = self { data.len() as u64 } else { 0 }
    }

    /// Splits off the first `len` bytes, or the whole run if it is shorter, and returns them.
    pub(super) fn split_to(&mut self, len: u64) -> ObjectRun {
        match self {
            ObjectRun::Data(data) => ObjectRun::Data(data.split_to(data.len().min(len as usize))),
            ObjectRun::Hole(all) => ObjectRun::Hole(split(all, len)),
            ObjectRun::Beyond(all) => ObjectRun::Beyond(split(all, len)),
        }
    }
}

/// Subtracts `len`, or everything if there is less, and returns the subtracted number.
fn split(all: &mut u64, len: u64) -> u64 {
    let front = len.min(*all);
    *all -= front;
    front
}
