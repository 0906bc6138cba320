//! The native data program: the protocol with which clients and the mgr read and write objects on an iod.
//!
//! The program is an ONC RPC program over record-marked streams; `docs/native-protocol.md` describes it. The body of
//! every accepted reply is a status word, then either the result or an explanation ([`Failure`]).

mod admin;
mod capability;
mod checksum;
mod claim;
mod data_handle;
mod hello;
mod io;
mod lend;
mod lengths;
mod news;
mod object;
mod pull;
mod scrub;

pub use admin::{Counter, HeadState, ListArgs, ListEntry, ListReply, StatsReply};
pub use capability::{Capability, IodKey, Key, Proof, Rights, STORE_OBJECT, Said, Ticket};
pub use checksum::{Crc32c, crc32c};
pub use claim::{Claim, ClaimArgs, ClaimReply, Claiming};
pub use data_handle::{DATA_HANDLE_LEN, DataHandle, Holder, Striping, volume_tag};
pub use hello::{HelloArgs, HelloReply, Local, Origin, ProveArgs, ProveReply};
pub use io::{Extent, Piece, PieceKind, ReadArgs, ReadHead, ReadReply, WriteArgs, WriteExtent, WriteHead, WriteReply};
pub use lend::{LendReply, Loan};
pub use lengths::{FileLength, Length, LengthQuestion, LengthsArgs, LengthsReply};
pub use news::{NewsArgs, NewsReply};
pub use object::{
    CommitReply, FenceArgs, ObjectArgs, PunchArgs, ReserveArgs, SeekArgs, SeekReply, SeekWhat, SizeReply, TruncateArgs,
    TruncateReply,
};
pub use pull::{PULL_MAX, PULL_SESSION, PullArgs, PullExtent, PullReply, PullSource};
pub use scrub::{Damage, Finding, ScrubArgs, ScrubCursor, ScrubReply};

use std::fmt;

use types::limits;
use types::{FileId, Generation, ObjectId, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

/// RPC program number: a space and "WEI", from the user-defined range (RFC 5531 §8.3).
pub const PROGRAM: u32 = 0x2057_4549;
/// The only RPC version of the program.
pub const VERSION: u32 = 1;
/// Oldest and newest revision of the messages inside [`VERSION`] that this build speaks. HELLO agrees on one of them.
pub const REVISIONS: std::ops::RangeInclusive<u32> = 3..=3;

/// The generation in the capability of a REMOVE that deletes a file permanently. No file ever has this generation.
pub const GENERATION_GONE: Generation = Generation(u32::MAX);

/// The session of the mgr. The mgr assigns all other session numbers to clients.
pub const MGR_SESSION: u64 = 0;

/// Longest explanation of a failure, in bytes.
pub const DETAIL_MAX: usize = 256;
/// Longest text in a HELLO reply (host, socket path, software), in bytes.
pub const TEXT_MAX: usize = 256;
/// Maximum number of pieces in one READ reply. If there are more, the iod sends holes as zeros, joined to adjacent
/// data.
pub const PIECES_MAX: usize = 4 * limits::EXTENTS_MAX;
/// Maximum number of entries in one LIST reply.
pub const LIST_MAX: usize = 1024;
/// Maximum number of findings in one SCRUB reply. An iod with so many findings replies early.
pub const SCRUB_FINDINGS_MAX: usize = 256;
/// Maximum number of objects in one NEWS reply.
pub const NEWS_MAX: usize = 1024;
/// Maximum number of questions in one LENGTHS reply, and of answers in the next call.
pub const LENGTHS_MAX: usize = 1024;
/// Longest prefix of a file that proves a short-circuit descriptor valid ([`Loan::mark`]), in bytes.
pub const LOAN_MARK_MAX: usize = 512;
/// Maximum number of counters in one STATS reply.
pub const COUNTERS_MAX: usize = 512;

const _: () = assert!(PIECES_MAX * 12 + 4096 < limits::HEADER_MAX);
const _: () = assert!(LIST_MAX * 36 + 4096 < limits::HEADER_MAX);

macro_rules! procedures {
    ($($(#[$doc:meta])* $name:ident = $number:literal),* $(,)?) => {
        /// The procedures of the program.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u32)]
        pub enum Procedure { $($(#[$doc])* $name = $number),* }

        impl Procedure {
            /// Every procedure, by number and without a gap.
            pub const ALL: &[Procedure] = &[$(Procedure::$name),*];

            /// Returns the name for counters and logs.
            pub fn name(self) -> &'static str {
                match self { $(Procedure::$name => stringify!($name)),* }
            }
        }
    };
}

procedures! {
    /// Does nothing; needs no HELLO.
    Null = 0,
    /// Names the session of a connection and asks the iod for proof of its identity: [`HelloArgs`] to [`HelloReply`].
    Hello = 1,
    /// Reads extents of one object: [`ReadArgs`] to [`ReadReply`].
    Read = 2,
    /// Writes extents of one object: [`WriteArgs`] to [`WriteReply`].
    Write = 3,
    /// Makes earlier writes durable: [`ObjectArgs`] to [`CommitReply`].
    Commit = 4,
    /// Returns the size: [`ObjectArgs`] to [`SizeReply`].
    Size = 5,
    /// Truncates or extends an object, durably: [`TruncateArgs`] to [`TruncateReply`].
    Truncate = 6,
    /// Deletes an object, durably; a missing object is no error: [`ObjectArgs`] to nothing.
    Remove = 7,
    /// Turns a range into a hole, durably, without changing the size: [`PunchArgs`] to nothing.
    Punch = 8,
    /// Finds the next data or hole: [`SeekArgs`] to [`SeekReply`].
    Seek = 9,
    /// Lists the objects of the store: [`ListArgs`] to [`ListReply`].
    List = 10,
    /// Returns counters and capacity: nothing to [`StatsReply`]. Needs a session, but no capability.
    Stats = 11,
    /// Refuses capabilities of older generations, durably: [`FenceArgs`] to nothing.
    Fence = 12,
    /// Reads a part of the store and verifies its checksums: [`ScrubArgs`] to [`ScrubReply`].
    Scrub = 13,
    /// Waits for objects that clients of the files layout have written: [`NewsArgs`] to [`NewsReply`].
    News = 14,
    /// Allocates space for a range, durably, and extends the object to the end of the range: [`ReserveArgs`] to
    /// nothing.
    Reserve = 15,
    /// Copies bytes from an object of another iod, or of this one, into an object: [`PullArgs`] to [`PullReply`]. Only
    /// for the mgr.
    Pull = 16,
    /// Answers questions about file lengths, and waits for the next questions: [`LengthsArgs`] to [`LengthsReply`].
    Lengths = 17,
    /// Passes a descriptor of the file of an object, over Unix sockets only: [`ObjectArgs`] to [`LendReply`].
    Lend = 18,
    /// Records durably which metadata store uses the iod, or returns the recorded store: [`ClaimArgs`] to
    /// [`ClaimReply`].
    Claim = 19,
    /// Proves that the client knows the secret of its ticket, and opens the session: [`ProveArgs`] to [`ProveReply`].
    /// Follows HELLO.
    Prove = 20,
}

impl Procedure {
    /// Returns the procedure with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Returns whether the procedure changes state that later requests see, so that the iod must not execute it late.
    pub fn changes(self) -> bool {
        matches!(
            self,
            Procedure::Write
                | Procedure::Truncate
                | Procedure::Remove
                | Procedure::Punch
                | Procedure::Fence
                | Procedure::Reserve
                | Procedure::Pull
                | Procedure::Claim
        )
    }
}

/// The reason why a request failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The reason.
    pub status: Status,
    /// Details for people; truncated to [`DETAIL_MAX`] bytes when sent.
    pub detail: Option<String>,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Failure { status, detail: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "{}: {detail}", self.status),
            None => self.status.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

/// Encodes a reply body: a status word, then the result or the explanation.
pub fn encode_reply<T: Xdr>(reply: &Result<T, Failure>, out: &mut Writer) {
    match reply {
        Ok(result) => {
            out.u32(0);
            result.encode(out);
        }
        Err(failure) => {
            out.u32(failure.status.number());
            out.optional(failure.detail.as_deref().map(|d| cut(d, DETAIL_MAX)).as_ref(), |out, d| text(out, d));
        }
    }
}

/// Decodes a reply body. An unknown status number becomes `ServerFault`, with the number in the detail.
pub fn decode_reply<T: Xdr>(input: &mut Reader) -> Result<Result<T, Failure>, Malformed> {
    let number = input.u32()?;
    if number == 0 {
        return T::decode(input).map(Ok);
    }
    let detail = input.optional(|input| take_text(input, DETAIL_MAX))?;
    Ok(Err(match Status::from_number(number) {
        Some(status) => Failure { status, detail },
        None => Failure {
            status: Status::ServerFault,
            detail: Some(format!("unknown status {number}: {}", detail.unwrap_or_default())),
        },
    }))
}

/// Empty arguments, or an empty result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Nothing;

impl Xdr for Nothing {
    fn encode(&self, _: &mut Writer) {}

    fn decode(_: &mut Reader) -> Result<Self, Malformed> {
        Ok(Nothing)
    }
}

fn put_object(out: &mut Writer, object: ObjectId) {
    out.u64(object.file.0);
    out.u32(object.stream);
}

fn take_object(input: &mut Reader) -> Result<ObjectId, Malformed> {
    Ok(ObjectId::new(FileId(input.u64()?), input.u32()?))
}

/// Returns the longest prefix of `text` that has at most `max` bytes and ends at a character boundary.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

fn text(out: &mut Writer, text: &str) {
    out.u32(text.len() as u32);
    out.fixed(text.as_bytes());
}

fn take_text(input: &mut Reader, max: usize) -> Result<String, Malformed> {
    let bytes = input.opaque(max)?;
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(Malformed::Invalid("text that is not UTF-8")),
    }
}

#[cfg(test)]
mod tests;
