//! The file tree in the namespace, which the test compares with the kernel's tree: resolves paths and combines
//! operations as a client and the NFS server do.

use super::block::block;
use super::plan::{Access, Actor, Change, Op, Path, Times};
use super::{Answer, Errno, Seen, Tree};
use meta::{CreateMode, Memory, Namespace, merge};
use types::{Attrs, Cred, FileId, FileKind, Fsid, SetAttrs, SetTime, Status, Timestamp};

const NOW: Timestamp = Timestamp { secs: 100, nanos: 0 };

pub struct NamespaceSide(Namespace<Memory>);

fn mode(mode: u32) -> SetAttrs {
    SetAttrs { mode: Some(mode), ..SetAttrs::default() }
}

fn errno(status: Status) -> Errno {
    match status {
        Status::Perm => Errno::Perm,
        Status::Access => Errno::Access,
        Status::NoEnt => Errno::NoEnt,
        Status::Exist => Errno::Exist,
        Status::NotDir => Errno::NotDir,
        Status::IsDir => Errno::IsDir,
        Status::NotEmpty => Errno::NotEmpty,
        Status::Inval => Errno::Inval,
        Status::Symlink => Errno::Loop,
        other => Errno::Other(other.number() as i32),
    }
}

impl NamespaceSide {
    pub fn fresh() -> Self {
        let format = meta::Format {
            fsid: Fsid([1; 16]),
            now: NOW,
            cookie_key: [2; 16],
            root_mode: 0o777,
            root_uid: 0,
            root_gid: 0,
        };
        NamespaceSide(block(Namespace::format(Memory::new(merge), format)).expect("format"))
    }

    pub fn make(&self, op: &Op) {
        self.perform(&Cred::root(), op).unwrap_or_else(|e| panic!("{op:?}: {e:?}"));
    }

    pub fn run(&self, actor: &Actor, op: &Op) -> Answer {
        let cred = Cred { uid: actor.uid, gid: actor.gid, groups: actor.groups.clone() };
        self.perform(&cred, op).map_err(|status| match op {
            // Clients report the error `IsDir` of LINK to programs as EPERM, as link(2) requires.
            Op::Link { .. } if status == Status::IsDir => Errno::Perm,
            _ => errno(status),
        })
    }

    pub fn change(&self, change: &Change) {
        let root = Cred::root();
        let attrs = self.find(&root, &change.path).expect("what the kernel has");
        let mode = (attrs.kind != FileKind::Symlink).then_some(change.mode);
        let set = SetAttrs { uid: Some(change.uid), gid: Some(change.gid), mode, ..SetAttrs::default() };
        block(self.0.setattr(&root, NOW, attrs.id, &set, false)).expect("setattr");
    }

    /// Returns the directory that contains the last component of `path`.
    fn dir(&self, cred: &Cred, path: &Path) -> Result<FileId, Status> {
        let (dir, _) = path.split();
        let parts = dir.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(FileId::ROOT, |at, part| {
            let attrs = self.0.lookup(cred, at, part.as_bytes())?;
            if attrs.kind == FileKind::Directory { Ok(attrs.id) } else { Err(Status::NotDir) }
        })
    }

    fn find(&self, cred: &Cred, path: &Path) -> Result<Attrs, Status> {
        if path.0.is_empty() {
            return self.0.getattr(FileId::ROOT);
        }
        self.0.lookup(cred, self.dir(cred, path)?, path.split().1.as_bytes())
    }

    fn set(&self, cred: &Cred, id: FileId, set: SetAttrs, writable: bool) -> Result<(), Status> {
        block(self.0.setattr(cred, NOW, id, &set, writable)).map(drop)
    }

    /// Opens an existing file: checks the file kind, checks the permissions, and truncates the file if requested.
    fn open(&self, cred: &Cred, attrs: &Attrs, how: Access) -> Result<(), Status> {
        match attrs.kind {
            FileKind::Symlink => return Err(Status::Symlink),
            FileKind::Directory if how != Access::Read => return Err(Status::IsDir),
            _ => {}
        }
        let rights = self.0.access(cred, attrs.id)?;
        let reads = matches!(how, Access::Read | Access::Both);
        let writes = how != Access::Read;
        if (reads && !rights.read) || (writes && !rights.write) {
            return Err(Status::Access);
        }
        if how == Access::Cut {
            let set = SetAttrs { size: Some(0), ..SetAttrs::default() };
            self.set(cred, attrs.id, set, true)?;
        }
        Ok(())
    }

    fn perform(&self, cred: &Cred, op: &Op) -> Result<Vec<String>, Status> {
        let fs = &self.0;
        let place = |path: &Path| Ok::<_, Status>((self.dir(cred, path)?, path.split().1.as_bytes().to_vec()));
        match op {
            Op::Lookup { path } => drop(self.find(cred, path)?),
            Op::Readdir { path } => return self.list(cred, path),
            Op::Access { path, wanted } => {
                let attrs = self.find(cred, path)?;
                let rights = fs.access(cred, attrs.id)?;
                let has = |bit: u32, right: bool| wanted & bit == 0 || right;
                if !has(4, rights.read) || !has(2, rights.write) || !has(1, rights.execute) {
                    return Err(Status::Access);
                }
            }
            Op::Open { path, how } => self.open(cred, &self.find(cred, path)?, *how)?,
            Op::Create { path, how, exclusive, mode: bits } => {
                let (dir, name) = place(path)?;
                let kind =
                    if *exclusive { CreateMode::Guarded(mode(*bits)) } else { CreateMode::Unchecked(mode(*bits)) };
                let made = block(fs.create(cred, NOW, dir, &name, &kind, None))?;
                if !made.created {
                    self.open(cred, &made.file.attrs, *how)?;
                }
            }
            Op::Mkdir { path, mode: bits } => {
                let (dir, name) = place(path)?;
                block(fs.mkdir(cred, NOW, dir, &name, &mode(*bits)))?;
            }
            Op::Mknod { path, mode: bits } => {
                let (dir, name) = place(path)?;
                block(fs.mknod(cred, NOW, dir, &name, FileKind::Fifo, (0, 0), &mode(*bits)))?;
            }
            Op::Symlink { path } => {
                let (dir, name) = place(path)?;
                block(fs.symlink(cred, NOW, dir, &name, b"nowhere", &mode(0o777)))?;
            }
            Op::Link { from, to } => {
                let id = self.find(cred, from)?.id;
                let (dir, name) = place(to)?;
                block(fs.link(cred, NOW, id, dir, &name))?;
            }
            Op::Unlink { path } => self.remove(cred, path, false)?,
            Op::Rmdir { path } => self.remove(cred, path, true)?,
            Op::Rename { from, to, how } => {
                let (from, to) = (place(from)?, place(to)?);
                let renamed = block(fs.rename(cred, NOW, (from.0, &from.1), (to.0, &to.1), *how))?;
                if let Some(orphan) = renamed.replaced.filter(|lost| lost.orphan) {
                    block(fs.reap(NOW, orphan.attrs.id))?;
                }
            }
            Op::Chmod { path, mode: bits } => self.set(cred, self.find(cred, path)?.id, mode(*bits), false)?,
            Op::Chown { path, uid, gid } => {
                let set = SetAttrs { uid: *uid, gid: *gid, ..SetAttrs::default() };
                self.set(cred, self.find(cred, path)?.id, set, false)?;
            }
            Op::Utimes { path, times } => self.set(cred, self.find(cred, path)?.id, stamps(*times), false)?,
            Op::Truncate { path, size } => {
                let set = SetAttrs { size: Some(*size), ..SetAttrs::default() };
                self.set(cred, self.find(cred, path)?.id, set, false)?;
            }
        }
        Ok(Vec::new())
    }

    fn list(&self, cred: &Cred, path: &Path) -> Result<Vec<String>, Status> {
        let dir = self.find(cred, path)?.id;
        let listed = self.0.readdir(cred, dir, 0, 100)?;
        let mut names: Vec<_> =
            listed.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
        names.sort();
        Ok(names)
    }

    /// Removes a file or directory after checking the file kind, because NFS has a single operation for unlink(2) and
    /// rmdir(2).
    fn remove(&self, cred: &Cred, path: &Path, directory: bool) -> Result<(), Status> {
        let (dir, name) = (self.dir(cred, path)?, path.split().1.as_bytes());
        let is_dir = self.0.lookup(cred, dir, name)?.kind == FileKind::Directory;
        match (directory, is_dir) {
            (true, false) => return Err(Status::NotDir),
            (false, true) => return Err(Status::IsDir),
            _ => {}
        }
        let removed = block(self.0.remove(cred, NOW, dir, name))?;
        if removed.file.orphan {
            block(self.0.reap(NOW, removed.file.attrs.id))?;
        }
        Ok(())
    }

    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        self.walk(&Path(String::new()), FileId::ROOT, &mut tree);
        tree
    }

    fn walk(&self, path: &Path, id: FileId, tree: &mut Tree) {
        let attrs = self.0.getattr(id).expect("attributes");
        let kind = match attrs.kind {
            FileKind::Directory => 'd',
            FileKind::Regular => 'f',
            FileKind::Symlink => 'l',
            _ => 'p',
        };
        let size = if kind == 'f' { attrs.size } else { 0 };
        let Attrs { mode, uid, gid, nlink, .. } = attrs;
        tree.insert(path.0.clone(), Seen { kind, mode, uid, gid, nlink, size });
        if kind == 'd' {
            let listed = self.0.readdir(&Cred::root(), id, 0, 100).expect("readdir");
            for entry in listed.entries {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                let path = Path(if path.0.is_empty() { name } else { format!("{}/{name}", path.0) });
                self.walk(&path, entry.attrs.id, tree);
            }
        }
    }
}

fn stamps(times: Times) -> SetAttrs {
    let chosen = Some(SetTime::To(Timestamp { secs: 1000, nanos: 0 }));
    let (atime, mtime) = match times {
        Times::BothNow => (Some(SetTime::Now), Some(SetTime::Now)),
        Times::BothChosen => (chosen, chosen),
        Times::AccessChosen => (chosen, None),
        Times::ChangeNow => (None, Some(SetTime::Now)),
    };
    SetAttrs { atime, mtime, ..SetAttrs::default() }
}
