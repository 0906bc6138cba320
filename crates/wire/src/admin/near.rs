//! NEAR: where a client of the same machine reaches the daemon without TCP.

use super::{put_text, take_text};
use crate::native::Local;
use xdr::{Malformed, Reader, Writer, Xdr};

/// Arguments of NEAR.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NearArgs {
    /// The client's own end of the connection, `host:port`; empty over a Unix socket. Whoever is seen at another address comes by
    /// somebody in between, whom it is not for the daemon to go round.
    pub from: String,
}

/// Results of NEAR.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NearReply {
    /// A random number of this run of the daemon: whoever answers with it at the socket is the same. Told there, and to whom the
    /// socket is told; others get 0.
    pub run: u64,
    /// The Unix socket, if it is one for this client.
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
