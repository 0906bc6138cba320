//! Part (c): 4 KiB reads from one iod, compared with a minimal thread-per-connection server over the same sockets.

use crate::native::{self, Client};
use crate::process::{Daemon, cpu_of};
use crate::report::{Bound, Number, Report, Table, ratios};
use crate::{Failure, Outcome, Role, Setup, bare};
use bytes::Bytes;
use hdrhistogram::Histogram;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Length of each read in bytes.
const LEN: u32 = 4096;
/// Length in bytes of the file that clients read: larger than the processor's caches, and small enough for the page
/// cache.
const SPREAD: u64 = 256 << 20;
const CONNECTIONS: [usize; 2] = [1, 4];
/// Number of measurements (turns) of each server in a round, and the duration of a turn. Turns are short, so that other
/// load on the machine affects all servers equally.
const TURNS: u32 = 40;
const TURN: Duration = Duration::from_millis(50);
/// Number of warm-up reads of each client before the measurement begins.
const WARM: u64 = 2000;

/// A client with one read in flight at a time.
pub trait Reads: Send {
    /// Reads `len` bytes of the file at `offset`.
    fn read(&mut self, offset: u64, len: u32) -> Outcome<&[u8]>;
}

/// A measured server with its clients and its results so far.
struct Side {
    name: String,
    pid: u32,
    clients: Vec<Box<dyn Reads>>,
    found: Found,
}

/// Results of all rounds for this server.
#[derive(Default)]
struct Found {
    rate: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    cpu: Vec<f64>,
}

/// The measurements of one server in one round.
struct Round {
    reads: u64,
    /// Reads per second of all clients in each turn.
    rates: Vec<f64>,
    cpu: f64,
    times: Histogram<u64>,
}

/// Serves an object store like `weir iod`, until the process is killed.
pub fn serve_iod(dir: &Path) -> Outcome<()> {
    iod::Store::format_as(&iod::Local::new(dir), native::FSID, iod::Features::default(), native::IOD)?;
    let config = iod::Config::new(dir, native::FSID, native::key(), vec!["127.0.0.1:0".parse()?]);
    let running = iod::Iod::start(config)?;
    let unix = running.unix_path().ok_or("the iod has no Unix socket")?;
    println!("{} {}", running.addrs()[0], unix.display());
    loop {
        thread::park();
    }
}

/// Runs part (c) of the `stripe` benchmark over Unix sockets and over TCP, and adds its table to the report.
pub fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let dir = setup.dir.join("small");
    std::fs::create_dir(&dir)?;
    let (iod, addresses) = Daemon::in_role(&[], &Role::Iod { dir: dir.join("iod") })?;
    let (iod_tcp, iod_unix) = addresses.split_once(' ').ok_or("an iod without two addresses")?;
    let file = dir.join("file");
    fill(&file, iod_unix)?;
    let mut table = Table::new(
        "(c) random reads of 4 KiB from one iod over 256 MiB in the page cache, each connection with one at a time; \
         reads/s is the median of a round's turns",
        &["reads/s", "p50 us", "p99 us", "server CPU us"],
    );
    local(setup, &file, &mut table)?;
    let socket = dir.join("bare.sock").into_os_string().into_string().map_err(|_| "a path that is no text")?;
    for (kind, iod_at, listen) in [("Unix", iod_unix, &socket[..]), ("TCP", iod_tcp, "127.0.0.1:0")] {
        let (bare, bare_at) = Daemon::in_role(&[], &Role::Reads { address: listen.to_owned(), file: file.clone() })?;
        for connections in CONNECTIONS {
            let mut sides = [
                Side::new("bare server", bare.pid(), connections, || Ok(Box::new(bare::Reader::new(&bare_at)?)))?,
                Side::new("iod, checksums", iod.pid(), connections, || Ok(Box::new(Client::new(iod_at, true)?)))?,
                Side::new("iod, none", iod.pid(), connections, || Ok(Box::new(Client::new(iod_at, false)?)))?,
            ];
            for _ in 0..setup.rounds {
                round(&mut sides, setup.brief(TURN))?;
            }
            add(&mut table, kind, connections, &sides);
        }
    }
    report.tables.push(table);
    Ok(())
}

fn add(table: &mut Table, kind: &str, connections: usize, sides: &[Side; 3]) {
    let [bare, with, without] = sides;
    for side in sides {
        let found = &side.found;
        let cells = [found.rate.clone(), found.p50.clone(), found.p99.clone(), found.cpu.clone()];
        table.row(format!("{kind} x {connections}, {}", side.name), &cells);
    }
    for (side, words) in [(with, "with checksums"), (without, "without checksums")] {
        let found = ratios(&side.found.rate, &bare.found.rate);
        table.target(format!("{kind} x {connections}, reads/s {words} / bare"), Bound::AtLeast(0.7), &found);
        let median = ratios(&bare.found.p50, &side.found.p50);
        table.notes.extend(Number::of(&median).map(|n| format!("{kind} x {connections}, bare / {words} by p50: {n}")));
    }
}

/// Writes the same bytes to the iod and to the file of the minimal server. The bytes are then in the page cache.
fn fill(path: &Path, iod: &str) -> Outcome<()> {
    let (mut client, file) = (Client::new(iod, true)?, File::create(path)?);
    let mut piece = vec![0; 1 << 20];
    for at in (0..SPREAD).step_by(piece.len()) {
        getrandom::fill(&mut piece)?;
        file.write_all_at(&piece, at)?;
        client.write(at, Bytes::copy_from_slice(&piece))?;
    }
    let mut compared = vec![0; LEN as usize];
    for at in (0..SPREAD).step_by(1 << 20) {
        File::open(path)?.read_exact_at(&mut compared, at)?;
        if client.read(at, LEN)? != compared {
            return Err(format!("the iod answers something else than was written at {at}").into());
        }
    }
    // Make the file and the object durable now, because their write-back during the measurement would disturb the
    // results.
    file.sync_all()?;
    client.commit()
}

/// Measures the baseline: the same reads from the local file, without a server.
fn local(setup: &Setup, path: &Path, table: &mut Table) -> Outcome<()> {
    struct Local(File, Vec<u8>);
    impl Reads for Local {
        fn read(&mut self, offset: u64, len: u32) -> Outcome<&[u8]> {
            self.0.read_exact_at(&mut self.1[..len as usize], offset)?;
            Ok(&self.1)
        }
    }
    let mut side = Side::new("", std::process::id(), 1, || Ok(Box::new(Local(File::open(path)?, vec![0; 4096]))))?;
    for _ in 0..setup.rounds {
        round(std::slice::from_mut(&mut side), setup.brief(TURN))?;
    }
    let found = side.found;
    table.row("floor: pread, no server", &[found.rate, found.p50, found.p99, found.cpu]);
    Ok(())
}

impl Side {
    fn new(name: &str, pid: u32, connections: usize, client: impl Fn() -> Outcome<Box<dyn Reads>>) -> Outcome<Side> {
        let mut clients = (0..connections).map(|_| client()).collect::<Outcome<Vec<_>>>()?;
        for client in &mut clients {
            (0..WARM).try_for_each(|i| client.read(i * u64::from(LEN), LEN).map(drop))?;
        }
        Ok(Side { name: name.to_owned(), pid, clients, found: Found::default() })
    }

    /// Runs one turn of a server: all clients read concurrently for about `duration`.
    fn turn(&mut self, duration: Duration, round: &mut Round) -> Outcome<()> {
        let (cpu, start) = (cpu_of(self.pid)?, Instant::now());
        let mut seed = [0; 8];
        getrandom::fill(&mut seed)?;
        let (seed, before) = (u64::from_ne_bytes(seed), round.reads);
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for (i, client) in self.clients.iter_mut().enumerate() {
                threads.push(scope.spawn(move || read_for(&mut **client, seed.wrapping_add(i as u64), duration)));
            }
            for thread in threads {
                let times = thread.join().map_err(|_| "a reading thread panicked")??;
                round.reads += times.len();
                round.times.add(times)?;
            }
            Ok::<_, Failure>(())
        })?;
        round.rates.push((round.reads - before) as f64 / start.elapsed().as_secs_f64());
        round.cpu += cpu_of(self.pid)? - cpu;
        Ok(())
    }
}

/// Runs one round: measures the servers alternately, each in [`TURNS`] turns.
fn round(sides: &mut [Side], turn: Duration) -> Outcome<()> {
    let new = |_: &Side| Ok(Round { reads: 0, rates: Vec::new(), cpu: 0.0, times: Histogram::new(3)? });
    let mut rounds = sides.iter().map(new).collect::<Outcome<Vec<_>>>()?;
    for first in 0..TURNS as usize {
        // Rotate the order of the servers, so that each server is measured first equally often.
        for i in 0..sides.len() {
            let i = (first + i) % sides.len();
            sides[i].turn(turn, &mut rounds[i])?;
        }
    }
    for (side, round) in sides.iter_mut().zip(rounds) {
        let micros = |quantile| round.times.value_at_quantile(quantile) as f64 / 1e3;
        side.found.rate.extend(Number::of(&round.rates).map(|rate| rate.median));
        side.found.p50.push(micros(0.5));
        side.found.p99.push(micros(0.99));
        side.found.cpu.push(round.cpu * 1e6 / round.reads as f64);
    }
    Ok(())
}

/// Reads at random offsets for `duration`; returns the latencies in nanoseconds.
fn read_for(client: &mut dyn Reads, seed: u64, duration: Duration) -> Outcome<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    let (mut random, start) = (seed | 1, Instant::now());
    let mut now = start;
    while now - start < duration {
        // xorshift is random enough for offsets, and costs almost nothing compared with a read.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let offset = random % (SPREAD / u64::from(LEN)) * u64::from(LEN);
        client.read(offset, LEN)?;
        let done = Instant::now();
        times.record((done - now).as_nanos() as u64)?;
        now = done;
    }
    Ok(times)
}
