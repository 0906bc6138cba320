//! Addresses of daemons: `host:port`, Unix sockets and universal addresses (RFC 5665).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// Network identifier of TCP over IPv4 in a universal address (RFC 5665 §5.2.3).
pub const NETID_TCP: &str = "tcp";
/// Network identifier of TCP over IPv6 in a universal address (RFC 5665 §5.2.3).
pub const NETID_TCP6: &str = "tcp6";

/// The address of a daemon, as written in configuration files and on the command line.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Address {
    /// A TCP address, written as `host:port`. An IPv6 address is written as `[address]:port`.
    Tcp {
        /// Host name or IP address, without brackets.
        host: String,
        /// TCP port number.
        port: u16,
    },
    /// A Unix socket, written as an absolute path, with or without the prefix `unix:`.
    Unix(PathBuf),
}

/// The error for a text that is not a valid address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not an address: {why}")]
pub struct BadAddress {
    text: String,
    why: &'static str,
}

/// Maximum length of a host name in bytes (RFC 1035 §2.3.4).
const HOST_MAX: usize = 255;
/// Maximum length of a Unix socket's path on Linux in bytes, without its NUL byte.
const SOCKET_PATH_MAX: usize = 107;

impl Address {
    /// Returns the IP address of the host; an IPv4-mapped IPv6 address as an IPv4 address. Returns `None` for a host
    /// name or a Unix socket.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Address::Tcp { host, .. } => host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical()),
            Address::Unix(_) => None,
        }
    }

    /// Parses an address: `host:port`, `host`, `[ipv6]:port`, an IPv6 address without brackets, or the path of a Unix
    /// socket. An address without a port gets `default_port`; if `default_port` is `None`, the port is required.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, BadAddress> {
        let bad = |why| BadAddress { text: text.chars().take(300).collect(), why };
        if let Some(path) = text.strip_prefix("unix:").or_else(|| text.starts_with('/').then_some(text)) {
            return match path.len() {
                _ if !path.starts_with('/') => Err(bad("the path of a Unix socket must be absolute")),
                _ if path.contains('\0') => Err(bad("a path holds no NUL")),
                n if n > SOCKET_PATH_MAX => Err(bad("the path of a Unix socket has at most 107 bytes")),
                _ => Ok(Address::Unix(path.into())),
            };
        }
        let (host, port) = split_port(text).map_err(bad)?;
        let port = match port {
            Some(digits) => digits.parse().map_err(|_| bad("the port must be a number from 0 to 65535"))?,
            None => default_port.ok_or_else(|| bad("a port is missing (host:port)"))?,
        };
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
        match host {
            "" => Err(bad("the host is missing")),
            h if h.len() > HOST_MAX || !h.chars().all(legal) => Err(bad("no such host name is possible")),
            h => Ok(Address::Tcp { host: h.into(), port }),
        }
    }

    /// Returns the IP address and port; `None` if the host is a name or the address is a Unix socket.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            Address::Tcp { host, port } => Some(SocketAddr::new(host.parse().ok()?, *port)),
            Address::Unix(_) => None,
        }
    }
}

/// Splits a text into the host, without brackets, and the port, if the text has one.
fn split_port(text: &str) -> Result<(&str, Option<&str>), &'static str> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or("the closing bracket is missing")?;
        if host.parse::<Ipv6Addr>().is_err() {
            return Err("brackets hold an IPv6 address");
        }
        return match after {
            "" => Ok((host, None)),
            _ => after.strip_prefix(':').map(|port| (host, Some(port))).ok_or("a colon must follow the bracket"),
        };
    }
    match text.split_once(':') {
        None => Ok((text, None)),
        Some(_) if text.parse::<Ipv6Addr>().is_ok() => Ok((text, None)),
        Some((_, port)) if port.contains(':') => Err("an IPv6 address with a port needs brackets"),
        Some((host, port)) => Ok((host, Some(port))),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    /// Parses as [`Address::parse`] does. The port of a TCP address is required.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        Address::parse(text, None)
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Address::Tcp { host: addr.ip().to_string(), port: addr.port() }
    }
}

/// Returns the network identifier and universal address of a TCP endpoint (RFC 5665 §5.2.3.3 and §5.2.3.4).
pub fn to_universal(addr: SocketAddr) -> (&'static str, String) {
    let [high, low] = addr.port().to_be_bytes();
    let netid = if addr.is_ipv4() { NETID_TCP } else { NETID_TCP6 };
    (netid, format!("{}.{high}.{low}", addr.ip()))
}

/// Returns the TCP endpoint of a universal address (RFC 5665 §5.2.3.3 and §5.2.3.4).
pub fn from_universal(netid: &str, text: &str) -> Result<SocketAddr, BadAddress> {
    let bad = |why| BadAddress { text: text.chars().take(300).collect(), why };
    let octet = |digits: &str| -> Result<u8, BadAddress> {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| digits.parse().ok()).flatten().ok_or_else(|| bad("the port must be two numbers from 0 to 255"))
    };
    let mut parts = text.rsplitn(3, '.');
    let (Some(low), Some(high), Some(host)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(bad("a universal address ends in two port numbers"));
    };
    let port = u16::from_be_bytes([octet(high)?, octet(low)?]);
    let ip = match netid {
        NETID_TCP => host.parse::<Ipv4Addr>().map(IpAddr::V4).ok(),
        NETID_TCP6 => host.parse::<Ipv6Addr>().map(IpAddr::V6).ok(),
        _ => return Err(bad("its network is neither tcp nor tcp6")),
    };
    ip.map(|ip| SocketAddr::new(ip, port)).ok_or_else(|| bad("the host must be an IP address of its network"))
}

/// Returns the boot id of this machine. Two processes with the same boot id run on the same machine, and can connect
/// over Unix sockets.
///
/// Returns `None` if the operating system has no boot id (Linux: `/proc/sys/kernel/random/boot_id`).
pub fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    text.trim().parse::<types::Fsid>().ok().map(|uuid| uuid.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_round_trip_as_text() {
        let tcp = |host: &str, port| Address::Tcp { host: host.into(), port };
        for (text, want, shown) in [
            ("localhost:2049", tcp("localhost", 2049), "localhost:2049"),
            ("10.1.2.3:0", tcp("10.1.2.3", 0), "10.1.2.3:0"),
            ("node-7.rack_1", tcp("node-7.rack_1", 111), "node-7.rack_1:111"),
            ("[::1]:9", tcp("::1", 9), "[::1]:9"),
            ("[fe80::1]", tcp("fe80::1", 111), "[fe80::1]:111"),
            ("::1", tcp("::1", 111), "[::1]:111"),
            ("/run/weir.sock", Address::Unix("/run/weir.sock".into()), "unix:/run/weir.sock"),
            ("unix:/a b", Address::Unix("/a b".into()), "unix:/a b"),
        ] {
            let parsed = Address::parse(text, Some(111)).unwrap();
            assert_eq!(parsed, want, "{text}");
            assert_eq!(parsed.to_string(), shown);
            assert_eq!(shown.parse::<Address>().unwrap(), want, "{shown}");
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        let long_host = format!("{}:1", "a".repeat(256));
        let long_path = format!("/{}", "a".repeat(107));
        for text in [
            "",
            ":1",
            "host",
            "host:",
            "host:65536",
            "host:-1",
            "a:b:c",
            "[::1",
            "[::1]9",
            "[host]:1",
            "ho st:1",
            "h/x:1",
            "unix:relative",
            "unix:",
            "é:1",
            "/a\0b",
            &long_host,
            &long_path,
        ] {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn universal_addresses_have_the_forms_of_the_rfc() {
        let v4: SocketAddr = "10.1.3.7:524".parse().unwrap();
        assert_eq!(to_universal(v4), ("tcp", "10.1.3.7.2.12".into()));
        let v6: SocketAddr = "[2001:db8::5]:2049".parse().unwrap();
        assert_eq!(to_universal(v6), ("tcp6", "2001:db8::5.8.1".into()));
        for (netid, text) in [
            ("udp", "10.1.3.7.2.12"),
            ("tcp", "10.1.3.2.12"),
            ("tcp", "10.1.3.7.2.256"),
            ("tcp", "10.1.3.7.+2.1"),
            ("tcp", "10.1.3.7..1"),
            ("tcp", "1.2"),
            ("tcp", ""),
            ("tcp6", "10.1.3.7.2.12"),
            ("tcp", "::1.8.1"),
        ] {
            assert!(from_universal(netid, text).is_err(), "{netid} {text:?}");
        }
    }

    proptest! {
        #[test]
        fn universal_addresses_round_trip(ip: IpAddr, port: u16) {
            let addr = SocketAddr::new(ip, port);
            let (netid, text) = to_universal(addr);
            prop_assert_eq!(from_universal(netid, &text).unwrap(), addr);
        }

        #[test]
        fn random_text_causes_no_panic(text in "\\PC{0,40}", netid in "tcp6?|x") {
            if let Ok(address) = Address::parse(&text, Some(1)) {
                prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
            }
            let _ = from_universal(&netid, &text);
        }
    }

    #[test]
    fn boot_id_is_stable() {
        assert!(boot_id().is_some(), "Linux tells its boot id");
        assert_eq!(boot_id(), boot_id());
    }
}
