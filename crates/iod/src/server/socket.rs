//! One connected socket: blocking calls that give up when the peer makes no progress.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

/// Send and receive buffers of Unix sockets, whose default is small for payloads of 1 MiB.
const UNIX_BUFFER: usize = 1 << 20;

/// A stream socket of either family.
pub(super) struct Socket {
    fd: OwnedFd,
}

/// What a receiving call met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    /// This many bytes.
    Bytes(usize),
    /// The end: the peer sends no more.
    End,
    /// Nothing came for the time that a stall may last.
    Nothing,
}

impl Socket {
    /// A TCP connection.
    pub(super) fn tcp(fd: OwnedFd, stall: Duration, congestion: Option<&str>) -> io::Result<Self> {
        sockopt::set_tcp_nodelay(&fd, true)?;
        sockopt::set_socket_keepalive(&fd, true)?;
        if let Some(name) = congestion
            && let Err(error) = sockopt::set_tcp_congestion(&fd, name)
        {
            tracing::debug!(name, %error, "congestion control not available, keeping the system's");
        }
        Self::new(fd, stall)
    }

    /// A Unix connection.
    pub(super) fn unix(fd: OwnedFd, stall: Duration) -> io::Result<Self> {
        // The kernel cuts them to what the system allows.
        sockopt::set_socket_send_buffer_size(&fd, UNIX_BUFFER)?;
        sockopt::set_socket_recv_buffer_size(&fd, UNIX_BUFFER)?;
        Self::new(fd, stall)
    }

    fn new(fd: OwnedFd, stall: Duration) -> io::Result<Self> {
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(stall))?;
        sockopt::set_socket_timeout(&fd, Timeout::Send, Some(stall))?;
        Ok(Socket { fd })
    }

    /// Ends both directions; calls in progress return.
    pub(super) fn shutdown(&self) {
        // A socket that the peer has already reset is as shut as it can be.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }

    /// Receives once, behind what is in `buffer`, as much as it has room for.
    pub(super) fn receive_more(&self, buffer: &mut BytesMut) -> io::Result<Received> {
        let got = self.receive(buffer.spare_capacity_mut())?;
        if let Received::Bytes(n) = got {
            // SAFETY: `receive` has just initialized `n` bytes of the spare capacity.
            unsafe { buffer.advance_mut(n) };
        }
        Ok(got)
    }

    /// Fills `buffer`; anything else is an error.
    pub(super) fn receive_exact(&self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            match rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::WAITALL) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((n, _)) => buffer = &mut buffer[n..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&self, room: &mut [MaybeUninit<u8>]) -> io::Result<Received> {
        loop {
            return match rustix::net::recv(&self.fd, &mut *room, RecvFlags::empty()) {
                Ok((([], _), _)) => Ok(Received::End),
                Ok(((got, _), _)) => Ok(Received::Bytes(got.len())),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(Received::Nothing),
                Err(Errno::CONNRESET) => Ok(Received::End),
                Err(error) => Err(error.into()),
            };
        }
    }

    /// Sends `head` and then `data`, in one call if the socket takes them; `more` says that further bytes follow soon.
    pub(super) fn send(&self, mut head: &[u8], mut data: &[u8], more: bool) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
        while !head.is_empty() || !data.is_empty() {
            let sent = if data.is_empty() {
                rustix::net::send(&self.fd, head, flags)
            } else {
                let parts = [IoSlice::new(head), IoSlice::new(data)];
                rustix::net::sendmsg(&self.fd, &parts, &mut SendAncillaryBuffer::default(), flags)
            };
            match sent {
                Ok(n) => {
                    let of_head = n.min(head.len());
                    head = &head[of_head..];
                    data = &data[n - of_head..];
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends `len` bytes of `file` from `offset` without passing them through memory; zeros for what lies past its end.
    pub(super) fn send_file(&self, file: &File, mut offset: u64, len: u64) -> Result<(), SendFile> {
        let end = offset + len;
        while offset < end {
            let left = (end - offset) as usize;
            match rustix::fs::sendfile(&self.fd, file, Some(&mut offset), left) {
                // Cut off meanwhile.
                Ok(0) => return self.send_zeros(end - offset).map_err(SendFile::Socket),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(SendFile::Socket(io::ErrorKind::TimedOut.into())),
                Err(error @ (Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)) => {
                    return Err(SendFile::Socket(error.into()));
                }
                Err(error) => return Err(SendFile::File(error.into())),
            }
        }
        Ok(())
    }

    fn send_zeros(&self, mut len: u64) -> io::Result<()> {
        let zeros = [0; 4096];
        while len > 0 {
            let now = len.min(zeros.len() as u64);
            self.send(&zeros[..now as usize], &[], true)?;
            len -= now;
        }
        Ok(())
    }
}

/// Why a file did not go out.
pub(super) enum SendFile {
    /// The socket: the connection is over.
    Socket(io::Error),
    /// The file, in the middle of a reply: the connection is over too, but the next attempt should go another way.
    File(io::Error),
}
