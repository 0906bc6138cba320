//! Tests of the NFS data server: a scripted pNFS client (files layout) sends requests over sockets to the data server
//! of a real iod.

#[path = "../../iod/tests/serving/cluster.rs"]
#[allow(dead_code)]
mod cluster;

use bytes::Bytes;
use cluster::{ALL, FSID, key, now};
use net::rpc::{Connection, Limits, NoService};
use net::{Counters, Listener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;
use types::{FileId, Fsid, Generation, ObjectId};
use wire::native::*;
use wire::nfs4::*;
use wire::rpc::{Auth, AuthSys};
use xdr::Xdr;

const OBJECT: ObjectId = ObjectId::stream_0(FileId(77));
const UNIT: u32 = 65536;
/// A stateid such as the mgr issues. A data server does not know the stateids of the mgr and must accept any regular
/// stateid.
const STATEID: stateid4 = stateid4 { seqid: 0, other: [7; 12] };

/// An iod (`iod`) and its NFS data server (`face`).
struct Server {
    iod: cluster::Server,
    face: Option<ds::Running>,
}

impl Server {
    async fn new() -> Server {
        let mut server = Server { iod: cluster::Server::new(), face: None };
        server.start().await;
        server
    }

    async fn start(&mut self) {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        self.face = Some(ds::start(self.iod.running().daemon(), vec![listener]).await.unwrap());
    }

    /// Stops the data server, and waits for its tasks, because the store stays open until all tasks have ended.
    async fn stop_data_server(&mut self) {
        let daemon = Arc::downgrade(&self.iod.running().daemon());
        self.face.take().unwrap().stop().await;
        let begun = std::time::Instant::now();
        while daemon.strong_count() > 1 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the store is still in use");
            tokio::task::yield_now().await;
        }
    }

    async fn client(&self, minor: u32) -> Client {
        let address = &self.face.as_ref().unwrap().addresses()[0];
        let counters = Counters::default();
        let wait = Duration::from_secs(30);
        let connection =
            Connection::connect(address, Arc::new(NoService), Limits::default(), counters, wait).await.unwrap();
        Client { connection, minor, session: [0; 16], sequence: 0 }
    }
}

/// A scripted NFS client with one session.
struct Client {
    connection: Connection,
    minor: u32,
    session: sessionid4,
    sequence: u32,
}

impl Client {
    async fn send(&self, argarray: Vec<nfs_argop4>) -> COMPOUND4res {
        let body = COMPOUND4args { tag: Bytes::new(), minorversion: self.minor, argarray };
        let auth = Auth::Sys(AuthSys { uid: 1000, gid: 1000, ..AuthSys::default() });
        let wait = Duration::from_secs(30);
        let reply = self.connection.call(NFS4_PROGRAM, 4, 1, &auth, body.to_bytes().into(), wait).await.unwrap();
        COMPOUND4res::from_bytes(&reply.body.rest()).unwrap()
    }

    /// Creates a session as the Linux client does with a data server: sends EXCHANGE_ID, CREATE_SESSION and
    /// RECLAIM_COMPLETE. Returns the reply to EXCHANGE_ID.
    async fn introduce(&mut self) -> EXCHANGE_ID4resok {
        let args = EXCHANGE_ID4args {
            eia_clientowner: client_owner4 {
                co_verifier: [1; 8],
                co_ownerid: Bytes::from_static(b"Linux NFSv4.1 here"),
            },
            eia_flags: EXCHGID4_FLAG_SUPP_MOVED_REFER | EXCHGID4_FLAG_BIND_PRINC_STATEID | EXCHGID4_FLAG_USE_PNFS_DS,
            eia_state_protect: state_protect4_a::SP4_NONE,
            eia_client_impl_id: vec![],
        };
        let reply = self.send(vec![nfs_argop4::OP_EXCHANGE_ID(args)]).await;
        let [nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::NFS4_OK(met))] = &reply.resarray[..] else {
            panic!("{reply:?}")
        };
        let channel = |size, operations, cached| channel_attrs4 {
            ca_headerpadsize: 0,
            ca_maxrequestsize: size,
            ca_maxresponsesize: size,
            ca_maxresponsesize_cached: cached,
            ca_maxoperations: operations,
            ca_maxrequests: 16,
            ca_rdma_ird: vec![],
        };
        let args = CREATE_SESSION4args {
            csa_clientid: met.eir_clientid,
            csa_sequence: met.eir_sequenceid,
            csa_flags: CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
            csa_fore_chan_attrs: channel(1_049_620, 8, 7584),
            csa_back_chan_attrs: channel(4096, 2, 0),
            csa_cb_program: 0x4000_0000,
            csa_sec_parms: vec![callback_sec_parms4::AUTH_NONE],
        };
        let reply = self.send(vec![nfs_argop4::OP_CREATE_SESSION(args)]).await;
        let [nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(session))] = &reply.resarray[..] else {
            panic!("{reply:?}")
        };
        self.session = session.csr_sessionid;
        self.ask(vec![nfs_argop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false })]).await;
        met.clone()
    }

    /// Sends a COMPOUND of SEQUENCE and `ops`.
    async fn ask(&mut self, mut ops: Vec<nfs_argop4>) -> COMPOUND4res {
        self.sequence += 1;
        let sequence = SEQUENCE4args {
            sa_sessionid: self.session,
            sa_sequenceid: self.sequence,
            sa_slotid: 0,
            sa_highest_slotid: 0,
            sa_cachethis: false,
        };
        ops.insert(0, nfs_argop4::OP_SEQUENCE(sequence));
        self.send(ops).await
    }

    /// Sends a COMPOUND with PUTFH and one operation. Returns the operation's result, or the status of the COMPOUND if
    /// it failed.
    async fn on(&mut self, handle: &Bytes, op: nfs_argop4) -> Result<nfs_resop4, nfsstat4> {
        let mut reply = self.ask(vec![nfs_argop4::OP_PUTFH(PUTFH4args { object: handle.clone() }), op]).await;
        if reply.status == NFS4_OK { Ok(reply.resarray.remove(2)) } else { Err(reply.status) }
    }

    async fn write(
        &mut self,
        handle: &Bytes,
        offset: u64,
        data: &[u8],
        stable: stable_how4,
    ) -> Result<WRITE4resok, nfsstat4> {
        let data = Bytes::copy_from_slice(data);
        match self.on(handle, nfs_argop4::OP_WRITE(WRITE4args { stateid: STATEID, offset, stable, data })).await? {
            nfs_resop4::OP_WRITE(WRITE4res::NFS4_OK(done)) => Ok(done),
            other => panic!("not the answer of WRITE: {other:?}"),
        }
    }

    async fn read(&mut self, handle: &Bytes, offset: u64, count: u32) -> Result<READ4resok, nfsstat4> {
        match self.on(handle, nfs_argop4::OP_READ(READ4args { stateid: STATEID, offset, count })).await? {
            nfs_resop4::OP_READ(READ4res::NFS4_OK(done)) => Ok(done),
            other => panic!("not the answer of READ: {other:?}"),
        }
    }

    async fn commit(&mut self, handle: &Bytes) -> Result<verifier4, nfsstat4> {
        match self.on(handle, nfs_argop4::OP_COMMIT(COMMIT4args { offset: 0, count: 0 })).await? {
            nfs_resop4::OP_COMMIT(COMMIT4res::NFS4_OK(done)) => Ok(done.writeverf),
            other => panic!("not the answer of COMMIT: {other:?}"),
        }
    }
}

/// Starts a thread that plays the mgr: it replies to the iod's queries for file lengths until `answer` returns `None`.
/// `Some(None)` means that the mgr does not know the length. The thread returns the number of replies.
fn mgr(server: &Server, mut answer: impl FnMut() -> Option<Option<FileLength>> + Send + 'static) -> JoinHandle<usize> {
    let mut mgr = cluster::Client::new(server.iod.tcp());
    let ticket = key().ticket(FSID, MGR_SESSION, now() + 1000);
    mgr.hello_with(&ticket, Origin { owner: [3; 16], incarnation: 0 }, false).unwrap();
    let cap = key().sign_capability(FSID, STORE_OBJECT, Generation(1), ALL, now() + 1000, MGR_SESSION);
    let mut lengths = move |answers| {
        mgr.call::<LengthsReply>(Procedure::Lengths, &LengthsArgs { cap: cap.clone(), answers }).unwrap().asked
    };
    std::thread::spawn(move || {
        let (mut answers, mut given) = (Vec::new(), 0);
        loop {
            for asked in lengths(std::mem::take(&mut answers)) {
                let Some(length) = answer() else { return given };
                answers.push(Length { number: asked.number, length });
                given += 1;
            }
        }
    })
}

fn long(file: u64) -> FileLength {
    FileLength { file, least: 0 }
}

/// Returns a handle of a file striped over two iods; the tested iod holds the first stripe unit.
fn handle(generation: u32, rights: Rights) -> Bytes {
    sign(&key(), generation, rights, now() + 1000)
}

/// Returns a handle signed with `key`, the key of an iod, that is valid until `expires`.
fn sign(key: &IodKey, generation: u32, rights: Rights, expires: u64) -> Bytes {
    let (striping, holder) =
        (Striping { unit: UNIT, count: 2, index: 0 }, Holder { grant: 1, session: 1 << 32, expires });
    DataHandle::sign(key, FSID, (OBJECT, Generation(generation)), rights, striping, holder).to_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_writes_follow_the_striping_in_the_handle() {
    let server = Server::new().await;
    let handle = handle(1, Rights::READ | Rights::WRITE);
    for minor in [1, 2] {
        let mut client = server.client(minor).await;
        let met = client.introduce().await;
        assert_eq!(met.eir_flags & EXCHGID4_FLAG_MASK_PNFS, EXCHGID4_FLAG_USE_PNFS_DS);
        let written = client.write(&handle, 0, &[minor as u8; 1000], UNSTABLE4).await.unwrap();
        assert_eq!((written.count, written.committed), (1000, UNSTABLE4));
        assert_eq!(client.commit(&handle).await, Ok(written.writeverf));
        // A request that touches a stripe unit of the other iod fails as a whole. The tested iod holds stripe units 0
        // and 2 of the file.
        for (offset, len) in [(u64::from(UNIT) - 10, 11), (u64::from(UNIT), 10), (0, UNIT + 1)] {
            let write = client.write(&handle, offset, &vec![3; len as usize], DATA_SYNC4).await;
            assert_eq!(write.unwrap_err(), NFS4ERR_PNFS_IO_HOLE);
            assert_eq!(client.read(&handle, offset, len).await.unwrap_err(), NFS4ERR_PNFS_IO_HOLE);
        }
        let end = client.write(&handle, u64::from(UNIT) - 10, &[3; 10], DATA_SYNC4).await.unwrap();
        assert_eq!((end.count, end.committed), (10, DATA_SYNC4));
        let third = client.write(&handle, 2 * u64::from(UNIT), b"third", DATA_SYNC4).await.unwrap();
        assert_eq!(third.count, 5);
        assert_eq!(client.read(&handle, 0, 1000).await.unwrap().data, [minor as u8; 1000][..]);
        let read = client.read(&handle, u64::from(UNIT) - 10, 10).await.unwrap();
        assert_eq!((&read.data[..], read.eof), (&[3; 10][..], false));
        let read = client.read(&handle, 2 * u64::from(UNIT), 5).await.unwrap();
        assert_eq!((&read.data[..], read.eof), (&b"third"[..], false));
        // At the end of the object, the file may end or have a hole. Only the mgr knows which, and no mgr is connected,
        // so the iod refuses a READ that extends beyond the object.
        for behind in [0, 5, 1000] {
            let read = client.read(&handle, 2 * u64::from(UNIT) + behind, 100).await;
            assert_eq!(read.unwrap_err(), NFS4ERR_PNFS_IO_HOLE);
        }
    }
    assert_eq!((server.iod.counter("nfs.writes"), server.iod.counter("nfs.reads")), (12, 18));
    assert_eq!((server.iod.counter("nfs.write_bytes"), server.iod.counter("nfs.clients")), (2 * 1015, 1));
    assert_eq!(server.iod.client().size(OBJECT.file.0).unwrap().size, u64::from(UNIT) + 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_behind_the_object_use_the_file_length_of_the_mgr() {
    let server = Server::new().await;
    let mut client = server.client(2).await;
    client.introduce().await;
    let handle = handle(1, Rights::READ | Rights::WRITE);
    client.write(&handle, 0, &[7; 100], DATA_SYNC4).await.unwrap();
    let (length, told) = watch::channel(Some(None));
    let mgr = mgr(&server, move || *told.borrow());
    // The mgr does not know the file length, so the iod refuses READs that reach beyond the object. The client must
    // read through the mgr.
    for offset in [0, 100, 5000] {
        assert_eq!(client.read(&handle, offset, 4096).await.unwrap_err(), NFS4ERR_PNFS_IO_HOLE);
    }
    // A case is a file length and several READs of 4096 bytes. Each READ has its offset and the expected reply: the
    // number of stored bytes, the number of zeros, and the EOF flag.
    let cases = [
        // In the first of these cases, the file ends with the object. In the second case, the file continues with a
        // hole beyond the READ. In the third case, the file ends inside the hole.
        (100, [(0, 100, 0, true), (60, 40, 0, true), (100, 0, 0, true), (5000, 0, 0, true)]),
        (
            5 * u64::from(UNIT),
            [(0, 100, 3996, false), (99, 1, 4095, false), (100, 0, 4096, false), (5000, 0, 4096, false)],
        ),
        (5001, [(0, 100, 3996, false), (99, 1, 4095, false), (905, 0, 4096, true), (5000, 0, 1, true)]),
        // The file was truncated to 30 bytes, but the mgr has not truncated the object of 100 bytes yet.
        (30, [(0, 30, 0, true), (29, 1, 0, true), (30, 0, 0, true), (99, 0, 0, true)]),
    ];
    for (is, reads) in cases {
        length.send(Some(Some(long(is)))).unwrap();
        // Repeat this READ until it succeeds, because it fails until the iod has received the new file length.
        while client.read(&handle, 5000, 1).await.is_err() {}
        for (offset, stored, zeros, eof) in reads {
            let read = client.read(&handle, offset, 4096).await.unwrap();
            let right = [vec![7; stored], vec![0; zeros]].concat();
            assert_eq!((&read.data[..], read.eof), (&right[..], eof), "{offset} of {is}");
        }
    }
    // An object that is shorter than `least`, the object size that the mgr requires, has lost bytes. The client must
    // send the READ to the mgr, which reports the loss.
    let length_of = |least| length.send(Some(Some(FileLength { file: 5001, least }))).unwrap();
    length_of(101);
    while client.read(&handle, 5000, 1).await.is_ok() {}
    assert_eq!(client.read(&handle, 60, 4096).await.unwrap_err(), NFS4ERR_PNFS_IO_HOLE);
    length_of(100);
    while client.read(&handle, 5000, 1).await.is_err() {}
    assert_eq!(client.read(&handle, 60, 41).await.unwrap().data[..], [&[7; 40][..], &[0]].concat());
    // The iod serves a READ within the object without a query to the mgr.
    let whole = client.read(&handle, 0, 100).await.unwrap();
    assert_eq!((whole.data.len(), whole.eof), (100, false));
    // When the mgr disconnects, the READ that waits for the mgr's reply fails, and the client has to read from the
    // mgr. READs after the disconnect fail at once.
    length.send(None).unwrap();
    for _ in 0..2 {
        assert_eq!(client.read(&handle, 0, 4096).await.unwrap_err(), NFS4ERR_PNFS_IO_HOLE);
    }
    assert!(mgr.join().unwrap() >= 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_written_during_a_length_query_are_read() {
    for times in [2, 1000] {
        let server = Server::new().await;
        let mut client = server.client(1).await;
        client.introduce().await;
        let handle = handle(1, Rights::READ | Rights::WRITE);
        client.write(&handle, 0, &[7; 100], DATA_SYNC4).await.unwrap();
        let (served, mut written) = (server.iod.running().volume().clone(), 0);
        let mgr = mgr(&server, move || {
            if written < times {
                served.write_object(OBJECT, Generation(1), 100 + written, &[9], false).unwrap();
                written += 1;
            }
            (times < 1000 || written < 100).then_some(Some(long(u64::from(UNIT) * 2)))
        });
        if times == 2 {
            let read = loop {
                if let Ok(read) = client.read(&handle, 0, 200).await {
                    break read;
                }
            };
            assert_eq!((&read.data[..], read.eof), (&[&[7; 100][..], &[9; 2], &[0; 98]].concat()[..], false));
            continue;
        }
        // If writes change the object during every query to the mgr, the iod gives up and refuses the READ.
        while !mgr.is_finished() {
            assert_eq!(client.read(&handle, 0, 1000).await.unwrap_err(), NFS4ERR_PNFS_IO_HOLE);
        }
        assert_eq!(mgr.join().unwrap(), 99);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_valid_handle_are_refused() {
    let server = Server::new().await;
    let mut client = server.client(2).await;
    client.introduce().await;
    let good = handle(1, Rights::READ | Rights::WRITE);
    client.write(&good, 0, b"text", DATA_SYNC4).await.unwrap();
    for bit in 0..good.len() * 8 {
        let mut bad = good.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(client.read(&bad.into(), 0, 4).await, Err(NFS4ERR_BADHANDLE), "bit {bit}");
    }
    for len in [0, 1, good.len() - 1] {
        assert_eq!(client.read(&good.slice(..len), 0, 4).await, Err(NFS4ERR_BADHANDLE), "{len} bytes");
    }
    let foreign = |key: [u8; 32], fsid: [u8; 16], iod: [u8; 16]| {
        let (striping, holder) =
            (Striping { unit: UNIT, count: 2, index: 0 }, Holder { grant: 1, session: 1 << 32, expires: now() + 1000 });
        let key = Key::new(key).of_iod(types::IodId(iod));
        DataHandle::sign(&key, Fsid(fsid), (OBJECT, Generation(1)), Rights::READ, striping, holder).to_bytes()
    };
    assert_eq!(client.read(&foreign([3; 32], FSID.0, cluster::IOD.0), 0, 4).await.unwrap().data, b"text"[..]);
    assert_eq!(client.read(&foreign([1; 32], FSID.0, cluster::IOD.0), 0, 4).await, Err(NFS4ERR_BADHANDLE));
    assert_eq!(client.read(&foreign([3; 32], [6; 16], cluster::IOD.0), 0, 4).await, Err(NFS4ERR_BADHANDLE));
    assert_eq!(client.read(&foreign([3; 32], FSID.0, [6; 16]), 0, 4).await, Err(NFS4ERR_BADHANDLE), "of another iod");
    // The iod refuses an expired handle with an error that makes the client request a new layout from the mgr.
    assert_eq!(client.read(&sign(&key(), 1, Rights::READ, now()), 0, 4).await, Err(NFS4ERR_PNFS_NO_LAYOUT));
    // A handle with only the READ right allows no WRITE and no COMMIT, and a handle with only WRITE allows no READ.
    let reader = handle(1, Rights::READ);
    assert_eq!(client.read(&reader, 0, 4).await.unwrap().data, b"text"[..]);
    assert_eq!(client.write(&reader, 0, b"x", UNSTABLE4).await, Err(NFS4ERR_PNFS_NO_LAYOUT));
    assert_eq!(client.commit(&reader).await, Err(NFS4ERR_PNFS_NO_LAYOUT));
    assert_eq!(client.read(&handle(1, Rights::WRITE), 0, 4).await, Err(NFS4ERR_PNFS_NO_LAYOUT));
    // The iod refuses handles of a fenced generation and accepts handles of the new generation.
    server.iod.client().fence(OBJECT.file.0, 2).unwrap();
    assert_eq!(client.write(&good, 0, b"late", UNSTABLE4).await, Err(NFS4ERR_PNFS_NO_LAYOUT));
    assert_eq!(client.read(&good, 0, 4).await, Err(NFS4ERR_PNFS_NO_LAYOUT));
    assert_eq!(client.read(&handle(2, Rights::READ), 0, 4).await.unwrap().data, b"text"[..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_beyond_those_of_a_data_server_are_refused() {
    let server = Server::new().await;
    let mut client = server.client(1).await;
    client.introduce().await;
    let handle = handle(1, Rights::READ | Rights::WRITE);
    for other in [[0; 12], [0xff; 12]] {
        for seqid in [0, 1, u32::MAX] {
            let args = READ4args { stateid: stateid4 { seqid, other }, offset: 0, count: 1 };
            let read = client.on(&handle, nfs_argop4::OP_READ(args)).await;
            assert_eq!(read.unwrap_err(), NFS4ERR_BAD_STATEID, "{seqid} {other:?}");
        }
    }
    let getattr = nfs_argop4::OP_GETATTR(GETATTR4args { attr_request: vec![2] });
    let remove = nfs_argop4::OP_REMOVE(REMOVE4args { target: Bytes::from_static(b"x") });
    for op in [getattr, remove, nfs_argop4::OP_GETFH, nfs_argop4::OP_SAVEFH] {
        assert_eq!(client.on(&handle, op).await.unwrap_err(), NFS4ERR_NOTSUPP);
    }
    assert_eq!(client.ask(vec![nfs_argop4::OP_PUTROOTFH]).await.status, NFS4ERR_NOTSUPP);
    for minor in [0, 3] {
        let stranger = server.client(minor).await;
        assert_eq!(stranger.send(vec![nfs_argop4::OP_PUTROOTFH]).await.status, NFS4ERR_MINOR_VERS_MISMATCH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_ends_the_session_and_changes_the_verifier() {
    let mut server = Server::new().await;
    let handle = handle(1, Rights::READ | Rights::WRITE);
    let mut client = server.client(1).await;
    let before = client.introduce().await;
    let written = client.write(&handle, 0, b"text", UNSTABLE4).await.unwrap();
    server.stop_data_server().await;
    server.iod.restart();
    server.start().await;
    let session = client.session;
    let mut client = server.client(1).await;
    client.session = session;
    let lost = client.ask(vec![]).await;
    assert_eq!(lost.status, NFS4ERR_BADSESSION);
    client.sequence = 0;
    let after = client.introduce().await;
    assert_eq!((after.eir_server_owner, after.eir_server_scope), (before.eir_server_owner, before.eir_server_scope));
    assert_ne!(client.commit(&handle).await.unwrap(), written.writeverf);
}
