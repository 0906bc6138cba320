//! Requests about the index of a log file: OPEN_LOG, REGISTER and LOOKUP. The crate `log_index` encodes the runs.

use bytes::Bytes;
use types::{ByteRange, Verifier};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Capability, RUNS_BYTES_MAX};

/// Result of OPEN_LOG. OPEN_LOG fails with `NoSpc` if the file has had the largest number of data logs, or if the disk of
/// the iod is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenLogReply {
    /// The number of a data log that no other writer of the file has or had.
    pub log: u32,
}

impl Xdr for OpenLogReply {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.log);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(OpenLogReply { log: input.u32()? })
    }
}

/// Arguments of REGISTER.
///
/// REGISTER fails with `Delay` if the shard has too many pending runs: the client syncs the file (makes its
/// registrations durable) and repeats the request. It fails with `NoSpc` if the shard has too many durable runs, or if
/// the disk of the iod is full; then the runs may be pending, and the client may repeat the request with the same
/// sequence number. It fails with `Fenced` if the capability is older than a fence of the index, or the logs of the file
/// were removed; with `Corrupt` if the shard is damaged; and with `Inval` for runs that are not valid or too many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegisterArgs {
    /// Capability that names the index of the file; needs the right WRITE.
    pub cap: Capability,
    /// The data log of the writer; 0 for the mgr, which writes to the striped base.
    pub log: u32,
    /// Number of this registration; increases with each registration of the writer at this iod, so that a repeated
    /// request has no effect. The registrations of log 0 may arrive in any order.
    pub sequence: u64,
    /// The sequence number up to which the registrations of this writer, with this one, become durable before the iod
    /// replies. The bytes of their runs must be durable. 0 if no registration becomes durable.
    pub durable: u64,
    /// The encoded runs, in the order in which they replace one another; may be empty. At most [`RUNS_BYTES_MAX`]
    /// bytes.
    pub runs: Bytes,
}

impl Xdr for RegisterArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.u32(self.log);
        out.u64(self.sequence);
        out.u64(self.durable);
        out.opaque(&self.runs);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(RegisterArgs {
            cap: Capability::decode(input)?,
            log: input.u32()?,
            sequence: input.u64()?,
            durable: input.u64()?,
            runs: input.opaque(RUNS_BYTES_MAX)?,
        })
    }
}

/// Result of REGISTER.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterReply {
    /// The write verifier of the iod. If it differs from that of an earlier REGISTER, the registrations before it that
    /// were not durable are lost.
    pub verifier: Verifier,
    /// Number of runs of all writers of the file that are not durable. Writers sync before the shard has too many.
    pub pending: u32,
}

impl Xdr for RegisterReply {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.verifier.0);
        out.u32(self.pending);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(RegisterReply { verifier: Verifier(input.fixed()?), pending: input.u32()? })
    }
}

/// Arguments of LOOKUP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookupArgs {
    /// Capability that names the index of the file; needs the right READ.
    pub cap: Capability,
    /// The range of the file.
    pub range: ByteRange,
    /// Whether to return only runs that are durable. A reader asks for these if the iod of a data log has lost the
    /// bytes of a run.
    pub only_durable: bool,
}

impl Xdr for LookupArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.u64(self.range.offset);
        out.u64(self.range.len);
        out.bool(self.only_durable);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let (cap, offset, len) = (Capability::decode(input)?, input.u64()?, input.u64()?);
        if offset.checked_add(len).is_none() {
            return Err(Malformed::Invalid("a range beyond the largest offset"));
        }
        Ok(LookupArgs { cap, range: ByteRange { offset, len }, only_durable: input.bool()? })
    }
}

/// Result of LOOKUP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookupReply {
    /// Number of bytes, from the beginning of the range, that the reply describes; at least 1 unless the range is
    /// empty. The client sends another LOOKUP for the rest.
    pub covered: u64,
    /// Offset after the last byte of the file that is in a data log, as far as this shard knows.
    pub end: u64,
    /// The encoded runs, in no order. They do not overlap. Bytes that are in no run are in the striped base. At most
    /// [`RUNS_BYTES_MAX`] bytes.
    pub runs: Bytes,
}

impl Xdr for LookupReply {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.covered);
        out.u64(self.end);
        out.opaque(&self.runs);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LookupReply { covered: input.u64()?, end: input.u64()?, runs: input.opaque(RUNS_BYTES_MAX)? })
    }
}
