//! HELLO and PROVE: the first two requests of a connection, which name its session, agree on options, and open the
//! session.

use types::limits::PAYLOAD_MAX;
use types::{Fsid, IodId, Verifier};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Proof, REVISIONS, TEXT_MAX, Ticket, cut, take_text, text};

/// Maximum number of addresses of a data server.
pub const ADDRESSES_MAX: usize = 16;

/// The owner of a connection, and its incarnation. When an iod learns the origin of a connection, it closes all
/// connections of the same owner with smaller incarnations. The iod replies to PROVE when no request of the closed
/// connections is in progress or can still start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Origin {
    /// The owner: random bytes that only the owner knows, the same in all connections that replace one another.
    pub owner: [u8; 16],
    /// Grows with each connection that replaces the earlier ones. Connections with equal incarnations coexist.
    pub incarnation: u64,
}

impl Xdr for Origin {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.owner);
        out.u64(self.incarnation);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Origin { owner: input.fixed()?, incarnation: input.u64()? })
    }
}

/// The ticket data and options that a client sends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HelloArgs {
    /// File system of the ticket.
    pub fsid: Fsid,
    /// Number of the session to open.
    pub session: u64,
    /// Expiry of the ticket, in Unix seconds.
    pub expires: u64,
    /// Random bytes that the iod's proof covers. (Revision 1 has the MAC of the ticket here.)
    pub nonce: [u8; 32],
    /// Oldest revision that the client speaks.
    pub min_version: u32,
    /// Newest revision that the client speaks.
    pub max_version: u32,
    /// Whether payloads carry checksums.
    pub checksums: bool,
    /// Largest payload in bytes that the client sends or accepts.
    pub max_payload: u32,
}

/// Length of the [`Origin`] at the end of [`HelloArgs`] in revision 1. From revision 2 the bytes are zeros and are
/// ignored.
const OLD_ORIGIN: usize = 24;

impl HelloArgs {
    /// Returns the arguments of a client with this ticket that accepts the largest payload and speaks every revision of
    /// this build.
    pub fn new(ticket: &Ticket, nonce: [u8; 32], checksums: bool) -> Self {
        HelloArgs {
            fsid: ticket.fsid,
            session: ticket.session,
            expires: ticket.expires,
            nonce,
            min_version: *REVISIONS.start(),
            max_version: *REVISIONS.end(),
            checksums,
            max_payload: PAYLOAD_MAX as u32,
        }
    }
}

impl Xdr for HelloArgs {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.fsid.0);
        out.u64(self.session);
        out.u64(self.expires);
        out.fixed(&self.nonce);
        out.u32(self.min_version);
        out.u32(self.max_version);
        out.bool(self.checksums);
        out.u32(self.max_payload);
        out.fixed(&[0; OLD_ORIGIN]);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let args = HelloArgs {
            fsid: Fsid(input.fixed()?),
            session: input.u64()?,
            expires: input.u64()?,
            nonce: input.fixed()?,
            min_version: input.u32()?,
            max_version: input.u32()?,
            checksums: input.bool()?,
            max_payload: input.u32()?,
        };
        let _: [u8; OLD_ORIGIN] = input.fixed()?;
        Ok(args)
    }
}

/// The client's proof that it has the ticket of the session named in HELLO. The client sends it only to a peer that has
/// proved to be the iod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProveArgs {
    /// The owner of the connection.
    pub origin: Origin,
    /// The proof of the client ([`Ticket::check`]).
    pub proof: Proof,
}

impl Xdr for ProveArgs {
    fn encode(&self, out: &mut Writer) {
        self.origin.encode(out);
        self.proof.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ProveArgs { origin: Origin::decode(input)?, proof: Proof::decode(input)? })
    }
}

/// The Unix socket over which a client of the same host reaches the daemon without TCP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local {
    /// The boot id of the daemon's host (`/proc/sys/kernel/random/boot_id`). Equal boot ids mean the same host.
    pub host: String,
    /// Path of the Unix socket.
    pub path: String,
}

impl Xdr for Local {
    fn encode(&self, out: &mut Writer) {
        text(out, cut(&self.host, TEXT_MAX));
        text(out, cut(&self.path, TEXT_MAX));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Local { host: take_text(input, TEXT_MAX)?, path: take_text(input, TEXT_MAX)? })
    }
}

/// The identity of the iod, and the agreed options. Any peer that knows the id of the file system receives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HelloReply {
    /// The iod.
    pub iod: IodId,
    /// The file system.
    pub fsid: Fsid,
    /// The write verifier of the iod.
    pub verifier: Verifier,
    /// The revision that both sides use from now on.
    pub version: u32,
    /// Whether payloads carry checksums on this connection.
    pub checksums: bool,
    /// Largest payload in bytes on this connection.
    pub max_payload: u32,
    /// Maximum number of extents in one request.
    pub max_extents: u32,
    /// Random bytes that the client's proof covers.
    pub nonce: [u8; 32],
    /// The proof of the iod ([`Ticket::answer`]).
    pub proof: Proof,
}

impl Xdr for HelloReply {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.iod.0);
        out.fixed(&self.fsid.0);
        out.fixed(&self.verifier.0);
        out.u32(self.version);
        out.bool(self.checksums);
        out.u32(self.max_payload);
        out.u32(self.max_extents);
        out.fixed(&self.nonce);
        self.proof.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(HelloReply {
            iod: IodId(input.fixed()?),
            fsid: Fsid(input.fixed()?),
            verifier: Verifier(input.fixed()?),
            version: input.u32()?,
            checksums: input.bool()?,
            max_payload: input.u32()?,
            max_extents: input.u32()?,
            nonce: input.fixed()?,
            proof: Proof::decode(input)?,
        })
    }
}

/// The description that an iod sends to clients that have proved to have a ticket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProveReply {
    /// The Unix socket for clients of the same host, if there is one.
    pub local: Option<Local>,
    /// Addresses at which clients of the files layout reach the same objects by NFS, `host:port` or `[host]:port`, in
    /// order of preference. A host of `0.0.0.0` or `[::]` stands for the host at which the iod is reached. Empty if the
    /// iod serves no NFS.
    pub data_server: Vec<String>,
    /// Name and version of the software, for people.
    pub software: String,
    /// Proof that the reply was not changed in transit ([`Ticket::seal`]).
    pub proof: Proof,
}

impl Xdr for ProveReply {
    fn encode(&self, out: &mut Writer) {
        out.optional(self.local.as_ref(), |out, local| local.encode(out));
        out.array(&self.data_server, |out, address| text(out, cut(address, TEXT_MAX)));
        text(out, cut(&self.software, TEXT_MAX));
        self.proof.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ProveReply {
            local: input.optional(Local::decode)?,
            data_server: input.array(ADDRESSES_MAX, |input| take_text(input, TEXT_MAX))?,
            software: take_text(input, TEXT_MAX)?,
            proof: Proof::decode(input)?,
        })
    }
}
