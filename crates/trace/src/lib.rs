//! Text traces of file input and output: their format (docs/FORMATS.md), what the bytes of their writes are, and generators.
//!
//! A trace says who does what to which file in which order, not when: it is replayed in a closed loop, each client
//! beginning its next operation when the last one is answered.

pub mod content;
pub mod format;
pub mod generators;
mod rng;
pub mod written;

pub use format::{Bad, parse, print};
pub use generators::Generator;

/// The longest request.
pub const LEN_MAX: u32 = 64 << 20;
/// One past the last byte of the longest file.
pub const END_MAX: u64 = i64::MAX as u64;
/// Files are numbered below this.
pub const FILES_MAX: u32 = 1 << 24;
/// Clients are numbered below this.
pub const CLIENTS_MAX: usize = 1024;

/// What is done to a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Action {
    /// Opens it for reading and writing; makes it when it is not there.
    Open,
    /// Reads a range, as far as the file goes.
    Read,
    /// Writes a range.
    Write,
    /// Returns when all that was written is durable.
    Fsync,
    /// Closes it.
    Close,
    /// Takes its name away; nobody has it open.
    Remove,
}

impl Action {
    /// All of them.
    pub const ALL: [Action; 6] =
        [Action::Open, Action::Read, Action::Write, Action::Fsync, Action::Close, Action::Remove];

    /// Its word in a trace.
    pub fn word(self) -> &'static str {
        match self {
            Action::Open => "open",
            Action::Read => "read",
            Action::Write => "write",
            Action::Fsync => "fsync",
            Action::Close => "close",
            Action::Remove => "remove",
        }
    }

    /// Whether it is about a range of the file.
    pub fn has_range(self) -> bool {
        matches!(self, Action::Read | Action::Write)
    }
}

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// What is done.
    pub action: Action,
    /// To which file.
    pub file: u32,
    /// The first byte of the range; 0 without one.
    pub offset: u64,
    /// The length of the range; 0 without one.
    pub len: u32,
}

impl Op {
    /// An operation without a range.
    pub fn of(action: Action, file: u32) -> Op {
        Op { action, file, offset: 0, len: 0 }
    }

    /// A read.
    pub fn read(file: u32, offset: u64, len: u32) -> Op {
        Op { action: Action::Read, file, offset, len }
    }

    /// A write.
    pub fn write(file: u32, offset: u64, len: u32) -> Op {
        Op { action: Action::Write, file, offset, len }
    }

    /// One past the last byte of the range.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// What each client does, in its order. Clients do not wait for each other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// The operations of each client.
    pub clients: Vec<Vec<Op>>,
}

impl Trace {
    /// All operations, client by client.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.clients.iter().flatten()
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.clients.iter().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that are asked for by operations of a kind.
    pub fn bytes(&self, action: Action) -> u64 {
        self.ops().filter(|op| op.action == action).map(|op| u64::from(op.len)).sum()
    }
}
