//! Benchmark of several writers of one file over a proxy that delays every answer: it shows whether the writers'
//! requests overlap.

use crate::mounts::{Side, Weir};
use crate::report::{Bound, Table, ratios};
use crate::{Failure, Outcome};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// The name of the `slow` part of the benchmark on the command line.
pub const NAME: &str = "writers with slow answers";
/// The time by which the proxy delays every answer.
const WAY: Duration = Duration::from_micros(500);
const PAGE: usize = 4096;
/// Number of writes of each writer.
const WRITES: usize = 1600;
const WRITERS: [usize; 2] = [1, 4];
/// Target: the smallest ratio of the rate of four writers to the rate of one writer.
const WANTED: f64 = 3.0;

/// Starts a proxy in front of `target`, which forwards requests at once, and answers after the delay [`WAY`]. Returns
/// the address of the proxy.
fn delaying_proxy(target: SocketAddr) -> Outcome<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            if let Err(error) = TcpStream::connect(target).and_then(|far| relay(near, far)) {
                eprintln!("mount: a connection through the slow door: {error}");
            }
        }
    });
    Ok(address)
}

fn relay(near: TcpStream, far: TcpStream) -> std::io::Result<()> {
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_too, far_too) = (near.try_clone()?, far.try_clone()?);
    thread::spawn(move || pass(near, far));
    let (queue, come) = channel();
    thread::spawn(move || note(far_too, queue));
    thread::spawn(move || late(come, near_too));
    Ok(())
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Receives answers from the server, and puts them into a queue with their arrival times.
fn note(mut from: TcpStream, queue: Sender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if queue.send((Instant::now(), buffer[..len].to_vec())).is_err() {
            break;
        }
    }
}

/// Forwards each answer once its delay is over.
fn late(come: Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    for (at, answer) in come {
        sleep((at + WAY).saturating_duration_since(Instant::now()));
        if to.write_all(&answer).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Runs `count` concurrent writers of disjoint pages of one file. Returns the number of writes per second of all
/// writers.
fn writers(path: &Path, count: usize, scale: usize) -> Outcome<f64> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let each = WRITES / scale;
    // The kernel serializes writes that extend a file, so extend the file first.
    file.set_len((each * count * PAGE) as u64)?;
    let start = Instant::now();
    thread::scope(|scope| {
        let write = |writer: usize| {
            let page = [writer as u8; PAGE];
            (0..each).try_for_each(|n| file.write_all_at(&page, ((n * count + writer) * PAGE) as u64))
        };
        let all: Vec<_> = (0..count).map(|writer| scope.spawn(move || write(writer))).collect();
        all.into_iter().try_for_each(|writer| writer.join().map_err(|_| "a writer panicked")?.map_err(Failure::from))
    })?;
    Ok((each * count) as f64 / start.elapsed().as_secs_f64())
}

/// Measures concurrent writers of one file in an additional mount. This mount reaches the mgr through the delaying
/// proxy, and sends each write to the mgr at once.
pub fn measure(weir: &Weir, work_dir: &Path, rounds: u32, scale: usize) -> Outcome<Table> {
    let at = delaying_proxy(weir.address()?)?;
    let options = "access=unbuffered,write_threshold=max";
    let side = Side::by(weir, &work_dir.join("mnt-slow"), options, &format!("weir://{at}/"))?;
    side.begin()?;
    let mut rates = WRITERS.map(|_| Vec::new());
    for round in 0..rounds {
        for (count, rates) in WRITERS.into_iter().zip(&mut rates) {
            rates.push(writers(&side.dir().join(format!("slow-{round}-{count}")), count, scale)?);
        }
    }
    side.end()?;
    let mut table = Table::new(format!("Writers in one file when answers take {} us", WAY.as_micros()), &["writes/s"]);
    for (count, rates) in WRITERS.into_iter().zip(&rates) {
        table.row(format!("4 KiB, {count} at a time: {}", side.name()), std::slice::from_ref(rates));
    }
    table.target(
        "writes/s of four writers over writes/s of one writer",
        Bound::AtLeast(WANTED),
        &ratios(&rates[1], &rates[0]),
    );
    Ok(table)
}
