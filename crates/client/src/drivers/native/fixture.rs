//! In-memory iods for tests of the native driver: real object stores and procedures, which the client reaches through a
//! simulated network in its own thread.

mod logs;

use super::iods::encode;
use crate::counters::Tally;
use crate::devices::{DeviceSource, Devices};
use crate::drivers::{Drivers, Fixture, Layout, ServerFault};
use crate::{Options, Result};
use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use iod::{Daemon, Features, Memory, Operation, Peer, Store, Volume};
use layout::DistributionId;
use layout::kinds::native::{self, Native};
use layout::kinds::{Kind, KindId};
use net::Address;
use net::clock::unix_now;
use net::memory::{Network, Pipe, Port};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use types::limits::FILE_SIZE_MAX;
use types::{ByteRange, FileId, Fsid, Generation, IodId, ObjectId};
use wire::native::*;
use wire::rpc::Message;
use wire::rpc::record::Mark;
use xdr::{Reader, Xdr};

const FSID: Fsid = Fsid([7; 16]);
const FILE: FileId = FileId(9);
const SESSION: u64 = 5;
/// The TCP port of the first iod; the other iods have consecutive ports.
const FIRST_PORT: u16 = 100;
/// Number of requests that open a connection: HELLO and PROVE. An iod with [`ServerFault::Silent`] still answers these.
const GREETINGS: u64 = 2;

/// The in-memory iods of one file, and the native driver.
pub(crate) struct MemoryIods {
    hosts: Arc<Vec<Arc<Host>>>,
    key: Key,
    stripe_unit: u64,
    /// Whether the file is a log file.
    has_logs: bool,
    /// The number of the last registration of the mgr.
    registration: AtomicU64,
    generation: AtomicU32,
    devices: Arc<Devices>,
    drivers: Drivers,
}

impl MemoryIods {
    /// Starts `count` iods with empty stores, for a file with this stripe unit.
    pub(crate) fn new(count: u8, stripe_unit: u64) -> Self {
        Self::start(count, stripe_unit, false)
    }

    fn start(count: u8, stripe_unit: u64, has_logs: bool) -> Self {
        let key = Key::new([3; 32]);
        let hosts: Vec<_> = (0..count).map(|number| Arc::new(Host::new(number, &key))).collect();
        let hosts = Arc::new(hosts);
        net::memory::install(Some(Arc::new(HostNetwork { hosts: hosts.clone(), connections: AtomicU64::new(0) })));
        let (devices, drivers) = mount(&hosts, &key);
        let (generation, registration) = (AtomicU32::new(1), AtomicU64::new(0));
        MemoryIods { hosts, key, stripe_unit, has_logs, registration, generation, devices, drivers }
    }

    /// Returns the drivers of a mount, connected to these iods.
    pub(crate) fn drivers(&self) -> &Drivers {
        &self.drivers
    }

    fn capability(&self, iod: IodId, object: ObjectId, rights: Rights) -> Capability {
        let generation = Generation(self.generation.load(Relaxed));
        self.key.of_iod(iod).sign_capability(FSID, object, generation, rights, unix_now() + 3600, SESSION)
    }

    /// Calls a procedure for an object on one iod, with a capability for all rights, as the mgr does.
    async fn call<T: Xdr, A: Xdr>(
        &self,
        index: usize,
        object: ObjectId,
        procedure: Procedure,
        args: impl Fn(Capability) -> A,
    ) -> T {
        let id = self.hosts[index].id;
        let args = encode(&args(self.capability(id, object, Rights::READ | Rights::WRITE | Rights::ADMIN)));
        let called = self.devices.iod(id).call((procedure, *REVISIONS.end()), |_| args.clone(), "a test").await;
        called.unwrap().0
    }

    /// Calls a procedure for an object on every iod, see [`MemoryIods::call`].
    async fn call_all<T: Xdr, A: Xdr>(
        &self,
        object: ObjectId,
        procedure: Procedure,
        args: impl Fn(usize, Capability) -> A,
    ) {
        for index in 0..self.hosts.len() {
            self.call::<T, A>(index, object, procedure, |cap| args(index, cap)).await;
        }
    }

    /// Grants a layout of the file to the mount with these drivers.
    pub(super) async fn grant_to(&self, drivers: &Drivers, durable: u64) -> Arc<dyn Layout> {
        let devices: Vec<IodId> = self.hosts.iter().map(|host| host.id).collect();
        let rights = Rights::READ | Rights::WRITE;
        let caps = |object| devices.iter().map(|id| self.capability(*id, object, rights)).collect::<Vec<_>>();
        let base = caps(ObjectId::stream_0(FILE));
        let index = if self.has_logs { caps(ObjectId::index(FILE)) } else { Vec::new() };
        let body = native::Body {
            distribution: DistributionId::SimpleStripe,
            stripe_unit: self.stripe_unit,
            object: ObjectId::stream_0(FILE),
            generation: base[0].generation,
            // The mgr knows nothing about the length of the base of a log file.
            whole: if self.has_logs { 0 } else { durable },
            capability: base[0].to_bytes(),
            authenticators: base.iter().map(|cap| cap.mac).collect(),
            secs: 3600,
            index_authenticators: index.iter().map(|cap| cap.mac).collect(),
            devices: devices.clone(),
        };
        let (kind, layout) = drivers.attach(native::KIND, &body.to_bytes()).await.unwrap();
        assert_eq!(kind, Native::ID);
        layout
    }
}

/// Creates the devices and drivers of a mount.
fn mount(hosts: &[Arc<Host>], key: &Key) -> (Arc<Devices>, Drivers) {
    let source = Arc::new(Addresses { key: key.clone(), ids: hosts.iter().map(|host| host.id).collect() });
    let tally = Arc::new(Tally::default());
    let devices = Devices::new(source, Options::default(), tally.clone(), net::Counters::default());
    let devices = Arc::new(devices.unwrap());
    let drivers = Drivers::new(devices.clone(), tally);
    (devices, drivers)
}

impl Drop for MemoryIods {
    fn drop(&mut self) {
        net::memory::install(None);
    }
}

impl Fixture for MemoryIods {
    async fn grant(&self, durable: u64) -> Arc<dyn Layout> {
        self.grant_to(&self.drivers, durable).await
    }

    fn fail(&self, lane: usize, fault: Option<ServerFault>) {
        self.hosts[lane].set_fault(fault);
    }

    fn restart(&self, lane: usize) {
        self.hosts[lane].restart(&self.key);
    }

    async fn lose(&self, lane: usize) {
        if self.has_logs {
            return self.lose_logs(lane).await;
        }
        let host = &self.hosts[lane];
        host.close_lines();
        let disk = formatted(host.id);
        let mut state = host.state.lock().unwrap();
        (state.daemon, state.disk) = (serve(&disk, &self.key), disk);
    }

    async fn truncate(&self, size: u64) {
        let count = self.hosts.len();
        let distribution = layout::Distribution::new(DistributionId::SimpleStripe, self.stripe_unit, count).unwrap();
        let args = |index, cap| TruncateArgs { cap, size: distribution.object_size(size, index) };
        self.call_all::<TruncateReply, _>(ObjectId::stream_0(FILE), Procedure::Truncate, args).await;
        if self.has_logs {
            self.register_base(ByteRange { offset: size, len: FILE_SIZE_MAX - size }).await;
        }
    }

    async fn fence(&self) {
        let generation = Generation(self.generation.load(Relaxed) + 1);
        let objects = [ObjectId::stream_0(FILE), ObjectId::index(FILE)];
        for object in &objects[..1 + usize::from(self.has_logs)] {
            self.call_all::<Nothing, _>(*object, Procedure::Fence, |_, cap| FenceArgs { cap, generation }).await;
        }
        self.generation.store(generation.0, Relaxed);
    }

    async fn punch(&self, hole: ByteRange) {
        // No test writes to the base of a log file, so the base has a hole there.
        self.register_base(hole).await;
    }

    fn received(&self) -> Vec<u64> {
        self.hosts.iter().map(|host| host.state.lock().unwrap().received).collect()
    }

    fn has_independent_lanes(&self) -> bool {
        !self.has_logs
    }

    fn knows_lengths(&self) -> bool {
        !self.has_logs
    }

    fn changes_holes(&self) -> bool {
        !self.has_logs
    }
}

/// The source of device addresses and tickets, in place of the mgr.
struct Addresses {
    key: Key,
    ids: Vec<IodId>,
}

#[async_trait]
impl DeviceSource for Addresses {
    async fn address(&self, kind: KindId, device: [u8; 16]) -> Result<Bytes> {
        assert_eq!(kind, Native::ID);
        let iod = IodId(device);
        let index = self.ids.iter().position(|id| *id == iod).unwrap() as u16;
        let ticket = self.key.of_iod(iod).ticket(FSID, SESSION, unix_now() + 3600).to_bytes();
        let tcp = vec![format!("127.0.0.1:{}", FIRST_PORT + index)];
        Ok(native::Device { iod, tcp, local: None, ticket }.to_bytes())
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(90)
    }
}

/// The host that runs an iod.
struct Host {
    id: IodId,
    port: u16,
    state: Mutex<HostState>,
}

struct HostState {
    disk: Memory,
    daemon: Arc<Daemon>,
    fault: Option<ServerFault>,
    /// Number of requests that the iod received, except HELLO and PROVE.
    received: u64,
    /// The requests of [`HostState::received`] with their sizes in bytes: the number of the procedure first.
    requests: Vec<(u32, usize)>,
    lines: Vec<Weak<Line>>,
}

fn formatted(id: IodId) -> Memory {
    let disk = Memory::new(id.to_string(), 1 << 30);
    Store::format_as(&disk, FSID, Features::default(), id).unwrap();
    disk
}

fn serve(disk: &Memory, key: &Key) -> Arc<Daemon> {
    let store = Store::open_on(Arc::new(disk.clone())).unwrap();
    Arc::new(Daemon::new(Volume::new(store, key), Vec::new()))
}

impl Host {
    fn new(number: u8, key: &Key) -> Self {
        let id = IodId([number + 1; 16]);
        let disk = formatted(id);
        let daemon = serve(&disk, key);
        let state = HostState { disk, daemon, fault: None, received: 0, requests: Vec::new(), lines: Vec::new() };
        Host { id, port: FIRST_PORT + u16::from(number), state: Mutex::new(state) }
    }

    fn set_fault(&self, fault: Option<ServerFault>) {
        {
            let mut state = self.state.lock().unwrap();
            state.fault = fault;
            match fault {
                Some(ServerFault::Failing) => state.disk.inject(|operation, _| {
                    let is_hit = operation == Operation::Read || operation.is_change();
                    is_hit.then(|| io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()))
                }),
                _ => state.disk.heal(),
            }
        }
        if fault == Some(ServerFault::Unreachable) {
            self.close_lines();
        }
    }

    /// Simulates a power cut of the host, which loses all bytes that are not durable, and starts the iod again.
    fn restart(&self, key: &Key) {
        self.close_lines();
        let mut state = self.state.lock().unwrap();
        state.disk.power_cut(&mut |_| 0);
        state.daemon = serve(&state.disk, key);
    }

    fn close_lines(&self) {
        let lines = std::mem::take(&mut self.state.lock().unwrap().lines);
        lines.iter().filter_map(Weak::upgrade).for_each(|line| line.shutdown());
    }

    fn connect(self: &Arc<Self>) -> io::Result<Arc<dyn Pipe>> {
        let mut state = self.state.lock().unwrap();
        if state.fault == Some(ServerFault::Unreachable) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let peer = Some(Peer::new(state.daemon.clone()));
        let ends = Ends { peer, inbox: BytesMut::new(), outbox: BytesMut::new(), records: 0, reader: None };
        let line = Arc::new(Line { host: self.clone(), ends: Mutex::new(ends) });
        state.lines.push(Arc::downgrade(&line));
        Ok(line)
    }

    /// Counts a request; returns whether the iod replies to it.
    fn receive(&self, record: &Bytes) -> bool {
        let mut state = self.state.lock().unwrap();
        state.received += 1;
        let call = wire::rpc::decode_message(&mut Reader::new(record.clone()));
        if let Ok(Message::Call(header)) = call {
            state.requests.push((header.procedure, record.len()));
        }
        state.fault != Some(ServerFault::Silent)
    }
}

struct HostNetwork {
    hosts: Arc<Vec<Arc<Host>>>,
    connections: AtomicU64,
}

impl Network for HostNetwork {
    fn connect(&self, _: &str, port: u16) -> BoxFuture<'static, io::Result<Arc<dyn Pipe>>> {
        let host = self.hosts.iter().find(|host| host.port == port);
        let connected = host.ok_or_else(|| io::ErrorKind::ConnectionRefused.into()).and_then(Host::connect);
        Box::pin(std::future::ready(connected))
    }

    fn bind(&self, _: &str, _: u16) -> io::Result<Arc<dyn Port>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn connection_id(&self) -> u64 {
        self.connections.fetch_add(1, Relaxed)
    }
}

/// A connection to an iod. The iod executes each request as soon as the whole record has arrived.
struct Line {
    host: Arc<Host>,
    ends: Mutex<Ends>,
}

struct Ends {
    /// The state that the iod keeps for this connection; `None` after the connection was closed.
    peer: Option<Peer>,
    inbox: BytesMut,
    outbox: BytesMut,
    records: u64,
    reader: Option<Waker>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Line to {}", self.host.id)
    }
}

impl Ends {
    /// Takes one complete RPC record from the bytes that the client has sent on this connection. The client sends each
    /// record as a single fragment.
    fn record(&mut self) -> Option<Bytes> {
        let mark = Mark::from_bytes(*self.inbox.first_chunk::<4>()?);
        assert!(mark.last, "a request in several fragments");
        if self.inbox.len() < 4 + mark.len {
            return None;
        }
        self.inbox.advance(4);
        Some(self.inbox.split_to(mark.len).freeze())
    }

    fn execute(&mut self, host: &Host) {
        while let Some(record) = self.record() {
            let Some(peer) = &mut self.peer else { return };
            self.records += 1;
            let answers = self.records <= GREETINGS || host.receive(&record);
            match peer.record(record) {
                Ok(reply) if answers => {
                    self.outbox.put_u32(reply.len() as u32 | 1 << 31);
                    self.outbox.put(reply);
                }
                _ => self.peer = None,
            }
        }
    }
}

impl Pipe for Line {
    fn peer(&self) -> Address {
        Address::Tcp { host: "127.0.0.1".into(), port: self.host.port }
    }

    fn poll_read(&self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Bytes>> {
        let mut ends = self.ends.lock().unwrap();
        let len = ends.outbox.len().min(max);
        if len == 0 && ends.peer.is_some() {
            ends.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(ends.outbox.split_to(len).freeze()))
    }

    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut ends = self.ends.lock().unwrap();
        if ends.peer.is_none() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        parts.iter().for_each(|part| ends.inbox.extend_from_slice(part));
        ends.execute(&self.host);
        ends.reader.take().into_iter().for_each(Waker::wake);
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn poll_writable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn shutdown(&self) {
        let mut ends = self.ends.lock().unwrap();
        ends.peer = None;
        ends.outbox.clear();
        ends.reader.take().into_iter().for_each(Waker::wake);
    }
}
