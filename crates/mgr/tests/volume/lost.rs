//! Lost object data: reads fail instead of returning zeros, checks report the loss, and the mgr rebuilds lost copies.

use crate::check::{check, codes, object, wait_settled};
use crate::cluster::{Cluster, create, ctx, mode, pattern, read, until, write};
use nfs::fs::{FileSystem, Stability};
use std::path::PathBuf;
use types::{ByteRange, FileId, SetAttrs, Status};
use wire::admin::Mended;

/// Length of the test file in bytes. The file is striped in units of 64 bytes over two iods. With mirrors, each of the
/// two copies has two iods.
const LEN: usize = 300;
/// Length of the header in the file of an object, in bytes.
const HEAD: u64 = 4096;

async fn cluster(mirrors: u32) -> Cluster {
    let mut cluster = Cluster::stopped(2 * mirrors as usize, "64").await;
    cluster.config.mirrors = mirrors;
    cluster.start_mgr().await;
    cluster.wait_up(2 * mirrors as usize).await;
    cluster
}

/// Creates a file, and writes, commits and closes it.
async fn file(cluster: &Cluster, name: &str, stable: Stability) -> FileId {
    let files = cluster.files();
    let file = create(&files, name).await;
    write(&files, file, 0, &pattern(LEN, 1), stable).await;
    files.commit(&ctx(1), file, ByteRange::ALL).await.unwrap();
    files.closed(&ctx(1), file, true).await.unwrap();
    wait_settled(cluster).await;
    file
}

/// Returns the existing objects of a file: for each, the position of its iod and the path of its file.
fn objects(cluster: &Cluster, file: FileId) -> Vec<(usize, PathBuf)> {
    let all = (0..cluster.config.iods.len()).map(|iod| (iod, object(cluster, iod, file)));
    all.filter(|(_, path)| path.exists()).collect()
}

/// Stops an iod, deletes an object of the iod or truncates it to `left` bytes, and starts the iod again.
async fn lose(cluster: &mut Cluster, (iod, path): &(usize, PathBuf), left: Option<u64>) {
    let up = cluster.up();
    cluster.stop_iod(*iod);
    match left {
        None => std::fs::remove_file(path).unwrap(),
        Some(left) => std::fs::File::options().write(true).open(path).unwrap().set_len(HEAD + left).unwrap(),
    }
    until("the loss is noticed", || cluster.up() == up - 1).await;
    cluster.start_iod(*iod);
    cluster.wait_up(up).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_lost_bytes_fail_instead_of_returning_zeros() {
    let mut cluster = cluster(1).await;
    let whole = pattern(LEN, 1);
    for (round, left) in [None, Some(0), Some(1), Some(100)].into_iter().enumerate() {
        for which in 0..2 {
            let stable = if which == 0 { Stability::FileSync } else { Stability::Unstable };
            let file = file(&cluster, &format!("{round}-{which}"), stable).await;
            let objects = objects(&cluster, file);
            assert_eq!(objects.len(), 2);
            lose(&mut cluster, &objects[which], left).await;
            let files = cluster.files();
            let mut lost = 0;
            for at in 0..LEN as u64 {
                match read(&files, file, at, 1).await {
                    Ok(byte) => assert_eq!(byte[..], whole[at as usize..][..1], "byte {at}"),
                    Err(error) => lost += u64::from(error == Status::Lost),
                }
            }
            assert!((28..=192).contains(&lost), "reads of {lost} lost bytes failed");
            let found = check(&cluster, false).await;
            let code = if left.is_none() { "object-missing" } else { "object-short" };
            assert_eq!((codes(&found), found[0].inode), (vec![code], Some(file.0)), "{found:?}");
            let named: u64 = found[0].text.split(": ").last().unwrap().split(' ').next().unwrap().parse().unwrap();
            assert_eq!(named, lost, "{}", found[0].text);
            assert_eq!(check(&cluster, true).await[0].mended, Mended::Failed);
            // A write after the lost bytes, or a truncation before the end of the file, would turn lost bytes into
            // zeros, so the mgr refuses both requests.
            let cred = ctx(1);
            let written = files.write(&cred, file, LEN as u64 - 1, vec![7].into(), Stability::FileSync).await;
            let written_before = files.write(&cred, file, 100, vec![7; 100].into(), Stability::FileSync).await;
            assert!([written, written_before].into_iter().any(|out| out.is_err()));
            let shorter = SetAttrs { size: Some(LEN as u64 - 1), ..mode(0o644) };
            assert_eq!(files.setattr(&cred, file, shorter, true).await.map(drop), Err(Status::Lost));
            // A truncation to zero is allowed, and makes the file usable again.
            let empty = SetAttrs { size: Some(0), ..mode(0o644) };
            files.setattr(&cred, file, empty, true).await.unwrap();
            write(&files, file, 0, &whole, Stability::FileSync).await;
            assert!(read(&files, file, 0, LEN as u32).await.unwrap() == whole);
            files.closed(&cred, file, true).await.unwrap();
            wait_settled(&cluster).await;
            assert_eq!(check(&cluster, false).await, []);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_copy_is_read_from_its_mirror_and_rebuilt() {
    let mut cluster = cluster(2).await;
    let whole = pattern(LEN, 1);
    let rebuilt = |cluster: &Cluster| cluster.mgr().counters().copies_rebuilt;
    for (round, left) in [None, Some(0), Some(1), Some(100)].into_iter().enumerate() {
        for which in 0..4 {
            let file = file(&cluster, &format!("{round}-{which}"), Stability::Unstable).await;
            let objects = objects(&cluster, file);
            assert_eq!(objects.len(), 4);
            let (path, good) = (objects[which].1.clone(), std::fs::read(&objects[which].1).unwrap());
            let before = rebuilt(&cluster);
            lose(&mut cluster, &objects[which], left).await;
            let files = cluster.files();
            // The read succeeds whether or not the mgr has already rebuilt the lost copy.
            assert!(read(&files, file, 0, LEN as u32).await.unwrap() == whole);
            until("the copy is made again", || rebuilt(&cluster) > before).await;
            let now = std::fs::read(path).unwrap();
            assert!(now[HEAD as usize..] == good[HEAD as usize..], "round {round}, object {which}");
            assert_eq!(check(&cluster, false).await, []);
            write(&files, file, LEN as u64, &[5; 10], Stability::FileSync).await;
            files.closed(&ctx(1), file, true).await.unwrap();
            wait_settled(&cluster).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_lost_in_both_copies_are_reported() {
    let mut cluster = cluster(2).await;
    let file = file(&cluster, "f", Stability::FileSync).await;
    let all = objects(&cluster, file);
    // The two copies of one object have equal lengths, and the other object of the file has a different length.
    let len = |path: &PathBuf| path.metadata().unwrap().len();
    let twins: Vec<_> = all.iter().filter(|(_, path)| len(path) == len(&all[0].1)).cloned().collect();
    assert_eq!(twins.len(), 2);
    for (iod, path) in &twins {
        cluster.stop_iod(*iod);
        std::fs::remove_file(path).unwrap();
    }
    until("the losses are noticed", || cluster.up() == 2).await;
    twins.iter().for_each(|(iod, _)| cluster.start_iod(*iod));
    cluster.wait_up(4).await;
    let files = cluster.files();
    let whole = pattern(LEN, 1);
    let mut lost = 0;
    for at in 0..LEN as u64 {
        match read(&files, file, at, 1).await {
            Ok(byte) => assert_eq!(byte[..], whole[at as usize..][..1]),
            Err(error) => lost += u64::from(error == Status::Lost),
        }
    }
    assert!(lost >= 128, "reads of {lost} lost bytes failed");
    let found = check(&cluster, true).await;
    assert_eq!((codes(&found)[0], found[0].mended), ("copy-missing", Mended::Failed), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_are_not_reported_as_damage() {
    let cluster = cluster(1).await;
    let files = cluster.files();
    let file = create(&files, "sparse").await;
    write(&files, file, 10_000, b"behind a hole", Stability::FileSync).await;
    let longer = SetAttrs { size: Some(30_000), ..mode(0o644) };
    files.setattr(&ctx(1), file, longer, true).await.unwrap();
    files.commit(&ctx(1), file, ByteRange::ALL).await.unwrap();
    files.closed(&ctx(1), file, true).await.unwrap();
    wait_settled(&cluster).await;
    let found = read(&files, file, 0, 30_000).await.unwrap();
    assert!(found.len() == 30_000 && found[..10_000].iter().all(|byte| *byte == 0));
    write(&files, file, 29_000, b"x", Stability::FileSync).await;
    files.commit(&ctx(1), file, ByteRange::ALL).await.unwrap();
    files.closed(&ctx(1), file, true).await.unwrap();
    wait_settled(&cluster).await;
    assert_eq!(check(&cluster, false).await, []);
}
