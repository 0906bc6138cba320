//! Weir client that writes or reads one file, in its own process.

use crate::bulk::PIECE;
use crate::{Moved, Outcome};
use bytes::Bytes;
use client::{CreateOptions, Mount, OpenFlags, Options, Segment, Target};
use futures_util::StreamExt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

/// Maximum number of full buffers that wait for the writing thread.
const AHEAD: usize = 4;
/// Length of each read in bytes, and number of reads in flight.
const READ: u64 = 4 * PIECE as u64;
const READS: usize = 4;

/// The file that the client writes or reads.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct TransferJob {
    /// The URL of the file in Weir.
    pub url: String,
    /// The local file. `None`: the client writes constant bytes, and discards read bytes.
    pub local: Option<PathBuf>,
    /// The length of the file in bytes.
    pub len: u64,
    /// Whether payloads carry checksums.
    pub checksums: bool,
}

/// A pool of buffers that the client reuses.
#[derive(Clone, Default)]
struct Pool(Arc<Mutex<Vec<Box<[u8]>>>>);

struct Buffer {
    memory: Box<[u8]>,
    len: usize,
    pool: Pool,
}

impl Pool {
    fn take(&self) -> Buffer {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let memory = free.unwrap_or_else(|| vec![0x5a; PIECE].into_boxed_slice());
        Buffer { memory, len: 0, pool: self.clone() }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        self.pool.0.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
    }
}

/// Mounts the file system of `url`.
pub async fn mount(url: &str, checksums: bool) -> Outcome<(Mount, Target)> {
    let target = Target::parse(url)?;
    Ok((Mount::connect(&target, Options { checksums, ..Options::default() }).await?, target))
}

/// Writes the local file to a file in Weir, and makes the bytes durable.
pub fn put(job: &TransferJob) -> Outcome<Moved> {
    Runtime::new()?.block_on(async {
        let (mount, target) = mount(&job.url, job.checksums).await?;
        let start = Instant::now();
        let name = target.name().ok_or("the root is no file")?;
        let file = mount.create(&mount.root(), name, CreateOptions::default()).await?;
        let (send, mut receive) = mpsc::channel(AHEAD);
        let (source, len) = (job.local.clone().map(File::open).transpose()?, job.len);
        let reader = std::thread::spawn(move || read_all(source.as_ref(), len, &send));
        while let Some((at, data)) = receive.recv().await {
            file.write_at(at, data).await?;
        }
        reader.join().map_err(|_| "the reading thread panicked")??;
        file.close().await?;
        let moved = Moved::since(start);
        mount.disconnect().await?;
        Ok(moved)
    })
}

fn read_all(source: Option<&File>, len: u64, send: &mpsc::Sender<(u64, Bytes)>) -> std::io::Result<()> {
    let pool = Pool::default();
    for at in (0..len).step_by(PIECE) {
        let mut buffer = pool.take();
        buffer.len = (len - at).min(PIECE as u64) as usize;
        if let Some(source) = source {
            source.read_exact_at(&mut buffer.memory[..buffer.len], at)?;
        }
        if send.blocking_send((at, Bytes::from_owner(buffer))).is_err() {
            // The task that writes to Weir has ended early, and reports its error itself. So return without an error
            // here.
            return Ok(());
        }
    }
    Ok(())
}

/// Reads a file from Weir into the local file.
pub fn get(job: &TransferJob) -> Outcome<Moved> {
    Runtime::new()?.block_on(async {
        let (mount, target) = mount(&job.url, job.checksums).await?;
        let start = Instant::now();
        let sink = job.local.as_ref().map(File::create).transpose()?;
        let (node, attrs) = mount.resolve(target.path(), true).await?;
        if attrs.size != job.len {
            return Err(format!("{} has {} bytes instead of {}", job.url, attrs.size, job.len).into());
        }
        let file = mount.open(&node, OpenFlags::READ).await?;
        let starts = (0..attrs.size).step_by(READ as usize);
        let reads = starts.map(|at| file.read_at(at, (attrs.size - at).min(READ) as usize));
        let mut answers = futures_util::stream::iter(reads).buffered(READS);
        let mut at = 0;
        while let Some(answer) = answers.next().await {
            for segment in answer?.segments {
                if let (Segment::Data(data), Some(sink)) = (&segment, &sink) {
                    sink.write_all_at(data, at)?;
                }
                at += segment.len();
            }
        }
        drop(answers);
        file.close().await?;
        if at != job.len {
            return Err(format!("{at} bytes came instead of {}", job.len).into());
        }
        let moved = Moved::since(start);
        mount.disconnect().await?;
        Ok(moved)
    })
}

/// Removes a file in Weir.
pub fn remove(url: &str) -> Outcome<()> {
    Runtime::new()?.block_on(async {
        let (mount, target) = mount(url, true).await?;
        mount.remove(&mount.root(), target.name().ok_or("the root is no file")?).await?;
        Ok(mount.disconnect().await?)
    })
}
