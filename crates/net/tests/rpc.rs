//! Tests of RPC over sockets and within a process: concurrent calls, callbacks, broken connections, invalid input and
//! limits.

use bytes::Bytes;
use futures_util::FutureExt;
use net::rpc::{CallContext, Connection, Limits, NoService, Refusal, Server, Service, serve};
use net::{Address, Counters, Error, Listener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use wire::rpc::{Auth, AuthSys, CallHeader, Message, decode_message, record};
use xdr::{Reader, Segments, Writer};

const PROGRAM: u32 = 0x2057_0001;
const ECHO: u32 = 1;
/// Procedure of the test service: waits until a test calls the procedure RELEASE.
const HOLD: u32 = 2;
const RELEASE: u32 = 3;
/// Procedure of the test service: calls the procedure ECHO of the calling client, and returns the result of ECHO.
const CALL_BACK: u32 = 4;
const WHO: u32 = 5;
/// Procedure of the test service: returns 1 MiB of data.
const BIG: u32 = 6;
const GARBAGE: u32 = 7;
/// Procedure of the test service: returns more bytes than a record may have.
const TOO_BIG: u32 = 8;
const PANIC: u32 = 9;
/// A timeout that is longer than any test of this file takes.
const LONG: Duration = Duration::from_secs(60);

struct Tester {
    gate: Semaphore,
    entered: AtomicUsize,
    entered_changed: Notify,
    gone: Semaphore,
}

impl Tester {
    fn new() -> Arc<Self> {
        let gate = Semaphore::new(0);
        let gone = Semaphore::new(0);
        Arc::new(Tester { gate, entered: AtomicUsize::new(0), entered_changed: Notify::new(), gone })
    }

    async fn wait_entered(&self, count: usize) {
        loop {
            let mut changed = std::pin::pin!(self.entered_changed.notified());
            changed.as_mut().enable();
            if self.entered.load(SeqCst) >= count {
                return;
            }
            changed.await;
        }
    }
}

impl Service for Tester {
    async fn call(&self, context: CallContext, mut body: Reader) -> Result<Segments, Refusal> {
        if context.header.program != PROGRAM {
            return Err(Refusal::ProgUnavail);
        }
        if context.header.version != 1 {
            return Err(Refusal::ProgMismatch { low: 1, high: 1 });
        }
        self.entered.fetch_add(1, SeqCst);
        self.entered_changed.notify_waiters();
        match context.header.procedure {
            ECHO => Ok(body.rest().into()),
            HOLD => {
                self.gate.acquire().await.unwrap().forget();
                Ok(body.rest().into())
            }
            RELEASE => {
                self.gate.add_permits(1);
                Ok(Segments::default())
            }
            CALL_BACK => {
                let answer = context.peer.call(PROGRAM, 1, ECHO, &Auth::None, body.rest().into(), LONG).await;
                Ok(answer.map_err(|_| Refusal::SystemErr)?.body.rest().into())
            }
            WHO => match context.header.cred {
                Auth::Sys(sys) => Ok(Bytes::copy_from_slice(&sys.uid.to_be_bytes()).into()),
                _ => Err(Refusal::Auth(5)),
            },
            BIG => Ok(Bytes::from(vec![1; 1 << 20]).into()),
            GARBAGE => {
                body.opaque(4)?;
                Ok(Segments::default())
            }
            TOO_BIG => Ok(Bytes::from(vec![1; types::limits::RECORD_MAX]).into()),
            PANIC => panic!("as the test wants it"),
            _ => Err(Refusal::ProcUnavail),
        }
    }

    fn disconnected(&self, _: u64) {
        self.gone.add_permits(1);
    }
}

async fn start(limits: Limits) -> (Server, Arc<Tester>, Counters) {
    start_at(&"127.0.0.1:0".parse().unwrap(), limits).await
}

async fn start_at(address: &Address, limits: Limits) -> (Server, Arc<Tester>, Counters) {
    let listener = Listener::bind(address).await.unwrap();
    let (service, counters) = (Tester::new(), Counters::default());
    (serve(vec![listener], service.clone(), limits, counters.clone()), service, counters)
}

async fn connect(server: &Server) -> Connection {
    connect_to(&server.addresses()[0]).await.unwrap()
}

/// How a test client is connected to the server: over a socket or within the process.
#[derive(Clone, Copy, Debug)]
enum By {
    Socket,
    InProcess,
}

/// Connects to the server over a socket or within the process.
async fn join(server: &Server, by: By) -> Connection {
    join_with(server, by, Limits::default()).await.unwrap()
}

async fn join_with(server: &Server, by: By, limits: Limits) -> Result<Connection, Error> {
    let (service, counters) = (Tester::new(), Counters::default());
    match by {
        By::Socket => Connection::connect(&server.addresses()[0], service, limits, counters, LONG).await,
        By::InProcess => server.connector().unwrap().connect(service, limits, counters),
    }
}

/// Makes two tests from each function: in the first test the client connects over a socket, in the second test within
/// the process.
macro_rules! either_way {
    ($($name:ident),* $(,)?) => {
        mod by_socket {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::By::Socket).await;
            })*
        }
        mod within_the_process {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::By::InProcess).await;
            })*
        }
    };
}

either_way!(
    replies_arrive_out_of_order_and_reach_their_calls,
    callbacks_share_the_connection,
    callers_receive_refusals_and_services_receive_credentials,
    a_timeout_frees_its_slot_and_a_late_reply_is_ignored,
    a_disconnect_notifies_the_service_and_running_calls_finish,
    calls_above_the_in_flight_limit_wait,
    shutdown_lets_calls_finish,
    shutdown_ends_calls_after_the_grace_time,
);

async fn connect_to(address: &Address) -> Result<Connection, Error> {
    Connection::connect(address, Tester::new(), Limits::default(), Counters::default(), LONG).await
}

async fn call(connection: &Connection, procedure: u32, body: &Bytes) -> Result<Bytes, Error> {
    let answer = connection.call(PROGRAM, 1, procedure, &Auth::None, body.clone().into(), LONG).await;
    answer.map(|reply| reply.body.rest())
}

fn raw_call(xid: u32, procedure: u32, body: &[u8]) -> Bytes {
    let mut out = Writer::new();
    CallHeader { xid, program: PROGRAM, version: 1, procedure, cred: Auth::None, verf: Auth::None }.encode(&mut out);
    out.fixed(body);
    out.finish().to_bytes()
}

fn one_fragment(message: Bytes) -> Bytes {
    record::mark(message.into()).to_bytes()
}

async fn raw_connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.addresses()[0].socket_addr().unwrap()).await.unwrap()
}

/// Receives a reply that consists of one fragment. Returns its xid and its results.
async fn raw_reply(stream: &mut TcpStream) -> Option<(u32, Bytes)> {
    let mark = stream.read_u32().await.ok()?;
    let mut message = vec![0; (mark & 0x7fff_ffff) as usize];
    stream.read_exact(&mut message).await.ok()?;
    let mut body = Reader::new(message.into());
    match decode_message(&mut body).unwrap() {
        Message::Reply(header) => Some((header.xid, body.rest())),
        other => panic!("not a reply: {other:?}"),
    }
}

#[tokio::test]
async fn echo_of_all_sizes_over_tcp_and_unix() {
    let dir = tempfile::tempdir().unwrap();
    let unix = Address::Unix(dir.path().join("socket"));
    for address in ["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap(), unix] {
        let Ok(listener) = Listener::bind(&address).await else {
            assert!(address.to_string().starts_with("[::1]"), "only IPv6 may be missing");
            continue;
        };
        let counters = Counters::default();
        let server = serve(vec![listener], Tester::new(), Limits::default(), counters.clone());
        let connection = connect(&server).await;
        for len in [0, 1, 3, 4, 1023, 1024, 8191, 8192, 8193, 65536, 100_000, 300_000, 1 << 20] {
            let body: Bytes = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            assert_eq!(call(&connection, ECHO, &body).await.unwrap(), body, "{len} bytes over {address}");
        }
        let rows = counters.calls();
        assert_eq!((rows.len(), rows[0].procedure, rows[0].count, rows[0].incoming), (1, ECHO, 13, true));
        let traffic = counters.traffic();
        assert!(traffic.bytes_in > 1_500_000 && traffic.bytes_out > 1_500_000, "{traffic:?}");
        assert_eq!((traffic.connections_opened, traffic.connections_open), (1, 1));
        server.shutdown().await;
    }
}

async fn replies_arrive_out_of_order_and_reach_their_calls(by: By) {
    let (server, service, _) = start(Limits::default()).await;
    let connection = join(&server, by).await;
    let held = tokio::spawn({
        let connection = connection.clone();
        async move { call(&connection, HOLD, &Bytes::from_static(b"held")).await }
    });
    service.wait_entered(1).await;
    let many = (0..500u32).map(|i| {
        let connection = connection.clone();
        tokio::spawn(async move {
            let body: Bytes = i.to_be_bytes().repeat(1 + i as usize * 5 % 4000).into();
            assert_eq!(call(&connection, ECHO, &body).await.unwrap(), body);
        })
    });
    for task in many.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert!(!held.is_finished());
    call(&connection, RELEASE, &Bytes::new()).await.unwrap();
    assert_eq!(held.await.unwrap().unwrap(), "held");
}

async fn callbacks_share_the_connection(by: By) {
    let (server, ..) = start(Limits::default()).await;
    let connection = join(&server, by).await;
    let bodies: Vec<Bytes> = (0..50usize).map(|i| Bytes::from(vec![i as u8; i * 3000])).collect();
    let calls = bodies.iter().map(|body| call(&connection, CALL_BACK, body));
    for (answer, body) in futures_util::future::join_all(calls).await.into_iter().zip(&bodies) {
        assert_eq!(&answer.unwrap(), body);
    }
    // The client serves no program, so it refuses the callback. The service receives this refusal as the error of its
    // call.
    let (limits, counters, nobody) = (Limits::default(), Counters::default(), Arc::new(NoService));
    let bare = match by {
        By::Socket => Connection::connect(&server.addresses()[0], nobody, limits, counters, LONG).await,
        By::InProcess => server.connector().unwrap().connect(nobody, limits, counters),
    };
    let answer = call(&bare.unwrap(), CALL_BACK, &Bytes::new()).await;
    assert!(matches!(answer, Err(Error::Refused(Refusal::SystemErr))), "{answer:?}");
}

async fn callers_receive_refusals_and_services_receive_credentials(by: By) {
    let (server, ..) = start(Limits::default()).await;
    let connection = join(&server, by).await;
    let nothing = Segments::default;
    let none = &Auth::None;
    let sys = Auth::Sys(AuthSys { uid: 1234, ..AuthSys::default() });
    let who = connection.call(PROGRAM, 1, WHO, &sys, nothing(), LONG).await.unwrap();
    assert_eq!(who.body.rest(), 1234u32.to_be_bytes()[..]);
    for (program, version, procedure, want) in [
        (PROGRAM + 1, 1, ECHO, Refusal::ProgUnavail),
        (PROGRAM, 9, ECHO, Refusal::ProgMismatch { low: 1, high: 1 }),
        (PROGRAM, 1, 99, Refusal::ProcUnavail),
        (PROGRAM, 1, GARBAGE, Refusal::GarbageArgs),
        (PROGRAM, 1, TOO_BIG, Refusal::SystemErr),
        (PROGRAM, 1, PANIC, Refusal::SystemErr),
        (PROGRAM, 1, WHO, Refusal::Auth(5)),
    ] {
        match connection.call(program, version, procedure, none, nothing(), LONG).await {
            Err(Error::Refused(refusal)) => assert_eq!(refusal, want),
            other => panic!("{want:?} expected, got {other:?}"),
        }
    }
    let len = types::limits::RECORD_MAX;
    let answer = call(&connection, ECHO, &Bytes::from(vec![0; len])).await;
    assert!(matches!(answer, Err(Error::TooBig { .. })), "{answer:?}");
    assert_eq!(call(&connection, ECHO, &Bytes::from_static(b"alive")).await.unwrap(), "alive");
}

#[tokio::test]
async fn another_rpc_version_is_denied() {
    let (server, ..) = start(Limits::default()).await;
    let mut stream = raw_connect(&server).await;
    let words = [0x8000_000c_u32, 77, 0, 3];
    stream.write_all(&words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>()).await.unwrap();
    let mut answer = [0; 28];
    stream.read_exact(&mut answer).await.unwrap();
    // The words of the expected reply: record mark, xid, REPLY, MSG_DENIED, RPC_MISMATCH, lowest version 2, highest
    // version 2.
    let want = [0x8000_0018_u32, 77, 1, 1, 0, 2, 2];
    assert_eq!(answer[..], want.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>());
}

async fn a_timeout_frees_its_slot_and_a_late_reply_is_ignored(by: By) {
    let (server, service, _) = start(Limits::default()).await;
    let limits = Limits { in_flight: 1, ..Limits::default() };
    let connection = join_with(&server, by, limits).await.unwrap();
    let short = Duration::from_millis(1);
    for _ in 0..20 {
        let answer = connection.call(PROGRAM, 1, HOLD, &Auth::None, Segments::default(), short).await;
        assert!(matches!(answer, Err(Error::Timeout(_))), "{answer:?}");
    }
    assert_eq!(call(&connection, ECHO, &Bytes::from_static(b"on time")).await.unwrap(), "on time");
    service.gate.add_permits(20);
    assert_eq!(call(&connection, ECHO, &Bytes::from_static(b"after")).await.unwrap(), "after");
}

#[tokio::test]
async fn a_closed_connection_fails_every_pending_call() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().into();
    for cut in ["at once", "after half a reply"] {
        let (connection, accepted) = tokio::join!(connect_to(&address), listener.accept());
        let (connection, (mut peer, _)) = (connection.unwrap(), accepted.unwrap());
        let body = Bytes::from_static(b"x");
        let calls = futures_util::future::join_all((0..10).map(|_| call(&connection, ECHO, &body)));
        let cutter = async {
            // When the first call has arrived, all ten calls wait for replies, because the client starts them together.
            peer.read_u8().await.unwrap();
            if cut != "at once" {
                peer.write_all(&[0x80, 0, 0, 100, 0, 0]).await.unwrap();
            }
            drop(peer);
        };
        let (answers, ()) = tokio::join!(calls, cutter);
        for answer in answers {
            assert!(matches!(answer, Err(Error::Broken(_))), "{cut}: {answer:?}");
        }
        assert!(matches!(connection.closed().await, Error::Broken(_)));
        assert!(connection.is_closed());
        assert!(matches!(call(&connection, ECHO, &body).await, Err(Error::Broken(_))));
    }
    drop(listener);
    assert!(matches!(connect_to(&address).await, Err(Error::Connect { .. })));
}

async fn a_disconnect_notifies_the_service_and_running_calls_finish(by: By) {
    let (server, service, counters) = start(Limits::default()).await;
    let connection = join(&server, by).await;
    let clone = connection.clone();
    let held = tokio::spawn(async move { call(&clone, HOLD, &Bytes::new()).await });
    service.wait_entered(1).await;
    connection.close();
    assert!(matches!(held.await.unwrap(), Err(Error::Broken(_))));
    service.gone.acquire().await.unwrap().forget();
    // The service still executes the call, and takes the permit from the semaphore, although no caller waits for the
    // reply.
    service.gate.add_permits(1);
    while service.gate.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    // Dropping the last handle of a connection also closes the connection.
    drop(join(&server, by).await);
    service.gone.acquire().await.unwrap().forget();
    assert_eq!(counters.traffic().connections_open, 0);
}

#[tokio::test]
async fn records_of_up_to_the_maximum_number_of_fragments_are_joined() {
    let (server, ..) = start(Limits::default()).await;
    let fragments_max = types::limits::FRAGMENTS_MAX;
    for (body_len, pieces) in [(8, 2), (100, fragments_max), (20_000, 3), (200_000, 40), (1 << 20, fragments_max)] {
        let mut stream = raw_connect(&server).await;
        let body: Vec<u8> = (0..body_len).map(|i| (i % 253) as u8).collect();
        let message = raw_call(5, ECHO, &body);
        let size = message.len().div_ceil(pieces);
        let chunks: Vec<_> = message.chunks(size).collect();
        for (i, chunk) in chunks.iter().enumerate() {
            let last = u32::from(i + 1 == chunks.len()) << 31;
            stream.write_u32(last | chunk.len() as u32).await.unwrap();
            stream.write_all(chunk).await.unwrap();
        }
        let (xid, answer) = raw_reply(&mut stream).await.unwrap();
        assert_eq!((xid, answer == body), (5, true), "{body_len} bytes in {pieces} fragments");
    }
}

#[tokio::test]
async fn malformed_records_disconnect_their_sender_and_no_other_client() {
    let (server, ..) = start(Limits { record_max: 1000, ..Limits::default() }).await;
    let good = connect(&server).await;
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<u8>>();
    let many: Vec<u32> = (0..types::limits::FRAGMENTS_MAX as u32 + 1).flat_map(|i| [4, i]).collect();
    for (what, bytes) in [
        ("a record too large", words(&[0x8000_03e9])),
        ("fragments too large together", [words(&[500]), vec![0; 500], words(&[0x8000_01f5])].concat()),
        ("too many fragments", words(&many)),
        ("an empty fragment", words(&[0])),
        ("an empty record", words(&[0x8000_0000])),
        ("neither call nor reply", words(&[0x8000_000c, 1, 2, 2])),
        ("a short call", words(&[0x8000_000c, 1, 0, 2])),
        ("something else", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
    ] {
        let mut stream = raw_connect(&server).await;
        stream.write_all(&bytes).await.unwrap();
        // The client sees the end of the stream, or a reset if the server has not read all bytes.
        assert!(matches!(stream.read(&mut [0; 8]).await, Ok(0) | Err(_)), "{what}");
    }
    // The server ignores a reply that no call waits for, and continues to serve the connection.
    let mut stream = raw_connect(&server).await;
    stream.write_all(&words(&[0x8000_0018, 9, 1, 0, 0, 0, 0])).await.unwrap();
    stream.write_all(&one_fragment(raw_call(6, ECHO, b"four"))).await.unwrap();
    assert_eq!(raw_reply(&mut stream).await.unwrap(), (6, Bytes::from_static(b"four")));
    assert_eq!(call(&good, ECHO, &Bytes::from_static(b"alive")).await.unwrap(), "alive");
}

#[tokio::test]
async fn replies_for_a_client_that_does_not_read_are_bounded() {
    let (server, service, _) = start(Limits { in_flight: 4, ..Limits::default() }).await;
    let mut slow = raw_connect(&server).await;
    let count = 200;
    for xid in 0..count {
        slow.write_all(&one_fragment(raw_call(xid, BIG, b""))).await.unwrap();
    }
    service.wait_entered(4).await;
    // While the slow client reads no replies, the calls of another client must succeed. During these 300 calls, a
    // server without a limit on unsent replies would execute many more calls of the slow client.
    let other = connect(&server).await;
    for _ in 0..300 {
        call(&other, ECHO, &Bytes::from_static(b"x")).await.unwrap();
    }
    // The server has executed far fewer than 100 calls of the slow client. Four calls are in progress, and a few
    // replies fit into the socket buffers.
    let executed = service.entered.load(SeqCst) - 300;
    assert!(executed < 100, "{executed} answers were made for a peer that reads none");
    for xid in 0..count {
        let (got, body) = raw_reply(&mut slow).await.unwrap();
        assert!(got < count && body.len() == 1 << 20, "answer {xid}");
    }
}

async fn calls_above_the_in_flight_limit_wait(by: By) {
    let (server, service, _) = start(Limits { in_flight: 3, ..Limits::default() }).await;
    let connection = join(&server, by).await;
    let calls: Vec<_> = (0..10)
        .map(|_| {
            let connection = connection.clone();
            tokio::spawn(async move { call(&connection, HOLD, &Bytes::new()).await })
        })
        .collect();
    service.wait_entered(3).await;
    let other = join(&server, by).await;
    for done in 1..=10 {
        assert!(service.entered.load(SeqCst) < done + 3 + done, "more than three at a time");
        call(&other, RELEASE, &Bytes::new()).await.unwrap();
    }
    for task in calls {
        task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn connections_are_limited() {
    // A machine may have at most half of the connections, so the limit of 4 allows 2 connections.
    let (server, service, counters) = start(Limits { connections_max: 4, ..Limits::default() }).await;
    let first = connect(&server).await;
    let second = connect(&server).await;
    for connection in [&first, &second] {
        call(connection, ECHO, &Bytes::new()).await.unwrap();
    }
    let third = connect(&server).await;
    assert!(matches!(call(&third, ECHO, &Bytes::new()).await, Err(Error::Broken(_))));
    assert_eq!(counters.traffic().connections_refused, 1);
    drop(first);
    service.gone.acquire().await.unwrap().forget();
    // The server notifies the service of the end of a connection before it frees the slot of the connection. So try to
    // connect until the server accepts.
    loop {
        let next = connect(&server).await;
        if call(&next, ECHO, &Bytes::new()).await.is_ok() {
            break;
        }
    }
    call(&second, ECHO, &Bytes::new()).await.unwrap();
}

async fn shutdown_lets_calls_finish(by: By) {
    let (server, service, _) = start(Limits::default()).await;
    let (address, connector) = (server.addresses()[0].clone(), server.connector().unwrap());
    let connection = join(&server, by).await;
    let held = tokio::spawn(async move { call(&connection, HOLD, &Bytes::from_static(b"done")).await });
    service.wait_entered(1).await;
    let stopping = tokio::spawn(server.shutdown());
    while connect_to(&address).await.is_ok() {}
    assert!(connector.connect(Tester::new(), Limits::default(), Counters::default()).is_err());
    assert!(!stopping.is_finished());
    service.gate.add_permits(1);
    assert_eq!(held.await.unwrap().unwrap(), "done");
    stopping.await.unwrap();
}

async fn shutdown_ends_calls_after_the_grace_time(by: By) {
    let (server, service, _) = start(Limits { shutdown_grace: Duration::from_millis(1), ..Limits::default() }).await;
    let connection = join(&server, by).await;
    let held = tokio::spawn(async move { call(&connection, HOLD, &Bytes::new()).await });
    service.wait_entered(1).await;
    server.shutdown().await;
    assert!(matches!(held.await.unwrap(), Err(Error::Broken(_))));
}

#[tokio::test]
async fn bind_reports_addresses_in_use_and_replaces_stale_sockets() {
    let (server, ..) = start(Limits::default()).await;
    let error = Listener::bind(&server.addresses()[0]).await.unwrap_err().to_string();
    assert!(error.contains("another daemon"), "{error}");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let address = Address::Unix(path.clone());
    // Leave a socket file behind on which no process listens.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let (server, ..) = start_at(&address, Limits::default()).await;
    assert!(Listener::bind(&address).await.is_err(), "a living server was pushed aside");
    call(&connect(&server).await, ECHO, &Bytes::new()).await.unwrap();
    server.shutdown().await;
    assert!(!path.exists());
    // The server does not replace a file that is not a socket.
    std::fs::write(&path, "precious").unwrap();
    assert!(Listener::bind(&address).await.is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[tokio::test]
async fn sockets_named_by_a_peer_must_belong_to_root_or_this_user() {
    let dir = tempfile::tempdir().unwrap();
    let sent = async |address: &Address| {
        let (service, counters) = (Arc::new(NoService), Counters::default());
        Connection::connect_sent(address, service, Limits::default(), counters, LONG).await
    };
    let path = dir.path().join("socket");
    let (server, ..) = start_at(&Address::Unix(path.clone()), Limits::default()).await;
    let address = &server.addresses()[0];
    call(&sent(address).await.unwrap(), ECHO, &Bytes::new()).await.unwrap();
    let file = Address::Unix(dir.path().join("file"));
    std::fs::write(dir.path().join("file"), "").unwrap();
    assert!(sent(&file).await.unwrap_err().to_string().contains("not a socket"));
    let (tcp, ..) = start(Limits::default()).await;
    call(&sent(&tcp.addresses()[0]).await.unwrap(), ECHO, &Bytes::new()).await.unwrap();
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can give a socket away and listen as another user: not tried");
        return;
    }
    std::os::unix::fs::chown(&path, Some(4242), None).unwrap();
    assert!(sent(address).await.unwrap_err().to_string().contains("belongs to user 4242"));
    // The socket file belongs to root, but the listening process runs as another user. So only the check after the
    // connect can refuse this server.
    let path = dir.path().join("another");
    let socket = std::thread::spawn({
        let path = path.clone();
        move || {
            use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
            let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
            bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            // Call the `setresuid` system call directly, which changes the user of this thread only. The thread ends
            // soon.
            let user = rustix::thread::Uid::from_raw(4242);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            listen(&socket, 1).unwrap();
            socket
        }
    });
    let _socket = socket.join().unwrap();
    net::local::check_path(&path).unwrap();
    assert!(sent(&Address::Unix(path)).await.unwrap_err().to_string().contains("belongs to user 4242"));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]
    /// The server receives the same messages, however the client splits them into fragments and writes.
    #[test]
    fn any_fragmentation_delivers_the_same_messages(
        messages in proptest::collection::vec((0usize..30_000, 1usize..20_000), 1..12),
        writes in proptest::collection::vec(1usize..40_000, 1..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (server, ..) = start(Limits::default()).await;
            let mut stream = raw_connect(&server).await;
            let body = |i: usize, len: usize| vec![i as u8; len & !3];
            let mut bytes = Vec::new();
            for (i, &(len, fragment)) in messages.iter().enumerate() {
                let message = raw_call(i as u32, ECHO, &body(i, len));
                let size = fragment.max(message.len().div_ceil(types::limits::FRAGMENTS_MAX));
                let last = message.len().div_ceil(size) - 1;
                for (k, chunk) in message.chunks(size).enumerate() {
                    bytes.extend((u32::from(k == last) << 31 | chunk.len() as u32).to_be_bytes());
                    bytes.extend(chunk);
                }
            }
            let (mut reader, mut writer) = stream.split();
            let send = async {
                let mut rest = &bytes[..];
                for size in writes.iter().cycle() {
                    let (now, later) = rest.split_at(rest.len().min(*size));
                    writer.write_all(now).await.unwrap();
                    if later.is_empty() {
                        break;
                    }
                    rest = later;
                    tokio::task::yield_now().await;
                }
            };
            let receive = async {
                let mut seen = vec![false; messages.len()];
                for _ in &messages {
                    let len = reader.read_u32().await.unwrap() & 0x7fff_ffff;
                    let mut message = vec![0; len as usize];
                    reader.read_exact(&mut message).await.unwrap();
                    let mut input = Reader::new(message.into());
                    let Message::Reply(header) = decode_message(&mut input).unwrap() else { panic!("no reply") };
                    let i = header.xid as usize;
                    assert!(!std::mem::replace(&mut seen[i], true));
                    assert!(input.rest() == body(i, messages[i].0));
                }
            };
            tokio::join!(send, receive);
        });
    }
}

#[tokio::test]
async fn in_process_calls_that_need_not_wait_complete_at_once() {
    let (server, service, counters) = start(Limits::default()).await;
    let connection = join(&server, By::InProcess).await;
    let body = Bytes::from(vec![7; 100_000]);
    let answer = call(&connection, ECHO, &body).now_or_never().expect("without another thread");
    assert_eq!(answer.unwrap(), body);
    assert!(call(&connection, CALL_BACK, &body).now_or_never().is_none(), "a callback is a task of its own");
    assert_eq!(call(&connection, CALL_BACK, &body).await.unwrap(), body);
    // A call runs to completion although its caller has stopped waiting.
    assert!(call(&connection, HOLD, &body).now_or_never().is_none());
    service.gate.add_permits(1);
    while service.gate.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(connection.peer(), &server.addresses()[0]);
    let _other = join(&server, By::InProcess).await;
    drop(connection);
    service.gone.acquire().await.unwrap().forget();
    let traffic = counters.traffic();
    assert_eq!((traffic.connections_opened, traffic.connections_open), (2, 1));
}

#[tokio::test]
async fn in_process_connections_and_memory_are_limited() {
    let limits = Limits { connections_per_peer: 2, ..Limits::default() };
    let (server, service, counters) = start(limits).await;
    let (first, second) = (join(&server, By::InProcess).await, join(&server, By::InProcess).await);
    let third = join_with(&server, By::InProcess, Limits::default()).await;
    assert!(matches!(third, Err(Error::Connect { .. })));
    assert_eq!(counters.traffic().connections_refused, 1);
    let held = tokio::spawn(async move { call(&second, HOLD, &Bytes::from(vec![0; 1 << 20])).await });
    service.wait_entered(1).await;
    assert!(counters.traffic().memory_held > 1 << 20);
    service.gate.add_permits(1);
    held.await.unwrap().unwrap();
    while counters.traffic().memory_held > 0 {
        tokio::task::yield_now().await;
    }
    drop(first);
    // The server may free the slot of the connection a moment after the client has dropped the connection, so try to
    // connect again.
    while join_with(&server, By::InProcess, Limits::default()).await.is_err() {
        tokio::task::yield_now().await;
    }
    let connector = server.connector().unwrap();
    drop(server);
    assert!(connector.connect(Tester::new(), Limits::default(), Counters::default()).is_err());
}
