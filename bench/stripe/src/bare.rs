//! Minimal server and client for comparison with Weir's small reads: they read a file over a socket.
//!
//! The server has one thread per connection and uses blocking calls. A request has 32 bytes, a reply 16 bytes and the
//! data. The server uses no checksums, no capabilities and no other checks.

use crate::Outcome;
use crate::socket::{Stream, connect, serve};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const REQUEST: usize = 32;
const REPLY: usize = 16;
/// Largest length of one read in bytes.
const DATA: usize = 64 << 10;

/// Serves reads of one file until the process is killed.
pub fn serve_reads(address: &str, path: &Path) -> Outcome<()> {
    // Leak the file on purpose: the threads use it until the process ends.
    let file: &'static File = Box::leak(Box::new(File::open(path)?));
    serve(address, move |stream| answer(stream, file))
}

fn answer(mut stream: Box<dyn Stream>, file: &File) -> Outcome<()> {
    let mut request = [0; REQUEST];
    let mut reply = vec![0; REPLY + DATA];
    // A failed receive means that the peer has closed the connection, so stop serving the peer.
    while stream.read_exact(&mut request).is_ok() {
        let len = u32::from_be_bytes(request[..4].try_into()?) as usize;
        let offset = u64::from_be_bytes(request[8..16].try_into()?);
        file.read_exact_at(&mut reply[REPLY..][..len], offset)?;
        reply[..REPLY].copy_from_slice(&request[..REPLY]);
        stream.write_all(&reply[..REPLY + len])?;
    }
    Ok(())
}

/// A client of the minimal server, with one read in flight at a time.
pub struct Reader {
    stream: Box<dyn Stream>,
    reply: Vec<u8>,
}

impl Reader {
    /// Connects to the minimal server.
    pub fn new(address: &str) -> Outcome<Reader> {
        Ok(Reader { stream: connect(address)?, reply: vec![0; REPLY + DATA] })
    }
}

impl super::parts::small::Reads for Reader {
    fn read(&mut self, offset: u64, len: u32) -> Outcome<&[u8]> {
        let mut request = [0; REQUEST];
        request[..4].copy_from_slice(&len.to_be_bytes());
        request[8..16].copy_from_slice(&offset.to_be_bytes());
        self.stream.write_all(&request)?;
        let reply = &mut self.reply[..REPLY + len as usize];
        self.stream.read_exact(reply)?;
        Ok(&reply[REPLY..])
    }
}
