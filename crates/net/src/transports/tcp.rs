//! The TCP transport.

use crate::Address;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// The requested congestion control. Over loopback and in one rack it is much faster than a delay-based system default.
const CONGESTION: &str = "cubic";
/// How long unacknowledged data or keepalive probes may stay unanswered before the connection counts as dead.
const DEAD_PEER_MS: u32 = 60_000;

/// The ports below 1024 to try, from the highest down, as the Linux NFS client does.
const RESERVED: std::ops::RangeInclusive<u16> = 665..=1023;

/// Connects; tries the addresses of a host name in turn. With `reserved`, uses a port below 1024 for another machine,
/// if one is available.
pub(super) async fn connect(host: &str, port: u16, reserved: bool) -> io::Result<TcpStream> {
    if reserved && rustix::process::geteuid().is_root() {
        let mut last = None;
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            tokio::net::lookup_host((host, port)).await?.partition(|address| address.ip().is_loopback());
        for address in elsewhere {
            match connect_reserved(address).await {
                Ok(stream) => return Ok(prepared(stream)),
                // All ports are in use, or this is only root in a container. From another port the server may refuse
                // requests that it would accept from a reserved port.
                Err(e) if is_of_the_port(&e) => {
                    tracing::warn!(%address, error = %e, "cannot use a local port below 1024")
                }
                Err(e) => last = Some(e),
            }
        }
        if let Some(e) = last.filter(|_| here.is_empty()) {
            return Err(e);
        }
    }
    TcpStream::connect((host, port)).await.map(prepared)
}

fn is_of_the_port(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
    matches!(error.kind(), AddrInUse | AddrNotAvailable | PermissionDenied)
}

async fn connect_reserved(to: SocketAddr) -> io::Result<TcpStream> {
    let from: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in RESERVED.rev() {
        let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Several connections may share a port if their destinations differ.
        socket.set_reuseaddr(true)?;
        let connected = match socket.bind(SocketAddr::new(from, port)) {
            Ok(()) => socket.connect(to).await,
            Err(e) => Err(e),
        };
        match connected {
            Err(e) if is_of_the_port(&e) => last = e,
            connected => {
                let stream = connected?;
                // The connection is closed only after all calls are answered. Without this, TIME_WAIT would block one
                // of the few ports for a minute.
                rustix::net::sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO))?;
                return Ok(stream);
            }
        }
    }
    Err(last)
}

/// Listens; returns the address with the actual port.
pub(super) async fn bind(host: &str, port: u16) -> io::Result<(TcpListener, Address)> {
    let listener = TcpListener::bind((host, port)).await?;
    let address = listener.local_addr()?.into();
    Ok((listener, address))
}

/// Waits for a connection.
pub(super) async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    Ok(prepared(listener.accept().await?.0))
}

/// Returns the peer's address.
pub(super) fn peer(stream: &TcpStream) -> Address {
    let unknown = |_| Address::Tcp { host: "unknown".into(), port: 0 };
    stream.peer_addr().map_or_else(unknown, Address::from)
}

fn prepared(stream: TcpStream) -> TcpStream {
    // These settings are optional: a kernel without them is no reason to fail.
    let _ = stream.set_nodelay(true);
    let fd = stream.as_fd();
    if rustix::net::sockopt::set_tcp_congestion(fd, CONGESTION).is_err() {
        tracing::debug!(congestion = CONGESTION, "the kernel does not have this congestion control");
    }
    let _ = rustix::net::sockopt::set_socket_keepalive(fd, true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(fd, DEAD_PEER_MS);
    stream
}
