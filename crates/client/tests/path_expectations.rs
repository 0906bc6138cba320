//! Tests of path expectations. The mgr executes an operation only if the expected paths still lead to the file.
//! Otherwise the operation changes nothing.

use crate::memory_mgr::{MemoryMgr, options};
use bytes::Bytes;
use client::{CreateOptions, Error, Mount, Node, OpenFlags, PathExpectation, XattrMode};
use std::future::Future;
use types::{Cred, FileKind, Renaming, SetAttrs, Status};

fn walk(from: &Node, names: &[&str], to: &Node) -> PathExpectation {
    let names = names.iter().map(|name| Bytes::copy_from_slice(name.as_bytes())).collect();
    PathExpectation { to: to.id, from: from.clone(), names }
}

/// A directory `a/b` with a file `f`, and the mount that created them.
struct Tree {
    mount: Mount,
    root: Node,
    dir: Node,
    file: Node,
}

impl Tree {
    async fn make(mount: Mount) -> Tree {
        let root = mount.root();
        let above = mount.mkdir(&root, b"a", 0o755).await.unwrap().0;
        let dir = mount.mkdir(&above, b"b", 0o755).await.unwrap().0;
        let file = mount.create(&dir, b"f", CreateOptions::default()).await.unwrap();
        let node = file.node();
        file.close().await.unwrap();
        Tree { mount, root, dir, file: node }
    }

    /// Returns the mount with path expectations for the directory `a/b` and the file `a/b/f`.
    fn expecting(&self) -> Mount {
        let dir = walk(&self.root, &["a", "b"], &self.dir);
        self.mount.expecting(vec![dir, walk(&self.root, &["a", "b", "f"], &self.file)])
    }
}

async fn outcome<T>(operation: impl Future<Output = client::Result<T>>) -> Option<Error> {
    operation.await.err()
}

/// Calls each operation that uses a name or a path. Returns the names of the operations, each with its error, if any.
async fn all(tree: &Tree) -> Vec<(&'static str, Option<Error>)> {
    let (mount, dir, file) = (tree.expecting(), &tree.dir, &tree.file);
    let mode = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
    let made = async { mount.create(dir, b"new", CreateOptions::default()).await?.close().await };
    let opened = async { mount.open(file, OpenFlags { truncate: true, ..OpenFlags::READ_WRITE }).await?.close().await };
    vec![
        ("lookup", outcome(mount.lookup(dir, b"f")).await),
        ("open", outcome(opened).await),
        ("create", outcome(made).await),
        ("setattr", outcome(mount.setattr(file, &mode)).await),
        ("setxattr", outcome(mount.setxattr(file, b"x", b"1", XattrMode::Either)).await),
        ("getxattr", outcome(mount.getxattr(file, b"x")).await),
        ("listxattr", outcome(mount.listxattr(file)).await),
        ("removexattr", outcome(mount.removexattr(file, b"x")).await),
        ("mkdir", outcome(mount.mkdir(dir, b"d", 0o755)).await),
        ("rmdir", outcome(mount.rmdir_telling(dir, b"d")).await),
        ("symlink", outcome(mount.symlink(dir, b"s", b"f")).await),
        ("mknod", outcome(mount.mknod(dir, b"p", FileKind::Fifo, 0o600, (0, 0))).await),
        ("link", outcome(mount.link(file, dir, b"g")).await),
        ("rename", outcome(mount.rename(dir, b"g", &tree.root, b"h")).await),
        ("rename into", outcome(mount.rename_as((&tree.root, b"h"), (dir, b"g"), Renaming::NoReplace)).await),
        ("remove", outcome(mount.remove(dir, b"g")).await),
        ("readdir", outcome(mount.readdir(dir).next_page()).await),
    ]
}

#[tokio::test]
async fn operations_are_executed_if_their_paths_still_lead_to_the_file() {
    let mgr = MemoryMgr::start().await;
    let tree = Tree::make(mgr.mount(options()).await).await;
    for (what, error) in all(&tree).await {
        assert_eq!(error, None, "{what}");
    }
    // With two path expectations for one file, the mgr executes an operation only if both paths lead to the file.
    tree.mount.link(&tree.file, &tree.root, b"second").await.unwrap();
    let both = [walk(&tree.root, &["a", "b", "f"], &tree.file), walk(&tree.root, &["second"], &tree.file)];
    let mount = tree.mount.expecting(both.to_vec());
    mount.setxattr(&tree.file, b"x", b"1", XattrMode::Either).await.unwrap();
    tree.mount.remove(&tree.root, b"second").await.unwrap();
    let error = mount.setxattr(&tree.file, b"x", b"2", XattrMode::Either).await.unwrap_err();
    assert!(error.is_moved(), "one expected path leads to no file: {error}");
}

#[tokio::test]
async fn operations_change_nothing_if_their_paths_lead_elsewhere() {
    let mgr = MemoryMgr::start().await;
    let tree = Tree::make(mgr.mount(options()).await).await;
    let (mount, root) = (&tree.mount, &tree.root);
    mount.setxattr(&tree.file, b"x", b"0", XattrMode::Either).await.unwrap();
    let above = mount.lookup(root, b"a").await.unwrap().0;
    let states = |mount: Mount, file: Node, dir: Node| async move {
        (mount.getattr(&file).await.unwrap().change, mount.getattr(&dir).await.unwrap().change)
    };
    // The expected directory has moved. In the first round, its old path leads to another directory. In the second
    // round, its old path leads nowhere.
    mount.rename(&above, b"b", root, b"moved").await.unwrap();
    mount.mkdir(&above, b"b", 0o755).await.unwrap();
    for round in 0..2 {
        let before = states(mount.clone(), tree.file.clone(), tree.dir.clone()).await;
        for (what, error) in all(&tree).await {
            let error = error.unwrap_or_else(|| panic!("{what} was executed"));
            assert!(error.is_moved() && error.is(Status::Stale), "{what}: {error}");
        }
        assert_eq!(states(mount.clone(), tree.file.clone(), tree.dir.clone()).await, before, "round {round}");
        if round == 0 {
            mount.remove(&above, b"b").await.unwrap();
            mount.remove(root, b"a").await.unwrap();
        }
    }
    // Without path expectations, an operation still finds a file that has moved. If an operation fails for another
    // reason than a path expectation, its error does not report a moved path.
    assert!(!mount.lookup(&tree.dir, b"none").await.unwrap_err().is_moved());
    mount.getattr(&tree.file).await.unwrap();
}

#[tokio::test]
async fn a_path_without_search_permission_counts_as_moved() {
    let mgr = MemoryMgr::start().await;
    let tree = Tree::make(mgr.mount(options()).await).await;
    let walks = vec![walk(&tree.root, &["a", "b", "f"], &tree.file)];
    let above = tree.mount.lookup(&tree.root, b"a").await.unwrap().0;
    let closed = SetAttrs { mode: Some(0o700), ..SetAttrs::default() };
    let user = tree.mount.acting_as(&Cred { uid: 1000, gid: 1000, groups: Vec::new() });
    user.expecting(walks.clone()).open(&tree.file, OpenFlags::READ).await.unwrap().close().await.unwrap();
    tree.mount.setattr(&above, &closed).await.unwrap();
    let error =
        user.expecting(walks).open(&tree.file, OpenFlags::READ).await.err().expect("the user has no search permission");
    assert!(error.is_moved(), "{error}");
    user.open(&tree.file, OpenFlags::READ).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn a_path_too_long_for_a_compound_is_not_checked() {
    let mgr = MemoryMgr::start().await;
    let mount = mgr.mount(options()).await;
    let (mut dir, mut names) = (mount.root(), Vec::new());
    let depth = |dirs: usize| (0..dirs).map(|depth| format!("d{depth}")).collect::<Vec<_>>();
    let all = depth(40);
    for name in &all {
        dir = mount.mkdir(&dir, name.as_bytes(), 0o755).await.unwrap().0;
        names.push(&name[..]);
        let expecting = mount.expecting(vec![walk(&mount.root(), &names, &dir)]);
        // Of the four operations below, RENAME has the largest COMPOUND, because the mgr checks the paths of two names.
        expecting.mkdir(&dir, b"x", 0o755).await.unwrap();
        expecting.rename(&dir, b"x", &dir, b"y").await.unwrap();
        expecting.lookup(&dir, b"y").await.unwrap();
        expecting.rmdir_telling(&dir, b"y").await.unwrap();
    }
}
