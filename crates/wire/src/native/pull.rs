//! PULL: copies bytes from an object of another iod, or of the same iod, into an object of this iod.

use types::limits::EXTENTS_MAX;
use types::{IodId, Verifier};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::hello::ADDRESSES_MAX;
use super::{Capability, TEXT_MAX, Ticket, cut, take_text, text};

/// The session number of iods that read from other iods on behalf of the mgr, during PULL. No client has this session.
pub const PULL_SESSION: u64 = u64::MAX;

/// Maximum number of bytes that one PULL copies, because later requests on its connection wait for it.
pub const PULL_MAX: u64 = 4 << 20;

/// A byte range to copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PullExtent {
    /// Offset of the first byte in the source object.
    pub from: u64,
    /// Offset of the first byte in the target object.
    pub to: u64,
    /// Number of bytes to copy.
    pub len: u32,
}

impl Xdr for PullExtent {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.from);
        out.u64(self.to);
        out.u32(self.len);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(PullExtent { from: input.u64()?, to: input.u64()?, len: input.u32()? })
    }
}

/// The source object of a PULL, and how to reach the iod that has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullSource {
    /// Capability that names the source object, and gives the right READ to [`PULL_SESSION`].
    pub cap: Capability,
    /// Ticket with which the target iod opens [`PULL_SESSION`] on the source iod.
    pub ticket: Ticket,
    /// Id of the iod that has the source object. It may be the iod that executes the PULL.
    pub iod: IodId,
    /// TCP addresses of the source iod, as `address:port` with numeric addresses, in order of preference.
    pub addresses: Vec<String>,
}

impl Xdr for PullSource {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        self.ticket.encode(out);
        out.fixed(&self.iod.0);
        out.array(&self.addresses, |out, address| text(out, cut(address, TEXT_MAX)));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(PullSource {
            cap: Capability::decode(input)?,
            ticket: Ticket::decode(input)?,
            iod: IodId(input.fixed()?),
            addresses: input.array(ADDRESSES_MAX, |input| take_text(input, TEXT_MAX))?,
        })
    }
}

/// Arguments of PULL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullArgs {
    /// Capability that names the target object; needs the right WRITE.
    pub cap: Capability,
    /// Whether the iod must make the copied bytes durable before it replies.
    pub stable: bool,
    /// The source object, and the iod that has it.
    pub source: PullSource,
    /// The byte ranges to copy, in this order: at most `EXTENTS_MAX` ranges, and together at most [`PULL_MAX`] bytes.
    pub extents: Vec<PullExtent>,
}

impl PullArgs {
    /// Returns the number of bytes in all ranges of the PULL together.
    pub fn len(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.len)).sum()
    }

    /// Returns whether all ranges of the PULL are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Xdr for PullArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.bool(self.stable);
        self.source.encode(out);
        out.array(&self.extents, |out, extent| extent.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(PullArgs {
            cap: Capability::decode(input)?,
            stable: input.bool()?,
            source: PullSource::decode(input)?,
            extents: input.array(EXTENTS_MAX, PullExtent::decode)?,
        })
    }
}

/// Result of PULL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullReply {
    /// The write verifier of the target iod. If a later COMMIT returns another verifier, the iod may have lost unstable
    /// bytes.
    pub verifier: Verifier,
    /// Whether the copied bytes are durable already.
    pub stable: bool,
    /// Size of the target object in bytes after the copy.
    pub size: u64,
    /// Number of bytes that the iod has copied, from the start of the first range.
    pub done: u64,
    /// Why the iod could not read the remaining bytes, for people; `None` if the iod copied all bytes. The iod
    /// truncates the text to [`TEXT_MAX`] bytes.
    pub stopped: Option<String>,
}

impl Xdr for PullReply {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.verifier.0);
        out.bool(self.stable);
        out.u64(self.size);
        out.u64(self.done);
        out.optional(self.stopped.as_deref().map(|why| cut(why, TEXT_MAX)).as_ref(), |out, why| text(out, why));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(PullReply {
            verifier: Verifier(input.fixed()?),
            stable: input.bool()?,
            size: input.u64()?,
            done: input.u64()?,
            stopped: input.optional(|input| take_text(input, TEXT_MAX))?,
        })
    }
}
