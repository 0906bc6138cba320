//! The caller of a request: its user, as the kernel or the request names it, and its network address.

use net::Address;
use net::rpc::Connection;
use nfs::server::Call;
use nfs::state::Principal;
use std::net::{IpAddr, Ipv4Addr};
use types::Cred;
use wire::rpc::Auth;

/// Returns the trusted identity of the caller; `None` for credentials of an unsupported kind.
///
/// On a Unix socket the kernel names the peer's user. Only the superuser may act for other users, as a mount does.
pub(crate) fn identity(peer: &Connection, auth: &Auth) -> Option<(Principal, Cred)> {
    let claimed = Call::identity(auth)?;
    Some(match peer.peer_identity() {
        Some(user) if user.uid != 0 => {
            (Principal::Sys(user.uid), Cred { uid: user.uid, gid: user.gid, groups: user.groups.clone() })
        }
        _ => claimed,
    })
}

/// The properties of a peer that exports check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// The address of the caller, the same for equivalent IPv4 and IPv6 addresses; 127.0.0.1 for a Unix socket.
    pub(crate) ip: Option<IpAddr>,
    /// Whether the superuser of the peer's host vouches for the request, or the peer is on this host.
    pub(crate) privileged: bool,
}

impl Seen {
    /// A peer at this host's Unix socket.
    pub(crate) const NEARBY: Seen = Seen { ip: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), privileged: true };

    /// Returns the properties of the peer of a connection.
    pub(crate) fn of(peer: &Connection) -> Self {
        Seen::at(peer.peer(), peer.local(), peer.peer_user())
    }

    fn at(peer: &Address, local: Option<&Address>, user: Option<u32>) -> Self {
        let Address::Tcp { port, .. } = peer else { return Seen::NEARBY };
        let (ip, own) = (peer.ip(), local.and_then(Address::ip));
        let is_here = ip.is_some_and(|ip| ip.is_loopback() || Some(ip) == own);
        // A client in this process has the mgr's listening address as its peer address, so the port does not say whether
        // it is privileged. Such a connection has a user; a TCP connection has none.
        Seen { ip, privileged: *port < 1024 || is_here || user.is_some() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_superuser_can_use_ports_below_1024() {
        let here = "10.0.0.9:2049".parse().ok();
        let privileged = |text: &str| Seen::at(&text.parse().unwrap(), here.as_ref(), None).privileged;
        assert!(privileged("10.0.0.1:1023") && privileged("127.8.0.1:40000") && privileged("[::1]:40000"));
        assert!(privileged("/a/socket") && privileged("10.0.0.9:40000") && privileged("[::ffff:127.0.0.1]:40000"));
        let mount = Seen::at(&"10.0.0.1:2049".parse().unwrap(), None, Some(0));
        assert!(mount.privileged, "the mount of weir up is in the process of the mgr");
        assert!(!privileged("10.0.0.1:1024") && !privileged("[fd00::7]:40000") && !privileged("somewhere:40000"));
    }
}
