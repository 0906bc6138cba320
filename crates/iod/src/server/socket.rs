//! The byte stream of a connection: a connected socket with timeouts for a peer that makes no progress.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};
use rustix::time::ClockId;

/// Size of send and receive buffers of Unix sockets; the default is small for payloads of 1 MiB.
const UNIX_BUFFER: usize = 1 << 20;

/// A bidirectional byte stream to a peer.
pub(super) trait Channel {
    /// Receives once and appends to `buffer`, as much as its capacity allows.
    fn receive_more(&mut self, buffer: &mut BytesMut) -> io::Result<Received>;

    /// Fills `buffer`; returns an error if it cannot.
    fn receive_exact(&mut self, buffer: &mut [u8]) -> io::Result<()>;

    /// Sends `head` followed by `data`; `more` announces that further bytes follow soon.
    fn send(&mut self, head: &[u8], data: &[u8], more: bool) -> io::Result<()>;

    /// Starts the clock of the peer: the iod waits for it until [`Channel::wait_ends`].
    fn wait_begins(&mut self) {}

    /// Stops the clock of the peer.
    fn wait_ends(&mut self) {}

    /// Returns a function that closes both directions permanently, callable from any thread.
    fn hanger(&self) -> impl Fn() + Send + Sync + 'static;

    /// Notes that the peer has proven its identity.
    fn is_known_now(&self) {}

    /// Returns whether [`Channel::send_file`] is supported.
    fn sends_files(&self) -> bool;

    /// Returns whether the peer's user could open the store's files itself, and the channel can pass descriptors.
    fn may_have_files(&self) -> bool {
        false
    }

    /// Sends `head`, with a descriptor of `file` at its first byte.
    fn send_lending(&mut self, _head: &[u8], _file: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends `len` bytes of `file` from `offset`; sends zeros beyond the end of the file.
    fn send_file(&mut self, file: &File, offset: u64, len: u64) -> Result<(), SendFile>;
}

/// A TCP or Unix stream socket.
pub(super) struct Socket {
    fd: OwnedFd,
    /// Time limit for a peer without any progress.
    stall: Timespec,
    /// Set for Unix sockets: a thread blocked in recv also wakes up whenever the peer has received something.
    restless: bool,
    /// Since when the iod waits for the peer, by [`coarse_now`]; 0 while it does not wait.
    waiting: AtomicU64,
    /// Since when the peer is connected without proof of identity, by [`coarse_now`]; 0 after the proof.
    stranger: AtomicU64,
    cut_off: AtomicBool,
}

/// Returns the milliseconds of a very cheap clock, never 0.
pub(super) fn coarse_now() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec as u64) * 1000 + now.tv_nsec as u64 / 1_000_000 + 1
}

/// Result of a receive call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    /// Number of bytes received.
    Bytes(usize),
    /// The peer has closed its direction of the stream.
    End,
    /// Nothing arrived within the stall time limit.
    Nothing,
}

impl Socket {
    /// Makes the socket of a TCP connection.
    pub(super) fn tcp(fd: OwnedFd, stall: Duration, congestion: Option<&str>) -> io::Result<Self> {
        sockopt::set_tcp_nodelay(&fd, true)?;
        sockopt::set_socket_keepalive(&fd, true)?;
        if let Some(name) = congestion
            && let Err(error) = sockopt::set_tcp_congestion(&fd, name)
        {
            tracing::debug!(name, %error, "congestion control not available, keeping the system's");
        }
        Self::new(fd, stall, false)
    }

    /// Makes the socket of a Unix connection.
    pub(super) fn unix(fd: OwnedFd, stall: Duration) -> io::Result<Self> {
        // The kernel limits these sizes to the maximum of the system.
        sockopt::set_socket_send_buffer_size(&fd, UNIX_BUFFER)?;
        sockopt::set_socket_recv_buffer_size(&fd, UNIX_BUFFER)?;
        Self::new(fd, stall, true)
    }

    fn new(fd: OwnedFd, stall: Duration, restless: bool) -> io::Result<Self> {
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(stall))?;
        sockopt::set_socket_timeout(&fd, Timeout::Send, Some(stall))?;
        let stall = Timespec::try_from(stall).map_err(io::Error::other)?;
        Ok(Socket {
            fd,
            stall,
            restless,
            waiting: AtomicU64::new(0),
            stranger: AtomicU64::new(coarse_now()),
            cut_off: AtomicBool::new(false),
        })
    }

    /// Returns since when the iod waits for the peer, by [`coarse_now`].
    pub(super) fn waiting_since(&self) -> Option<u64> {
        Some(self.waiting.load(Ordering::Relaxed)).filter(|since| *since > 0)
    }

    /// Returns since when the peer is unproven, by [`coarse_now`]; `None` if it has proven itself or is cut off.
    pub(super) fn stranger_since(&self) -> Option<u64> {
        Some(self.stranger.load(Ordering::Relaxed)).filter(|since| *since > 0 && !self.is_cut_off())
    }

    /// Closes both directions permanently; returns whether this call was the first.
    pub(super) fn cut_off(&self) -> bool {
        self.shutdown();
        !self.cut_off.swap(true, Ordering::Relaxed)
    }

    /// Returns whether [`Socket::cut_off`] has closed the connection.
    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// Closes both directions; calls in progress return.
    pub(super) fn shutdown(&self) {
        // A socket that the peer has already reset needs no shutdown.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }

    /// Waits until data arrive or the peer is gone; returns false if the stall time limit passes first. A thread that
    /// blocks in recv(2) on a Unix socket wakes up twice for each exchange, because the kernel also signals that the
    /// peer has received the reply. poll(2) wakes a thread only for the events that it asked for.
    fn wait(&self) -> io::Result<bool> {
        loop {
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&self.stall)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive(&self, room: &mut [MaybeUninit<u8>]) -> io::Result<Received> {
        if self.restless && !self.wait()? {
            return Ok(Received::Nothing);
        }
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

    /// Sends `head` followed by `data`, in one call if the socket accepts them.
    fn send_all(&self, mut head: &[u8], mut data: &[u8], more: bool) -> io::Result<()> {
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

    fn send_zeros(&self, mut len: u64) -> io::Result<()> {
        let zeros = [0; 4096];
        while len > 0 {
            let now = len.min(zeros.len() as u64);
            self.send_all(&zeros[..now as usize], &[], true)?;
            len -= now;
        }
        Ok(())
    }
}

impl Channel for Arc<Socket> {
    fn receive_more(&mut self, buffer: &mut BytesMut) -> io::Result<Received> {
        let got = self.receive(buffer.spare_capacity_mut())?;
        if let Received::Bytes(n) = got {
            // SAFETY: `receive` has just initialized `n` bytes of the spare capacity.
            unsafe { buffer.advance_mut(n) };
        }
        Ok(got)
    }

    fn receive_exact(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
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

    fn send(&mut self, head: &[u8], data: &[u8], more: bool) -> io::Result<()> {
        self.send_all(head, data, more)
    }

    fn wait_begins(&mut self) {
        self.waiting.store(coarse_now(), Ordering::Relaxed);
    }

    fn wait_ends(&mut self) {
        self.waiting.store(0, Ordering::Relaxed);
    }

    fn hanger(&self) -> impl Fn() + Send + Sync + 'static {
        let socket = self.clone();
        move || socket.shutdown()
    }

    fn is_known_now(&self) {
        self.stranger.store(0, Ordering::Relaxed);
    }

    fn sends_files(&self) -> bool {
        true
    }

    fn may_have_files(&self) -> bool {
        // SO_PEERCRED gives the credentials of the peer at the time of connect.
        let peer = || sockopt::socket_peercred(&self.fd).map(|peer| peer.uid);
        self.restless && peer().is_ok_and(|uid| uid.is_root() || uid == rustix::process::geteuid())
    }

    fn send_lending(&mut self, head: &[u8], file: &File) -> io::Result<()> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let files = [file.as_fd()];
        let mut lent = SendAncillaryBuffer::new(&mut room);
        lent.push(SendAncillaryMessage::ScmRights(&files));
        let sent = loop {
            match rustix::net::sendmsg(&self.fd, &[IoSlice::new(head)], &mut lent, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                sent => break sent?,
            }
        };
        self.send_all(&head[sent..], &[], false)
    }

    fn send_file(&mut self, file: &File, mut offset: u64, len: u64) -> Result<(), SendFile> {
        let end = offset + len;
        while offset < end {
            let left = (end - offset) as usize;
            match rustix::fs::sendfile(&self.fd, file, Some(&mut offset), left) {
                // The file was truncated meanwhile.
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
}

/// Reason why sending a file failed.
pub(super) enum SendFile {
    /// The socket failed: the connection is over.
    Socket(io::Error),
    /// Reading the file failed in the middle of a reply. The connection is over as well; the next attempt should not
    /// use `sendfile`.
    File(io::Error),
}
