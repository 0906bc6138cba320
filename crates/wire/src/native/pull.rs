//! PULL: an iod copies bytes of an object of another iod, or of its own, into one of its objects.

use types::limits::EXTENTS_MAX;
use types::{IodId, Verifier};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::hello::ADDRESSES_MAX;
use super::{Capability, TEXT_MAX, Ticket, cut, take_text, text};

/// The session of iods that read from others on behalf of the mgr; that of no client.
pub const PULL_SESSION: u64 = u64::MAX;

/// Most bytes of one PULL, so that none takes long.
pub const PULL_MAX: u64 = 4 << 20;

/// A stretch of bytes to copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PullExtent {
    /// Its first byte in the object that is read.
    pub from: u64,
    /// Its first byte in the object that is written.
    pub to: u64,
    /// Number of bytes.
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

/// What is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullSource {
    /// Names the object; gives READ to [`PULL_SESSION`].
    pub cap: Capability,
    /// Opens [`PULL_SESSION`] at that iod.
    pub ticket: Ticket,
    /// The iod that has it; the one that is asked itself, if it is that.
    pub iod: IodId,
    /// Where that is reached by TCP, `address:port` with numeric addresses, in order of preference.
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
    /// Names the object that is written; needs WRITE.
    pub cap: Capability,
    /// Whether the bytes must be durable before the answer.
    pub stable: bool,
    /// What is read.
    pub source: PullSource,
    /// What to copy, at most `EXTENTS_MAX`, together at most [`PULL_MAX`] bytes; done in this order.
    pub extents: Vec<PullExtent>,
}

impl PullArgs {
    /// Bytes to copy in all.
    pub fn len(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.len)).sum()
    }

    /// Whether there is nothing to copy.
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
    /// As that of a WRITE.
    pub verifier: Verifier,
    /// Whether the bytes that were copied are durable now.
    pub stable: bool,
    /// Size of the object that was written afterwards.
    pub size: u64,
    /// How many bytes of the extents were copied, from the front of the first one on.
    pub done: u64,
    /// Why the others could not be read, for people; none when all were copied. Cut to [`TEXT_MAX`] bytes when sent.
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
