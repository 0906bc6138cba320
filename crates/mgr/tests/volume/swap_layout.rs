//! Tests of layout swaps (moves of a file to new objects): all bytes arrive in the new objects, and capabilities for
//! the old objects become invalid. If the mgr stops at any point of a swap, the file has either its old or its new
//! objects.

use crate::check::{Native, check, object, offline, wait_settled};
use crate::cluster::{Cluster, create, ctx, pattern, read, remove, set_size, until, write};
use crate::layouts::{layout, write_direct};
use bytes::Bytes;
use layout::kinds::native::{KIND, Record};
use meta::Layout;
use mgr::Files;
use nfs::fs::{Content, FileSystem, Iomode, LayoutGone, Stability};
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use types::{ByteRange, FileId, IodId, ObjectId, SetAttrs, Status};
use xdr::Xdr;

/// Starts a cluster of four iods, with leases of one second. Each file has objects on two iods. The number of each iod
/// is its position in the cluster.
async fn four() -> Cluster {
    let mut cluster = Cluster::stopped(4, "64").await;
    (cluster.config.stripe_count, cluster.config.lease_secs) = (2, 1);
    for iod in 0..4 {
        cluster.stop_iod(iod);
    }
    cluster.start_mgr().await;
    for iod in 0..4 {
        cluster.start_iod(iod);
        cluster.wait_up(iod + 1).await;
    }
    cluster
}

/// Returns the numbers of the iods of a file. All iods of the cluster must be up.
pub async fn numbers(cluster: &Cluster, file: FileId) -> Vec<u16> {
    iods(&cluster.files(), file).await.iter().map(|id| at(cluster, *id) as u16).collect()
}

/// Returns the numbers of two iods that have no objects of the file. All iods of the cluster must be up.
async fn elsewhere(cluster: &Cluster, file: FileId) -> Vec<u16> {
    let used = numbers(cluster, file).await;
    (0..4).filter(|iod| !used.contains(iod)).collect()
}

/// Moves a file to two iods that have none of its objects.
async fn swap(cluster: &Cluster, file: FileId) -> Result<(), Status> {
    let to = elsewhere(cluster, file).await;
    cluster.mgr().swap_layout(file, to).await
}

pub fn unused(cluster: &Cluster) -> u64 {
    cluster.mgr().status().group("work").unwrap().get_number("unused")
}

/// Returns the iods of a file, according to a layout that this function requests and returns at once.
async fn iods(files: &Files, file: FileId) -> Vec<IodId> {
    used(files, file).await.1
}

pub async fn gone(files: &Files, client: u64, file: FileId, iomode: Iomode, why: LayoutGone) {
    files.layout_gone(&ctx(client), client, file, iomode, ByteRange::ALL, why).await.unwrap();
}

/// Returns the object id and the iods of a file, according to a layout that this function requests and returns at once.
async fn used(files: &Files, file: FileId) -> (ObjectId, Vec<IodId>) {
    let body = layout(files, 9, file, Iomode::Read).await;
    gone(files, 9, file, Iomode::Read, LayoutGone::Returned { kind: KIND, body: Bytes::new() }).await;
    (body.object, body.devices)
}

/// Returns the path of the file that stores an object of any stream except stream 0.
pub fn later(cluster: &Cluster, iod: usize, id: ObjectId) -> PathBuf {
    object(cluster, iod, id.file).with_file_name(format!("{:016x}-{:08x}", id.file.0, id.stream))
}

/// Returns the position of an iod in the cluster.
fn at(cluster: &Cluster, id: IodId) -> usize {
    let is = |iod: &Option<iod::Running>| iod.as_ref().is_some_and(|iod| iod.iod() == id);
    cluster.iods.iter().position(is).unwrap()
}

/// Waits until only `count` objects are left on the iods, and asserts that a check (`weir fsck`) finds no problem.
pub async fn clean(cluster: &Cluster, count: u64) {
    until("unused objects are removed", || unused(cluster) == 0 && cluster.objects() == count).await;
    wait_settled(cluster).await;
    assert_eq!(check(cluster, false).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_holes_and_lengths_move() {
    let cluster = four().await;
    let (files, file) = (cluster.files(), create(&cluster.files(), "f").await);
    let mut want = pattern(100_000, 1);
    want.resize(3 << 20, 0);
    want.extend(pattern(777, 2));
    write(&files, file, 0, &want[..100_000], Stability::FileSync).await;
    // The client sends no COMMIT for this write before the move. The move must not lose the written bytes, and a
    // COMMIT after the move must return the same verifier as the write.
    let early = write(&files, file, 3 << 20, &pattern(777, 2), Stability::Unstable).await;
    set_size(&files, file, (4 << 20) + 5).await;
    want.resize((4 << 20) + 5, 0);
    let all = async || {
        let parts = [0, 1 << 20, 2 << 20, 3 << 20, 4 << 20].map(|at| read(&files, file, at, 1 << 20));
        let parts = futures_util::future::join_all(parts).await;
        parts.into_iter().flat_map(|part| part.unwrap()).collect::<Vec<u8>>()
    };
    let hole = async || files.seek(&ctx(1), file, 0, Content::Hole).await.unwrap().offset;
    let first_hole = hole().await;
    for round in 0..3 {
        let before = numbers(&cluster, file).await;
        let to = match round {
            0 => elsewhere(&cluster, file).await,
            1 => before,
            _ => vec![before[1], before[0]],
        };
        cluster.mgr().swap_layout(file, to.clone()).await.unwrap();
        assert_eq!(numbers(&cluster, file).await, to);
        assert!(all().await == want, "round {round}");
        assert_eq!((hole().await, hole().await < 3 << 20), (first_hole, true), "a hole was filled");
        assert_eq!(files.commit(&ctx(1), file, ByteRange::ALL).await, Ok(early.verifier));
        // After a move, the next move of the file fails with `Delay` until the mgr has deleted the unused objects of
        // the first move.
        assert_eq!(swap(&cluster, file).await, Err(Status::Delay));
        assert_eq!(check(&cluster, false).await, []);
        clean(&cluster, 2).await;
        assert!(all().await == want, "round {round}");
    }
    let counters = cluster.mgr().counters();
    assert_eq!((counters.layouts_swapped, counters.unused_swept), (3, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_copies_move() {
    let mut cluster = Cluster::stopped(4, "64").await;
    (cluster.config.stripe_count, cluster.config.lease_secs, cluster.config.mirrors) = (1, 1, 2);
    cluster.start_mgr().await;
    cluster.wait_up(4).await;
    let (files, file) = (cluster.files(), create(&cluster.files(), "f").await);
    write(&files, file, 0, &pattern(5000, 1), Stability::FileSync).await;
    cluster.mgr().swap_layout(file, vec![0, 1]).await.unwrap();
    clean(&cluster, 2).await;
    drop(files);
    let holders: Vec<usize> = (0..4).filter(|iod| later(&cluster, *iod, ObjectId::new(file, 1)).exists()).collect();
    assert_eq!(holders.len(), 2);
    for iod in holders {
        cluster.stop_iod(iod);
        until("the iod is down", || cluster.up() == 3).await;
        assert!(read(&cluster.files(), file, 0, 5000).await.unwrap() == pattern(5000, 1));
        cluster.start_iod(iod);
        cluster.wait_up(4).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_moved_is_refused() {
    let mut cluster = four().await;
    cluster.config.inline_max = "1000".into();
    cluster.restart_mgr().await;
    cluster.wait_up(4).await;
    let files = cluster.files();
    let (file, inline) = (create(&files, "f").await, create(&files, "inline").await);
    write(&files, file, 0, &pattern(5000, 1), Stability::FileSync).await;
    write(&files, inline, 0, &pattern(50, 1), Stability::FileSync).await;
    let moved = async |file, iods: &[u16]| cluster.mgr().swap_layout(file, iods.to_vec()).await;
    let inval = Err(Status::Inval);
    for iods in [&[][..], &[0], &[0, 0], &[1, 1], &[0, 1, 2], &[0, 77], &[77, 78]] {
        assert_eq!(moved(file, iods).await, inval, "{iods:?}");
    }
    assert_eq!(moved(inline, &[0, 1]).await, inval);
    assert_eq!(moved(FileId::ROOT, &[0, 1]).await, Err(Status::IsDir));
    assert_eq!(moved(FileId(12345), &[0, 1]).await, Err(Status::Stale));
    assert_eq!((unused(&cluster), cluster.objects()), (0, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_waits_for_layouts_and_ends_their_rights() {
    let cluster = four().await;
    let (files, file) = (cluster.files(), create(&cluster.files(), "f").await);
    write(&files, file, 0, &pattern(1000, 1), Stability::FileSync).await;
    let mine = layout(&files, 7, file, Iomode::ReadWrite).await;
    let theirs = layout(&files, 8, file, Iomode::Read).await;
    assert_eq!(mine.devices, theirs.devices);
    let mut moving = pin!(swap(&cluster, file));
    let waits = tokio::time::timeout(Duration::from_millis(300), moving.as_mut()).await;
    assert!(waits.is_err(), "two clients have a layout");
    // Until the clients have returned their layouts, the mgr refuses only requests for layouts of the file.
    let ask = files.layout_get(&ctx(9), crate::layouts::ask(file, Iomode::Read)).await;
    assert_eq!(ask.map(drop), Err(Status::Delay));
    write_direct(&files, 7, &mine, 0, &pattern(100, 2)).await.unwrap();
    write(&files, file, 100, &pattern(100, 3), Stability::FileSync).await;
    gone(&files, 7, file, Iomode::ReadWrite, LayoutGone::Returned { kind: KIND, body: Bytes::new() }).await;
    // One client does not return its layout, so the mgr revokes this layout.
    gone(&files, 8, file, Iomode::Read, LayoutGone::Revoked).await;
    moving.await.unwrap();
    let late = write_direct(&files, 7, &mine, 0, &pattern(100, 9)).await;
    assert_eq!(late.map_err(|failure| failure.status), Err(Status::Fenced));
    let next = layout(&files, 7, file, Iomode::ReadWrite).await;
    assert!(next.devices.iter().all(|iod| !mine.devices.contains(iod)) && next.generation > mine.generation);
    assert_eq!((mine.object, next.object), (ObjectId::stream_0(file), ObjectId::new(file, 1)));
    write_direct(&files, 7, &next, 200, &pattern(100, 4)).await.unwrap();
    let want = [pattern(100, 2), pattern(100, 3), pattern(100, 4), pattern(1000, 1)[300..].to_vec()].concat();
    assert!(read(&files, file, 0, 1000).await.unwrap() == want);
    gone(&files, 7, file, Iomode::ReadWrite, LayoutGone::Returned { kind: KIND, body: Bytes::new() }).await;
    clean(&cluster, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_iod_that_is_down_stops_a_move_and_loses_nothing() {
    let mut cluster = four().await;
    let file = create(&cluster.files(), "f").await;
    write(&cluster.files(), file, 0, &pattern(1000, 1), Stability::FileSync).await;
    let old = iods(&cluster.files(), file).await;
    let down = at(&cluster, old[0]);
    let to = elsewhere(&cluster, file).await;
    for iod in [down, to[0].into()] {
        cluster.stop_iod(iod);
        until("the iod is down", || cluster.up() == 3).await;
        assert_eq!(cluster.mgr().swap_layout(file, to.clone()).await, Err(Status::Delay));
        assert_eq!(unused(&cluster), 0, "nothing was begun");
        cluster.start_iod(iod);
        cluster.wait_up(4).await;
        write(&cluster.files(), file, 0, &pattern(1000, 1), Stability::FileSync).await;
        assert_eq!(iods(&cluster.files(), file).await, old);
    }
    // If an iod is down after the move, the unused object on this iod stays until the iod is back.
    swap(&cluster, file).await.unwrap();
    cluster.stop_iod(down);
    until("the iod is down", || cluster.up() == 3).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(unused(&cluster), 1);
    write(&cluster.files(), file, 10, &pattern(500, 2), Stability::FileSync).await;
    cluster.start_iod(down);
    cluster.wait_up(4).await;
    clean(&cluster, 2).await;
    let want = [&pattern(1000, 1)[..10], &pattern(500, 2), &pattern(1000, 1)[510..]].concat();
    assert!(read(&cluster.files(), file, 0, 1000).await.unwrap() == want);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_removed_after_a_move_leaves_no_object() {
    let cluster = four().await;
    let (files, file) = (cluster.files(), create(&cluster.files(), "f").await);
    write(&files, file, 0, &pattern(1000, 1), Stability::FileSync).await;
    swap(&cluster, file).await.unwrap();
    remove(&files, "f").await;
    files.reap(&ctx(1), file).await.unwrap();
    assert_eq!(unused(&cluster), 1);
    assert_eq!(check(&cluster, false).await, []);
    clean(&cluster, 0).await;
}

/// Returns a layout record for the next stream of a file: on the same iods (`in_place`), or on the two iods without
/// objects of the file.
fn next(from: &Layout, in_place: bool) -> Layout {
    let record = Record::from_bytes(&from.body).unwrap();
    let iods = (0..4).filter(|iod| record.iods.contains(iod) == in_place).collect();
    Layout { kind: KIND, body: Record { iods, stream: record.stream + 1, ..record }.to_bytes() }
}

/// A move of a file changes the metadata store several times. The mgr crashes between two of these changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_two_steps_leaves_one_set_of_objects() {
    let mut cluster = four().await;
    let file = create(&cluster.files(), "f").await;
    write(&cluster.files(), file, 0, &pattern(1000, 1), Stability::FileSync).await;
    let old = iods(&cluster.files(), file).await;
    // The mgr crashes after it has recorded the new objects, when only some bytes of one new object exist.
    offline(&mut cluster, async |namespace, _| {
        let from = namespace.info(file).unwrap().layout.unwrap();
        let to = next(&from, true);
        let begun = namespace.begin_swap(Default::default(), file, &from, &to).await.unwrap();
        assert!(begun.is_some());
    })
    .await;
    cluster.wait_up(4).await;
    Native::connect(&cluster, at(&cluster, old[0])).await.make(ObjectId::new(file, 1)).await;
    assert_eq!((check(&cluster, false).await, cluster.objects()), (Vec::new(), 3));
    assert_eq!(swap(&cluster, file).await, Err(Status::Delay), "the note is not worked off");
    clean(&cluster, 2).await;
    assert_eq!(iods(&cluster.files(), file).await, old);
    assert!(read(&cluster.files(), file, 0, 2000).await.unwrap() == pattern(1000, 1));
    // The next move of the file uses the same stream as the unfinished move.
    cluster.mgr().swap_layout(file, numbers(&cluster, file).await).await.unwrap();
    clean(&cluster, 2).await;
    assert!(read(&cluster.files(), file, 0, 2000).await.unwrap() == pattern(1000, 1));
    // The mgr crashes after the swap, before any iod has the new generation. The file is empty, so the move has no
    // bytes to copy.
    let empty = create(&cluster.files(), "empty").await;
    let old = iods(&cluster.files(), empty).await;
    offline(&mut cluster, async |namespace, _| {
        let from = namespace.info(empty).unwrap().layout.unwrap();
        let begun = namespace.begin_swap(Default::default(), empty, &from, &next(&from, false)).await.unwrap().unwrap();
        namespace.swap_layout(Default::default(), empty, (&from, begun), begun).await.unwrap().unwrap();
    })
    .await;
    cluster.wait_up(4).await;
    let late = Native::connect(&cluster, at(&cluster, old[0])).await.write(empty, 0, 0, b"late").await;
    assert_eq!((late, check(&cluster, false).await), (Ok(()), Vec::new()), "the old object is not used");
    write(&cluster.files(), empty, 0, &pattern(1000, 3), Stability::FileSync).await;
    clean(&cluster, 4).await;
    assert!(iods(&cluster.files(), empty).await.iter().all(|iod| !old.contains(iod)));
    assert!(read(&cluster.files(), empty, 0, 2000).await.unwrap() == pattern(1000, 3));
}

/// Polls `work` once, and then at most `times` times more. Returns the result of `work`, or `None` if `work` has not
/// completed.
async fn cut_after<T>(work: impl Future<Output = T>, times: usize) -> Option<T> {
    let (mut work, mut left) = (pin!(work), times);
    poll_fn(|task| match work.as_mut().poll(task) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// The mgr stops at every point where a move waits for the store or for an iod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_at_any_point_leaves_the_old_or_the_new_objects() {
    let mut cluster = four().await;
    let file = create(&cluster.files(), "f").await;
    let (mut ended, mut old_left, mut new_left) = (0, 0, 0);
    let mut point = 0;
    while ended == 0 {
        let want = pattern(1000, point as u8);
        write(&cluster.files(), file, 0, &want, Stability::FileSync).await;
        let before = used(&cluster.files(), file).await;
        let to = if point % 2 == 0 { numbers(&cluster, file).await } else { elsewhere(&cluster, file).await };
        let outcome = cut_after(cluster.mgr().swap_layout(file, to), point).await;
        assert!(matches!(outcome, None | Some(Ok(()))), "point {point}: {outcome:?}");
        ended += usize::from(outcome.is_some());
        cluster.restart_mgr().await;
        cluster.wait_up(4).await;
        assert!(read(&cluster.files(), file, 0, 2000).await.unwrap() == want, "point {point}");
        let after = used(&cluster.files(), file).await;
        match after == before {
            true => old_left += 1,
            false => new_left += 1,
        }
        assert!(after == before || after.0.stream == before.0.stream + 1, "point {point}: {before:?}, {after:?}");
        assert_eq!(check(&cluster, false).await, [], "point {point}");
        clean(&cluster, 2).await;
        assert!(read(&cluster.files(), file, 0, 2000).await.unwrap() == want, "point {point}");
        point += 1;
    }
    println!("{point} points: {old_left} left the old objects, {new_left} the new ones");
    assert!(point > 8 && old_left > 5 && new_left > 0, "{point} {old_left} {new_left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_and_truncations_wait_while_bytes_move() {
    let cluster = four().await;
    let (files, file) = (cluster.files(), create(&cluster.files(), "f").await);
    write(&files, file, 0, &pattern(1000, 1), Stability::FileSync).await;
    // Interrupt the move at each point where it waits for the store or for an iod. After the test has dropped the
    // future of the move, clients can change the file again.
    let mut refused = 0;
    for point in 0.. {
        let to = numbers(&cluster, file).await;
        let mut moving = Box::pin(cluster.mgr().swap_layout(file, to));
        let ended = cut_after(moving.as_mut(), point).await.is_some();
        if !ended {
            let (caller, data) = (ctx(1), Bytes::from_static(b"x"));
            let wrote = files.write(&caller, file, 0, data, Stability::FileSync);
            let wrote = tokio::time::timeout(Duration::from_secs(5), wrote).await.expect("an answer at once");
            let wrote = wrote.map(drop);
            let cut = SetAttrs { size: Some(1000), ..SetAttrs::default() };
            if wrote.is_err() {
                assert_eq!(wrote, Err(Status::Delay));
                assert_eq!(files.setattr(&ctx(1), file, cut, true).await.map(drop), Err(Status::Delay));
                refused += 1;
            }
            // Reads of a file never wait for a move of this file.
            let kept = read(&files, file, 1, 2000).await.unwrap();
            assert!(kept == pattern(1000, 1)[1..], "point {point}");
        }
        drop(moving);
        files.write(&ctx(1), file, 0, Bytes::from_static(b"y"), Stability::FileSync).await.unwrap();
        clean(&cluster, 2).await;
        if ended {
            break;
        }
    }
    assert!(refused > 3, "{refused}");
}
