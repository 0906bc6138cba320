//! Capabilities and session tickets: rights that the mgr signs for one iod, and that the iod checks without a request
//! to the mgr.

use std::fmt;
use std::ops::BitOr;

use types::{FileId, Fsid, Generation, INDEX_STREAM, IodId, ObjectId, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{HelloArgs, HelloReply, Origin, ProveArgs, ProveReply, put_object, take_object};

/// First byte of the input of a capability's MAC. A ticket's MAC has another first byte, so that an iod accepts neither
/// a ticket as a capability nor a capability as a ticket.
const DOMAIN_CAPABILITY: u8 = 1;
const DOMAIN_TICKET: u8 = 2;
/// First byte of the input of [`Key::derived_id`], whose output only holders of the cluster's secret can compute.
const DOMAIN_ID: u8 = 3;
/// First byte of the input of the MAC of a data server's filehandle.
const DOMAIN_DATA_HANDLE: u8 = 4;
/// First byte of the input of the MAC of the mgr's filehandles.
const DOMAIN_FILE_HANDLE: u8 = 5;
/// First byte of the input from which the secret of one iod is derived.
const DOMAIN_IOD: u8 = 6;
/// First byte of the MAC input of the iod's proof in the reply to HELLO. The MAC inputs of the other two proofs (in
/// PROVE and in its reply) begin with other bytes, so that a proof in one message is not valid in another message.
const DOMAIN_IOD_PROOF: u8 = 7;
const DOMAIN_CLIENT_PROOF: u8 = 8;
const DOMAIN_TOLD_PROOF: u8 = 9;

/// The object id by which a capability names the whole store, for instance a capability for LIST. No file has this id.
pub const STORE_OBJECT: ObjectId = ObjectId::stream_0(FileId(0));

/// The secret that the mgr and the iods of a cluster share. Its `Debug` output does not contain the secret.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// Returns the secret that consists of these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Key(bytes)
    }

    /// Derives the secret of one iod. Tickets and capabilities that are signed with this secret are valid on this iod
    /// only.
    pub fn of_iod(&self, iod: IodId) -> IodKey {
        let mut of = [DOMAIN_IOD; 17];
        of[1..].copy_from_slice(&iod.0);
        IodKey(*blake3::keyed_hash(&self.0, &of).as_bytes())
    }

    /// Returns the MAC of a filehandle of the mgr, for the bytes `signed`.
    pub fn file_handle_mac(&self, signed: &[u8]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[DOMAIN_FILE_HANDLE]).update(signed);
        let mut mac = [0; 16];
        hasher.finalize_xof().fill(&mut mac);
        mac
    }

    /// Returns whether `mac` equals [`Key::file_handle_mac`] of `signed`. Compares in constant time, so that the
    /// duration reveals nothing about the right MAC.
    pub fn is_file_handle_mac(&self, signed: &[u8], mac: &[u8]) -> bool {
        let genuine = self.file_handle_mac(signed);
        mac.len() == genuine.len() && genuine.iter().zip(mac).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
    }

    /// Derives an id from the bytes `of`. Equal bytes give equal ids, and only holders of the secret can compute the
    /// id. Callers derive, for instance, the ids of connection owners ([`Origin`]) and of pNFS devices.
    pub fn derived_id(&self, of: &[u8]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[DOMAIN_ID]).update(of);
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        id
    }
}

/// The secret of one iod, derived from the secret of the cluster. Its `Debug` output does not contain the secret.
#[derive(Clone)]
pub struct IodKey([u8; 32]);

impl IodKey {
    /// Signs a capability for one object. `expires` is Unix time in seconds; `session` is the session number in the
    /// client's ticket.
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

    /// Makes a ticket for session number `session`. A HELLO with this ticket is valid before `expires` (Unix time in
    /// seconds).
    pub fn ticket(&self, fsid: Fsid, session: u64, expires: u64) -> Ticket {
        let mut signed = [0u8; 33];
        signed[0] = DOMAIN_TICKET;
        signed[1..17].copy_from_slice(&fsid.0);
        signed[17..25].copy_from_slice(&session.to_be_bytes());
        signed[25..33].copy_from_slice(&expires.to_be_bytes());
        Ticket { fsid, session, expires, secret: *blake3::keyed_hash(&self.0, &signed).as_bytes() }
    }

    /// Returns the MAC of a data server's filehandle.
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

/// The operations that a capability allows, as a set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rights(pub u32);

impl Rights {
    /// Allows READ, SIZE, SEEK, LEND and LOOKUP, and PULL from the object.
    pub const READ: Rights = Rights(1);
    /// Allows WRITE, COMMIT, TRUNCATE, PUNCH, RESERVE, OPEN_LOG and REGISTER, and PULL into the object.
    pub const WRITE: Rights = Rights(2);
    /// Allows REMOVE, REMOVE_LOGS and FENCE. With [`STORE_OBJECT`], allows the procedures about the whole store, for instance LIST.
    /// Only the mgr has this right.
    pub const ADMIN: Rights = Rights(4);

    /// Returns whether this set has all rights in `needed`.
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

/// The right of one session to use one object until a fixed time, signed by the mgr for one iod.
#[derive(Clone, PartialEq, Eq)]
pub struct Capability {
    /// File system of the object.
    pub fsid: Fsid,
    /// The object that the session may use. A capability for the index of a log file ([`INDEX_STREAM`]) is also valid
    /// with the stream of any data log of this file in its place.
    pub object: ObjectId,
    /// Generation of the file when the mgr signed the capability. After a fence, iods refuse older generations.
    pub generation: Generation,
    /// The operations that the session may use on the object.
    pub rights: Rights,
    /// Unix time in seconds from which the iod refuses the capability.
    pub expires: u64,
    /// Number of the session that may use the capability.
    pub session: u64,
    /// Keyed BLAKE3 hash over all other fields of the capability.
    pub mac: [u8; 32],
}

impl Capability {
    /// Returns the MAC of the capability. All data logs and the index of a file have the same MAC: a client that may
    /// write a log file may write any of its logs, and the index says where the bytes of each log are.
    fn authenticator(&self, key: &IodKey) -> blake3::Hash {
        let stream = if self.object.is_of_logs() { INDEX_STREAM } else { self.object.stream };
        let mut signed = [0u8; 53];
        signed[0] = DOMAIN_CAPABILITY;
        signed[1..17].copy_from_slice(&self.fsid.0);
        signed[17..25].copy_from_slice(&self.object.file.0.to_be_bytes());
        signed[25..29].copy_from_slice(&stream.to_be_bytes());
        signed[29..33].copy_from_slice(&self.generation.0.to_be_bytes());
        signed[33..37].copy_from_slice(&self.rights.0.to_be_bytes());
        signed[37..45].copy_from_slice(&self.expires.to_be_bytes());
        signed[45..53].copy_from_slice(&self.session.to_be_bytes());
        blake3::keyed_hash(&key.0, &signed)
    }

    /// Checks the MAC of the capability with the secret of this iod. Also checks the file system, the session, and the
    /// expiry at `now` (Unix time in seconds). The capability must grant all rights in `needed`.
    ///
    /// The caller must also compare the generation in the capability with the generation of the object.
    ///
    /// # Errors
    /// `CapExpired` for a genuine capability that has expired, `CapRefused` in all other cases.
    pub fn verify(&self, key: &IodKey, fsid: Fsid, now: u64, session: u64, needed: Rights) -> Result<(), Status> {
        // The comparison of `blake3::Hash` takes constant time, so the duration reveals nothing about the right MAC.
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

/// Omits the MAC from debug output, because a reader of logs could use a capability with its MAC.
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

/// The right to open a session on one iod. The client gets the ticket from the mgr, with the address of the iod.
///
/// The client never sends the secret of the ticket. The iod derives this secret from the public fields and from its own
/// secret. So client and iod can prove to each other that they know the secret, and an eavesdropper or an impostor does
/// not learn it.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// File system that the session uses.
    pub fsid: Fsid,
    /// Number of the session. Capabilities for this session carry the same number.
    pub session: u64,
    /// Unix time in seconds from which the iod refuses the ticket.
    pub expires: u64,
    /// The secret of the ticket: a keyed BLAKE3 hash over the other fields.
    secret: [u8; 32],
}

impl Ticket {
    fn proof(&self, domain: u8, transcript: &Transcript, more: &[u8]) -> Proof {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&[domain]).update(&transcript.0).update(more);
        Proof(*hasher.finalize().as_bytes())
    }

    fn client_proof(&self, transcript: &Transcript, origin: &Origin) -> Proof {
        self.proof(DOMAIN_CLIENT_PROOF, transcript, &origin.to_bytes())
    }

    /// Stores the iod's proof in its reply to HELLO. Returns the digest of the arguments and the reply of HELLO, which
    /// the client's proof must cover.
    pub fn answer(&self, args: &HelloArgs, reply: &mut HelloReply) -> Transcript {
        reply.proof = Proof::default();
        let transcript = Transcript::of(args, reply);
        reply.proof = self.proof(DOMAIN_IOD_PROOF, &transcript, &[]);
        transcript
    }

    /// Checks that the iod for which the mgr made this ticket has sent the reply to HELLO. Returns the arguments of
    /// PROVE, with the client's proof.
    ///
    /// # Errors
    /// `CapRefused` if the sender of the reply does not know the secret of the ticket.
    pub fn check(&self, args: &HelloArgs, reply: &HelloReply, origin: Origin) -> Result<ProveArgs, Status> {
        let mut genuine = reply.clone();
        let transcript = self.answer(args, &mut genuine);
        if !genuine.proof.is(&reply.proof) {
            return Err(Status::CapRefused);
        }
        Ok(ProveArgs { origin, proof: self.client_proof(&transcript, &origin) })
    }

    /// Stores the iod's proof in its reply to PROVE.
    pub fn seal(&self, transcript: &Transcript, reply: &mut ProveReply) {
        reply.proof = Proof::default();
        reply.proof = self.proof(DOMAIN_TOLD_PROOF, transcript, &reply.to_bytes());
    }

    /// Checks that the reply to PROVE comes from the iod that has sent the reply `hello` to HELLO.
    ///
    /// # Errors
    /// `CapRefused` if the proof in the reply does not match.
    pub fn check_prove_reply(&self, args: &HelloArgs, hello: &HelloReply, told: &ProveReply) -> Result<(), Status> {
        let transcript = self.answer(args, &mut hello.clone());
        let mut genuine = told.clone();
        self.seal(&transcript, &mut genuine);
        if genuine.proof.is(&told.proof) { Ok(()) } else { Err(Status::CapRefused) }
    }

    /// Returns whether the client that sent the arguments `args` of PROVE knows the secret of this ticket. `transcript`
    /// is the digest of the HELLO on the same connection.
    pub fn is_proven(&self, transcript: &Transcript, args: &ProveArgs) -> bool {
        self.client_proof(transcript, &args.origin).is(&args.proof)
    }
}

/// A digest over the arguments and the reply of a HELLO. The proof field of the reply counts as zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transcript([u8; 32]);

impl Transcript {
    fn of(args: &HelloArgs, reply: &HelloReply) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in [args.to_bytes(), reply.to_bytes()] {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(&part);
        }
        Transcript(*hasher.finalize().as_bytes())
    }
}

/// A MAC with which the client or the iod proves that it knows the secret of the ticket.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof(pub [u8; 32]);

impl Proof {
    /// Returns whether two proofs are equal. Compares in constant time, so that the duration reveals nothing about the
    /// right proof.
    pub fn is(&self, other: &Proof) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

/// Omits the bytes of the proof from debug output, so that logs do not reveal the proof.
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

/// Omits the secret from debug output, so that logs do not reveal the secret.
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
