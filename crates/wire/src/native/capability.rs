//! Capabilities and session tickets: what the mgr signs and an iod checks without asking anybody.

use std::fmt;
use std::ops::BitOr;

use types::{FileId, Fsid, Generation, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

/// First byte under the authenticator of a capability; another one for tickets, so neither passes for the other.
const DOMAIN_CAPABILITY: u8 = 1;
const DOMAIN_TICKET: u8 = 2;
/// As the above, for what is only to be known to those who have the secret.
const DOMAIN_ID: u8 = 3;
/// As the above, for filehandles of data servers.
const DOMAIN_DATA_HANDLE: u8 = 4;
/// As the above, for filehandles of the mgr.
const DOMAIN_FILE_HANDLE: u8 = 5;

/// The object id that stands for the whole store in capabilities for LIST; never the id of a file.
pub const STORE_OBJECT: FileId = FileId(0);

/// The secret that the mgr and the iods of a cluster share. Never printed.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// The secret with these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Key(bytes)
    }

    /// Signs a capability for one object; `expires` is in Unix seconds, `session` the number from the ticket.
    pub fn sign_capability(
        &self,
        fsid: Fsid,
        object: FileId,
        generation: Generation,
        rights: Rights,
        expires: u64,
        session: u64,
    ) -> Capability {
        let mut cap = Capability { fsid, object, generation, rights, expires, session, mac: [0; 32] };
        cap.mac = *cap.authenticator(self).as_bytes();
        cap
    }

    /// Signs a ticket for session number `session`, to be presented in HELLO before `expires` (Unix seconds).
    pub fn sign_ticket(&self, fsid: Fsid, session: u64, expires: u64) -> Ticket {
        let mut ticket = Ticket { fsid, session, expires, mac: [0; 32] };
        ticket.mac = *ticket.authenticator(self).as_bytes();
        ticket
    }

    /// The authenticator of a data server's filehandle.
    pub(super) fn data_handle_mac(&self, signed: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[DOMAIN_DATA_HANDLE]).update(signed);
        *hasher.finalize().as_bytes()
    }

    /// The authenticator of a filehandle of the mgr.
    pub fn file_handle_mac(&self, signed: &[u8]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[DOMAIN_FILE_HANDLE]).update(signed);
        let mut mac = [0; 16];
        hasher.finalize_xof().fill(&mut mac);
        mac
    }

    /// Whether `mac` is [`Key::file_handle_mac`] of `signed`; takes the same time whatever is wrong.
    pub fn is_file_handle_mac(&self, signed: &[u8], mac: &[u8]) -> bool {
        let genuine = self.file_handle_mac(signed);
        mac.len() == genuine.len() && genuine.iter().zip(mac).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
    }

    /// An id that is always the same for what it is the id of, different for everything else, and that only those can tell
    /// who have the secret: owners of connections ([`Origin`](super::Origin)), devices.
    pub fn derived_id(&self, of: &[u8]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[DOMAIN_ID]).update(of);
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        id
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// What a capability allows; a set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rights(pub u32);

impl Rights {
    /// READ, SIZE, SEEK, LEND, and the object that PULL reads.
    pub const READ: Rights = Rights(1);
    /// WRITE, COMMIT, TRUNCATE, PUNCH, RESERVE, and the object that PULL writes.
    pub const WRITE: Rights = Rights(2);
    /// REMOVE, FENCE, and LIST when the object is [`STORE_OBJECT`]: for the mgr alone.
    pub const ADMIN: Rights = Rights(4);

    /// Whether all of `needed` are in it.
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

/// The right of one session to do something with one object until some time.
#[derive(Clone, PartialEq, Eq)]
pub struct Capability {
    /// File system of the object.
    pub fsid: Fsid,
    /// The object.
    pub object: FileId,
    /// Fencing epoch that it was issued in.
    pub generation: Generation,
    /// What it allows.
    pub rights: Rights,
    /// Unix time in seconds from which on it is refused.
    pub expires: u64,
    /// The session that may use it.
    pub session: u64,
    /// Keyed BLAKE3 over all of the above.
    pub mac: [u8; 32],
}

impl Capability {
    fn authenticator(&self, key: &Key) -> blake3::Hash {
        let mut signed = [0u8; 49];
        signed[0] = DOMAIN_CAPABILITY;
        signed[1..17].copy_from_slice(&self.fsid.0);
        signed[17..25].copy_from_slice(&self.object.0.to_be_bytes());
        signed[25..29].copy_from_slice(&self.generation.0.to_be_bytes());
        signed[29..33].copy_from_slice(&self.rights.0.to_be_bytes());
        signed[33..41].copy_from_slice(&self.expires.to_be_bytes());
        signed[41..49].copy_from_slice(&self.session.to_be_bytes());
        blake3::keyed_hash(&key.0, &signed)
    }

    /// Checks that the capability is genuine, of this file system, for `session`, in force at `now` (Unix seconds),
    /// and grants all of `needed`.
    ///
    /// The generation is for the caller to compare with the object's.
    ///
    /// # Errors
    /// `CapExpired` for a genuine one whose time is over, `CapRefused` for everything else.
    pub fn verify(&self, key: &Key, fsid: Fsid, now: u64, session: u64, needed: Rights) -> Result<(), Status> {
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
        out.u64(self.object.0);
        out.u32(self.generation.0);
        out.u32(self.rights.0);
        out.u64(self.expires);
        out.u64(self.session);
        out.fixed(&self.mac);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Capability {
            fsid: Fsid(input.fixed()?),
            object: FileId(input.u64()?),
            generation: Generation(input.u32()?),
            rights: Rights(input.u32()?),
            expires: input.u64()?,
            session: input.u64()?,
            mac: input.fixed()?,
        })
    }
}

/// The authenticator of a session: comes with the device address and is presented in HELLO.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// File system of the session.
    pub fsid: Fsid,
    /// Number of the session; capabilities carry it.
    pub session: u64,
    /// Unix time in seconds from which on it opens no session.
    pub expires: u64,
    /// Keyed BLAKE3 over all of the above.
    pub mac: [u8; 32],
}

impl Ticket {
    fn authenticator(&self, key: &Key) -> blake3::Hash {
        let mut signed = [0u8; 33];
        signed[0] = DOMAIN_TICKET;
        signed[1..17].copy_from_slice(&self.fsid.0);
        signed[17..25].copy_from_slice(&self.session.to_be_bytes());
        signed[25..33].copy_from_slice(&self.expires.to_be_bytes());
        blake3::keyed_hash(&key.0, &signed)
    }

    /// Checks that the ticket is genuine, of this file system and in force at `now` (Unix seconds).
    ///
    /// # Errors
    /// `CapExpired` for a genuine one whose time is over, `CapRefused` for everything else.
    pub fn verify(&self, key: &Key, fsid: Fsid, now: u64) -> Result<(), Status> {
        if self.authenticator(key) != blake3::Hash::from_bytes(self.mac) || self.fsid != fsid {
            return Err(Status::CapRefused);
        }
        if now >= self.expires { Err(Status::CapExpired) } else { Ok(()) }
    }
}

/// Shows everything but the authenticator.
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
        out.fixed(&self.mac);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Ticket { fsid: Fsid(input.fixed()?), session: input.u64()?, expires: input.u64()?, mac: input.fixed()? })
    }
}
