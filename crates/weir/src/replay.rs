//! Closed-loop replay of a trace: each client starts its next operation when its previous operation is complete.

mod client;
mod latency;
mod store;
mod sums;
mod verify;

pub use latency::{Latencies, Line};
pub use store::Place;
pub use sums::Sums;

use crate::failure::Failure;
use crate::stop::Stop;
use bytes::Bytes;
use client::Client;
use indicatif::ProgressBar;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use store::TempDir;
use trace::written::Written;
use trace::{Action, Trace};

/// A replay to run: the trace, the directory for its files, and the options.
pub struct Job {
    /// The trace with the operations of each client.
    pub trace: Arc<Trace>,
    /// Number of copies of the trace that run at the same time, each with its own files.
    pub copies: usize,
    /// The directory in which the replay makes its files.
    pub place: Place,
    /// Whether each write has its own content, so that the replay can read all data back and verify them.
    pub verify: bool,
    /// Whether the replay fills the files that the trace reads, before it measures the first operation.
    pub fill: bool,
    /// Whether the replay keeps its files after the last operation.
    pub keep: bool,
    /// Number of first operations of each client whose latency the replay does not record (warm-up).
    pub warm: usize,
}

/// The results of a replay.
pub struct Done {
    /// The time from the start of the first operation to the end of the last operation.
    pub took: Duration,
    /// Latency histograms by kind of operation and by length.
    pub latencies: Latencies,
    /// Payload bytes on each path, and other counters of the clients.
    pub sums: Sums,
    /// The write threshold of each client at the end of the replay, in bytes.
    pub thresholds: Vec<u64>,
    /// Number of bytes that the replay has read back and compared; `None` without verification.
    pub verified: Option<u64>,
}

/// The state that all clients of a replay share.
struct Shared {
    trace: Arc<Trace>,
    verify: bool,
    warm: usize,
    stop: Stop,
    /// Set when a client has failed, so that the other clients stop.
    failed: AtomicBool,
    bar: ProgressBar,
    /// Random bytes, which every write writes if the replay does not verify the data.
    pool: Bytes,
    /// For each file, the only client that uses the file in the trace; `None` if several clients use the file.
    users: HashMap<u32, Option<usize>>,
    /// Length in bytes of each file that the replay fills before the first operation.
    filled: HashMap<u32, u64>,
}

/// Models of the file contents, by the index of the copy of the trace and the index of the file in the trace. Each
/// model holds the bytes that one client wrote.
type Models = HashMap<(usize, u32), Vec<Written>>;

/// Runs a replay and blocks until it ends. `bar` shows the number of completed operations.
pub fn run(job: &Job, stop: &Stop, bar: ProgressBar) -> Result<Done, Failure> {
    let dir = TempDir::make(&job.place)?;
    let outcome = run_in(job, &dir, stop, bar);
    let removed = if job.keep { Ok(()) } else { dir.remove() };
    outcome.and_then(|done| removed.map(|()| done))
}

fn run_in(job: &Job, dir: &TempDir, stop: &Stop, bar: ProgressBar) -> Result<Done, Failure> {
    let longest = job.trace.ops().map(|op| op.len).max().unwrap_or(0) as usize;
    let shared = Arc::new(Shared {
        trace: job.trace.clone(),
        verify: job.verify,
        warm: job.warm,
        stop: stop.clone(),
        failed: AtomicBool::new(false),
        bar,
        pool: if job.verify { Bytes::new() } else { noise(longest) },
        users: users(&job.trace),
        filled: if job.fill { read_to(&job.trace) } else { HashMap::new() },
    });
    shared.bar.set_length((job.trace.len() * job.copies) as u64);
    let each = |copy| (0..shared.trace.clients.len()).map(move |number| (copy, number));
    let mut clients = Vec::new();
    for (copy, number) in (0..job.copies).flat_map(each) {
        clients.push(Client::new(shared.clone(), dir.enter()?, copy, number));
    }
    if let Some(client) = clients.first_mut() {
        for copy in 0..job.copies {
            client.fill(copy)?;
        }
    }
    let before: Sums = clients.iter().map(|client| client.connection.sums()).sum();
    let start = Arc::new(Barrier::new(clients.len() + 1));
    let threads: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let start = start.clone();
            std::thread::spawn(move || {
                start.wait();
                client.work()
            })
        })
        .collect();
    start.wait();
    let begun = Instant::now();
    let mut latencies = Latencies::default();
    let mut models = Models::new();
    let mut after = Sums::default();
    let mut thresholds = Vec::new();
    let mut failure = None;
    for thread in threads {
        let worked = thread.join().map_err(|_| Failure::new("a client of the replay panicked"))?;
        latencies.add(&worked.latencies);
        thresholds.extend(worked.threshold);
        after = after + worked.sums;
        worked.models.into_iter().for_each(|(file, model)| models.entry((worked.copy, file)).or_default().push(model));
        failure = failure.or(worked.failure);
    }
    let took = begun.elapsed();
    shared.bar.finish_and_clear();
    if let Some(failure) = failure {
        return Err(failure);
    }
    stop.check()?;
    let verified = if job.verify { Some(verify::all(&dir.enter()?, &models, &shared.filled)?) } else { None };
    Ok(Done { took, latencies, sums: after - before, thresholds, verified })
}

impl Shared {
    fn is_over(&self) -> bool {
        self.failed.load(Relaxed) || self.stop.is_set()
    }
}

fn users(trace: &Trace) -> HashMap<u32, Option<usize>> {
    let mut users = HashMap::new();
    for (client, ops) in trace.clients.iter().enumerate() {
        for op in ops {
            let user = users.entry(op.file).or_insert(Some(client));
            if *user != Some(client) {
                *user = None;
            }
        }
    }
    users
}

/// Returns, for each file that the trace reads, the highest end offset of a read in the trace.
fn read_to(trace: &Trace) -> HashMap<u32, u64> {
    let mut ends = HashMap::new();
    for op in trace.ops().filter(|op| op.action == Action::Read) {
        let end = ends.entry(op.file).or_insert(0);
        *end = op.end().max(*end);
    }
    ends
}

/// Returns `len` incompressible bytes in a page-aligned buffer, as O_DIRECT requires.
fn noise(len: usize) -> Bytes {
    aligned(len, |out| trace::content::fill(0, 1, 0, out))
}

/// Returns a page-aligned buffer of `len` bytes that `fill` has filled.
fn aligned(len: usize, fill: impl FnOnce(&mut [u8])) -> Bytes {
    const PAGE: usize = 4096;
    let mut room = vec![0; len + PAGE];
    let from = room.as_ptr().align_offset(PAGE).min(PAGE);
    fill(&mut room[from..from + len]);
    Bytes::from(room).slice(from..from + len)
}
