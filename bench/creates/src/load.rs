//! Load generator of the `creates` benchmark: one thread that keeps a given number of file creates in flight.

use crate::Outcome;
use crate::stores::{Kind, NOW, make};
use futures_util::stream::{FuturesUnordered, StreamExt};
use hdrhistogram::Histogram;
use meta::{CreateMode, Embedded, Layout, Namespace};
use std::cell::Cell;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};
use types::{Cred, FileId, SetAttrs, Status};

/// Number of directories over which the creates are distributed round robin.
const DIRECTORIES: u64 = 16;

/// The result of one measurement of file creates.
pub struct Rate {
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// CPU time of the benchmark process per create, in microseconds.
    pub cpu_us: f64,
    /// Mean number of creates that share one flush of the store (group commit).
    pub per_flush: f64,
    /// Mean number of bytes of keys and values in one flush.
    pub window_bytes: f64,
    pub checkpoints_per_second: f64,
    /// Bytes that the benchmark process passed to write calls, per create.
    pub written_bytes: f64,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs `future` in this thread and returns its result.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Generator of file creates in several directories.
pub struct Work<'a> {
    namespace: &'a Namespace<Embedded>,
    dirs: Vec<FileId>,
    next: Cell<u64>,
}

impl<'a> Work<'a> {
    /// Makes the benchmark's directories. The numbers in the file names begin at `first`, so that no file name exists
    /// yet.
    pub fn new(namespace: &'a Namespace<Embedded>, first: u64) -> Outcome<Self> {
        let make = |n: u64| {
            let name = format!("directory-{first}-{n}");
            wait(namespace.mkdir(&Cred::root(), NOW, FileId::ROOT, name.as_bytes(), &SetAttrs::default()))
        };
        let dirs = (0..DIRECTORIES).map(|n| Ok(make(n)?.attrs.id)).collect::<Result<_, Status>>()?;
        Ok(Work { namespace, dirs, next: Cell::new(0) })
    }

    async fn create(&self) -> Result<Duration, Status> {
        let begin = Instant::now();
        let number = self.next.replace(self.next.get() + 1);
        let dir = self.dirs[(number % DIRECTORIES) as usize];
        let name = format!("file-{number:08}");
        let how = CreateMode::Guarded(SetAttrs { mode: Some(0o644), ..SetAttrs::default() });
        // Placeholder bytes, as many as the layout record of a file on four iods has.
        let layout = Layout { kind: 0x8000_5745, body: vec![7; 32].into() };
        self.namespace.create(&Cred::root(), NOW, dir, name.as_bytes(), &how, Some(&layout)).await?;
        Ok(begin.elapsed())
    }

    /// Sends create requests while `on` returns true, and keeps `in_flight` of them unanswered at any time. The
    /// argument of `on` is the number of creates begun so far. Returns the latency of each create.
    pub fn run(&self, in_flight: usize, on: impl Fn(u64) -> bool) -> Outcome<Histogram<u64>> {
        let mut times = Histogram::<u64>::new(3)?;
        wait(async {
            let mut running: FuturesUnordered<_> = (0..in_flight).map(|_| self.create()).collect();
            while let Some(done) = running.next().await {
                times.record(done?.as_nanos() as u64)?;
                if on(self.next.get()) {
                    running.push(self.create());
                }
            }
            Ok(times)
        })
    }
}

fn cpu() -> Duration {
    let of = |who| {
        let usage = rustix::time::clock_gettime(who);
        Duration::new(usage.tv_sec as u64, usage.tv_nsec as u32)
    };
    of(rustix::time::ClockId::ProcessCPUTime)
}

/// Returns the bytes that this process has passed to write calls so far.
fn written() -> Outcome<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: ")).ok_or("no count of bytes written")?;
    Ok(line.trim().parse()?)
}

/// Measures creates in an empty metadata store for the time `long`.
pub fn creates(dir: &Path, kind: Kind, in_flight: usize, long: Duration) -> Outcome<Rate> {
    let dir = tempfile::tempdir_in(dir)?;
    let namespace = make(dir.path(), kind)?;
    let work = Work::new(&namespace, 0)?;
    // Warm up for a quarter of the measured time: the batch log reaches its full length, and the database gets the
    // first pages of the directories.
    let warm = Instant::now();
    work.run(in_flight, |_| warm.elapsed() < long / 4)?;
    let (before, cpu_before, written_before) = (namespace.status().counters, cpu(), written()?);
    let start = Instant::now();
    let times = work.run(in_flight, |_| start.elapsed() < long)?;
    let (took, done) = (start.elapsed().as_secs_f64(), times.len() as f64);
    let (cpu, written, after) = (cpu() - cpu_before, written()? - written_before, namespace.status().counters);
    drop(work);
    let flushes = (after.flushes - before.flushes) as f64;
    Ok(Rate {
        per_second: done / took,
        p50_ms: times.value_at_quantile(0.5) as f64 / 1e6,
        p99_ms: times.value_at_quantile(0.99) as f64 / 1e6,
        cpu_us: cpu.as_secs_f64() * 1e6 / done,
        per_flush: done / flushes,
        window_bytes: (after.bytes - before.bytes) as f64 / flushes,
        checkpoints_per_second: (after.checkpoints - before.checkpoints) as f64 / took,
        written_bytes: written as f64 / done,
    })
}
