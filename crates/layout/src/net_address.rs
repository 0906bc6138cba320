//! Network addresses in device bodies (`netaddr4`, RFC 8881 §3.3.9, RFC 5665).

use bytes::Bytes;
use std::fmt::Display;
use xdr::{Malformed, Reader, Writer, Xdr};

/// Maximum length of a netid or of a universal address, in bytes.
const TEXT_MAX: usize = 64;

/// The network address of a data server (`netaddr4`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NetAddress {
    /// The netid: `tcp` for IPv4 or `tcp6` for IPv6.
    pub netid: String,
    /// The universal address (RFC 5665): the IP address, followed by the high and the low byte of the port.
    pub uaddr: String,
}

impl NetAddress {
    /// Returns the `netaddr4` of a TCP port at an IP address.
    pub fn tcp(ip: impl Display, is_ipv6: bool, port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        NetAddress { netid: if is_ipv6 { "tcp6" } else { "tcp" }.to_owned(), uaddr: format!("{ip}.{high}.{low}") }
    }
}

impl Xdr for NetAddress {
    fn encode(&self, out: &mut Writer) {
        out.opaque(&Bytes::copy_from_slice(self.netid.as_bytes()));
        out.opaque(&Bytes::copy_from_slice(self.uaddr.as_bytes()));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(NetAddress { netid: text(input)?, uaddr: text(input)? })
    }
}

fn text(input: &mut Reader) -> Result<String, Malformed> {
    let bytes = input.opaque(TEXT_MAX)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| Malformed::Invalid("text that is not UTF-8"))?;
    Ok(text.to_owned())
}
