//! Unix sockets, for peers on one host.

use crate::Address;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use tokio::net::{UnixListener, UnixStream};

/// Send buffer asked for, in bytes; the system may give less.
const SEND_BUFFER: usize = 2 << 20;

/// Connects.
pub(super) async fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await.map(prepared)
}

/// Listens. A socket path left behind by a dead process is replaced, one that somebody still answers on is an error.
pub(super) async fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_stale(path).await => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// Waits for a peer.
pub(super) async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    Ok(prepared(listener.accept().await?.0))
}

/// The peer's address; that of a client is empty.
pub(super) fn peer(stream: &UnixStream) -> Address {
    let path = stream.peer_addr().ok().and_then(|a| a.as_pathname().map(Into::into));
    Address::Unix(path.unwrap_or_default())
}

fn prepared(stream: UnixStream) -> UnixStream {
    // A buffer below the payload size makes sender and receiver wake each other several times for each.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream.as_fd(), SEND_BUFFER);
    stream
}

/// Whether `path` is a socket on which nobody listens.
async fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).await.is_err_and(refused)
}
