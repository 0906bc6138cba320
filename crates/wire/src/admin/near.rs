//! NEAR: returns the Unix socket over which a client of the same machine reaches the daemon without TCP.

use super::{put_text, take_text};
use crate::native::Local;
use xdr::{Malformed, Reader, Writer, Xdr};

/// Arguments of NEAR.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NearArgs {
    /// The client's own address of the connection, `host:port`; empty over a Unix socket. If the daemon sees another
    /// address, a proxy or NAT is between them, and the daemon must not bypass it.
    pub from: String,
}

/// Results of NEAR.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NearReply {
    /// A random number of this run of the daemon. A client recognizes the daemon at the socket by the same number. The
    /// daemon sends it over the socket and to clients that receive the socket's path; other clients receive 0.
    pub run: u64,
    /// The Unix socket, if this client may use one.
    pub local: Option<Local>,
}

impl Xdr for NearArgs {
    fn encode(&self, out: &mut Writer) {
        put_text(out, &self.from);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(NearArgs { from: take_text(input)? })
    }
}

impl Xdr for NearReply {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.run);
        out.optional(self.local.as_ref(), |out, local| local.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(NearReply { run: input.u64()?, local: input.optional(Local::decode)? })
    }
}
