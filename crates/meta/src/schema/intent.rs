//! Intents: durable records of operations on a file's objects that the mgr must complete after a crash.

use super::Record;
use types::{FileId, Generation, limits};
use xdr::{Malformed, Reader, Writer};

/// An operation on the objects of a regular file that the mgr must still complete. A file has at most one intent of
/// each kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Intent {
    /// A client may be writing to the file, or may have been writing before a crash, so the objects may extend beyond
    /// the recorded file size. Once no client writes to the file, the mgr must query the iods for the size.
    Written,
    /// The file was truncated to this size, but its objects may still have bytes beyond this size. The mgr must
    /// truncate the objects before the size of the file grows.
    Truncate(u64),
    /// The file was fenced with this generation, but iods may still accept capabilities of older generations. The mgr
    /// must send the generation to all iods.
    Fence(Generation),
}

impl Intent {
    /// Returns the number of the intent's kind, which is the last byte of its key.
    pub fn kind(self) -> u8 {
        match self {
            Intent::Written => 0,
            Intent::Truncate(_) => 1,
            Intent::Fence(_) => 2,
        }
    }

    /// Returns the name of the intent's kind for messages and counters.
    pub fn name(self) -> &'static str {
        match self {
            Intent::Written => "written",
            Intent::Truncate(_) => "cut",
            Intent::Fence(_) => "fence",
        }
    }
}

/// An intent and the file to which it belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileIntent {
    /// Inode number of the file.
    pub file: FileId,
    /// The operation that the mgr must still complete.
    pub intent: Intent,
}

impl Record for Intent {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.kind().into());
        match self {
            Intent::Written => {}
            Intent::Truncate(size) => out.u64(*size),
            Intent::Fence(generation) => out.u32(generation.0),
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(match input.u32()? {
            0 => Intent::Written,
            1 => Intent::Truncate(
                Some(input.u64()?)
                    .filter(|size| *size <= limits::FILE_SIZE_MAX)
                    .ok_or(Malformed::Invalid("cut to a size beyond the largest file"))?,
            ),
            2 => Intent::Fence(Generation(input.u32()?)),
            value => return Err(Malformed::BadValue { what: "kind of an intent", value }),
        })
    }
}
