//! Exports at the file system interface: visible names, lookups across exports, and valid filehandles.

use crate::cluster::{Cluster, ctx};
use bytes::Bytes;
use mgr::{Export, Files};
use nfs::exports::{Place, View};
use nfs::fs::{CreateKind, Ctx, FileSystem};
use types::{FileId, SetAttrs, Status};

/// Returns the context of a request by a client that sees the exports in the bit set `bits`.
fn sees(bits: u64, place: Place) -> Ctx {
    Ctx { view: View(bits), place, ..ctx(1) }
}

async fn mkdir(files: &Files, dir: FileId, name: &'static str) -> FileId {
    let (name, set) = (Bytes::from_static(name.as_bytes()), SetAttrs::default());
    files.create(&ctx(1), dir, &name, CreateKind::Directory, set).await.unwrap().attrs.id
}

/// Looks up a name in a directory, with the calls that LOOKUP makes.
async fn step(
    files: &Files,
    view: u64,
    (dir, place): (FileId, Place),
    name: &'static str,
) -> Result<(FileId, Place), Status> {
    let ctx = sees(view, place);
    let found = files.lookup(&ctx, dir, &Bytes::from_static(name.as_bytes())).await?;
    Ok((found.id, files.descend(&ctx, found.id)?))
}

/// Looks up the parent of a directory, with the calls that LOOKUPP makes.
async fn up(files: &Files, view: u64, (dir, place): (FileId, Place)) -> Result<(FileId, Place), Status> {
    let ctx = sees(view, place);
    Ok((files.lookup_parent(&ctx, dir).await?.id, files.ascend(&ctx, dir)?))
}

const WAY: Place = Place::OUTSIDE;

#[tokio::test(flavor = "multi_thread")]
async fn lookup_and_lookupp_cross_exports_as_the_client_sees_them() {
    let mut cluster = Cluster::stopped(1, "64K").await;
    let exports = ["/a/b", "/a", "/a/b/c,clients=10.0.0.1", "/late"];
    cluster.config.exports = exports.map(|text| text.parse::<Export>().unwrap()).to_vec();
    cluster.start_mgr().await;
    let files = cluster.files();
    let a = mkdir(&files, FileId::ROOT, "a").await;
    let b = mkdir(&files, a, "b").await;
    let c = mkdir(&files, b, "c").await;
    let d = mkdir(&files, a, "d").await;
    let at = |root, terms| Place { root, terms, epoch: 0 };
    let root = |view| files.root(View(view));

    // A client that sees both the outer and the inner export looks up names in both exports.
    assert_eq!(root(0b11), (FileId::ROOT, WAY));
    let in_a = step(&files, 0b11, root(0b11), "a").await.unwrap();
    assert_eq!(in_a, (a, at(a, 1)));
    let in_b = step(&files, 0b11, in_a, "b").await.unwrap();
    assert_eq!(in_b, (b, at(b, 0)));
    assert_eq!(step(&files, 0b11, in_b, "c").await, Err(Status::Access));
    assert_eq!(up(&files, 0b11, in_b).await, Ok(in_a));
    assert_eq!(up(&files, 0b11, in_a).await, Ok(root(0b11)));
    assert_eq!(up(&files, 0b11, root(0b11)).await, Err(Status::NoEnt));
    // A client that sees only the inner export sees only the path to this export in the directories above it.
    let on_a = step(&files, 0b01, root(0b01), "a").await.unwrap();
    assert_eq!(on_a, (a, WAY));
    assert_eq!(step(&files, 0b01, on_a, "d").await, Err(Status::NoEnt));
    assert_eq!(step(&files, 0b01, on_a, "b").await, Ok((b, at(b, 0))));
    assert_eq!(up(&files, 0b01, (b, at(b, 0))).await, Ok(on_a));
    let names = |view, dir| {
        let ctx = sees(view, WAY);
        let files = files.clone();
        async move {
            files.readdir(&ctx, dir, 0, 9).await.unwrap().entries.iter().map(|e| e.name.clone()).collect::<Vec<_>>()
        }
    };
    assert_eq!((names(0b01, FileId::ROOT).await, names(0b01, a).await), (vec!["a".into()], vec!["b".into()]));
    assert!(names(0, FileId::ROOT).await.is_empty());

    // A filehandle is valid only for clients that see its export.
    let handle = files.encode_handle(d, at(a, 1));
    assert_eq!(files.decode_handle(View(0b10), &handle), Ok((d, at(a, 1))));
    assert_eq!(files.decode_handle(View(0b01), &handle), Err(Status::Access));
    let outside = files.encode_handle(a, WAY);
    assert_eq!(files.decode_handle(View(0b01), &outside), Ok((a, WAY)));
    assert_eq!(files.decode_handle(View(0b100), &files.encode_handle(d, WAY)), Err(Status::Stale));
    assert_eq!(files.decode_handle(View::ALL, &files.encode_handle(d, at(d, 0))), Err(Status::Stale));
    let inner = files.encode_handle(c, at(c, 2));
    assert_eq!(files.decode_handle(View(0b11), &inner), Err(Status::Access));
    assert_eq!(files.decode_handle(View(0b100), &inner), Ok((c, at(c, 2))));

    // Each export has an fsid of its own, and all pseudo directories have the same fsid, which no export has.
    let fsids: std::collections::HashSet<_> =
        [Place::default(), WAY, at(a, 1), at(b, 0)].map(|place| files.fsid_in(place)).into_iter().collect();
    assert_eq!(fsids.len(), 4);
    // If a client creates the directory of a configured export later, the export is usable immediately.
    let late = mkdir(&files, FileId::ROOT, "late").await;
    assert_eq!(step(&files, 0b1000, root(0b1000), "late").await, Ok((late, at(late, 3))));
}
