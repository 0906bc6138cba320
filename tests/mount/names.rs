//! Operations on a name that another mount changes: each operation must affect the file or directory that has the name
//! now.

use crate::sharing::two;
use crate::test_mount::TestMount;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// An operation that changes a file by its name, with a description.
type Change = (&'static str, fn(&Path));

/// The name of the extended attribute that the operations in [`CHANGES`] set.
const XATTR: &str = "user.changed";

fn append(path: &Path) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(b"+").unwrap();
}

fn set_times(path: &Path) {
    let time = Timespec { tv_sec: 1_000_000, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

/// All operations by which programs change a file by its name.
const CHANGES: [Change; 9] = [
    ("append", append),
    ("open with O_TRUNC", |path| drop(OpenOptions::new().write(true).truncate(true).open(path).unwrap())),
    ("create", |path| drop(File::create(path).unwrap())),
    ("truncate", |path| truncate(path, 1)),
    ("chmod", |path| fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap()),
    ("chown", |path| rustix::fs::chown(path, Some(rustix::fs::Uid::from_raw(7)), None).unwrap()),
    ("utimensat", set_times),
    ("setxattr", |path| rustix::fs::setxattr(path, XATTR, b"yes", XattrFlags::empty()).unwrap()),
    ("link", |path| fs::hard_link(path, path.with_extension("link")).unwrap()),
];

unsafe extern "C" {
    #[link_name = "truncate"]
    fn truncate_path(path: *const c_char, length: i64) -> c_int;
}

/// Calls truncate(2), which does not open the file.
fn truncate(path: &Path, length: i64) {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: `path` points to a string that ends with a zero byte and lives until the call has returned.
    let result = unsafe { truncate_path(path.as_ptr(), length) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Returns the attributes of a file from the server, not from the cache of the kernel.
fn stat(path: &Path) -> Statx {
    rustix::fs::statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).unwrap()
}

/// Returns every property of a file that an operation in [`CHANGES`] may change.
fn state(path: &Path) -> (Vec<u8>, u16, u32, u32, i64, bool) {
    let text = fs::read(path).unwrap();
    let changed = rustix::fs::getxattr(path, XATTR, &mut [0; 8][..]).is_ok();
    let stat = stat(path);
    (text, stat.stx_mode, stat.stx_uid, stat.stx_nlink, stat.stx_mtime.tv_sec, changed)
}

/// Returns the names in a directory.
fn names(path: &Path) -> BTreeSet<String> {
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn changes_by_a_name_reach_the_file_that_has_the_name_now() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    for (round, (what, change)) in CHANGES.iter().enumerate() {
        let (first, second) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let [file, old] = ["f", "f.old"].map(|name| first.at(&format!("{round}.{name}")));
        fs::write(&file, "old").unwrap();
        let file_there = second.at(&format!("{round}.f"));
        assert_eq!(fs::read_to_string(&file_there).unwrap(), "old");
        fs::rename(&file, &old).unwrap();
        fs::write(&file, "newer").unwrap();
        let before = [&old, &file].map(|path| state(path));
        change(&file_there);
        let after = [&old, &file].map(|path| state(path));
        assert_eq!(after[0], before[0], "{what}: the file that had the name before");
        assert_ne!(after[1], before[1], "{what}: the file that has the name now");
    }
    one.unmount();
    two.unmount();
}

/// After ESTALE, the kernel repeats a path walk only once. Before the kernel opens the file that the second walk has
/// found, another client may replace this file too. So the mgr must keep a replaced file for a while, so that the
/// kernel can still open it.
#[test]
fn a_name_that_another_mount_replaces_constantly_can_be_opened() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    let (path, made) = (two.at("f"), [one.at("f.new"), one.at("f")]);
    fs::write(&made[1], "0").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..1500 {
                fs::write(&made[0], number.to_string()).unwrap();
                fs::rename(&made[0], &made[1]).unwrap();
            }
            done.store(true, SeqCst);
        });
        let mut last = 0;
        while !done.load(SeqCst) {
            let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{e} after {last}"));
            let number: u32 = text.parse().unwrap_or_else(|_| panic!("{text:?} after {last}"));
            assert!(number >= last, "{number} after {last}");
            last = number;
            assert!(fs::metadata(&path).is_ok_and(|attrs| attrs.is_file()));
        }
    });
    assert_eq!(fs::read_to_string(&path).unwrap(), "1499");
    one.unmount();
    two.unmount();
}

#[test]
fn reads_and_appends_reach_the_file_that_has_the_name_now() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    let path = two.at("f");
    fs::write(one.at("f"), "old").unwrap();
    for round in 0..300 {
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            if round == 0 { "old".into() } else { format!("{}+", round - 1) }
        );
        fs::rename(one.at("f"), one.at("f.old")).unwrap();
        fs::write(one.at("f"), round.to_string()).unwrap();
        match round % 3 {
            0 => append(&path),
            1 => {
                assert_eq!(fs::read_to_string(&path).unwrap(), round.to_string());
                append(&path);
            }
            _ => fs::write(&path, format!("{round}+")).unwrap(),
        }
        let kept = if round == 0 { "old".into() } else { format!("{}+", round - 1) };
        assert_eq!(fs::read_to_string(one.at("f.old")).unwrap(), kept, "round {round}");
        assert_eq!(fs::read_to_string(one.at("f")).unwrap(), format!("{round}+"));
    }
    one.unmount();
    two.unmount();
}

/// An operation on a path in a directory: its description, the operation, and the names in the directory after the
/// operation. Before the operation, the directory contains `f`, `sub` and `sub/f`.
type Work = (&'static str, fn(&Path), &'static [&'static str]);

fn open_dir(path: &Path) -> OwnedFd {
    // Set `O_CLOEXEC`, so that no program that another test starts inherits the descriptor and keeps the mount busy.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).unwrap()
}

fn link_beside(dir: &Path) {
    let beside = dir.with_extension("beside");
    fs::create_dir(&beside).unwrap();
    fs::hard_link(dir.join("f"), beside.join("f")).unwrap();
    assert_eq!(fs::read_to_string(beside.join("f")).unwrap(), "new");
}

const WORK: [Work; 18] = [
    ("ls", |dir| assert_eq!(names(dir), ["f", "sub"].map(String::from).into()), &["f", "sub"]),
    ("cat", |dir| assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "new"), &["f", "sub"]),
    ("cat below", |dir| assert_eq!(fs::read_to_string(dir.join("sub/f")).unwrap(), "new"), &["f", "sub"]),
    ("append", |dir| append(&dir.join("f")), &["f", "sub"]),
    ("mkdir", |dir| fs::create_dir(dir.join("x")).unwrap(), &["f", "sub", "x"]),
    ("mkdir below", |dir| fs::create_dir(dir.join("sub/x")).unwrap(), &["f", "sub"]),
    ("ln -s", |dir| symlink("f", dir.join("x")).unwrap(), &["f", "sub", "x"]),
    (
        "mkfifo",
        |dir| rustix::fs::mknodat(CWD, dir.join("x"), FileType::Fifo, Mode::RWXU, 0).unwrap(),
        &["f", "sub", "x"],
    ),
    ("create", |dir| fs::write(dir.join("x"), "x").unwrap(), &["f", "sub", "x"]),
    ("create below", |dir| fs::write(dir.join("sub/x"), "x").unwrap(), &["f", "sub"]),
    ("ln", |dir| fs::hard_link(dir.join("f"), dir.join("x")).unwrap(), &["f", "sub", "x"]),
    // The new name `sub` equals a component of the path of its parent directory.
    ("mkdir of the same name", |dir| fs::create_dir(dir.join("sub/sub")).unwrap(), &["f", "sub"]),
    ("ln of the same name", link_beside, &["f", "sub"]),
    ("mv within", |dir| fs::rename(dir.join("f"), dir.join("x")).unwrap(), &["sub", "x"]),
    ("mv into", |dir| fs::rename(dir.with_extension("free"), dir.join("x")).unwrap(), &["f", "sub", "x"]),
    ("rm", |dir| fs::remove_file(dir.join("f")).unwrap(), &["sub"]),
    ("rm -r", |dir| fs::remove_dir_all(dir.join("sub")).unwrap(), &["f"]),
    ("chmod", |dir| fs::set_permissions(dir, PermissionsExt::from_mode(0o700)).unwrap(), &["f", "sub"]),
];

/// Creates a directory with the entries that [`WORK`] needs. Its files contain `text`.
fn make(dir: &Path, text: &str) {
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("f"), text).unwrap();
    fs::write(dir.join("sub/f"), text).unwrap();
}

/// Returns all names of a tree, each with the mode and the content of its file.
fn tree(dir: &Path) -> Vec<(String, u16, String)> {
    let mut all = vec![(String::new(), stat(dir).stx_mode, String::new())];
    for name in names(dir) {
        let path = dir.join(&name);
        if path.is_dir() {
            all.extend(tree(&path).into_iter().map(|(below, mode, text)| (format!("{name}/{below}"), mode, text)));
        } else {
            all.push((name, stat(&path).stx_mode, fs::read_to_string(&path).unwrap()));
        }
    }
    all
}

/// Tests that each operation of [`WORK`] on one mount affects the directory with which the other mount has just
/// replaced the directory of this name. Before the replacement, `known` makes the kernel cache names on the mount of
/// the operation. `replace` replaces the directory, and may rename the replaced one to `*.old`, which must not change.
fn work_in_a_replaced_directory(known: fn(&Path), replace: fn(&Path)) {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    for (round, (what, work, after)) in WORK.iter().enumerate() {
        let (first, second) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let [dir, old, next] = ["d", "d.old", "d.next"].map(|name| first.at(&format!("{round}{name}")));
        make(&dir, "old");
        make(&next, "new");
        fs::write(dir.with_extension("free"), "free").unwrap();
        let there = second.at(&format!("{round}d"));
        known(&there);
        replace(&dir);
        let before = old.exists().then(|| tree(&old));
        work(&there);
        assert_eq!(names(&dir), after.iter().map(|name| (*name).to_owned()).collect(), "{what}");
        assert_eq!(old.exists().then(|| tree(&old)), before, "{what}: the directory that had the name before");
        match *what {
            "append" => assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "new+"),
            "mkdir below" | "create below" => assert_eq!(names(&dir.join("sub")), ["f", "x"].map(String::from).into()),
            // The first mount created the directory and has cached the directory's mode, so read the mode on the
            // second mount.
            "chmod" => assert_eq!(stat(&there).stx_mode & 0o777, 0o700),
            _ => {}
        }
    }
    one.unmount();
    two.unmount();
}

/// Looks up every name in a directory, so that the kernel caches all of them.
fn look_at_all(dir: &Path) {
    tree(dir);
}

/// Looks up only the directory itself, so that the kernel caches none of its names.
fn look_at_name(dir: &Path) {
    stat(dir);
}

fn swap(dir: &Path) {
    fs::rename(dir, dir.with_extension("old")).unwrap();
    fs::rename(dir.with_extension("next"), dir).unwrap();
}

fn make_again(dir: &Path) {
    fs::remove_dir_all(dir).unwrap();
    make(dir, "new");
}

#[test]
fn operations_reach_the_directory_that_a_rename_has_swapped_in() {
    work_in_a_replaced_directory(look_at_all, swap);
}

#[test]
fn operations_reach_a_swapped_directory_with_only_its_name_cached() {
    work_in_a_replaced_directory(look_at_name, swap);
}

#[test]
fn operations_reach_a_directory_that_was_removed_and_recreated() {
    work_in_a_replaced_directory(look_at_all, make_again);
    work_in_a_replaced_directory(look_at_name, make_again);
}

/// The kernel revalidates (looks up again) a cached name when its timeout has expired. In this test, the timeout has
/// expired for the names in the directory, but not for the directory itself, which the kernel has just looked up.
#[test]
fn old_cached_names_are_not_used_after_their_directory_is_swapped() {
    let known = |dir: &Path| {
        tree(dir);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        stat(dir);
    };
    work_in_a_replaced_directory(known, swap);
}

#[test]
fn a_symbolic_link_that_is_replaced_leads_to_its_new_target() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    for name in ["a", "b"] {
        make(&one.at(name), name);
    }
    symlink("a", one.at("current")).unwrap();
    for round in 0..40 {
        let (now, next) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
        assert_eq!(fs::read_to_string(two.at("current/f")).unwrap(), now);
        assert_eq!(names(&two.at("current")), ["f", "sub"].map(String::from).into());
        symlink(next, one.at("tmp")).unwrap();
        fs::rename(one.at("tmp"), one.at("current")).unwrap();
        match round % 3 {
            0 => assert_eq!(fs::read_to_string(two.at("current/f")).unwrap(), next, "round {round}"),
            1 => assert_eq!(fs::read_link(two.at("current")).unwrap().to_str(), Some(next), "round {round}"),
            _ => {
                fs::create_dir(two.at("current/x")).unwrap();
                fs::remove_dir(one.at(next).join("x")).unwrap();
            }
        }
    }
    one.unmount();
    two.unmount();
}

#[test]
fn each_hard_link_leads_to_the_file_that_has_the_name_now() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    let files = ["a", "b", "c"];
    for round in 0..20 {
        fs::write(one.at("a"), "old").unwrap();
        fs::hard_link(one.at("a"), one.at("b")).unwrap();
        fs::hard_link(one.at("a"), one.at("c")).unwrap();
        files.iter().for_each(|name| assert_eq!(fs::read_to_string(two.at(name)).unwrap(), "old"));
        let replaced = files[round % 3];
        fs::rename(one.at(replaced), one.at("moved")).unwrap();
        fs::write(one.at(replaced), "new").unwrap();
        let same = files[(round + 1) % 3];
        append(&two.at(same));
        append(&two.at(replaced));
        append(&two.at(same));
        for name in files {
            let text = if name == replaced { "new+" } else { "old++" };
            assert_eq!(fs::read_to_string(one.at(name)).unwrap(), text, "round {round}: {name}");
            assert_eq!(fs::read_to_string(two.at(name)).unwrap(), text, "round {round}: {name}");
        }
        assert_eq!(fs::read_to_string(two.at("moved")).unwrap(), "old++");
        ["a", "b", "c", "moved"].iter().for_each(|name| fs::remove_file(two.at(name)).unwrap());
    }
    one.unmount();
    two.unmount();
}

/// Changes a file through its descriptor. After ESTALE, the kernel does not repeat calls that use a descriptor.
fn change_by_descriptor(file: &File, mode: u32) {
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).unwrap();
    rustix::fs::fchown(file, Some(rustix::fs::Uid::from_raw(mode)), None).unwrap();
    let time = Timespec { tv_sec: 1_000_000, tv_nsec: 0 };
    rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time }).unwrap();
    rustix::fs::fsetxattr(file, XATTR, b"yes", XattrFlags::empty()).unwrap();
    assert_eq!(rustix::fs::fgetxattr(file, XATTR, &mut [0; 8][..]), Ok(3));
    rustix::fs::fremovexattr(file, XATTR).unwrap();
    file.set_len(2).unwrap();
    let stat = rustix::fs::fstat(file).unwrap();
    assert_eq!((stat.st_mode & 0o777, stat.st_uid, stat.st_size), (mode, mode, 2));
}

#[test]
fn file_descriptors_stay_valid_whatever_happens_to_the_names() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    for round in 0..6 {
        fs::write(one.at("f"), "old").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(two.at("f")).unwrap();
        match round % 3 {
            0 => fs::rename(one.at("f"), one.at("f.old")).unwrap(),
            1 => fs::remove_file(one.at("f")).unwrap(),
            _ => {
                fs::rename(one.at("f"), one.at("f.old")).unwrap();
                fs::write(one.at("f"), "new").unwrap();
            }
        }
        change_by_descriptor(&file, 0o640);
        change_by_descriptor(&file, 0o604);
        let mut text = [0; 2];
        file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"ol");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        assert_eq!(fs::read(&path).unwrap(), b"ol");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        if round % 3 == 2 {
            assert_eq!(fs::read(one.at("f")).unwrap(), b"new");
            assert_eq!(stat(&one.at("f")).stx_uid, 0);
        }
    }
    one.unmount();
    two.unmount();
}

/// Does everything that programs do through the descriptor of a directory.
fn work_by_descriptor(dir: &OwnedFd) {
    let open = |name, flags| rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    let mut text = String::new();
    File::from(open("f", OFlags::RDONLY).unwrap()).read_to_string(&mut text).unwrap();
    assert_eq!(text, "old");
    rustix::fs::mkdirat(dir, "x", Mode::RWXU).unwrap();
    rustix::fs::unlinkat(dir, "x", AtFlags::REMOVEDIR).unwrap();
    rustix::fs::symlinkat("f", dir, "x").unwrap();
    rustix::fs::renameat(dir, "x", dir, "y").unwrap();
    rustix::fs::unlinkat(dir, "y", AtFlags::empty()).unwrap();
    rustix::fs::linkat(dir, "f", dir, "x", AtFlags::empty()).unwrap();
    rustix::fs::unlinkat(dir, "x", AtFlags::empty()).unwrap();
    drop(open("x", OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).unwrap());
    rustix::fs::unlinkat(dir, "x", AtFlags::empty()).unwrap();
    text.clear();
    File::from(open("sub/f", OFlags::RDONLY).unwrap()).read_to_string(&mut text).unwrap();
    assert_eq!(text, "old");
    rustix::fs::chmodat(dir, "f", Mode::from_raw_mode(0o600), AtFlags::empty()).unwrap();
    rustix::fs::statat(dir, "sub/f", AtFlags::empty()).unwrap();
    rustix::fs::fchmod(dir, Mode::RWXU).unwrap();
    rustix::fs::fstat(dir).unwrap();
    let listed = rustix::fs::Dir::read_from(dir).unwrap().count();
    assert_eq!(listed, 4, "with . and ..");
}

#[test]
fn a_renamed_directory_can_be_used_through_its_descriptor() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    for (round, looked) in [(0, true), (1, false), (2, true), (3, false)] {
        let [dir, old] = ["d", "old"].map(|name| one.at(&format!("{round}.{name}")));
        make(&dir, "old");
        let there = two.at(&format!("{round}.d"));
        let held = open_dir(&there);
        if looked {
            look_at_all(&there);
        }
        fs::rename(&dir, &old).unwrap();
        if round >= 2 {
            make(&dir, "new");
        }
        work_by_descriptor(&held);
        work_by_descriptor(&held);
        // Also use the directory from a shell process whose current directory is this directory.
        let shell = "set -e; cat f sub/f; mkdir x; touch x/y; echo z > z; mv z x; ls; rm -r x; chmod 700 .";
        let said = Command::new("sh").args(["-c", shell]).current_dir(format!("/proc/self/fd/{}", raw(&held))).output();
        let said = said.unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        assert_eq!(String::from_utf8_lossy(&said.stdout), "oldoldf\nsub\nx\n");
        if round >= 2 {
            assert_eq!(tree(&there).len(), 4);
            assert_eq!(fs::read_to_string(there.join("f")).unwrap(), "new");
        }
    }
    one.unmount();
    two.unmount();
}

fn raw(fd: &OwnedFd) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(fd)
}

#[test]
fn the_descriptor_of_a_removed_directory_reports_enoent() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    fs::create_dir(one.at("d")).unwrap();
    let held = [(); 3].map(|()| open_dir(&two.at("d")));
    fs::remove_dir(one.at("d")).unwrap();
    std::thread::scope(|scope| {
        for fd in &held {
            // Each call runs in a new thread, so it is the first request of its thread on the mount.
            scope.spawn(move || {
                let flags = StatxFlags::BASIC_STATS;
                let stat = rustix::fs::statx(fd.as_fd(), "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, flags);
                assert_eq!(stat.unwrap().stx_nlink, 0);
                assert_eq!(rustix::fs::mkdirat(fd, "x", Mode::RWXU), Err(Errno::NOENT));
                assert_eq!(rustix::fs::symlinkat("x", fd, "x"), Err(Errno::NOENT));
                assert_eq!(rustix::fs::openat(fd, "x", OFlags::RDONLY, Mode::empty()).map(drop), Err(Errno::NOENT));
            });
        }
    });
    drop(held);
    one.unmount();
    two.unmount();
}

/// After a rewind, an open directory must list the names that exist at the time of the rewind.
#[test]
fn a_rewound_directory_shows_its_current_names() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    fs::create_dir(one.at("d")).unwrap();
    let names = |dir: &mut rustix::fs::Dir| {
        let names = dir.by_ref().map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
        names.filter(|name| !name.starts_with('.')).collect::<Vec<_>>()
    };
    let mut dir = rustix::fs::Dir::new(open_dir(&two.at("d"))).unwrap();
    assert_eq!(names(&mut dir), [""; 0]);
    fs::write(one.at("d/a"), "").unwrap();
    dir.rewind();
    assert_eq!(names(&mut dir), ["a"]);
    fs::rename(one.at("d/a"), one.at("d/b")).unwrap();
    dir.rewind();
    assert_eq!(names(&mut dir), ["b"]);
    drop(dir);
    one.unmount();
    two.unmount();
}

/// A program changes names through the descriptor of a directory, and then lists the directory. The listing must
/// contain the changes.
#[test]
fn an_open_directory_lists_changes_made_through_its_descriptor() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    fs::create_dir(one.at("d")).unwrap();
    for round in 0..20 {
        let dir = open_dir(&one.at("d"));
        let (made, removed) = (format!("{round}"), format!("{}", round - 1));
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        drop(rustix::fs::openat(&dir, &made, flags, Mode::RWXU).unwrap());
        if round > 0 {
            rustix::fs::unlinkat(&dir, &removed, AtFlags::empty()).unwrap();
        }
        let found = rustix::fs::Dir::new(dir).unwrap().map(|entry| entry.unwrap().file_name().to_owned());
        let found: Vec<_> = found.filter(|name| !name.to_bytes().starts_with(b".")).collect();
        assert_eq!(found, [CString::new(made).unwrap()]);
        assert!(!one.at("d").join(removed).exists());
    }
    one.unmount();
    two.unmount();
}

#[test]
fn concurrent_removals_of_one_tree_report_no_stale_handle() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    for round in 0..8 {
        for dir in 0..6 {
            for below in 0..3 {
                make(&one.at(&format!("t/{dir}/{below}")), "x");
            }
        }
        tree(&two.at("t"));
        let remove = |place: &TestMount| {
            let mut rm = Command::new("rm");
            rm.arg("-rf").arg(place.at("t")).stderr(Stdio::piped()).spawn().unwrap()
        };
        let removals = [&one, &two].map(remove);
        for removal in removals {
            let said = removal.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&said.stderr);
            assert!(said.status.success() && text.is_empty(), "round {round}: {text}");
        }
        assert!(!one.at("t").exists() && !two.at("t").exists());
    }
    one.unmount();
    two.unmount();
}

/// `rm -r` opens one directory after another with the same arguments of `openat`: the same descriptor number, and the
/// same address of the name. The mount must not mistake the second `openat` for a repetition of the first one.
#[test]
fn the_same_call_on_another_directory_is_walked_again() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    let opens = |dir: &OwnedFd| rustix::fs::openat(dir, c"sub", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    for dir in ["a", "b"] {
        make(&one.at(dir), "x");
        tree(&two.at(dir));
    }
    let dirs = ["a", "b"].map(|dir| open_dir(&two.at(dir)));
    let mut held = open_dir(&two.at(""));
    let mut outcomes = Vec::new();
    for (at, (dir, also_itself)) in [("a", false), ("b", true)].into_iter().enumerate() {
        rustix::io::dup3(&dirs[at], &mut held, rustix::io::DupFlags::CLOEXEC).unwrap();
        fs::remove_dir_all(one.at(dir).join("sub")).unwrap();
        if also_itself {
            fs::remove_dir_all(one.at(dir)).unwrap();
        }
        outcomes.push(opens(&held).map(drop).unwrap_err());
    }
    assert_eq!(outcomes, [Errno::NOENT; 2]);
    drop((held, dirs));
    one.unmount();
    two.unmount();
}

/// Two `rm -r` processes remove one tree while a third program works in the directory. The test itself makes the
/// system calls of all three programs, in a fixed order.
#[test]
fn a_missing_name_stays_missing_when_its_directory_is_removed() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    for dir in ["a", "b"] {
        make(&one.at(dir), "x");
        tree(&two.at(dir));
        let (held, below) = (open_dir(&two.at(dir)), open_dir(&two.at(dir).join("sub")));
        fs::remove_dir_all(one.at(dir).join("sub")).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        assert_eq!(rustix::fs::openat(&held, c"sub", flags, Mode::empty()).unwrap_err(), Errno::NOENT);
        fs::remove_dir_all(one.at(dir)).unwrap();
        assert_eq!(rustix::fs::unlinkat(&held, c"sub", AtFlags::REMOVEDIR).unwrap_err(), Errno::NOENT);
        drop(below);
    }
    one.unmount();
    two.unmount();
}
