//! A peer without a socket, which exchanges whole RPC records with the iod on the caller's thread.

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
/// It runs the same code as a socket connection; only the bytes come from memory.
pub struct Peer {
    connection: Connection<Memory>,
    broken: bool,
}

impl Peer {
    /// Makes a new connection, before HELLO.
    pub fn new(daemon: Arc<Daemon>) -> Self {
        Peer { connection: Connection::new(daemon, Memory::default(), Machine::UNKNOWN), broken: false }
    }

    /// Serves one request, a whole RPC record without its mark; returns the record of the reply.
    ///
    /// # Errors
    /// When the iod closes the connection, now or at an earlier request. The last reply may be lost with it.
    pub fn record(&mut self, request: Bytes) -> Result<Bytes, Broken> {
        if self.broken {
            return Err(Broken::Protocol("the connection was closed"));
        }
        let channel = &mut self.connection.socket;
        // A record too long for a mark exceeds the iod's limit anyway, whatever its mark says.
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

/// The bytes of a request and of its reply.
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
        // The caller sees the closed connection at its next record.
        || {}
    }

    fn sends_files(&self) -> bool {
        false
    }

    fn send_file(&mut self, _: &File, _: u64, _: u64) -> Result<(), SendFile> {
        Err(SendFile::Socket(io::ErrorKind::Unsupported.into()))
    }
}
