//! Capabilities and session tickets: rights that the mgr signs for one iod and that the iod checks without asking
//! another server.

use std::fmt;
use std::ops::BitOr;

use types::{FileId, Fsid, Generation, IodId, ObjectId, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{HelloArgs, HelloReply, Origin, ProveArgs, ProveReply, put_object, take_object};

/// First byte under the MAC of a capability. Tickets have another first byte, so that an iod accepts neither a ticket
/// as a capability nor a capability as a ticket.
const DOMAIN_CAPABILITY: u8 = 1;
const DOMAIN_TICKET: u8 = 2;
/// First byte under the MAC of an id that only holders of the secret can compute ([`Key::derived_id`]).
const DOMAIN_ID: u8 = 3;
/// First byte under the MAC of a filehandle of data servers.
const DOMAIN_DATA_HANDLE: u8 = 4;
/// First byte under the MAC of a filehandle of the mgr.
const DOMAIN_FILE_HANDLE: u8 = 5;
/// First byte under the MAC from which the secret of a single iod is derived.
const DOMAIN_IOD: u8 = 6;
/// First byte under the MAC of the proofs that both sides of a connection send.
const DOMAIN_IOD_PROOF: u8 = 7;
const DOMAIN_CLIENT_PROOF: u8 = 8;
const DOMAIN_TOLD_PROOF: u8 = 9;

/// The object id that means the whole store, for instance in capabilities for LIST. No file has this id.
pub const STORE_OBJECT: ObjectId = ObjectId::stream_0(FileId(0));

/// The secret that the mgr and the iods of a cluster share. Never printed.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// Returns the secret with these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Key(bytes)
    }

    /// Derives the secret of one iod. A signature with it is valid on that iod only.
    pub fn of_iod(&self, iod: IodId) -> IodKey {
        let mut of = [DOMAIN_IOD; 17];
        of[1..].copy_from_slice(&iod.0);
        IodKey(*blake3::keyed_hash(&self.0, &of).as_bytes())
    }

    /// Returns the MAC of a filehandle of the mgr.
    pub fn file_handle_mac(&self, signed: &[u8]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[DOMAIN_FILE_HANDLE]).update(signed);
        let mut mac = [0; 16];
        hasher.finalize_xof().fill(&mut mac);
        mac
    }

    /// Returns whether `mac` is [`Key::file_handle_mac`] of `signed`. Compares in constant time.
    pub fn is_file_handle_mac(&self, signed: &[u8], mac: &[u8]) -> bool {
        let genuine = self.file_handle_mac(signed);
        mac.len() == genuine.len() && genuine.iter().zip(mac).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
    }

    /// Derives an id from `of`: the same input gives the same id, and only holders of the secret can compute it. Used
    /// for owners of connections ([`Origin`]) and for devices.
    pub fn derived_id(&self, of: &[u8]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[DOMAIN_ID]).update(of);
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        id
    }
}

/// The secret of one iod, derived from the secret of the cluster. Never printed.
#[derive(Clone)]
pub struct IodKey([u8; 32]);

impl IodKey {
    /// Signs a capability for one object. `expires` is in Unix seconds, `session` is the number from the ticket.
    pub fn sign_capability(
        &self,
        fsid: Fsid,
        object: ObjectId,
        generation: Generation,
        rights: Rights,
        expires: u64,
        session: u64,
    ) -> Capability {
        let mut cap = Capability { fsid, object, generation, rights, expires, session, mac: [0; 32] };
        cap.mac = *cap.authenticator(self).as_bytes();
        cap
    }

    /// Makes a ticket for session number `session`. It is valid for HELLO before `expires` (Unix seconds).
    pub fn ticket(&self, fsid: Fsid, session: u64, expires: u64) -> Ticket {
        let mut signed = [0u8; 33];
        signed[0] = DOMAIN_TICKET;
        signed[1..17].copy_from_slice(&fsid.0);
        signed[17..25].copy_from_slice(&session.to_be_bytes());
        signed[25..33].copy_from_slice(&expires.to_be_bytes());
        Ticket { fsid, session, expires, secret: *blake3::keyed_hash(&self.0, &signed).as_bytes() }
    }

    /// Returns the MAC of a filehandle of a data server.
    pub(super) fn data_handle_mac(&self, signed: &[u8]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[DOMAIN_DATA_HANDLE]).update(signed);
        let mut mac = [0; 16];
        hasher.finalize_xof().fill(&mut mac);
        mac
    }
}

impl fmt::Debug for IodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// The set of operations that a capability allows, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rights(pub u32);

impl Rights {
    /// READ, SIZE, SEEK, LEND, and the object that PULL reads.
    pub const READ: Rights = Rights(1);
    /// WRITE, COMMIT, TRUNCATE, PUNCH, RESERVE, and the object that PULL writes.
    pub const WRITE: Rights = Rights(2);
    /// REMOVE, FENCE, and LIST when the object is [`STORE_OBJECT`]. Only for the mgr.
    pub const ADMIN: Rights = Rights(4);

    /// Returns whether all rights in `needed` are present.
    pub fn contains(self, needed: Rights) -> bool {
        self.0 & needed.0 == needed.0
    }
}

impl BitOr for Rights {
    type Output = Rights;
    fn bitor(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }
}

/// The right of one session to use one object until a fixed time.
#[derive(Clone, PartialEq, Eq)]
pub struct Capability {
    /// File system of the object.
    pub fsid: Fsid,
    /// The object.
    pub object: ObjectId,
    /// Fencing generation in which the mgr issued the capability.
    pub generation: Generation,
    /// The allowed operations.
    pub rights: Rights,
    /// Unix time in seconds from which the iod refuses the capability.
    pub expires: u64,
    /// The session that may use the capability.
    pub session: u64,
    /// Keyed BLAKE3 over all of the above.
    pub mac: [u8; 32],
}

impl Capability {
    fn authenticator(&self, key: &IodKey) -> blake3::Hash {
        let mut signed = [0u8; 53];
        signed[0] = DOMAIN_CAPABILITY;
        signed[1..17].copy_from_slice(&self.fsid.0);
        signed[17..25].copy_from_slice(&self.object.file.0.to_be_bytes());
        signed[25..29].copy_from_slice(&self.object.stream.to_be_bytes());
        signed[29..33].copy_from_slice(&self.generation.0.to_be_bytes());
        signed[33..37].copy_from_slice(&self.rights.0.to_be_bytes());
        signed[37..45].copy_from_slice(&self.expires.to_be_bytes());
        signed[45..53].copy_from_slice(&self.session.to_be_bytes());
        blake3::keyed_hash(&key.0, &signed)
    }

    /// Checks that the capability is genuine for this iod and file system, belongs to `session`, is valid at `now`
    /// (Unix seconds), and grants all of `needed`.
    ///
    /// The caller must compare the generation with that of the object.
    ///
    /// # Errors
    /// `CapExpired` for a genuine capability that has expired, `CapRefused` for everything else.
    pub fn verify(&self, key: &IodKey, fsid: Fsid, now: u64, session: u64, needed: Rights) -> Result<(), Status> {
        // `blake3::Hash` compares in constant time.
        if self.authenticator(key) != blake3::Hash::from_bytes(self.mac) {
            return Err(Status::CapRefused);
        }
        if now >= self.expires {
            return Err(Status::CapExpired);
        }
        if self.fsid != fsid || self.session != session || !self.rights.contains(needed) {
            return Err(Status::CapRefused);
        }
        Ok(())
    }
}

/// Shows everything but the authenticator, which would let a reader of logs use the capability.
impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capability")
            .field("fsid", &self.fsid)
            .field("object", &self.object)
            .field("generation", &self.generation)
            .field("rights", &self.rights)
            .field("expires", &self.expires)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl Xdr for Capability {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.fsid.0);
        put_object(out, self.object);
        out.u32(self.generation.0);
        out.u32(self.rights.0);
        out.u64(self.expires);
        out.u64(self.session);
        out.fixed(&self.mac);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Capability {
            fsid: Fsid(input.fixed()?),
            object: take_object(input)?,
            generation: Generation(input.u32()?),
            rights: Rights(input.u32()?),
            expires: input.u64()?,
            session: input.u64()?,
            mac: input.fixed()?,
        })
    }
}

/// The right to open a session on one iod; the client receives it from the mgr with the device address.
///
/// The client never sends the secret to the iod. The iod derives the secret from the other fields and its own key. So
/// each side proves to the other that it knows the secret, and a third party that answers or listens learns nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// File system of the session.
    pub fsid: Fsid,
    /// Number of the session; its capabilities carry the same number.
    pub session: u64,
    /// Unix time in seconds from which the ticket opens no session.
    pub expires: u64,
    /// Keyed BLAKE3 over all of the above.
    secret: [u8; 32],
}

impl Ticket {
    fn proof(&self, domain: u8, said: &Said, more: &[u8]) -> Proof {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&[domain]).update(&said.0).update(more);
        Proof(*hasher.finalize().as_bytes())
    }

    fn client_proof(&self, said: &Said, origin: &Origin) -> Proof {
        self.proof(DOMAIN_CLIENT_PROOF, said, &origin.to_bytes())
    }

    /// Puts the iod's proof into its reply to HELLO. Returns the digest over which the client must prove itself.
    pub fn answer(&self, args: &HelloArgs, reply: &mut HelloReply) -> Said {
        reply.proof = Proof::default();
        let said = Said::of(args, reply);
        reply.proof = self.proof(DOMAIN_IOD_PROOF, &said, &[]);
        said
    }

    /// Checks that a reply to HELLO comes from the iod of the ticket. Returns the arguments of PROVE for the client of
    /// this connection.
    ///
    /// # Errors
    /// `CapRefused`: the sender of the reply does not know the secret of that iod.
    pub fn check(&self, args: &HelloArgs, reply: &HelloReply, origin: Origin) -> Result<ProveArgs, Status> {
        let mut genuine = reply.clone();
        let said = self.answer(args, &mut genuine);
        if !genuine.proof.is(&reply.proof) {
            return Err(Status::CapRefused);
        }
        Ok(ProveArgs { origin, proof: self.client_proof(&said, &origin) })
    }

    /// Puts the iod's proof into its reply to PROVE.
    pub fn seal(&self, said: &Said, reply: &mut ProveReply) {
        reply.proof = Proof::default();
        reply.proof = self.proof(DOMAIN_TOLD_PROOF, said, &reply.to_bytes());
    }

    /// Checks that a reply to PROVE comes from the iod that sent the reply `hello` to HELLO.
    ///
    /// # Errors
    /// `CapRefused`: the proof does not match.
    pub fn check_told(&self, args: &HelloArgs, hello: &HelloReply, told: &ProveReply) -> Result<(), Status> {
        let said = self.answer(args, &mut hello.clone());
        let mut genuine = told.clone();
        self.seal(&said, &mut genuine);
        if genuine.proof.is(&told.proof) { Ok(()) } else { Err(Status::CapRefused) }
    }

    /// Returns whether the client that sent `args` after the HELLO exchange `said` has the ticket.
    pub fn is_proven(&self, said: &Said, args: &ProveArgs) -> bool {
        self.client_proof(said, &args.origin).is(&args.proof)
    }
}

/// A digest of both messages of HELLO. The proof in the reply counts as zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said([u8; 32]);

impl Said {
    fn of(args: &HelloArgs, reply: &HelloReply) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in [args.to_bytes(), reply.to_bytes()] {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(&part);
        }
        Said(*hasher.finalize().as_bytes())
    }
}

/// The value with which one side of a connection proves that it knows the secret of the ticket.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof(pub [u8; 32]);

impl Proof {
    /// Returns whether both proofs are equal. Compares in constant time.
    pub fn is(&self, other: &Proof) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

/// Prints no part of the proof.
impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[proof]")
    }
}

impl Xdr for Proof {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.0);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        input.fixed().map(Proof)
    }
}

/// Shows everything but the secret.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("fsid", &self.fsid)
            .field("session", &self.session)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl Xdr for Ticket {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.fsid.0);
        out.u64(self.session);
        out.u64(self.expires);
        out.fixed(&self.secret);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Ticket { fsid: Fsid(input.fixed()?), session: input.u64()?, expires: input.u64()?, secret: input.fixed()? })
    }
}
