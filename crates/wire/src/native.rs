//! The native data program: the messages with which clients and the mgr read and write objects on an iod.
//!
//! The program is an ONC RPC program over record-marked streams; `docs/native-protocol.md` describes it. The body of
//! each accepted reply is a status word, followed by either the result or an explanation ([`Failure`]).

mod admin;
mod capability;
mod checksum;
mod claim;
mod data_handle;
mod hello;
mod io;
mod lend;
mod lengths;
mod log;
mod object;
mod pull;
mod scrub;
mod write_reports;

pub use admin::{Counter, HeadState, ListArgs, ListEntry, ListReply, StatsReply};
pub use capability::{Capability, IodKey, Key, Proof, Rights, STORE_OBJECT, Ticket, Transcript};
pub use checksum::{Crc32c, crc32c};
pub use claim::{Claim, ClaimArgs, ClaimReply, Claiming};
pub use data_handle::{DATA_HANDLE_LEN, DataHandle, Holder, Striping, volume_tag};
pub use hello::{HelloArgs, HelloReply, Local, Origin, ProveArgs, ProveReply};
pub use io::{Extent, Piece, PieceKind, ReadArgs, ReadHead, ReadReply, WriteArgs, WriteExtent, WriteHead, WriteReply};
pub use lend::{LendReply, Loan};
pub use lengths::{FileLength, Length, LengthQuestion, LengthsArgs, LengthsReply};
pub use log::{LookupArgs, LookupReply, OpenLogReply, RegisterArgs, RegisterReply};
pub use object::{
    CommitReply, FenceArgs, ObjectArgs, PunchArgs, ReserveArgs, SeekArgs, SeekReply, SeekResult, SeekWhat, SizeReply,
    TruncateArgs, TruncateReply,
};
pub use pull::{PULL_MAX, PULL_SESSION, PullArgs, PullExtent, PullReply, PullSource};
pub use scrub::{Damage, Finding, ScrubArgs, ScrubCursor, ScrubReply};
pub use write_reports::{WriteReportsArgs, WriteReportsReply};

use std::fmt;

use types::limits;
use types::{FileId, Generation, ObjectId, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

/// RPC program number of the native data program: a space and "WEI" in ASCII, in the user-defined range (RFC 5531
/// §8.3).
pub const PROGRAM: u32 = 0x2057_4549;
/// The only RPC version of the native data program.
pub const VERSION: u32 = 1;
/// Oldest and newest revision of the messages that this build speaks. HELLO selects the revision that the client and
/// the iod use. All revisions have the RPC version [`VERSION`].
pub const REVISIONS: std::ops::RangeInclusive<u32> = 3..=4;
/// The first revision with the procedures for log files: OPEN_LOG, REGISTER, LOOKUP and REMOVE_LOGS.
pub const REVISION_LOGS: u32 = 4;

/// The generation in the capability for a REMOVE of an object that no client may create again. No file ever has this
/// generation.
pub const GENERATION_GONE: Generation = Generation(u32::MAX);

/// The session number of the mgr. All other session numbers belong to clients, and the mgr assigns them.
pub const MGR_SESSION: u64 = 0;

/// Maximum length of the explanation in a [`Failure`], in bytes.
pub const DETAIL_MAX: usize = 256;
/// Maximum length in bytes of a text in the replies to HELLO and PROVE (host, socket path, software).
pub const TEXT_MAX: usize = 256;
/// Maximum number of ranges of data, of a hole, or past the end of the object that one READ reply describes. If the
/// requested ranges contain more holes than fit, the iod sends some holes as zeros in the adjacent data.
pub const PIECES_MAX: usize = 4 * limits::EXTENTS_MAX;
/// Maximum number of entries in one LIST reply.
pub const LIST_MAX: usize = 1024;
/// Maximum number of findings in one SCRUB reply. An iod that reaches this number replies at once, although it has not
/// read all requested bytes.
pub const SCRUB_FINDINGS_MAX: usize = 256;
/// Maximum number of objects in one WRITE_REPORTS reply.
pub const WRITE_REPORTS_MAX: usize = 1024;
/// Maximum number of file length queries in one LENGTHS reply of an iod, and maximum number of the mgr's answers in the
/// arguments of the next LENGTHS.
pub const LENGTHS_MAX: usize = 1024;
/// Maximum length in bytes of [`Loan::mark`]: the first bytes of an object file, by which a short-circuit reader checks
/// that its descriptor of the file is still valid.
pub const LOAN_MARK_MAX: usize = 512;
/// Maximum length in bytes of the encoded runs in one REGISTER or in the reply to a LOOKUP.
pub const RUNS_BYTES_MAX: usize = 64 << 10;
/// Maximum number of counters in one STATS reply.
pub const COUNTERS_MAX: usize = 512;

const _: () = assert!(PIECES_MAX * 12 + 4096 < limits::HEADER_MAX);
const _: () = assert!(LIST_MAX * 36 + 4096 < limits::HEADER_MAX);

macro_rules! procedures {
    ($($(#[$doc:meta])* $name:ident = $number:literal),* $(,)?) => {
        /// The procedures of the native data program.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u32)]
        pub enum Procedure { $($(#[$doc])* $name = $number),* }

        impl Procedure {
            /// All procedures, indexed by procedure number.
            pub const ALL: &[Procedure] = &[$(Procedure::$name),*];

            /// Returns the name of the procedure in counters and logs.
            pub fn name(self) -> &'static str {
                match self { $(Procedure::$name => stringify!($name)),* }
            }
        }
    };
}

procedures! {
    /// NULL: does nothing. Needs no HELLO.
    Null = 0,
    /// HELLO: names the session for a connection, and requests a proof of the iod's identity ([`HelloArgs`] to
    /// [`HelloReply`]).
    Hello = 1,
    /// READ: returns extents of one object ([`ReadArgs`] to [`ReadReply`]).
    Read = 2,
    /// WRITE: writes extents of one object ([`WriteArgs`] to [`WriteReply`]).
    Write = 3,
    /// COMMIT: makes all earlier writes to an object durable ([`ObjectArgs`] to [`CommitReply`]).
    Commit = 4,
    /// SIZE: returns the size of an object ([`ObjectArgs`] to [`SizeReply`]).
    Size = 5,
    /// TRUNCATE: truncates or extends an object durably ([`TruncateArgs`] to [`TruncateReply`]).
    Truncate = 6,
    /// REMOVE: deletes an object durably. Succeeds if the object does not exist. [`ObjectArgs`] to no result.
    Remove = 7,
    /// PUNCH: turns a range of an object into a hole durably, without a change of the size. [`PunchArgs`] to no result.
    Punch = 8,
    /// SEEK: returns the next data or hole of an object ([`SeekArgs`] to [`SeekReply`]).
    Seek = 9,
    /// LIST: returns the objects of the store, in several replies ([`ListArgs`] to [`ListReply`]).
    List = 10,
    /// STATS: returns the counters and the capacity of the iod. No arguments; the result is a [`StatsReply`]. Needs a
    /// session, but no capability.
    Stats = 11,
    /// FENCE: makes the iod refuse, durably, capabilities of older generations for an object. [`FenceArgs`] to no
    /// result.
    Fence = 12,
    /// SCRUB: reads a part of the store and verifies its block checksums ([`ScrubArgs`] to [`ScrubReply`]).
    Scrub = 13,
    /// WRITE_REPORTS: returns the objects that clients of the files layout have written; blocks while no object has
    /// been written ([`WriteReportsArgs`] to [`WriteReportsReply`]).
    WriteReports = 14,
    /// RESERVE: allocates space for a range of an object durably, and extends the object to the end of the range. The
    /// arguments are [`ReserveArgs`]; no result.
    Reserve = 15,
    /// PULL: copies bytes from an object of another iod, or of the same iod, into an object ([`PullArgs`] to
    /// [`PullReply`]). Only the mgr may use PULL.
    Pull = 16,
    /// LENGTHS: the iod asks the mgr for file lengths. The mgr calls LENGTHS with its answers to earlier queries, and
    /// the reply contains the next queries of the iod. Blocks while the iod has no query ([`LengthsArgs`] to
    /// [`LengthsReply`]).
    Lengths = 17,
    /// LEND: passes a descriptor of the file of an object to the client, over Unix sockets only ([`ObjectArgs`] to
    /// [`LendReply`]).
    Lend = 18,
    /// CLAIM: makes the iod record durably which metadata store uses its objects, or only returns which metadata store
    /// the iod has recorded ([`ClaimArgs`] to [`ClaimReply`]).
    Claim = 19,
    /// PROVE: proves that the client knows the secret of its ticket, and opens the session ([`ProveArgs`] to
    /// [`ProveReply`]). PROVE follows HELLO.
    Prove = 20,
    /// OPEN_LOG: gives the client the number of a new data log of a file ([`ObjectArgs`] to [`OpenLogReply`]). The
    /// capability names the index of the file.
    OpenLog = 21,
    /// REGISTER: adds runs to the shard of a file's index on this iod, and may make them durable ([`RegisterArgs`] to
    /// [`RegisterReply`]).
    Register = 22,
    /// LOOKUP: returns the runs of a range of a file ([`LookupArgs`] to [`LookupReply`]).
    Lookup = 23,
    /// REMOVE_LOGS: deletes all data logs and the index of a file on this iod durably. Succeeds if there are none. The
    /// arguments are [`ObjectArgs`], whose capability names the index; no result.
    RemoveLogs = 24,
}

impl Procedure {
    /// Returns the procedure with this number; `None` if no procedure has it.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Returns whether the procedure changes an object. After a client has replaced its connection by a new one, the
    /// iod must not execute calls of such a procedure that arrive on the old connection.
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
                | Procedure::OpenLog
                | Procedure::Register
                | Procedure::RemoveLogs
        )
    }
}

/// The reason why a request to an iod failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The status code with which the request failed.
    pub status: Status,
    /// An explanation of the failure for people; may be empty. The sender truncates it to [`DETAIL_MAX`] bytes.
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

/// Encodes the body of a reply: a status word, followed by the result or the explanation.
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

/// Decodes the body of a reply. An unknown status code becomes `ServerFault`, with the code in the explanation.
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

/// The arguments of a procedure that has no arguments, or the result of a procedure that has no result.
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

/// Returns the longest prefix of `text` that has at most `max` bytes and ends at a UTF-8 character boundary.
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
