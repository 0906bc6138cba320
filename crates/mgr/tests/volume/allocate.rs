//! ALLOCATE: reserved space on iods, its effect on the file, refused requests, and the release of the space.

use crate::cluster::{Cluster, create, ctx, pattern, read, set_size, until, write};
use mgr::Files;
use nfs::fs::{FileSystem, Stability};
use types::{ByteRange, FileId, Status, limits};

async fn allocate(files: &Files, file: FileId, offset: u64, len: u64) -> Result<(), Status> {
    files.allocate(&ctx(1), file, ByteRange { offset, len }).await
}

/// Returns the disk space that all objects on all iods use, in bytes.
fn stored(cluster: &Cluster) -> u64 {
    fn below(dir: &std::path::Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let size = |path: std::path::PathBuf| match path.is_dir() {
            true => below(&path),
            false => path.metadata().unwrap().blocks() * 512,
        };
        entries.map(|entry| size(entry.path())).sum()
    }
    cluster.iods.iter().flatten().map(|iod| below(&iod.store().dir().join("objects"))).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocate_extends_the_file_and_deallocate_frees_its_space() {
    for (mirrors, copies) in [(1, 1), (2, 2)] {
        let mut cluster = Cluster::stopped(4, "65536").await;
        cluster.config.mirrors = mirrors;
        cluster.start_mgr().await;
        let files = cluster.files();
        let file = create(&files, "f").await;
        write(&files, file, 0, b"data", Stability::FileSync).await;
        let before = files.getattr(&ctx(1), file).await.unwrap();
        let empty = stored(&cluster);
        allocate(&files, file, 1 << 20, 2 << 20).await.unwrap();
        let after = files.getattr(&ctx(1), file).await.unwrap();
        assert_eq!(after.size, 3 << 20);
        assert!(after.change > before.change && after.mtime > before.mtime && after.ctime > before.ctime);
        assert!(stored(&cluster) >= empty + copies * (2 << 20));
        // An ALLOCATE within the file does not change its size.
        allocate(&files, file, 0, 1 << 20).await.unwrap();
        assert_eq!(files.getattr(&ctx(1), file).await.unwrap().size, 3 << 20);
        let full = stored(&cluster);
        assert!(full >= copies * (3 << 20));
        assert_eq!(read(&files, file, 0, 6).await.unwrap(), &b"data\0\0"[..]);
        assert!(read(&files, file, 2 << 20, 1 << 20).await.unwrap().iter().all(|b| *b == 0));
        write(&files, file, 1 << 20, &pattern(300_000, 1), Stability::FileSync).await;
        assert_eq!(stored(&cluster), full);
        files.deallocate(&ctx(1), file, ByteRange { offset: 1 << 20, len: 2 << 20 }).await.unwrap();
        assert!(stored(&cluster) <= full - copies * (2 << 20));
        assert_eq!(set_size(&files, file, 4).await.size, 4);
        assert!(stored(&cluster) < empty + (64 << 10));
        assert_eq!(read(&files, file, 0, 10).await.unwrap(), &b"data"[..]);
    }
}

/// Returns the sum of the lengths of the files of all objects, including the headers of the objects.
fn lengths(cluster: &Cluster) -> u64 {
    fn below(dir: &std::path::Path) -> u64 {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|e| if e.path().is_dir() { below(&e.path()) } else { e.metadata().unwrap().len() }).sum()
    }
    cluster.iods.iter().flatten().map(|iod| below(&iod.store().dir().join("objects"))).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocated_ranges_end_at_a_page_or_at_the_end_of_the_file() {
    let cluster = Cluster::new(2, "65536").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 200_000, &[1], Stability::FileSync).await;
    for (from, to, as_good_as) in [(100, 5000, 8192), (70_000, 131_000, 131_072), (199_990, 200_001, 200_001)] {
        allocate(&files, file, from, to - from).await.unwrap();
        let reached = lengths(&cluster);
        allocate(&files, file, from, as_good_as - from).await.unwrap();
        assert_eq!(lengths(&cluster), reached, "{from} to {to}");
        assert_eq!(files.getattr(&ctx(1), file).await.unwrap().size, 200_001);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_allocations_are_refused() {
    let mut cluster = Cluster::new(2, "65536").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(200_000, 1), Stability::FileSync).await;
    assert_eq!(allocate(&files, file, 0, 1 << 55).await, Err(Status::NoSpc));
    assert_eq!(allocate(&files, file, limits::FILE_SIZE_MAX, 1).await, Err(Status::FBig));
    assert!(read(&files, file, 0, 300_000).await.unwrap()[..200_000] == pattern(200_000, 1));
    assert_eq!(allocate(&files, FileId::ROOT, 0, 1).await, Err(Status::IsDir));
    cluster.stop_iod(1);
    until("the loss is noticed", || cluster.up() == 1).await;
    let before = stored(&cluster);
    assert_eq!(allocate(&files, file, 1 << 20, 1 << 20).await, Err(Status::Delay));
    assert_eq!((stored(&cluster), files.getattr(&ctx(1), file).await.unwrap().size), (before, 200_000));
}
