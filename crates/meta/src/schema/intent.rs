//! Intents: durable notes of the remaining steps of an operation that has begun on the iods of a file.

use super::Record;
use types::{FileId, Generation, limits};
use xdr::{Malformed, Reader, Writer};

/// A remaining step of an operation on a regular file. A file has at most one intent of each kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Intent {
    /// A client may be writing, or was writing when a daemon died, so the objects may reach beyond the file's size. To
    /// do: take the size over from the iods, once no client writes any more.
    Written,
    /// The file was truncated to this size, but its objects may still be longer. To do: truncate the objects before the
    /// file grows.
    Cut(u64),
    /// The file was fenced, but iods may still accept capabilities of generations before this one. To do: inform all
    /// iods.
    Fence(Generation),
}

impl Intent {
    /// Returns the number of the kind, which is the last byte of the key.
    pub fn kind(self) -> u8 {
        match self {
            Intent::Written => 0,
            Intent::Cut(_) => 1,
            Intent::Fence(_) => 2,
        }
    }

    /// Returns the name of the kind in messages and counters.
    pub fn name(self) -> &'static str {
        match self {
            Intent::Written => "written",
            Intent::Cut(_) => "cut",
            Intent::Fence(_) => "fence",
        }
    }
}

/// An intent with its file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Noted {
    /// The file.
    pub file: FileId,
    /// The intent.
    pub intent: Intent,
}

impl Record for Intent {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.kind().into());
        match self {
            Intent::Written => {}
            Intent::Cut(size) => out.u64(*size),
            Intent::Fence(generation) => out.u32(generation.0),
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(match input.u32()? {
            0 => Intent::Written,
            1 => Intent::Cut(
                Some(input.u64()?)
                    .filter(|size| *size <= limits::FILE_SIZE_MAX)
                    .ok_or(Malformed::Invalid("cut to a size beyond the largest file"))?,
            ),
            2 => Intent::Fence(Generation(input.u32()?)),
            value => return Err(Malformed::BadValue { what: "kind of an intent", value }),
        })
    }
}
