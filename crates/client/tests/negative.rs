//! Tests of negative-lookup caching. Lookups of missing names cost no request, and a lookup finds a new name at once,
//! whichever client created the name.

use crate::cluster::Cluster;
use crate::memory_mgr::{MemoryMgr, options};
use client::{CreateOptions, Mount, Node};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use types::{Cred, FileKind, SetAttrs, Status};
use wire::nfs4::*;

/// The time limit of each wait in these tests; long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

async fn is_there(mount: &Mount, dir: &Node, name: &[u8]) -> bool {
    match mount.lookup(dir, name).await {
        Ok(_) => true,
        Err(error) if error.is(Status::NoEnt) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Looks up a missing name. Returns whether the negative-lookup cache answered, without a request to the mgr.
async fn is_known(mount: &Mount, dir: &Node) -> bool {
    let before = mount.counters().absent;
    assert!(!is_there(mount, dir, b"none").await);
    mount.counters().absent > before
}

/// Looks up a missing name until the client has cached the names of the directory.
async fn learn(mount: &Mount, dir: &Node) {
    let begun = Instant::now();
    while !is_known(mount, dir).await {
        assert!(begun.elapsed() < LONG, "the names were never cached");
        tokio::task::yield_now().await;
    }
}

async fn mkdir(mount: &Mount, name: &str) -> Node {
    mount.mkdir(&mount.root(), name.as_bytes(), 0o755).await.unwrap().0
}

async fn touch(mount: &Mount, dir: &Node, name: &[u8]) -> Node {
    let file = mount.create(dir, name, CreateOptions::default()).await.unwrap();
    let node = file.node();
    file.close().await.unwrap();
    node
}

type Way = for<'a> fn(&'a Mount, &'a Node) -> BoxFuture<'a, ()>;

/// The ways to create the name `new` in a directory that contains `old`.
const WAYS: [(&str, Way); 9] = [
    ("a file", |mount, dir| Box::pin(async move { drop(touch(mount, dir, b"new").await) })),
    ("a directory", |mount, dir| Box::pin(async move { drop(mount.mkdir(dir, b"new", 0o755).await.unwrap()) })),
    ("a symlink", |mount, dir| Box::pin(async move { drop(mount.symlink(dir, b"new", b"old").await.unwrap()) })),
    ("a pipe", |mount, dir| {
        Box::pin(async move { drop(mount.mknod(dir, b"new", FileKind::Fifo, 0o644, (0, 0)).await.unwrap()) })
    }),
    ("a link", |mount, dir| {
        Box::pin(async move {
            let (old, _) = mount.lookup(dir, b"old").await.unwrap();
            mount.link(&old, dir, b"new").await.unwrap();
        })
    }),
    ("moved", |mount, dir| Box::pin(async move { mount.rename(dir, b"old", dir, b"new").await.unwrap() })),
    ("moved from elsewhere", |mount, dir| {
        Box::pin(async move {
            let root = mount.root();
            touch(mount, &root, b"elsewhere").await;
            mount.rename(&root, b"elsewhere", dir, b"new").await.unwrap();
        })
    }),
    ("moved at its closing", |mount, dir| {
        Box::pin(async move {
            let file = mount.create(dir, b"tmp", CreateOptions::default()).await.unwrap();
            file.finish(SetAttrs::default(), Some((dir, b"new"))).await.unwrap();
        })
    }),
    ("removed and made", |mount, dir| {
        Box::pin(async move {
            touch(mount, dir, b"new").await;
            mount.remove(dir, b"new").await.unwrap();
            touch(mount, dir, b"new").await;
        })
    }),
];

#[tokio::test]
async fn own_new_names_are_found_and_own_removed_names_are_not() {
    let mgr = MemoryMgr::start().await;
    let mount = mgr.mount(options()).await;
    let dir = mkdir(&mount, "d").await;
    touch(&mount, &dir, b"old").await;
    learn(&mount, &dir).await;
    let asked = mount.counters().operation("LOOKUP");
    for (what, way) in WAYS {
        if !is_there(&mount, &dir, b"old").await {
            touch(&mount, &dir, b"old").await;
        }
        assert!(!is_there(&mount, &dir, b"new").await, "{what}");
        way(&mount, &dir).await;
        let (_, attrs) = mount.lookup(&dir, b"new").await.unwrap();
        match attrs.kind {
            FileKind::Directory => drop(mount.rmdir_telling(&dir, b"new").await.unwrap()),
            _ => mount.remove(&dir, b"new").await.unwrap(),
        }
        assert!(!is_there(&mount, &dir, b"new").await, "{what}: removed");
    }
    let counters = mount.counters();
    // Only lookups of existing names cost requests: at most three for each way to create a name (`WAYS`).
    assert!(counters.operation("LOOKUP") - asked <= 3 * WAYS.len() as u64, "{counters:?}");
    assert!(counters.absent >= 2 * WAYS.len() as u64);
    assert_eq!(counters.operation("GET_DIR_DELEGATION"), 1);
    assert_eq!(mgr.counts().recalls, 0, "changes by the mount itself recall no delegation");
}

#[tokio::test]
async fn new_names_of_another_client_are_found_at_once() {
    let mgr = MemoryMgr::start().await;
    let (one, other) = (mgr.mount(options()).await, mgr.mount(options()).await);
    for (what, way) in WAYS {
        let dir = mkdir(&one, what).await;
        touch(&one, &dir, b"old").await;
        learn(&one, &dir).await;
        learn(&other, &dir).await;
        way(&other, &dir).await;
        assert!(is_there(&one, &dir, b"new").await, "{what}");
        assert!(is_there(&other, &dir, b"new").await, "{what}");
        // After a recall of its directory delegation, a client requests no new delegation for a while. Otherwise,
        // clients that create names in the same directory would often wait for recalls of each other's delegations.
        assert!(!is_known(&one, &dir).await, "{what}");
        assert!(is_known(&other, &dir).await, "{what}");
    }
}

#[tokio::test]
async fn the_names_of_a_large_directory_are_cached_page_by_page() {
    let mgr = MemoryMgr::start().await;
    let (one, other) = (mgr.mount(options()).await, mgr.mount(options()).await);
    let dir = mkdir(&one, "d").await;
    let file = touch(&one, &dir, b"file").await;
    let name = |number: usize| format!("{number:0200}").into_bytes();
    for number in 0..4000 {
        one.link(&file, &dir, &name(number)).await.unwrap();
    }
    learn(&other, &dir).await;
    assert!(other.counters().operation("READDIR") > 1);
    for number in (0..4000).step_by(97) {
        assert!(is_there(&other, &dir, &name(number)).await);
    }
}

#[tokio::test]
async fn lookups_without_search_permission_get_eacces_despite_the_cache() {
    let mgr = MemoryMgr::start().await;
    let root = mgr.mount(options()).await;
    let user = root.acting_as(&Cred { uid: 1000, gid: 1000, groups: Vec::new() });
    let dir = mkdir(&root, "d").await;
    let mode = |mode| SetAttrs { mode: Some(mode), ..SetAttrs::default() };
    root.setattr(&dir, &mode(0o700)).await.unwrap();
    learn(&root, &dir).await;
    assert!(user.lookup(&dir, b"none").await.unwrap_err().is(Status::Access));
    root.setattr(&dir, &mode(0o711)).await.unwrap();
    assert!(!is_there(&user, &dir, b"none").await);
    assert!(is_known(&user, &dir).await, "names read for another caller are used");
    root.setattr(&dir, &mode(0o700)).await.unwrap();
    assert!(user.lookup(&dir, b"none").await.unwrap_err().is(Status::Access));
}

#[tokio::test]
async fn every_lookup_is_sent_to_a_mgr_without_directory_delegations() {
    let mgr = MemoryMgr::start().await;
    for status in [NFS4ERR_NOTSUPP, NFS4ERR_DIRDELEG_UNAVAIL] {
        mgr.meddle(move |request, answer| {
            let ops = request.argarray.iter();
            if let Some(at) = ops.into_iter().position(|op| matches!(op, nfs_argop4::OP_GET_DIR_DELEGATION(_))) {
                answer.resarray.truncate(at);
                answer.resarray.push(nfs_resop4::OP_GET_DIR_DELEGATION(GET_DIR_DELEGATION4res::Default(status)));
                answer.status = status;
            }
        });
        let mount = mgr.mount(options()).await;
        let dir = mkdir(&mount, &format!("{status:?}")).await;
        for _ in 0..50 {
            assert!(!is_known(&mount, &dir).await);
        }
        assert_eq!(mount.counters().operation("GET_DIR_DELEGATION"), 1, "the delegation was requested again");
    }
    let mount = mgr.mount(client::Options { negative: 0, ..options() }).await;
    for _ in 0..50 {
        assert!(!is_known(&mount, &mount.root()).await);
    }
    assert_eq!(mount.counters().operation("GET_DIR_DELEGATION"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_delegations_are_requested_again_after_a_mgr_restart() {
    let mut cluster = Cluster::start(1).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let dir = mkdir(&one, "d").await;
    learn(&one, &dir).await;
    cluster.restart_mgr().await;
    // The restarted mgr executes no change before all clients have reclaimed. So send a request of the first client
    // too, so that it notices the restart and reclaims.
    let root = one.root();
    let (_, found) = tokio::join!(touch(&other, &dir, b"new"), one.getattr(&root));
    found.unwrap();
    assert!(is_there(&one, &dir, b"new").await);
    learn(&one, &dir).await;
    touch(&other, &dir, b"newer").await;
    assert!(is_there(&one, &dir, b"newer").await);
    // A client that disconnects returns its directory delegations, so that other clients do not wait for a recall.
    let dir = mkdir(&one, "e").await;
    learn(&one, &dir).await;
    one.disconnect().await.unwrap();
    touch(&other, &dir, b"new").await;
}

#[tokio::test]
async fn a_revoked_directory_delegation_is_detected_and_freed() {
    let mgr = MemoryMgr::start().await;
    let mount = mgr.mount(options()).await;
    let dir = mkdir(&mount, "d").await;
    learn(&mount, &dir).await;
    let freed = Arc::new(AtomicBool::new(false));
    let seen = freed.clone();
    mgr.meddle(move |request, answer| {
        let frees = request.argarray.iter().any(|op| matches!(op, nfs_argop4::OP_FREE_STATEID(_)));
        seen.fetch_or(frees, SeqCst);
        for result in &mut answer.resarray {
            match result {
                nfs_resop4::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(told)) if !seen.load(SeqCst) => {
                    told.sr_status_flags |= SEQ4_STATUS_RECALLABLE_STATE_REVOKED;
                }
                nfs_resop4::OP_TEST_STATEID(TEST_STATEID4res::NFS4_OK(tested)) => {
                    tested.tsr_status_codes.fill(NFS4ERR_DELEG_REVOKED);
                }
                _ => {}
            }
        }
    });
    let begun = Instant::now();
    while !freed.load(SeqCst) {
        assert!(begun.elapsed() < LONG, "the client never acknowledged the revocation");
        mount.getattr(&dir).await.unwrap();
    }
    assert!(!is_known(&mount, &dir).await);
}
