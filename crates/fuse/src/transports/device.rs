//! The transport over `/dev/fuse`: reads requests from the device and writes replies to it.

use crate::buffers::Buffers;
use crate::dispatch::{Dispatcher, Serve};
use crate::reply::{Reply, header};
use crate::request::{Header, Request};
use crate::transport::Transport;
use client::Segment;
use rustix::buffer::spare_capacity;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Zero bytes, which the transport sends for holes of files.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Largest number of buffers of one reply for writev(2). A reply with more buffers is first copied into one buffer.
const PARTS_MAX: usize = 512;

/// The transport over an open `/dev/fuse`.
pub(crate) struct Device {
    fd: OwnedFd,
    threads: usize,
    buffers: Arc<Buffers>,
}

impl Device {
    /// Creates the transport over an open and mounted `/dev/fuse`, with `threads` threads, for requests with up to
    /// `payload` bytes.
    pub(crate) fn new(fd: OwnedFd, threads: usize, payload: usize) -> Self {
        // The kernel requires buffers with a page for the header in addition to the payload.
        Device { fd, threads, buffers: Buffers::new(payload + 4096) }
    }

    fn read_requests(&self, dispatcher: &Arc<Dispatcher>) -> io::Result<()> {
        let mut buffer = self.buffers.take();
        loop {
            match rustix::io::read(&self.fd, spare_capacity(&mut buffer)) {
                Ok(_) => {}
                // The kernel abandoned the request before this read, or a signal interrupted the read. Read the next
                // request.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                // The file system is unmounted, so no more requests arrive.
                Err(Errno::NODEV) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            let head = Header::decode(&buffer);
            let message = self.buffers.keep(&mut buffer);
            match Request::decode(message) {
                Ok(request) => dispatcher.accept(request, 0),
                Err(malformed) => {
                    tracing::error!("{malformed}");
                    if let Ok((header, _)) = head {
                        self.answer(0, header.unique, Reply::Failed(crate::Errno(Errno::INVAL.raw_os_error())));
                    }
                }
            }
        }
    }

    fn send(&self, unique: u64, error: i32, body: &[IoSlice]) -> io::Result<()> {
        let len = body.iter().map(|part| part.len()).sum();
        let head = header(unique, error, len);
        let mut parts = Vec::with_capacity(1 + body.len());
        parts.push(IoSlice::new(&head));
        parts.extend_from_slice(body);
        // The kernel accepts a message as a whole or not at all, so the number of written bytes needs no check.
        rustix::io::writev(&self.fd, &parts)?;
        Ok(())
    }

    fn send_read(&self, unique: u64, segments: &[Segment]) -> io::Result<()> {
        let mut parts = Vec::with_capacity(segments.len());
        for segment in segments {
            match segment {
                Segment::Data(data) => parts.push(IoSlice::new(data)),
                Segment::Hole(len) => {
                    let mut left = *len as usize;
                    while left > 0 {
                        let now = left.min(ZEROS.len());
                        parts.push(IoSlice::new(&ZEROS[..now]));
                        left -= now;
                    }
                }
            }
        }
        if parts.len() > PARTS_MAX {
            let whole = parts.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>();
            return self.send(unique, 0, &[IoSlice::new(&whole)]);
        }
        self.send(unique, 0, &parts)
    }
}

impl Serve for Device {
    fn serve(self: Arc<Self>, dispatcher: Arc<Dispatcher>) -> io::Result<()> {
        std::thread::scope(|scope| {
            let serve = || self.read_requests(&dispatcher);
            let others: Vec<_> = (1..self.threads)
                .map(|n| std::thread::Builder::new().name(format!("fuse-{n}")).spawn_scoped(scope, serve))
                .collect::<io::Result<_>>()?;
            let first = serve();
            let ended =
                others.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("panic"))));
            ended.fold(first, |all, one| all.and(one))
        })
    }
}

impl Transport for Device {
    fn answer(&self, _ticket: u64, unique: u64, reply: Reply) {
        let sent = match reply {
            Reply::None => return,
            Reply::Done => self.send(unique, 0, &[]),
            Reply::Failed(errno) => self.send(unique, errno.0, &[]),
            Reply::Bytes(bytes) => self.send(unique, 0, &[IoSlice::new(&bytes)]),
            Reply::Read(segments) => self.send_read(unique, &segments),
        };
        match sent {
            Ok(()) => {}
            // The caller of the request was killed, or the file system is unmounted, so no caller waits for the reply.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::NODEV)) => {}
            Err(error) => tracing::warn!(unique, "cannot send a reply to the kernel: {error}"),
        }
    }

    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()> {
        // A message with the request number 0 is a notification; its error field contains the notification code.
        self.send(0, -code, &[IoSlice::new(body)])
    }
}

const _: () = assert!(ZEROS.len() * PARTS_MAX >= types::limits::PAYLOAD_MAX);
