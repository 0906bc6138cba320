//! Tests of an RPC server with many clients, some of which stall: the server limits, counts and disconnects them, and
//! serves the other clients.

use bytes::Bytes;
use net::rpc::{CallContext, Connection, Limits, NoService, Refusal, Server, Service, serve};
use net::{Address, Counters, Error, Listener};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use wire::rpc::{Auth, CallHeader, record};
use xdr::{Reader, Segments, Writer};

const PROGRAM: u32 = 0x2057_0001;
/// Procedure of the test service: returns as many bytes as its argument says.
const READ: u32 = 1;
/// Procedure of the test service: returns the length of its argument.
const WRITE: u32 = 2;
/// Procedure of the test service: waits for a permit of the semaphore `gate`. No test of this file adds a permit.
const HOLD: u32 = 3;
const PANIC: u32 = 4;
const MIB: usize = 1 << 20;
/// A timeout that is longer than any test of this file takes.
const LONG: Duration = Duration::from_secs(60);

struct Store {
    gate: Semaphore,
}

impl Service for Store {
    async fn call(&self, context: CallContext, mut body: Reader) -> Result<Segments, Refusal> {
        match context.header.procedure {
            READ => Ok(Bytes::from(vec![1; body.u32()? as usize]).into()),
            WRITE => Ok(Bytes::copy_from_slice(&(body.remaining() as u32).to_be_bytes()).into()),
            HOLD => {
                self.gate.acquire().await.expect("never closed").forget();
                Ok(Segments::default())
            }
            PANIC => panic!("as the test wants it"),
            _ => Err(Refusal::ProcUnavail),
        }
    }

    fn reply_bound(&self, header: &CallHeader, body: &Reader) -> usize {
        let asked = body.clone().u32().unwrap_or(0) as usize;
        if header.procedure == READ { asked } else { 64 }
    }
}

async fn start(limits: Limits) -> (Server, Counters) {
    let listener = Listener::bind(&"127.0.0.1:0".parse().expect("address")).await.expect("listen");
    let counters = Counters::default();
    let service = Arc::new(Store { gate: Semaphore::new(0) });
    (serve(vec![listener], service, limits, counters.clone()), counters)
}

async fn connect(server: &Server) -> Connection {
    let (limits, counters) = (Limits::default(), Counters::default());
    let connected = Connection::connect(&server.addresses()[0], Arc::new(NoService), limits, counters, LONG).await;
    connected.expect("connect")
}

async fn raw(server: &Server) -> TcpStream {
    let address = server.addresses()[0].socket_addr().expect("TCP");
    TcpStream::connect(address).await.expect("connect")
}

async fn call(connection: &Connection, procedure: u32, body: Bytes) -> Result<Bytes, Error> {
    let answer = connection.call(PROGRAM, 1, procedure, &Auth::None, body.into(), LONG).await;
    answer.map(|reply| reply.body.rest())
}

fn message(procedure: u32, body: &[u8]) -> Bytes {
    let mut out = Writer::new();
    CallHeader { xid: 7, program: PROGRAM, version: 1, procedure, cred: Auth::None, verf: Auth::None }.encode(&mut out);
    out.fixed(body);
    record::mark(out.finish()).to_bytes()
}

/// Waits until `reached` returns true for the server's counters; panics after [`LONG`].
async fn until(what: &str, counters: &Counters, reached: impl Fn(&net::Traffic) -> bool) {
    let waits = async {
        while !reached(&counters.traffic()) {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(LONG, waits).await;
    assert!(in_time.is_ok(), "never: {what}: {:?}", counters.traffic());
}

/// Makes `rounds` large calls as a well-behaved client. Each call must succeed.
async fn progress(good: &Connection, rounds: usize) {
    for _ in 0..rounds {
        let written = call(good, WRITE, vec![3; MIB].into()).await.expect("write");
        assert_eq!(written, (MIB as u32).to_be_bytes()[..]);
        let read = call(good, READ, Bytes::copy_from_slice(&(MIB as u32).to_be_bytes())).await.expect("read");
        assert_eq!(read.len(), MIB);
    }
}

/// A hundred clients send half a record each, and a hundred other clients do not receive their replies. Together their
/// calls need much more memory than the server's limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_clients_hold_bounded_memory_and_a_good_one_continues() {
    let total = 24 * MIB;
    let limits = Limits {
        total_bytes: total,
        connection_bytes: 6 * MIB,
        stall_under_pressure: Duration::from_millis(100),
        ..Limits::default()
    };
    let (server, counters) = start(limits).await;
    let good = connect(&server).await;
    progress(&good, 1).await;
    let mut stalled = Vec::new();
    let half = message(WRITE, &vec![0; MIB]);
    let ask = message(READ, &(MIB as u32).to_be_bytes());
    for _ in 0..100 {
        let writer = raw(&server).await;
        // The send may fail or be incomplete, because the server has stopped reading or has closed the connection.
        let _ = writer.try_write(&half[..MIB / 2]);
        let mut reader = raw(&server).await;
        let asks = ask.repeat(40);
        let _ = reader.write_all(&asks).await;
        stalled.extend([writer, reader]);
    }
    progress(&good, 20).await;
    let traffic = counters.traffic();
    assert!(traffic.memory_waits > 0, "memory was never short: {traffic:?}");
    assert!(traffic.memory_most as usize <= total + total / 8, "{traffic:?}");
    assert!(traffic.connections_cut > 0, "nobody had to give way: {traffic:?}");
    assert!(!good.is_closed());
    drop(stalled);
    until("all is given back", &counters, |t| t.memory_held == 0 && t.connections_open == 1).await;
    progress(&good, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incomplete_record_times_out_but_an_idle_connection_does_not() {
    let limits = Limits { stall: Duration::from_millis(50), ..Limits::default() };
    let (server, counters) = start(limits).await;
    let idle = connect(&server).await;
    call(&idle, WRITE, Bytes::new()).await.expect("alive");
    let large = message(WRITE, &vec![0; MIB]);
    let small = message(WRITE, b"four");
    for (what, sent) in [
        ("half a large record", &large[..MIB / 2]),
        ("half a small record", &small[..small.len() - 1]),
        ("half a mark", &small[..2]),
    ] {
        let before = counters.traffic().connections_cut;
        let mut peer = raw(&server).await;
        peer.write_all(sent).await.expect("send");
        assert!(matches!(peer.read(&mut [0; 8]).await, Ok(0) | Err(_)), "{what}");
        until(what, &counters, |t| t.connections_cut == before + 1).await;
    }
    // This connection was idle for several times the time limit of a record. The server must not close an idle
    // connection.
    call(&idle, WRITE, Bytes::new()).await.expect("still alive");
    until("all is given back", &counters, |t| t.memory_held == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_sent_byte_by_byte_times_out() {
    let limits = Limits { stall: Duration::from_millis(100), ..Limits::default() };
    let (server, counters) = start(limits).await;
    let mut peer = raw(&server).await;
    let large = message(WRITE, &vec![0; MIB]);
    let drip = async {
        for byte in &large[..] {
            if peer.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, drip).await.expect("cut off");
    assert_eq!(counters.traffic().connections_cut, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_no_replies_is_disconnected() {
    let limits = Limits { stall: Duration::from_millis(50), ..Limits::default() };
    let (server, counters) = start(limits).await;
    let mut peer = raw(&server).await;
    let ask = message(READ, &(MIB as u32).to_be_bytes());
    let mut sent = Ok(());
    while sent.is_ok() {
        sent = peer.write_all(&ask).await;
    }
    until("cut off", &counters, |t| t.connections_cut == 1 && t.connections_open == 0 && t.memory_held == 0).await;
    assert!(counters.traffic().memory_most as usize <= types::limits::CONNECTION_BYTES_MAX);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_no_request_is_disconnected() {
    let limits = Limits { first_request: Duration::from_millis(50), ..Limits::default() };
    let (server, counters) = start(limits).await;
    let talker = connect(&server).await;
    call(&talker, WRITE, Bytes::new()).await.expect("alive");
    let mut silent = raw(&server).await;
    assert!(matches!(silent.read(&mut [0; 8]).await, Ok(0) | Err(_)));
    assert_eq!(counters.traffic().connections_cut, 1);
    call(&talker, WRITE, Bytes::new()).await.expect("still alive");
}

#[tokio::test]
async fn one_machine_gets_only_its_share_of_the_connections() {
    let (server, counters) = start(Limits { connections_per_peer: 3, ..Limits::default() }).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let connection = connect(&server).await;
        call(&connection, WRITE, Bytes::new()).await.expect("within the limit");
        held.push(connection);
    }
    let refused = connect(&server).await;
    assert!(matches!(call(&refused, WRITE, Bytes::new()).await, Err(Error::Broken(_))));
    assert_eq!(counters.traffic().connections_refused, 1);
    // The server counts all loopback addresses as one machine, so it refuses this client too.
    let socket = tokio::net::TcpSocket::new_v4().expect("socket");
    socket.bind("127.0.0.2:0".parse().expect("address")).expect("bind");
    let address = server.addresses()[0].socket_addr().expect("TCP");
    let mut other = socket.connect(address).await.expect("connect");
    assert!(matches!(other.read(&mut [0]).await, Ok(0) | Err(_)));
    assert_eq!(counters.traffic().connections_refused, 2);
    held.pop();
    until("a place is free", &counters, |t| t.connections_open == 2).await;
    loop {
        let again = connect(&server).await;
        if call(&again, WRITE, Bytes::new()).await.is_ok() {
            break;
        }
    }
}

#[tokio::test]
async fn all_clients_on_unix_sockets_count_as_one_machine() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let listener = Listener::bind(&Address::Unix(dir.path().join("s"))).await.expect("listen");
    let limits = Limits { connections_per_peer: 1, ..Limits::default() };
    let server = serve(vec![listener], Arc::new(Store { gate: Semaphore::new(0) }), limits, Counters::default());
    let first = connect(&server).await;
    call(&first, WRITE, Bytes::new()).await.expect("within the limit");
    let second = connect(&server).await;
    assert!(matches!(call(&second, WRITE, Bytes::new()).await, Err(Error::Broken(_))));
}

#[tokio::test]
async fn panics_are_answered_and_counted() {
    let (server, counters) = start(Limits::default()).await;
    let connection = connect(&server).await;
    for n in 1..=3 {
        let answer = call(&connection, PANIC, Bytes::new()).await;
        assert!(matches!(answer, Err(Error::Refused(Refusal::SystemErr))), "{answer:?}");
        assert_eq!(counters.traffic().panics, n);
    }
    call(&connection, WRITE, Bytes::new()).await.expect("alive");
    assert_eq!(counters.traffic().connections_malformed, 0);
    let mut stranger = raw(&server).await;
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("send");
    until("the stranger is gone", &counters, |t| t.connections_malformed == 1).await;
}

/// Three hundred calls that wait in the service hold so little memory that large calls of other clients need not wait.
#[tokio::test]
async fn waiting_calls_hold_little_memory() {
    // All clients are on one machine, which may hold as much memory as remains free for other machines.
    let limits = Limits { total_bytes: 12 * MIB, connection_bytes: 4 * MIB, ..Limits::default() };
    let (server, counters) = start(limits).await;
    let waiters: Vec<_> = futures_util::future::join_all((0..3).map(|_| connect(&server))).await;
    let calls: Vec<_> = (0..300)
        .map(|i| {
            let connection = waiters[i % 3].clone();
            tokio::spawn(async move { call(&connection, HOLD, Bytes::new()).await })
        })
        .collect();
    until("all wait", &counters, |t| t.memory_held as usize >= 300 * types::limits::CALL_BYTES).await;
    progress(&connect(&server).await, 3).await;
    drop(waiters);
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}
