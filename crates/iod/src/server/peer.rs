//! A connection to an iod without a socket: the caller passes whole RPC records, and the iod executes them on the
//! caller's thread.

use std::fs::File;
use std::io;
use std::sync::Arc;
use types::Machine;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::connection::{Broken, Connection, MARK};
use super::daemon::Daemon;
use super::socket::{Channel, Received, SendFile};

/// A connection to a [`Daemon`] for callers that deliver records themselves: simulated networks and tests.
///
/// The iod runs the same code for this connection as for a connection over a socket, except that the messages are in
/// memory.
pub struct Peer {
    connection: Connection<Memory>,
    broken: bool,
}

impl Peer {
    /// Makes a new connection; the next request must be HELLO.
    pub fn new(daemon: Arc<Daemon>) -> Self {
        Peer { connection: Connection::new(daemon, Memory::default(), Machine::UNKNOWN), broken: false }
    }

    /// Executes one request, a whole RPC record without its record mark. Returns the record of the reply, also without
    /// a mark.
    ///
    /// # Errors
    /// When the iod closes the connection at this request, or has closed it at an earlier request. In both cases there
    /// is no reply.
    pub fn record(&mut self, request: Bytes) -> Result<Bytes, Broken> {
        if self.broken {
            return Err(Broken::Protocol("the connection was closed"));
        }
        let channel = &mut self.connection.socket;
        // A record mark can encode only a length below 2 GiB, so truncate the length of a longer record. The iod
        // refuses such a record anyway, because the record exceeds the iod's limit.
        let mark = (request.len().min(i32::MAX as usize) as u32 | 1 << 31).to_be_bytes();
        channel.input = Bytes::copy_from_slice(&mark).chain(request);
        channel.output.clear();
        let served = self.connection.serve_next();
        self.broken = served.is_err();
        served?;
        let mut reply = self.connection.socket.output.split().freeze();
        reply.advance(reply.len().min(MARK));
        Ok(reply)
    }
}

/// The input of the connection (one request) and its output (the reply).
struct Memory {
    input: bytes::buf::Chain<Bytes, Bytes>,
    output: BytesMut,
}

impl Default for Memory {
    fn default() -> Self {
        Memory { input: Bytes::new().chain(Bytes::new()), output: BytesMut::new() }
    }
}

impl Channel for Memory {
    fn receive_more(&mut self, buffer: &mut BytesMut) -> io::Result<Received> {
        let len = self.input.remaining().min(buffer.capacity() - buffer.len());
        if len == 0 {
            return Ok(Received::End);
        }
        buffer.put((&mut self.input).take(len));
        Ok(Received::Bytes(len))
    }

    fn receive_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.input.try_copy_to_slice(buffer).map_err(|_| io::ErrorKind::UnexpectedEof.into())
    }

    fn send(&mut self, head: &[u8], data: &[u8], _more: bool) -> io::Result<()> {
        self.output.extend_from_slice(head);
        self.output.extend_from_slice(data);
        Ok(())
    }

    fn hanger(&self) -> impl Fn() + Send + Sync + 'static {
        // This connection has no socket to close. Instead, the caller gets an error when it passes the next record.
        || {}
    }

    fn sends_files(&self) -> bool {
        false
    }

    fn send_file(&mut self, _: &File, _: u64, _: u64) -> Result<(), SendFile> {
        Err(SendFile::Socket(io::ErrorKind::Unsupported.into()))
    }
}
