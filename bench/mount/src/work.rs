//! Work of the rows of the `mount` benchmark: system calls on files in a directory.

use crate::Outcome;
use hdrhistogram::Histogram;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const LINE: usize = 64;
/// Length in bytes of the file that rows write and read as a stream.
const STREAM: usize = 512 * MIB;
/// Number of pages in the file `pages`. Random requests choose among these pages.
const PAGES: usize = 65_536;
/// Number of random requests. The number of appends is a quarter of this number.
const RANDOM: usize = 32_768;
const LINES: usize = 131_072;
/// Number of threads that alternately write records of one length to one file.
const WRITERS: usize = 8;
const RECORD: usize = 47_001;
const RECORDS: usize = 4096;
const SMALL: usize = 2048;
const FILES: usize = 1000;
/// A pause that is longer than the time for which mounts cache names and attributes.
const FORGOTTEN: Duration = Duration::from_millis(1200);

/// The directory in which the rows of the benchmark create their files, and the amount of their work.
pub struct WorkDir {
    pub dir: PathBuf,
    /// The number by which all amounts of work are divided.
    pub scale: usize,
}

/// The result of one run of a row of the benchmark.
pub struct Done {
    pub operations: u64,
    /// Number of bytes that the row wrote or read; 0 for rows that count only operations.
    pub bytes: u64,
    pub seconds: f64,
    /// Latencies of the measured system calls, in nanoseconds.
    pub times: Histogram<u64>,
    /// Number of fsync and fdatasync calls.
    pub syncs: u64,
}

impl WorkDir {
    /// Returns the path of a file in the directory in which the rows create their files.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn some(&self, count: usize) -> usize {
        count / self.scale
    }

    /// Returns the length in bytes of the file that rows write and read as a stream.
    pub fn stream(&self) -> usize {
        self.some(STREAM)
    }

    /// Returns the number of small files that rows create and remove.
    pub fn files(&self) -> usize {
        self.some(FILES)
    }

    /// Returns pseudorandom offsets of pages; every call returns the same offsets.
    pub fn offsets(&self) -> impl Iterator<Item = u64> {
        let (count, pages) = (self.some(RANDOM), self.some(PAGES) as u64);
        // Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014): the finalizer of SplitMix64.
        let mixed = |n: u64| {
            let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            n ^ (n >> 31)
        };
        (1..=count as u64).map(move |n| mixed(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % pages * PAGE as u64)
    }
}

/// A sampler of latencies, which measures one in `every` requests.
pub struct LatencySampler {
    start: Instant,
    every: usize,
    seen: usize,
    times: Histogram<u64>,
}

impl LatencySampler {
    /// Starts the measurement of one request in `every`.
    pub fn start(every: usize) -> Outcome<LatencySampler> {
        Ok(LatencySampler { start: Instant::now(), every, seen: 0, times: Histogram::new(3)? })
    }

    /// Executes a request, and measures its latency if the sampler selects this request.
    pub fn time<T>(&mut self, request: impl FnOnce() -> std::io::Result<T>) -> Outcome<T> {
        self.seen += 1;
        if !self.seen.is_multiple_of(self.every) {
            return Ok(request()?);
        }
        let begun = Instant::now();
        let answer = request()?;
        self.times.record(begun.elapsed().as_nanos() as u64)?;
        Ok(answer)
    }

    /// Ends the measurement and returns the result of the row of the benchmark.
    pub fn stop(self, bytes: usize, syncs: u64) -> Done {
        let seconds = self.start.elapsed().as_secs_f64();
        Done { operations: self.seen as u64, bytes: bytes as u64, seconds, times: self.times, syncs }
    }
}

/// Writes `count` pieces of `piece` bytes sequentially to a file, which is created and opened with `options`.
fn in_order(path: &Path, options: &mut OpenOptions, piece: usize, count: usize, sync: bool) -> Outcome<Done> {
    let mut file = options.create(true).open(path)?;
    let piece = vec![0x5a; piece];
    let mut sampler = LatencySampler::start(if piece.len() < MIB { 8 } else { 1 })?;
    for _ in 0..count {
        sampler.time(|| file.write_all(&piece))?;
    }
    if sync {
        file.sync_all()?;
    }
    Ok(sampler.stop(piece.len() * count, u64::from(sync)))
}

fn new() -> OpenOptions {
    File::options().write(true).truncate(true).clone()
}

pub fn write_stream(work_dir: &WorkDir) -> Outcome<Done> {
    in_order(&work_dir.at("stream"), &mut new(), MIB, work_dir.stream() / MIB, true)
}

pub fn read_stream(work_dir: &WorkDir) -> Outcome<Done> {
    let file = File::open(work_dir.at("stream"))?;
    let mut piece = vec![0; MIB];
    let mut sampler = LatencySampler::start(1)?;
    for at in (0..work_dir.stream()).step_by(MIB) {
        sampler.time(|| file.read_exact_at(&mut piece, at as u64))?;
    }
    Ok(sampler.stop(work_dir.stream(), 0))
}

pub fn write_pages(work_dir: &WorkDir) -> Outcome<Done> {
    in_order(&work_dir.at("unsynced"), &mut new(), PAGE, work_dir.some(PAGES), false)
}

pub fn write_pages_synced(work_dir: &WorkDir) -> Outcome<Done> {
    in_order(&work_dir.at("pages"), &mut new(), PAGE, work_dir.some(PAGES), true)
}

pub fn append_pages(work_dir: &WorkDir) -> Outcome<Done> {
    in_order(&work_dir.at("appended"), File::options().append(true), PAGE, work_dir.some(RANDOM) / 4, true)
}

pub fn write_lines(work_dir: &WorkDir) -> Outcome<Done> {
    in_order(&work_dir.at("lines"), &mut new(), LINE, work_dir.some(LINES), true)
}

/// Opens the file `pages`. Writes this file first if the row that writes it has not run.
fn pages(work_dir: &WorkDir) -> Outcome<File> {
    let path = work_dir.at("pages");
    if !path.exists() {
        write_pages_synced(work_dir)?;
    }
    Ok(File::options().read(true).write(true).open(path)?)
}

pub fn write_randomly(work_dir: &WorkDir) -> Outcome<Done> {
    let (file, page) = (pages(work_dir)?, [0x77; PAGE]);
    let mut sampler = LatencySampler::start(8)?;
    for at in work_dir.offsets() {
        sampler.time(|| file.write_all_at(&page, at))?;
    }
    file.sync_all()?;
    let bytes = sampler.seen * PAGE;
    Ok(sampler.stop(bytes, 1))
}

pub fn read_randomly(work_dir: &WorkDir) -> Outcome<Done> {
    let (file, mut page) = (pages(work_dir)?, [0; PAGE]);
    let mut sampler = LatencySampler::start(8)?;
    for at in work_dir.offsets() {
        sampler.time(|| file.read_exact_at(&mut page, at))?;
    }
    let bytes = sampler.seen * PAGE;
    Ok(sampler.stop(bytes, 0))
}

/// Runs writers or readers, each in its own thread. Each thread calls `each` for every one of its records.
fn records(
    work_dir: &WorkDir,
    each: impl Fn(&mut LatencySampler, u64) -> Outcome<()> + Sync,
    syncs: u64,
) -> Outcome<Done> {
    let count = work_dir.some(RECORDS);
    let mut whole = LatencySampler::start(1)?;
    let one = |number| {
        let mut sampler = LatencySampler::start(1)?;
        (number..count).step_by(WRITERS).try_for_each(|record| each(&mut sampler, (record * RECORD) as u64))?;
        Ok(sampler)
    };
    let one = &one;
    let watches = thread::scope(|scope| {
        let threads: Vec<_> = (0..WRITERS).map(|number| scope.spawn(move || one(number))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread died")?).collect::<Outcome<Vec<_>>>()
    })?;
    for sampler in watches {
        whole.seen += sampler.seen;
        whole.times.add(sampler.times)?;
    }
    Ok(whole.stop(count * RECORD, syncs))
}

/// Opens the file once for each writer or reader, as separate processes do.
fn opens(options: &OpenOptions, path: &Path) -> Outcome<Vec<File>> {
    Ok((0..WRITERS).map(|_| options.open(path)).collect::<Result<_, _>>()?)
}

pub fn write_records(work_dir: &WorkDir) -> Outcome<Done> {
    let path = work_dir.at("records");
    File::create(&path)?;
    let files = opens(File::options().write(true), &path)?;
    let record = vec![0x33; RECORD];
    let mut done = records(
        work_dir,
        |sampler, at| {
            let file = &files[at as usize / RECORD % WRITERS];
            sampler.time(|| file.write_all_at(&record, at))
        },
        1,
    )?;
    let begun = Instant::now();
    files[0].sync_all()?;
    drop(files);
    done.seconds += begun.elapsed().as_secs_f64();
    Ok(done)
}

pub fn read_records(work_dir: &WorkDir) -> Outcome<Done> {
    let files = opens(File::options().read(true), &work_dir.at("records"))?;
    records(
        work_dir,
        |sampler, at| {
            let mut record = vec![0; RECORD];
            let file = &files[at as usize / RECORD % WRITERS];
            sampler.time(|| file.read_exact_at(&mut record, at))
        },
        0,
    )
}

fn names(work_dir: &WorkDir) -> impl Iterator<Item = PathBuf> {
    (0..work_dir.files()).map(|number| work_dir.dir.join("small").join(format!("file-{number:06}")))
}

pub fn create(work_dir: &WorkDir) -> Outcome<Done> {
    fs::create_dir(work_dir.at("small"))?;
    let content = [0x41; SMALL];
    let mut sampler = LatencySampler::start(1)?;
    for path in names(work_dir) {
        sampler.time(|| File::create_new(path)?.write_all(&content))?;
    }
    Ok(sampler.stop(0, 0))
}

pub fn stat(work_dir: &WorkDir) -> Outcome<Done> {
    thread::sleep(FORGOTTEN);
    let mut sampler = LatencySampler::start(1)?;
    for path in names(work_dir) {
        sampler.time(|| fs::metadata(path))?;
    }
    Ok(sampler.stop(0, 0))
}

pub fn read_small(work_dir: &WorkDir) -> Outcome<Done> {
    let mut sampler = LatencySampler::start(1)?;
    let mut content = [0; SMALL];
    for path in names(work_dir) {
        sampler.time(|| File::open(path)?.read_exact_at(&mut content, 0))?;
    }
    Ok(sampler.stop(0, 0))
}

pub fn unlink(work_dir: &WorkDir) -> Outcome<Done> {
    let mut sampler = LatencySampler::start(1)?;
    for path in names(work_dir) {
        sampler.time(|| fs::remove_file(path))?;
    }
    Ok(sampler.stop(0, 0))
}
