//! Text traces of file operations: their format (docs/FORMATS.md), the contents of their writes, and generators.
//!
//! A trace gives the operations of each client in order, without times. It is replayed in a closed loop: each client
//! begins its next operation when the previous one has been answered.

pub mod content;
pub mod format;
pub mod generators;
mod rng;
pub mod written;

pub use format::{Bad, parse, print};
pub use generators::Generator;

/// Largest length of a request in bytes.
pub const LEN_MAX: u32 = 64 << 20;
/// Largest size of a file in bytes.
pub const END_MAX: u64 = i64::MAX as u64;
/// File numbers are below this limit.
pub const FILES_MAX: u32 = 1 << 24;
/// Client numbers are below this limit.
pub const CLIENTS_MAX: usize = 1024;

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Action {
    /// Opens the file for reading and writing; creates it if it does not exist.
    Open,
    /// Reads a range, up to the end of the file.
    Read,
    /// Writes a range.
    Write,
    /// Waits until all written bytes are durable.
    Fsync,
    /// Closes the file.
    Close,
    /// Removes the file, which no client has open.
    Remove,
}

impl Action {
    /// All kinds.
    pub const ALL: [Action; 6] =
        [Action::Open, Action::Read, Action::Write, Action::Fsync, Action::Close, Action::Remove];

    /// Returns the keyword in a trace.
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

    /// Returns whether the operation has a range.
    pub fn has_range(self) -> bool {
        matches!(self, Action::Read | Action::Write)
    }
}

/// An operation on a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// The kind.
    pub action: Action,
    /// The number of the file.
    pub file: u32,
    /// The first byte of the range; 0 if the operation has no range.
    pub offset: u64,
    /// The length of the range; 0 if the operation has no range.
    pub len: u32,
}

impl Op {
    /// Returns an operation without a range.
    pub fn of(action: Action, file: u32) -> Op {
        Op { action, file, offset: 0, len: 0 }
    }

    /// Returns a read.
    pub fn read(file: u32, offset: u64, len: u32) -> Op {
        Op { action: Action::Read, file, offset, len }
    }

    /// Returns a write.
    pub fn write(file: u32, offset: u64, len: u32) -> Op {
        Op { action: Action::Write, file, offset, len }
    }

    /// Returns the offset after the last byte of the range.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// The operations of all clients. Clients do not wait for one another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// The operations of each client, in order.
    pub clients: Vec<Vec<Op>>,
}

impl Trace {
    /// Returns all operations, client by client.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.clients.iter().flatten()
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.clients.iter().map(Vec::len).sum()
    }

    /// Returns whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes requested by operations of this kind.
    pub fn bytes(&self, action: Action) -> u64 {
        self.ops().filter(|op| op.action == action).map(|op| u64::from(op.len)).sum()
    }
}
