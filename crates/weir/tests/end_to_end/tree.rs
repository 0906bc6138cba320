//! A test tree with every attribute that a copy could lose, and a comparison of two trees.

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Returns `len` pseudorandom bytes, which depend only on the seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut out: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    out.truncate(len);
    out
}

/// Makes the test tree at `top`, which must not exist.
pub fn make(top: &Path) {
    fs::create_dir(top).unwrap();
    for (i, len) in [0, 1, 63, 64, 65, 4095, 4096, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000, 40 << 20]
        .into_iter()
        .enumerate()
    {
        fs::write(top.join(format!("file-{len}")), bytes(i as u64, len)).unwrap();
    }
    let deep = top.join("deep/er/and/deeper");
    fs::create_dir_all(&deep).unwrap();
    fs::create_dir(top.join("empty directory")).unwrap();
    for i in 0..150u64 {
        fs::write(deep.join(format!("small {i}")), bytes(i, (i * 37 % 9000) as usize)).unwrap();
    }
    odd_names(top);
    sparse(top);
    links(top);
    modes_and_xattrs(top);
    times(top);
}

fn odd_names(top: &Path) {
    let dir = top.join("odd names");
    fs::create_dir(&dir).unwrap();
    let long = "n".repeat(255);
    let names: [&[u8]; 10] = [
        b"not utf-8 \xff\xfe",
        b"new\nline",
        b"-rf",
        b" ",
        b"\"quoted\\",
        "ünïcødé ✓".as_bytes(),
        b"a:b%2F",
        b".hidden",
        b"...",
        long.as_bytes(),
    ];
    for (i, name) in names.into_iter().enumerate() {
        fs::write(dir.join(OsStr::from_bytes(name)), bytes(i as u64, 100 + i)).unwrap();
    }
    fs::create_dir(dir.join(OsStr::from_bytes(b"dir\xff\n"))).unwrap();
    fs::write(dir.join(OsStr::from_bytes(b"dir\xff\n")).join("x"), "x").unwrap();
}

fn sparse(top: &Path) {
    let dir = top.join("sparse");
    fs::create_dir(&dir).unwrap();
    let make = |name: &str, len: u64, data: &[(u64, usize)]| {
        let file = File::create(dir.join(name)).unwrap();
        for (at, len) in data {
            file.write_all_at(&bytes(*at, *len), *at).unwrap();
        }
        file.set_len(len).unwrap();
    };
    make("only a hole", 30 << 20, &[]);
    make("hole first", (20 << 20) + 4096, &[(20 << 20, 4096)]);
    make("hole in the middle", 70 << 20, &[(0, 5000), ((64 << 20) + 123, 1 << 20)]);
    make("hole last", 9 << 20, &[(0, 100_000)]);
    make("huge", 1 << 40, &[(1 << 39, 10), ((1 << 40) - 5, 5)]);
}

fn links(top: &Path) {
    let dir = top.join("links");
    fs::create_dir(&dir).unwrap();
    symlink("../file-4096", dir.join("relative")).unwrap();
    symlink("/nowhere/at all", dir.join("dangling")).unwrap();
    symlink("..", dir.join("directory")).unwrap();
    symlink(OsStr::from_bytes(b"\xff\n"), dir.join("odd target")).unwrap();
    fs::hard_link(top.join("file-5000000"), dir.join("second name")).unwrap();
    fs::hard_link(top.join("file-5000000"), top.join("deep/third name")).unwrap();
    fs::hard_link(top.join("file-0"), dir.join("second name of an empty file")).unwrap();
    for i in 0..20 {
        fs::hard_link(top.join("file-65"), dir.join(format!("one of many {i}"))).unwrap();
    }
}

fn modes_and_xattrs(top: &Path) {
    let dir = top.join("modes");
    fs::create_dir(&dir).unwrap();
    for mode in [0o400, 0o640, 0o755, 0o4755, 0o2711, 0o777] {
        let path = dir.join(format!("{mode:o}"));
        fs::write(&path, "content").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    for mode in [0o500, 0o1777, 0o2750] {
        let path = dir.join(format!("dir {mode:o}"));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "content").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    for (path, name, value) in [
        ("file-4096", "user.color", &b"blue\0\xff"[..]),
        ("file-4096", "user.empty", b""),
        ("deep", "user.note", b"on a directory"),
    ] {
        rustix::fs::setxattr(top.join(path), name, value, XattrFlags::empty()).unwrap();
    }
}

/// Sets the access time and the modification time of every file and directory, each to a different time.
fn times(top: &Path) {
    let mut all = paths(top);
    all.reverse();
    for (i, path) in all.iter().enumerate() {
        let secs = if i % 50 == 7 { -1_000_000 } else { 1_000_000_000 } + i as i64 * 1000;
        let time = Timespec { tv_sec: secs, tv_nsec: 1 + i as i64 * 7919 % 999_999_999 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// Returns `top` and everything below it. Directories precede their entries, and the entries of a directory are sorted.
pub fn paths(top: &Path) -> Vec<PathBuf> {
    let mut out = vec![top.to_owned()];
    let mut next = 0;
    while next < out.len() {
        let path = out[next].clone();
        next += 1;
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            let mut names: Vec<PathBuf> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).collect();
            names.sort();
            out.extend(names);
        }
    }
    out
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let user = names[..len].split(|b| *b == 0).filter(|name| name.starts_with(b"user."));
    user.map(|name| {
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
        (name.to_vec(), value[..len].to_vec())
    })
    .collect()
}

/// Returns a description of each path with every attribute that a copy preserves, except the content of files.
fn describe(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut first_names: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut all = paths(top);
    all.sort();
    all.into_iter()
        .map(|path| {
            let meta = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(top).unwrap().to_owned();
            let link = meta.file_type().is_symlink();
            let mode = if link { 0 } else { meta.mode() };
            let mut text =
                format!("{:?} mode {mode:o} mtime {}.{:09}", meta.file_type(), meta.mtime(), meta.mtime_nsec());
            if rustix::process::geteuid().is_root() {
                text += &format!(" owner {}:{}", meta.uid(), meta.gid());
            }
            if link {
                text += &format!(" -> {:?}", fs::read_link(&path).unwrap());
            } else {
                text += &format!(" xattrs {:?}", xattrs(&path));
            }
            if meta.is_file() {
                let first = first_names.entry((meta.dev(), meta.ino())).or_insert_with(|| name.clone());
                // Do not compare the number of links of a file: a copy omits the names of the file that are outside the
                // tree.
                text += &format!(" size {} same as {first:?}", meta.size());
            }
            (name, text)
        })
        .collect()
}

/// Asserts that two trees have the same names, contents, and attributes that a copy preserves.
pub fn assert_same(left: &Path, right: &Path) {
    let (left_all, right_all) = (describe(left), describe(right));
    for (path, text) in &left_all {
        assert_eq!(Some(text), right_all.get(path), "{path:?}");
    }
    let extra: Vec<_> = right_all.keys().filter(|path| !left_all.contains_key(*path)).collect();
    assert!(extra.is_empty(), "{extra:?} are only in {right:?}");
    for path in left_all.keys() {
        // Do not join an empty path, which stands for the top of the tree: if the top is a file, the join appends a
        // slash to its path.
        let under = |top: &Path| if path.as_os_str().is_empty() { top.to_owned() } else { top.join(path) };
        let (a, b) = (under(left), under(right));
        if fs::symlink_metadata(&a).unwrap().is_file() {
            assert_same_content(&a, &b);
        }
    }
}

/// Compares two files in all ranges where one of them has data. The second file must not store zeros in place of holes
/// of the first file.
fn assert_same_content(left: &Path, right: &Path) {
    let (a, b) = (File::open(left).unwrap(), File::open(right).unwrap());
    let size = a.metadata().unwrap().len();
    let (mut one, mut two) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for file in [&a, &b] {
        let mut at = 0;
        while let Ok(start) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start)).unwrap().min(size);
            at = start;
            while at < end {
                let len = (end - at).min(1 << 20) as usize;
                a.read_exact_at(&mut one[..len], at).unwrap();
                b.read_exact_at(&mut two[..len], at).unwrap();
                assert!(one[..len] == two[..len], "{left:?} and {right:?} differ between {at} and {}", at + len as u64);
                at += len as u64;
            }
        }
    }
    let stored = |file: &File| file.metadata().unwrap().blocks() * 512;
    assert!(stored(&b) <= stored(&a) + (4 << 20), "{right:?} stores {} bytes, {left:?} {}", stored(&b), stored(&a));
}
