//! Writers of one file when every answer takes its time: whether they wait at the same time or one after another.

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

/// What it is called on the command line.
pub const NAME: &str = "writers with slow answers";
/// How long answers take on their way.
const WAY: Duration = Duration::from_micros(500);
const PAGE: usize = 4096;
/// Writes of one writer.
const WRITES: usize = 1600;
const WRITERS: [usize; 2] = [1, 4];
/// How much more four writers have to reach than one.
const WANTED: f64 = 3.0;

/// A door to `target`: what is asked passes at once, what is answered after [`WAY`].
fn door(target: SocketAddr) -> Outcome<SocketAddr> {
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

/// Takes answers as they come, with the time.
fn note(mut from: TcpStream, queue: Sender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if queue.send((Instant::now(), buffer[..len].to_vec())).is_err() {
            break;
        }
    }
}

/// Hands them over when their time has come.
fn late(come: Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    for (at, answer) in come {
        sleep((at + WAY).saturating_duration_since(Instant::now()));
        if to.write_all(&answer).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// So many writers of one file, each with pages of its own: writes per second, all together.
fn writers(path: &Path, count: usize, scale: usize) -> Outcome<f64> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let each = WRITES / scale;
    // Writes that lengthen a file the kernel lets pass one by one.
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

/// Measures it in a mount of its own, which reaches the mgr by a slow door and sends every write through it at once.
pub fn measure(weir: &Weir, room: &Path, rounds: u32, scale: usize) -> Outcome<Table> {
    let at = door(weir.address()?)?;
    let options = "access=odirect,write_threshold=max";
    let side = Side::by(weir, &room.join("mnt-slow"), options, &format!("weir://{at}/"))?;
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
    table.target("four writers over one", Bound::AtLeast(WANTED), &ratios(&rates[1], &rates[0]));
    Ok(table)
}
