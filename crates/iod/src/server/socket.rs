//! A connected socket of an iod, with time limits for a peer that makes no progress.

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

/// Size of the send and receive buffers of Unix sockets, in bytes. The system's default is small for payloads of 1 MiB.
const UNIX_BUFFER: usize = 1 << 20;

/// A bidirectional byte stream to the peer of a connection.
pub(super) trait Channel {
    /// Makes one receive call, which appends at most as many bytes to `buffer` as its spare capacity.
    fn receive_more(&mut self, buffer: &mut BytesMut) -> io::Result<Received>;

    /// Receives until `buffer` is full; returns an error if the stream ends or fails before that.
    fn receive_exact(&mut self, buffer: &mut [u8]) -> io::Result<()>;

    /// Sends `head` followed by `data`. If `more` is true, the caller will soon send more bytes after `data`.
    fn send(&mut self, head: &[u8], data: &[u8], more: bool) -> io::Result<()>;

    /// Starts the measurement of how long the iod waits for the peer. [`Channel::wait_ends`] ends the measurement.
    fn wait_begins(&mut self) {}

    /// Ends the measurement of how long the iod waits for the peer.
    fn wait_ends(&mut self) {}

    /// Returns a function that closes the stream in both directions. Any thread may call the function.
    fn hanger(&self) -> impl Fn() + Send + Sync + 'static;

    /// Records that the peer has proved its identity by PROVE.
    fn is_known_now(&self) {}

    /// Returns whether the channel supports [`Channel::send_file`].
    fn sends_files(&self) -> bool;

    /// Returns whether LEND may pass descriptors to this peer: the channel can pass descriptors, and the peer's user
    /// could open the object files directly.
    fn may_have_files(&self) -> bool {
        false
    }

    /// Sends `head`; passes a descriptor of `file` with the first byte.
    fn send_lending(&mut self, _head: &[u8], _file: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends `len` bytes of `file` from `offset` on. Sends zeros for bytes beyond the end of the file.
    fn send_file(&mut self, file: &File, offset: u64, len: u64) -> Result<(), SendFile>;
}

/// A TCP or Unix stream socket.
pub(super) struct Socket {
    fd: OwnedFd,
    /// Longest time that the peer may make no progress inside a request or reply.
    stall: Timespec,
    /// Whether this socket is a Unix socket. A thread that blocks in recv(2) on a Unix socket also wakes up when the
    /// peer has received data. So the iod waits for Unix sockets with poll(2).
    restless: bool,
    /// When the iod began to wait for the peer, as milliseconds of [`coarse_now`]; 0 while the iod does not wait.
    waiting: AtomicU64,
    /// When the peer connected, as milliseconds of [`coarse_now`]; 0 after the peer has proved its identity.
    stranger: AtomicU64,
    cut_off: AtomicBool,
}

/// Returns the milliseconds of a monotonic clock that is cheap to read, never 0.
pub(super) fn coarse_now() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec as u64) * 1000 + now.tv_nsec as u64 / 1_000_000 + 1
}

/// The result of a receive call on a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    /// Number of bytes received.
    Bytes(usize),
    /// The peer has ended its stream (end of file), so no more bytes follow.
    End,
    /// No byte arrived within the time limit for a stalled peer.
    Nothing,
}

impl Socket {
    /// Makes a [`Socket`] from a connected TCP socket.
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

    /// Makes a [`Socket`] from a connected Unix socket.
    pub(super) fn unix(fd: OwnedFd, stall: Duration) -> io::Result<Self> {
        // If a requested buffer size exceeds the system's maximum, the kernel uses the maximum and returns no error.
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

    /// Returns when the iod began to wait for the peer, as milliseconds of [`coarse_now`].
    pub(super) fn waiting_since(&self) -> Option<u64> {
        Some(self.waiting.load(Ordering::Relaxed)).filter(|since| *since > 0)
    }

    /// Returns when the peer connected, as milliseconds of [`coarse_now`]. Returns `None` if the peer has proved its
    /// identity, or if the iod has closed the connection.
    pub(super) fn stranger_since(&self) -> Option<u64> {
        Some(self.stranger.load(Ordering::Relaxed)).filter(|since| *since > 0 && !self.is_cut_off())
    }

    /// Closes the connection of a slow peer in both directions; returns whether this was the first call for the
    /// connection.
    pub(super) fn cut_off(&self) -> bool {
        self.shutdown();
        !self.cut_off.swap(true, Ordering::Relaxed)
    }

    /// Returns whether [`Socket::cut_off`] has closed this connection.
    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// Closes the stream in both directions, so that blocked receive and send calls return.
    pub(super) fn shutdown(&self) {
        // `shutdown` fails if the peer has already reset the connection. Then the stream is closed anyway, so ignore
        // the error.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }

    /// Waits until bytes arrive or the stream ends; returns false if the time limit for a stalled peer passes first.
    ///
    /// A thread that blocks in recv(2) on a Unix socket wakes up twice for each request. The kernel also wakes the
    /// thread when the peer has received the reply. poll(2) wakes a thread only for the events that it waits for.
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

    /// Sends `head` followed by `data`, with one system call if the socket accepts all bytes.
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
        // SO_PEERCRED returns the user that the peer had when it connected, so the peer cannot get files by a later
        // change of its user.
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
                // Another request has truncated the file, so the file ends before the requested range. Send zeros for
                // the missing bytes.
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

/// The reason why [`Channel::send_file`] failed.
pub(super) enum SendFile {
    /// The socket failed, so the iod closes the connection.
    Socket(io::Error),
    /// Reading the file failed in the middle of a reply, so the iod closes the connection. The next READ of the object
    /// must not use `sendfile`.
    File(io::Error),
}
