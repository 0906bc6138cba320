//! Tests of short-circuit reads: they return the same bytes as reads that the client sends to the iods.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::{CreateOptions, File, Mount, OpenFlags, Options, Origin, Settings};
use iod::{Features, Peer};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::time::Duration;
use types::{FileId, Generation, ObjectId};
use wire::native::*;
use wire::rpc::{Auth, CallHeader, decode_message};
use xdr::{Reader, Writer, Xdr};

const BLOCK: usize = 4096;
/// The owner and the incarnation that the tests send in HELLO on their own connections to iods.
const ORIGIN: wire::native::Origin = wire::native::Origin { owner: [1; 16], incarnation: 0 };

/// Returns options without read-ahead, so that each read is either sent to an iod or served from a lent file.
fn plain() -> Options {
    Options { policy: Settings::parse(Origin::Mount, "read_ahead=0").unwrap(), ..options() }
}

fn no_short_circuit() -> Options {
    Options { short_circuit: false, ..plain() }
}

/// Returns test data: each byte depends on its position and on `seed`.
fn fill(seed: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| (seed.wrapping_mul(31).wrapping_add(i * 7 + i / 251)) as u8).collect::<Vec<_>>().into()
}

async fn create(mount: &Mount, name: &str, data: Bytes) -> File {
    let file = mount.create(&mount.root(), name.as_bytes(), CreateOptions::default()).await.unwrap();
    file.write_at(0, data).await.unwrap();
    file.fsync().await.unwrap();
    file
}

async fn open(mount: &Mount, name: &str) -> File {
    let (node, _) = mount.lookup(&mount.root(), name.as_bytes()).await.unwrap();
    mount.open(&node, OpenFlags::READ).await.unwrap()
}

async fn read(file: &File, offset: u64, len: usize) -> Vec<u8> {
    file.read_at(offset, len).await.unwrap().to_vec()
}

/// Waits until `done` returns true. Panics after 60 seconds.
async fn soon(mut done: impl AsyncFnMut() -> bool) {
    let asked = async {
        while !done().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked).await.expect("the request did not arrive");
}

/// Repeats a read of this range until the client serves the read from a lent file.
async fn borrow(mount: &Mount, file: &File, offset: u64, len: usize) {
    let before = mount.counters().short_circuit_reads;
    soon(async || {
        read(file, offset, len).await;
        mount.counters().short_circuit_reads > before
    })
    .await;
}

/// Returns the number of lent files of this iod that are open in this process: object files with a read-only
/// descriptor.
fn lent_files(cluster: &Cluster, iod: usize) -> usize {
    let store = cluster.store(iod).canonicalize().unwrap();
    let of_store = |fd: &std::ffi::OsStr| {
        let link = std::fs::read_link(std::path::Path::new("/proc/self/fd").join(fd)).unwrap_or_default();
        let info = std::fs::read_to_string(std::path::Path::new("/proc/self/fdinfo").join(fd)).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim).unwrap_or("1");
        link.as_os_str().as_bytes().starts_with(store.join("objects").as_os_str().as_bytes()) && flags.ends_with('0')
    };
    std::fs::read_dir("/proc/self/fd").unwrap().filter(|fd| of_store(&fd.as_ref().unwrap().file_name())).count()
}

/// Sends to an iod, in the name of the mgr, a request that the iod accepts only from the mgr.
fn as_mgr(
    cluster: &Cluster,
    iod: usize,
    procedure: Procedure,
    args: impl FnOnce(Capability) -> xdr::Segments,
    object: FileId,
) {
    let fsid = cluster.file.fsid;
    let key = cluster.file.key.of_iod(cluster.iods[iod].as_ref().unwrap().iod());
    let mut peer = Peer::new(cluster.iods[iod].as_ref().unwrap().daemon());
    let mut call = |procedure: Procedure, args: xdr::Segments| {
        let mut out = Writer::new();
        let (procedure, cred, verf) = (procedure as u32, Auth::None, Auth::None);
        CallHeader { xid: 1, program: PROGRAM, version: VERSION, procedure, cred, verf }.encode(&mut out);
        let mut message = out.finish();
        message.extend(args);
        let mut reply = Reader::new(peer.record(message.to_bytes()).unwrap());
        decode_message(&mut reply).unwrap();
        assert_eq!(reply.u32().unwrap(), 0, "the iod refused");
        reply
    };
    // Use a session id with the highest possible epoch, because the iod refuses sessions of old epochs.
    let session = u64::from(u32::MAX) << 32;
    let ticket = key.ticket(fsid, session, u64::MAX);
    let hello = HelloArgs::new(&ticket, [8; 32], false);
    let reply = HelloReply::decode(&mut call(Procedure::Hello, encode(&hello))).unwrap();
    call(Procedure::Prove, encode(&ticket.check(&hello, &reply, ORIGIN).unwrap()));
    let cap = key.sign_capability(fsid, ObjectId::stream_0(object), Generation(1000), Rights::ADMIN, u64::MAX, session);
    call(procedure, args(cap));
}

fn encode(args: &impl Xdr) -> xdr::Segments {
    let mut out = Writer::new();
    args.encode(&mut out);
    out.finish()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_circuit_reads_see_earlier_writes_of_other_clients() {
    let cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(plain()).await, cluster.mount(plain()).await);
    let len = 3 << 20;
    let file = create(&one, "f", vec![0; len].into()).await;
    let reader = open(&other, "f").await;
    borrow(&other, &reader, 0, BLOCK).await;
    // The sequence numbers of the last write that has returned (`done`) and of the last write that has begun (`begun`),
    // and whether the writer has finished (`over`).
    let (done, begun, over) = (AtomicU8::new(0), AtomicU8::new(0), AtomicBool::new(false));
    let writing = async {
        for round in 1..=60 {
            begun.store(round, SeqCst);
            file.write_at(5, vec![round; len - 9].into()).await.unwrap();
            file.push().await.unwrap();
            file.fsync().await.unwrap();
            done.store(round, SeqCst);
        }
        over.store(true, SeqCst);
    };
    let reading = async {
        let mut at = 5;
        while !over.load(SeqCst) {
            at = 5 + (at * 31 + 4099) % (len as u64 - 9 - BLOCK as u64);
            let least = done.load(SeqCst);
            let got = read(&reader, at, BLOCK).await;
            let most = begun.load(SeqCst);
            assert_eq!(got.len(), BLOCK);
            assert!(got.iter().all(|byte| (least..=most).contains(byte)), "{least} to {most} at {at}");
            tokio::task::yield_now().await;
        }
    };
    let before = other.counters();
    tokio::join!(writing, reading);
    let after = other.counters();
    assert!(
        after.short_circuit_reads > before.short_circuit_reads && after.read_short_circuit > before.read_short_circuit
    );
    assert!(after.read_direct - before.read_direct >= after.read_short_circuit - before.read_short_circuit);
    assert!(read(&reader, 0, len).await[5..len - 4] == vec![60; len - 9]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_circuit_reads_of_any_range_return_the_right_bytes() {
    let cluster = Cluster::start(3).await;
    let mount = cluster.mount(plain()).await;
    let data = fill(1, (3 << 20) + 777);
    let file = create(&mount, "f", data.clone()).await;
    for n in 0..600u64 {
        let at = n * 7_919_111 % data.len() as u64;
        let len = [1, 511, BLOCK, 47_000, 200_000, 1 << 20][n as usize % 6];
        let end = data.len().min(at as usize + len);
        assert!(read(&file, at, len).await == data[at as usize..end], "{len} from {at}");
    }
    let counters = mount.counters();
    assert!(counters.short_circuit_reads > 300, "{counters:?}");
    assert_eq!(counters.rpc("LEND"), 3, "one request for each object");
    // Make two holes in the file: write behind the end of the file, and punch a hole.
    file.write_at(9 << 20, Bytes::from_static(b"far")).await.unwrap();
    file.punch(types::ByteRange { offset: 1 << 20, len: 1 << 20 }).await.unwrap();
    let mut model = data.to_vec();
    model.resize(9 << 20, 0);
    model[1 << 20..2 << 20].fill(0);
    model.extend(b"far");
    for n in 0..60u64 {
        let at = n * 7_919_111 % model.len() as u64;
        let end = model.len().min(at as usize + 300_000);
        assert!(read(&file, at, 300_000).await == model[at as usize..end], "from {at}");
    }
    // A read of a hole must report the hole instead of zeros, because programs that copy files skip holes.
    let far = file.read_at(4 << 20, 1 << 20).await.unwrap();
    assert_eq!(far.segments, [client::Segment::Hole(1 << 20)]);
    file.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_truncated_by_another_client_read_as_zeros_after_extension() {
    let cluster = Cluster::start(1).await;
    let (one, other) = (cluster.mount(plain()).await, cluster.mount(plain()).await);
    let data = fill(2, 100_000);
    let file = create(&one, "f", data.clone()).await;
    let reader = open(&other, "f").await;
    for round in 0..5 {
        borrow(&other, &reader, 0, BLOCK).await;
        file.set_len(50_000).await.unwrap();
        assert_eq!(read(&reader, 49_990, 100).await, data[49_990..50_000], "{round}");
        file.set_len(100_000).await.unwrap();
        let got = read(&reader, 49_990, 100).await;
        assert_eq!(got, [&data[49_990..50_000], &[0; 90]].concat(), "{round}");
        file.write_at(0, data.clone()).await.unwrap();
        file.fsync().await.unwrap();
        assert!(read(&reader, 0, 100_000).await == data, "{round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_ends_short_circuit_reads() {
    let cluster = Cluster::start(1).await;
    let quick = |options: Options| Options { retry_timeout: Duration::from_secs(2), ..options };
    let (one, asks) = (cluster.mount(quick(plain())).await, cluster.mount(quick(no_short_circuit())).await);
    let file = create(&one, "f", fill(3, 100_000)).await;
    let (lent, asking) = (open(&one, "f").await, open(&asks, "f").await);
    borrow(&one, &lent, 0, BLOCK).await;
    read(&asking, 0, BLOCK).await;
    assert_eq!(lent_files(&cluster, 0), 1);
    let object = file.node().id;
    as_mgr(&cluster, 0, Procedure::Fence, |cap| encode(&FenceArgs { cap, generation: Generation(1000) }), object);
    let before = one.counters().short_circuit_reads;
    let (mine, theirs) = tokio::join!(lent.read_at(0, BLOCK), asking.read_at(0, BLOCK));
    // The test has fenced the object on the iod without the mgr's knowledge. So the mgr grants no capability for the
    // new generation, and both clients get the same error.
    assert_eq!(mine.unwrap_err().as_status(), theirs.unwrap_err().as_status());
    assert_eq!(one.counters().short_circuit_reads, before);
    assert_eq!(lent_files(&cluster, 0), 0);
    assert_eq!(asks.counters().rpc("LEND"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_created_again_is_not_read_from_its_old_file() {
    let cluster = Cluster::start(1).await;
    let (one, other) = (cluster.mount(plain()).await, cluster.mount(plain()).await);
    let file = create(&one, "f", fill(4, 100_000)).await;
    let reader = open(&other, "f").await;
    borrow(&other, &reader, 0, BLOCK).await;
    as_mgr(&cluster, 0, Procedure::Remove, |cap| encode(&ObjectArgs { cap }), file.node().id);
    let lent = other.counters().short_circuit_reads;
    // If the client has no loan, it sends the read to the iod, which returns zeros for an object that does not exist.
    assert_eq!(read(&reader, 0, BLOCK).await, [0; BLOCK]);
    file.write_at(0, fill(5, 100_000)).await.unwrap();
    file.fsync().await.unwrap();
    assert_eq!(read(&reader, 0, BLOCK).await, fill(5, BLOCK));
    assert_eq!(other.counters().short_circuit_reads, lent);
    borrow(&other, &reader, 0, BLOCK).await;
    assert!(read(&reader, 0, 100_000).await == fill(5, 100_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_circuit_reads_end_with_the_iod_and_resume_after_its_restart() {
    let mut cluster = Cluster::start(1).await;
    let short = Duration::from_secs(1);
    let mount = cluster.mount(Options { connect_timeout: short, retry_timeout: short, ..plain() }).await;
    let file = create(&mount, "f", fill(6, 100_000)).await;
    borrow(&mount, &file, 0, BLOCK).await;
    cluster.stop_iod(0);
    // The client notices only after a moment that the iod has closed the connection. So repeat the read until it fails.
    soon(async || file.read_at(0, BLOCK).await.is_err()).await;
    let lent = mount.counters().short_circuit_reads;
    assert_eq!(lent_files(&cluster, 0), 0, "a file of a dead iod is still open");
    file.read_at(0, BLOCK).await.unwrap_err();
    assert_eq!(mount.counters().short_circuit_reads, lent);
    cluster.start_iod(0);
    soon(async || file.read_at(0, BLOCK).await.is_ok()).await;
    borrow(&mount, &file, 0, BLOCK).await;
    assert!(read(&file, 0, 100_000).await == fill(6, 100_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lent_files_are_closed_with_the_layout_and_with_the_file() {
    let cluster = Cluster::start(1).await;
    let (one, other) = (cluster.mount(plain()).await, cluster.mount(plain()).await);
    let file = create(&one, "f", fill(7, 100_000)).await;
    let reader = open(&other, "f").await;
    borrow(&other, &reader, 0, BLOCK).await;
    // The iod runs in the same process as the client, and may still have its own descriptor of the lent file. Wait
    // until only the client has a descriptor.
    soon(async || lent_files(&cluster, 0) == 1).await;
    // Before a truncate, the mgr recalls the layouts of other clients. A client that returns its layout closes its
    // loans of the objects.
    file.set_len(90_000).await.unwrap();
    assert_eq!(lent_files(&cluster, 0), 0);
    assert!(read(&reader, 0, 100_000).await == fill(7, 90_000));
    borrow(&other, &reader, 0, BLOCK).await;
    reader.close().await.unwrap();
    assert_eq!(lent_files(&cluster, 0), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lend_is_requested_at_most_once_where_an_iod_does_not_lend() {
    let summed = Features { block_checksums: true };
    let features = |features, short_circuit| async move {
        Cluster::start_with(1, |address| address, features, |config| config.short_circuit = short_circuit).await
    };
    for (cluster, asked) in [(features(summed, true).await, 1), (features(Features::default(), false).await, 1)] {
        let mount = cluster.mount(plain()).await;
        for name in ["f", "g"] {
            let file = create(&mount, name, fill(8, 100_000)).await;
            for _ in 0..20 {
                assert_eq!(read(&file, 10, BLOCK).await, fill(8, 100_000)[10..10 + BLOCK]);
            }
            soon(async || mount.counters().rpc("LEND") >= asked).await;
            file.close().await.unwrap();
        }
        let counters = mount.counters();
        assert_eq!((counters.rpc("LEND"), counters.short_circuit_reads), (asked, 0));
    }
    let far = Cluster::start_behind(1, false, |address| address).await;
    let mount = far.mount(plain()).await;
    let file = create(&mount, "f", fill(9, 100_000)).await;
    for _ in 0..20 {
        read(&file, 0, BLOCK).await;
    }
    assert_eq!(mount.counters().rpc("LEND"), 0, "over TCP the client requests no loan");
    file.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_socket_of_another_user_is_not_used() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can give a socket away: not tried");
        return;
    }
    let cluster = Cluster::start(1).await;
    let (socket, content) = (cluster.store(0).join("iod.sock"), fill(1, 1 << 20));
    std::os::unix::fs::chown(&socket, Some(4242), None).unwrap();
    let mount = cluster.mount(plain()).await;
    create(&mount, "file", content.clone()).await.close().await.unwrap();
    let file = open(&mount, "file").await;
    for _ in 0..64 {
        assert!(read(&file, 0, 1 << 20).await == content, "a read over TCP returned wrong bytes");
    }
    assert_eq!(mount.counters().short_circuit_reads, 0);
    file.close().await.unwrap();
    // If root owns the Unix socket of the iod, the client trusts the iod and makes short-circuit reads.
    std::os::unix::fs::chown(&socket, Some(0), None).unwrap();
    let mount = cluster.mount(plain()).await;
    let file = open(&mount, "file").await;
    borrow(&mount, &file, 0, 1 << 20).await;
    file.close().await.unwrap();
}
