//! Unix sockets, for peers on one host.

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

/// The receiving half. It is told of what there is to receive and of nothing else: a Unix socket says that there is room again
/// whenever its peer has received something, which would wake its reader twice for every exchange.
#[derive(Debug)]
pub(crate) struct Receiving(AsyncFd<Arc<OwnedFd>>);

/// The sending half. It asks to be told of room only while there is none.
#[derive(Debug)]
pub(crate) struct Sending(Arc<OwnedFd>);

/// Both halves of a connection.
pub(super) fn into_split(stream: UnixStream) -> io::Result<(Receiving, Sending)> {
    let socket = Arc::new(OwnedFd::from(stream.into_std()?));
    // SAFETY: an owned descriptor behind an `Arc` is the same and open for as long as there is a clone.
    let receiving = unsafe { AsyncFd::register_with_interest(socket.clone(), Interest::READABLE) }?;
    Ok((Receiving(receiving), Sending(socket)))
}

impl Receiving {
    /// Appends what has arrived to `buf`, at most what it takes; 0 at the end of the stream.
    pub(crate) async fn read(&mut self, buf: &mut impl BufMut) -> io::Result<usize> {
        loop {
            // The way that has long streams yield to other tasks now and then.
            let mut ready = poll_fn(|cx| self.0.poll_read_ready(cx)).await?;
            // SAFETY: nothing is written to the room but what was received.
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
                        // That was all: the next look can wait until there is news.
                        ready.clear_ready();
                    }
                    // SAFETY: so many bytes of the room were just received into.
                    unsafe { buf.advance_mut(n) };
                    return Ok(n);
                }
            }
        }
    }
}

impl Sending {
    /// Sends what the socket takes now.
    pub(crate) fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::sendmsg(&self.0, parts, &mut SendAncillaryBuffer::default(), flags)?)
    }

    /// Waits until the socket takes something, or is broken.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        // The receiving half has the descriptor itself watched already, for something else.
        let again = self.0.try_clone()?;
        // SAFETY: an owned descriptor is the same and open until it is dropped.
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
