//! A slow-request attack: stalled connections of one machine must not keep the daemons from serving clients on other
//! machines.
//!
//! An attacker machine holds hundreds of connections that stop inside a request. Server, attacker and client are
//! network namespaces, because the daemons divide buffers and memory by the peer's address. The test checks answers,
//! counters and memory. It prints request times (`--nocapture`), and limits them only to detect a request that hangs.

use crate::cluster::{WEIR, ready, succeed};
use crate::tree::bytes;
use bytes::Bytes;
use client::{CreateOptions, File, Mount, Options, Settings, Target};
use mgr::ClusterFile;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::future::Future;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use types::limits::{IOD_BUFFERS_MAX, NET_BYTES_MAX, PAYLOAD_MAX};
use types::{FileId, Generation, IodId, ObjectId};
use wire::native::*;
use wire::rpc::record::{Mark, mark};
use wire::rpc::{Auth, CallHeader, decode_message};
use xdr::{Reader, Segments, Writer, Xdr};

/// The address of both daemons, on the server machine. The attacker's address is 10.78.1.2, and the client's address is
/// 10.78.2.2.
const SERVER: &str = "10.78.0.1";
const MGR_PORT: u16 = 7549;
const IOD_PORT: u16 = 7550;
/// Time limit of each command, connection, request and wait of the test. The test fails if one takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Memory in bytes that the test allows a daemon to use in addition to the attacker's payloads, for threads, sockets,
/// request headers, and requests of the client.
const BESIDE_PAYLOADS: u64 = 64 << 20;
const READ: usize = 1 << 20;
const WRITE: usize = 256 << 10;
const FILE: usize = 16 << 20;

fn full() -> bool {
    std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

/// The network of three machines, each a network namespace. Dropping this value deletes the namespaces.
struct Network {
    names: [String; 3],
}

const ON_SERVER: usize = 0;
const ON_ATTACKER: usize = 1;
const ON_CLIENT: usize = 2;

impl Network {
    /// Creates the network. Returns `None` if this process may not create network namespaces.
    fn make() -> Option<Network> {
        let names = ["server", "attacker", "client"].map(|name| format!("weir-flood-{}-{name}", std::process::id()));
        let add = || Command::new("ip").args(["netns", "add", &names[ON_SERVER]]).output();
        if !rustix::process::geteuid().is_root() || !add().is_ok_and(|output| output.status.success()) {
            return None;
        }
        let network = Network { names };
        let [server, others @ ..] = &network.names;
        ip(&["-n", server, "link", "set", "lo", "up"]);
        ip(&["-n", server, "addr", "add", &format!("{SERVER}/32"), "dev", "lo"]);
        for (name, number) in others.iter().zip(1..) {
            let (port, gateway, own) =
                (format!("p{number}"), format!("10.78.{number}.1"), format!("10.78.{number}.2/24"));
            ip(&["netns", "add", name]);
            ip(&["-n", server, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", name]);
            ip(&["-n", server, "addr", "add", &format!("{gateway}/24"), "dev", &port]);
            ip(&["-n", server, "link", "set", &port, "up"]);
            ip(&["-n", name, "addr", "add", &own, "dev", "eth0"]);
            ip(&["-n", name, "link", "set", "eth0", "up"]);
            ip(&["-n", name, "route", "add", "default", "via", &gateway]);
        }
        Some(network)
    }

    /// Builds a command that runs on the machine number `machine`.
    fn command(&self, machine: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[machine], program]);
        command
    }

    /// Runs `work` in a new thread on the machine number `machine`. Threads that `work` starts run on the same machine.
    fn spawn_on<'scope, T: Send + 'scope>(
        &self,
        machine: usize,
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        let namespace = std::fs::File::open(Path::new("/run/netns").join(&self.names[machine])).expect("a namespace");
        scope.spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
            work()
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            // Ignore errors: the namespace may already be deleted.
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

fn ip(args: &[&str]) {
    succeed(Command::new("ip").args(args));
}

/// The process of a daemon. Dropping this value kills the process.
struct Daemon(Child);

impl Daemon {
    /// Returns the peak resident memory of the daemon (VmHWM) in bytes.
    fn most_memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ignore errors: the daemon may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An mgr and an iod that run on the server machine.
struct Servers<'a> {
    network: &'a Network,
    mgr: Daemon,
    iod: Daemon,
    secret: ClusterFile,
}

impl Servers<'_> {
    fn start<'a>(network: &'a Network, home: &Path) -> Servers<'a> {
        let path = |name: &str| home.join(name).to_str().expect("UTF-8").to_owned();
        let cluster_file = path("cluster.toml");
        for what in ["mgr", "iod"] {
            succeed(Command::new(WEIR).args(["mkfs", what, "--dir", &path(what), "--cluster-file", &cluster_file]));
        }
        let start = |what: &str, listen: &str, options: &[&str]| {
            let log = std::fs::File::create(home.join(format!("{what}.log"))).expect("a log can be written");
            let mut command = network.command(ON_SERVER, WEIR);
            command.args([what, "--dir", &path(what), "--cluster-file", &cluster_file, "--listen", listen]);
            Daemon(ready(command.args(options).stderr(log)).0)
        };
        let (mgr_at, iod_at) = (format!("{SERVER}:{MGR_PORT}"), format!("{SERVER}:{IOD_PORT}"));
        let iod = start("iod", &iod_at, &["--unix", "false"]);
        let mgr = start("mgr", &mgr_at, &["--iod", &iod_at]);
        // Remove the mgr's Unix socket. Network namespaces share the file system of the host, so clients could connect
        // through this socket instead of the network.
        std::fs::remove_file(home.join("mgr/mgr.sock")).expect("the socket of the mgr");
        let secret = ClusterFile::load(Path::new(&cluster_file)).expect("a cluster file");
        Servers { network, mgr, iod, secret }
    }

    /// Runs `weir` on the machine number `machine`. The command must succeed within `PATIENCE`.
    fn run(&self, machine: usize, args: &[&str]) -> Vec<u8> {
        let mut command = self.network.command(machine, "timeout");
        command.arg(PATIENCE.as_secs().to_string()).arg(WEIR).args(args).env("WEIR_URL", url());
        succeed(&mut command)
    }

    /// Returns the values of one group of the mgr's status.
    fn status(&self, group: &str) -> Value {
        let groups: Vec<Value> =
            serde_json::from_slice(&self.run(ON_CLIENT, &["status", "--json"])).expect("one array");
        let found = groups.iter().find(|g| g["group"] == group);
        found.unwrap_or_else(|| panic!("no group {group}: {groups:?}"))["values"].clone()
    }

    fn number(&self, group: &str, name: &str) -> u64 {
        let values = self.status(group);
        values[name].as_u64().unwrap_or_else(|| panic!("no number {name}: {values}"))
    }

    /// Waits until a counter in the mgr's status is above 0.
    fn wait_counted(&self, group: &str, name: &str) {
        let end = Instant::now() + PATIENCE;
        while self.number(group, name) == 0 {
            assert!(Instant::now() < end, "{name} of {group} stays 0");
        }
    }
}

fn url() -> String {
    format!("weir://{SERVER}:{MGR_PORT}/")
}

/// An attack: many connections that all send the first part of the same request and then stop.
struct Attack {
    port: u16,
    /// Number of connections that the attacker keeps open at the same time.
    connections: usize,
    /// The ticket with which each connection first opens a session; `None` to attack without sessions.
    ticket: Option<Ticket>,
    /// The bytes of the request that each connection sends before it stops.
    beginning: Bytes,
}

/// Counters of the connections of an attack: established, failed, and closed by the daemon.
#[derive(Debug, Default)]
struct ConnectionCounts {
    made: u64,
    /// Number of connections that the attacker could not establish.
    failed: u64,
    /// Number of connections that the daemon has closed.
    ended: u64,
}

impl Attack {
    /// Returns an attack on the iod: connections with a valid session and capability that stop inside the payload of a
    /// WRITE.
    fn on_iod(servers: &Servers) -> Attack {
        let id = servers.status("iod")["id"].as_str().and_then(|id| id.parse::<IodId>().ok()).expect("an id");
        let (key, fsid) = (servers.secret.key.of_iod(id), servers.secret.fsid);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
        let (session, expires) = (4242 << 32, now + 1000);
        let cap = key.sign_capability(
            fsid,
            ObjectId::stream_0(FileId(1 << 40)),
            Generation(1),
            Rights::WRITE,
            expires,
            session,
        );
        let extents = vec![WriteExtent { offset: 0, len: PAYLOAD_MAX as u32, crc32c: 0 }];
        let head = WriteHead { cap, stable: false, least: 0, extents };
        let args = WriteArgs { head, data: Segments::from(Bytes::from(vec![7; PAYLOAD_MAX])) };
        let request = request(PROGRAM, VERSION, Procedure::Write as u32, |out| args.encode(out));
        let ticket = Some(key.ticket(fsid, session, expires));
        // Send nearly the whole request, so that it fills a buffer of the iod. If the iod gave the attacker's machine
        // more than half of the buffers, the memory use of the iod would then exceed the limit that the test checks.
        Attack { port: IOD_PORT, connections: 640, ticket, beginning: request.slice(..900_000) }
    }

    /// Returns an attack on the mgr: connections without a session that stop inside a COMPOUND of 900 KB.
    fn on_mgr() -> Attack {
        let (program, version, compound) = (100_003, 4, 1);
        let request = request(program, version, compound, |out| out.fixed(&[0; 900_000]));
        // The mgr counts the announced length of a request as memory in use, so a small part of the request suffices
        // for the attack.
        let sent = if full() { 600_000 } else { 60_000 };
        Attack { port: MGR_PORT, connections: 1200, ticket: None, beginning: request.slice(..sent) }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let address = SocketAddr::new(SERVER.parse().expect("an address"), self.port);
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        if let Some(ticket) = &self.ticket {
            let origin = Origin { owner: *b"an attacker here", incarnation: 0 };
            let args = HelloArgs::new(ticket, [8; 32], false);
            let reply: HelloReply = ask(&mut stream, Procedure::Hello, &args)?;
            let proof = ticket.check(&args, &reply, origin).expect("a genuine iod");
            ask::<Nothing>(&mut stream, Procedure::Prove, &proof)?;
        }
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Keeps the connections open until `over` is set, and replaces connections that the daemon closes. Whenever
    /// all connections are open, sends a message to the channel `stands`.
    fn run(&self, over: &AtomicBool, stands: &Sender<()>) -> ConnectionCounts {
        let (mut live, mut counts) = (Vec::new(), ConnectionCounts::default());
        while !over.load(Relaxed) {
            while live.len() < self.connections && !over.load(Relaxed) {
                let Ok(stream) = self.connect() else {
                    counts.failed += 1;
                    break;
                };
                counts.made += 1;
                live.push((stream, 0));
            }
            if live.len() == self.connections {
                // Ignore errors: the client reads only the first message and may already have closed the channel.
                let _ = stands.send(());
            }
            let before = live.len();
            live.retain_mut(|(stream, sent)| self.goes_on(stream, sent));
            counts.ended += (before - live.len()) as u64;
            std::thread::sleep(Duration::from_millis(20));
        }
        counts
    }

    /// Sends as many bytes of `beginning` as the socket accepts. Returns `false` if the daemon has closed the
    /// connection.
    fn goes_on(&self, stream: &mut TcpStream, sent: &mut usize) -> bool {
        let blocks = |e: &io::Error| e.kind() == ErrorKind::WouldBlock;
        if *sent < self.beginning.len() {
            match stream.write(&self.beginning[*sent..]) {
                Ok(more) => *sent += more,
                Err(e) if blocks(&e) => {}
                Err(_) => return false,
            }
        }
        matches!(stream.read(&mut [0; 64]), Err(e) if blocks(&e))
    }
}

/// Encodes an RPC call as one record with its record mark.
fn request(program: u32, version: u32, procedure: u32, args: impl FnOnce(&mut Writer)) -> Bytes {
    let mut out = Writer::new();
    CallHeader { xid: 1, program, version, procedure, cred: Auth::None, verf: Auth::None }.encode(&mut out);
    args(&mut out);
    mark(out.finish()).to_bytes()
}

/// Calls a procedure of the iod and decodes the reply.
fn ask<R: Xdr>(stream: &mut TcpStream, procedure: Procedure, args: &impl Xdr) -> io::Result<R> {
    stream.write_all(&request(PROGRAM, VERSION, procedure as u32, |out| args.encode(out)))?;
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let mut record = vec![0; Mark::from_bytes(head).len];
    stream.read_exact(&mut record)?;
    let mut input = Reader::new(record.into());
    decode_message(&mut input).map_err(io::Error::other)?;
    decode_reply(&mut input).map_err(io::Error::other)?.map_err(io::Error::other)
}

/// How long each request of the client took, by kind of request.
#[derive(Default)]
struct Times {
    reads: Vec<Duration>,
    writes: Vec<Duration>,
    lookups: Vec<Duration>,
}

/// Returns the 99th percentile of the times `times` in milliseconds.
fn p99(times: &[Duration]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted[(sorted.len() * 99 / 100).min(sorted.len() - 1)].as_secs_f64() * 1e3
}

/// Waits for a request, which must succeed within `PATIENCE`, and records in `times` how long it took.
async fn answered<T>(what: &str, times: &mut Vec<Duration>, asked: impl Future<Output = client::Result<T>>) -> T {
    let start = Instant::now();
    let answer = tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| panic!("{what}: no answer"));
    times.push(start.elapsed());
    answer.unwrap_or_else(|e| panic!("{what}: {e}"))
}

/// A client of the file system that runs on the client machine, with an open file.
struct Client {
    mount: Mount,
    file: File,
    content: Vec<u8>,
}

impl Client {
    async fn connect(name: &str, policy: &str) -> Client {
        let policy = Settings::parse(client::Origin::Mount, policy).expect("a policy");
        let options = Options { policy, negative: 0, ..Options::default() };
        let mount = Mount::connect(&Target::parse(&url()).expect("a URL"), options).await.expect("a mount");
        let file = mount.create(&mount.root(), name.as_bytes(), CreateOptions::default()).await.expect("a file");
        let content = bytes(1, FILE);
        for (at, part) in (0..).step_by(READ).zip(content.chunks(READ)) {
            file.write_at(at, Bytes::copy_from_slice(part)).await.expect("written");
        }
        file.fsync().await.expect("synced");
        Client { mount, file, content }
    }

    /// Reads, writes and looks up the file `name` until the time `span` has passed. Every request must succeed, and
    /// every read must return the written bytes.
    async fn work(&self, name: &str, span: Duration) -> Times {
        let (mut times, start) = (Times::default(), Instant::now());
        let root = self.mount.root();
        while start.elapsed() < span || times.reads.len() < 2 * FILE / READ {
            let at = times.reads.len() % (FILE / READ) * READ;
            let got = answered("read", &mut times.reads, self.file.read_at(at as u64, READ)).await;
            assert!(got.to_vec() == self.content[at..at + READ], "other bytes than were written");
            let part = Bytes::copy_from_slice(&self.content[at..at + WRITE]);
            answered("write", &mut times.writes, self.file.write_at(at as u64, part)).await;
            answered("lookup", &mut times.lookups, self.mount.lookup(&root, name.as_bytes())).await;
        }
        times
    }
}

/// A guard that sets its flag when it is dropped. So a panic of the client also stops the attack.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// An attack on one daemon while a client on another machine uses this daemon.
struct Drill<'a> {
    servers: &'a Servers<'a>,
    attack: Attack,
    /// The daemon to attack, the policy with which the client uses this daemon, and the counters that must rise when
    /// the daemon throttles the attacker.
    daemon: &'a str,
    policy: &'a str,
    held_back: &'a [(&'a str, &'a str)],
}

impl Drill<'_> {
    /// Lets the client work for some time without the attack, and then for some time during the attack.
    fn run(&self) {
        let over = &AtomicBool::new(false);
        let (begin, begun) = channel::<()>();
        let (standing, stands) = channel::<()>();
        std::thread::scope(|scope| {
            let attacker = self.servers.network.spawn_on(ON_ATTACKER, scope, move || {
                // An error means that the client has failed and has closed the channel. In this case, do not start the
                // attack.
                begun.recv().map(|()| self.attack.run(over, &standing))
            });
            let client = self.servers.network.spawn_on(ON_CLIENT, scope, move || {
                let _ends = Ends(over);
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
                runtime.expect("a runtime").block_on(self.client(begin, stands))
            });
            let times = client.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
            let counts = attacker.join().expect("the attacker continues").expect("it began");
            self.report(&times, &counts);
        });
    }

    async fn client(&self, begin: Sender<()>, stands: Receiver<()>) -> [Times; 2] {
        let spans = if full() { [5, 8] } else { [1, 2] }.map(Duration::from_secs);
        let client = Client::connect(self.daemon, self.policy).await;
        let quiet = client.work(self.daemon, spans[0]).await;
        begin.send(()).expect("an attacker");
        stands.recv_timeout(PATIENCE).expect("the attacker gets its connections");
        let disturbed = client.work(self.daemon, spans[1]).await;
        for (group, name) in self.held_back {
            self.servers.wait_counted(group, name);
        }
        self.newcomer(&client.content);
        client.file.close().await.expect("closed");
        client.mount.disconnect().await.expect("disconnected");
        [quiet, disturbed]
    }

    /// Runs commands that connect to the daemons during the attack; they must succeed.
    fn newcomer(&self, content: &[u8]) {
        let name = format!("/newcomer-{}", self.daemon);
        assert!(self.servers.run(ON_CLIENT, &["cat", &format!("/{}", self.daemon)]) == content);
        self.servers.run(ON_CLIENT, &["mkdir", &name]);
        self.servers.run(ON_CLIENT, &["stat", &name]);
    }

    fn report(&self, [quiet, disturbed]: &[Times; 2], counts: &ConnectionCounts) {
        eprintln!(
            "{} connections that stop inside a request of the {}: {counts:?}",
            self.attack.connections, self.daemon
        );
        for (what, before, during) in [
            ("read 1 MiB", &quiet.reads, &disturbed.reads),
            ("write 256 KiB", &quiet.writes, &disturbed.writes),
            ("lookup", &quiet.lookups, &disturbed.lookups),
        ] {
            let (p99_before, p99_during) = (p99(before), p99(during));
            eprintln!(
                "  {what}: p99 {p99_before:.2} ms of {} undisturbed, {p99_during:.2} ms of {} disturbed, ratio {:.1}",
                before.len(),
                during.len(),
                p99_during / p99_before
            );
        }
    }
}

#[test]
fn stalled_connections_do_not_block_clients_on_other_machines() {
    let Some(network) = Network::make() else {
        eprintln!("NOT TESTED: network namespaces need root and ip(8)");
        return;
    };
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("as many as allowed");
    if limit.maximum.is_some_and(|most| most < 4000) {
        eprintln!("NOT TESTED: too few files may be open here");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let servers = Servers::start(&network, home.path());
    let before = [&servers.iod, &servers.mgr].map(Daemon::most_memory);

    let (daemon, policy) = ("iod", "write_threshold=0,read_ahead=0");
    let held_back = [("iod", "connections.stalled")];
    Drill { servers: &servers, attack: Attack::on_iod(&servers), daemon, policy, held_back: &held_back }.run();
    let proxied = ["proxy_read_bytes", "proxy_write_bytes"].map(|name| servers.number("counters", name));
    assert_eq!(proxied, [0, 0], "the client did not use the attacked iod");

    let (daemon, policy) = ("mgr", "write_threshold=max,read_threshold=max,read_ahead=0");
    let held_back = [("network", "memory_waits")];
    Drill { servers: &servers, attack: Attack::on_mgr(), daemon, policy, held_back: &held_back }.run();
    for name in ["proxy_read_bytes", "proxy_write_bytes"] {
        assert!(servers.number("counters", name) > 0, "the client did not use the attacked mgr");
    }

    // The mgr lets the requests of one machine use at most half of the memory for requests, so the attacker cannot use
    // more than half.
    let counted = servers.number("network", "memory_most_bytes");
    assert!(counted <= NET_BYTES_MAX as u64 / 2 + BESIDE_PAYLOADS, "the mgr counted {counted} bytes");
    let shares = [IOD_BUFFERS_MAX * PAYLOAD_MAX / 2, NET_BYTES_MAX / 2];
    for ((daemon, before), share) in [&servers.iod, &servers.mgr].into_iter().zip(before).zip(shares) {
        let grown = daemon.most_memory() - before;
        eprintln!("memory of a daemon: at most {grown} bytes more than before, of a share of {share}");
        assert!(grown <= share as u64 + BESIDE_PAYLOADS, "{grown} bytes more than before");
    }
    servers.run(ON_SERVER, &["fsck"]);
}
