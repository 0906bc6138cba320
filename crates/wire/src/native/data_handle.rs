//! Filehandles of data servers: signed by the mgr, they state the rights of a client of the files layout, and an iod
//! checks them without the mgr.

use std::fmt;

use types::{Fsid, Generation, ObjectId, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{IodKey, Rights, put_object, take_object};

/// First bytes of every handle, including the version of the format.
const MAGIC: u32 = 0x5744_4804;
/// Length of a handle in bytes. Clients refuse more than 128 (`NFS4_FHSIZE`), and shorter handles let a files layout
/// name more iods.
pub const DATA_HANDLE_LEN: usize = SHOWN_LEN + 16;
/// Length of the part in front of the MAC.
const SHOWN_LEN: usize = 2 * 4 + 12 + 3 * 4 + 3 * 8;
/// Bits of the number of iods and of the index in a handle; the rights have the bits above.
const INDEX_BITS: u32 = 12;

const _: () = assert!(DATA_HANDLE_LEN <= types::limits::FILEHANDLE_MAX);
const _: () = assert!(types::limits::STRIPE_COUNT_MAX < 1 << INDEX_BITS);

/// The filehandle of a file at one data server (RFC 8881 §13.3).
///
/// It replaces opens and stateids, which an iod does not know. Fencing an object invalidates the handles of earlier
/// generations. Each handle also expires.
#[derive(Clone, PartialEq, Eq)]
pub struct DataHandle {
    /// The volume of the object ([`volume_tag`]).
    pub volume: u32,
    /// The object of the file on the iod.
    pub object: ObjectId,
    /// Fencing generation for which the handle was made.
    pub generation: Generation,
    /// The allowed operations: READ, WRITE.
    pub rights: Rights,
    /// Stripe unit in bytes.
    pub stripe_unit: u32,
    /// Number of iods over which the file is striped.
    pub stripe_count: u32,
    /// Index of the iod in the stripe, counted from the iod with the first byte of the file.
    pub stripe_index: u32,
    /// Number of the layout that carried the handle; no other layout of this file has the same number.
    pub grant: u64,
    /// The mgr's number of the client for which the handle was made.
    pub session: u64,
    /// Unix time in seconds from which the handle is refused.
    pub expires: u64,
    /// Keyed BLAKE3 over all of the above and the id of the file system.
    pub mac: [u8; 16],
}

/// Returns the number by which handles name the volume of a file system. Two file systems may have the same number: the
/// MAC covers the whole id.
pub fn volume_tag(fsid: Fsid) -> u32 {
    let [a, b, c, d, ..] = fsid.0;
    u32::from_be_bytes([a, b, c, d])
}

/// The striping parameters in a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Striping {
    /// Stripe unit in bytes.
    pub unit: u32,
    /// Number of iods.
    pub count: u32,
    /// Index of the iod in the stripe, counted from the iod with the first byte of the file.
    pub index: u32,
}

/// The client of a handle, and the end of its validity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Number of the layout.
    pub grant: u64,
    /// The mgr's number of the client.
    pub session: u64,
    /// Unix time in seconds from which the handle is refused.
    pub expires: u64,
}

impl DataHandle {
    /// Returns a handle for the iod with the secret `key`, signed with this secret.
    pub fn sign(
        key: &IodKey,
        fsid: Fsid,
        (object, generation): (ObjectId, Generation),
        rights: Rights,
        striping: Striping,
        holder: Holder,
    ) -> Self {
        let Striping { unit: stripe_unit, count: stripe_count, index: stripe_index } = striping;
        let Holder { grant, session, expires } = holder;
        let mac = [0; 16];
        let mut handle = DataHandle {
            volume: volume_tag(fsid),
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

    /// Returns the bytes that the MAC covers.
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
        out.u32(self.volume);
        put_object(out, self.object);
        out.u32(self.generation.0);
        out.u32(self.stripe_unit);
        // Fields that do not fit make a handle that names less than it should: it is refused or allows nothing.
        let low = |value: u32| value & ((1 << INDEX_BITS) - 1);
        out.u32(self.rights.0 << (2 * INDEX_BITS) | low(self.stripe_count) << INDEX_BITS | low(self.stripe_index));
        out.u64(self.grant);
        out.u64(self.session);
        out.u64(self.expires);
    }

    /// Checks that a handle is genuine for this iod and file system, and valid at `now` (Unix seconds).
    ///
    /// # Errors
    /// `CapExpired` for a genuine handle that has expired, `BadHandle` for everything else.
    pub fn verify(&self, key: &IodKey, fsid: Fsid, now: u64) -> Result<(), Status> {
        let genuine = key.data_handle_mac(&self.signed(fsid));
        // Compares in constant time.
        if genuine.iter().zip(&self.mac).fold(0, |wrong, (a, b)| wrong | (a ^ b)) != 0 {
            return Err(Status::BadHandle);
        }
        if now >= self.expires { Err(Status::CapExpired) } else { Ok(()) }
    }
}

/// Prints everything but the MAC.
impl fmt::Debug for DataHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataHandle")
            .field("volume", &format_args!("{:08x}", self.volume))
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
        let (volume, object) = (input.u32()?, take_object(input)?);
        let (generation, stripe_unit, striping) = (Generation(input.u32()?), input.u32()?, input.u32()?);
        let low = |value: u32| value & ((1 << INDEX_BITS) - 1);
        Ok(DataHandle {
            volume,
            object,
            generation,
            rights: Rights(striping >> (2 * INDEX_BITS)),
            stripe_unit,
            stripe_count: low(striping >> INDEX_BITS),
            stripe_index: low(striping),
            grant: input.u64()?,
            session: input.u64()?,
            expires: input.u64()?,
            mac: input.fixed()?,
        })
    }
}
