//! The local socket hint: clients on the mgr's host learn the path of the mgr's Unix socket.
//!
//! A client connects by TCP and requests the path (LOCAL_SOCKET). The mgr returns the path only if no proxy is in the
//! connection, because a proxy may enforce a restriction. The client must also see the same exports over TCP and over
//! the socket. On the socket, the kernel reports the user of the client process, so that only a process of root can act
//! for other users ([`crate::caller`]).

use crate::caller::Seen;
use crate::exports::Exports;
use net::rpc::Connection;
use net::{Address, Listener};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use wire::admin::{LocalSocketArgs, LocalSocketReply};
use wire::native::Local;

/// Name of the Unix socket in the mgr's directory.
const SOCKET: &str = "mgr.sock";

/// The Unix socket of the mgr, and the random number of this start of the mgr.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalSocket {
    run: u64,
    local: Option<Local>,
}

/// Listens on the Unix socket in the directory of the mgr. No other process may use the directory. If listening fails,
/// clients use TCP.
pub(crate) async fn listen(dir: &Path, run: u64) -> (LocalSocket, Option<Listener>) {
    match bind(dir).await {
        Ok((local, listener)) => (LocalSocket { run, local: Some(local) }, Some(listener)),
        Err(reason) => {
            tracing::info!("no Unix socket, clients of this machine will use TCP: {reason}");
            (LocalSocket { run, local: None }, None)
        }
    }
}

async fn bind(dir: &Path) -> Result<(Local, Listener), String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|e| e.to_string())?;
    let path = dir.canonicalize().map_err(|e| e.to_string())?.join(SOCKET);
    let path = path.to_str().ok_or("its path would not be UTF-8")?.to_owned();
    let address = Address::parse(&path, None).map_err(|e| e.to_string())?;
    let listener = Listener::bind(&address).await.map_err(|e| e.to_string())?;
    // Let all users connect, as all users can to a TCP port of this host. The mode of the directory may still restrict
    // access.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).map_err(|e| e.to_string())?;
    Ok((Local { host: host.trim().to_owned(), path }, listener))
}

impl LocalSocket {
    /// Returns the reply to LOCAL_SOCKET for the client at the other end of `peer`.
    pub(crate) fn answer(&self, args: &LocalSocketArgs, peer: &Connection, exports: &Exports) -> LocalSocketReply {
        self.tell(args, peer.peer(), || exports.view(Seen::of(peer)) == exports.view(Seen::NEARBY))
    }

    /// Returns the reply to LOCAL_SOCKET for an administrator, who need not see any export.
    pub(crate) fn answer_to_administer(&self, args: &LocalSocketArgs, seen: &Address) -> LocalSocketReply {
        self.tell(args, seen, || true)
    }

    fn tell(&self, args: &LocalSocketArgs, seen: &Address, may_know: impl FnOnce() -> bool) -> LocalSocketReply {
        let is_direct = place(seen).is_some_and(|seen| args.from.parse().ok().as_ref().and_then(place) == Some(seen));
        let local = self.local.clone().filter(|_| is_direct && may_know());
        // Send the random number of the mgr only to clients of this host. Otherwise a process on another host could
        // listen at the same path, and pose as this mgr with this number.
        let is_here = local.is_some() || matches!(seen, Address::Unix(_));
        LocalSocketReply { run: if is_here { self.run } else { 0 }, local }
    }
}

/// Returns the IP address and the port of a TCP address. IPv4-mapped IPv6 addresses are converted to IPv4.
fn place(address: &Address) -> Option<(IpAddr, u16)> {
    match address {
        Address::Tcp { host, port } => Some((host.parse::<IpAddr>().ok()?.to_canonical(), *port)),
        Address::Unix(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_compared_by_value_not_by_text() {
        let place = |text: &str| text.parse().ok().as_ref().and_then(place);
        assert_eq!(place("127.0.0.1:7"), place("[::ffff:127.0.0.1]:7"));
        assert!(place("127.0.0.1:7").is_some() && place("127.0.0.1:7") != place("127.0.0.1:8"));
        assert_ne!(place("127.0.0.1:7"), place("[::1]:7"));
        assert_eq!(place("somewhere:7"), None);
        assert_eq!(place("/run/mgr.sock"), None);
    }
}
