//! The conformance suite for stored kinds. It runs for the striped kind, and for a trivial kind that only tests have.
//!
//! The suite uses a cluster in this process, through the file system of the NFS server, and compares every reply with a
//! model. To test a new kind, add one line to `conforms!`.

#[expect(dead_code, reason = "the tests of the volume use the rest")]
#[path = "../../tests/volume/cluster.rs"]
mod cluster;
mod random;
mod whole;

use super::{Kinds, Known};
use crate::running::Mgr;
use crate::volume::Volume;
use bytes::Bytes;
use cluster::{Cluster, create, ctx, pattern, read, set_size, until, write};
use layout::Part;
use layout::gather::Run;
use layout::policy::StoredLayout;
use meta::{Embedded, FileInfo, Namespace, merge};
use nfs::fs::{FileSystem, Iomode, LayoutAsk, LayoutGone, Stability, XattrHow};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use types::{ByteRange, Cred, FileId, ObjectId, SetAttrs, Status};
use wire::admin::Mended;

/// Largest number of times that a test repeats a request while an iod reconnects, at intervals of 5 ms.
const TRIES: usize = 4000;

/// A stored kind under test, and the policy of its files.
struct Subject {
    kinds: fn() -> Kinds,
    iods: usize,
    width: u32,
    mirrors: u32,
    /// The policy setting `layout` of the root directory.
    layout: StoredLayout,
}

/// The stored kinds of this version, and before them the test kind `Whole`, so that new files are of this test kind.
fn with_whole() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.stored.insert(0, Box::new(whole::Whole));
    kinds
}

fn striped(width: u32, mirrors: u32) -> Subject {
    let layout = StoredLayout::Stripe;
    Subject { kinds: Kinds::default, iods: (width * mirrors) as usize, width, mirrors, layout }
}

fn log(width: u32) -> Subject {
    Subject { layout: StoredLayout::Log, ..striped(width, 1) }
}

/// The test kind `Whole`, on one of two iods.
fn whole() -> Subject {
    Subject { kinds: with_whole, iods: 2, width: 0, ..striped(1, 1) }
}

/// A cluster whose new files are of the stored kind under test.
struct Bench {
    cluster: Cluster,
    subject: Subject,
    /// The position of the stopped iod in the cluster; `None` if all iods run.
    down: Option<usize>,
}

impl Bench {
    async fn new(subject: Subject) -> Bench {
        let mut cluster = Cluster::stopped(subject.iods, "64").await;
        (cluster.config.stripe_count, cluster.config.mirrors) = (subject.width, subject.mirrors);
        let mut bench = Bench { cluster, subject, down: None };
        bench.start_mgr().await;
        let (name, value) = (Bytes::from(Part::Layout.xattr()), Bytes::from(bench.subject.layout.name()));
        let files = bench.cluster.files();
        files.setxattr(&ctx(1), FileId::ROOT, &name, value, XattrHow::Either).await.unwrap();
        bench
    }

    async fn start_mgr(&mut self) {
        let mgr = Mgr::start_with(&self.cluster.config, (self.subject.kinds)()).await.unwrap();
        self.cluster.mgr = Some(mgr);
    }

    async fn stop_mgr(&mut self) {
        self.cluster.mgr.take().unwrap().stop().await;
    }

    async fn restart_mgr(&mut self) {
        self.stop_mgr().await;
        self.start_mgr().await;
    }

    /// Stops the mgr, changes its store as if the mgr had died in the middle of an operation, and starts the mgr again.
    async fn crash(&mut self, change: impl AsyncFnOnce(&Namespace<Arc<Embedded>>)) {
        self.stop_mgr().await;
        let store = Arc::new(Embedded::open(&self.cluster.config.dir.join("meta.redb"), merge).unwrap());
        let namespace = Namespace::open(store.clone()).unwrap();
        change(&namespace).await;
        drop((namespace, store));
        self.start_mgr().await;
    }

    fn stop_iod(&mut self, iod: usize) {
        self.cluster.stop_iod(iod);
        self.down = Some(iod);
    }

    async fn bring_back(&mut self) {
        if let Some(iod) = self.down.take() {
            self.cluster.start_iod(iod);
            self.cluster.wait_up(self.subject.iods).await;
        }
    }

    /// Repeats a request until the mgr no longer replies with `Delay`. Starts the stopped iod between the attempts.
    async fn persist<T>(&mut self, request: impl AsyncFn(&crate::Files) -> Result<T, Status>) -> Result<T, Status> {
        for _ in 0..TRIES {
            match request(&self.cluster.files()).await {
                Err(Status::Delay) => {}
                other => return other,
            }
            self.bring_back().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("a request is refused for ever");
    }

    fn volume(&self) -> Arc<Volume> {
        self.cluster.files().0
    }

    fn info(&self, file: FileId) -> FileInfo {
        self.volume().namespace.info(file).unwrap()
    }

    fn work(&self, name: &str) -> u64 {
        self.cluster.mgr().status().group("work").unwrap().get_number(name)
    }

    /// Closes a file, and waits until no intent of the file is pending.
    async fn settle(&self, file: FileId) {
        self.cluster.files().closed(&ctx(1), file, true).await.unwrap();
        until("nothing is noted", || self.work("intents_written") == 0).await;
    }

    async fn is_clean(&self) {
        let reply = self.cluster.mgr().check(false).await;
        assert_eq!((reply.refused, reply.broken_off, reply.findings), (None, None, vec![]));
    }

    /// Returns the position in the cluster of the iod with this number.
    fn position(&self, number: u16) -> usize {
        let id = self.volume().iods.registered(number).unwrap().id;
        self.cluster.iods.iter().position(|iod| iod.as_ref().is_some_and(|iod| iod.iod() == id)).unwrap()
    }

    /// Returns the path of the file that stores an object of stream 0.
    fn object(&self, iod: usize, file: FileId) -> PathBuf {
        let (high, low) = (file.0 >> 16 & 0xff, file.0 >> 8 & 0xff);
        self.cluster.dir.path().join(format!("iod{iod}/objects/{high:02x}/{low:02x}/{:016x}", file.0))
    }

    async fn content(&self, file: FileId) -> Result<Bytes, Status> {
        read(&self.cluster.files(), file, 0, 1 << 20).await
    }
}

/// Checks that new files are of the stored kind that the policy asks for.
fn kind_of_new_files(bench: &Bench, file: FileId) {
    let stored = bench.volume().objects(&bench.info(file)).unwrap().unwrap().index();
    let is_log = bench.subject.layout == StoredLayout::Log;
    assert_eq!(stored, is_log.then_some(ObjectId::index(file)));
}

/// Checks that the functions of the kind that map file offsets to objects agree with each other.
fn placement(bench: &Bench, file: FileId) {
    let (volume, info) = (bench.volume(), bench.info(file));
    let stored = volume.objects(&info).unwrap().unwrap();
    assert_eq!(stored.known(), Known::from(&info));
    assert_eq!(stored.count(), stored.width() * stored.mirrors());
    for index in 0..stored.count() {
        assert_eq!(stored.index_on(stored.iod(index)), Some(index));
        assert!(stored.copies(stored.column(index)).any(|copy| copy == index));
        let named = volume.kinds.objects_on(info.layout.as_ref().unwrap(), file, stored.iod(index));
        let fenced: Vec<_> = std::iter::once(stored.object()).chain(stored.index()).collect();
        assert_eq!(named, fenced);
    }
    assert_eq!(volume.kinds.objects_on(info.layout.as_ref().unwrap(), file, u16::MAX), []);
    for offset in (0..2000).chain([1 << 20, (1 << 40) + 77]) {
        let at = stored.place(offset);
        assert!(at.index < stored.width() && at.run > 0);
        let one = ByteRange { offset: at.offset, len: 1 };
        assert_eq!(stored.file_ranges(at.index, one).collect::<Vec<_>>(), [ByteRange { offset, len: 1 }]);
        assert_eq!(stored.object_size(offset, at.index), at.offset, "bytes are in file order");
        let total: u64 = (0..stored.width()).map(|column| stored.object_size(offset, column)).sum();
        assert_eq!(total, offset);
    }
}

/// Checks that the mgr grants a layout exactly for the layout types that can describe the file.
async fn layouts(bench: &Bench, file: FileId) {
    let (volume, files, info) = (bench.volume(), bench.cluster.files(), bench.info(file));
    for kind in volume.kinds.layout_types() {
        let (range, iomode) = (ByteRange::ALL, Iomode::ReadWrite);
        let max_body = types::limits::LAYOUT_BODY_MAX;
        let ask = LayoutAsk { file, kind, iomode, readable: true, range, min_len: 0, max_body };
        let granted = files.layout_get(&ctx(7), ask).await;
        let layout = volume.kinds.layout_type(kind).unwrap();
        let stored = volume.objects(&info).unwrap().unwrap();
        // The iods of these clusters serve no NFS, so layouts for kernel clients are impossible.
        let expressed = layout.expresses(&*stored, bench.cluster.config.kernel_layout) && !layout.is_for_kernels();
        match granted {
            Ok(granted) => {
                assert!(expressed && granted.kind == kind && !granted.body.is_empty());
                let why = LayoutGone::Returned { kind, body: Bytes::new() };
                files.layout_gone(&ctx(7), 7, file, iomode, range, why).await.unwrap();
            }
            Err(e) => assert!(!expressed && e == Status::NoLayout, "{e}"),
        }
    }
}

/// Checks that the next start of the mgr completes a truncation, a write and a fence that a crash has interrupted.
async fn crash_points(bench: &mut Bench) {
    let file = create(&bench.cluster.files(), "crashed").await;
    write(&bench.cluster.files(), file, 0, &pattern(500, 1), Stability::FileSync).await;
    let cut = SetAttrs { size: Some(100), ..SetAttrs::default() };
    // The mgr crashes when the namespace has the new size and no iod has truncated its object.
    bench
        .crash(async |names| {
            names.truncate(&Cred::root(), Default::default(), file, &cut, true).await.unwrap();
        })
        .await;
    assert_eq!(bench.cluster.files().getattr(&ctx(1), file).await.unwrap().size, 100);
    let grown = bench.persist(async |files| {
        let set = SetAttrs { size: Some(500), ..SetAttrs::default() };
        files.setattr(&ctx(1), file, set, true).await
    });
    assert_eq!(grown.await.unwrap().size, 500);
    let mut want = pattern(100, 1);
    want.resize(500, 0);
    assert!(bench.content(file).await.unwrap() == want, "bytes beyond the truncation came back");
    until("the truncation is done", || bench.work("cuts_pending") == 0).await;
    // The mgr stops when the objects have bytes that the namespace has not recorded.
    let (volume, info) = (bench.volume(), bench.info(file));
    let writing = volume.intents.writing(file).await.unwrap();
    let run = Run { offset: 450, data: Bytes::from(pattern(450, 2)) };
    volume.objects(&info).unwrap().unwrap().write(&[run], true).await.unwrap();
    drop(writing);
    drop(volume);
    want.resize(900, 0);
    want[450..].copy_from_slice(&pattern(450, 2));
    bench.restart_mgr().await;
    until("the size is known", || bench.work("intents_written") == 0).await;
    assert_eq!(bench.cluster.files().getattr(&ctx(1), file).await.unwrap().size, 900);
    assert!(bench.content(file).await.unwrap() == want);
    // The mgr crashes when the namespace has the new generation and no iod has this generation.
    bench
        .crash(async |names| {
            names.fence(Default::default(), file).await.unwrap();
        })
        .await;
    until("the fence is done", || bench.work("fences_pending") == 0).await;
    let volume = bench.volume();
    let old = Known { generation: info.generation, ..Known::from(&bench.info(file)) };
    let layout = bench.info(file).layout.unwrap();
    let late = Run { offset: 0, data: Bytes::from_static(b"late") };
    let late = volume.kinds.open(&volume.iods, old, &layout).unwrap().write(&[late], true).await;
    assert_eq!(late.map(drop), Err(Status::Delay), "the fence holds");
    drop(volume);
    assert!(bench.content(file).await.unwrap() == want);
    bench.settle(file).await;
    bench.is_clean().await;
}

/// Checks that the mgr rebuilds a lost object from the other copy. Without another copy, the mgr reports the loss, and
/// reads fail instead of returning zeros.
async fn lost_object(bench: &mut Bench) {
    let file = create(&bench.cluster.files(), "lost").await;
    write(&bench.cluster.files(), file, 0, &pattern(1000, 3), Stability::FileSync).await;
    bench.cluster.files().commit(&ctx(1), file, ByteRange::ALL).await.unwrap();
    bench.settle(file).await;
    let number = bench.volume().objects(&bench.info(file)).unwrap().unwrap().iod(0);
    let iod = bench.position(number);
    let path = bench.object(iod, file);
    bench.stop_iod(iod);
    std::fs::remove_file(&path).unwrap();
    bench.bring_back().await;
    if bench.subject.mirrors > 1 {
        until("the copy is made again", || path.exists()).await;
        let whole = async { bench.cluster.mgr().check(true).await.findings.iter().all(|f| f.mended == Mended::Yes) };
        assert!(whole.await);
        assert!(bench.content(file).await.unwrap() == pattern(1000, 3));
    } else {
        let findings = bench.cluster.mgr().check(true).await.findings;
        let codes: Vec<_> = findings.iter().map(|finding| (&finding.code[..], finding.inode)).collect();
        assert_eq!(codes, [("object-missing", Some(file.0))]);
        assert_eq!(bench.content(file).await, Err(Status::Lost));
        let shorter = SetAttrs { size: Some(999), ..SetAttrs::default() };
        let cut = bench.cluster.files().setattr(&ctx(1), file, shorter, true).await;
        assert_eq!(cut.map(drop), Err(Status::Lost), "lost bytes would read as zeros");
    }
    assert_eq!(remove(bench, "lost").await, file);
    until("its objects are deleted", || !path.exists()).await;
    bench.is_clean().await;
}

async fn remove(bench: &Bench, name: &str) -> FileId {
    let (files, name) = (bench.cluster.files(), Bytes::from(name.to_owned()));
    let id = files.lookup(&ctx(1), FileId::ROOT, &name).await.unwrap().id;
    files.remove(&ctx(1), FileId::ROOT, &name, &|file| file == id).await.unwrap();
    id
}

/// Checks that a restarted mgr deletes the objects of removed files, also those on an iod that was down.
async fn removal(bench: &mut Bench) {
    for name in ["gone-1", "gone-2"] {
        let file = create(&bench.cluster.files(), name).await;
        write(&bench.cluster.files(), file, 0, &pattern(1000, 4), Stability::FileSync).await;
    }
    assert!(bench.cluster.objects() > 0);
    bench.stop_iod(0);
    for name in ["gone-1", "gone-2", "crashed", "a", "b"] {
        remove(bench, name).await;
    }
    bench.restart_mgr().await;
    bench.bring_back().await;
    until("all objects are deleted", || bench.cluster.objects() == 0).await;
    bench.is_clean().await;
}

/// Runs all tests of the suite for one kind.
async fn conformance(subject: Subject) {
    let mut bench = Bench::new(subject).await;
    let file = random::run(&mut bench, 0x5eed).await;
    kind_of_new_files(&bench, file);
    placement(&bench, file);
    layouts(&bench, file).await;
    crash_points(&mut bench).await;
    lost_object(&mut bench).await;
    removal(&mut bench).await;
    bench.stop_mgr().await;
}

macro_rules! conforms {
    ($($name:ident: $subject:expr;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            Box::pin(conformance($subject)).await;
        })*
    };
}

conforms! {
    striped_over_one_iod: striped(1, 1);
    striped_over_two_iods: striped(2, 1);
    striped_over_three_iods: striped(3, 1);
    striped_over_one_iod_in_two_copies: striped(1, 2);
    striped_over_two_iods_in_two_copies: striped(2, 2);
    striped_over_three_iods_in_two_copies: striped(3, 2);
    log_over_one_iod: log(1);
    log_over_two_iods: log(2);
    log_over_three_iods: log(3);
    whole_files: whole();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_an_unregistered_kind_are_refused_and_reported() {
    let mut bench = Bench::new(Subject { iods: 1, ..whole() }).await;
    let file = create(&bench.cluster.files(), "f").await;
    write(&bench.cluster.files(), file, 0, &pattern(100, 1), Stability::FileSync).await;
    bench.settle(file).await;
    bench.subject.kinds = Kinds::default;
    bench.restart_mgr().await;
    assert_eq!(bench.content(file).await, Err(Status::Corrupt));
    let findings = bench.cluster.mgr().check(true).await.findings;
    let finding = findings.iter().find(|finding| finding.code == "layout-damaged").unwrap();
    assert_eq!((finding.inode, finding.mended), (Some(file.0), Mended::Failed));
    assert!(finding.text.contains(&format!("kind {}, which is not known", whole::WHOLE)), "{finding:?}");
    // The mgr without the kind `Whole` has removed nothing: after a restart with this kind, the mgr can read the file.
    bench.subject.kinds = with_whole;
    bench.restart_mgr().await;
    assert!(bench.content(file).await.unwrap() == pattern(100, 1));
    assert_eq!(set_size(&bench.cluster.files(), file, 10).await.size, 10);
    // Files of both kinds exist at the same time, and the mgr copies a file of each kind into a file of the other kind.
    bench.subject.kinds = Kinds::default;
    bench.restart_mgr().await;
    let other = create(&bench.cluster.files(), "g").await;
    write(&bench.cluster.files(), other, 0, &pattern(700, 2), Stability::FileSync).await;
    bench.subject.kinds = with_whole;
    bench.restart_mgr().await;
    let files = bench.cluster.files();
    for (from, to, len) in [(other, file, 700), (file, other, 700)] {
        let copied = files.copy(&ctx(1), from, ByteRange { offset: 0, len }, to, 700).await.unwrap();
        assert_eq!(copied.map(|out| u64::from(out.count)), Some(len));
    }
    let copy = read(&files, file, 700, 700).await.unwrap();
    assert!(copy == pattern(700, 2));
    assert!(read(&files, other, 700, 700).await.unwrap() == read(&files, file, 0, 700).await.unwrap());
}
