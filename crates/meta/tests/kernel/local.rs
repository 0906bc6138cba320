//! The file tree on the running kernel, with which the test compares the namespace: a scratch directory, and system
//! calls with the credentials of the acting user.

use super::plan::{Access, Actor, Change, Op, Path, Times};
use super::{Answer, Errno, Seen, Tree};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, accessat, chmodat,
    chownat, linkat, mkdirat, mknodat, openat, renameat_with, statat, symlinkat, unlinkat, utimensat,
};
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// A scratch directory, in `/dev/shm` (tmpfs) if it exists; dropping the value removes the directory.
pub struct Scratch(tempfile::TempDir);

/// A directory in the scratch directory with the tree of one test case.
pub struct Local(PathBuf);

impl Scratch {
    /// Creates a scratch directory. Returns `None` unless the process is root and can take the credentials of other
    /// users.
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("temporary directory");
        rustix::process::umask(Mode::empty());
        // Every user that runs an operation needs search permission on the scratch directory.
        chmodat(CWD, dir.path(), Mode::from_raw_mode(0o755), AtFlags::empty()).expect("chmod");
        let other = Actor { uid: 70_001, gid: 80_001, groups: vec![80_002] };
        become_actor(&other).ok()?;
        become_root();
        Some(Scratch(dir))
    }

    pub fn fresh(&self, number: u64) -> Local {
        if let Some(last) = number.checked_sub(1) {
            let last = self.0.path().join(last.to_string());
            std::fs::remove_dir_all(last).expect("removing the last tree");
        }
        let dir = self.0.path().join(number.to_string());
        mkdirat(CWD, &dir, Mode::from_raw_mode(0o777)).expect("mkdir");
        Local(dir)
    }
}

fn uid(uid: u32) -> Option<Uid> {
    Some(Uid::from_raw(uid))
}

/// Sets the credentials of the current thread to those of `actor`. The kernel drops the thread's capabilities when the
/// effective user id changes from 0, and restores them when the effective user id becomes 0 again.
fn become_actor(actor: &Actor) -> rustix::io::Result<()> {
    let groups: Vec<_> = actor.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    set_thread_groups(&groups)?;
    set_thread_res_gid(Some(Gid::ROOT), Some(Gid::from_raw(actor.gid)), Some(Gid::ROOT))?;
    set_thread_res_uid(uid(0), uid(actor.uid), uid(0))
}

fn become_root() {
    set_thread_res_uid(uid(0), uid(0), uid(0)).expect("back to root");
    set_thread_res_gid(Some(Gid::ROOT), Some(Gid::ROOT), Some(Gid::ROOT)).expect("back to root's group");
    set_thread_groups(&[]).expect("no groups");
}

fn errno(error: rustix::io::Errno) -> Errno {
    use rustix::io::Errno as E;
    match error {
        E::PERM => Errno::Perm,
        E::ACCESS => Errno::Access,
        E::NOENT => Errno::NoEnt,
        E::EXIST => Errno::Exist,
        E::NOTDIR => Errno::NotDir,
        E::ISDIR => Errno::IsDir,
        E::NOTEMPTY => Errno::NotEmpty,
        E::INVAL => Errno::Inval,
        E::LOOP => Errno::Loop,
        E::BUSY => Errno::Busy,
        other => Errno::Other(other.raw_os_error()),
    }
}

impl Local {
    fn at(&self, path: &Path) -> PathBuf {
        if path.0.is_empty() { self.0.clone() } else { self.0.join(&path.0) }
    }

    pub fn make(&self, op: &Op) {
        self.perform(op).unwrap_or_else(|e| panic!("{op:?}: {e:?}"));
    }

    pub fn run(&self, actor: &Actor, op: &Op) -> Answer {
        become_actor(actor).expect("becoming another user");
        let answer = self.perform(op);
        become_root();
        answer.map_err(errno)
    }

    pub fn change(&self, change: &Change) {
        let path = self.at(&change.path);
        let gid = Some(Gid::from_raw(change.gid));
        chownat(CWD, &path, uid(change.uid), gid, AtFlags::SYMLINK_NOFOLLOW).expect("chown");
        if !path.is_symlink() {
            chmodat(CWD, &path, Mode::from_raw_mode(change.mode), AtFlags::empty()).expect("chmod");
        }
    }

    fn perform(&self, op: &Op) -> rustix::io::Result<Vec<String>> {
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let mode = |mode: &u32| Mode::from_raw_mode(*mode);
        match op {
            Op::Lookup { path } => drop(statat(CWD, self.at(path), nofollow)?),
            Op::Readdir { path } => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                let dir = openat(CWD, self.at(path), flags, Mode::empty())?;
                let names = rustix::fs::Dir::new(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into()));
                let mut names = names.collect::<rustix::io::Result<Vec<String>>>()?;
                names.retain(|name| name != "." && name != "..");
                names.sort();
                return Ok(names);
            }
            Op::Access { path, wanted } => {
                let wanted = rustix::fs::Access::from_bits_retain(*wanted);
                accessat(CWD, self.at(path), wanted, AtFlags::EACCESS)?;
            }
            Op::Open { path, how } => drop(openat(CWD, self.at(path), flags(*how), Mode::empty())?),
            Op::Create { path, how, exclusive, mode: bits } => {
                let exclusive = if *exclusive { OFlags::EXCL } else { OFlags::empty() };
                drop(openat(CWD, self.at(path), flags(*how) | OFlags::CREATE | exclusive, mode(bits))?);
            }
            Op::Mkdir { path, mode: bits } => mkdirat(CWD, self.at(path), mode(bits))?,
            Op::Mknod { path, mode: bits } => mknodat(CWD, self.at(path), FileType::Fifo, mode(bits), 0)?,
            Op::Symlink { path } => symlinkat("nowhere", CWD, self.at(path))?,
            Op::Link { from, to } => linkat(CWD, self.at(from), CWD, self.at(to), AtFlags::empty())?,
            Op::Unlink { path } => unlinkat(CWD, self.at(path), AtFlags::empty())?,
            Op::Rmdir { path } => unlinkat(CWD, self.at(path), AtFlags::REMOVEDIR)?,
            Op::Rename { from, to, how } => {
                let flags = RenameFlags::from_bits_retain(how.flags());
                renameat_with(CWD, self.at(from), CWD, self.at(to), flags)?;
            }
            Op::Chmod { path, mode: bits } => chmodat(CWD, self.at(path), mode(bits), AtFlags::empty())?,
            Op::Chown { path, uid: owner, gid } => {
                chownat(CWD, self.at(path), owner.and_then(uid), gid.map(Gid::from_raw), nofollow)?;
            }
            Op::Utimes { path, times } => utimensat(CWD, self.at(path), &stamps(*times), nofollow)?,
            Op::Truncate { path, size } => std::fs::OpenOptions::new()
                .write(true)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                .open(self.at(path))
                .and_then(|file| file.set_len(*size))
                .map_err(|e| rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO))?,
        }
        Ok(Vec::new())
    }

    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        self.walk(&Path(String::new()), &mut tree);
        tree
    }

    fn walk(&self, path: &Path, tree: &mut Tree) {
        let at = self.at(path);
        let stat = statat(CWD, &at, AtFlags::SYMLINK_NOFOLLOW).expect("stat");
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => 'd',
            FileType::RegularFile => 'f',
            FileType::Symlink => 'l',
            _ => 'p',
        };
        let size = if kind == 'f' { stat.st_size as u64 } else { 0 };
        let mode = stat.st_mode & 0o7777;
        let seen = Seen { kind, mode, uid: stat.st_uid, gid: stat.st_gid, nlink: stat.st_nlink as u32, size };
        tree.insert(path.0.clone(), seen);
        if kind == 'd' {
            for entry in std::fs::read_dir(&at).expect("read_dir") {
                let name = entry.expect("entry").file_name().into_string().expect("plain names");
                self.walk(&Path(if path.0.is_empty() { name } else { format!("{}/{name}", path.0) }), tree);
            }
        }
    }
}

fn flags(how: Access) -> OFlags {
    let how = match how {
        Access::Read => OFlags::RDONLY,
        Access::Write => OFlags::WRONLY,
        Access::Both => OFlags::RDWR,
        Access::Cut => OFlags::WRONLY | OFlags::TRUNC,
    };
    how | OFlags::NOFOLLOW | OFlags::NONBLOCK
}

fn stamps(times: Times) -> Timestamps {
    let chosen = Timespec { tv_sec: 1000, tv_nsec: 0 };
    let special = |what: i64| Timespec { tv_sec: 0, tv_nsec: what };
    let (last_access, last_modification) = match times {
        Times::BothNow => (special(UTIME_NOW), special(UTIME_NOW)),
        Times::BothChosen => (chosen, chosen),
        Times::AccessChosen => (chosen, special(UTIME_OMIT)),
        Times::ChangeNow => (special(UTIME_OMIT), special(UTIME_NOW)),
    };
    Timestamps { last_access, last_modification }
}

/// Returns whether a sysctl may make the kernel refuse the operation, although POSIX and Weir allow the operation.
/// `fs.protected_hardlinks` forbids hard links to files that the user cannot write. `fs.protected_regular` forbids
/// O_CREAT on existing files of other users in sticky directories.
pub fn policy_refuses(actor: &Actor, op: &Op, tree: &Tree) -> bool {
    let set = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/fs/{name}")).is_ok_and(|text| text.trim().parse() != Ok(0))
    };
    match op {
        Op::Link { from, .. } if actor.uid != 0 => {
            let Some(seen) = tree.get(&from.0).filter(|seen| seen.uid != actor.uid) else { return false };
            let class =
                if actor.gid == seen.gid || actor.groups.contains(&seen.gid) { seen.mode >> 3 } else { seen.mode };
            let set_ids = seen.mode & 0o4000 != 0 || seen.mode & 0o2010 == 0o2010;
            (seen.kind != 'f' || set_ids || class & 6 != 6) && set("protected_hardlinks")
        }
        Op::Create { path, exclusive: false, .. } => {
            let (Some(seen), Some(dir)) = (tree.get(&path.0), tree.get(path.split().0)) else { return false };
            dir.mode & 0o1000 != 0 && seen.uid != actor.uid && seen.uid != dir.uid && set("protected_regular")
        }
        _ => false,
    }
}
