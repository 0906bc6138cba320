//! The Unix socket transport, for peers on one host.

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

/// Requested send buffer size in bytes; the system may grant less.
const SEND_BUFFER: usize = 2 << 20;

/// Connects to a socket path.
pub(super) async fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await.map(prepared)
}

/// Listens. Replaces a socket path that a dead process left behind; fails if a process still listens on it.
pub(super) async fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_stale(path).await => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// Waits for a connection.
pub(super) async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    Ok(prepared(listener.accept().await?.0))
}

/// Returns the peer's address; empty for a client.
pub(super) fn peer(stream: &UnixStream) -> Address {
    let path = stream.peer_addr().ok().and_then(|a| a.as_pathname().map(Into::into));
    Address::Unix(path.unwrap_or_default())
}

/// The receiving half, registered for readability only. A Unix socket also signals writability whenever its peer has
/// received data, which would wake the reader twice for each exchange.
#[derive(Debug)]
pub(crate) struct Receiving(AsyncFd<Arc<OwnedFd>>);

/// The sending half, registered for writability only while the socket is full.
#[derive(Debug)]
pub(crate) struct Sending(Arc<OwnedFd>);

/// Splits a connection into both halves.
pub(super) fn into_split(stream: UnixStream) -> io::Result<(Receiving, Sending)> {
    let socket = Arc::new(OwnedFd::from(stream.into_std()?));
    // SAFETY: an owned descriptor in an `Arc` stays the same and open for as long as a clone exists.
    let receiving = unsafe { AsyncFd::register_with_interest(socket.clone(), Interest::READABLE) }?;
    Ok((Receiving(receiving), Sending(socket)))
}

impl Receiving {
    /// Appends arrived bytes to `buf`, up to its remaining space; returns 0 at the end of the stream.
    pub(crate) async fn read(&mut self, buf: &mut impl BufMut) -> io::Result<usize> {
        loop {
            // `poll_read_ready` makes long streams yield to other tasks occasionally.
            let mut ready = poll_fn(|cx| self.0.poll_read_ready(cx)).await?;
            // SAFETY: only received bytes are written to the buffer space.
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
                        // The socket is empty now, so wait for the next readiness event.
                        ready.clear_ready();
                    }
                    // SAFETY: recv has just initialized this many bytes of the space.
                    unsafe { buf.advance_mut(n) };
                    return Ok(n);
                }
            }
        }
    }
}

impl Sending {
    /// Sends as much as the socket accepts now.
    pub(crate) fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::sendmsg(&self.0, parts, &mut SendAncillaryBuffer::default(), flags)?)
    }

    /// Waits until the socket accepts data or is broken.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        // The receiving half has registered the descriptor itself, for readability, so register a duplicate.
        let again = self.0.try_clone()?;
        // SAFETY: an owned descriptor stays the same and open until it is dropped.
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
    // With a buffer smaller than a payload, sender and receiver would wake each other several times per payload.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream.as_fd(), SEND_BUFFER);
    stream
}

/// Returns whether `path` is a socket without a listener.
async fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).await.is_err_and(refused)
}
