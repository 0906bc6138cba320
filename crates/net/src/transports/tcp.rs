//! The TCP transport of RPC connections.

use crate::Address;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// The congestion control that connections request. On loopback and within a rack, `cubic` is much faster than a
/// delay-based algorithm, and the default of the system may be such an algorithm.
const CONGESTION: &str = "cubic";
/// How long the peer may leave sent data or keepalive probes unacknowledged, in milliseconds. After this time, the
/// kernel closes the connection.
const DEAD_PEER_MS: u32 = 60_000;

/// The local ports below 1024 that a connect tries, from the highest to the lowest, as the Linux NFS client does.
const RESERVED: std::ops::RangeInclusive<u16> = 665..=1023;

/// Connects to a host and port. For a host name, tries its IP addresses one after the other. With `reserved`, connects
/// to other machines from a local port below 1024 if possible.
pub(super) async fn connect(host: &str, port: u16, reserved: bool) -> io::Result<TcpStream> {
    if reserved && rustix::process::geteuid().is_root() {
        let mut last = None;
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            tokio::net::lookup_host((host, port)).await?.partition(|address| address.ip().is_loopback());
        for address in elsewhere {
            match connect_reserved(address).await {
                Ok(stream) => return Ok(prepared(stream)),
                // All reserved ports are in use, or this process runs in a container whose root may not use reserved
                // ports. So connect from a port above 1023. The server may then refuse requests that it would accept
                // from a reserved port.
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
        // With SO_REUSEADDR, several connections can use the same local port if their destinations differ.
        socket.set_reuseaddr(true)?;
        let connected = match socket.bind(SocketAddr::new(from, port)) {
            Ok(()) => socket.connect(to).await,
            Err(e) => Err(e),
        };
        match connected {
            Err(e) if is_of_the_port(&e) => last = e,
            connected => {
                let stream = connected?;
                // With SO_LINGER 0, a closed connection does not block its port for a minute in TIME_WAIT. There are
                // few reserved ports. No data are lost, because the connection is closed only after all replies have
                // arrived.
                rustix::net::sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO))?;
                return Ok(stream);
            }
        }
    }
    Err(last)
}

/// Listens at a host and port. Returns the address with the actual port.
pub(super) async fn bind(host: &str, port: u16) -> io::Result<(TcpListener, Address)> {
    let listener = TcpListener::bind((host, port)).await?;
    let address = listener.local_addr()?.into();
    Ok((listener, address))
}

/// Waits for a connection and accepts it.
pub(super) async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    Ok(prepared(listener.accept().await?.0))
}

/// Returns the address of the peer.
pub(super) fn peer(stream: &TcpStream) -> Address {
    let unknown = |_| Address::Tcp { host: "unknown".into(), port: 0 };
    stream.peer_addr().map_or_else(unknown, Address::from)
}

fn prepared(stream: TcpStream) -> TcpStream {
    // Ignore errors of the following socket options: the connection also works on a kernel without these options.
    let _ = stream.set_nodelay(true);
    let fd = stream.as_fd();
    if rustix::net::sockopt::set_tcp_congestion(fd, CONGESTION).is_err() {
        tracing::debug!(congestion = CONGESTION, "the kernel does not have this congestion control");
    }
    let _ = rustix::net::sockopt::set_socket_keepalive(fd, true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(fd, DEAD_PEER_MS);
    stream
}
