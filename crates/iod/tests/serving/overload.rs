//! Tests of slow, stalled and numerous connections: the iod limits their time, memory and number, and continues to
//! serve other clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iod::Iod;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use types::limits::{IDLE_BYTES_MAX, IOD_BUFFERS_MAX, STRANGERS_PER_MACHINE_MAX};
use wire::native::*;
use wire::rpc::record::mark;

use crate::cluster::{ALL, Client, Server, cap, config, pattern, wait_until};

/// The slow clients of these tests send or receive one byte at a time. They always make progress, but need many
/// minutes for a request or reply.
#[test]
fn clients_that_send_or_receive_byte_by_byte_are_disconnected() {
    let server = Server::with(|config| config.stall = Duration::from_millis(400));
    let mut dripping = server.client();
    let args = dripping.write_args(1, false, &[(0, &pattern(500_000, 1))]);
    let record = mark(dripping.message(Procedure::Write as u32, &args)).to_bytes();
    let dripped = std::thread::spawn(move || {
        record.chunks(1).any(|byte| {
            // Send slowly enough that the request exceeds the iod's time limit, however fast the machine is.
            wait_a_little();
            dripping.stream.write_all(byte).is_err()
        })
    });

    let mut sipping = server.client_with(false);
    sipping.write(2, 0, &pattern(1 << 20, 2)).unwrap();
    let read = ReadArgs { cap: cap(2, ALL), extents: vec![Extent { offset: 0, len: 1 << 20 }] };
    let asked = mark(sipping.message(Procedure::Read as u32, &read)).to_bytes().repeat(20);
    sipping.stream.write_all(&asked).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let seen = over.clone();
    let sipped = std::thread::spawn(move || {
        let mut some = [0; 64];
        // Receive slowly enough that the reply exceeds the iod's time limit, however fast the machine is.
        while !seen.load(Ordering::Acquire) {
            sipping.stream.read_exact(&mut some).unwrap();
            wait_a_little();
        }
        // Receive the bytes that the iod sent before it closed the connection, up to the end of the stream.
        std::io::copy(&mut sipping.stream, &mut std::io::sink()).unwrap_or(0)
    });

    let mut good = server.client();
    wait_until(|| {
        good.write(3, 0, b"works").unwrap();
        assert_eq!(good.read(3, 0, 9).unwrap(), b"works");
        server.counter("connections.stalled") == 2
    });
    over.store(true, Ordering::Release);
    assert!(dripped.join().unwrap(), "the client could not continue");
    assert!(sipped.join().unwrap() < 20 << 20);
    wait_until(|| server.counter("connections.open") == 1);
}

/// Waits a millisecond: waits for a condition variable that no thread notifies.
fn wait_a_little() {
    let nothing = std::sync::Condvar::new();
    let lock = std::sync::Mutex::new(());
    drop(nothing.wait_timeout(lock.lock().unwrap(), Duration::from_millis(1)));
}

#[test]
fn stalled_connections_lose_their_buffers_when_buffers_run_out() {
    let server = Server::new();
    allow_files(4 * IOD_BUFFERS_MAX as u64);
    let data = pattern(500_000, 1);
    // Open more connections with a partly sent request than the iod has payload buffers.
    let half: Vec<_> = (0..IOD_BUFFERS_MAX as u64 + 20)
        .map(|id| {
            let mut client = server.client();
            let args = client.write_args(id + 10, false, &[(0, &data)]);
            let record = mark(client.message(Procedure::Write as u32, &args)).to_bytes();
            client.stream.write_all(&record[..100_000]).unwrap();
            client
        })
        .collect();
    let mut good = server.client();
    good.write_list(1, true, &[(0, &data)]).unwrap();
    assert_eq!(good.read(1, 0, 500_000).unwrap(), data);
    assert!(server.counter("connections.stalled") > 0, "no connection was closed");
    drop(half);
}

#[test]
fn one_address_cannot_use_all_connections() {
    let server = Server::with(|config| (config.max_connections, config.max_per_peer) = (4, 2));
    let _first = server.client();
    let mut second = server.client();
    assert!(Client::new(server.tcp()).is_closed());
    let mut local = server.local_client(true);
    local.write(1, 0, b"fine").unwrap();
    second.write(1, 0, b"fine").unwrap();
    assert_eq!(server.counter("connections.refused"), 1);
}

#[test]
fn the_oldest_unauthenticated_connections_are_closed_above_a_limit() {
    let server = Server::new();
    let many = STRANGERS_PER_MACHINE_MAX + 50;
    let mut strangers: Vec<_> = (0..many).map(|_| Client::new(server.tcp())).collect();
    assert!(strangers[..50].iter_mut().all(Client::is_closed), "the oldest connections are closed first");
    server.client().write(1, 0, b"good").unwrap();
    assert_eq!(server.counter("connections.refused"), 51);
}

#[test]
fn unauthenticated_connections_are_closed_after_a_time_limit() {
    let server = Server::with(|config| config.stall = Duration::from_secs(2));
    let (mut good, mut silent, mut busy) = (server.client(), Client::new(server.tcp()), Client::new(server.tcp()));
    // An unauthenticated peer that sends requests does not extend the time for which its connection may stay open.
    let (mut asked, began) = (0, std::time::Instant::now());
    let record = mark(busy.message(Procedure::Stats as u32, &Nothing)).to_bytes();
    while busy.stream.write_all(&record).is_ok() && busy.receive().is_ok() {
        asked += 1;
        assert!(began.elapsed() < Duration::from_secs(60), "the connection was never closed");
    }
    assert!(asked > 0 && silent.is_closed());
    good.write(1, 0, b"here I am").unwrap();
}

/// Runs the iod process whose memory [`a_thousand_idle_sessions_take_little_memory`] measures. Does nothing in an
/// ordinary run of the tests, where the environment variable `WEIR_TEST_IOD_TO_BE_MEASURED` is not set.
#[test]
fn iod_process_for_the_memory_test() {
    let Some(dir) = std::env::var_os(TO_BE_MEASURED) else { return };
    let running = Iod::start(config(dir.as_ref())).unwrap();
    println!("\nport {}", running.addrs()[0].port());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

const TO_BE_MEASURED: &str = "WEIR_TEST_IOD_TO_BE_MEASURED";
const SESSIONS: usize = 1000;

#[test]
fn a_thousand_idle_sessions_take_little_memory() {
    if !allow_files(SESSIONS as u64 + 200) {
        return println!("skipped: too few files may be open here");
    }
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    crate::cluster::format_store(&iod::Local::new(&store), iod::Features::default());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "overload::iod_process_for_the_memory_test", "--nocapture"])
        .env(TO_BE_MEASURED, &store)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let port = lines.find_map(|line| line.unwrap().strip_prefix("port ").map(|p| p.parse::<u16>().unwrap())).unwrap();
    let client = || {
        let mut client = Client::new(TcpStream::connect(("127.0.0.1", port)).unwrap());
        client.hello(true).unwrap();
        client
    };
    // The first session makes the iod allocate memory that all sessions share. The test measures only the memory of
    // the later sessions.
    let mut first = client();
    first.write(1, 0, &pattern(100_000, 1)).unwrap();
    let before = memory(&child);
    let sessions: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let mut client = client();
            client.read(1, 0, 4096).unwrap();
            client
        })
        .collect();
    let each = memory(&child).saturating_sub(before) / SESSIONS as u64;
    println!("{each} bytes each");
    assert!(each > 0 && each <= IDLE_BYTES_MAX as u64, "{each} bytes each");
    drop(sessions);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Returns the resident memory of a process, in bytes.
fn memory(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// Raises the limit of open files of this process to at least `count`; returns whether that succeeded.
fn allow_files(count: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return true;
    }
    limit.maximum.is_none_or(|maximum| maximum >= count)
        && setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).is_ok()
}
