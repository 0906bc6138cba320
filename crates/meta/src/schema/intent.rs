//! Intents: durable notes of what is still to be done about a file whose operation has several steps.

use super::Record;
use types::{FileId, Generation, limits};
use xdr::{Malformed, Reader, Writer};

/// What is still to be done about a regular file. A file has at most one note of each kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Intent {
    /// Somebody may be writing, or was when a daemon died: its objects may reach beyond its size. To do: take over
    /// what the iods know, once nobody writes any more.
    Written,
    /// It was cut to this size: its objects may still reach further. To do: cut them, before anything makes it grow.
    Cut(u64),
    /// It was fenced: iods may still take capabilities of generations before this one. To do: tell them all.
    Fence(Generation),
}

impl Intent {
    /// The number of its kind, which ends its key.
    pub fn kind(self) -> u8 {
        match self {
            Intent::Written => 0,
            Intent::Cut(_) => 1,
            Intent::Fence(_) => 2,
        }
    }

    /// The name of its kind in messages and counters.
    pub fn name(self) -> &'static str {
        match self {
            Intent::Written => "written",
            Intent::Cut(_) => "cut",
            Intent::Fence(_) => "fence",
        }
    }
}

/// A note with the file that it is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Noted {
    /// The file.
    pub file: FileId,
    /// What is to be done.
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
