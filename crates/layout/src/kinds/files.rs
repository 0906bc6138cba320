//! The files layout kind (LAYOUT4_NFSV4_1_FILES, RFC 8881 §13): the layout body and the device address body.
//!
//! The packing is sparse: a client sends file offsets to a data server. Each layout that the mgr grants covers the
//! whole file.

use crate::NetAddress;
use bytes::Bytes;
use types::limits::{FILEHANDLE_MAX, STRIPE_COUNT_MAX};
use xdr::{Malformed, Reader, Writer, Xdr};

/// The `layouttype4` number of the files layout kind (RFC 8881 §3.3.13).
pub const KIND: u32 = 1;

/// Flag of `nfl_util` for dense packing (`NFL4_UFLG_DENSE`, RFC 8881 §13.3). Weir's layouts are sparse, so decoding
/// refuses this flag.
const DENSE: u32 = 1;
/// Flag of `nfl_util` (`NFL4_UFLG_COMMIT_THRU_MDS`): clients send COMMIT to the metadata server.
const COMMIT_THROUGH_MDS: u32 = 2;
/// Mask of the bits of `nfl_util` that hold flags; the other bits hold the stripe unit.
const FLAGS: u32 = 0x3f;
/// Maximum number of addresses of one data server.
pub const ADDRESSES_MAX: usize = 16;

/// The body of a layout (`nfsv4_1_file_layout4`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    /// Device id of the striping pattern; the address of this device lists the data servers.
    pub device: [u8; 16],
    /// Size of the stripe unit in bytes; a multiple of 64.
    pub stripe_unit: u32,
    /// Index, in the device's list of data servers, of the data server that has the first stripe unit of the file.
    pub first_stripe_index: u32,
    /// The filehandles: one for each data server, in the order of the device, or one filehandle for all data servers
    /// (§13.3).
    ///
    /// If there is only one filehandle, Linux (from about 6.8) assumes that the file is on a single data server.
    /// Linux then sends requests that span several stripe units.
    pub handles: Vec<Bytes>,
}

/// Length in bytes of an encoded layout body without its filehandles.
const BODY_LEN: usize = 16 + 4 + 4 + 8 + 4;

impl Body {
    /// Returns whether `handles` filehandles of `len` bytes each fit in a layout body of at most `max` bytes.
    pub fn has_room(max: usize, handles: usize, len: usize) -> bool {
        max.saturating_sub(BODY_LEN) / (4 + len.next_multiple_of(4)) >= handles
    }
}

impl Xdr for Body {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.device);
        out.u32(self.stripe_unit);
        out.u32(self.first_stripe_index);
        // The field `nfl_pattern_offset` must be 0, because Linux accepts no other value.
        out.u64(0);
        out.array(&self.handles, |out, handle| out.opaque(handle));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let device = input.fixed()?;
        let util = input.u32()?;
        if util & (DENSE | COMMIT_THROUGH_MDS) != 0 || util & !FLAGS == 0 {
            return Err(Malformed::BadValue { what: "stripe unit and flags of a files layout", value: util });
        }
        let first_stripe_index = input.u32()?;
        if input.u64()? != 0 {
            return Err(Malformed::Invalid("a files layout whose pattern does not begin with the file"));
        }
        let handles = input.array(STRIPE_COUNT_MAX, |input| input.opaque(FILEHANDLE_MAX))?;
        if handles.is_empty() {
            return Err(Malformed::Invalid("a files layout without a filehandle"));
        }
        Ok(Body { device, stripe_unit: util & !FLAGS, first_stripe_index, handles })
    }
}

/// The address of a device (`nfsv4_1_file_layout_ds_addr4`): its data servers, in the order of the stripe units that
/// they hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Device {
    /// The network addresses of each data server, in stripe order.
    pub servers: Vec<Vec<NetAddress>>,
}

impl Xdr for Device {
    fn encode(&self, out: &mut Writer) {
        let indices: Vec<u32> = (0..self.servers.len() as u32).collect();
        out.array(&indices, |out, index| out.u32(*index));
        out.array(&self.servers, |out, addresses| {
            out.array(addresses, |out, address| address.encode(out));
        });
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let indices = input.array(STRIPE_COUNT_MAX, |input| input.u32())?;
        let servers = input.array(STRIPE_COUNT_MAX, |input| input.array(ADDRESSES_MAX, NetAddress::decode))?;
        let straight = indices.iter().enumerate().all(|(at, index)| at as u32 == *index);
        if !straight || indices.len() != servers.len() || servers.is_empty() {
            return Err(Malformed::Invalid("a device whose stripe indices are not its data servers in order"));
        }
        Ok(Device { servers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_their_golden_bytes() {
        let handles = vec![Bytes::from_static(b"fh")];
        let body = Body { device: [3; 16], stripe_unit: 1 << 20, first_stripe_index: 2, handles };
        let mut golden = vec![3; 16];
        golden.extend([0, 0x10, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, b'f', b'h', 0, 0]);
        assert_eq!(body.to_bytes(), golden);
        assert_eq!(Body::from_bytes(&golden.into()).unwrap(), body);
        let many = Body { handles: (0..5).map(|_| Bytes::from_static(b"fh")).collect(), ..body.clone() };
        assert_eq!(Body::from_bytes(&many.to_bytes()).unwrap(), many);
        let len = many.to_bytes().len();
        assert!(Body::has_room(len, 5, 2) && !Body::has_room(len - 1, 5, 2) && !Body::has_room(len, 6, 2));
        Body::from_bytes(&Body { handles: Vec::new(), ..body.clone() }.to_bytes()).unwrap_err();
        let dense = Body { stripe_unit: 65, ..body };
        Body::from_bytes(&dense.to_bytes()).unwrap_err();
    }

    #[test]
    fn devices_list_their_servers_in_order() {
        let (four, six) = (NetAddress::tcp("10.1.2.3", false, 2050), NetAddress::tcp("fe80::1", true, 513));
        assert_eq!((four.netid.as_str(), four.uaddr.as_str()), ("tcp", "10.1.2.3.8.2"));
        assert_eq!((six.netid.as_str(), six.uaddr.as_str()), ("tcp6", "fe80::1.2.1"));
        let device = Device { servers: vec![vec![four.clone()], vec![six, four]] };
        assert_eq!(Device::from_bytes(&device.to_bytes()).unwrap(), device);
        let mut bytes = device.to_bytes().to_vec();
        assert_eq!(&bytes[..12], [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes[11] = 0;
        Device::from_bytes(&bytes.into()).unwrap_err();
    }
}
