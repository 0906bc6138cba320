//! The Unix socket of the mgr for clients on the same host, and the check of which clients learn its path.
//!
//! A client connects by TCP and asks for the path (NEAR). It gets the path only if its connection is direct, because a
//! proxy may be there for a reason, and if it sees the same exports over both. At the socket the kernel names the
//! calling user ([`crate::caller`]).

use crate::caller::Seen;
use crate::exports::Exports;
use net::rpc::Connection;
use net::{Address, Listener};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use wire::admin::{NearArgs, NearReply};
use wire::native::Local;

/// Name of the socket in the mgr's directory.
const SOCKET: &str = "mgr.sock";

/// The socket, and the number of this run of the mgr.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalSocket {
    run: u64,
    local: Option<Local>,
}

/// Listens in the directory of a mgr, which no other process uses; if this fails, clients use TCP.
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
    // A user who may connect to a TCP port of this host may connect here too, if the directory's mode allows it.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).map_err(|e| e.to_string())?;
    Ok((Local { host: host.trim().to_owned(), path }, listener))
}

impl LocalSocket {
    /// Returns the answer to a client that connects from `peer`.
    pub(crate) fn answer(&self, args: &NearArgs, peer: &Connection, exports: &Exports) -> NearReply {
        self.tell(args, peer.peer(), || exports.view(Seen::of(peer)) == exports.view(Seen::NEARBY))
    }

    /// Returns the answer to an administrator, who needs no export.
    pub(crate) fn answer_to_administer(&self, args: &NearArgs, seen: &Address) -> NearReply {
        self.tell(args, seen, || true)
    }

    fn tell(&self, args: &NearArgs, seen: &Address, may_know: impl FnOnce() -> bool) -> NearReply {
        let is_direct = place(seen).is_some_and(|seen| args.from.parse().ok().as_ref().and_then(place) == Some(seen));
        let local = self.local.clone().filter(|_| is_direct && may_know());
        // With this number another process could pose as this mgr at the path of the socket, on a host where that path
        // is another file.
        let is_here = local.is_some() || matches!(seen, Address::Unix(_));
        NearReply { run: if is_here { self.run } else { 0 }, local }
    }
}

/// Returns address and port, the same for equivalent IPv4 and IPv6 addresses.
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
