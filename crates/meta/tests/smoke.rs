//! Smoke test of the embedded store: creates a namespace, adds a file, closes the store and opens it again.

#[path = "common/block.rs"]
mod block;

use block::block;
use meta::{CreateMode, Embedded, Format, Namespace, StoreError, merge};
use types::{Cred, FileId, Fsid, Renaming, SetAttrs, Status, Timestamp};

#[test]
fn a_created_file_exists_after_reopening() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("meta.redb");
    let now = Timestamp { secs: 5, nanos: 0 };
    let root = Cred::root();
    let format = Format { fsid: Fsid([1; 16]), now, cookie_key: [2; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 };
    let fs = block(Namespace::format(Embedded::create(&path, [9; 16], merge).expect("store"), format)).expect("format");
    let how = CreateMode::Guarded(SetAttrs { mode: Some(0o640), ..SetAttrs::default() });
    let made = block(fs.create(&root, now, FileId::ROOT, b"a", &how, None)).expect("create");
    assert!(made.created && made.dir.before < made.dir.after && made.dir.atomic);
    assert!(matches!(Embedded::open(&path, merge), Err(StoreError::InUse(_))));
    drop(fs);
    let fs = Namespace::open(Embedded::open(&path, merge).expect("store")).expect("open");
    assert_eq!(fs.lookup(&root, FileId::ROOT, b"a"), Ok(made.file.attrs));
    assert_eq!(fs.lookup(&root, FileId::ROOT, b"b"), Err(Status::NoEnt));
    fn sendable<T: Send>(future: T) -> T {
        future
    }
    let to = (FileId::ROOT, &b"b"[..]);
    let renamed = block(sendable(fs.rename(&root, now, (FileId::ROOT, b"a"), to, Renaming::Replace)));
    assert_eq!(renamed.map(|renamed| renamed.from.before), Ok(made.dir.after));
}
