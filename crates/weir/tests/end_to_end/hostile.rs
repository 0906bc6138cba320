//! Hostile environments: an mgr that returns invalid names, and local users who plant symlinks during a copy.

use crate::cluster::{Cluster, fail};
use crate::lab::Lab;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, ResolveFlags, openat2, renameat_with};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Returns the sorted names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_name_with_a_slash_from_the_mgr_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let lab = Lab::start(home.path(), 1);
    lab.run(["mkdir", "/tree"]);
    lab.put("/tree/qwertzuiopas", b"content");
    let target = home.path().join("outer/inner/copy");
    std::fs::create_dir_all(&target).unwrap();
    lab.mgr.proxy.alter_answers(b"qwertzuiopas", b"../../pwned_");
    let copy = ["cp", "-r", "weir:/tree", target.to_str().unwrap()];
    for args in [&copy[..], &["find", "/tree"], &["ls", "/tree"], &["du", "-a", "/tree"], &["rm", "-r", "/tree"]] {
        let before = lab.mgr.proxy.altered();
        let said = fail(&mut lab.weir(args), 1);
        assert!(lab.mgr.proxy.altered() > before, "{args:?}: nothing was altered");
        assert!(said.contains("a name that no file can have: \"../../pwned_\""), "{args:?}: {said}");
    }
    lab.mgr.proxy.leave_answers();
    assert_eq!(names(&home.path().join("outer")), ["inner"]);
    assert_eq!(names(&home.path().join("outer/inner")), ["copy"]);
    assert_eq!(lab.run(["cat", "/tree/qwertzuiopas"]), b"content");
}

/// Returns path, mode and ctime of all entries below a directory. If a copy changes an entry, these attributes change,
/// too.
fn state(dir: &Path) -> Vec<(PathBuf, u32, (i64, i64))> {
    let mut all = Vec::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(path) = waiting.pop() {
        let found = std::fs::symlink_metadata(&path).unwrap();
        if found.is_dir() {
            waiting.extend(names(&path).iter().map(|name| path.join(name)));
        }
        all.push((path, found.mode(), (found.ctime(), found.ctime_nsec())));
    }
    all.sort();
    all
}

/// Copies a tree with files in each directory into Weir. Returns the paths of the tree's directories, two levels deep.
fn tree(cluster: &Cluster, home: &Path) -> Vec<String> {
    let source = home.join("source");
    let mut dirs = vec!["tree".to_owned()];
    for outer in 0..4 {
        dirs.push(format!("tree/d{outer}"));
        dirs.extend((0..4).map(|inner| format!("tree/d{outer}/e{inner}")));
    }
    for dir in &dirs {
        let dir = source.join(dir);
        std::fs::create_dir_all(&dir).unwrap();
        for i in 0..3 {
            std::fs::write(dir.join(format!("f{i}")), b"content").unwrap();
        }
        std::fs::hard_link(dir.join("f0"), dir.join("linked")).unwrap();
        symlink("f1", dir.join("symlink")).unwrap();
        std::process::Command::new("mkfifo").arg(dir.join("fifo")).status().unwrap();
    }
    cluster.run(["cp", "-r", "--quiet", source.join("tree").to_str().unwrap(), "weir:/"]);
    dirs
}

/// Makes a directory to which planted symlinks point, outside all destinations of the copies. Its subdirectories have
/// the names of the tree's directories, so that a copy that follows a symlink would write into them.
fn outside(home: &Path) -> PathBuf {
    let outside = home.join("outside");
    (0..4).for_each(|i| std::fs::create_dir_all(outside.join(format!("d{i}/e{i}"))).unwrap());
    (0..4).for_each(|i| std::fs::create_dir_all(outside.join(format!("e{i}"))).unwrap());
    outside
}

#[test]
fn a_copy_to_a_local_target_follows_no_symlink_below_the_target() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start_with(&home.path().join("store"), &["--iods", "1"]);
    let dirs = tree(&cluster, home.path());
    let outside = outside(home.path());
    let before = state(&outside);
    for planted in ["tree", "tree/d1", "tree/d2/e3"] {
        let target = tempfile::tempdir_in(home.path()).unwrap();
        let link = target.path().join(planted);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&outside, &link).unwrap();
        // Name the destination of the copy through a symlink: the path that the user names may contain symlinks.
        let way = target.path().with_extension("way");
        symlink(target.path(), &way).unwrap();
        let said = fail(&mut cluster.weir(["cp", "-r", "weir:/tree", way.to_str().unwrap()]), 1);
        let named = way.join(planted);
        assert!(said.contains(named.to_str().unwrap()), "{said}");
        assert!(said.contains("the name is taken by a symlink"), "{said}");
        // After the error for the symlink, the copy must continue with the rest of the tree.
        for dir in dirs.iter().filter(|dir| !dir.starts_with(planted)) {
            assert_eq!(std::fs::read(target.path().join(dir).join("linked")).unwrap(), b"content", "{dir}");
        }
        assert_eq!(std::fs::read_link(&link).unwrap(), outside, "the symlink stays");
        assert_eq!(state(&outside), before);
    }
    cluster.stop();
}

/// Exchanges a directory in the destination of a copy with the symlink `link`. A second call undoes the exchange.
///
/// # Errors
/// The directory does not exist, or its parent directory is a symlink now.
fn swap(target: &Path, dir: &str, link: &Path) -> rustix::io::Result<()> {
    let (parent, name) = dir.rsplit_once('/').unwrap_or((".", dir));
    let target = rustix::fs::open(target, OFlags::PATH, Mode::empty())?;
    let parent = openat2(target, parent, OFlags::PATH, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    renameat_with(parent, name, CWD, link, RenameFlags::EXCHANGE)
}

#[test]
fn a_copy_follows_no_symlink_that_is_swapped_in_while_it_runs() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start_with(&home.path().join("store"), &["--iods", "1"]);
    let dirs = tree(&cluster, home.path());
    let (outside, target) = (outside(home.path()), home.path().join("target"));
    std::fs::create_dir(&target).unwrap();
    let before = state(&outside);
    let planted: Vec<_> = (0..dirs.len()).map(|i| home.path().join(format!("planted-{i}"))).collect();
    planted.iter().for_each(|link| symlink(&outside, link).unwrap());
    let (swaps, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let swap_all = || {
        while !over.load(Relaxed) {
            for (dir, link) in dirs.iter().zip(&planted) {
                swaps.fetch_add(u64::from(swap(&target, dir, link).is_ok()), Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let swapping = scope.spawn(swap_all);
        let mut met = 0;
        for round in 0.. {
            let copy = cluster.weir(["cp", "-r", "weir:/tree", target.to_str().unwrap()]).output().unwrap();
            let said = String::from_utf8_lossy(&copy.stderr);
            met += u64::from(said.contains("not followed"));
            let sound = state(&outside) == before && matches!(copy.status.code(), Some(0 | 1));
            if !sound
                || swapping.is_finished()
                || round == 1000
                || (round >= 30 && met >= 10 && swaps.load(Relaxed) >= 20_000)
            {
                over.store(true, Relaxed);
                assert!(sound, "{}: {said}{:?}", copy.status, state(&outside));
                assert!(round < 1000, "only {met} symlinks were met in {} swaps", swaps.load(Relaxed));
                break;
            }
        }
    });
    // After the thread that exchanges directories with symlinks has ended, a copy to an empty directory must succeed.
    std::fs::remove_dir_all(&target).unwrap();
    std::fs::create_dir(&target).unwrap();
    cluster.run(["cp", "-r", "--quiet", "weir:/tree", target.to_str().unwrap()]);
    assert!(dirs.iter().all(|dir| names(&target.join(dir)).contains(&"fifo".to_owned())));
    cluster.stop();
}
