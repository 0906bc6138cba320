//! Tests of concurrent namespace operations: the result must equal the result of a serial execution in some order.

#[path = "common/block.rs"]
mod block;
#[path = "common/disk.rs"]
mod disk;

use block::block;
use bytes::Bytes;
use disk::Disk;
use meta::engine::Engine;
use meta::{CreateMode, Embedded, Format, Memory, Namespace, SetXattr, merge};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Waker};
use types::{Attrs, Cred, FileId, FileKind, Fsid, Renaming, SetAttrs, Status, Timestamp};

const NOW: Timestamp = Timestamp { secs: 100, nanos: 0 };
const ROOT: FileId = FileId::ROOT;

fn alice() -> Cred {
    Cred { uid: 1000, gid: 1000, groups: vec![] }
}

fn mode(mode: u32) -> SetAttrs {
    SetAttrs { mode: Some(mode), ..SetAttrs::default() }
}

fn namespace<E: Engine>(engine: E) -> Namespace<E> {
    let format =
        Format { fsid: Fsid([7; 16]), now: NOW, cookie_key: [3; 16], root_mode: 0o777, root_uid: 0, root_gid: 0 };
    block(Namespace::format(engine, format)).expect("format")
}

/// The inode numbers of the files and directories of the initial tree, by path.
type Tree = BTreeMap<&'static str, FileId>;

/// Creates the directories `/p`, `/p/q`, `/p/q/r`, `/s`, `/s/t` and the files `/f`, `/p/g`, `/s/h`. `/f` and `/s/h` are
/// the same file.
fn plant<E: Engine>(fs: &Namespace<E>) -> Tree {
    let cred = alice();
    let mut tree = Tree::from([("", ROOT)]);
    for (path, parent, name) in
        [("p", "", "p"), ("p/q", "p", "q"), ("p/q/r", "p/q", "r"), ("s", "", "s"), ("s/t", "s", "t")]
    {
        let made = block(fs.mkdir(&cred, NOW, tree[parent], name.as_bytes(), &mode(0o755))).expect("mkdir");
        tree.insert(path, made.attrs.id);
    }
    for (path, parent, name) in [("f", "", "f"), ("p/g", "p", "g")] {
        let how = CreateMode::Guarded(mode(0o644));
        let made = block(fs.create(&cred, NOW, tree[parent], name.as_bytes(), &how, None)).expect("create");
        tree.insert(path, made.file.attrs.id);
    }
    block(fs.link(&cred, NOW, tree["f"], tree["s"], b"h")).expect("link");
    block(fs.setxattr(&cred, NOW, tree["p/q/r"], b"weir.unit", b"1024", SetXattr::Create)).expect("xattr");
    tree
}

/// An operation of the list `OPS`: its name and up to two arguments, which are paths or names.
type Op = (&'static str, &'static str, &'static str);

const OPS: &[Op] = &[
    ("create", "p/q", "new"),
    ("create", "p/q/r", "new"),
    ("create", "", "x"),
    ("mkdir", "", "x"),
    ("mkdir", "p/q/r", "x"),
    ("symlink", "s", "x"),
    ("link", "f", "x"),
    ("remove", "p/q", "r"),
    ("remove", "", "f"),
    ("remove", "s", "h"),
    ("remove", "s", "t"),
    ("reap", "f", ""),
    ("chmod", "p/q", ""),
    ("chmod", "p", ""),
    ("truncate", "f", ""),
    ("write", "f", ""),
    ("utimes", "s/t", ""),
    ("xattr", "p/q/r", "2048"),
    ("xattr", "p/q/r", "4096"),
    ("layout", "f", ""),
    ("rename", "/p", "s/t/p"),
    ("rename", "/s", "p/q/s"),
    ("rename", "p/q", "s/t"),
    ("rename", "s/t", "p/q"),
    ("rename", "s/t", "p/q/r"),
    ("rename", "/f", "p/g"),
    ("rename", "p/g", "s/h"),
    ("rename", "s/h", "/f"),
    ("rename", "/f", "/y"),
    ("rename", "p/g", "/y"),
    ("rename without replacing", "/f", "/y"),
    ("exchange", "p/q", "s/t"),
    ("exchange", "/s", "p/q"),
    ("exchange", "/f", "s/t"),
];

/// Returns the directory and the name of a path such as `p/q` or `/f`. The directory is the one that had this path in
/// the initial tree.
fn split(tree: &Tree, path: &'static str) -> (FileId, &'static [u8]) {
    let (dir, name) = path.rsplit_once('/').expect("a slash");
    (tree[dir], name.as_bytes())
}

type Running<'a> = Pin<Box<dyn Future<Output = Result<String, Status>> + Send + 'a>>;

/// Returns a future that runs the operation. The output of the future is the operation's result as text, without inode
/// numbers, which may differ between two runs of the test.
fn start<'a, E: Engine>(fs: &'a Namespace<E>, tree: &'a Tree, op: Op) -> Running<'a> {
    Box::pin(async move {
        let cred = &alice();
        let (what, at, to) = op;
        let name = to.as_bytes();
        let show = |a: &Attrs| format!("{:?} {:o} {} {} {}", a.kind, a.mode, a.nlink, a.size, a.change);
        Ok(match what {
            "create" => {
                let made = fs.create(cred, NOW, tree[at], name, &CreateMode::Unchecked(mode(0o600)), None).await?;
                format!("{} {} {:?}", made.created, show(&made.file.attrs), made.dir)
            }
            "mkdir" => {
                let made = fs.mkdir(cred, NOW, tree[at], name, &mode(0o700)).await?;
                format!("{} {:?}", show(&made.attrs), made.dir)
            }
            "utimes" => {
                let set = SetAttrs { mtime: Some(types::SetTime::To(Timestamp::default())), ..SetAttrs::default() };
                show(&fs.setattr(cred, NOW, tree[at], &set, false).await?.after)
            }
            "symlink" => show(&fs.symlink(cred, NOW, tree[at], name, b"target", &mode(0)).await?.attrs),
            "link" => show(&fs.link(cred, NOW, tree[at], ROOT, name).await?.attrs),
            "remove" => {
                let removed = fs.remove(cred, NOW, tree[at], name).await?;
                format!("{} {} {:?}", show(&removed.file.attrs), removed.file.orphan, removed.dir)
            }
            "reap" => format!("{:?}", fs.reap(NOW, tree[at]).await?),
            "chmod" => {
                let changed = fs.setattr(cred, NOW, tree[at], &mode(0o500), false).await?;
                show(&changed.after)
            }
            "truncate" => {
                let set = SetAttrs { size: Some(3), ..SetAttrs::default() };
                show(&fs.setattr(cred, NOW, tree[at], &set, false).await?.after)
            }
            "write" => show(&fs.set_size(cred, NOW, tree[at], 10, None).await?.after),
            "xattr" => {
                let info = fs.setxattr(cred, NOW, tree[at], b"weir.unit", name, SetXattr::Either).await?;
                format!("{info:?}")
            }
            "layout" => {
                let layout = meta::Layout { kind: 1, body: Bytes::from_static(b"here") };
                format!("{:?}", fs.set_layout(NOW, tree[at], &layout).await?.0.layout)
            }
            "rename" | "rename without replacing" | "exchange" => {
                let how = match what {
                    "exchange" => Renaming::Exchange,
                    "rename" => Renaming::Replace,
                    _ => Renaming::NoReplace,
                };
                let renamed = fs.rename(cred, NOW, split(tree, at), split(tree, to), how).await?;
                let replaced = renamed.replaced.map(|replaced| (show(&replaced.attrs), replaced.orphan));
                format!("{replaced:?} {:?} {:?}", renamed.from, renamed.to)
            }
            _ => panic!("no such operation: {what}"),
        })
    })
}

/// Returns one line for each file and directory: path, attributes and extended attributes. Also asserts that the tree
/// has no loop.
fn dump<E: Engine>(fs: &Namespace<E>) -> Vec<String> {
    let root = Cred::root();
    let mut lines = Vec::new();
    let mut todo = vec![(String::new(), ROOT)];
    let mut seen = BTreeSet::new();
    while let Some((path, dir)) = todo.pop() {
        assert!(seen.insert(dir), "{path}: a loop, or a directory in two places");
        for entry in fs.readdir(&root, dir, 0, 1000).expect("readdir").entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let a = entry.attrs;
            let xattrs = fs.effective_xattrs(a.id, b"").expect("xattrs");
            let layout = fs.info(a.id).expect("info").layout.is_some();
            lines.push(format!("{path} {:?} {:o} {} {} {layout} {xattrs:?}", a.kind, a.mode, a.nlink, a.size));
            if a.kind == FileKind::Directory {
                assert_eq!(fs.lookup_parent(&root, a.id).map(|parent| parent.id), Ok(dir));
                todo.push((path, a.id));
            }
        }
        let attrs = fs.getattr(dir).expect("getattr");
        lines.push(format!("{path}/ {} {}", attrs.nlink, attrs.size));
    }
    let (orphans, doomed) = (fs.orphans(FileId(0), 9).expect("orphans"), fs.doomed(FileId(0), 9).expect("doomed"));
    lines.push(format!("{} orphans, {} doomed, {:?} files", orphans.len(), doomed.len(), fs.files()));
    lines.sort();
    lines
}

type Result3 = (Vec<Result<String, Status>>, Vec<String>);

/// Runs the operations one after the other in the order `order`. Returns the results in the order of `ops`, and the
/// resulting tree.
fn serial(ops: &[Op], order: &[usize]) -> Result3 {
    let fs = namespace(Memory::new(merge));
    let tree = plant(&fs);
    let mut answers: Vec<_> = ops.iter().map(|_| Err(Status::Delay)).collect();
    for n in order {
        answers[*n] = block(start(&fs, &tree, ops[*n]));
    }
    (answers, dump(&fs))
}

/// Runs the operations concurrently: all operations read the same view before the first one commits. Returns their
/// results and the resulting tree.
fn together(ops: &[Op]) -> Result3 {
    let disk = Disk::default();
    let fs = namespace(Embedded::on(disk.clone(), disk.log(64 << 10), [9; 16], merge, || None).expect("store"));
    let tree = plant(&fs);
    let mut context = Context::from_waker(Waker::noop());
    disk.hold_syncs();
    let value = Bytes::from_static(b"keeps the writer busy");
    let mut busy = Box::pin(fs.registry_put(NOW, b"busy", Some(&value)));
    assert!(busy.as_mut().poll(&mut context).is_pending());
    disk.wait_for_sync();
    let mut running: Vec<Running<'_>> = ops.iter().map(|op| start(&fs, &tree, *op)).collect();
    let done: Vec<_> = running.iter_mut().map(|op| op.as_mut().poll(&mut context)).collect();
    disk.release_syncs();
    assert_eq!(block(busy), Ok(()));
    let answers = running.into_iter().zip(done).map(|(op, done)| match done {
        // The operation completed without a commit, because it failed or changed nothing.
        std::task::Poll::Ready(answer) => answer,
        std::task::Poll::Pending => block(op),
    });
    (answers.collect(), dump(&fs))
}

fn check(ops: &[Op], orders: &[&[usize]]) {
    let got = together(ops);
    let mut wanted = Vec::new();
    for order in orders {
        wanted.push(serial(ops, order));
        if wanted.last() == Some(&got) {
            return;
        }
    }
    panic!("{ops:?} together: {got:#?}\none after the other: {wanted:#?}");
}

#[test]
fn any_two_concurrent_operations_are_serializable() {
    for a in OPS {
        for b in OPS {
            check(&[*a, *b], &[&[0, 1], &[1, 0]]);
        }
    }
}

#[test]
fn any_three_concurrent_renames_and_removals_are_serializable() {
    let ops: Vec<Op> =
        OPS.iter().copied().filter(|(what, ..)| matches!(*what, "rename" | "exchange" | "remove")).collect();
    let orders: [&[usize]; 6] = [&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]];
    for (n, a) in ops.iter().enumerate() {
        for (m, b) in ops.iter().enumerate().skip(n + 1) {
            for c in ops.iter().skip(m + 1) {
                check(&[*a, *b, *c], &orders);
                check(&[*c, *b, *a], &orders);
            }
        }
    }
}

#[test]
fn creates_do_not_conflict_and_fail_in_a_removed_directory() {
    let fs = namespace(Memory::new(merge));
    let cred = alice();
    for round in 0..200 {
        let made = block(fs.mkdir(&cred, NOW, ROOT, b"d", &mode(0o755))).expect("mkdir");
        let dir = made.attrs.id;
        let barrier = Barrier::new(3);
        let conflicts = fs.status().counters.conflicts;
        let (created, removed) = std::thread::scope(|scope| {
            let creator = |prefix: u8| {
                let (fs, cred, barrier) = (&fs, &cred, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let create = |n: u8| {
                        let how = CreateMode::Guarded(mode(0o644));
                        block(fs.create(cred, NOW, dir, &[prefix, b'a' + n], &how, None)).map(drop)
                    };
                    (0..8).map(create).collect::<Vec<_>>()
                })
            };
            let creators = [creator(b'x'), creator(b'y')];
            barrier.wait();
            let removed = block(fs.remove(&cred, NOW, ROOT, b"d")).map(drop);
            (creators.map(|thread| thread.join().expect("creator")).concat(), removed)
        });
        match removed {
            Ok(()) => assert!(created.iter().all(|created| *created == Err(Status::Stale)), "{round}: {created:?}"),
            Err(status) => {
                assert_eq!(status, Status::NotEmpty);
                assert!(created.iter().all(|created| *created == Ok(())), "{round}: {created:?}");
                let names = fs.readdir(&cred, dir, 0, 100).expect("names").entries;
                assert_eq!((names.len(), fs.getattr(dir).map(|attrs| attrs.size)), (16, Ok(16)));
                for entry in names {
                    block(fs.remove(&cred, NOW, dir, &entry.name)).expect("remove");
                }
                block(fs.remove(&cred, NOW, ROOT, b"d")).expect("rmdir");
            }
        }
        // The creates do not conflict with one another, only with the removal of their directory `d`. A conflict
        // makes the namespace run one operation again.
        assert!(fs.status().counters.conflicts - conflicts <= 32);
    }
}

#[test]
fn creates_of_many_threads_do_not_conflict() {
    let store = || {
        let disk = Disk::default();
        Embedded::on(disk.clone(), disk.log(64 << 10), [9; 16], merge, || None).expect("store")
    };
    for store in [store(), store().led_by_callers()] {
        create_from_many_threads(store);
    }
}

fn create_from_many_threads(store: Embedded) {
    let fs = Arc::new(namespace(store));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let fs = fs.clone();
            scope.spawn(move || {
                for n in 0..50 {
                    let name = format!("{thread}-{n}");
                    let how = CreateMode::Guarded(mode(0o644));
                    block(fs.create(&alice(), NOW, ROOT, name.as_bytes(), &how, None)).expect("create");
                }
            });
        }
    });
    let root = fs.getattr(ROOT).expect("root");
    assert_eq!((root.size, root.change), (400, 401));
    assert_eq!(fs.status().counters.conflicts, 0);
}

#[test]
fn concurrent_renames_never_make_a_loop() {
    let fs = namespace(Memory::new(merge));
    let cred = alice();
    let make = |n: u8| block(fs.mkdir(&cred, NOW, ROOT, &[b'a' + n], &mode(0o755))).expect("mkdir").attrs.id;
    let dirs: Vec<FileId> = (0..8).map(make).collect();
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (fs, cred, dirs, barrier) = (&fs, &cred, &dirs, &barrier);
            scope.spawn(move || {
                let mut state = thread + 1;
                let mut random = |n: usize| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) as usize % n
                };
                barrier.wait();
                for _ in 0..2000 {
                    // The renames move directories but keep their names: the directory with the index 0 is always named
                    // `a`, the next one `b`, and so on.
                    let (moved, to) = (random(8), random(9));
                    let name = [b'a' + moved as u8];
                    let Ok(from) = fs.lookup_parent(&Cred::root(), dirs[moved]) else { continue };
                    let to = dirs.get(to).copied().unwrap_or(ROOT);
                    match block(fs.rename(cred, NOW, (from.id, &name), (to, &name), Renaming::Replace)) {
                        Ok(_) | Err(Status::Inval | Status::NoEnt) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    let directories = dump(&fs).iter().filter(|line| line.contains("Directory")).count();
    assert_eq!(directories, 8);
}
