//! Filehandles of data servers: what a client of the files layout may do, signed by the mgr, checked by an iod alone.

use std::fmt;

use types::{FileId, Fsid, Generation, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{IodKey, Rights};

/// First bytes of every one, and the version of what follows.
const MAGIC: u32 = 0x5744_4803;
/// Length in bytes: more would be refused by every client (`NFS4_FHSIZE` is 128), and with every byte fewer iods find room in a files layout.
pub const DATA_HANDLE_LEN: usize = SHOWN_LEN + 16;
/// Of it what is in front of the authenticator.
const SHOWN_LEN: usize = 4 + 8 + 5 * 4 + 3 * 8;

const _: () = assert!(DATA_HANDLE_LEN <= types::limits::FILEHANDLE_MAX);

/// The filehandle of a file at one data server (RFC 8881 §13.3).
///
/// It takes the place of opens and stateids, which an iod does not know. Fencing an object makes those of earlier generations
/// worthless, and it ends by itself.
#[derive(Clone, PartialEq, Eq)]
pub struct DataHandle {
    /// The object of the file on the iod.
    pub object: FileId,
    /// Fencing generation that it was made for.
    pub generation: Generation,
    /// What it allows: READ, WRITE.
    pub rights: Rights,
    /// Bytes of the file that are on one iod before the next one's turn.
    pub stripe_unit: u32,
    /// Number of iods that the file is dealt out to.
    pub stripe_count: u32,
    /// Which of them it is for, counted from where the file begins.
    pub stripe_index: u32,
    /// Number of the layout that it came with: no other of this file has it.
    pub grant: u64,
    /// The client that it was made for, as the mgr numbers it.
    pub session: u64,
    /// Unix time in seconds from which on it is refused.
    pub expires: u64,
    /// Keyed BLAKE3 over all of the above and the file system.
    pub mac: [u8; 16],
}

/// What a handle says of how its file is dealt out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Striping {
    /// Bytes of the file that are on one iod before the next one's turn.
    pub unit: u32,
    /// Number of iods.
    pub count: u32,
    /// Which of them, counted from where the file begins.
    pub index: u32,
}

/// For whom a handle is made, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Number of the layout.
    pub grant: u64,
    /// The client, as the mgr numbers it.
    pub session: u64,
    /// Unix time in seconds from which on the handle is refused.
    pub expires: u64,
}

impl DataHandle {
    /// A handle signed with `key`, for the iod whose key that is.
    pub fn sign(
        key: &IodKey,
        fsid: Fsid,
        (object, generation): (FileId, Generation),
        rights: Rights,
        striping: Striping,
        holder: Holder,
    ) -> Self {
        let Striping { unit: stripe_unit, count: stripe_count, index: stripe_index } = striping;
        let Holder { grant, session, expires } = holder;
        let mac = [0; 16];
        let mut handle = DataHandle {
            object,
            generation,
            rights,
            stripe_unit,
            stripe_count,
            stripe_index,
            grant,
            session,
            expires,
            mac,
        };
        handle.mac = key.data_handle_mac(&handle.signed(fsid));
        handle
    }

    /// What the authenticator is over.
    fn signed(&self, fsid: Fsid) -> [u8; 16 + SHOWN_LEN] {
        let mut out = Writer::new();
        out.fixed(&fsid.0);
        self.put(&mut out);
        let mut signed = [0; 16 + SHOWN_LEN];
        signed.copy_from_slice(&out.finish().to_bytes());
        signed
    }

    fn put(&self, out: &mut Writer) {
        out.u32(MAGIC);
        out.u64(self.object.0);
        out.u32(self.generation.0);
        out.u32(self.rights.0);
        out.u32(self.stripe_unit);
        out.u32(self.stripe_count);
        out.u32(self.stripe_index);
        out.u64(self.grant);
        out.u64(self.session);
        out.u64(self.expires);
    }

    /// Checks that a handle is genuine, of this iod and file system, and in force at `now` (Unix seconds).
    ///
    /// # Errors
    /// `CapExpired` for a genuine one whose time is over, `BadHandle` for everything else.
    pub fn verify(&self, key: &IodKey, fsid: Fsid, now: u64) -> Result<(), Status> {
        let genuine = key.data_handle_mac(&self.signed(fsid));
        // In the same time whatever is wrong.
        if genuine.iter().zip(&self.mac).fold(0, |wrong, (a, b)| wrong | (a ^ b)) != 0 {
            return Err(Status::BadHandle);
        }
        if now >= self.expires { Err(Status::CapExpired) } else { Ok(()) }
    }
}

/// Shows everything but the authenticator.
impl fmt::Debug for DataHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataHandle")
            .field("object", &self.object)
            .field("generation", &self.generation)
            .field("rights", &self.rights)
            .field("stripe_unit", &self.stripe_unit)
            .field("stripe_count", &self.stripe_count)
            .field("stripe_index", &self.stripe_index)
            .field("grant", &self.grant)
            .field("session", &self.session)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl Xdr for DataHandle {
    fn encode(&self, out: &mut Writer) {
        self.put(out);
        out.fixed(&self.mac);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        match input.u32()? {
            MAGIC => {}
            value => return Err(Malformed::BadValue { what: "beginning of a data server's filehandle", value }),
        }
        Ok(DataHandle {
            object: FileId(input.u64()?),
            generation: Generation(input.u32()?),
            rights: Rights(input.u32()?),
            stripe_unit: input.u32()?,
            stripe_count: input.u32()?,
            stripe_index: input.u32()?,
            grant: input.u64()?,
            session: input.u64()?,
            expires: input.u64()?,
            mac: input.fixed()?,
        })
    }
}
