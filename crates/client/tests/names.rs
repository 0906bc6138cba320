//! Tests of names, attributes and I/O on the mgr path, with an mgr that keeps its file system in memory.

use crate::memory_mgr::{MemoryMgr, options};
use bytes::Bytes;
use client::{CreateOptions, ErrorKind, Mount, OpenFlags, Options, Target, XattrMode};
use std::sync::Arc;
use std::time::Duration;
use types::{FileKind, SetAttrs, SetTime, Status, Timestamp};

async fn mounted() -> (MemoryMgr, Mount) {
    let mgr = MemoryMgr::start().await;
    let mount = mgr.mount(options()).await;
    (mgr, mount)
}

fn path(text: &str) -> Vec<Vec<u8>> {
    text.split('/').filter(|c| !c.is_empty()).map(|c| c.as_bytes().to_vec()).collect()
}

#[tokio::test]
async fn names_are_created_linked_renamed_and_removed() {
    let (_mgr, mount) = mounted().await;
    let root = mount.root();
    let (dir, attrs) = mount.mkdir(&root, b"d", 0o750).await.unwrap();
    assert_eq!((attrs.kind, attrs.mode), (FileKind::Directory, 0o750));
    let (link, attrs) = mount.symlink(&dir, b"l", b"../d/f").await.unwrap();
    assert_eq!(attrs.kind, FileKind::Symlink);
    assert_eq!(mount.readlink(&link).await.unwrap(), "../d/f");
    let (pipe, attrs) = mount.mknod(&dir, b"p", FileKind::Fifo, 0o600, (0, 0)).await.unwrap();
    assert_eq!(attrs.kind, FileKind::Fifo);
    let (_, attrs) = mount.mknod(&dir, b"b", FileKind::Block, 0o600, (8, 1)).await.unwrap();
    assert_eq!((attrs.kind, attrs.rdev), (FileKind::Block, (8, 1)));
    assert_eq!(mount.link(&pipe, &root, b"q").await.unwrap().nlink, 2);
    mount.rename(&root, b"q", &dir, b"r").await.unwrap();
    assert_eq!(mount.lookup(&dir, b"r").await.unwrap().0, pipe);
    mount.remove(&dir, b"r").await.unwrap();
    let error = mount.remove(&dir, b"r").await.unwrap_err();
    assert!(error.is(Status::NoEnt), "{error}");
    assert_eq!(error.to_string(), "removing \"r\": no such file or directory");
    let error = mount.remove(&root, b"d").await.unwrap_err();
    assert!(error.is(Status::NotEmpty), "{error}");
    let error = mount.mknod(&dir, b"x", FileKind::Regular, 0, (0, 0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[tokio::test]
async fn path_resolution_follows_symlinks() {
    let (_mgr, mount) = mounted().await;
    let root = mount.root();
    let mut dir = root.clone();
    let mut deep = String::new();
    for i in 0..70 {
        let name = format!("d{i}");
        dir = mount.mkdir(&dir, name.as_bytes(), 0o755).await.unwrap().0;
        deep = format!("{deep}/{name}");
    }
    assert_eq!(mount.resolve(&path(&deep), true).await.unwrap().0, dir, "the path needs more than one round trip");
    mount.symlink(&root, b"absolute", format!("/{deep}").as_bytes()).await.unwrap();
    mount.symlink(&dir, b"up", b"../d69/./..").await.unwrap();
    mount.symlink(&root, b"loop", b"loop/x").await.unwrap();
    let (up, _) = mount.resolve(&path("absolute/up/d69"), true).await.unwrap();
    assert_eq!(up, dir);
    let (node, attrs) = mount.resolve(&path("absolute"), false).await.unwrap();
    assert_eq!(attrs.kind, FileKind::Symlink);
    assert_ne!(node, dir);
    assert_eq!(mount.resolve(&path("absolute/up"), true).await.unwrap().1.kind, FileKind::Directory);
    assert_eq!(mount.resolve(&[], true).await.unwrap().0, root);
    let error = mount.resolve(&path("loop"), true).await.unwrap_err();
    assert_eq!(error.errno(), 40, "{error}");
    let error = mount.resolve(&path("absolute/none/x"), true).await.unwrap_err();
    assert!(error.is(Status::NoEnt), "{error}");
    mount.mknod(&root, b"pipe", FileKind::Fifo, 0o600, (0, 0)).await.unwrap();
    let error = mount.resolve(&path("pipe/x"), true).await.unwrap_err();
    assert!(error.is(Status::NotDir), "{error}");
}

#[tokio::test]
async fn directories_are_read_in_pages() {
    let (_mgr, mount) = mounted().await;
    let root = mount.root();
    let mut wanted = std::collections::BTreeSet::new();
    for i in 0..1500 {
        let name = format!("a-rather-long-name-to-fill-pages-{i}");
        mount.mknod(&root, name.as_bytes(), FileKind::Fifo, 0o600, (0, 0)).await.unwrap();
        wanted.insert(name);
    }
    let mut reader = mount.readdir(&root);
    let (mut seen, mut pages) = (std::collections::BTreeSet::new(), 0);
    let mut resume = 0;
    while let Some(page) = reader.next_page().await.unwrap() {
        pages += 1;
        for entry in &page {
            assert_eq!(entry.attrs.kind, FileKind::Fifo);
            assert_eq!(entry.node.id, entry.attrs.id);
            assert!(seen.insert(String::from_utf8(entry.name.to_vec()).unwrap()));
        }
        resume = if pages == 1 { page[9].cookie } else { resume };
    }
    assert_eq!(seen, wanted);
    assert!(pages > 1);
    assert_eq!(reader.next_page().await.unwrap(), None);
    let mut left = 0;
    let mut reader = mount.readdir_from(&root, resume);
    while let Some(page) = reader.next_page().await.unwrap() {
        left += page.len();
    }
    assert_eq!(left, 1490);
}

#[tokio::test]
async fn attributes_and_xattrs_are_stored() {
    let (_mgr, mount) = mounted().await;
    let file = mount.create(&mount.root(), b"f", CreateOptions::default()).await.unwrap();
    let node = file.node();
    let then = Timestamp { secs: 1_000_000_000, nanos: 123_456_789 };
    let changes = SetAttrs {
        mode: Some(0o4711),
        uid: Some(5),
        gid: Some(6),
        mtime: Some(SetTime::To(then)),
        ..SetAttrs::default()
    };
    let attrs = file.finish(changes, None).await.unwrap();
    assert_eq!((attrs.mode, attrs.uid, attrs.gid, attrs.mtime), (0o4711, 5, 6, then));
    assert_eq!(mount.getattr(&node).await.unwrap().mtime, then);
    mount.setxattr(&node, b"one", b"1", XattrMode::Either).await.unwrap();
    mount.setxattr(&node, b"two", &[7; 9000], XattrMode::Either).await.unwrap();
    assert_eq!(mount.getxattr(&node, b"two").await.unwrap(), vec![7; 9000]);
    let mut names = mount.listxattr(&node).await.unwrap();
    names.sort();
    assert_eq!(names, ["one", "two"]);
    mount.removexattr(&node, b"one").await.unwrap();
    assert!(mount.getxattr(&node, b"one").await.unwrap_err().is(Status::NoXattr));
    assert_eq!(mount.access(&node, 0x1ff).await.unwrap() & 1, 1);
    assert!(mount.statfs().await.unwrap().bytes_total > 0);
}

#[tokio::test]
async fn creating_writing_and_finishing_a_file_takes_three_compounds() {
    let (_mgr, mount) = mounted().await;
    let root = mount.root();
    let before = mount.counters().rpc("COMPOUND");
    let file = mount.create(&root, b"tmp", CreateOptions { exclusive: true, ..Default::default() }).await.unwrap();
    file.write_at(0, Bytes::from_static(b"hello")).await.unwrap();
    let changes = SetAttrs { mode: Some(0o640), ..SetAttrs::default() };
    let attrs = file.finish(changes, Some((&root, b"final"))).await.unwrap();
    // The client sends three COMPOUNDs: one for the create, one for the write on the mgr path, and one for the mode
    // change, the close and the rename.
    assert_eq!(mount.counters().rpc("COMPOUND") - before, 3, "{:?}", mount.counters());
    assert_eq!((attrs.size, attrs.mode), (5, 0o640));
    let (node, _) = mount.lookup(&root, b"final").await.unwrap();
    assert!(mount.lookup(&root, b"tmp").await.unwrap_err().is(Status::NoEnt));
    let file = mount.open(&node, OpenFlags::READ).await.unwrap();
    let got = file.read_at(0, 100).await.unwrap();
    assert_eq!((got.to_vec(), got.eof), (b"hello".to_vec(), true));
    file.close().await.unwrap();
    let again = mount.create(&root, b"final", CreateOptions { exclusive: true, ..Default::default() }).await;
    assert!(again.err().unwrap().is(Status::Exist));
}

#[tokio::test]
async fn the_mgr_path_stores_and_truncates_bytes() {
    let (_mgr, mount) = mounted().await;
    let file = mount.create(&mount.root(), b"f", CreateOptions::default()).await.unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 / 3) as u8).collect();
    file.write_at(5, Bytes::from(data.clone())).await.unwrap();
    assert_eq!(file.size(), 3_000_005);
    file.write_at(100, Bytes::from_static(b"middle")).await.unwrap();
    let got = file.read_at(0, 4_000_000).await.unwrap().to_vec();
    let mut model = vec![0; 5];
    model.extend(&data);
    model[100..106].copy_from_slice(b"middle");
    assert!(got == model);
    file.set_len(50).await.unwrap();
    file.set_len(60).await.unwrap();
    let mut model = model[..50].to_vec();
    model.resize(60, 0);
    assert_eq!(file.read_at(0, 100).await.unwrap().to_vec(), model);
    file.close().await.unwrap();
    let counters = mount.counters();
    assert!(counters.written_via_mgr >= 3_000_006 && counters.written_direct == 0, "{counters:?}");
    // Truncate the file with an open that has the truncate flag (`O_TRUNC`).
    let (node, _) = mount.lookup(&mount.root(), b"f").await.unwrap();
    let file = mount.open(&node, OpenFlags { truncate: true, ..OpenFlags::WRITE }).await.unwrap();
    assert_eq!(file.size(), 0);
    assert_eq!(file.read_at(0, 1).await.unwrap_err().kind(), ErrorKind::Usage);
    file.close().await.unwrap();
}

#[tokio::test]
async fn files_are_opened_again_after_the_lease_expired() {
    let (mgr, mount) = mounted().await;
    let file = mount.create(&mount.root(), b"f", CreateOptions::default()).await.unwrap();
    file.write_at(0, Bytes::from_static(b"before")).await.unwrap();
    file.fsync().await.unwrap();
    mgr.expire().await;
    // In the reply to the next request, the client notices that the mgr has ended the session. The client then opens
    // the file again.
    assert_eq!(mount.getattr(&file.node()).await.unwrap().size, 6);
    file.write_at(6, Bytes::from_static(b" and after")).await.unwrap();
    file.fsync().await.unwrap();
    assert_eq!(file.read_at(0, 100).await.unwrap().to_vec(), b"before and after");
    file.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_survive_an_expired_lease() {
    let (mgr, mount) = mounted().await;
    let file = Arc::new(mount.create(&mount.root(), b"f", CreateOptions::default()).await.unwrap());
    file.write_at(0, Bytes::from_static(b"some bytes")).await.unwrap();
    file.fsync().await.unwrap();
    let readers: Vec<_> = (0..8u64)
        .map(|i| {
            let file = file.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    assert_eq!(file.read_at(i, 1).await?.to_vec(), &b"some bytes"[i as usize..][..1]);
                }
                file.write_at(100 + i, Bytes::from_static(b"x")).await?;
                file.fsync().await
            })
        })
        .collect();
    while !readers.iter().all(|reader| reader.is_finished()) {
        mgr.expire().await;
        // Wait until some READs or WRITEs have succeeded under the new session. Otherwise the next lease expiry could
        // interrupt only the creation of a session, and no READ or WRITE.
        let (before, rpcs) = (mount.counters(), |c: client::Counters| c.rpc("READ") + c.rpc("WRITE"));
        while rpcs(mount.counters()) < rpcs(before.clone()) + 16 && !readers.iter().all(|r| r.is_finished()) {
            tokio::task::yield_now().await;
        }
    }
    for reader in readers {
        reader.await.unwrap().unwrap();
    }
    Arc::into_inner(file).unwrap().close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mkdir_that_fails_during_recovery_is_in_doubt() {
    let (mgr, mount) = mounted().await;
    let maker = tokio::spawn({
        let mount = mount.clone();
        async move {
            for i in 0..200 {
                if let Err(error) = mount.mkdir(&mount.root(), format!("d{i}").as_bytes(), 0o755).await {
                    assert!(error.is_in_doubt(), "{error}");
                }
            }
        }
    });
    let mut made = 0;
    while !maker.is_finished() {
        mgr.expire().await;
        while mount.counters().rpc("COMPOUND") < made + 8 && !maker.is_finished() {
            tokio::task::yield_now().await;
        }
        made = mount.counters().rpc("COMPOUND");
    }
    maker.await.unwrap();
    assert!(mount.lookup(&mount.root(), b"nothing").await.is_err_and(|e| !e.is_in_doubt()));
}

#[tokio::test]
async fn opens_of_one_mount_see_each_others_bytes() {
    let (_mgr, mount) = mounted().await;
    let one = mount.create(&mount.root(), b"f", CreateOptions::default()).await.unwrap();
    let two = mount.open(&one.node(), OpenFlags::READ_WRITE).await.unwrap();
    one.write_at(0, Bytes::from_static(b"abc")).await.unwrap();
    assert_eq!(two.read_at(0, 10).await.unwrap().to_vec(), b"abc");
    two.write_at(1, Bytes::from_static(b"XY")).await.unwrap();
    assert_eq!(mount.getattr(&one.node()).await.unwrap().size, 3);
    one.close().await.unwrap();
    assert_eq!(two.read_at(0, 10).await.unwrap().to_vec(), b"aXY");
    two.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_over_cut_connections_are_executed_exactly_once() {
    let (mgr, mount) = mounted().await;
    let root = mount.root();
    for i in 0..300u32 {
        // If the mgr executed the RENAME twice, the second execution would not find the old name and would fail. If
        // the mgr did not execute the MKDIR, the RENAME would find no directory. So the test fails unless the mgr
        // executes each request exactly once.
        let (from, to) = (format!("from{i}"), format!("to{i}"));
        let made = async {
            mount.mkdir(&root, from.as_bytes(), 0o755).await.unwrap();
            mount.rename(&root, from.as_bytes(), &root, to.as_bytes()).await.unwrap();
        };
        // Close the connection during the first request: either before the request reaches the mgr, or before the reply
        // reaches the client.
        let cut = async {
            for _ in 0..i % 5 {
                tokio::task::yield_now().await;
            }
            mgr.cut();
        };
        tokio::join!(made, cut);
    }
    assert!(mount.counters().reconnects > 0);
    let mut names = 0;
    let mut reader = mount.readdir(&root);
    while let Some(page) = reader.next_page().await.unwrap() {
        names += page.len();
    }
    assert_eq!(names, 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_share_the_session_slots() {
    let (_mgr, mount) = mounted().await;
    let root = mount.root();
    let tasks = (0..400u32).map(|i| {
        let (mount, root) = (mount.clone(), root.clone());
        tokio::spawn(async move { mount.mkdir(&root, format!("d{i}").as_bytes(), 0o755).await.map(|_| ()) })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap().unwrap();
    }
    mount.disconnect().await.unwrap();
}

#[tokio::test]
async fn a_missing_server_is_reported_as_a_connection_error() {
    let target = Target::parse("weir://127.0.0.1:1/").unwrap();
    let options = Options { connect_timeout: Duration::from_millis(50), ..options() };
    let error = Mount::connect(&target, options).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.to_string().starts_with("cannot connect to 127.0.0.1:1"), "{error}");
}
