//! HELLO and PROVE: the first two requests of a connection to an iod. HELLO names the session and negotiates the
//! options of the connection. PROVE authenticates the client and opens the session.

use types::limits::PAYLOAD_MAX;
use types::{Fsid, IodId, Verifier};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Proof, REVISIONS, TEXT_MAX, Ticket, cut, take_text, text};

/// Maximum number of NFS addresses in a reply to PROVE.
pub const ADDRESSES_MAX: usize = 16;

/// The owner of a connection, and its incarnation.
///
/// When the iod receives PROVE, it closes all other connections of the same owner with a smaller incarnation. The iod
/// replies to PROVE when no request of the closed connections is in progress. After this reply, the iod executes no
/// request of the closed connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Origin {
    /// The owner of the connection: bytes that no other client can guess. Connections that replace one another have
    /// the same owner.
    pub owner: [u8; 16],
    /// The incarnation of the connection. A connection replaces the connections of the same owner that have a smaller
    /// incarnation. Connections with equal incarnations do not replace each other.
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

/// Arguments of HELLO: the public fields of a ticket, and the options that the client proposes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HelloArgs {
    /// File system that the ticket names.
    pub fsid: Fsid,
    /// Number of the session that the ticket names, which PROVE will open.
    pub session: u64,
    /// Expiry of the ticket, as Unix time in seconds.
    pub expires: u64,
    /// Random bytes of the client, which the iod's proof covers. (In revision 1 this field is the MAC of the ticket.)
    pub nonce: [u8; 32],
    /// Oldest revision of the protocol that the client speaks.
    pub min_version: u32,
    /// Newest revision of the protocol that the client speaks.
    pub max_version: u32,
    /// Whether the client wants payloads to carry checksums.
    pub checksums: bool,
    /// Size in bytes of the largest payload that the client sends or accepts.
    pub max_payload: u32,
}

/// Length in bytes of the [`Origin`] at the end of a revision 1 [`HelloArgs`]. From revision 2 on, the sender fills
/// these bytes with zeros and the receiver ignores them.
const OLD_ORIGIN: usize = 24;

impl HelloArgs {
    /// Returns the arguments of HELLO for a client with this ticket. The client accepts the largest payload and all
    /// revisions of this build.
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

/// Arguments of PROVE: the client's proof that it has the ticket named in HELLO. The client sends its proof only after
/// the iod has proved its own identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProveArgs {
    /// The owner and the incarnation of this connection, by which the iod finds and closes the connections that this
    /// connection replaces.
    pub origin: Origin,
    /// The proof of the client, which [`Ticket::check`] computes.
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

/// The Unix socket over which a client on the same host reaches a daemon without TCP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local {
    /// The boot id of the daemon's host (`/proc/sys/kernel/random/boot_id`). A client with the same boot id is on the
    /// same host.
    pub host: String,
    /// Path of the Unix socket on the daemon's host.
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

/// Result of HELLO: the identity of the iod, and the options of the connection. The iod sends this result, before any
/// authentication, to every peer that knows the id of the file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HelloReply {
    /// Id of the iod that replies.
    pub iod: IodId,
    /// Id of the file system that the session uses.
    pub fsid: Fsid,
    /// The write verifier of the iod, which changes at each start of the iod, because unstable writes may then be
    /// lost.
    pub verifier: Verifier,
    /// The revision of the protocol that client and iod use on this connection.
    pub version: u32,
    /// Whether payloads on this connection carry checksums.
    pub checksums: bool,
    /// Size in bytes of the largest payload on this connection.
    pub max_payload: u32,
    /// Maximum number of extents in one request on this connection.
    pub max_extents: u32,
    /// Random bytes of the iod, which the client's proof covers.
    pub nonce: [u8; 32],
    /// The proof of the iod, which [`Ticket::answer`] computes.
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

/// Result of PROVE: a description of the iod, which only clients with a ticket get.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProveReply {
    /// The iod's Unix socket for clients on the same host; `None` if the iod has no Unix socket.
    pub local: Option<Local>,
    /// Addresses at which clients of the files layout reach the objects of the iod by NFS, as `host:port` or
    /// `[host]:port`, in order of preference. The host `0.0.0.0` or `[::]` stands for the host under which the mgr
    /// reaches the iod. Empty if the iod serves no NFS.
    pub data_server: Vec<String>,
    /// Name and version of the iod's software, for people.
    pub software: String,
    /// The proof of the iod, which covers this reply; [`Ticket::seal`] computes it.
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
