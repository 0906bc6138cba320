//! The native layout kind: the stored record, the layout body and the device address body.

pub mod log;

use super::{Kind, KindId};
use crate::distributions::{BadGeometry, Distribution, DistributionId, check_count, check_stripe_unit};
use crate::policy::MIRRORS_MAX;
use bytes::Bytes;
use types::limits::STRIPE_COUNT_MAX;
use types::{FileId, Generation, IodId, ObjectId};
use xdr::{Malformed, Reader, Writer, Xdr};

/// The `layouttype4` number of the native layout kind, in the private range (RFC 8881 §3.3.13).
pub const KIND: u32 = 0x8000_5745;

/// The native layout kind: clients access the objects on iods with the RPC program of the native protocol.
#[derive(Clone, Copy, Debug)]
pub struct Native;

impl Kind for Native {
    const ID: KindId = KindId::new(KIND, "native");
    type Body = Body;
    type Device = Device;
}

/// Version number of every encoded body except the layout body, and of layout records of files with one copy in stream
/// 0.
pub const VERSION: u32 = 1;
/// Version of the layout body of a striped file.
pub const BODY_VERSION: u32 = 4;
/// Version of the layout body of a log file.
pub const LOG_BODY_VERSION: u32 = 5;
/// Version number of layout records of files with several copies. The number of copies follows the version number.
pub const MIRRORED_VERSION: u32 = 2;
/// Version number of layout records with a stream other than 0. The number of copies and the stream follow the version
/// number.
pub const STREAM_VERSION: u32 = 3;

/// Maximum number of TCP addresses of one device.
pub const ADDRESSES_MAX: usize = 16;
/// Maximum length of a TCP address, in bytes.
pub const ADDRESS_MAX: usize = 255;
/// Maximum length of a capability, in bytes.
pub const CAPABILITY_MAX: usize = 256;
/// Length of a capability's authenticator, in bytes.
pub const AUTHENTICATOR_LEN: usize = 32;
/// Maximum length of a session ticket, in bytes.
pub const TICKET_MAX: usize = 256;
/// Maximum length of the path of a Unix socket, in bytes (`sun_path` without its NUL).
pub const SOCKET_PATH_MAX: usize = 107;
/// Maximum length of a boot id, in bytes.
pub const BOOT_ID_MAX: usize = 64;

/// The layout record that the namespace stores for a file: the striping, the number of copies, and the iods.
///
/// The order of `iods` is the order of object indices. The order starts at a different iod for each file, so that the
/// first stripe units of many files are spread evenly over the iods.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// The distribution of the file's bytes over the objects of one copy.
    pub distribution: DistributionId,
    /// Size of the stripe unit in bytes.
    pub stripe_unit: u64,
    /// Number of copies; 1 if the file is not mirrored.
    pub mirrors: u32,
    /// The stream of the objects that have the file's bytes (see [`ObjectId`]); 0 for new files.
    pub stream: u32,
    /// Numbers of the iods in the cluster, in the order of object indices: all iods of the first copy, then all iods of
    /// the second copy, and so on.
    pub iods: Vec<u16>,
}

impl Record {
    /// Returns the distribution that this record describes.
    pub fn distribution(&self) -> Result<Distribution, BadGeometry> {
        Distribution::new(self.distribution, self.stripe_unit, self.iods.len() / (self.mirrors as usize).max(1))
    }

    /// Returns the id of the objects of `file`. All objects of the file have this id, each on a different iod.
    pub fn object(&self, file: FileId) -> ObjectId {
        ObjectId::new(file, self.stream)
    }

    /// Returns a layout record of stream 0 with `mirrors` copies. The iods are taken in round-robin order, beginning
    /// with `iods[first % iods.len()]`. Each copy is on at most `count` iods; with `count` 0, on as many as possible.
    /// No iod has two objects of a file, so the caller must pass at least as many iods as copies.
    pub fn rotated(
        distribution: DistributionId,
        stripe_unit: u64,
        iods: &[u16],
        (count, mirrors): (usize, u32),
        first: u64,
    ) -> Result<Self, BadGeometry> {
        check_stripe_unit(stripe_unit)?;
        let most = iods.len().min(STRIPE_COUNT_MAX) / (mirrors as usize).max(1);
        let count = if count == 0 { most } else { count.min(most) };
        check_count(count)?;
        let start = (first % iods.len() as u64) as usize;
        let iods = iods.iter().cycle().skip(start).take(count * mirrors as usize).copied().collect();
        Ok(Record { distribution, stripe_unit, mirrors, stream: 0, iods })
    }
}

/// Decodes a number of copies, which must be at least `least`.
pub(crate) fn copies(input: &mut Reader, least: u32) -> Result<u32, Malformed> {
    let value = input.u32()?;
    let ok = (least..=MIRRORS_MAX).contains(&value);
    if ok { Ok(value) } else { Err(Malformed::BadValue { what: "number of copies", value }) }
}

/// Decodes the version field of a native layout record, and the number of copies and the stream, which some versions of
/// the record contain. A record has exactly one valid encoding; every other encoding is an error.
fn copies_and_stream(input: &mut Reader) -> Result<(u32, u32), Malformed> {
    match input.u32()? {
        VERSION => Ok((1, 0)),
        MIRRORED_VERSION => Ok((copies(input, 2)?, 0)),
        STREAM_VERSION => match (copies(input, 1)?, input.u32()?) {
            (_, 0) => Err(Malformed::BadValue { what: "stream of a native layout", value: 0 }),
            (mirrors, stream) => Ok((mirrors, stream)),
        },
        value => Err(Malformed::BadValue { what: "version of a native layout", value }),
    }
}

fn version(input: &mut Reader) -> Result<(), Malformed> {
    match input.u32()? {
        VERSION => Ok(()),
        value => Err(Malformed::BadValue { what: "version of a native layout", value }),
    }
}

fn geometry(input: &mut Reader) -> Result<(DistributionId, u64), Malformed> {
    let number = input.u32()?;
    let id = DistributionId::from_number(number)
        .ok_or(Malformed::BadValue { what: "distribution of a layout", value: number })?;
    let stripe_unit = u64::from(input.u32()?);
    check_stripe_unit(stripe_unit)
        .map_err(|_| Malformed::Invalid("stripe unit out of bounds or not a multiple of 64"))?;
    Ok((id, stripe_unit))
}

fn not_empty<T>(items: Vec<T>) -> Result<Vec<T>, Malformed> {
    if items.is_empty() { Err(Malformed::Invalid("a layout over no iod")) } else { Ok(items) }
}

fn text(input: &mut Reader, max: usize) -> Result<String, Malformed> {
    let bytes = input.opaque(max)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| Malformed::Invalid("text that is not UTF-8"))?;
    Ok(text.to_owned())
}

fn put_text(out: &mut Writer, text: &str) {
    out.opaque(&Bytes::copy_from_slice(text.as_bytes()));
}

impl Xdr for Record {
    fn encode(&self, out: &mut Writer) {
        match (self.mirrors, self.stream) {
            (1, 0) => out.u32(VERSION),
            (mirrors, 0) => {
                out.u32(MIRRORED_VERSION);
                out.u32(mirrors);
            }
            (mirrors, stream) => {
                out.u32(STREAM_VERSION);
                out.u32(mirrors);
                out.u32(stream);
            }
        }
        out.u32(self.distribution.number());
        out.u32(self.stripe_unit as u32);
        out.array(&self.iods, |out, iod| out.u32(u32::from(*iod)));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let (mirrors, stream) = copies_and_stream(input)?;
        let (distribution, stripe_unit) = geometry(input)?;
        let iods: Vec<u16> = not_empty(input.array(STRIPE_COUNT_MAX, |input| {
            let value = input.u32()?;
            u16::try_from(value).map_err(|_| Malformed::BadValue { what: "number of an iod", value })
        })?)?;
        if !iods.len().is_multiple_of(mirrors as usize) {
            return Err(Malformed::Invalid("a layout whose copies are not over the same number of iods"));
        }
        Ok(Record { distribution, stripe_unit, mirrors, stream, iods })
    }
}

/// The body of a native layout, as LAYOUTGET returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    /// The distribution of the file's bytes over the objects.
    pub distribution: DistributionId,
    /// Size of the stripe unit in bytes.
    pub stripe_unit: u64,
    /// The device ids in the order of object indices. The device id of an iod is its iod id.
    pub devices: Vec<IodId>,
    /// Id of the file's object on each device.
    pub object: ObjectId,
    /// The fencing generation for which the mgr signed the capability.
    pub generation: Generation,
    /// A file length in bytes. The mgr knows that every object durably has the length that a file of this length
    /// requires; 0 if the mgr knows no such file length. An object that is shorter than required has lost bytes, and
    /// the client reports the loss to the mgr.
    pub whole: u64,
    /// The capability for requests to the first iod.
    pub capability: Bytes,
    /// For each device, in the order of object indices: the authenticator that the client puts into the capability in
    /// requests to this device.
    pub authenticators: Vec<[u8; AUTHENTICATOR_LEN]>,
    /// Lifetime of the capability in seconds. The lifetime begins when the mgr sends the reply with this layout.
    pub secs: u32,
    /// For a log file: for each device, the authenticator of the capability for the index of the file. The objects of
    /// the layout are then the striped base. Empty for a striped file.
    pub index_authenticators: Vec<[u8; AUTHENTICATOR_LEN]>,
}

impl Body {
    /// Returns the distribution that this body describes.
    pub fn distribution(&self) -> Result<Distribution, BadGeometry> {
        Distribution::new(self.distribution, self.stripe_unit, self.devices.len())
    }
}

impl Xdr for Body {
    fn encode(&self, out: &mut Writer) {
        out.u32(if self.index_authenticators.is_empty() { BODY_VERSION } else { LOG_BODY_VERSION });
        out.u32(self.distribution.number());
        out.u32(self.stripe_unit as u32);
        out.array(&self.devices, |out, id| out.fixed(&id.0));
        out.u64(self.object.file.0);
        out.u32(self.object.stream);
        out.u32(self.generation.0);
        out.u64(self.whole);
        out.opaque(&self.capability);
        out.array(&self.authenticators, |out, authenticator| out.fixed(authenticator));
        out.u32(self.secs);
        if !self.index_authenticators.is_empty() {
            out.array(&self.index_authenticators, |out, authenticator| out.fixed(authenticator));
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let of_log_file = match input.u32()? {
            BODY_VERSION => false,
            LOG_BODY_VERSION => true,
            value => return Err(Malformed::BadValue { what: "version of the body of a native layout", value }),
        };
        let (distribution, stripe_unit) = geometry(input)?;
        let devices = not_empty(input.array(STRIPE_COUNT_MAX, |input| input.fixed().map(IodId))?)?;
        let object = ObjectId::new(FileId(input.u64()?), input.u32()?);
        let generation = Generation(input.u32()?);
        let whole = input.u64()?;
        let capability = input.opaque(CAPABILITY_MAX)?;
        let authenticators = input.array(STRIPE_COUNT_MAX, Reader::fixed)?;
        if authenticators.len() != devices.len() {
            return Err(Malformed::Invalid("a layout with another number of authenticators than of iods"));
        }
        let secs = input.u32()?;
        let index_authenticators = match of_log_file {
            true => input.array(STRIPE_COUNT_MAX, Reader::fixed)?,
            false => Vec::new(),
        };
        if of_log_file && index_authenticators.len() != devices.len() {
            return Err(Malformed::Invalid(
                "a layout with another number of authenticators for the index than of iods",
            ));
        }
        Ok(Body {
            distribution,
            stripe_unit,
            devices,
            object,
            generation,
            whole,
            capability,
            authenticators,
            secs,
            index_authenticators,
        })
    }
}

/// Weir's additional fields of a LAYOUTCOMMIT (`lou_body`). An empty `lou_body` means that no field is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Update {
    /// Whether all bytes that the client wrote, up to the last byte that LAYOUTCOMMIT names, are durable on iods. If
    /// some bytes are not durable, an iod may still lose them, and the client may send them again.
    pub durable: bool,
    /// Whether the mgr must query the iods for the file size and ignore the size in this LAYOUTCOMMIT. The client
    /// sets this field if it has lost its layout after its writes, because other clients may have truncated the file
    /// since these writes.
    pub measure: bool,
    /// Whether the mgr must fence the file (revoke all rights of earlier layouts). The client sets this field after
    /// it has abandoned write requests that may still reach an iod.
    pub fence: bool,
    /// Whether the file may have holes. The client sets this field if it wrote beyond the end of the file or
    /// deallocated a range.
    pub holes: bool,
    /// Whether every object is durably long enough for a file without holes that ends at the last byte of this
    /// LAYOUTCOMMIT. Meaningful only if `durable` is set.
    pub whole: bool,
}

impl Update {
    const DURABLE: u32 = 1;
    const MEASURE: u32 = 2;
    const FENCE: u32 = 4;
    const HOLES: u32 = 8;
    const WHOLE: u32 = 16;
}

impl Xdr for Update {
    fn encode(&self, out: &mut Writer) {
        out.u32(VERSION);
        let bit = |set: bool, bit| if set { bit } else { 0 };
        let (durable, measure) = (bit(self.durable, Self::DURABLE), bit(self.measure, Self::MEASURE));
        let (holes, whole) = (bit(self.holes, Self::HOLES), bit(self.whole, Self::WHOLE));
        out.u32(durable | measure | bit(self.fence, Self::FENCE) | holes | whole);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        version(input)?;
        let bits = input.u32()?;
        if bits & !(Self::DURABLE | Self::MEASURE | Self::FENCE | Self::HOLES | Self::WHOLE) != 0 {
            return Err(Malformed::BadValue { what: "flags of an update of a layout", value: bits });
        }
        let is = |bit| bits & bit != 0;
        let (durable, measure) = (is(Self::DURABLE), is(Self::MEASURE));
        Ok(Update { durable, measure, fence: is(Self::FENCE), holes: is(Self::HOLES), whole: is(Self::WHOLE) })
    }
}

/// The Unix socket of an iod, for clients on the same host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local {
    /// Content of `/proc/sys/kernel/random/boot_id` on the iod's host. A client on a host with this boot id can use the
    /// socket.
    pub boot_id: String,
    /// Path of the socket; may contain any byte except NUL.
    pub path: Bytes,
}

/// The address of an iod, as GETDEVICEINFO returns it (`da_addr_body`).
#[derive(Clone, PartialEq, Eq)]
pub struct Device {
    /// Id of the iod, equal to the device id.
    pub iod: IodId,
    /// The TCP addresses as `host:port`, in order of preference.
    pub tcp: Vec<String>,
    /// The Unix socket for clients on the same host, if the iod has one.
    pub local: Option<Local>,
    /// The ticket that the client presents in HELLO to prove that it may connect. The client does not interpret the
    /// ticket.
    pub ticket: Bytes,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Device");
        out.field("iod", &self.iod).field("tcp", &self.tcp).field("local", &self.local);
        out.field("ticket", &"[secret]").finish()
    }
}

impl Xdr for Device {
    fn encode(&self, out: &mut Writer) {
        out.u32(VERSION);
        out.fixed(&self.iod.0);
        out.array(&self.tcp, |out, address| put_text(out, address));
        out.optional(self.local.as_ref(), |out, local| {
            put_text(out, &local.boot_id);
            out.opaque(&local.path);
        });
        out.opaque(&self.ticket);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        version(input)?;
        let iod = IodId(input.fixed()?);
        let tcp = input.array(ADDRESSES_MAX, |input| text(input, ADDRESS_MAX))?;
        let local = input.optional(|input| {
            let boot_id = text(input, BOOT_ID_MAX)?;
            let path = input.opaque(SOCKET_PATH_MAX)?;
            if path.contains(&0) {
                Err(Malformed::Invalid("socket path with a NUL"))
            } else {
                Ok(Local { boot_id, path })
            }
        })?;
        let ticket = input.opaque(TICKET_MAX)?;
        Ok(Device { iod, tcp, local, ticket })
    }
}
