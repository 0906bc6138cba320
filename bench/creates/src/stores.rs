//! Metadata stores that the `creates` benchmark compares, and the baseline: plain writes and flushes of the same bytes.

use crate::Outcome;
use crate::load::Work;
use meta::{Embedded, Format, LogDisk, Namespace, merge};
use redb::backends::FileBackend;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use types::{Fsid, Timestamp};

/// How the store makes creates durable.
#[derive(Clone, Copy)]
pub enum Kind {
    /// The store writes a batch log, and flushes the database once a second.
    Log,
    /// The store has no batch log, and makes a durable database commit for every group of concurrent creates.
    Database,
}

/// The time stamp of every operation; the benchmark does not depend on its value.
pub const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
const ID: [u8; 16] = [1; 16];

/// A log device of zero bytes, with which the store keeps no batch log.
struct NoLog;

impl LogDisk for NoLog {
    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }
    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn room(&self) -> u64 {
        0
    }
}

fn format() -> Format {
    Format { fsid: Fsid([1; 16]), now: NOW, cookie_key: [2; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 }
}

/// Makes an empty metadata store in `dir`.
pub fn make(dir: &Path, kind: Kind) -> Outcome<Namespace<Embedded>> {
    let path = dir.join("meta.redb");
    let store = match kind {
        Kind::Log => Embedded::create(&path, ID, merge)?,
        Kind::Database => {
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            Embedded::on(FileBackend::new(file)?, NoLog, ID, merge, || None)?
        }
    };
    Ok(crate::load::wait(Namespace::format(store, format()))?)
}

/// Opens the metadata store in `dir`.
pub fn open(dir: &Path) -> Outcome<Namespace<Embedded>> {
    Ok(Namespace::open(Embedded::open(&dir.join("meta.redb"), merge)?)?)
}

/// Makes a metadata store in `dir` if none exists, and creates files until the store has `files` files. Then prints a
/// line, and creates more files until the process is killed.
pub fn fill(dir: &Path, files: u64) -> Outcome<()> {
    let namespace = match open(dir) {
        Ok(namespace) => namespace,
        Err(_) => make(dir, Kind::Log)?,
    };
    let there = namespace.files()?;
    let work = Work::new(&namespace, there)?;
    work.run(64, |done| done + there < files)?;
    println!("filled");
    work.run(64, |_| true)?;
    Ok(())
}

/// Measures writes of `bytes` bytes with a flush after each write, in a file whose blocks are already allocated.
/// Returns the number of writes per second.
pub fn flushes(dir: &Path, bytes: f64, long: Duration) -> Outcome<f64> {
    let file = tempfile::tempfile_in(dir)?;
    let block = vec![0x5a; (bytes as usize).max(1).next_multiple_of(4096)];
    let blocks = ((16 << 20) / block.len() as u64).max(1);
    (0..blocks).try_for_each(|n| file.write_all_at(&block, n * block.len() as u64))?;
    file.sync_all()?;
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < long {
        file.write_all_at(&block, done % blocks * block.len() as u64)?;
        file.sync_data()?;
        done += 1;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}
