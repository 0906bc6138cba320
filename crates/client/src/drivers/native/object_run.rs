//! Byte ranges in the result of a read of an object: data, holes, and bytes beyond the end of the object.

use bytes::Bytes;

/// A byte range in the reply to a read of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ObjectRun {
    /// A range of data bytes.
    Data(Bytes),
    /// A hole of this many bytes.
    Hole(u64),
    /// A range of this many bytes beyond the end of the object: never written, or written and lost by the iod.
    Beyond(u64),
}

impl ObjectRun {
    /// Returns the number of bytes in the range.
    pub(super) fn len(&self) -> u64 {
        match self {
            ObjectRun::Data(data) => data.len() as u64,
            ObjectRun::Hole(len) | ObjectRun::Beyond(len) => *len,
        }
    }

    /// Returns the number of data bytes; 0 for holes and bytes beyond the end.
    pub(super) fn data_len(&self) -> u64 {
        if let ObjectRun::Data(data) = self { data.len() as u64 } else { 0 }
    }

    /// Splits off and returns the first `len` bytes, or all bytes if there are fewer.
    pub(super) fn split_to(&mut self, len: u64) -> ObjectRun {
        match self {
            ObjectRun::Data(data) => ObjectRun::Data(data.split_to(data.len().min(len as usize))),
            ObjectRun::Hole(all) => ObjectRun::Hole(split(all, len)),
            ObjectRun::Beyond(all) => ObjectRun::Beyond(split(all, len)),
        }
    }
}

/// Subtracts at most `len` from `all`, not below zero; returns the subtracted amount.
fn split(all: &mut u64, len: u64) -> u64 {
    let front = len.min(*all);
    *all -= front;
    front
}
