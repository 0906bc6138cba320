//! The reference model of the namespace, made of plain vectors and maps. The model follows the manual pages and shares
//! no code with the namespace.

use meta::{CreateMode, SetXattr};
use std::collections::BTreeMap;
use types::{Cred, FileKind, Renaming, SetAttrs, SetTime, Status, Timestamp, limits};

/// A file of the reference model: its index in the order in which files were created. The root has the index 0.
pub type Handle = usize;

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Number of directory entries that refer to the file; 0 for a removed directory.
    pub names: u32,
    pub size: u64,
    pub times: [Timestamp; 4],
    /// Number of changes of the file since its creation.
    pub changes: u64,
    pub children: BTreeMap<Vec<u8>, Handle>,
    pub parent: Handle,
    pub target: Vec<u8>,
    pub rdev: (u32, u32),
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub verifier: Option<[u8; 8]>,
    pub layout: bool,
    /// Number of layout swaps of the file since its creation. This number identifies the layout of the file.
    pub swaps: u8,
    pub gone: bool,
}

const ATIME: usize = 0;
const MTIME: usize = 1;
const CTIME: usize = 2;
const BTIME: usize = 3;

pub struct Reference {
    pub nodes: Vec<Node>,
    pub doomed: Vec<Handle>,
    /// For each file with unused objects, the number of the layout to which the unused objects belong.
    pub unused: BTreeMap<Handle, u8>,
}

type Answer<T> = Result<T, Status>;

fn check(name: &[u8]) -> Answer<()> {
    if name.is_empty() {
        return Err(Status::Inval);
    }
    if name == b"." || name == b".." {
        return Err(Status::BadName);
    }
    if name.len() > 255 {
        return Err(Status::NameTooLong);
    }
    if name.iter().any(|b| *b == b'/' || *b == 0) {
        return Err(Status::BadName);
    }
    Ok(())
}

fn member(who: &Cred, gid: u32) -> bool {
    std::iter::once(&who.gid).chain(&who.groups).any(|g| *g == gid)
}

impl Reference {
    pub fn new(now: Timestamp, mode: u32) -> Self {
        let mut root = Self::node(FileKind::Directory, mode, 0, 0, now);
        root.names = 1;
        Reference { nodes: vec![root], doomed: Vec::new(), unused: BTreeMap::new() }
    }

    fn node(kind: FileKind, mode: u32, uid: u32, gid: u32, now: Timestamp) -> Node {
        Node {
            kind,
            mode,
            uid,
            gid,
            names: 1,
            size: 0,
            times: [now; 4],
            changes: 1,
            children: BTreeMap::new(),
            parent: 0,
            target: Vec::new(),
            rdev: (0, 0),
            xattrs: BTreeMap::new(),
            verifier: None,
            layout: false,
            swaps: 0,
            gone: false,
        }
    }

    fn live(&self, h: Handle) -> Answer<&Node> {
        self.nodes.get(h).filter(|n| !n.gone).ok_or(Status::Stale)
    }

    fn dir(&self, h: Handle) -> Answer<&Node> {
        let node = self.live(h)?;
        if node.kind == FileKind::Directory { Ok(node) } else { Err(Status::NotDir) }
    }

    /// Returns whether the user `who` has the permission `what` on the file: 'r' (read), 'w' (write) or 'x' (execute or
    /// search).
    pub fn may(&self, who: &Cred, h: Handle, what: char) -> bool {
        let node = &self.nodes[h];
        let digit = |shift: u32| node.mode >> shift & 7;
        if who.uid == 0 {
            return what != 'x' || node.kind == FileKind::Directory || [6, 3, 0].iter().any(|s| digit(*s) & 1 == 1);
        }
        let bits = if node.uid == who.uid {
            digit(6)
        } else if member(who, node.gid) {
            digit(3)
        } else {
            digit(0)
        };
        bits & "xwr".find(what).map(|i| 1 << i).expect("one of three") != 0
    }

    fn need(&self, who: &Cred, h: Handle, what: &str) -> Answer<()> {
        if what.chars().all(|c| self.may(who, h, c)) { Ok(()) } else { Err(Status::Access) }
    }

    fn sticky(&self, who: &Cred, dir: Handle, child: Handle) -> Answer<()> {
        let (d, c) = (&self.nodes[dir], &self.nodes[child]);
        let ok = d.mode & 0o1000 == 0 || who.uid == 0 || who.uid == d.uid || who.uid == c.uid;
        if ok { Ok(()) } else { Err(Status::Perm) }
    }

    fn changed(&mut self, h: Handle, now: Timestamp, content: bool) {
        let node = &mut self.nodes[h];
        node.changes += 1;
        node.times[CTIME] = now;
        if content {
            node.times[MTIME] = now;
        }
    }

    fn subdirs(&self, h: Handle) -> u32 {
        self.nodes[h].children.values().filter(|c| self.nodes[**c].kind == FileKind::Directory).count() as u32
    }

    pub fn nlink(&self, h: Handle) -> u32 {
        let node = &self.nodes[h];
        match node.kind {
            FileKind::Directory if node.gone => 0,
            FileKind::Directory => 2 + self.subdirs(h),
            _ => node.names,
        }
    }

    pub fn size(&self, h: Handle) -> u64 {
        let node = &self.nodes[h];
        match node.kind {
            FileKind::Directory => node.children.len() as u64,
            FileKind::Symlink => node.target.len() as u64,
            _ => node.size,
        }
    }

    pub fn orphans(&self) -> Vec<Handle> {
        (0..self.nodes.len()).filter(|h| !self.nodes[*h].gone && self.nodes[*h].names == 0).collect()
    }

    pub fn lookup(&self, who: &Cred, dir: Handle, name: &[u8]) -> Answer<Handle> {
        check(name)?;
        match self.live(dir)?.kind {
            FileKind::Directory => {}
            FileKind::Symlink => return Err(Status::Symlink),
            _ => return Err(Status::NotDir),
        }
        self.need(who, dir, "x")?;
        self.nodes[dir].children.get(name).copied().ok_or(Status::NoEnt)
    }

    pub fn lookup_parent(&self, who: &Cred, dir: Handle) -> Answer<Handle> {
        match self.live(dir)?.kind {
            FileKind::Directory => {}
            FileKind::Symlink => return Err(Status::Symlink),
            _ => return Err(Status::NotDir),
        }
        self.need(who, dir, "x")?;
        if dir == 0 { Err(Status::NoEnt) } else { Ok(self.nodes[dir].parent) }
    }

    pub fn readdir(&self, who: &Cred, dir: Handle) -> Answer<BTreeMap<Vec<u8>, Handle>> {
        self.dir(dir)?;
        self.need(who, dir, "r")?;
        Ok(self.nodes[dir].children.clone())
    }

    pub fn access(&self, who: &Cred, h: Handle) -> Answer<[bool; 3]> {
        self.live(h)?;
        Ok(['r', 'w', 'x'].map(|c| self.may(who, h, c)))
    }

    pub fn readlink(&self, h: Handle) -> Answer<Vec<u8>> {
        let node = self.live(h)?;
        if node.kind == FileKind::Symlink { Ok(node.target.clone()) } else { Err(Status::WrongType) }
    }

    /// Returns a new inode. The caller has checked the directory and the name of the inode's directory entry.
    fn born(&self, who: &Cred, now: Timestamp, dir: Handle, kind: FileKind, set: &SetAttrs) -> Answer<Node> {
        let parent = &self.nodes[dir];
        let setgid = parent.mode & 0o2000 != 0;
        let given = if setgid { parent.gid } else { who.gid };
        if who.uid != 0 {
            if set.uid.is_some_and(|uid| uid != who.uid) {
                return Err(Status::Perm);
            }
            if set.gid.is_some_and(|gid| gid != given && !member(who, gid)) {
                return Err(Status::Perm);
            }
        }
        let gid = set.gid.unwrap_or(given);
        let mut mode = if kind == FileKind::Symlink { 0o777 } else { set.mode.unwrap_or(0) };
        if mode > 0o7777 {
            return Err(Status::Inval);
        }
        if kind == FileKind::Directory {
            if who.uid != 0 && !member(who, gid) {
                mode &= !0o2000;
            }
            if setgid {
                mode |= 0o2000;
            }
        } else if setgid && mode & 0o2010 == 0o2010 && who.uid != 0 && !member(who, parent.gid) {
            mode &= !0o2000;
        }
        let mut node = Self::node(kind, mode, set.uid.unwrap_or(who.uid), gid, now);
        if kind == FileKind::Regular {
            node.size = set.size.unwrap_or(0);
            if node.size > limits::FILE_SIZE_MAX {
                return Err(Status::FBig);
            }
        }
        let at = |set: Option<SetTime>| match set {
            Some(SetTime::To(time)) => time,
            _ => now,
        };
        node.times[ATIME] = at(set.atime);
        node.times[MTIME] = at(set.mtime);
        node.times[BTIME] = now;
        Ok(node)
    }

    fn add(&mut self, now: Timestamp, dir: Handle, name: &[u8], node: Node) -> Handle {
        let h = self.nodes.len();
        self.nodes.push(node);
        self.nodes[dir].children.insert(name.to_vec(), h);
        self.changed(dir, now, true);
        h
    }

    /// Checks that `name` is valid and that `who` has search permission on the directory `dir`. Returns the file that
    /// has this name in `dir`, if any.
    fn place(&self, who: &Cred, dir: Handle, name: &[u8]) -> Answer<Option<Handle>> {
        check(name)?;
        self.dir(dir)?;
        self.need(who, dir, "x")?;
        Ok(self.nodes[dir].children.get(name).copied())
    }

    pub fn create(
        &mut self,
        who: &Cred,
        now: Timestamp,
        dir: Handle,
        name: &[u8],
        how: &CreateMode,
        layout: bool,
    ) -> Answer<(Handle, bool)> {
        if let Some(there) = self.place(who, dir, name)? {
            let node = &self.nodes[there];
            return match how {
                CreateMode::Guarded(_) => Err(Status::Exist),
                CreateMode::Exclusive(v, _) if node.verifier == Some(*v) => Ok((there, true)),
                CreateMode::Exclusive(..) => Err(Status::Exist),
                CreateMode::Unchecked(_) => match node.kind {
                    FileKind::Regular => Ok((there, false)),
                    FileKind::Directory => Err(Status::IsDir),
                    FileKind::Symlink => Err(Status::Symlink),
                    _ => Err(Status::WrongType),
                },
            };
        }
        self.need(who, dir, "wx")?;
        let (set, verifier) = match how {
            CreateMode::Unchecked(set) | CreateMode::Guarded(set) => (set, None),
            CreateMode::Exclusive(v, set) => (set, Some(*v)),
        };
        let mut node = self.born(who, now, dir, FileKind::Regular, set)?;
        node.verifier = verifier;
        node.layout = layout;
        Ok((self.add(now, dir, name, node), true))
    }

    pub fn mkdir(&mut self, who: &Cred, now: Timestamp, dir: Handle, name: &[u8], set: &SetAttrs) -> Answer<Handle> {
        if self.place(who, dir, name)?.is_some() {
            return Err(Status::Exist);
        }
        self.need(who, dir, "wx")?;
        let mut node = self.born(who, now, dir, FileKind::Directory, set)?;
        node.parent = dir;
        let policy = self.nodes[dir].xattrs.iter().filter(|(name, _)| name.starts_with(b"weir."));
        node.xattrs = policy.map(|(n, v)| (n.clone(), v.clone())).collect();
        Ok(self.add(now, dir, name, node))
    }

    pub fn symlink(
        &mut self,
        who: &Cred,
        now: Timestamp,
        dir: Handle,
        name: &[u8],
        target: &[u8],
        set: &SetAttrs,
    ) -> Answer<Handle> {
        check(name)?;
        if target.is_empty() || target.contains(&0) && target.len() <= 4095 {
            return Err(Status::Inval);
        }
        if target.len() > 4095 {
            return Err(Status::NameTooLong);
        }
        if self.place(who, dir, name)?.is_some() {
            return Err(Status::Exist);
        }
        self.need(who, dir, "wx")?;
        let mut node = self.born(who, now, dir, FileKind::Symlink, set)?;
        node.target = target.to_vec();
        Ok(self.add(now, dir, name, node))
    }

    #[allow(clippy::too_many_arguments)] // one argument for each field of the operation
    pub fn mknod(
        &mut self,
        who: &Cred,
        now: Timestamp,
        dir: Handle,
        name: &[u8],
        kind: FileKind,
        rdev: (u32, u32),
        set: &SetAttrs,
    ) -> Answer<Handle> {
        check(name)?;
        if matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
            return Err(Status::BadType);
        }
        if self.place(who, dir, name)?.is_some() {
            return Err(Status::Exist);
        }
        self.need(who, dir, "wx")?;
        let device = matches!(kind, FileKind::Block | FileKind::Char);
        if device && who.uid != 0 {
            return Err(Status::Perm);
        }
        let mut node = self.born(who, now, dir, kind, set)?;
        node.rdev = if device { rdev } else { (0, 0) };
        Ok(self.add(now, dir, name, node))
    }

    pub fn link(&mut self, who: &Cred, now: Timestamp, h: Handle, dir: Handle, name: &[u8]) -> Answer<()> {
        check(name)?;
        self.dir(dir)?;
        let is_dir = self.live(h)?.kind == FileKind::Directory;
        if self.place(who, dir, name)?.is_some() {
            return Err(Status::Exist);
        }
        self.need(who, dir, "wx")?;
        if is_dir {
            return Err(Status::IsDir);
        }
        if self.nodes[h].names == 0 {
            return Err(Status::NoEnt);
        }
        self.nodes[h].names += 1;
        self.changed(h, now, false);
        self.nodes[dir].children.insert(name.to_vec(), h);
        self.changed(dir, now, true);
        Ok(())
    }

    /// Removes one name of the file `h`. Returns whether the file becomes an orphan.
    fn unname(&mut self, now: Timestamp, h: Handle) -> bool {
        let node = &mut self.nodes[h];
        node.names -= 1;
        if node.names == 0 && node.kind != FileKind::Regular {
            node.gone = true;
            return false;
        }
        let orphan = node.names == 0;
        self.changed(h, now, false);
        orphan
    }

    pub fn remove(&mut self, who: &Cred, now: Timestamp, dir: Handle, name: &[u8]) -> Answer<(Handle, bool)> {
        let h = self.place(who, dir, name)?.ok_or(Status::NoEnt)?;
        self.need(who, dir, "wx")?;
        self.sticky(who, dir, h)?;
        if !self.nodes[h].children.is_empty() {
            return Err(Status::NotEmpty);
        }
        self.nodes[dir].children.remove(name);
        self.changed(dir, now, true);
        Ok((h, self.unname(now, h)))
    }

    fn is_within(&self, mut h: Handle, top: Handle) -> bool {
        loop {
            if h == top {
                return true;
            }
            if h == 0 {
                return false;
            }
            h = self.nodes[h].parent;
        }
    }

    /// Renames a directory entry. Returns the file that had the target name, and whether this file becomes an orphan.
    pub fn rename(
        &mut self,
        who: &Cred,
        now: Timestamp,
        (from, old): (Handle, &[u8]),
        (to, new): (Handle, &[u8]),
        how: Renaming,
    ) -> Answer<Option<(Handle, bool)>> {
        check(old)?;
        check(new)?;
        self.dir(from)?;
        self.dir(to)?;
        self.need(who, from, "x")?;
        self.need(who, to, "x")?;
        let h = *self.nodes[from].children.get(old).ok_or(Status::NoEnt)?;
        let target = self.nodes[to].children.get(new).copied();
        match how {
            Renaming::NoReplace if target.is_some() => return Err(Status::Exist),
            Renaming::Exchange if target.is_none() => return Err(Status::NoEnt),
            _ => {}
        }
        let is_dir = self.nodes[h].kind == FileKind::Directory;
        if is_dir && self.is_within(to, h) {
            return Err(Status::Inval);
        }
        if target == Some(h) {
            return Ok(None);
        }
        if let (Renaming::Exchange, Some(t)) = (how, target) {
            return self.exchange(who, now, (from, old, h), (to, new, t)).map(|()| None);
        }
        if target.is_some_and(|t| self.is_within(from, t)) {
            return Err(Status::NotEmpty);
        }
        self.need(who, from, "wx")?;
        self.sticky(who, from, h)?;
        self.need(who, to, "wx")?;
        if let Some(t) = target {
            self.sticky(who, to, t)?;
            match (is_dir, self.nodes[t].kind == FileKind::Directory) {
                (true, false) => return Err(Status::NotDir),
                (false, true) => return Err(Status::IsDir),
                _ => {}
            }
        }
        if is_dir && from != to {
            self.need(who, h, "w")?;
        }
        if target.is_some_and(|t| !self.nodes[t].children.is_empty()) {
            return Err(Status::NotEmpty);
        }
        self.nodes[from].children.remove(old);
        self.nodes[to].children.insert(new.to_vec(), h);
        if is_dir {
            self.nodes[h].parent = to;
        }
        self.changed(h, now, false);
        self.changed(from, now, true);
        if to != from {
            self.changed(to, now, true);
        }
        Ok(target.map(|t| (t, self.unname(now, t))))
    }

    /// Exchanges the files of two directory entries. Each entry is given as its directory, its name and its file.
    fn exchange(
        &mut self,
        who: &Cred,
        now: Timestamp,
        (from, old, h): (Handle, &[u8], Handle),
        (to, new, t): (Handle, &[u8], Handle),
    ) -> Answer<()> {
        if self.nodes[t].kind == FileKind::Directory && self.is_within(from, t) {
            return Err(Status::Inval);
        }
        for (dir, child) in [(from, h), (to, t)] {
            self.need(who, dir, "wx")?;
            self.sticky(who, dir, child)?;
        }
        for child in [h, t] {
            if self.nodes[child].kind == FileKind::Directory && from != to {
                self.need(who, child, "w")?;
            }
        }
        for (child, name, dir) in [(h, new, to), (t, old, from)] {
            self.nodes[dir].children.insert(name.to_vec(), child);
            if self.nodes[child].kind == FileKind::Directory {
                self.nodes[child].parent = dir;
            }
            self.changed(child, now, false);
        }
        self.changed(from, now, true);
        if to != from {
            self.changed(to, now, true);
        }
        Ok(())
    }

    fn drop_set_ids(&mut self, who: &Cred, h: Handle, gid: u32) {
        let node = &mut self.nodes[h];
        node.mode &= !0o4000;
        if node.mode & 0o010 != 0 || (who.uid != 0 && !member(who, gid)) {
            node.mode &= !0o2000;
        }
    }

    fn may_setattr(&self, who: &Cred, h: Handle, set: &SetAttrs, open: bool) -> Answer<()> {
        let old = &self.nodes[h];
        let root = who.uid == 0;
        let owner = root || who.uid == old.uid;
        if set.uid.is_some_and(|uid| !root && (!owner || uid != old.uid)) {
            return Err(Status::Perm);
        }
        if set.gid.is_some_and(|gid| !root && (!owner || (gid != old.gid && !member(who, gid)))) {
            return Err(Status::Perm);
        }
        if let Some(size) = set.size {
            match old.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Status::IsDir),
                _ => return Err(Status::Inval),
            }
            if !open {
                self.need(who, h, "w")?;
            }
            if size > limits::FILE_SIZE_MAX {
                return Err(Status::FBig);
            }
        }
        if let Some(mode) = set.mode {
            if !owner {
                return Err(Status::Perm);
            }
            if mode > 0o7777 {
                return Err(Status::Inval);
            }
        }
        let times = [set.atime, set.mtime];
        if times.iter().any(Option::is_some) && !owner {
            if times.iter().flatten().any(|t| *t != SetTime::Now) {
                return Err(Status::Perm);
            }
            if set.size.is_none() && times.contains(&None) {
                return Err(Status::Perm);
            }
            if !(open && set.size.is_some()) {
                self.need(who, h, "w")?;
            }
        }
        Ok(())
    }

    pub fn setattr(&mut self, who: &Cred, now: Timestamp, h: Handle, set: &SetAttrs, open: bool) -> Answer<()> {
        let old = self.live(h)?.clone();
        if set.is_empty() {
            return Ok(());
        }
        self.may_setattr(who, h, set, open)?;
        if (set.uid.is_some() || set.gid.is_some()) && old.kind != FileKind::Directory {
            self.drop_set_ids(who, h, old.gid);
        }
        self.nodes[h].uid = set.uid.unwrap_or(old.uid);
        self.nodes[h].gid = set.gid.unwrap_or(old.gid);
        if let Some(size) = set.size {
            if who.uid != 0 {
                self.drop_set_ids(who, h, old.gid);
            }
            if size != old.size {
                self.nodes[h].times[MTIME] = now;
            }
            self.nodes[h].size = size;
        }
        if let Some(mode) = set.mode {
            let keep = who.uid == 0 || member(who, self.nodes[h].gid);
            self.nodes[h].mode = if keep { mode } else { mode & !0o2000 };
        }
        for (which, time) in [set.atime, set.mtime].into_iter().enumerate() {
            match time {
                Some(SetTime::Now) => self.nodes[h].times[which] = now,
                Some(SetTime::To(time)) => self.nodes[h].times[which] = time,
                None => {}
            }
        }
        self.changed(h, now, false);
        Ok(())
    }

    pub fn set_size(&mut self, who: &Cred, now: Timestamp, h: Handle, end: u64, at: Option<Timestamp>) -> Answer<()> {
        let gid = match self.live(h)? {
            node if node.kind == FileKind::Regular => node.gid,
            node if node.kind == FileKind::Directory => return Err(Status::IsDir),
            _ => return Err(Status::Inval),
        };
        if end > limits::FILE_SIZE_MAX {
            return Err(Status::FBig);
        }
        if who.uid != 0 {
            self.drop_set_ids(who, h, gid);
        }
        self.changed(h, now, true);
        let node = &mut self.nodes[h];
        node.size = node.size.max(end);
        node.times[MTIME] = at.unwrap_or(now);
        Ok(())
    }

    fn xattrs_of(&self, who: &Cred, h: Handle) -> Answer<()> {
        let node = self.live(h)?;
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => {
                if node.mode & 0o1000 != 0 && who.uid != 0 && who.uid != node.uid {
                    return Err(Status::Perm);
                }
            }
            _ => return Err(Status::Perm),
        }
        self.need(who, h, "w")
    }

    pub fn setxattr(
        &mut self,
        who: &Cred,
        now: Timestamp,
        h: Handle,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Answer<()> {
        if name.is_empty() || name.contains(&0) {
            return Err(Status::Inval);
        }
        if name.len() > 250 {
            return Err(Status::NameTooLong);
        }
        if value.len() > 60 << 10 {
            return Err(Status::XattrTooBig);
        }
        self.xattrs_of(who, h)?;
        let mut after = self.nodes[h].xattrs.clone();
        let there = after.insert(name.to_vec(), value.to_vec()).is_some();
        match how {
            SetXattr::Create if there => return Err(Status::Exist),
            SetXattr::Replace if !there => return Err(Status::NoXattr),
            _ => {}
        }
        let bytes: usize = after.iter().map(|(n, v)| n.len() + v.len()).sum();
        if after.len() > 256 || bytes > 256 << 10 {
            return Err(Status::NoSpc);
        }
        self.nodes[h].xattrs = after;
        self.changed(h, now, false);
        Ok(())
    }

    pub fn removexattr(&mut self, who: &Cred, now: Timestamp, h: Handle, name: &[u8]) -> Answer<()> {
        self.xattrs_of(who, h)?;
        self.nodes[h].xattrs.remove(name).ok_or(Status::NoXattr)?;
        self.changed(h, now, false);
        Ok(())
    }

    pub fn getxattr(&self, who: &Cred, h: Handle, name: &[u8]) -> Answer<Vec<u8>> {
        let node = self.live(h)?;
        if !matches!(node.kind, FileKind::Regular | FileKind::Directory) {
            return Err(Status::NoXattr);
        }
        self.need(who, h, "r")?;
        node.xattrs.get(name).cloned().ok_or(Status::NoXattr)
    }

    /// Deletes an orphan. Returns whether the mgr must delete its objects.
    pub fn reap(&mut self, h: Handle) -> bool {
        let node = &mut self.nodes[h];
        if node.gone || node.names > 0 {
            return false;
        }
        node.gone = true;
        if node.layout {
            self.doomed.push(h);
        }
        self.nodes[h].layout
    }

    /// Begins a layout swap. Returns whether the file has the expected layout.
    pub fn begin_swap(&mut self, h: Handle, from: u8, to: u8) -> Answer<bool> {
        let node = self.live(h)?;
        if node.kind != FileKind::Regular {
            return Err(Status::WrongType);
        }
        if !node.layout || node.swaps != from {
            return Ok(false);
        }
        if self.unused.contains_key(&h) {
            return Err(Status::Delay);
        }
        self.unused.insert(h, to);
        Ok(true)
    }

    /// Completes a layout swap, if the layout of the file and its unused objects are as expected. Returns whether the
    /// swap was completed.
    pub fn swap_layout(&mut self, h: Handle, expected: bool) -> Answer<bool> {
        self.live(h)?;
        let (Some(unused), true) = (self.unused.get_mut(&h), expected) else { return Ok(false) };
        std::mem::swap(unused, &mut self.nodes[h].swaps);
        Ok(true)
    }

    pub fn set_layout(&mut self, h: Handle) -> Answer<()> {
        if self.live(h)?.kind != FileKind::Regular {
            return Err(Status::WrongType);
        }
        self.nodes[h].layout = true;
        Ok(())
    }
}
