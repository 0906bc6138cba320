//! Names and attributes through the mgr's file system, and the policies that new files take from their directory.

use crate::cluster::{Cluster, create, ctx, mode, pattern, read, write};
use bytes::Bytes;
use layout::kinds::native::{Body, KIND};
use mgr::Files;
use nfs::fs::{CreateKind, Ctx, FileSystem, Iomode, LayoutAsk, OpenHow, Stability, XattrHow, access};
use types::{ByteRange, Cred, FileId, FileKind, SetAttrs, Status};
use xdr::Xdr;

async fn body(files: &Files, file: FileId) -> Body {
    let ask = LayoutAsk {
        file,
        kind: KIND,
        iomode: Iomode::Read,
        readable: true,
        range: ByteRange::ALL,
        min_len: 0,
        max_body: types::limits::LAYOUT_BODY_MAX,
    };
    Body::from_bytes(&files.layout_get(&ctx(1), ask).await.unwrap().body).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_checked_inherited_and_followed() {
    let cluster = Cluster::new(3, "1M").await;
    let files = cluster.files();
    let name = |s: &'static str| Bytes::from_static(s.as_bytes());
    let dir = files.create(&ctx(1), FileId::ROOT, &name("d"), CreateKind::Directory, mode(0o755)).await.unwrap();
    let dir = dir.attrs.id;
    let set = async |file, key, value| files.setxattr(&ctx(1), file, &name(key), name(value), XattrHow::Either).await;
    for (key, value) in [("weir.stripe_unit", "100"), ("weir.stripe_count", "-1"), ("weir.unknown", "1")] {
        assert_eq!(set(dir, key, value).await, Err(Status::Inval), "{key}={value}");
    }
    set(dir, "weir.stripe_unit", "64K").await.unwrap();
    set(dir, "weir.stripe_count", "2").await.unwrap();
    set(dir, "other", "anything").await.unwrap();
    let inner = files.create(&ctx(1), dir, &name("inner"), CreateKind::Directory, mode(0o755)).await.unwrap().attrs.id;
    for parent in [dir, inner] {
        let made = files.open_create(&ctx(1), parent, &name("f"), OpenHow::Guarded, mode(0o644), false).await.unwrap();
        let body = body(&files, made.attrs.id).await;
        assert_eq!((body.stripe_unit, body.devices.len()), (65536, 2));
    }
    // The first objects of consecutive new files are on different iods.
    let mut first = Vec::new();
    for i in 0..3 {
        let file = create(&files, &format!("r{i}")).await;
        let body = body(&files, file).await;
        assert_eq!((body.stripe_unit, body.devices.len()), (1 << 20, 3));
        first.push(body.devices[0]);
    }
    first.sort();
    first.dedup();
    assert_eq!(first.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_a_file_sends_no_request_to_iods() {
    let cluster = Cluster::new(2, "1M").await;
    let files = cluster.files();
    // The mgr requests statistics and lists of objects from iods in the background. All other requests to iods are
    // caused by operations on files.
    let requests = || {
        let count = |iod: &iod::Running| {
            iod.counters().iter().filter(|c| is_file_request(&c.name)).map(|c| c.value).sum::<u64>()
        };
        cluster.iods.iter().flatten().map(count).sum::<u64>()
    };
    let before = requests();
    for i in 0..20 {
        let file = create(&files, &format!("f{i}")).await;
        files.getattr(&ctx(1), file).await.unwrap();
        files.closed(&ctx(1), file, true).await.unwrap();
    }
    assert_eq!(requests(), before);
    assert_eq!(cluster.objects(), 0);
}

fn is_file_request(name: &str) -> bool {
    name.starts_with("requests.") && !["hello", "stats", "list"].iter().any(|other| name.ends_with(other))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncates_need_permission_and_set_times() {
    let cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(1000, 1), Stability::FileSync).await;
    let other = Ctx { cred: Cred { uid: 9, gid: 9, groups: vec![] }, ..ctx(2) };
    let cut = |size| SetAttrs { size: Some(size), ..SetAttrs::default() };
    assert_eq!(files.setattr(&other, file, cut(10), false).await, Err(Status::Access));
    let with_mode = SetAttrs { mode: Some(0o777), ..cut(10) };
    assert_eq!(files.setattr(&other, file, with_mode, true).await, Err(Status::Perm));
    assert!(read(&files, file, 0, 1000).await.unwrap() == pattern(1000, 1), "a refused request has truncated the file");
    let cut_by_opener = files.setattr(&other, file, cut(500), true).await.unwrap();
    assert_eq!(cut_by_opener.size, 500);
    let before = files.getattr(&ctx(1), file).await.unwrap();
    let after = files.setattr(&ctx(1), file, SetAttrs { mode: Some(0o600), ..cut(501) }, false).await.unwrap();
    assert_eq!((after.size, after.mode), (501, 0o600));
    assert!(after.change > before.change && after.mtime >= before.mtime);
    assert!(read(&files, file, 0, 1000).await.unwrap()[..500] == pattern(500, 1));
    let dir = files.getattr(&ctx(1), FileId::ROOT).await.unwrap();
    assert_eq!(dir.kind, FileKind::Directory);
    assert_eq!(files.setattr(&ctx(1), FileId::ROOT, cut(0), false).await, Err(Status::IsDir));
    assert_eq!(files.setattr(&ctx(1), file, cut(u64::MAX), false).await, Err(Status::FBig));
    assert_eq!(
        files.write(&ctx(1), file, u64::MAX - 1, Bytes::from_static(b"ab"), Stability::Unstable).await,
        Err(Status::FBig)
    );
    assert_eq!(read(&files, FileId::ROOT, 0, 1).await, Err(Status::IsDir));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn special_files_can_be_looked_up_and_opened_but_not_read() {
    let cluster = Cluster::new(1, "64").await;
    let files = cluster.files();
    let kinds = [
        (CreateKind::Directory, FileKind::Directory),
        (CreateKind::Symlink(Bytes::from_static(b"target")), FileKind::Symlink),
        (CreateKind::Fifo, FileKind::Fifo),
        (CreateKind::Socket, FileKind::Socket),
        (CreateKind::Block(8, 1), FileKind::Block),
        (CreateKind::Char(1, 3), FileKind::Char),
    ];
    for (i, (kind, want)) in kinds.into_iter().enumerate() {
        let name = Bytes::from(format!("n{i}"));
        let made = files.create(&ctx(1), FileId::ROOT, &name, kind, mode(0o644)).await.unwrap();
        assert_eq!(made.attrs.kind, want);
        let found =
            files.open_create(&ctx(1), FileId::ROOT, &name, OpenHow::Unchecked, mode(0o600), false).await.unwrap();
        assert_eq!((found.attrs.id, found.created), (made.attrs.id, false));
        assert_eq!(found.attrs.mode, made.attrs.mode, "opening changes nothing");
        let guarded = files.open_create(&ctx(1), FileId::ROOT, &name, OpenHow::Guarded, mode(0o600), false).await;
        assert_eq!(guarded, Err(Status::Exist));
        assert!(files.read(&ctx(1), made.attrs.id, 0, 1).await.is_err());
    }
    let link = files.lookup(&ctx(1), FileId::ROOT, &Bytes::from_static(b"n1")).await.unwrap().id;
    assert_eq!(files.readlink(&ctx(1), link).await.unwrap(), "target");
    assert_eq!(files.readlink(&ctx(1), FileId::ROOT).await, Err(Status::Inval));
    assert_eq!(files.lookup(&ctx(1), link, &Bytes::from_static(b"x")).await, Err(Status::Symlink));
    let page = files.readdir(&ctx(1), FileId::ROOT, 0, 100).await.unwrap();
    assert_eq!((page.entries.len(), page.eof), (6, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_bits_follow_the_mode() {
    let cluster = Cluster::new(1, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let other = Ctx { cred: Cred { uid: 9, gid: 9, groups: vec![] }, ..ctx(2) };
    let read = access::READ | access::XAREAD | access::XALIST;
    assert_eq!(files.access(&other, file, access::ALL).await, Ok(read));
    assert_eq!(files.access(&other, file, access::READ | access::MODIFY).await, Ok(access::READ));
    assert_eq!(files.access(&other, FileId::ROOT, access::ALL).await, Ok(read | access::LOOKUP));
    let all_of_dir = access::ALL & !access::EXECUTE;
    assert_eq!(files.access(&ctx(1), FileId::ROOT, access::ALL).await, Ok(all_of_dir));
}

/// If a client creates a file without waiting for durability, the file is durable before another client can see it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_is_durable_before_other_clients_see_it() {
    let cluster = Cluster::new(1, "64").await;
    let files = cluster.files();
    let other = create(&files, "other").await;
    let flushes = || {
        let status = cluster.mgr().status();
        let store = status.groups.iter().find(|g| g.get("flushes").is_some()).expect("the store");
        match store.get("flushes") {
            Some(wire::admin::Value::Number(n)) => *n,
            other => panic!("{other:?}"),
        }
    };
    for way in 0..6 {
        let name = Bytes::from(format!("f{way}"));
        let exclusive = || OpenHow::Exclusive(types::Verifier([way; 8]));
        let made = files.open_create(&ctx(1), FileId::ROOT, &name, exclusive(), mode(0o644), true).await.unwrap();
        let before = flushes();
        match way {
            0 => assert_eq!(files.lookup(&ctx(2), FileId::ROOT, &name).await.unwrap().id, made.attrs.id),
            1 => assert_eq!(files.getattr(&ctx(2), made.attrs.id).await.unwrap().id, made.attrs.id),
            2 => {
                let guarded =
                    files.open_create(&ctx(2), FileId::ROOT, &name, OpenHow::Guarded, mode(0o600), true).await;
                assert_eq!(guarded, Err(Status::Exist));
            }
            3 => {
                let theirs = OpenHow::Exclusive(types::Verifier([9; 8]));
                let taken = files.open_create(&ctx(2), FileId::ROOT, &name, theirs, mode(0o600), true).await;
                assert_eq!(taken, Err(Status::Exist));
            }
            4 => {
                let dir = files.create(&ctx(2), FileId::ROOT, &name, CreateKind::Directory, mode(0o755)).await;
                assert_eq!(dir.map(drop), Err(Status::Exist));
            }
            _ => assert_eq!(files.link(&ctx(2), other, FileId::ROOT, &name).await, Err(Status::Exist)),
        }
        assert!(flushes() > before, "{way}");
    }
}
