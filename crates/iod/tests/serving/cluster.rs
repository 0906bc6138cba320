//! Helpers of the iod's tests: an iod with a store in a temporary directory, and a blocking client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use iod::{Config, Daemon, Disk, Features, Iod, Local, Memory, Running, Store, Volume};
use types::{FileId, Fsid, Generation, IodId, ObjectId, Status, Verifier};
use wire::native::*;
use wire::rpc::record::{Mark, mark};
use wire::rpc::{AcceptStat, Auth, CallHeader, Message, ReplyHeader, ReplyStat, decode_message};
use xdr::{Reader, Segments, Writer, Xdr};

pub const FSID: Fsid = Fsid(*b"file system test");
pub const SESSION: u64 = 77;
pub const ALL: Rights = Rights(7);

/// The id of the iod in each test, unless the test formats a store under another id.
pub const IOD: IodId = IodId([5; 16]);

/// The secret of the test cluster, which the mgr and all iods share.
pub fn cluster_key() -> Key {
    Key::new([3; 32])
}

/// The secret of the iod [`IOD`], with which the mgr signs tickets and capabilities for this iod.
pub fn key() -> IodKey {
    cluster_key().of_iod(IOD)
}

/// Formats an empty store on a disk, under the iod id [`IOD`].
pub fn format_store(disk: &dyn Disk, features: Features) {
    Store::format_as(disk, FSID, features, IOD).unwrap();
}

/// Serves a store on a simulated disk to callers without sockets.
pub fn daemon(disk: &Memory) -> Arc<Daemon> {
    let store = Store::open_on(Arc::new(disk.clone())).unwrap();
    Arc::new(Daemon::new(Volume::new(store, &cluster_key()), Vec::new()))
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

pub fn config(dir: &Path) -> Config {
    Config::new(dir, FSID, cluster_key(), vec!["127.0.0.1:0".parse().unwrap()])
}

/// A running iod whose store is in a temporary directory. Dropping this value removes the directory.
pub struct Server {
    pub running: Option<Running>,
    pub dir: tempfile::TempDir,
}

impl Server {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        format_store(&Local::new(dir.path().join("store")), Features::default());
        let mut config = config(&dir.path().join("store"));
        change(&mut config);
        Server { running: Some(Iod::start(config).unwrap()), dir }
    }

    pub fn store_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("store")
    }

    pub fn restart(&mut self) {
        self.running.take().unwrap().stop();
        self.running = Some(Iod::start(config(&self.store_dir())).unwrap());
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn counter(&self, name: &str) -> u64 {
        self.running().counters().iter().find(|c| c.name == name).unwrap_or_else(|| panic!("{name}")).value
    }

    /// Returns a client that is connected over TCP and uses checksums.
    pub fn client(&self) -> Client {
        self.client_with(true)
    }

    pub fn client_with(&self, checksums: bool) -> Client {
        let mut client = Client::new(self.tcp());
        client.key = cluster_key().of_iod(self.running().iod());
        client.hello(checksums).unwrap();
        client
    }

    /// Returns a client that is connected over the Unix socket.
    pub fn local_client(&self, checksums: bool) -> Client {
        let mut client = Client::new(UnixStream::connect(self.running().unix_path().unwrap()).unwrap());
        client.hello(checksums).unwrap();
        client
    }

    pub fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.running().addrs()[0]).unwrap()
    }
}

pub trait Stream: Read + Write + Send {
    fn set_timeout(&self, timeout: Duration);
}

impl Stream for TcpStream {
    fn set_timeout(&self, timeout: Duration) {
        self.set_read_timeout(Some(timeout)).unwrap();
        self.set_nodelay(true).unwrap();
    }
}

impl Stream for UnixStream {
    fn set_timeout(&self, timeout: Duration) {
        self.set_read_timeout(Some(timeout)).unwrap();
    }
}

/// A stream that sends and receives nothing, for clients that only encode messages.
pub struct Nowhere;

impl Read for Nowhere {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Ok(0)
    }
}

impl Write for Nowhere {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        Ok(data.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Stream for Nowhere {
    fn set_timeout(&self, _: Duration) {}
}

/// The reason why a call returned no result.
#[derive(Debug)]
pub enum Fault {
    /// The iod executed the call and returned this failure.
    Refused(Failure),
    /// The iod did not execute the call, because its RPC layer refused it.
    NotExecuted(ReplyStat),
    /// The iod has closed the connection.
    Closed,
}

impl Fault {
    pub fn status(&self) -> Status {
        match self {
            Fault::Refused(failure) => failure.status,
            other => panic!("{other:?} instead of a status"),
        }
    }
}

/// A blocking client of the native data protocol. [`Client::call`] waits for each reply; [`Client::send`] allows
/// several requests in flight.
pub struct Client {
    pub stream: Box<dyn Stream>,
    pub checksums: bool,
    /// The secret of the iod, with which the test client itself signs capabilities.
    pub key: IodKey,
    xid: u32,
}

impl Client {
    pub fn new(stream: impl Stream + 'static) -> Self {
        // The iod replies much earlier than this timeout. With the timeout, a test whose iod does not reply fails
        // instead of hanging.
        stream.set_timeout(Duration::from_secs(60));
        Client { stream: Box::new(stream), checksums: false, key: key(), xid: 100 }
    }

    pub fn hello(&mut self, checksums: bool) -> Result<HelloReply, Fault> {
        let origin = Origin { owner: [1; 16], incarnation: 0 };
        self.hello_from(origin, checksums)
    }

    pub fn hello_from(&mut self, origin: Origin, checksums: bool) -> Result<HelloReply, Fault> {
        let ticket = self.key.ticket(FSID, SESSION, now() + 1000);
        let reply = self.hello_with(&ticket, origin, checksums)?;
        self.checksums = reply.checksums;
        Ok(reply)
    }

    /// Opens a session with this ticket; returns the iod's reply to HELLO.
    pub fn hello_with(&mut self, ticket: &Ticket, origin: Origin, checksums: bool) -> Result<HelloReply, Fault> {
        self.greet(ticket, origin, checksums).map(|(reply, _)| reply)
    }

    /// Opens a session with this ticket; returns the iod's replies to HELLO and PROVE.
    pub fn greet(
        &mut self,
        ticket: &Ticket,
        origin: Origin,
        checksums: bool,
    ) -> Result<(HelloReply, ProveReply), Fault> {
        greet(ticket, origin, checksums, self, |client, procedure, args| {
            let xid = client.send(procedure, args);
            client.receive().map(|record| (record, xid))
        })
    }

    pub fn message(&mut self, procedure: u32, args: &impl Xdr) -> Segments {
        self.xid += 1;
        let header = CallHeader {
            xid: self.xid,
            program: PROGRAM,
            version: VERSION,
            procedure,
            cred: Auth::None,
            verf: Auth::None,
        };
        let mut out = Writer::new();
        header.encode(&mut out);
        args.encode(&mut out);
        out.finish()
    }

    pub fn send(&mut self, procedure: Procedure, args: &impl Xdr) -> u32 {
        let message = self.message(procedure as u32, args);
        let record = mark(message).to_bytes();
        self.stream.write_all(&record).unwrap();
        self.xid
    }

    /// Receives the next RPC record.
    pub fn receive(&mut self) -> Result<Bytes, Fault> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head).map_err(|_| Fault::Closed)?;
        let mark = Mark::from_bytes(head);
        assert!(mark.last, "an iod sends records of one fragment");
        let mut body = vec![0; mark.len];
        self.stream.read_exact(&mut body).map_err(|_| Fault::Closed)?;
        Ok(body.into())
    }

    pub fn reply<R: Xdr>(&mut self, xid: u32) -> Result<R, Fault> {
        decoded(self.receive()?, xid)
    }

    /// Returns the xid of the last request that the client encoded.
    pub fn xid(&self) -> u32 {
        self.xid
    }

    pub fn call<R: Xdr>(&mut self, procedure: Procedure, args: &impl Xdr) -> Result<R, Fault> {
        let xid = self.send(procedure, args);
        self.reply(xid)
    }

    /// Returns a capability for an object, signed for the iod and the session of this client.
    pub fn cap(&self, object: u64, rights: Rights) -> Capability {
        self.cap_of(object, 1, rights)
    }

    fn cap_of(&self, object: u64, generation: u32, rights: Rights) -> Capability {
        self.key.sign_capability(
            FSID,
            ObjectId::stream_0(FileId(object)),
            Generation(generation),
            rights,
            now() + 1000,
            SESSION,
        )
    }

    pub fn write_args(&self, object: u64, stable: bool, parts: &[(u64, &[u8])]) -> WriteArgs {
        let extents = parts
            .iter()
            .map(|(offset, data)| WriteExtent {
                offset: *offset,
                len: data.len() as u32,
                crc32c: if self.checksums { crc32c(data) } else { 0 },
            })
            .collect();
        let data: Vec<u8> = parts.iter().flat_map(|(_, data)| data.iter().copied()).collect();
        let head = WriteHead { cap: self.cap(object, ALL), stable, least: 0, extents };
        WriteArgs { head, data: Segments::from(Bytes::from(data)) }
    }

    pub fn write(&mut self, object: u64, offset: u64, data: &[u8]) -> Result<WriteReply, Fault> {
        let args = self.write_args(object, false, &[(offset, data)]);
        self.call(Procedure::Write, &args)
    }

    pub fn write_list(&mut self, object: u64, stable: bool, parts: &[(u64, &[u8])]) -> Result<WriteReply, Fault> {
        let args = self.write_args(object, stable, parts);
        self.call(Procedure::Write, &args)
    }

    /// Reads a list of ranges of an object with one READ, and checks that the reply is valid by the protocol.
    pub fn read_list(&mut self, object: u64, extents: &[(u64, u32)]) -> Result<ReadReply, Fault> {
        let list = extents.iter().map(|(offset, len)| Extent { offset: *offset, len: *len }).collect();
        let reply: ReadReply =
            self.call(Procedure::Read, &ReadArgs { cap: self.cap(object, Rights::READ), extents: list })?;
        check_read(&reply, extents, self.checksums);
        Ok(reply)
    }

    /// Reads one range of an object. Returns the bytes of the range up to the end of the object, with zeros for holes.
    pub fn read(&mut self, object: u64, offset: u64, len: u32) -> Result<Vec<u8>, Fault> {
        Ok(flat(&self.read_list(object, &[(offset, len)])?))
    }

    pub fn commit(&mut self, object: u64) -> Result<CommitReply, Fault> {
        self.call(Procedure::Commit, &ObjectArgs { cap: self.cap(object, ALL) })
    }

    pub fn size(&mut self, object: u64) -> Result<SizeReply, Fault> {
        self.call(Procedure::Size, &ObjectArgs { cap: self.cap(object, Rights::READ) })
    }

    pub fn truncate(&mut self, object: u64, size: u64) -> Result<TruncateReply, Fault> {
        self.call(Procedure::Truncate, &TruncateArgs { cap: self.cap(object, Rights::WRITE), size })
    }

    pub fn punch(&mut self, object: u64, offset: u64, len: u64) -> Result<Nothing, Fault> {
        self.call(Procedure::Punch, &PunchArgs { cap: self.cap(object, Rights::WRITE), offset, len })
    }

    pub fn reserve(&mut self, object: u64, offset: u64, len: u64) -> Result<Nothing, Fault> {
        self.call(Procedure::Reserve, &ReserveArgs { cap: self.cap(object, Rights::WRITE), offset, len })
    }

    pub fn seek(&mut self, object: u64, offset: u64, what: SeekWhat) -> Result<Option<u64>, Fault> {
        let args = SeekArgs { cap: self.cap(object, Rights::READ), offset, what };
        self.call::<SeekReply>(Procedure::Seek, &args).map(|r| r.offset)
    }

    pub fn remove(&mut self, object: u64) -> Result<Nothing, Fault> {
        self.call(Procedure::Remove, &ObjectArgs { cap: self.cap(object, ALL) })
    }

    pub fn fence(&mut self, object: u64, generation: u32) -> Result<Nothing, Fault> {
        let args = FenceArgs { cap: self.cap_of(object, generation, ALL), generation: Generation(generation) };
        self.call(Procedure::Fence, &args)
    }

    pub fn list(&mut self, after: u64, max: u32) -> Result<ListReply, Fault> {
        let after = (after != 0).then_some(ObjectId::stream_0(FileId(after)));
        self.call(Procedure::List, &ListArgs { cap: self.cap(STORE_OBJECT.file.0, Rights::ADMIN), after, max })
    }

    pub fn stats(&mut self) -> Result<StatsReply, Fault> {
        self.call(Procedure::Stats, &Nothing)
    }

    pub fn verifier(&mut self, object: u64) -> Verifier {
        self.commit(object).unwrap().verifier
    }

    /// Returns whether the iod has closed the connection. Discards bytes that the iod has sent before that.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 64]), Ok(0) | Err(_))
    }
}

/// The arguments of HELLO or of PROVE, as one type.
pub enum Greeting {
    Hello(HelloArgs),
    Prove(ProveArgs),
}

impl Xdr for Greeting {
    fn encode(&self, out: &mut Writer) {
        match self {
            Greeting::Hello(args) => args.encode(out),
            Greeting::Prove(proof) => proof.encode(out),
        }
    }

    fn decode(_: &mut Reader) -> Result<Self, xdr::Malformed> {
        unreachable!("never read")
    }
}

/// Opens a session with a ticket: sends HELLO, checks the proof of the iod, and sends PROVE. The caller's `exchange`
/// sends a request and returns the reply record and the request's xid.
pub fn greet<C>(
    ticket: &Ticket,
    origin: Origin,
    checksums: bool,
    client: &mut C,
    mut exchange: impl FnMut(&mut C, Procedure, &Greeting) -> Result<(Bytes, u32), Fault>,
) -> Result<(HelloReply, ProveReply), Fault> {
    let args = HelloArgs::new(ticket, [8; 32], checksums);
    let (record, xid) = exchange(client, Procedure::Hello, &Greeting::Hello(args.clone()))?;
    let reply: HelloReply = decoded(record, xid)?;
    let proof = ticket.check(&args, &reply, origin).expect("a genuine iod");
    let (record, xid) = exchange(client, Procedure::Prove, &Greeting::Prove(proof))?;
    let proven = decoded::<ProveReply>(record, xid)?;
    Ok((reply, proven))
}

pub fn object_args(object: u64) -> ObjectArgs {
    ObjectArgs { cap: cap(object, ALL) }
}

/// Decodes the result of call `xid` from the record of its reply.
pub fn decoded<R: Xdr>(record: Bytes, xid: u32) -> Result<R, Fault> {
    let mut input = Reader::new(record);
    match decode_message(&mut input).unwrap() {
        Message::Reply(ReplyHeader { xid: found, stat: ReplyStat::Accepted { stat: AcceptStat::Success, .. } }) => {
            assert_eq!(found, xid, "replies come in order");
            let result = decode_reply(&mut input).unwrap().map_err(Fault::Refused);
            input.finish().unwrap();
            result
        }
        Message::Reply(ReplyHeader { stat, .. }) => Err(Fault::NotExecuted(stat)),
        other => panic!("{other:?}"),
    }
}

pub fn cap(object: u64, rights: Rights) -> Capability {
    cap_of(object, 1, rights)
}

pub fn cap_of(object: u64, generation: u32, rights: Rights) -> Capability {
    key().sign_capability(
        FSID,
        ObjectId::stream_0(FileId(object)),
        Generation(generation),
        rights,
        now() + 1000,
        SESSION,
    )
}

/// Checks a READ reply: its pieces (data, holes, ranges beyond the end) cover the requested extents in order, agree
/// with the object's size, and have the right checksums.
fn check_read(reply: &ReadReply, extents: &[(u64, u32)], checksums: bool) {
    let mut pieces = reply.head.pieces.iter();
    let mut data = reply.data.clone();
    for (offset, len) in extents {
        let (mut at, end) = (*offset, offset + u64::from(*len));
        while at < end {
            let piece = pieces.next().expect("pieces cover the extents");
            let until = at + u64::from(piece.len);
            assert!(until <= end, "a piece reaches out of its extent");
            match piece.kind {
                PieceKind::Beyond => assert!(at >= reply.head.size),
                _ => assert!(until <= reply.head.size),
            }
            let expected = match piece.kind {
                PieceKind::Data => {
                    let bytes = data.split_to(piece.len as usize);
                    if checksums { crc32c(&bytes) } else { 0 }
                }
                _ => 0,
            };
            assert_eq!(piece.crc32c, expected);
            at = until;
        }
    }
    assert!(pieces.next().is_none() && data.is_empty());
}

/// Returns the bytes of a READ reply, with zeros for holes, and without the ranges beyond the end of the object.
pub fn flat(reply: &ReadReply) -> Vec<u8> {
    let mut data = reply.data.clone();
    let mut out = Vec::new();
    for piece in &reply.head.pieces {
        match piece.kind {
            PieceKind::Data => out.extend_from_slice(&data.split_to(piece.len as usize)),
            PieceKind::Hole => out.resize(out.len() + piece.len as usize, 0),
            PieceKind::Beyond => {}
        }
    }
    out
}

/// Returns `len` pseudo-random bytes that are determined by a seed. No byte is zero.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8 | 1
        })
        .collect()
}

/// Calls `done` repeatedly until it returns true. Panics after 60 seconds.
pub fn wait_until(mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "a condition was not reached in time");
        std::thread::yield_now();
    }
}
