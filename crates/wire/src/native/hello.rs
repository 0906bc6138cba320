//! HELLO: the first request of a connection, which names its session and agrees on how to talk. PROVE, the second one, opens the session.

use types::limits::PAYLOAD_MAX;
use types::{Fsid, IodId, Verifier};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Proof, REVISIONS, TEXT_MAX, Ticket, cut, take_text, text};

/// Most addresses of a data server.
pub const ADDRESSES_MAX: usize = 16;

/// Whose a connection is, and which of his it replaces. An iod that is told so ends all connections of the same owner
/// with smaller incarnations, and answers PROVE when nothing that came over them is under way or can be any more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Origin {
    /// Who connects: random bytes that nobody else knows, the same in all connections that shall replace one another.
    pub owner: [u8; 16],
    /// Rises with each connection that replaces the earlier ones; connections with the same one live side by side.
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

/// What a client brings and wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HelloArgs {
    /// File system of its ticket.
    pub fsid: Fsid,
    /// Number of the session that it opens.
    pub session: u64,
    /// When its ticket ends, in Unix seconds.
    pub expires: u64,
    /// Random bytes, for the iod to prove itself over. (Revision 1 has the authenticator of the ticket here.)
    pub nonce: [u8; 32],
    /// Oldest revision that it speaks.
    pub min_version: u32,
    /// Newest revision that it speaks.
    pub max_version: u32,
    /// Whether payloads shall carry checksums.
    pub checksums: bool,
    /// Largest payload in bytes that it will send or take.
    pub max_payload: u32,
}

/// What revision 1 has at the end of [`HelloArgs`], an [`Origin`]: zeros from revision 2 on, and not looked at.
const OLD_ORIGIN: usize = 24;

impl HelloArgs {
    /// That of whoever has this ticket, takes whole payloads and speaks every revision of this build.
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

/// How a client proves that it has the ticket of the session that it named in HELLO. Only who has proven to be the iod gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProveArgs {
    /// Whose the connection is.
    pub origin: Origin,
    /// What the client proves itself with ([`Ticket::check`]).
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

/// Where a client of the same host reaches the iod without TCP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local {
    /// The boot id of the iod's host (`/proc/sys/kernel/random/boot_id`): equal means the same host.
    pub host: String,
    /// Path of its Unix socket.
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

/// Who the iod is and what was agreed on. Any peer receives it that knows the file system's id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HelloReply {
    /// The iod.
    pub iod: IodId,
    /// Its file system.
    pub fsid: Fsid,
    /// Its write verifier.
    pub verifier: Verifier,
    /// The revision both will use.
    pub version: u32,
    /// Whether payloads carry checksums on this connection.
    pub checksums: bool,
    /// Largest payload in bytes on this connection.
    pub max_payload: u32,
    /// Most extents in one request.
    pub max_extents: u32,
    /// Random bytes, for the client to prove itself over.
    pub nonce: [u8; 32],
    /// What the iod proves itself with ([`Ticket::answer`]).
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

/// What an iod says of itself to clients that have proven to have a ticket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProveReply {
    /// The way in for clients of the same host, when there is one.
    pub local: Option<Local>,
    /// Where clients of the files layout reach the same objects by NFS, `host:port` or `[host]:port`, in order of preference;
    /// a host of `0.0.0.0` or `[::]` stands for the one that the iod is reached at. Empty when it serves no NFS.
    pub data_server: Vec<String>,
    /// Name and version of the software, for people.
    pub software: String,
    /// Shows that nobody has changed this on its way ([`Ticket::seal`]).
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
