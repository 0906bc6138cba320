//! The caller of an RPC request: its user, from the kernel or from the RPC credential, and its network address.

use net::Address;
use net::rpc::Connection;
use nfs::server::Call;
use nfs::state::Principal;
use std::net::{IpAddr, Ipv4Addr};
use types::Cred;
use wire::rpc::Auth;

/// Returns the user identity of a request; `None` if the kind of its RPC credential is not supported.
///
/// On a Unix socket, the kernel reports the user of the peer process. A peer process of root, such as a mount, may act
/// for every user. Any other peer process may act only for its own user.
pub(crate) fn identity(peer: &Connection, auth: &Auth) -> Option<(Principal, Cred)> {
    let claimed = Call::identity(auth)?;
    Some(match peer.peer_identity() {
        Some(user) if user.uid != 0 => {
            (Principal::Sys(user.uid), Cred { uid: user.uid, gid: user.gid, groups: user.groups.clone() })
        }
        _ => claimed,
    })
}

/// The properties of a peer by which the mgr decides which exports the peer sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// IP address of the peer. IPv4-mapped IPv6 addresses are converted to IPv4. A peer at the Unix socket counts as
    /// 127.0.0.1.
    pub(crate) ip: Option<IpAddr>,
    /// Whether the peer runs on this host, or uses a source port below 1024. Only the superuser of a host may use such
    /// a port.
    pub(crate) privileged: bool,
}

impl Seen {
    /// The properties of every peer at the Unix socket of the mgr.
    pub(crate) const NEARBY: Seen = Seen { ip: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), privileged: true };

    /// Returns the properties of the peer at the other end of a connection.
    pub(crate) fn of(peer: &Connection) -> Self {
        Seen::at(peer.peer(), peer.local(), peer.peer_user())
    }

    fn at(peer: &Address, local: Option<&Address>, user: Option<u32>) -> Self {
        let Address::Tcp { port, .. } = peer else { return Seen::NEARBY };
        let (ip, own) = (peer.ip(), local.and_then(Address::ip));
        let is_here = ip.is_some_and(|ip| ip.is_loopback() || Some(ip) == own);
        // For a client in the mgr's own process, the peer address is the mgr's listening address, whose port does not
        // show whether the client is privileged. Such a connection has a peer user, unlike a TCP connection, so a
        // connection with a peer user counts as privileged.
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
