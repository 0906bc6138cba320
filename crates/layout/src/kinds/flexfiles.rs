//! The flexible files layout kind (LAYOUT4_FLEX_FILES, RFC 8435): layout body, device address body, and the errors that
//! clients report in LAYOUTRETURN.
//!
//! The data servers of Weir speak NFSv4.1 and derive the client's rights from the filehandle. The mgr and the data
//! servers are therefore tightly coupled (RFC 8435 §2.3).

use crate::NetAddress;
use bytes::Bytes;
use types::limits::{FILEHANDLE_MAX, STRIPE_COUNT_MAX};
use xdr::{Malformed, Reader, Writer, Xdr};

/// The `layouttype4` number of the flexible files layout kind (LAYOUT4_FLEX_FILES, RFC 8435).
pub const KIND: u32 = 4;

/// Maximum number of addresses of one data server.
pub const ADDRESSES_MAX: usize = 16;
/// Maximum number of mirrors of one layout.
pub const MIRRORS_MAX: usize = 16;
/// Maximum length of the name of a user or group, in bytes.
const NAME_MAX: usize = 64;
/// Maximum number of protocol versions of one device.
const VERSIONS_MAX: usize = 8;
/// Maximum number of errors in one LAYOUTRETURN.
const ERRORS_MAX: usize = 1024;

/// An encoded `stateid4`; this module does not interpret it.
pub type StateId = [u8; 16];

/// The data server of one stripe index of one mirror (`ff_data_server4`, RFC 8435 §5.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataServer {
    /// Device id of the data server.
    pub device: [u8; 16],
    /// Preference for reads (`ffds_efficiency`): clients prefer the mirror with the largest value.
    pub efficiency: u32,
    /// The stateid that clients use in requests to the data server.
    pub stateid: StateId,
    /// The filehandle that clients use in requests to the data server.
    pub handle: Bytes,
    /// User id of the file's owner at the data server. Clients use this identity only with loosely coupled data
    /// servers. The encoding is decimal digits, because Linux accepts no other form.
    pub user: u32,
    /// Group id of the file at the data server, encoded in decimal digits.
    pub group: u32,
}

/// The body of a layout (`ff_layout4`, RFC 8435 §5.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    /// Size of the stripe unit in bytes; 0 if each mirror has a single data server.
    pub stripe_unit: u64,
    /// The mirrors; each is a list of data servers in stripe order.
    pub mirrors: Vec<Vec<DataServer>>,
    /// The flags of the layout (`ff_flags4`, RFC 8435 §5.1).
    pub flags: u32,
    /// Interval in seconds between the LAYOUTSTATS requests of a client; 0 lets the client choose the interval.
    pub stats_hint: u32,
}

fn number(input: &mut Reader) -> Result<u32, Malformed> {
    let text = input.opaque(NAME_MAX)?;
    let number = std::str::from_utf8(&text).ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
    let number = number.filter(|t| *t == "0" || !t.starts_with('0')).and_then(|t| t.parse().ok());
    number.ok_or(Malformed::Invalid("a user or group that is no number"))
}

fn put_number(out: &mut Writer, number: u32) {
    out.opaque(&Bytes::from(number.to_string()));
}

impl Xdr for DataServer {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.device);
        out.u32(self.efficiency);
        out.fixed(&self.stateid);
        out.array(std::slice::from_ref(&self.handle), |out, handle| out.opaque(handle));
        put_number(out, self.user);
        put_number(out, self.group);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let (device, efficiency, stateid) = (input.fixed()?, input.u32()?, input.fixed()?);
        let mut handles = input.array(1, |input| input.opaque(FILEHANDLE_MAX))?;
        let handle = handles.pop().ok_or(Malformed::Invalid("a data server without a filehandle"))?;
        Ok(DataServer { device, efficiency, stateid, handle, user: number(input)?, group: number(input)? })
    }
}

impl Xdr for Body {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.stripe_unit);
        out.array(&self.mirrors, |out, servers| out.array(servers, |out, server| server.encode(out)));
        out.u32(self.flags);
        out.u32(self.stats_hint);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let stripe_unit = input.u64()?;
        let mirrors = input.array(MIRRORS_MAX, |input| input.array(STRIPE_COUNT_MAX, DataServer::decode))?;
        let count = mirrors.first().map_or(0, Vec::len);
        if count == 0 || mirrors.iter().any(|servers| servers.len() != count) || (count > 1) != (stripe_unit > 0) {
            return Err(Malformed::Invalid("a flexible files layout whose mirrors and stripe unit do not go together"));
        }
        Ok(Body { stripe_unit, mirrors, flags: input.u32()?, stats_hint: input.u32()? })
    }
}

/// A protocol that a data server speaks (`ff_device_versions4`, RFC 8435 §4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    /// NFS version of the protocol: 3 or 4.
    pub version: u32,
    /// Minor version of the NFS protocol.
    pub minor: u32,
    /// Largest READ that the data server accepts, in bytes.
    pub read_size: u32,
    /// Largest WRITE that the data server accepts, in bytes.
    pub write_size: u32,
    /// Whether the metadata server and the data server are tightly coupled: clients then use their own credentials and
    /// the layout's stateid in requests to the data server.
    pub tightly_coupled: bool,
}

/// The address of a device, which is one data server (`ff_device_addr4`, RFC 8435 §4.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// The network addresses of the data server.
    pub addresses: Vec<NetAddress>,
    /// The NFS versions that the data server speaks, in order of preference.
    pub versions: Vec<Version>,
}

impl Xdr for Device {
    fn encode(&self, out: &mut Writer) {
        out.array(&self.addresses, |out, address| address.encode(out));
        out.array(&self.versions, |out, version| {
            out.u32(version.version);
            out.u32(version.minor);
            out.u32(version.read_size);
            out.u32(version.write_size);
            out.bool(version.tightly_coupled);
        });
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let addresses = input.array(ADDRESSES_MAX, NetAddress::decode)?;
        let versions = input.array(VERSIONS_MAX, |input| {
            Ok(Version {
                version: input.u32()?,
                minor: input.u32()?,
                read_size: input.u32()?,
                write_size: input.u32()?,
                tightly_coupled: input.bool()?,
            })
        })?;
        Ok(Device { addresses, versions })
    }
}

/// A failed operation at a data server, as a client reports it (`device_error4` within `ff_ioerr4`, RFC 8435 §9.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Device id of the data server.
    pub device: [u8; 16],
    /// The `nfsstat4` of the failed operation.
    pub status: u32,
    /// Number of the failed operation (`nfs_opnum4`).
    pub operation: u32,
}

/// Decodes the errors in a LAYOUTRETURN body (`ff_layoutreturn4`, RFC 8435 §9.3), but not the statistics that follow
/// the errors. If malformed statistics made LAYOUTRETURN fail, the CLOSE in the same COMPOUND would fail too.
///
/// # Errors
/// The errors in the body cannot be decoded.
pub fn faults(body: &Bytes) -> Result<Vec<Fault>, Malformed> {
    let mut input = Reader::new(body.clone());
    let errors = input.array(ERRORS_MAX, |input| {
        // Skip the offset, the length and the stateid of the error entry.
        let _: [u8; 32] = input.fixed()?;
        input.array(ERRORS_MAX, |input| {
            Ok(Fault { device: input.fixed()?, status: input.u32()?, operation: input.u32()? })
        })
    })?;
    Ok(errors.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(device: u8) -> DataServer {
        let handle = Bytes::from_static(b"fh");
        DataServer { device: [device; 16], efficiency: 7, stateid: [9; 16], handle, user: 0, group: 65534 }
    }

    #[test]
    fn bodies_have_their_golden_bytes() {
        let body = Body { stripe_unit: 0, mirrors: vec![vec![server(3)]], flags: 2, stats_hint: 60 };
        let mut golden = vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1];
        golden.extend([3; 16]);
        golden.extend([0, 0, 0, 7]);
        golden.extend([9; 16]);
        golden.extend([0, 0, 0, 1, 0, 0, 0, 2, b'f', b'h', 0, 0]);
        golden.extend([0, 0, 0, 1, b'0', 0, 0, 0, 0, 0, 0, 5]);
        golden.extend(b"65534\0\0\0");
        golden.extend([0, 0, 0, 2, 0, 0, 0, 60]);
        assert_eq!(body.to_bytes(), golden);
        assert_eq!(Body::from_bytes(&golden.into()).unwrap(), body);
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let body = |stripe_unit, mirrors| Body { stripe_unit, mirrors, flags: 0, stats_hint: 0 };
        let striped = body(65536, vec![vec![server(1), server(2)], vec![server(3), server(4)]]);
        assert_eq!(Body::from_bytes(&striped.to_bytes()).unwrap(), striped);
        for wrong in [
            body(0, vec![]),
            body(0, vec![vec![]]),
            body(65536, vec![vec![server(1)]]),
            body(0, vec![vec![server(1), server(2)]]),
            body(65536, vec![vec![server(1), server(2)], vec![server(3)]]),
        ] {
            Body::from_bytes(&wrong.to_bytes()).unwrap_err();
        }
    }

    #[test]
    fn devices_say_what_they_speak() {
        let version = Version { version: 4, minor: 1, read_size: 1 << 20, write_size: 1 << 20, tightly_coupled: true };
        let device = Device { addresses: vec![NetAddress::tcp("10.0.0.1", false, 2051)], versions: vec![version] };
        let bytes = device.to_bytes();
        assert_eq!(bytes[bytes.len() - 24..][..8], [0, 0, 0, 1, 0, 0, 0, 4]);
        assert_eq!(Device::from_bytes(&bytes).unwrap(), device);
    }

    #[test]
    fn faults_are_read_and_statistics_are_not() {
        let mut body = vec![0, 0, 0, 1];
        body.extend([0; 32]);
        body.extend([0, 0, 0, 1]);
        body.extend([5; 16]);
        body.extend([0, 0, 0, 6, 0, 0, 0, 38]);
        let fault = Fault { device: [5; 16], status: 6, operation: 38 };
        assert_eq!(faults(&body.clone().into()), Ok(vec![fault]));
        body.extend(b"nonsense");
        assert_eq!(faults(&body.clone().into()), Ok(vec![fault]));
        assert!(faults(&body[..40].to_vec().into()).is_err());
        assert_eq!(faults(&vec![0, 0, 0, 0].into()), Ok(vec![]));
    }
}
