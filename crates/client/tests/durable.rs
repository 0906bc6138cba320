//! Tests of mounts with `durable=fsync`, where only fsync and similar calls wait until changes are on the mgr's disk.

use crate::cluster::Cluster;
use crate::memory_mgr::MemoryMgr;
use bytes::Bytes;
use client::options::Rule;
use client::{CreateOptions, Durable, Mount, OpenFlags, Options, Policy};
use nfs::attrs::{FATTR4_WEIR_SETTLED, Mask};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use types::{SetAttrs, Status};
use wire::admin::Value;
use wire::nfs4::*;

fn options() -> Options {
    // Writes below this threshold in bytes take the mgr path. The mgr stores such small files inline (with their
    // metadata).
    let driver = Policy { write_threshold: Rule::Fixed(64 << 10), ..Policy::default() };
    Options { durable: Durable::Fsync, driver, ..crate::cluster::options() }
}

async fn flushes(mount: &Mount) -> u64 {
    let status = mount.status().await.unwrap();
    let store = status.groups.iter().find(|group| group.name == "store").unwrap();
    match store.get("flushes") {
        Some(Value::Number(flushes)) => *flushes,
        other => panic!("{other:?}"),
    }
}

/// Creates, writes, closes and renames `count` small files. Creates `count` directories and sets their modes. Then
/// removes every second file and directory.
async fn small_file_workload(mount: &Mount, count: usize) {
    let root = mount.root();
    for i in 0..count {
        let (name, to) = (format!("f{i}"), format!("t{i}"));
        let options = CreateOptions { unsynced: true, ..CreateOptions::default() };
        let file = mount.create(&root, name.as_bytes(), options).await.unwrap();
        file.write_at(0, Bytes::from(name.clone().into_bytes())).await.unwrap();
        file.flush().await.unwrap();
        file.close().await.unwrap();
        mount.rename(&root, name.as_bytes(), &root, to.as_bytes()).await.unwrap();
        let (dir, _) = mount.mkdir(&root, format!("d{i}").as_bytes(), 0o700).await.unwrap();
        mount.setattr(&dir, &SetAttrs { mode: Some(0o755), ..SetAttrs::default() }).await.unwrap();
        if i % 2 == 1 {
            mount.remove(&root, to.as_bytes()).await.unwrap();
            mount.remove(&root, format!("d{i}").as_bytes()).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_syncs_wait_for_the_disk() {
    const FILES: usize = 40;
    let mut cluster = Cluster::start(2).await;
    let (mount, other) = (cluster.mount(options()).await, cluster.mount(crate::cluster::options()).await);
    let before = flushes(&other).await;
    small_file_workload(&mount, FILES).await;
    let working = flushes(&other).await - before;
    // The mgr flushes a few times during the workload, because the metadata store flushes once a second and when it
    // allocates a block of file ids.
    assert!(working < FILES as u64 / 2, "{working} flushes");
    let before = flushes(&other).await;
    mount.sync_names().await.unwrap();
    let (node, _) = mount.lookup(&mount.root(), b"t0").await.unwrap();
    let file = mount.open(&node, OpenFlags::READ_WRITE).await.unwrap();
    file.write_at(0, Bytes::from_static(b"new")).await.unwrap();
    file.fsync().await.unwrap();
    assert!(flushes(&other).await > before, "the write was made durable");
    // A restart of the mgr process loses no changes, because the mgr's machine keeps running. So the sync calls
    // succeed.
    mount.mkdir(&mount.root(), b"last", 0o700).await.unwrap();
    cluster.restart_mgr().await;
    mount.sync_names().await.unwrap();
    file.fsync().await.unwrap();
    file.close().await.unwrap();
    for i in 0..FILES {
        let found = other.lookup(&other.root(), format!("t{i}").as_bytes()).await;
        match i % 2 {
            0 => assert_eq!(found.unwrap().1.size, if i == 0 { 3 } else { format!("f{i}").len() as u64 }),
            _ => assert!(found.unwrap_err().is(Status::NoEnt)),
        }
    }
    other.lookup(&other.root(), b"last").await.unwrap();
    mount.disconnect().await.unwrap();
    other.disconnect().await.unwrap();
}

/// What the mgr has received: the number of requests for the boot number, and the operations that the mgr may answer
/// before their changes are durable ([`nfs::fs::SOON`]).
#[derive(Default)]
struct Heard {
    settled: AtomicU64,
    soon: Mutex<Vec<nfs_opnum4>>,
    /// The boot number that the mgr reports to the client.
    boot: AtomicU64,
}

fn listen(mgr: &MemoryMgr) -> Arc<Heard> {
    let heard = Arc::new(Heard { boot: AtomicU64::new(7), ..Heard::default() });
    let told = heard.clone();
    mgr.meddle(move |args, res| {
        let mask = Mask::of(&[FATTR4_WEIR_SETTLED]).to_bitmap();
        let last = args.argarray.last();
        if args.tag == nfs::fs::SOON {
            told.soon.lock().unwrap().push(last.unwrap().discriminant());
        }
        let asks = |op: &nfs_argop4| matches!(op, nfs_argop4::OP_GETATTR(args) if args.attr_request == mask);
        if last.is_some_and(asks)
            && let Some(nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(got))) = res.resarray.last_mut()
        {
            told.settled.fetch_add(1, SeqCst);
            got.obj_attributes.attr_vals = Bytes::copy_from_slice(&told.boot.load(SeqCst).to_be_bytes());
        }
    });
    heard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durability_is_queried_once_and_a_possible_loss_reported_once() {
    let mgr = MemoryMgr::start().await;
    let heard = listen(&mgr);
    let mount = mgr.mount(options()).await;
    let settled = || heard.settled.swap(0, SeqCst);
    assert_eq!(settled(), 1, "the client asks for the boot number");
    mount.sync_names().await.unwrap();
    assert_eq!(settled(), 0, "without changes the client does not ask");
    let root = mount.root();
    let file = mount.create(&root, b"f", CreateOptions::default()).await.unwrap();
    mount.lookup(&root, b"f").await.unwrap();
    mount.sync_names().await.unwrap();
    mount.sync_names().await.unwrap();
    assert_eq!(settled(), 1);
    mount.mkdir(&root, b"d", 0o755).await.unwrap();
    heard.boot.store(8, SeqCst);
    assert!(mount.sync_names().await.unwrap_err().is(Status::Io), "the directory may be lost");
    mount.sync_names().await.unwrap();
    assert!(file.fsync().await.unwrap_err().is(Status::Io), "fsync of a file reports the loss as well");
    file.fsync().await.unwrap();
    let later = mount.create(&root, b"g", CreateOptions::default()).await.unwrap();
    later.fsync().await.unwrap();
    // The mgr's machine loses power a second time (boot number 9). A barrier has covered all changes, so no change is
    // lost.
    heard.boot.store(9, SeqCst);
    mount.lookup(&root, b"g").await.unwrap();
    mount.sync_names().await.unwrap();
    assert_eq!(heard.soon.lock().unwrap().len(), 3, "two created files and a directory");
    file.close().await.unwrap();
    later.close().await.unwrap();
    mount.disconnect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_without_durable_fsync_wait_for_every_change() {
    let mgr = MemoryMgr::start().await;
    let heard = listen(&mgr);
    let mount = mgr.mount(crate::cluster::options()).await;
    small_file_workload(&mount, 4).await;
    mount.sync_names().await.unwrap();
    mount.disconnect().await.unwrap();
    assert_eq!(heard.soon.lock().unwrap().len(), 0);
    assert_eq!(heard.settled.load(SeqCst), 0);
}
