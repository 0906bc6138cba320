//! The Unix socket transport of RPC connections, for peers on the same host.

use crate::Address;
use bytes::BufMut;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};

/// Size of the send buffer that sockets request, in bytes. The system may grant less.
const SEND_BUFFER: usize = 2 << 20;

/// Connects to the Unix socket at this path.
pub(super) async fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await.map(prepared)
}

/// Listens on a Unix socket at this path. Replaces the socket file that a dead process has left; fails if a process
/// still listens there.
pub(super) async fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_stale(path).await => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// Waits for a connection and accepts it.
pub(super) async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    Ok(prepared(listener.accept().await?.0))
}

/// Returns the path of the peer's socket; an empty path if the peer is a client.
pub(super) fn peer(stream: &UnixStream) -> Address {
    let path = stream.peer_addr().ok().and_then(|a| a.as_pathname().map(Into::into));
    Address::Unix(path.unwrap_or_default())
}

/// The receiving half of a Unix socket, registered with epoll for readability only. The kernel also signals
/// writability each time the peer has received data. If the reader waited for readability and writability, it would
/// wake up twice for each request.
#[derive(Debug)]
pub(crate) struct Receiving(AsyncFd<Arc<OwnedFd>>);

/// The sending half of a Unix socket, registered with epoll for writability only while the socket buffer is full.
#[derive(Debug)]
pub(crate) struct Sending(Arc<OwnedFd>);

/// Splits a connected Unix socket into its receiving half and its sending half.
pub(super) fn into_split(stream: UnixStream) -> io::Result<(Receiving, Sending)> {
    let socket = Arc::new(OwnedFd::from(stream.into_std()?));
    // SAFETY: `AsyncFd` requires that the descriptor stays open and is not replaced while it is registered. The `Arc`
    // owns the descriptor, and nothing closes the descriptor while a clone of the `Arc` exists.
    let receiving = unsafe { AsyncFd::register_with_interest(socket.clone(), Interest::READABLE) }?;
    Ok((Receiving(receiving), Sending(socket)))
}

impl Receiving {
    /// Waits for bytes and appends them to `buf`, at most as many as its spare capacity. Returns the number of bytes, 0
    /// at the end of the stream.
    pub(crate) async fn read(&mut self, buf: &mut impl BufMut) -> io::Result<usize> {
        loop {
            // `poll_read_ready` uses tokio's task budget, so that a connection with much data yields to other tasks
            // now and then.
            let mut ready = poll_fn(|cx| self.0.poll_read_ready(cx)).await?;
            // SAFETY: the slice must not be used to write uninitialized bytes. Only `recv` writes to it, and `recv`
            // writes initialized bytes.
            let room = unsafe { buf.chunk_mut().as_uninit_slice_mut() };
            let len = room.len();
            let received = ready.try_io(|socket| {
                let ((received, _), _) = rustix::net::recv(socket.get_ref(), room, RecvFlags::DONTWAIT)?;
                Ok(received.len())
            });
            match received {
                Err(_would_block) => {}
                Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(e)) => return Err(e),
                Ok(Ok(n)) => {
                    if n > 0 && n < len {
                        // `recv` returned fewer bytes than requested, so the socket buffer is empty. Clear the
                        // readiness of the socket, so that the next call waits for an event.
                        ready.clear_ready();
                    }
                    // SAFETY: `recv` has initialized the first `n` bytes of the spare capacity of `buf`.
                    unsafe { buf.advance_mut(n) };
                    return Ok(n);
                }
            }
        }
    }
}

impl Sending {
    /// Sends as many bytes as the socket accepts now, without blocking.
    pub(crate) fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::sendmsg(&self.0, parts, &mut SendAncillaryBuffer::default(), flags)?)
    }

    /// Waits until the socket accepts data or has an error.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        // Register a duplicate of the descriptor, because the receiving half has already registered the descriptor
        // itself.
        let again = self.0.try_clone()?;
        // SAFETY: `AsyncFd` requires that the descriptor stays open and is not replaced while it is registered. The
        // `AsyncFd` owns this duplicate, and closes it only when dropped.
        let again = unsafe { AsyncFd::register_with_interest(again, Interest::WRITABLE) }?;
        again.writable().await?.retain_ready();
        Ok(())
    }
}

impl AsFd for Sending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn prepared(stream: UnixStream) -> UnixStream {
    // Request a send buffer larger than a payload. With a smaller buffer, sender and receiver wake each other several
    // times for each payload.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream.as_fd(), SEND_BUFFER);
    stream
}

/// Returns whether `path` is a socket on which no process listens.
async fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).await.is_err_and(refused)
}
