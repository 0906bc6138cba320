//! The transports of RPC connections behind one interface: TCP, Unix sockets, and simulated networks.

pub mod memory;
mod tcp;
mod unix;

use crate::{Address, Error, User};
use bytes::BufMut;
use memory::{Pipe, Port};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Returns a new connection number. No other connection of this process, or of the simulated network of this thread,
/// has the same number.
pub(crate) fn connection_id() -> u64 {
    memory::installed().map_or_else(|| NEXT_ID.fetch_add(1, Relaxed), |network| network.connection_id())
}

/// A connected socket of any transport.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Memory(Arc<dyn Pipe>),
}

/// The receiving half of a connected socket.
#[derive(Debug)]
pub(crate) enum ReadHalf {
    Tcp(tokio::net::tcp::OwnedReadHalf),
    Unix(unix::Receiving),
    Memory(Arc<dyn Pipe>),
}

/// The sending half of a connected socket.
#[derive(Debug)]
pub(crate) enum WriteHalf {
    Tcp(tokio::net::tcp::OwnedWriteHalf),
    Unix(unix::Sending),
    Memory(Arc<dyn Pipe>),
}

impl Stream {
    /// Connects to an address. For a host name, tries its IP addresses one after the other. For `reserved` see
    /// [`crate::rpc::Limits::reserved_port`].
    pub(crate) async fn connect(address: &Address, reserved: bool) -> Result<Self, Error> {
        let connected = match address {
            Address::Tcp { host, port } => match memory::installed().map(|network| network.connect(host, *port)) {
                Some(connecting) => connecting.await.map(Stream::Memory),
                None => tcp::connect(host, *port, reserved).await.map(Stream::Tcp),
            },
            Address::Unix(path) => unix::connect(path).await.map(Stream::Unix),
        };
        connected.map_err(|e| Error::Connect { address: address.to_string().into(), reason: e.to_string().into() })
    }

    /// Returns the address of the peer; an empty address if the peer is a client on a Unix socket.
    pub(crate) fn peer(&self) -> Address {
        match self {
            Stream::Tcp(s) => tcp::peer(s),
            Stream::Unix(s) => unix::peer(s),
            Stream::Memory(pipe) => pipe.peer(),
        }
    }

    /// Returns the address of this end of the connection; `None` if the connection does not use TCP.
    pub(crate) fn local(&self) -> Option<Address> {
        match self {
            Stream::Tcp(s) => s.local_addr().ok().map(Address::from),
            Stream::Unix(_) | Stream::Memory(_) => None,
        }
    }

    /// Returns the user of the peer of a Unix socket, at the time when the peer connected or began to listen; `None`
    /// for other transports.
    pub(crate) fn peer_user(&self) -> Option<User> {
        match self {
            Stream::Unix(s) => s.peer_cred().ok().map(User::of),
            Stream::Tcp(_) | Stream::Memory(_) => None,
        }
    }

    /// Splits the socket into its receiving half and its sending half.
    ///
    /// # Errors
    /// When the tokio runtime cannot register the socket for readiness events.
    pub(crate) fn into_split(self) -> io::Result<(ReadHalf, WriteHalf)> {
        Ok(match self {
            Stream::Tcp(s) => {
                let (r, w) = s.into_split();
                (ReadHalf::Tcp(r), WriteHalf::Tcp(w))
            }
            Stream::Unix(s) => {
                let (r, w) = unix::into_split(s)?;
                (ReadHalf::Unix(r), WriteHalf::Unix(w))
            }
            Stream::Memory(pipe) => (ReadHalf::Memory(pipe.clone()), WriteHalf::Memory(pipe)),
        })
    }
}

impl ReadHalf {
    /// Waits for bytes and appends them to `buf`, at most as many as its spare capacity. Returns the number of bytes, 0
    /// at the end of the stream.
    pub(crate) async fn read(&mut self, buf: &mut impl BufMut) -> io::Result<usize> {
        match self {
            ReadHalf::Tcp(half) => half.read_buf(buf).await,
            ReadHalf::Unix(half) => half.read(buf).await,
            ReadHalf::Memory(pipe) => {
                // Read at most as many bytes as the current chunk of the buffer can hold, as a read from a real socket
                // does.
                let max = buf.chunk_mut().len();
                let bytes = poll_fn(|cx| pipe.poll_read(cx, max)).await?;
                let len = bytes.len();
                buf.put(bytes);
                Ok(len)
            }
        }
    }
}

impl WriteHalf {
    pub(crate) fn try_write_vectored(&self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            WriteHalf::Tcp(half) => half.try_write_vectored(parts),
            WriteHalf::Unix(half) => half.try_write_vectored(parts),
            WriteHalf::Memory(pipe) => pipe.try_write_vectored(parts),
        }
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            WriteHalf::Tcp(half) => half.writable().await,
            WriteHalf::Unix(half) => half.writable().await,
            WriteHalf::Memory(pipe) => poll_fn(|cx| pipe.poll_writable(cx)).await,
        }
    }

    /// Closes the connection in both directions, so that blocked reads and writes return.
    pub(crate) fn shutdown(&self) {
        let both = rustix::net::Shutdown::Both;
        // `shutdown` fails only if the peer has already closed the connection, so ignore the error.
        let _ = match self {
            WriteHalf::Tcp(half) => rustix::net::shutdown(half.as_ref(), both),
            WriteHalf::Unix(half) => rustix::net::shutdown(half, both),
            WriteHalf::Memory(pipe) => {
                pipe.shutdown();
                Ok(())
            }
        };
    }
}

/// A listening socket. Dropping a listener on a Unix socket removes the socket's path.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
    Memory(Arc<dyn Port>),
}

impl Listener {
    /// Listens at `address`. For port 0 the system chooses a free port. Replaces the socket file that a dead process
    /// has left at a path; fails if a process still listens there.
    pub async fn bind(address: &Address) -> Result<Self, Error> {
        let bound = match address {
            Address::Tcp { host, port } => match memory::installed() {
                Some(network) => network.bind(host, *port).map(|port| (Socket::Memory(port), address.clone())),
                None => tcp::bind(host, *port).await.map(|(listener, address)| (Socket::Tcp(listener), address)),
            },
            Address::Unix(path) => unix::bind(path).await.map(|listener| (Socket::Unix(listener), address.clone())),
        };
        let (socket, address) = bound.map_err(|e| {
            let hint = match e.kind() {
                io::ErrorKind::AddrInUse => " (is another daemon running here? choose another port or stop it)",
                io::ErrorKind::PermissionDenied => " (ports below 1024 need privileges; choose a higher one)",
                _ => "",
            };
            Error::Listen { address: address.to_string().into(), reason: format!("{e}{hint}").into() }
        })?;
        Ok(Listener { socket, address })
    }

    /// Returns the address of the listener, with the actual port in place of port 0.
    pub fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(listener) => tcp::accept(listener).await.map(Stream::Tcp),
            Socket::Unix(listener) => unix::accept(listener).await.map(Stream::Unix),
            Socket::Memory(port) => poll_fn(|cx| port.poll_accept(cx)).await.map(Stream::Memory),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // Ignore an error of this removal: another process may have removed the path already.
            let _ = std::fs::remove_file(path);
        }
    }
}
