//! Text traces of file operations: the trace format (docs/FORMATS.md), the contents of the writes, and generators.
//!
//! A trace gives the operations of each client in order, without times. The replay is a closed loop: each client
//! begins its next operation when its previous operation has completed.

pub mod content;
pub mod format;
pub mod generators;
mod rng;
pub mod written;

pub use format::{ParseError, parse, print};
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
    /// Reads a byte range, up to the end of the file.
    Read,
    /// Writes a byte range.
    Write,
    /// Waits until all written bytes of the file are durable.
    Fsync,
    /// Closes the file.
    Close,
    /// Removes the file. No client may have the file open.
    Remove,
}

impl Action {
    /// All kinds of operations.
    pub const ALL: [Action; 6] =
        [Action::Open, Action::Read, Action::Write, Action::Fsync, Action::Close, Action::Remove];

    /// Returns the keyword of this kind in a text trace.
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

    /// Returns whether operations of this kind have a byte range.
    pub fn has_range(self) -> bool {
        matches!(self, Action::Read | Action::Write)
    }
}

/// An operation on a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// The kind of the operation.
    pub action: Action,
    /// The number of the file.
    pub file: u32,
    /// The offset of the first byte of the range; 0 if the operation has no range.
    pub offset: u64,
    /// The length of the range in bytes; 0 if the operation has no range.
    pub len: u32,
}

impl Op {
    /// Returns an operation without a byte range.
    pub fn of(action: Action, file: u32) -> Op {
        Op { action, file, offset: 0, len: 0 }
    }

    /// Returns an operation that reads a byte range.
    pub fn read(file: u32, offset: u64, len: u32) -> Op {
        Op { action: Action::Read, file, offset, len }
    }

    /// Returns an operation that writes a byte range.
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
    /// The operations of each client, in the order in which the client executes them.
    pub clients: Vec<Vec<Op>>,
}

impl Trace {
    /// Returns the operations of all clients, client by client.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.clients.iter().flatten()
    }

    /// Returns the number of operations of all clients.
    pub fn len(&self) -> usize {
        self.clients.iter().map(Vec::len).sum()
    }

    /// Returns whether no client has an operation.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes requested by operations of this kind.
    pub fn bytes(&self, action: Action) -> u64 {
        self.ops().filter(|op| op.action == action).map(|op| u64::from(op.len)).sum()
    }
}
