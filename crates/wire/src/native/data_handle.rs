//! Filehandles of data servers, for clients of the files layout. The mgr signs a handle, which contains the rights of
//! its client. An iod checks the handle without a request to the mgr.

use std::fmt;

use types::{Fsid, Generation, ObjectId, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{IodKey, Rights, put_object, take_object};

/// First four bytes of each handle; the last of them is the version of the format.
const MAGIC: u32 = 0x5744_4804;
/// Length of a handle in bytes. NFS limits a handle to 128 bytes (`NFS4_FHSIZE`). Handles should be short, so that a
/// files layout has space for the handles of many iods.
pub const DATA_HANDLE_LEN: usize = SHOWN_LEN + 16;
/// Length of the part of a handle before its MAC, in bytes.
const SHOWN_LEN: usize = 2 * 4 + 12 + 3 * 4 + 3 * 8;
/// Number of bits of each of two fields of a handle: the stripe count, and the index of the iod. Both fields share a
/// 32-bit word with the rights, which have the highest bits of the word.
const INDEX_BITS: u32 = 12;

const _: () = assert!(DATA_HANDLE_LEN <= types::limits::FILEHANDLE_MAX);
const _: () = assert!(types::limits::STRIPE_COUNT_MAX < 1 << INDEX_BITS);

/// The filehandle of a file at one data server (RFC 8881 §13.3).
///
/// The handle itself carries the client's rights, because an iod does not know the opens and stateids of the mgr. A
/// fence of the object makes the handles of earlier generations invalid, and each handle expires.
#[derive(Clone, PartialEq, Eq)]
pub struct DataHandle {
    /// Short number of the file system of the object ([`volume_tag`]).
    pub volume: u32,
    /// The object on this iod that belongs to the file.
    pub object: ObjectId,
    /// Generation of the file when the mgr made the handle. After a fence, iods refuse older generations.
    pub generation: Generation,
    /// The operations that the handle allows: READ, WRITE, or both.
    pub rights: Rights,
    /// Stripe unit of the file in bytes.
    pub stripe_unit: u32,
    /// Number of iods over which the file is striped.
    pub stripe_count: u32,
    /// Index of this iod among the iods of the file, from 0. The iod with index 0 has the first byte of the file.
    pub stripe_index: u32,
    /// Number of the layout that carried the handle. No other layout of the file has this number.
    pub grant: u64,
    /// Session number of the client for which the mgr made the handle.
    pub session: u64,
    /// Unix time in seconds from which the iod refuses the handle.
    pub expires: u64,
    /// The MAC: the first 16 bytes of a keyed BLAKE3 hash over all other fields and the id of the file system.
    pub mac: [u8; 16],
}

/// Returns the short number that stands for a file system in handles. Two file systems may have the same short
/// number, so the MAC of a handle covers the whole file system id.
pub fn volume_tag(fsid: Fsid) -> u32 {
    let [a, b, c, d, ..] = fsid.0;
    u32::from_be_bytes([a, b, c, d])
}

/// The fields of a handle that tell how the file is striped over iods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Striping {
    /// Stripe unit of the file in bytes.
    pub unit: u32,
    /// Number of iods over which the file is striped.
    pub count: u32,
    /// Index of the iod among the iods of the file, from 0. The iod with index 0 has the first byte of the file.
    pub index: u32,
}

/// The fields of a handle about its client and its expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Number of the layout that carries the handle.
    pub grant: u64,
    /// Session number by which the mgr identifies the client.
    pub session: u64,
    /// Unix time in seconds from which the iod refuses the handle.
    pub expires: u64,
}

impl DataHandle {
    /// Makes a handle for the iod whose secret is `key`, and signs it with this secret.
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

    /// Returns the bytes that the MAC of the handle covers.
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
        // Drop the high bits of a stripe count or stripe index that needs more than `INDEX_BITS` bits. The iod
        // refuses the resulting handle, or the handle gives no access.
        let low = |value: u32| value & ((1 << INDEX_BITS) - 1);
        out.u32(self.rights.0 << (2 * INDEX_BITS) | low(self.stripe_count) << INDEX_BITS | low(self.stripe_index));
        out.u64(self.grant);
        out.u64(self.session);
        out.u64(self.expires);
    }

    /// Checks that the MAC was made with the secret of this iod, and that the handle belongs to this file system. Also
    /// checks that the handle has not expired at `now` (Unix time in seconds).
    ///
    /// # Errors
    /// `CapExpired` for a genuine handle that has expired, `BadHandle` in all other cases.
    pub fn verify(&self, key: &IodKey, fsid: Fsid, now: u64) -> Result<(), Status> {
        let genuine = key.data_handle_mac(&self.signed(fsid));
        // Compare the MACs in constant time, so that the duration reveals nothing about the right MAC.
        if genuine.iter().zip(&self.mac).fold(0, |wrong, (a, b)| wrong | (a ^ b)) != 0 {
            return Err(Status::BadHandle);
        }
        if now >= self.expires { Err(Status::CapExpired) } else { Ok(()) }
    }
}

/// Omits the MAC from debug output, because a reader of logs could use a handle with its MAC.
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
