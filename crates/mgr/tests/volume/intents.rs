//! Intents: operations that a crash or a stopped iod interrupted, and their completion.

use crate::check::{Native, object, offline, wait_settled};
use crate::cluster::{Cluster, create, ctx, pattern, read, remove, set_size, until, write};
use bytes::Bytes;
use layout::kinds::native::{Body, KIND, Update};
use meta::schema::{FileIntent, Intent};
use mgr::Files;
use nfs::fs::{Content, FileSystem, Iomode, LayoutAsk, LayoutGone, Stability};
use types::{ByteRange, Cred, FileId, Generation, SetAttrs, Status};
use xdr::Xdr;

fn work(cluster: &Cluster, name: &str) -> u64 {
    cluster.mgr().status().group("work").unwrap().get_number(name)
}

async fn granted(files: &Files, client: u64, file: FileId) -> Body {
    let max_body = types::limits::LAYOUT_BODY_MAX;
    let iomode = Iomode::ReadWrite;
    let ask = LayoutAsk { file, kind: KIND, iomode, readable: true, range: ByteRange::ALL, min_len: 0, max_body };
    Body::from_bytes(&files.layout_get(&ctx(client), ask).await.unwrap().body).unwrap()
}

async fn revoke(files: &Files, client: u64, file: FileId) -> Result<(), Status> {
    files.layout_gone(&ctx(0), client, file, Iomode::ReadWrite, ByteRange::ALL, LayoutGone::Revoked).await
}

async fn size(files: &Files, client: u64, file: FileId) -> u64 {
    files.getattr(&ctx(client), file).await.unwrap().size
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncate_interrupted_by_a_crash_is_completed() {
    let mut cluster = Cluster::new(2, "64").await;
    let file = create(&cluster.files(), "f").await;
    write(&cluster.files(), file, 0, &pattern(500, 1), Stability::FileSync).await;
    let cut = |size| SetAttrs { size: Some(size), ..SetAttrs::default() };
    // The mgr crashes when the namespace has the new size and no iod has truncated its object.
    offline(&mut cluster, async |namespace, _| {
        namespace.truncate(&Cred::root(), Default::default(), file, &cut(100), true).await.unwrap();
    })
    .await;
    let files = cluster.files();
    assert_eq!(size(&files, 1, file).await, 100);
    assert_eq!(set_size(&files, file, 500).await.size, 500);
    let mut want = pattern(100, 1);
    want.resize(500, 0);
    assert!(read(&files, file, 0, 500).await.unwrap() == want, "bytes beyond the truncation came back");
    until("the cut is done", || work(&cluster, "cuts_pending") == 0).await;
    // The client writes after the truncation. The next start of the mgr must not repeat the truncation.
    write(&files, file, 100, &pattern(300, 2), Stability::FileSync).await;
    want[100..400].copy_from_slice(&pattern(300, 2));
    drop(files);
    cluster.restart_mgr().await;
    assert!(read(&cluster.files(), file, 0, 500).await.unwrap() == want);
    assert_eq!(cluster.mgr().check(false).await.findings, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pending_truncate_delays_writes_until_the_iods_return() {
    let mut cluster = Cluster::new(2, "64").await;
    let file = create(&cluster.files(), "f").await;
    write(&cluster.files(), file, 0, &pattern(500, 1), Stability::FileSync).await;
    cluster.stop_iod(1);
    let cut = SetAttrs { size: Some(10), ..SetAttrs::default() };
    offline(&mut cluster, async |namespace, _| {
        namespace.truncate(&Cred::root(), Default::default(), file, &cut, true).await.unwrap();
    })
    .await;
    let files = cluster.files();
    assert_eq!(work(&cluster, "cuts_pending"), 1);
    // GETATTR does not wait for the pending truncation.
    assert_eq!(size(&files, 1, file).await, 10);
    let data = Bytes::from_static(b"x");
    assert_eq!(files.write(&ctx(1), file, 0, data, Stability::FileSync).await, Err(Status::Delay));
    let grow = SetAttrs { size: Some(400), ..SetAttrs::default() };
    assert_eq!(files.setattr(&ctx(1), file, grow, true).await, Err(Status::Delay));
    assert_eq!(files.layout_commit(&ctx(1), file, (KIND, Bytes::new()), Some(99), None).await, Err(Status::Delay));
    drop(files);
    cluster.start_iod(1);
    cluster.wait_up(2).await;
    until("the cut is done", || work(&cluster, "cuts_pending") == 0).await;
    assert_eq!(set_size(&cluster.files(), file, 500).await.size, 500);
    let mut want = pattern(10, 1);
    want.resize(500, 0);
    assert!(read(&cluster.files(), file, 0, 500).await.unwrap() == want);
}

/// A file size beyond the largest file of most local file systems, and therefore beyond the largest object.
const FAR: u64 = 70_368_743_129_083;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncate_beyond_the_largest_object_size_succeeds() {
    let mut cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(500, 1), Stability::FileSync).await;
    // A second client has a write layout and may have written beyond the recorded size. So the mgr truncates the
    // objects on the iods, although the file grows.
    granted(&files, 7, file).await;
    assert_eq!(set_size(&files, file, FAR).await.size, FAR);
    drop(files);
    cluster.restart_mgr().await;
    // Store the intent of a truncation while the mgr is stopped, as if the mgr had crashed before it truncated the
    // objects.
    let far = SetAttrs { size: Some(FAR + 1), ..SetAttrs::default() };
    offline(&mut cluster, async |namespace, _| {
        namespace.truncate(&Cred::root(), Default::default(), file, &far, true).await.unwrap();
    })
    .await;
    let files = cluster.files();
    assert_eq!(size(&files, 1, file).await, FAR + 1);
    assert!(read(&files, file, 0, 500).await.unwrap() == pattern(500, 1));
    until("the truncation is done", || work(&cluster, "cuts_pending") == 0).await;
    write(&files, file, 500, b"x", Stability::FileSync).await;
    assert_eq!(set_size(&files, file, 100).await.size, 100);
    remove(&files, "f").await;
}

/// Damages the header of the file's object on one iod, so that the iod refuses to use the object.
async fn spoil(cluster: &mut Cluster, iod: usize, file: FileId) {
    let path = object(cluster, iod, file);
    let up = cluster.up();
    cluster.stop_iod(iod);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    until("the loss is noticed", || cluster.up() == up - 1).await;
    cluster.start_iod(iod);
    cluster.wait_up(up).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncate_that_an_iod_refuses_changes_nothing() {
    let mut cluster = Cluster::new(2, "64").await;
    let file = create(&cluster.files(), "f").await;
    write(&cluster.files(), file, 0, &pattern(500, 1), Stability::FileSync).await;
    spoil(&mut cluster, 1, file).await;
    let cut = SetAttrs { size: Some(10), ..SetAttrs::default() };
    for _ in 0..2 {
        let files = cluster.files();
        assert_eq!(files.setattr(&ctx(1), file, cut, true).await, Err(Status::Io));
        assert_eq!((size(&files, 1, file).await, work(&cluster, "cuts_pending")), (500, 0));
        drop(files);
        cluster.restart_mgr().await;
        cluster.wait_up(2).await;
    }
    remove(&cluster.files(), "f").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_pending_truncate_leaves_the_file_accessible() {
    let mut cluster = Cluster::new(2, "64").await;
    let file = create(&cluster.files(), "f").await;
    write(&cluster.files(), file, 0, &pattern(500, 1), Stability::FileSync).await;
    // The position of the iod that holds every second stripe unit, and therefore the shorter object.
    let len = |iod| object(&cluster, iod, file).metadata().unwrap().len();
    let second = usize::from(len(1) < len(0));
    spoil(&mut cluster, second, file).await;
    let cut = |size| SetAttrs { size: Some(size), ..SetAttrs::default() };
    offline(&mut cluster, async |namespace, _| {
        namespace.truncate(&Cred::root(), Default::default(), file, &cut(100), true).await.unwrap();
        // The intent `Written` says that a client was writing when the mgr died, so the mgr must query the iods for the
        // size of the file.
        namespace.record_intent(Default::default(), FileIntent { file, intent: Intent::Written }).await.unwrap();
    })
    .await;
    cluster.wait_up(2).await;
    for _ in 0..2 {
        let files = cluster.files();
        assert_eq!(size(&files, 1, file).await, 100);
        files.closed(&ctx(1), file, true).await.unwrap();
        // No request may extend the file over the bytes that the untruncated object still holds.
        let data = Bytes::from_static(b"x");
        assert_eq!(files.write(&ctx(1), file, 0, data, Stability::FileSync).await, Err(Status::Io));
        assert_eq!(files.setattr(&ctx(1), file, cut(400), true).await, Err(Status::Io));
        assert_eq!((size(&files, 1, file).await, work(&cluster, "cuts_pending")), (100, 1));
        drop(files);
        cluster.restart_mgr().await;
        cluster.wait_up(2).await;
    }
    let found = cluster.mgr().check(false).await.findings;
    let refused = found.iter().find(|finding| finding.code == "cut-refused").unwrap();
    assert_eq!((refused.inode, &refused.paths[..]), (Some(file.0), &[Bytes::from_static(b"/f")][..]));
    let repaired = cluster.mgr().check(true).await.findings;
    let refused = repaired.iter().find(|finding| finding.code == "cut-refused").unwrap();
    assert_eq!(refused.mended, wire::admin::Mended::Yes);
    let left = cluster.mgr().check(true).await.findings;
    assert!(left.iter().all(|finding| finding.code == "object-damaged"), "{left:?}");
    // After the repair, clients can again use the bytes of the file on the iod that did not refuse the truncation.
    let files = cluster.files();
    write(&files, file, 128, &pattern(64, 3), Stability::FileSync).await;
    assert!(read(&files, file, 128, 64).await.unwrap() == pattern(64, 3));
    let file = remove(&files, "f").await;
    files.reap(&ctx(1), file).await.unwrap();
    until("its objects are gone", || cluster.objects() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_size_is_measured_after_the_writer_and_the_mgr_died() {
    let mut cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let body = granted(&files, 7, file).await;
    let first = cluster.iods.iter().position(|iod| iod.as_ref().unwrap().iod() == body.devices[0]).unwrap();
    Native::connect(&cluster, first).await.write(file, 0, 0, &pattern(50, 1)).await.unwrap();
    drop(files);
    cluster.restart_mgr().await;
    wait_settled(&cluster).await;
    assert_eq!(size(&cluster.files(), 8, file).await, 50);
    assert_eq!(cluster.mgr().check(false).await.findings, []);
    // The mgr does not query the iods for the size again, because no client has written the file since the first query.
    let queries = cluster.mgr().counters().size_queries;
    assert_eq!(size(&cluster.files(), 8, file).await, 50);
    assert_eq!(cluster.mgr().counters().size_queries, queries);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_a_dead_client_after_its_last_layoutcommit_count() {
    let cluster = Cluster::new(1, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    granted(&files, 7, file).await;
    let native = Native::connect(&cluster, 0).await;
    native.write(file, 0, 0, &pattern(50, 1)).await.unwrap();
    assert_eq!(files.layout_commit(&ctx(7), file, (KIND, Bytes::new()), Some(49), None).await, Ok(Some(50)));
    native.write(file, 0, 50, &pattern(30, 2)).await.unwrap();
    revoke(&files, 7, file).await.unwrap();
    assert_eq!(size(&files, 7, file).await, 80);
    assert_eq!(native.write(file, 0, 80, b"late").await, Err(Status::Fenced));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_mtime_set_by_the_writer_survives_concurrent_getattrs() {
    let cluster = Cluster::new(2, "64").await;
    let natives = [Native::connect(&cluster, 0).await, Native::connect(&cluster, 1).await];
    let files = cluster.files();
    let time = types::Timestamp::new(1_100_000_000, 7).unwrap();
    let set = SetAttrs { mtime: Some(types::SetTime::To(time)), ..SetAttrs::default() };
    for round in 0..150 {
        let file = create(&files, &format!("{round}")).await;
        let body = granted(&files, 7, file).await;
        let first = cluster.iods.iter().position(|iod| iod.as_ref().unwrap().iod() == body.devices[0]).unwrap();
        natives[first].write(file, 0, 0, &pattern(50, 1)).await.unwrap();
        // Until the writer reports its write, the objects are longer than the size in the namespace.
        let looking = |turns| {
            let files = files.clone();
            tokio::spawn(async move {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                files.getattr(&ctx(8), file).await.unwrap();
            })
        };
        let looking: Vec<_> = (0..8).map(|n| looking(n * round % 16)).collect();
        files.layout_commit(&ctx(7), file, (KIND, Bytes::new()), Some(49), None).await.unwrap();
        files.setattr(&ctx(7), file, set, true).await.unwrap();
        for looking in looking {
            looking.await.unwrap();
        }
        assert_eq!(files.getattr(&ctx(7), file).await.unwrap().mtime, time, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_size_is_not_final_while_an_iod_is_down() {
    let mut cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let body = granted(&files, 7, file).await;
    let iods = cluster.iods.iter().map(|iod| iod.as_ref().unwrap().iod()).collect::<Vec<_>>();
    let second = iods.iter().position(|iod| *iod == body.devices[1]).unwrap();
    Native::connect(&cluster, second).await.write(file, 0, 0, &pattern(50, 1)).await.unwrap();
    cluster.stop_iod(second);
    until("the loss is noticed", || cluster.up() == 1).await;
    // While the iod is down, the mgr returns the last size that it knows. It queries the iods for the size when the iod
    // has connected again.
    assert_eq!(size(&files, 8, file).await, 0);
    files.closed(&ctx(7), file, true).await.unwrap();
    assert_eq!(revoke(&files, 7, file).await, Err(Status::Delay));
    assert_eq!((work(&cluster, "sizes_to_learn"), work(&cluster, "fences_pending")), (1, 1));
    cluster.start_iod(second);
    cluster.wait_up(2).await;
    // The mgr sends the pending fence to the restarted iod before the iod serves clients.
    let late = Native::connect(&cluster, second).await.write(file, 0, 50, b"late").await;
    assert_eq!(late, Err(Status::Fenced));
    wait_settled(&cluster).await;
    assert_eq!(size(&files, 8, file).await, 64 + 50);
    until("all know of the fence", || work(&cluster, "fences_pending") == 0).await;
    assert_eq!(cluster.mgr().check(false).await.findings, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_does_not_cancel_an_interrupted_size_measurement() {
    let cluster = Cluster::new(1, "64").await;
    let files = cluster.files();
    let (writer, other) = (ctx(7), ctx(8));
    let mut whys =
        vec![LayoutGone::Returned { kind: KIND, body: Bytes::new() }, LayoutGone::Forgotten, LayoutGone::Revoked];
    let mut tries = 0;
    while let Some(why) = whys.pop() {
        tries += 1;
        let how = format!("{why:?} {tries}");
        let file = create(&files, &how).await;
        granted(&files, 7, file).await;
        Native::connect(&cluster, 0).await.write(file, 0, 0, &pattern(50, 1)).await.unwrap();
        let gone = files.layout_gone(&writer, 7, file, Iomode::ReadWrite, ByteRange::ALL, why.clone());
        let mut gone = Box::pin(gone);
        if futures_util::poll!(gone.as_mut()).is_ready() {
            // On a busy machine, the iod may reply during the first poll of `gone`. The call is complete then, and the
            // test cannot cancel it, so the test tries again with another file.
            assert!(tries < 100, "{how}: no iod is asked");
            whys.push(why);
            continue;
        }
        files.closed(&other, file, true).await.unwrap();
        // Drop the future of the request, as if the reply of the iod had never arrived.
        drop(gone);
        wait_settled(&cluster).await;
        assert_eq!(size(&files, 8, file).await, 50, "{how}");
    }
    assert_eq!(cluster.mgr().check(false).await.findings, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_of_one_writer_does_not_cover_a_dead_writer() {
    let mut cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let body = granted(&files, 7, file).await;
    granted(&files, 9, file).await;
    let iods = cluster.iods.iter().map(|iod| iod.as_ref().unwrap().iod()).collect::<Vec<_>>();
    let second = iods.iter().position(|iod| *iod == body.devices[1]).unwrap();
    Native::connect(&cluster, second).await.write(file, 0, 0, &pattern(50, 1)).await.unwrap();
    Native::connect(&cluster, 1 - second).await.write(file, 0, 0, &pattern(10, 2)).await.unwrap();
    cluster.stop_iod(second);
    until("the loss is noticed", || cluster.up() == 1).await;
    assert_eq!(revoke(&files, 7, file).await, Err(Status::Delay));
    assert_eq!(files.layout_commit(&ctx(9), file, (KIND, Bytes::new()), Some(9), None).await, Ok(None));
    let (write, all, returned) =
        (Iomode::ReadWrite, ByteRange::ALL, LayoutGone::Returned { kind: KIND, body: Bytes::new() });
    files.layout_gone(&ctx(9), 9, file, write, all, returned).await.unwrap();
    files.closed(&ctx(9), file, true).await.unwrap();
    cluster.start_iod(second);
    cluster.wait_up(2).await;
    wait_settled(&cluster).await;
    assert_eq!(size(&files, 8, file).await, 64 + 50);
    until("all know of the fence", || work(&cluster, "fences_pending") == 0).await;
    assert_eq!(cluster.mgr().check(false).await.findings, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pending_fence_is_sent_after_a_restart() {
    let mut cluster = Cluster::new(2, "64").await;
    let file = create(&cluster.files(), "f").await;
    write(&cluster.files(), file, 0, &pattern(200, 1), Stability::FileSync).await;
    cluster.stop_iod(1);
    until("the loss is noticed", || cluster.up() == 1).await;
    granted(&cluster.files(), 7, file).await;
    assert_eq!(revoke(&cluster.files(), 7, file).await, Err(Status::Delay));
    cluster.mgr.take().unwrap().stop().await;
    cluster.start_iod(1);
    cluster.start_mgr().await;
    cluster.wait_up(2).await;
    assert_eq!(Native::connect(&cluster, 1).await.write(file, 0, 0, b"late").await, Err(Status::Fenced));
    assert!(read(&cluster.files(), file, 0, 200).await.unwrap() == pattern(200, 1));
}

/// Creates a file, and lets a client write 50 bytes into each object of the file without a report. Then stops the mgr
/// and the iod `down`.
async fn left_by_its_writer(cluster: &mut Cluster, down: Option<usize>) -> FileId {
    let file = create(&cluster.files(), "f").await;
    granted(&cluster.files(), 7, file).await;
    for iod in 0..2 {
        Native::connect(cluster, iod).await.write(file, 0, 0, &pattern(50, 1)).await.unwrap();
    }
    cluster.mgr.take().unwrap().stop().await;
    down.into_iter().for_each(|iod| cluster.stop_iod(iod));
    file
}

async fn late_writes_are_fenced(cluster: &Cluster, file: FileId) {
    assert_eq!(size(&cluster.files(), 8, file).await, 64 + 50);
    for iod in 0..2 {
        let late = Native::connect(cluster, iod).await.write(file, 0, 60, b"late").await;
        assert_eq!(late, Err(Status::Fenced));
    }
    assert_eq!(size(&cluster.files(), 8, file).await, 64 + 50);
    assert_eq!(cluster.mgr().check(false).await.findings, []);
    assert_eq!(work(cluster, "sizes_to_learn") + work(cluster, "fences_pending"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_did_not_return_is_fenced_before_the_measurement() {
    let mut cluster = Cluster::new(2, "64").await;
    let file = left_by_its_writer(&mut cluster, None).await;
    cluster.start_mgr().await;
    wait_settled(&cluster).await;
    late_writes_are_fenced(&cluster, file).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncate_fences_layouts_granted_before_the_restart() {
    let mut cluster = Cluster::new(2, "64").await;
    let file = left_by_its_writer(&mut cluster, None).await;
    cluster.start_mgr().await;
    cluster.wait_up(2).await;
    assert_eq!(set_size(&cluster.files(), file, 10).await.size, 10);
    for iod in 0..2 {
        let late = Native::connect(&cluster, iod).await.write(file, 0, 60, b"late").await;
        assert_eq!(late, Err(Status::Fenced));
    }
    assert!(granted(&cluster.files(), 8, file).await.generation > Generation(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_is_not_final_before_all_iods_are_fenced() {
    let mut cluster = Cluster::new(2, "64").await;
    let file = left_by_its_writer(&mut cluster, Some(1)).await;
    cluster.start_mgr().await;
    until("the fence is noted", || work(&cluster, "fences_pending") == 1).await;
    assert_eq!((work(&cluster, "sizes_to_learn"), work(&cluster, "intents_written")), (1, 1));
    // A second restart of the mgr does not change the pending intents.
    cluster.restart_mgr().await;
    until("the first iod is fenced", || work(&cluster, "fences_pending") == 1).await;
    assert_eq!(work(&cluster, "sizes_to_learn"), 1);
    cluster.start_iod(1);
    cluster.wait_up(2).await;
    wait_settled(&cluster).await;
    late_writes_are_fenced(&cluster, file).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_fence_and_measurement_loses_nothing() {
    let mut cluster = Cluster::new(2, "64").await;
    let file = left_by_its_writer(&mut cluster, None).await;
    cluster.start_mgr().await;
    offline(&mut cluster, async |namespace, _| {
        namespace.record_intent(Default::default(), FileIntent { file, intent: Intent::Written }).await.unwrap();
        namespace.fence(Default::default(), file).await.unwrap();
    })
    .await;
    wait_settled(&cluster).await;
    late_writes_are_fenced(&cluster, file).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_and_unused_files_are_not_fenced() {
    let mut cluster = Cluster::stopped(2, "64").await;
    (0..2).for_each(|i| cluster.stop_iod(i));
    cluster.start_mgr().await;
    // No client ever gets a layout of this file, and no client writes it.
    let unused = create(&cluster.files(), "unused").await;
    cluster.restart_mgr().await;
    wait_settled(&cluster).await;
    (0..2).for_each(|i| cluster.start_iod(i));
    cluster.wait_up(2).await;
    let (files, written) = (cluster.files(), create(&cluster.files(), "written").await);
    granted(&files, 7, written).await;
    Native::connect(&cluster, 0).await.write(written, 0, 0, b"early").await.unwrap();
    let (write, all, returned) =
        (Iomode::ReadWrite, ByteRange::ALL, LayoutGone::Returned { kind: KIND, body: Bytes::new() });
    files.layout_gone(&ctx(7), 7, written, write, all, returned).await.unwrap();
    files.closed(&ctx(7), written, true).await.unwrap();
    wait_settled(&cluster).await;
    drop(files);
    cluster.restart_mgr().await;
    cluster.wait_up(2).await;
    wait_settled(&cluster).await;
    for file in [unused, written] {
        assert_eq!(granted(&cluster.files(), 7, file).await.generation, Generation(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_do_not_delay_readers() {
    let cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(500, 1), Stability::FileSync).await;
    granted(&files, 7, file).await;
    let update = Bytes::from(Update { fence: true, ..Update::default() }.to_bytes().to_vec());
    let fencing = tokio::spawn({
        let files = files.clone();
        async move {
            for _ in 0..30 {
                files.layout_commit(&ctx(7), file, (KIND, update.clone()), None, None).await.unwrap();
            }
        }
    });
    while !fencing.is_finished() {
        assert!(read(&files, file, 0, 500).await.unwrap() == pattern(500, 1));
        assert_eq!(size(&files, 8, file).await, 500);
        files.commit(&ctx(8), file, ByteRange::ALL).await.unwrap();
        assert_eq!(files.seek(&ctx(8), file, 0, Content::Data).await.unwrap().offset, 0);
    }
    fencing.await.unwrap();
    assert_eq!(granted(&files, 7, file).await.generation, Generation(30));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_recreated_by_a_late_write_is_collected() {
    let mut cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let (file, kept) = (create(&files, "f").await, create(&files, "kept").await);
    write(&files, kept, 0, &pattern(200, 1), Stability::FileSync).await;
    write(&files, file, 0, &pattern(200, 1), Stability::FileSync).await;
    remove(&files, "f").await;
    files.reap(&ctx(0), file).await.unwrap();
    until("the objects are deleted", || work(&cluster, "doomed") == 0).await;
    assert_eq!(cluster.objects(), 2);
    let late = Native::connect(&cluster, 1).await.write(file, 0, 0, b"late").await;
    assert_eq!(late, Err(Status::Fenced), "the iod remembers the removal");
    // A restarted iod has no tombstone of a deleted object, so a delayed write of a client can create the object again.
    // The mgr is stopped during this write, so it cannot delete the object at once.
    drop(files);
    cluster.mgr.take().unwrap().stop().await;
    cluster.stop_iod(1);
    cluster.start_iod(1);
    Native::connect(&cluster, 1).await.write(file, 0, 0, b"late").await.unwrap();
    assert_eq!(cluster.objects(), 3);
    // The mgr lists the objects of an iod when the iod connects, so the mgr finds the object that the delayed write
    // created.
    cluster.start_mgr().await;
    until("the object is collected", || cluster.objects() == 2).await;
    until("it is counted", || cluster.mgr().counters().objects_collected == 1).await;
    assert!(read(&cluster.files(), kept, 0, 200).await.unwrap() == pattern(200, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_objects_without_files_are_not_collected() {
    let mut cluster = Cluster::new(1, "64").await;
    let files = cluster.files();
    let mut gone = Vec::new();
    for i in 0..160 {
        let name = format!("f{i}");
        gone.push(create(&files, &name).await);
        write(&files, gone[i], 0, b"early", Stability::FileSync).await;
        remove(&files, &name).await;
        files.reap(&ctx(0), gone[i]).await.unwrap();
    }
    until("their objects are deleted", || work(&cluster, "doomed") == 0).await;
    assert_eq!(cluster.objects(), 0);
    drop(files);
    // A restarted iod has no tombstones of deleted objects, so delayed writes of clients can create the objects again.
    // The mgr is stopped during these writes, so it cannot delete the objects at once.
    cluster.mgr.take().unwrap().stop().await;
    cluster.stop_iod(0);
    cluster.start_iod(0);
    for file in gone {
        Native::connect(&cluster, 0).await.write(file, 0, 0, b"late").await.unwrap();
    }
    cluster.start_mgr().await;
    until("they are seen", || cluster.mgr().counters().objects_spared >= 65).await;
    assert_eq!(cluster.mgr().counters().objects_collected, 0);
    assert_eq!(cluster.objects(), 160);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_created_without_iods_keeps_the_policy_of_its_directory() {
    let mut cluster = Cluster::stopped(2, "64").await;
    (0..2).for_each(|i| cluster.stop_iod(i));
    cluster.start_mgr().await;
    let files = cluster.files();
    let either = nfs::fs::XattrHow::Either;
    for (name, value) in [("weir.stripe_unit", "192"), ("weir.stripe_count", "1")] {
        let (name, value) = (Bytes::from(name), Bytes::from(value));
        files.setxattr(&ctx(1), FileId::ROOT, &name, value, either).await.unwrap();
    }
    let file = create(&files, "f").await;
    files.setxattr(&ctx(1), FileId::ROOT, &"weir.stripe_unit".into(), "64".into(), either).await.unwrap();
    drop(files);
    cluster.restart_mgr().await;
    (0..2).for_each(|i| cluster.start_iod(i));
    cluster.wait_up(2).await;
    let body = granted(&cluster.files(), 7, file).await;
    assert_eq!((body.stripe_unit, body.devices.len()), (192, 1));
    // A file that is removed before it has a layout leaves no objects and no intents.
    let unused = create(&cluster.files(), "unused").await;
    remove(&cluster.files(), "unused").await;
    cluster.files().reap(&ctx(0), unused).await.unwrap();
    assert_eq!(cluster.mgr().check(false).await.findings, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_durable_bytes_are_reported_missing() {
    let cluster = Cluster::new(1, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    granted(&files, 7, file).await;
    let commit =
        async |last: u64, body: Bytes| files.layout_commit(&ctx(7), file, (KIND, body), Some(last), None).await;
    // The client reports the size, but not that the bytes are durable. So a missing object is no damage.
    assert_eq!(commit(49, Bytes::new()).await, Ok(Some(50)));
    assert_eq!(cluster.mgr().check(false).await.findings, []);
    let durable = Bytes::from(Update { durable: true, ..Update::default() }.to_bytes().to_vec());
    assert_eq!(commit(49, durable).await, Ok(None));
    let findings = cluster.mgr().check(false).await.findings;
    assert_eq!(findings.iter().map(|finding| &finding.code[..]).collect::<Vec<_>>(), ["object-missing"]);
    assert_eq!(commit(49, Bytes::from_static(b"junk")).await, Err(Status::Inval));
}
