//! Filehandles of data servers: what a client of the files layout may do, signed by the mgr, checked by an iod alone.

use std::fmt;

use types::{FileId, Fsid, Generation, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Key, Rights};

/// First bytes of every one, and the version of what follows.
const MAGIC: u32 = 0x5744_4802;
/// Length in bytes: more would be refused by every client (`NFS4_FHSIZE` is 128).
pub const DATA_HANDLE_LEN: usize = SIGNED_LEN + 32;
/// Of it what the authenticator is over.
const SIGNED_LEN: usize = 4 + 16 + 8 + 5 * 4 + 8;

const _: () = assert!(DATA_HANDLE_LEN <= types::limits::FILEHANDLE_MAX);

/// The filehandle of a file at a data server (RFC 8881 §13.3).
///
/// It takes the place of opens and stateids, which an iod does not know. Fencing an object makes those of earlier generations
/// worthless. It has no end of its own: a client keeps its layout, and the handle in it, for as long as it likes.
#[derive(Clone, PartialEq, Eq)]
pub struct DataHandle {
    /// File system of the file.
    pub fsid: Fsid,
    /// The object of the file on each iod.
    pub object: FileId,
    /// Fencing generation that it was made for.
    pub generation: Generation,
    /// What it allows: READ, WRITE.
    pub rights: Rights,
    /// Bytes of the file that are on one iod before the next one's turn.
    pub stripe_unit: u32,
    /// Number of iods that the file is dealt out to.
    pub stripe_count: u32,
    /// Which of them it is for, counted from where the file begins; [`DataHandle::ANY`] for all of them.
    pub stripe_index: u32,
    /// Number of the layout that it came with: no other of this file has it.
    pub grant: u64,
    /// Keyed BLAKE3 over all of the above.
    pub mac: [u8; 32],
}

impl DataHandle {
    /// The `stripe_index` of a handle that all iods of a file take.
    pub const ANY: u32 = u32::MAX;

    /// A handle signed with `key`.
    pub fn sign(
        key: &Key,
        fsid: Fsid,
        object: FileId,
        generation: Generation,
        rights: Rights,
        (stripe_unit, stripe_count, stripe_index): (u32, u32, u32),
        grant: u64,
    ) -> Self {
        let mac = [0; 32];
        let mut handle =
            DataHandle { fsid, object, generation, rights, stripe_unit, stripe_count, stripe_index, grant, mac };
        handle.mac = key.data_handle_mac(&handle.signed());
        handle
    }

    /// What the authenticator is over.
    fn signed(&self) -> [u8; SIGNED_LEN] {
        let mut out = Writer::new();
        self.put(&mut out);
        let mut signed = [0; SIGNED_LEN];
        signed.copy_from_slice(&out.finish().to_bytes());
        signed
    }

    fn put(&self, out: &mut Writer) {
        out.u32(MAGIC);
        out.fixed(&self.fsid.0);
        out.u64(self.object.0);
        out.u32(self.generation.0);
        out.u32(self.rights.0);
        out.u32(self.stripe_unit);
        out.u32(self.stripe_count);
        out.u32(self.stripe_index);
        out.u64(self.grant);
    }

    /// Checks that a handle is genuine and of this file system.
    ///
    /// # Errors
    /// `BadHandle` when it is not.
    pub fn verify(&self, key: &Key, fsid: Fsid) -> Result<(), Status> {
        let expected = blake3::Hash::from_bytes(key.data_handle_mac(&self.signed()));
        // Compared in constant time.
        if expected == blake3::Hash::from_bytes(self.mac) && self.fsid == fsid {
            Ok(())
        } else {
            Err(Status::BadHandle)
        }
    }
}

/// Shows everything but the authenticator.
impl fmt::Debug for DataHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataHandle")
            .field("fsid", &self.fsid)
            .field("object", &self.object)
            .field("generation", &self.generation)
            .field("rights", &self.rights)
            .field("stripe_unit", &self.stripe_unit)
            .field("stripe_count", &self.stripe_count)
            .field("stripe_index", &self.stripe_index)
            .field("grant", &self.grant)
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
            fsid: Fsid(input.fixed()?),
            object: FileId(input.u64()?),
            generation: Generation(input.u32()?),
            rights: Rights(input.u32()?),
            stripe_unit: input.u32()?,
            stripe_count: input.u32()?,
            stripe_index: input.u32()?,
            grant: input.u64()?,
            mac: input.fixed()?,
        })
    }
}
