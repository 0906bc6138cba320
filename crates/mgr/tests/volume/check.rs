//! Checks of a running cluster (`weir fsck`): the tests damage objects and records of the mgr, and the check finds and
//! repairs the damage.

use crate::cluster::{Cluster, create, ctx, pattern, read, remove, set_size, until, write};
use bytes::Bytes;
use layout::kinds::native::{KIND, Record};
use meta::engine::{Batch, Engine, Outcome, Write};
use meta::schema::{self, Core, Record as _};
use meta::{Embedded, Layout, Namespace, merge};
use net::rpc::{Connection, Limits, NoService};
use nfs::fs::{FileSystem, Stability};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use types::{FileId, Generation, ObjectId, Renaming, Status};
use wire::admin::{self, CheckArgs, CheckReply, Finding, Mended};
use wire::native::{
    Capability, FenceArgs, HelloArgs, HelloReply, IodKey, Nothing, Origin, PROGRAM, Procedure, ProveReply, Rights,
    TruncateArgs, TruncateReply, VERSION, WriteArgs, WriteExtent, WriteHead, WriteReply, crc32c, decode_reply,
};
use wire::rpc::{Auth, AuthSys};
use xdr::{Segments, Writer, Xdr};

const LONG: Duration = Duration::from_secs(60);
/// The owner id and the incarnation number that the test's PROVE requests to iods contain.
const ORIGIN: Origin = Origin { owner: [1; 16], incarnation: 0 };

/// A connection to an iod with the rights of the mgr, which no client gets.
pub struct Native<'a> {
    cluster: &'a Cluster,
    key: IodKey,
    connection: Connection,
}

impl<'a> Native<'a> {
    pub async fn connect(cluster: &'a Cluster, iod: usize) -> Self {
        let address = cluster.config.iods[iod].parse().unwrap();
        let (limits, counters) = (Limits::default(), net::Counters::default());
        let connection = Connection::connect(&address, Arc::new(NoService), limits, counters, LONG).await.unwrap();
        let key = cluster.file.key.of_iod(cluster.iods[iod].as_ref().unwrap().iod());
        let native = Native { cluster, key, connection };
        let ticket = native.key.ticket(cluster.file.fsid, 0, native.expires());
        let hello = HelloArgs::new(&ticket, [8; 32], true);
        let reply: HelloReply = native.call(Procedure::Hello, &hello).await.unwrap();
        let _: ProveReply =
            native.call(Procedure::Prove, &ticket.check(&hello, &reply, ORIGIN).unwrap()).await.unwrap();
        native
    }

    fn expires(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 1000
    }

    fn cap(&self, object: FileId, generation: u32) -> Capability {
        let rights = Rights::READ | Rights::WRITE | Rights::ADMIN;
        self.key.sign_capability(
            self.cluster.file.fsid,
            ObjectId::stream_0(object),
            Generation(generation),
            rights,
            self.expires(),
            0,
        )
    }

    async fn call<R: Xdr>(&self, procedure: Procedure, arguments: &impl Xdr) -> Result<R, Status> {
        let mut out = Writer::new();
        arguments.encode(&mut out);
        let call = self.connection.call(PROGRAM, VERSION, procedure as u32, &Auth::None, out.finish(), LONG);
        decode_reply(&mut call.await.unwrap().body).unwrap().map_err(|failure| failure.status)
    }

    pub async fn write(&self, object: FileId, generation: u32, offset: u64, data: &[u8]) -> Result<(), Status> {
        let extents = vec![WriteExtent { offset, len: data.len() as u32, crc32c: crc32c(data) }];
        let head = WriteHead { cap: self.cap(object, generation), stable: true, least: 0, extents };
        let data = Segments::from(Bytes::copy_from_slice(data));
        self.call::<WriteReply>(Procedure::Write, &WriteArgs { head, data }).await.map(drop)
    }

    /// Creates an object of a few bytes on the iod behind this connection.
    pub async fn make(&self, object: ObjectId) {
        let Capability { fsid, generation, rights, expires, session, .. } = self.cap(object.file, 1);
        let cap = self.key.sign_capability(fsid, object, generation, rights, expires, session);
        self.call::<TruncateReply>(Procedure::Truncate, &TruncateArgs { cap, size: 5 }).await.unwrap();
    }

    async fn fence(&self, object: FileId, generation: u32) {
        let cap = self.cap(object, generation);
        let arguments = FenceArgs { cap, generation: Generation(generation) };
        self.call::<Nothing>(Procedure::Fence, &arguments).await.unwrap();
    }
}

/// Returns the path of the file that stores an object of stream 0.
pub fn object(cluster: &Cluster, iod: usize, file: FileId) -> PathBuf {
    let (high, low) = (file.0 >> 16 & 0xff, file.0 >> 8 & 0xff);
    cluster.dir.path().join(format!("iod{iod}/objects/{high:02x}/{low:02x}/{:016x}", file.0))
}

/// Stops the mgr, changes its metadata store, and starts the mgr again.
pub async fn offline(cluster: &mut Cluster, change: impl AsyncFnOnce(&Namespace<Arc<Embedded>>, &Arc<Embedded>)) {
    cluster.mgr.take().unwrap().stop().await;
    let store = Arc::new(Embedded::open(&cluster.config.dir.join("meta.redb"), merge).unwrap());
    let namespace = Namespace::open(store.clone()).unwrap();
    change(&namespace, &store).await;
    drop((namespace, store));
    cluster.start_mgr().await;
}

fn plant(store: &Embedded, key: Vec<u8>, value: Bytes) {
    let outcome = store.submit(Batch { writes: vec![(key, Write::Put(value))], ..Batch::default() }).wait();
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
}

pub async fn check(cluster: &Cluster, repair: bool) -> Vec<Finding> {
    let reply = cluster.mgr().check(repair).await;
    assert_eq!((reply.refused, reply.broken_off), (None, None));
    reply.findings
}

pub fn codes(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| &finding.code[..]).collect()
}

/// Runs two checks, each of which must find exactly one problem: the problem `code` of the file `file`. Then runs a
/// repair. If the problem is `repairable`, the next check must not find it; otherwise the next check must find it
/// again.
async fn found(cluster: &Cluster, code: &str, file: FileId, repairable: bool) -> Finding {
    let finding = check(cluster, false).await;
    assert_eq!(codes(&finding), [code], "{finding:?}");
    assert_eq!(finding[0].inode, Some(file.0));
    assert_eq!(check(cluster, false).await, finding, "a check without repair has changed something");
    let repaired = check(cluster, true).await;
    assert_eq!(codes(&repaired), [code], "{repaired:?}");
    let (mended, left) = if repairable { (Mended::Yes, vec![]) } else { (Mended::Failed, vec![code]) };
    assert_eq!(repaired[0].mended, mended, "{repaired:?}");
    assert_eq!(codes(&check(cluster, true).await), left);
    finding.into_iter().next().unwrap()
}

/// Returns a cluster of two iods, with a closed file of three stripe units and no pending intents.
async fn settled() -> (Cluster, FileId) {
    let cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(192, 1), Stability::FileSync).await;
    files.closed(&ctx(1), file, true).await.unwrap();
    wait_settled(&cluster).await;
    (cluster, file)
}

pub async fn wait_settled(cluster: &Cluster) {
    let work = || cluster.mgr().status().group("work").unwrap().get_number("intents_written");
    until("nothing is noted", || work() == 0).await;
}

/// Returns two positions in the cluster: that of the iod with the first stripe unit of a file, and that of the other
/// iod.
async fn places(cluster: &Cluster, file: FileId) -> (usize, usize) {
    let first = if object(cluster, 0, file).metadata().unwrap().len() == 4096 + 128 { 0 } else { 1 };
    (first, 1 - first)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_of_a_busy_cluster_finds_nothing() {
    let cluster = Cluster::new(3, "64").await;
    let work = |client: u64| {
        let files = cluster.files();
        tokio::spawn(async move {
            for round in 0..25u64 {
                let name = format!("{client}-{round}");
                let file = create(&files, &name).await;
                let len = 1 + (client * 97 + round * 61) as usize % 900;
                write(&files, file, round * 7, &pattern(len, 1), Stability::Unstable).await;
                set_size(&files, file, round * 31 % 500).await;
                write(&files, file, 3, &pattern(50, 2), Stability::FileSync).await;
                let other = Bytes::from(format!("{client}-x"));
                let (from, to) = ((FileId::ROOT, &Bytes::from(name)), (FileId::ROOT, &other));
                files.rename(&ctx(client), from, to, Renaming::Replace).await.unwrap();
                files.closed(&ctx(client), file, true).await.unwrap();
                if round % 2 == 0 {
                    let id = remove(&files, &format!("{client}-x")).await;
                    files.reap(&ctx(client), id).await.unwrap();
                }
            }
        })
    };
    let mut workers: Vec<_> = (1..5).map(work).collect();
    let mut rounds = 0;
    while rounds < 3 || workers.iter().any(|worker| !worker.is_finished()) {
        // A file that a rename replaced stays as an orphan until its last close, and no client closes it in this test.
        let found = check(&cluster, false).await;
        assert_eq!(found, [], "while clients work");
        rounds += 1;
    }
    for worker in &mut workers {
        worker.await.unwrap();
    }
    assert_eq!(check(&cluster, false).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_and_damaged_objects_are_reported() {
    let (mut cluster, file) = settled().await;
    let (first, second) = places(&cluster, file).await;
    // The object on the iod `first` has the first and the last stripe unit of the file.
    let path = object(&cluster, first, file);
    let good = std::fs::read(&path).unwrap();
    let again = async |cluster: &mut Cluster, content: Option<&[u8]>| {
        cluster.stop_iod(first);
        match content {
            Some(content) => std::fs::write(&path, content).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        until("the loss is noticed", || cluster.up() == 1).await;
        cluster.start_iod(first);
        cluster.wait_up(2).await;
    };
    again(&mut cluster, None).await;
    let lost = found(&cluster, "object-missing", file, false).await;
    assert_eq!((lost.range, &lost.paths[..]), (Some((0, 192)), &[Bytes::from_static(b"/f")][..]));
    assert!(lost.text.ends_with("128 bytes of the file, at 0 to 63, 128 to 191"), "{}", lost.text);
    again(&mut cluster, Some(&good[..4096 + 100])).await;
    found(&cluster, "object-short", file, false).await;
    let mut bad = good.clone();
    bad[20] ^= 1;
    again(&mut cluster, Some(&bad)).await;
    // Both the check of files and the check of objects report an object with a damaged header.
    let damaged = check(&cluster, false).await;
    assert_eq!(codes(&damaged), ["object-damaged"; 2]);
    again(&mut cluster, Some(&good)).await;
    assert_eq!(check(&cluster, false).await, []);
    cluster.stop_iod(second);
    // The object on the iod `second` does not hold the last byte of the file.
    std::fs::remove_file(object(&cluster, second, file)).unwrap();
    until("the loss is noticed", || cluster.up() == 1).await;
    let unreached = check(&cluster, false).await;
    assert_eq!(codes(&unreached), ["iod-unreachable"]);
    assert_eq!(unreached[0].severity, admin::Severity::Unchecked);
    cluster.start_iod(second);
    cluster.wait_up(2).await;
    let lost = found(&cluster, "object-missing", file, false).await;
    assert_eq!(lost.range, Some((64, 128)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_objects_that_are_known_to_be_without_a_file_are_removed() {
    let (cluster, file) = settled().await;
    let (first, _) = places(&cluster, file).await;
    let native = Native::connect(&cluster, first).await;
    // These objects without a file have inode numbers that the mgr has reserved for new files and has not used yet.
    let (gone, other) = (FileId(4000), FileId(4001));
    native.make(ObjectId::new(gone, 3)).await;
    found(&cluster, "object-stray", gone, true).await;
    native.make(ObjectId::new(file, 3)).await;
    found(&cluster, "object-replaced", file, false).await;
    let replaced = object(&cluster, first, file).with_file_name(format!("{:016x}-00000003", file.0));
    std::fs::remove_file(replaced).unwrap();
    let good = std::fs::read(object(&cluster, first, file)).unwrap();
    let mut newer = good.clone();
    newer[11] = 9;
    for (number, code, bytes) in [(gone, "object-foreign", good), (other, "object-newer", newer)] {
        let path = object(&cluster, first, number);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        found(&cluster, code, number, false).await;
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{code}");
        std::fs::remove_file(path).unwrap();
    }
    assert_eq!(check(&cluster, false).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_without_a_file_are_reported() {
    let (cluster, file) = settled().await;
    let files = cluster.files();
    let native = Native::connect(&cluster, 0).await;
    // This object without a file has an inode number that the mgr has reserved for new files and has not used yet.
    let gone = FileId(4000);
    native.write(gone, 0, 0, b"late").await.unwrap();
    let stray = found(&cluster, "object-stray", gone, true).await;
    assert!(stray.paths.is_empty() && stray.iod.is_some());
    assert!(!object(&cluster, 0, gone).exists());
    let never = FileId(1 << 40);
    native.write(never, 0, 0, b"never").await.unwrap();
    found(&cluster, "object-unknown", never, false).await;
    std::fs::remove_file(object(&cluster, 0, never)).unwrap();
    let dir = FileId::ROOT;
    native.write(dir, 0, 0, b"a directory has no bytes").await.unwrap();
    found(&cluster, "object-foreign", dir, false).await;
    assert!(read(&files, file, 0, 192).await.unwrap() == pattern(192, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_sizes_and_generations_are_repaired() {
    let (mut cluster, file) = settled().await;
    let (first, second) = places(&cluster, file).await;
    Native::connect(&cluster, first).await.write(file, 0, 128, b"more").await.unwrap();
    found(&cluster, "object-beyond", file, true).await;
    assert_eq!(cluster.files().getattr(&ctx(1), file).await.unwrap().size, 260);
    // The file has an unreported write, so bytes beyond its size are no problem: a client may still report them.
    write(&cluster.files(), file, 0, b"x", Stability::FileSync).await;
    Native::connect(&cluster, second).await.write(file, 0, 192, b"even more").await.unwrap();
    assert_eq!(check(&cluster, false).await, []);
    cluster.files().getattr(&ctx(1), file).await.unwrap();
    cluster.restart_mgr().await;
    wait_settled(&cluster).await;
    assert_eq!(cluster.files().getattr(&ctx(1), file).await.unwrap().size, 457);
    Native::connect(&cluster, first).await.fence(file, 3).await;
    found(&cluster, "generation-newer", file, true).await;
    // Raise the generation of the file in the store above the generation of its objects. The repair must fence the
    // objects with the new generation.
    offline(&mut cluster, async |namespace, _| {
        let now = Default::default();
        namespace.raise_generation(now, file, Generation(7)).await.unwrap();
    })
    .await;
    let older = check(&cluster, true).await;
    assert!(codes(&older).iter().all(|code| *code == "generation-older") && !older.is_empty(), "{older:?}");
    assert_eq!(check(&cluster, false).await, []);
    let old = Native::connect(&cluster, first).await.write(file, 6, 0, b"old").await;
    assert_eq!(old, Err(Status::Fenced));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_layouts_and_records_are_reported() {
    let (mut cluster, file) = settled().await;
    let native = |body: Bytes| Some(Layout { kind: KIND, body });
    let far = Record { distribution: Default::default(), stripe_unit: 64, mirrors: 1, stream: 0, iods: vec![0, 77] }
        .to_bytes();
    let cases = [
        ("layout-damaged", native(Bytes::from_static(b"junk"))),
        ("layout-damaged", Some(Layout { kind: 99, body: Bytes::new() })),
        ("layout-unknown-iod", native(far.to_vec().into())),
        ("layout-missing", None),
    ];
    let mut whole = Bytes::new();
    for (code, layout) in cases {
        offline(&mut cluster, async |_, store| {
            let value = store.view().unwrap().get(&schema::core_key(file)).unwrap().unwrap();
            let mut core = Core::from_value(value.clone()).unwrap();
            if whole.is_empty() {
                whole = value;
            }
            if let schema::Body::Regular { layout: present, .. } = &mut core.body {
                *present = layout.clone();
            }
            plant(store, schema::core_key(file), core.to_value());
        })
        .await;
        let findings = check(&cluster, true).await;
        let of_file = findings.iter().find(|finding| finding.code == code);
        let finding = of_file.unwrap_or_else(|| panic!("{code} in {findings:?}"));
        assert_eq!((finding.inode, finding.mended), (Some(file.0), Mended::Failed));
        // If the layout record of a file is unusable, the check of objects may also report the objects of the file
        // (`object-foreign`).
        assert!(findings.iter().all(|finding| [code, "object-foreign"].contains(&&finding.code[..])), "{findings:?}");
    }
    offline(&mut cluster, async |_, store| {
        plant(store, schema::core_key(file), whole);
        plant(store, schema::registry_key(b"client/12345678"), Bytes::from_static(b"junk"));
    })
    .await;
    let findings = check(&cluster, true).await;
    assert_eq!((codes(&findings), findings[0].mended), (vec!["registry-damaged"], Mended::Yes));
    assert_eq!(check(&cluster, false).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_faults_are_reported_with_paths_and_repaired() {
    let (mut cluster, file) = settled().await;
    offline(&mut cluster, async |_, store| {
        let value = store.view().unwrap().get(&schema::core_key(file)).unwrap().unwrap();
        let core = Core { names: 5, ..Core::from_value(value).unwrap() };
        plant(store, schema::core_key(file), core.to_value());
    })
    .await;
    let fault = found(&cluster, "link-count", file, true).await;
    assert_eq!(fault.paths, [Bytes::from_static(b"/f")]);
    offline(&mut cluster, async |_, store| plant(store, schema::tail_key(file), Bytes::from_static(b"junk"))).await;
    let fault = found(&cluster, "record-damaged", file, true).await;
    assert!(fault.text.starts_with("the record i "), "{fault:?}");
    // After the repair, the mgr measures the size of the file by querying the iods.
    wait_settled(&cluster).await;
    assert_eq!(cluster.files().getattr(&ctx(1), file).await.unwrap().size, 192);
    assert!(read(&cluster.files(), file, 0, 192).await.unwrap() == pattern(192, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_can_fetch_each_page_of_findings_again() {
    let cluster = Cluster::new(1, "64").await;
    let native = Native::connect(&cluster, 0).await;
    for i in 0..150 {
        native.write(FileId((1 << 40) + i), 0, 0, b"x").await.unwrap();
    }
    let address = &cluster.mgr().addresses()[0];
    let connect =
        || Connection::connect(address, Arc::new(NoService), Limits::default(), net::Counters::default(), LONG);
    let user = |uid| {
        let sys = AuthSys { stamp: 0, machine: Bytes::new(), uid, gid: uid, gids: vec![] };
        Auth::Sys(sys)
    };
    let ask = async |auth: &Auth, run, page| {
        // Use a new connection for each page of the report, as if the previous connection had broken.
        let connection = connect().await.unwrap();
        let args = CheckArgs { run, page, repair: false };
        let call = connection.call(admin::PROGRAM, 1, admin::CHECK, auth, args.to_bytes().into(), LONG);
        CheckReply::from_bytes(&call.await.unwrap().body.rest()).unwrap()
    };
    let root = user(0);
    assert!(ask(&user(4711), 0, 0).await.refused.unwrap().contains("owner"));
    assert!(ask(&Auth::None, 0, 0).await.refused.is_some());
    assert!(ask(&root, 99, 0).await.refused.unwrap().contains("begin again"));
    let (mut run, mut number, mut seen) = (0, 0, 0);
    loop {
        let page = ask(&root, run, number).await;
        assert_eq!((page.refused.clone(), page.page), (None, number));
        run = page.run;
        assert_eq!(ask(&root, run, number).await, page, "a page that did not arrive");
        assert!(page.findings.len() <= admin::FINDINGS_MAX);
        seen += page.findings.len();
        if page.end {
            assert!(page.counts.contains(&("objects".to_owned(), 150)), "{:?}", page.counts);
            break;
        }
        number += 1;
        assert!(ask(&root, run, number + 1).await.refused.is_some(), "a page too far");
    }
    assert_eq!(seen, 150);
    assert!(ask(&root, run, number + 1).await.refused.is_some());
}
