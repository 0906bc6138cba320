//! TCP sockets.

use crate::Address;
use std::io;
use std::os::fd::AsFd;
use tokio::net::{TcpListener, TcpStream};

/// The congestion control asked for: over loopback and in one rack it beats the machine's default by far when that is
/// a delay-based one.
const CONGESTION: &str = "cubic";
/// How long unacknowledged data or keepalive probes may stay unanswered before the connection counts as dead.
const DEAD_PEER_MS: u32 = 60_000;

/// Connects; a host name's addresses are tried in turn.
pub(super) async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    TcpStream::connect((host, port)).await.map(prepared)
}

/// Listens, and tells where with the port really taken.
pub(super) async fn bind(host: &str, port: u16) -> io::Result<(TcpListener, Address)> {
    let listener = TcpListener::bind((host, port)).await?;
    let address = listener.local_addr()?.into();
    Ok((listener, address))
}

/// Waits for a peer.
pub(super) async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    Ok(prepared(listener.accept().await?.0))
}

/// The peer's address.
pub(super) fn peer(stream: &TcpStream) -> Address {
    let unknown = |_| Address::Tcp { host: "unknown".into(), port: 0 };
    stream.peer_addr().map_or_else(unknown, Address::from)
}

fn prepared(stream: TcpStream) -> TcpStream {
    // None of these settings is needed for correctness, so a kernel without them is no reason to fail.
    let _ = stream.set_nodelay(true);
    let fd = stream.as_fd();
    if rustix::net::sockopt::set_tcp_congestion(fd, CONGESTION).is_err() {
        tracing::debug!("{CONGESTION} congestion control is not available");
    }
    let _ = rustix::net::sockopt::set_socket_keepalive(fd, true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(fd, DEAD_PEER_MS);
    stream
}
