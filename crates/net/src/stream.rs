//! TCP and Unix sockets behind one face: connect, listen, accept, read, vectored write.

use crate::{Address, Error};
use bytes::BufMut;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, tcp, unix};

/// The congestion control asked for on TCP: over loopback and in one rack it beats the machine's default by far
/// when that is a delay-based one.
const CONGESTION: &str = "cubic";
/// Send buffer asked for on Unix sockets, in bytes; the system may give less.
const UNIX_SEND_BUFFER: usize = 2 << 20;
/// How long unacknowledged data or keepalive probes may stay unanswered before the connection counts as dead.
const DEAD_PEER_MS: u32 = 60_000;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The receiving half.
#[derive(Debug)]
pub(crate) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

/// The sending half.
#[derive(Debug)]
pub(crate) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

impl Stream {
    /// Connects; a host name's addresses are tried in turn.
    pub(crate) async fn connect(address: &Address) -> Result<Self, Error> {
        let connected = match address {
            Address::Tcp { host, port } => TcpStream::connect((host.as_str(), *port)).await.map(Stream::from_tcp),
            Address::Unix(path) => UnixStream::connect(path).await.map(Stream::from_unix),
        };
        connected.map_err(|e| Error::Connect { address: address.to_string().into(), reason: e.to_string().into() })
    }

    fn from_tcp(stream: TcpStream) -> Self {
        // None of these settings is needed for correctness, so a kernel without them is no reason to fail.
        let _ = stream.set_nodelay(true);
        let fd = stream.as_fd();
        if rustix::net::sockopt::set_tcp_congestion(fd, CONGESTION).is_err() {
            tracing::debug!("{CONGESTION} congestion control is not available");
        }
        let _ = rustix::net::sockopt::set_socket_keepalive(fd, true);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(fd, DEAD_PEER_MS);
        Stream::Tcp(stream)
    }

    fn from_unix(stream: UnixStream) -> Self {
        // A buffer below the payload size makes sender and receiver wake each other several times for each.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream.as_fd(), UNIX_SEND_BUFFER);
        Stream::Unix(stream)
    }

    /// The peer's address; that of a Unix socket's client is empty.
    pub(crate) fn peer(&self) -> Address {
        match self {
            Stream::Tcp(s) => s.peer_addr().map_or_else(|_| unknown(), Address::from),
            Stream::Unix(s) => {
                let path = s.peer_addr().ok().and_then(|a| a.as_pathname().map(Into::into));
                Address::Unix(path.unwrap_or_default())
            }
        }
    }

    pub(crate) fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Stream::Tcp(s) => {
                let (r, w) = s.into_split();
                (ReadHalf::Tcp(r), WriteHalf::Tcp(w))
            }
            Stream::Unix(s) => {
                let (r, w) = s.into_split();
                (ReadHalf::Unix(r), WriteHalf::Unix(w))
            }
        }
    }
}

fn unknown() -> Address {
    Address::Tcp { host: "unknown".into(), port: 0 }
}

impl ReadHalf {
    /// Appends what has arrived to `buf`, at most what it takes; 0 at the end of the stream.
    pub(crate) async fn read(&mut self, buf: &mut impl BufMut) -> io::Result<usize> {
        match self {
            ReadHalf::Tcp(half) => half.read_buf(buf).await,
            ReadHalf::Unix(half) => half.read_buf(buf).await,
        }
    }
}

impl WriteHalf {
    pub(crate) fn try_write_vectored(&self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            WriteHalf::Tcp(half) => half.try_write_vectored(parts),
            WriteHalf::Unix(half) => half.try_write_vectored(parts),
        }
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            WriteHalf::Tcp(half) => half.writable().await,
            WriteHalf::Unix(half) => half.writable().await,
        }
    }

    /// Ends both directions, so that reads and writes in progress return.
    pub(crate) fn shutdown(&self) {
        // Fails only when the peer is gone already.
        let _ = rustix::net::shutdown(self.as_fd(), rustix::net::Shutdown::Both);
    }
}

impl AsFd for WriteHalf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            WriteHalf::Tcp(half) => half.as_ref().as_fd(),
            WriteHalf::Unix(half) => half.as_ref().as_fd(),
        }
    }
}

/// A listening socket; that of a path removes the path again when dropped.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens at `address`; port 0 takes any free port. A socket path left behind by a dead process is replaced, one
    /// that somebody still answers on is an error.
    pub async fn bind(address: &Address) -> Result<Self, Error> {
        let failed = |e: io::Error| {
            let hint = match e.kind() {
                io::ErrorKind::AddrInUse => " (is another daemon running here? choose another port or stop it)",
                io::ErrorKind::PermissionDenied => " (ports below 1024 need privileges; choose a higher one)",
                _ => "",
            };
            Error::Listen { address: address.to_string().into(), reason: format!("{e}{hint}").into() }
        };
        match address {
            Address::Tcp { host, port } => {
                let listener = TcpListener::bind((host.as_str(), *port)).await.map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?.into();
                Ok(Listener { socket: Socket::Tcp(listener), address })
            }
            Address::Unix(path) => {
                let listener = match UnixListener::bind(path) {
                    Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_stale_socket(path).await => {
                        std::fs::remove_file(path).map_err(failed)?;
                        UnixListener::bind(path)
                    }
                    other => other,
                };
                Ok(Listener { socket: Socket::Unix(listener.map_err(failed)?), address: address.clone() })
            }
        }
    }

    /// Where it listens, with the port really taken.
    pub fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(listener) => Ok(Stream::from_tcp(listener.accept().await?.0)),
            Socket::Unix(listener) => Ok(Stream::from_unix(listener.accept().await?.0)),
        }
    }
}

/// Whether `path` is a socket on which nobody listens.
async fn is_stale_socket(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).await.is_err_and(refused)
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // Already gone is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}
