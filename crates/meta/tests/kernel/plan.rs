//! The generator of random operations by random users, with random changes of permissions in between.

use super::{SeededRandom, Seen, Tree};
use types::Renaming;

/// The user ids that own files and run operations. User id 0 is the superuser.
const UIDS: [u32; 4] = [0, 70_001, 70_002, 70_003];
/// The group ids that files and users of the test have.
const GIDS: [u32; 4] = [0, 80_001, 80_002, 80_003];
/// Last components of generated paths, whether or not a file with this name exists.
const LEAVES: [&str; 8] = ["a", "b", "c", "d", "e", "s", "new", "other"];

/// The names of all operations, for the statistics.
pub const NAMES: [&str; 18] = [
    "lookup",
    "readdir",
    "access",
    "open",
    "create",
    "mkdir",
    "mknod",
    "symlink",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "rename without replacing",
    "exchange",
    "chmod",
    "chown",
    "utimes",
    "truncate",
];

/// The credentials of the user that runs an operation.
#[derive(Clone, Debug)]
pub struct Actor {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Actor {
    pub fn random(random: &mut SeededRandom) -> Self {
        let uid = if random.once_in(8) { 0 } else { random.of(&UIDS[1..]) };
        let groups = GIDS.iter().copied().filter(|_| random.once_in(3)).collect();
        Actor { uid, gid: random.of(&GIDS), groups }
    }
}

/// A path relative to the scratch directory; the empty path is the scratch directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path(pub String);

impl Path {
    /// Returns the path of the parent directory and the last component.
    pub fn split(&self) -> (&str, &str) {
        self.0.rsplit_once('/').unwrap_or(("", &self.0))
    }

    /// Returns the path of an existing file, or a path below an existing file. A file with the returned path need not
    /// exist.
    fn random(random: &mut SeededRandom, tree: &Tree) -> Self {
        if !random.once_in(3) {
            return Path::there(random, tree, |_| true);
        }
        // Do not build a path below a symbolic link, because the kernel would follow the link.
        let below = Path::any(random, tree, |seen| seen.kind != 'l' && (seen.kind == 'd' || is_empty_file(seen)));
        let leaf = random.of(&LEAVES);
        Path(if below.0.is_empty() { leaf.into() } else { format!("{}/{leaf}", below.0) })
    }

    /// Returns the path of an existing file for which `fits` returns true, other than the scratch directory.
    fn there(random: &mut SeededRandom, tree: &Tree, fits: impl Fn(&Seen) -> bool) -> Self {
        let paths: Vec<_> = tree.iter().filter(|(path, seen)| !path.is_empty() && fits(seen)).collect();
        match paths.len() {
            0 => Path("gone".into()),
            n => Path(paths[random.below(n)].0.clone()),
        }
    }

    fn any(random: &mut SeededRandom, tree: &Tree, fits: impl Fn(&Seen) -> bool) -> Self {
        let paths: Vec<_> = tree.iter().filter(|(_, seen)| fits(seen)).collect();
        Path(paths[random.below(paths.len())].0.clone())
    }
}

/// Returns whether the file is regular and empty. The generator also builds paths below such files, which fail with
/// ENOTDIR.
fn is_empty_file(seen: &Seen) -> bool {
    seen.kind == 'f' && seen.size == 0
}

/// A change of owner, group and mode that root makes before an operation.
#[derive(Clone, Debug)]
pub struct Change {
    pub path: Path,
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

impl Change {
    pub fn random(random: &mut SeededRandom, tree: &Tree) -> Self {
        // Choose a directory half of the time: most permission checks depend on directories, but only a few files of
        // the tree are directories.
        let dirs = random.once_in(2);
        let path = Path::any(random, tree, |seen| !dirs || seen.kind == 'd');
        Change { path, uid: random.of(&UIDS), gid: random.of(&GIDS), mode: mode(random) }
    }
}

/// Returns a random mode. Modes that permit access are more frequent than others.
fn mode(random: &mut SeededRandom) -> u32 {
    let class = |random: &mut SeededRandom| random.of(&[7, 7, 7, 7, 6, 5, 3, 1, 4, 2, 0]);
    let special = random.of(&[0, 0, 0, 0, 1, 1, 2, 2, 4, 6, 3, 7]);
    special << 9 | class(random) << 6 | class(random) << 3 | class(random)
}

/// The access mode of an open in the test: for reading, for writing, for both, or for writing with truncation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
    Both,
    /// The file is opened for writing with O_TRUNC.
    Cut,
}

/// The times that an operation sets with utimensat(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    BothNow,
    BothChosen,
    /// utimensat(2) sets only the access time, to the given value.
    AccessChosen,
    /// utimensat(2) sets only the modification time, to the current time.
    ChangeNow,
}

#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Op {
    Lookup {
        path: Path,
    },
    Readdir {
        path: Path,
    },
    /// Checks permissions as access(2) does. `wanted` is the sum of 4 (read), 2 (write) and 1 (execute).
    Access {
        path: Path,
        wanted: u32,
    },
    Open {
        path: Path,
        how: Access,
    },
    Create {
        path: Path,
        how: Access,
        exclusive: bool,
        mode: u32,
    },
    Mkdir {
        path: Path,
        mode: u32,
    },
    Mknod {
        path: Path,
        mode: u32,
    },
    Symlink {
        path: Path,
    },
    Link {
        from: Path,
        to: Path,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        how: Renaming,
    },
    Chmod {
        path: Path,
        mode: u32,
    },
    Chown {
        path: Path,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Utimes {
        path: Path,
        times: Times,
    },
    Truncate {
        path: Path,
        size: u64,
    },
}

impl Op {
    pub fn random(random: &mut SeededRandom, tree: &Tree) -> Self {
        let path = Path::random(random, tree);
        // Do not open named pipes, because open(2) would block. Do not open symbolic links, because the kernel would
        // follow them.
        let plain = |path: &Path| tree.get(&path.0).is_none_or(|seen| !matches!(seen.kind, 'p' | 'l'));
        let file = if plain(&path) { path.clone() } else { Path::there(random, tree, |seen| seen.kind == 'f') };
        let to = Path::random(random, tree);
        let how = random.of(&[Access::Read, Access::Write, Access::Both, Access::Cut]);
        match random.below(22) {
            0 => Op::Lookup { path },
            1 => Op::Readdir { path: Path::any(random, tree, |seen| seen.kind == 'd') },
            2 => Op::Access { path: file, wanted: random.below(8) as u32 },
            3 | 4 => Op::Open { path: file, how },
            5 | 6 => Op::Create { path: file, how, exclusive: random.once_in(3), mode: mode(random) },
            // mkdir(2) ignores the set-user-id and set-group-id bits, so generate modes for mkdir(2) without these
            // bits.
            7 => Op::Mkdir { path, mode: mode(random) & 0o1777 },
            8 => Op::Mknod { path, mode: mode(random) },
            9 => Op::Symlink { path },
            10 => Op::Link { from: path, to },
            11 | 12 => Op::Unlink { path: Path::random(random, tree) },
            13 => Op::Rmdir { path },
            14..17 => {
                let how = random.of(&[Renaming::Replace, Renaming::Replace, Renaming::NoReplace, Renaming::Exchange]);
                Op::Rename { from: path, to, how }
            }
            17 => Op::Chmod { path: file, mode: mode(random) },
            18 | 19 => {
                let uid = random.once_in(2).then(|| random.of(&UIDS));
                let gid = (uid.is_none() || random.once_in(2)).then(|| random.of(&GIDS));
                Op::Chown { path, uid, gid }
            }
            20 => {
                let all = [Times::BothNow, Times::BothNow, Times::BothChosen, Times::AccessChosen, Times::ChangeNow];
                Op::Utimes { path, times: random.of(&all) }
            }
            _ => Op::Truncate { path: file, size: random.of(&[0, 1, 100]) },
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Op::Lookup { .. } => "lookup",
            Op::Readdir { .. } => "readdir",
            Op::Access { .. } => "access",
            Op::Open { .. } => "open",
            Op::Create { .. } => "create",
            Op::Mkdir { .. } => "mkdir",
            Op::Mknod { .. } => "mknod",
            Op::Symlink { .. } => "symlink",
            Op::Link { .. } => "link",
            Op::Unlink { .. } => "unlink",
            Op::Rmdir { .. } => "rmdir",
            Op::Rename { how: Renaming::Replace, .. } => "rename",
            Op::Rename { how: Renaming::NoReplace, .. } => "rename without replacing",
            Op::Rename { how: Renaming::Exchange, .. } => "exchange",
            Op::Chmod { .. } => "chmod",
            Op::Chown { .. } => "chown",
            Op::Utimes { .. } => "utimes",
            Op::Truncate { .. } => "truncate",
        }
    }
}

/// Returns the operations that create the initial tree, which the test runs as root.
pub fn first_tree() -> Vec<Op> {
    let path = |text: &str| Path(text.into());
    let file = |text: &str| Op::Create { path: path(text), how: Access::Write, exclusive: true, mode: 0o666 };
    let dir = |text: &str| Op::Mkdir { path: path(text), mode: 0o777 };
    vec![
        dir("A"),
        dir("B"),
        file("a"),
        file("A/a"),
        file("A/b"),
        Op::Link { from: path("A/b"), to: path("B/b") },
        file("B/a"),
        dir("A/d"),
        file("A/d/a"),
        dir("A/e"),
        dir("B/d"),
        dir("B/d/e"),
        Op::Mknod { path: path("A/c"), mode: 0o666 },
        Op::Symlink { path: path("B/s") },
        Op::Symlink { path: path("A/s") },
        Op::Truncate { path: path("A/b"), size: 10 },
    ]
}
