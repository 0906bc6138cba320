//! Minimal server and client for comparison with Weir's streams: they copy a file over a socket.
//!
//! One connection carries one request for the whole stream, in pieces of 1 MiB, with blocking calls and without checks.

use crate::socket::{Stream, connect, serve};
use crate::{Moved, Outcome};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// Length of one read or write of the stream in bytes.
pub const PIECE: usize = 1 << 20;
const REQUEST: usize = 16;
const WRITE: u64 = 1;
const READ: u64 = 2;

/// Serves one file until the process is killed: clients write and read the whole file.
pub fn serve_streams(address: &str, path: &Path) -> Outcome<()> {
    // Leak the file on purpose: the threads use it until the process ends.
    let path: &'static Path = Box::leak(path.into());
    serve(address, move |stream| answer(stream, path))
}

fn answer(mut stream: Box<dyn Stream>, path: &Path) -> Outcome<()> {
    let mut request = [0; REQUEST];
    if stream.read_exact(&mut request).is_err() {
        return Ok(());
    }
    let (op, len) = request.split_at(8);
    let len = u64::from_be_bytes(len.try_into()?);
    match u64::from_be_bytes(op.try_into()?) {
        WRITE => {
            let file = File::create(path)?;
            receive(&mut *stream, Some(&file), len)?;
            file.sync_data()?;
            stream.write_all(&[1])?;
        }
        _ => send(&mut *stream, Some(&File::open(path)?), len)?,
    }
    Ok(())
}

fn pieces(len: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..len).step_by(PIECE).map(move |at| (at, (len - at).min(PIECE as u64) as usize))
}

/// Sends `len` bytes from the file; without a file, sends constant bytes from memory.
fn send(stream: &mut dyn Stream, file: Option<&File>, len: u64) -> Outcome<()> {
    let mut piece = vec![0x5a; PIECE];
    for (at, len) in pieces(len) {
        if let Some(file) = file {
            file.read_exact_at(&mut piece[..len], at)?;
        }
        stream.write_all(&piece[..len])?;
    }
    Ok(())
}

/// Receives `len` bytes into the file; without a file, discards the bytes.
fn receive(stream: &mut dyn Stream, file: Option<&File>, len: u64) -> Outcome<()> {
    let mut piece = vec![0; PIECE];
    for (at, len) in pieces(len) {
        stream.read_exact(&mut piece[..len])?;
        if let Some(file) = file {
            file.write_all_at(&piece[..len], at)?;
        }
    }
    Ok(())
}

fn ask(address: &str, op: u64, len: u64) -> Outcome<Box<dyn Stream>> {
    let mut stream = connect(address)?;
    let mut request = [0; REQUEST];
    request[..8].copy_from_slice(&op.to_be_bytes());
    request[8..].copy_from_slice(&len.to_be_bytes());
    stream.write_all(&request)?;
    Ok(stream)
}

/// Writes `len` bytes from `source`, or from memory, to the server, which makes the bytes durable.
pub fn put(address: &str, source: Option<&Path>, len: u64) -> Outcome<Moved> {
    let start = Instant::now();
    let mut stream = ask(address, WRITE, len)?;
    send(&mut *stream, source.map(File::open).transpose()?.as_ref(), len)?;
    stream.read_exact(&mut [0])?;
    Ok(Moved::since(start))
}

/// Reads `len` bytes from the server into `sink`; without a sink, discards the bytes.
pub fn get(address: &str, sink: Option<&Path>, len: u64) -> Outcome<Moved> {
    let start = Instant::now();
    let mut stream = ask(address, READ, len)?;
    receive(&mut *stream, sink.map(File::create).transpose()?.as_ref(), len)?;
    Ok(Moved::since(start))
}
