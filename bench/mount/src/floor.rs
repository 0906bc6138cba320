//! Minimal server for comparison with Weir: a thread that moves bytes between a Unix socket and a file, or makes
//! changes durable.

use crate::Outcome;
use crate::work::{Done, LatencySampler, WorkDir};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

/// Length of a request in bytes: kind, length, and offset, each a `u64`.
const REQUEST: usize = 24;
const WRITE: u64 = 1;
const READ: u64 = 2;
const SYNC: u64 = 3;
const CHANGE: u64 = 4;
const LARGEST: usize = 1 << 20;
/// Length in bytes of a request to change metadata, and of the answer to this request.
const MESSAGE: usize = 200;
/// Number of bytes that the server makes durable for each change.
const BLOCK: usize = 4096;
/// Length of the server's log in bytes. The server overwrites the log in a cycle; all blocks of the log are allocated
/// before the measurement.
const LOG: usize = 1 << 20;

/// A connection to a minimal server of one file; the server thread ends with the connection.
pub struct Server(Mutex<UnixStream>);

impl Server {
    /// Starts a minimal server of the file at `path`.
    pub fn start(path: &Path) -> Outcome<Server> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        let (near, far) = UnixStream::pair()?;
        thread::spawn(move || answer(far, &file));
        Ok(Server(Mutex::new(near)))
    }

    fn with<T>(&self, what: impl FnOnce(&mut UnixStream) -> Outcome<T>) -> Outcome<T> {
        let mut stream = self.0.lock().map_err(|_| "the connection is broken")?;
        what(&mut stream)
    }
}

fn field(request: &[u8; REQUEST], number: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&request[number * 8..][..8]);
    u64::from_ne_bytes(field)
}

fn answer(mut stream: UnixStream, file: &File) -> io::Result<()> {
    let (mut request, mut piece) = ([0; REQUEST], vec![0; LARGEST]);
    let mut log = (0..LOG as u64).step_by(BLOCK).cycle();
    loop {
        stream.read_exact(&mut request)?;
        let (len, at) = (field(&request, 1) as usize, field(&request, 2));
        match field(&request, 0) {
            WRITE => {
                stream.read_exact(&mut piece[..len])?;
                file.write_all_at(&piece[..len], at)?;
                stream.write_all(&[1])?;
            }
            READ => {
                file.read_exact_at(&mut piece[..len], at)?;
                stream.write_all(&piece[..len])?;
            }
            CHANGE => {
                stream.read_exact(&mut piece[..MESSAGE - REQUEST])?;
                file.write_all_at(&piece[..BLOCK], log.next().unwrap_or(0))?;
                file.sync_data()?;
                stream.write_all(&piece[..MESSAGE])?;
            }
            _ => {
                file.sync_data()?;
                stream.write_all(&[1])?;
            }
        }
    }
}

fn ask(stream: &mut UnixStream, kind: u64, len: usize, at: u64) -> io::Result<()> {
    let mut request = [0; REQUEST];
    for (field, value) in request.chunks_exact_mut(8).zip([kind, len as u64, at]) {
        field.copy_from_slice(&value.to_ne_bytes());
    }
    stream.write_all(&request)
}

/// Writes a stream to the server, with one request in flight at a time, and makes the stream durable at the end.
pub fn write_stream(server: &Server, work_dir: &WorkDir) -> Outcome<Done> {
    server.with(|stream| {
        let (piece, mut said) = (vec![0x5a; LARGEST], [0]);
        let mut sampler = LatencySampler::start(1)?;
        for at in (0..work_dir.stream()).step_by(LARGEST) {
            sampler.time(|| {
                ask(stream, WRITE, LARGEST, at as u64)?;
                stream.write_all(&piece)?;
                stream.read_exact(&mut said)
            })?;
        }
        ask(stream, SYNC, 0, 0)?;
        stream.read_exact(&mut said)?;
        Ok(sampler.stop(work_dir.stream(), 1))
    })
}

fn read(stream: &mut UnixStream, piece: &mut [u8], at: u64) -> io::Result<()> {
    ask(stream, READ, piece.len(), at)?;
    stream.read_exact(piece)
}

/// Reads a stream from the server, with one request in flight at a time.
pub fn read_stream(server: &Server, work_dir: &WorkDir) -> Outcome<Done> {
    server.with(|stream| {
        let mut piece = vec![0; LARGEST];
        let mut sampler = LatencySampler::start(1)?;
        for at in (0..work_dir.stream()).step_by(LARGEST) {
            sampler.time(|| read(stream, &mut piece, at as u64))?;
        }
        Ok(sampler.stop(work_dir.stream(), 0))
    })
}

/// Reads pages from the server in random order, with one request in flight at a time.
pub fn read_randomly(server: &Server, work_dir: &WorkDir) -> Outcome<Done> {
    server.with(|stream| {
        let mut page = [0; 4096];
        let mut sampler = LatencySampler::start(8)?;
        let mut bytes = 0;
        for at in work_dir.offsets() {
            sampler.time(|| read(stream, &mut page, at))?;
            bytes += page.len();
        }
        Ok(sampler.stop(bytes, 0))
    })
}

/// Makes one metadata change for each file; the server answers each change when the change is durable.
pub fn change(server: &Server, work_dir: &WorkDir) -> Outcome<Done> {
    server.with(|stream| {
        let (rest, mut said) = ([0x41; MESSAGE - REQUEST], [0; MESSAGE]);
        ask(stream, WRITE, LOG, 0)?;
        stream.write_all(&vec![0; LOG])?;
        stream.read_exact(&mut said[..1])?;
        ask(stream, SYNC, 0, 0)?;
        stream.read_exact(&mut said[..1])?;
        let mut sampler = LatencySampler::start(1)?;
        for _ in 0..work_dir.files() {
            sampler.time(|| {
                ask(stream, CHANGE, 0, 0)?;
                stream.write_all(&rest)?;
                stream.read_exact(&mut said)
            })?;
        }
        Ok(sampler.stop(0, work_dir.files() as u64))
    })
}
