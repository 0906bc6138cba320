//! HELLO: the first request of a connection, which opens its session and agrees on how to talk.

use types::{Fsid, IodId, Verifier};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{TEXT_MAX, Ticket, cut, take_text, text};

/// Most addresses of a data server.
pub const ADDRESSES_MAX: usize = 16;

/// Whose a connection is, and which of his it replaces. An iod that is told so ends all connections of the same owner
/// with smaller incarnations, and answers HELLO when nothing that came over them is under way or can be any more.
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
    /// Its session.
    pub ticket: Ticket,
    /// Oldest revision that it speaks.
    pub min_version: u32,
    /// Newest revision that it speaks.
    pub max_version: u32,
    /// Whether payloads shall carry checksums.
    pub checksums: bool,
    /// Largest payload in bytes that it will send or take.
    pub max_payload: u32,
    /// Whose the connection is.
    pub origin: Origin,
}

impl Xdr for HelloArgs {
    fn encode(&self, out: &mut Writer) {
        self.ticket.encode(out);
        out.u32(self.min_version);
        out.u32(self.max_version);
        out.bool(self.checksums);
        out.u32(self.max_payload);
        self.origin.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(HelloArgs {
            ticket: Ticket::decode(input)?,
            min_version: input.u32()?,
            max_version: input.u32()?,
            checksums: input.bool()?,
            max_payload: input.u32()?,
            origin: Origin::decode(input)?,
        })
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

/// Who the iod is and what was agreed on.
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
    /// The way in for clients of the same host, when there is one.
    pub local: Option<Local>,
    /// Where clients of the files layout reach the same objects by NFS, `host:port` or `[host]:port`, in order of preference;
    /// a host of `0.0.0.0` or `[::]` stands for the one that the iod is reached at. Empty when it serves no NFS.
    pub data_server: Vec<String>,
    /// Name and version of the software, for people.
    pub software: String,
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
        out.optional(self.local.as_ref(), |out, local| local.encode(out));
        out.array(&self.data_server, |out, address| text(out, cut(address, TEXT_MAX)));
        text(out, cut(&self.software, TEXT_MAX));
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
            local: input.optional(Local::decode)?,
            data_server: input.array(ADDRESSES_MAX, |input| take_text(input, TEXT_MAX))?,
            software: take_text(input, TEXT_MAX)?,
        })
    }
}
