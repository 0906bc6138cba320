//! Attacks on exports: no operation and no old filehandle reaches files outside a client's exports.

use crate::cluster::Cluster;
use crate::operations::operations;
use crate::peer::{Peer, make_dir, putfh, text};
use crate::seeded_random::SeededRandom;
use bytes::Bytes;
use mgr::Export;
use nfs::attrs::{self, Mask};
use std::net::{Ipv4Addr, SocketAddr};
use wire::nfs4::nfs_argop4 as Op;
use wire::nfs4::*;

/// The address of a client that sees all exports.
const OWNER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// The address of a client that sees only the exports that all clients may mount.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);

async fn start(exports: &[&str]) -> (Cluster, SocketAddr) {
    let mut cluster = Cluster::stopped(1, "64K").await;
    restart(&mut cluster, exports).await.map_or_else(|| panic!("no address"), |at| (cluster, at))
}

/// Stops the mgr if it runs, and starts it with these exports. Returns its address.
async fn restart(cluster: &mut Cluster, exports: &[&str]) -> Option<SocketAddr> {
    if let Some(running) = cluster.mgr.take() {
        running.stop().await;
    }
    cluster.config.exports = exports.iter().map(|text| text.parse::<Export>().unwrap()).collect();
    cluster.start_mgr().await;
    cluster.wait_up(1).await;
    cluster.mgr().addresses().first().and_then(|address| address.to_string().parse().ok())
}

/// Tries every operation on each filehandle. Each operation must fail with one of the statuses in `why`.
fn all_are_refused(peer: &mut Peer, handles: &[(&str, &Bytes)], own: &Bytes, why: &[nfsstat4]) {
    for (what, handle) in handles {
        for (name, ops) in operations(handle, own) {
            let (status, _) = peer.patiently(ops);
            assert!(why.contains(&status), "{name} of {what}: {status:?}");
        }
    }
}

/// Returns the entries of a directory according to READDIR: names, and filehandles if the mgr returns them.
fn entries(peer: &mut Peer, dir: &Bytes) -> Result<Vec<(Bytes, Option<Bytes>)>, nfsstat4> {
    let attr_request = Mask::of(&[FATTR4_RDATTR_ERROR, FATTR4_FILEHANDLE]).to_bitmap();
    let args = READDIR4args { dircount: 60_000, maxcount: 60_000, attr_request, ..READDIR4args::default() };
    let (status, mut results) = peer.patiently(vec![putfh(dir), Op::OP_READDIR(args)]);
    let Some(nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(got))) = results.pop() else { return Err(status) };
    assert!(got.reply.eof, "a long directory");
    let entry = |entry: entry4| {
        let values = attrs::decode(&entry.attrs).unwrap();
        assert!(values.filehandle.is_none() || values.rdattr_error == Some(NFS4_OK));
        (entry.name, values.filehandle)
    };
    Ok(got.reply.entries.into_iter().map(entry).collect())
}

const NESTED: [&str; 4] = ["/,clients=127.0.0.2", "/pub", "/pub/closed,clients=127.0.0.2", "/pub/closed/open"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operation_reaches_what_an_export_hides() {
    let (_cluster, mgr) = start(&NESTED).await;
    let mut owner = Peer::new(OWNER, mgr, 0);
    let root = owner.walk("/").unwrap();
    let public = owner.mkdir(&root, "pub");
    let closed = owner.mkdir(&public, "closed");
    let data = owner.file(&closed, "data", b"SECRET");
    let open = owner.mkdir(&closed, "open");
    let link = owner.file(&public, "seen", b"seen");
    let own = owner.mkdir(&public, "own");

    let mut stranger = Peer::new(STRANGER, mgr, 0);
    assert_eq!(stranger.walk("/pub/closed"), Err(NFS4ERR_ACCESS));
    assert_eq!(stranger.read(&link).unwrap(), "seen");
    // For the entry of an export that the client does not see, READDIR returns the name, but no filehandle.
    let shown = entries(&mut stranger, &public).unwrap();
    let handles: Vec<_> = shown.iter().filter(|(name, _)| &name[..] == b"closed").map(|(_, handle)| handle).collect();
    assert_eq!(handles, [&None]);
    assert!(shown.iter().any(|(name, handle)| &name[..] == b"own" && handle.is_some()));
    // A client sends filehandles of files in an export that it may not mount. The mgr has sent these filehandles only
    // to another client.
    let stolen = [("a directory", &closed), ("a file", &data)];
    all_are_refused(&mut stranger, &stolen, &own, &[NFS4ERR_ACCESS]);
    assert_eq!(owner.read(&data).unwrap(), "SECRET");
    // In a pseudo directory above an export, READDIR lists only the entry on the path to the export that the client
    // sees.
    let (status, mut results) = stranger.patiently(vec![putfh(&open), Op::OP_LOOKUPP, Op::OP_GETFH]);
    assert_eq!(status, NFS4_OK);
    let Some(nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(above))) = results.pop() else { panic!("{results:?}") };
    let shown: Vec<Bytes> = entries(&mut stranger, &above.object).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(shown, ["open"]);
    for (name, ops) in operations(&above.object, &own) {
        let (status, results) = stranger.patiently(ops);
        let told = format!("{results:?}");
        assert!(!told.contains("SECRET") && !told.contains("\"data\""), "{name}: {status:?}: {told}");
    }
    assert_eq!(owner.read(&data).unwrap(), "SECRET");
    assert_eq!(owner.below(&closed, "planted"), Err(NFS4ERR_NOENT));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_handles_are_stale_after_exports_change() {
    let before = ["/,clients=127.0.0.2", "/pub"];
    let (mut cluster, mgr) = start(&before).await;
    let mut owner = Peer::new(OWNER, mgr, 0);
    let root = owner.walk("/").unwrap();
    let public = owner.mkdir(&root, "pub");
    owner.mkdir(&root, "priv");
    let mut made = Vec::new();
    for name in ["later", "moved", "stays"] {
        let dir = owner.mkdir(&public, name);
        let deep = owner.mkdir(&dir, "deep");
        made.push((dir, owner.file(&deep, "data", b"SECRET"), deep));
    }
    let [(later, later_data, later_deep), (moved, moved_data, moved_deep), (stays, _, _)] = &made[..] else { panic!() };
    let mut stranger = Peer::new(STRANGER, mgr, 0);
    assert_eq!(stranger.read(later_data).unwrap(), "SECRET");

    // While the mgr is stopped, the directory `later` becomes an export for other clients. So a client that sees only
    // `/pub` can no longer reach `later`.
    let at = restart(&mut cluster, &["/,clients=127.0.0.2", "/pub", "/pub/later,clients=127.0.0.2"]).await.unwrap();
    let mut stranger = Peer::new(STRANGER, at, 0);
    let handles = [("a closed directory", later), ("one below", later_deep), ("a file in it", later_data)];
    all_are_refused(&mut stranger, &handles, stays, &[NFS4ERR_STALE]);
    assert_eq!(stranger.walk("/pub/later/deep/data"), Err(NFS4ERR_ACCESS));
    // Directory filehandles from before the change of the exports stay valid, and a client can look up files again.
    assert_eq!(stranger.below(stays, "deep").map(|_| ()), Ok(()));
    let found = stranger.walk("/pub/stays/deep/data").unwrap();
    assert_eq!(stranger.read(&found).unwrap(), "SECRET");
    // After a restart with the same exports, filehandles of files stay valid.
    let at = restart(&mut cluster, &["/,clients=127.0.0.2", "/pub", "/pub/later,clients=127.0.0.2"]).await.unwrap();
    assert_eq!(Peer::new(STRANGER, at, 0).read(&found).unwrap(), "SECRET");

    // While `/pub` is not exported, a client that sees all files moves a directory out of `/pub`.
    let at = restart(&mut cluster, &["/,clients=127.0.0.2"]).await.unwrap();
    let mut owner = Peer::new(OWNER, at, 0);
    let (public, private) = (owner.walk("/pub").unwrap(), owner.walk("/priv").unwrap());
    assert_eq!(owner.rename((&public, "moved"), (&private, "moved")), NFS4_OK);
    let at = restart(&mut cluster, &before).await.unwrap();
    let mut stranger = Peer::new(STRANGER, at, 0);
    let handles = [("a directory that moved", moved), ("one below", moved_deep), ("a file in it", moved_data)];
    all_are_refused(&mut stranger, &handles, stays, &[NFS4ERR_STALE]);
    assert_eq!(stranger.below(stays, "deep").map(|_| ()), Ok(()));
    let found = stranger.walk("/pub/stays/deep/data").unwrap();
    assert_eq!(stranger.read(&found).unwrap(), "SECRET");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_handle_follows_the_terms_of_its_own_export() {
    let exports = ["/", "/ro,access=ro", "/squashed,squash=all"];
    let (_cluster, mgr) = start(&exports).await;
    let mut peer = Peer::new(STRANGER, mgr, 0);
    let root = peer.walk("/").unwrap();
    let read_only = peer.mkdir(&root, "ro");
    let squashed = peer.mkdir(&root, "squashed");
    assert_eq!(peer.rename((&root, "ro"), (&root, "rw")), NFS4ERR_XDEV);
    let create = make_dir("new");
    let mut make = |dir: &Bytes| peer.patiently(vec![putfh(dir), Op::OP_CREATE(create.clone())]).0;
    assert_eq!(make(&read_only), NFS4ERR_ROFS);
    // Root owns the directory, and the export squashes root, so the caller may not write to the directory.
    assert_eq!(make(&squashed), NFS4ERR_ACCESS);
    assert_eq!(make(&root), NFS4_OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renames_cannot_move_an_export_or_cross_its_border() {
    let exports = ["/,clients=127.0.0.2", "/pub", "/pub/a/closed,clients=127.0.0.2", "/pub/late,clients=127.0.0.2"];
    let (_cluster, mgr) = start(&exports).await;
    let mut owner = Peer::new(OWNER, mgr, 0);
    let root = owner.walk("/").unwrap();
    let public = owner.mkdir(&root, "pub");
    let a = owner.mkdir(&public, "a");
    let closed = owner.mkdir(&a, "closed");
    let inside = owner.mkdir(&closed, "inside");
    let other = owner.mkdir(&public, "other");
    owner.file(&other, "data", b"data");
    let mut stranger = Peer::new(STRANGER, mgr, 0);
    let remove = |peer: &mut Peer, dir: &Bytes, name: &str| {
        peer.patiently(vec![putfh(dir), Op::OP_REMOVE(REMOVE4args { target: text(name) })]).0
    };
    for peer in [&mut owner, &mut stranger] {
        for (from, to) in [
            ((&a, "closed"), (&public, "x")),
            ((&a, "closed"), (&a, "x")),
            ((&public, "a"), (&public, "b")),
            ((&other, "data"), (&a, "closed")),
            // The target of the rename is the path of an export whose directory does not exist yet.
            ((&public, "other"), (&public, "late")),
        ] {
            assert_eq!(peer.rename(from, to), NFS4ERR_XDEV, "{from:?} to {to:?}");
        }
        assert_eq!(remove(peer, &a, "closed"), NFS4ERR_XDEV);
        assert_eq!(remove(peer, &public, "a"), NFS4ERR_XDEV);
        assert_eq!(peer.rename((&other, "data"), (&other, "again")), NFS4_OK);
        assert_eq!(peer.rename((&other, "again"), (&a, "data")), NFS4_OK);
        assert_eq!(peer.rename((&a, "data"), (&other, "data")), NFS4_OK);
    }
    // The mgr refuses a rename that moves a file out of an export or into an export.
    assert_eq!(owner.rename((&closed, "inside"), (&public, "x")), NFS4ERR_XDEV);
    assert_eq!(owner.rename((&other, "data"), (&inside, "x")), NFS4ERR_XDEV);
    assert_eq!(owner.rename((&closed, "inside"), (&closed, "x")), NFS4_OK);
    // A directory that a client creates at the path of an export belongs to this export immediately.
    let create = make_dir("late");
    let made = stranger.patiently(vec![putfh(&public), Op::OP_CREATE(create), Op::OP_GETFH]);
    assert_eq!(
        (made.0, made.1.len()),
        (NFS4ERR_NOFILEHANDLE, 3),
        "the file is created, and its handle is not returned"
    );
    assert_eq!(stranger.walk("/pub/late"), Err(NFS4ERR_ACCESS));
    assert_eq!(remove(&mut stranger, &public, "late"), NFS4ERR_XDEV);
}

/// A client without access to some exports renames, creates and removes directories at random. No filehandle that this
/// client gets may lead into a directory of these exports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_renames_never_open_a_closed_export() {
    let exports = ["/,clients=127.0.0.2", "/pub", "/pub/a/closed,clients=127.0.0.2", "/pub/b,clients=127.0.0.2"];
    let (_cluster, mgr) = start(&exports).await;
    let seed = std::env::var("WEIR_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| getrandom::u64().unwrap());
    println!("WEIR_TEST_SEED={seed}");
    let mut random = SeededRandom::new(seed);
    let (mut owner, mut stranger) = (Peer::new(OWNER, mgr, 0), Peer::new(STRANGER, mgr, 0));
    let root = owner.walk("/").unwrap();
    let public = owner.mkdir(&root, "pub");
    let (a, b) = (owner.mkdir(&public, "a"), owner.mkdir(&public, "b"));
    let closed = owner.mkdir(&a, "closed");
    for dir in [&closed, &b] {
        let below = owner.mkdir(dir, "d");
        owner.file(dir, "SECRET", b"1");
        owner.file(&below, "SECRET", b"2");
    }
    let names = ["a", "b", "c", "closed", "d"];
    let mut known = vec![public];
    let rounds = if std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full") { 50_000 } else { 1500 };
    for round in 0..rounds {
        let pick = |random: &mut SeededRandom| (known[random.below(known.len())].clone(), random.of(&names));
        let (from, to) = (pick(&mut random), pick(&mut random));
        match random.below(5) {
            0 => {
                let create = make_dir(from.1);
                stranger.patiently(vec![putfh(&from.0), Op::OP_CREATE(create)]);
            }
            1 => {
                let remove = REMOVE4args { target: text(from.1) };
                stranger.patiently(vec![putfh(&from.0), Op::OP_REMOVE(remove)]);
            }
            // A client that sees all exports also renames directories at random.
            2 => drop(owner.rename((&from.0, from.1), (&to.0, to.1))),
            _ => drop(stranger.rename((&from.0, from.1), (&to.0, to.1))),
        }
        for dir in known.clone().iter().filter(|_| round % 10 == 0) {
            for (name, handle) in entries(&mut stranger, dir).unwrap_or_default() {
                assert_ne!(&name[..], b"SECRET", "round {round}");
                known.extend(handle);
            }
            known.sort_unstable();
            known.dedup();
        }
    }
    assert!(known.len() > 10, "{}", known.len());
    for dir in [&closed, &b] {
        assert!(entries(&mut owner, dir).unwrap().iter().any(|(name, _)| &name[..] == b"SECRET"));
    }
}
