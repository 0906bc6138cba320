//! LOCAL_SOCKET: returns the Unix socket over which a client on the same machine can reach the daemon without TCP.

use super::{put_text, take_text};
use crate::native::Local;
use xdr::{Malformed, Reader, Writer, Xdr};

/// Arguments of LOCAL_SOCKET.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LocalSocketArgs {
    /// The address of the client's end of this connection, as the client sees it (`host:port`); empty over a Unix
    /// socket. If the daemon sees another address of the client, a proxy or NAT is between the daemon and the client.
    /// In this case, the daemon does not return the path of its Unix socket.
    pub from: String,
}

/// Results of LOCAL_SOCKET.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LocalSocketReply {
    /// A random number that the daemon chooses at each start; 0 for clients that may not use the Unix socket. A client
    /// that has connected over the Unix socket calls LOCAL_SOCKET a second time over this socket. If both calls return
    /// the same number, both connections lead to the same daemon.
    pub run: u64,
    /// The daemon's Unix socket; `None` if this client may not use the socket.
    pub local: Option<Local>,
}

impl Xdr for LocalSocketArgs {
    fn encode(&self, out: &mut Writer) {
        put_text(out, &self.from);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LocalSocketArgs { from: take_text(input)? })
    }
}

impl Xdr for LocalSocketReply {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.run);
        out.optional(self.local.as_ref(), |out, local| local.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LocalSocketReply { run: input.u64()?, local: input.optional(Local::decode)? })
    }
}
