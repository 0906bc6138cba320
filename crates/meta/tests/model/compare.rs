//! The comparison of the namespace with the reference model. The test runs each action on both, and compares the
//! results of all actions and then all files.

use crate::action::{Action, Op, user};
use crate::block::block;
use crate::reference::{Handle, Reference};
use bytes::Bytes;
use meta::engine::{Engine, Walk};
use meta::schema::Intent;
use meta::{ChangeInfo, CheckMemory, Event, Format, Layout, Namespace, Rights, Unused};
use std::collections::BTreeMap;
use types::{Attrs, Cred, FileId, FileKind, Fsid, Generation, SetAttrs, Status, Timestamp};

const ROOT_MODE: u32 = 0o777;

pub struct Pair<E> {
    real: Namespace<E>,
    model: Reference,
    /// The namespace's inode number of each file of the reference model.
    ids: Vec<FileId>,
    /// For each file, its change attribute in the namespace and its number of changes in the reference model, as of the
    /// last comparison.
    changes: BTreeMap<Handle, (u64, u64)>,
    now: Timestamp,
}

fn layout() -> Layout {
    layout_of(0)
}

/// Returns the layout of a file after `swaps` layout swaps.
fn layout_of(swaps: u8) -> Layout {
    Layout { kind: 9, body: Bytes::copy_from_slice(&[b"somewhere", &[swaps][..]].concat()) }
}

impl<E: Engine> Pair<E> {
    /// Creates an empty file system with a few directories of different modes, in the namespace and in the reference
    /// model.
    pub fn new(store: E) -> Self {
        let now = Timestamp { secs: 1000, nanos: 5 };
        let format =
            Format { fsid: Fsid([1; 16]), now, cookie_key: [2; 16], root_mode: ROOT_MODE, root_uid: 0, root_gid: 0 };
        let real = block(Namespace::format(store, format)).expect("format");
        let model = Reference::new(now, ROOT_MODE);
        let mut pair = Pair { real, model, ids: vec![FileId::ROOT], changes: BTreeMap::new(), now };
        for (name, mode, gid) in [(b"a", 0o777, 0), (b"b", 0o1777, 0), (b"c", 0o2775, 20), (b"d", 0o755, 0)] {
            let set = SetAttrs { mode: Some(mode), gid: Some(gid), ..SetAttrs::default() };
            let op = Op::Mkdir { dir: 0, name: Bytes::from_static(name), set };
            pair.step(&Action::Do(0, 1, op));
        }
        pair
    }

    /// Closes the store and opens it again. Returns a comparison of the reopened namespace with the unchanged
    /// reference model.
    pub fn reopen(self, reopen: &mut impl FnMut(Namespace<E>) -> E) -> Self {
        let Pair { real, model, ids, changes, now } = self;
        let (fsid, created) = (real.fsid(), real.created());
        let real = Namespace::open(reopen(real)).expect("open");
        assert_eq!((real.fsid(), real.created()), (fsid, created));
        Pair { real, model, ids, changes, now }
    }

    fn pick(&self, pick: usize) -> (Handle, FileId) {
        let h = pick % self.ids.len();
        (h, self.ids[h])
    }

    /// Compares the attributes of the file `h` with the reference model. `real` has the attributes that the namespace
    /// returned.
    fn check(&mut self, h: Handle, real: &Attrs) {
        let node = &self.model.nodes[h];
        let got = (real.id, real.kind, real.mode, real.uid, real.gid, real.nlink, real.size, real.rdev);
        let want = (self.ids[h], node.kind, node.mode, node.uid, node.gid, self.model.nlink(h), self.model.size(h));
        assert_eq!(got, (want.0, want.1, want.2, want.3, want.4, want.5, want.6, node.rdev), "file {h}");
        assert_eq!([real.atime, real.mtime, real.ctime, real.btime], node.times, "times of file {h}");
        self.check_change(h, real.change);
    }

    /// Checks that the namespace's change attribute grew if and only if the reference model recorded a change.
    fn check_change(&mut self, h: Handle, real: u64) {
        let wanted = self.model.nodes[h].changes;
        if let Some((seen, counted)) = self.changes.insert(h, (real, wanted)) {
            assert_eq!(real.cmp(&seen), wanted.cmp(&counted), "change attribute of file {h}");
        }
    }

    fn check_info(&mut self, h: Handle, info: ChangeInfo, changed: bool) {
        assert!(info.atomic);
        assert_eq!(info.after > info.before, changed, "change of {h}: {info:?}");
        if let Some((seen, _)) = self.changes.get(&h) {
            assert!(info.before >= *seen);
        }
        self.check_change(h, info.after);
    }

    fn made(&mut self, h: Handle, attrs: &Attrs) {
        assert_eq!(h, self.ids.len());
        assert!(!self.ids.contains(&attrs.id), "inode number {} used twice", attrs.id);
        self.ids.push(attrs.id);
        self.check(h, attrs);
    }

    /// Runs an action on the namespace and on the reference model, and compares the results.
    pub fn step(&mut self, action: &Action) {
        let Action::Do(who, step, op) = action else { return };
        self.now.secs += step;
        let cred = user(*who);
        match op {
            Op::Create { .. } | Op::Mkdir { .. } | Op::Symlink { .. } | Op::Mknod { .. } | Op::Link { .. } => {
                self.make(&cred, op);
            }
            Op::Remove { .. } | Op::Rename { .. } => self.unmake(&cred, op),
            Op::Look { .. } | Op::Inspect { .. } => self.look(&cred, op),
            _ => self.alter(&cred, op),
        }
    }

    fn make(&mut self, cred: &Cred, op: &Op) {
        let now = self.now;
        let (dir, made, want) = match op {
            Op::Create { dir, name, how, layout: with } => {
                let (d, id) = self.pick(*dir);
                let layout = with.then(layout);
                let real = block(self.real.create(cred, now, id, name, how, layout.as_ref()));
                let want = self.model.create(cred, now, d, name, how, *with);
                if let (Ok(real), Ok((h, created))) = (&real, &want) {
                    assert_eq!(real.created, *created);
                    assert_eq!(real.file.layout.is_some(), self.model.nodes[*h].layout);
                }
                (d, real.map(|made| (made.file.attrs, made.dir)), want.map(|(h, _)| h))
            }
            Op::Mkdir { dir, name, set } => {
                let (d, id) = self.pick(*dir);
                let real = block(self.real.mkdir(cred, now, id, name, set));
                (d, real.map(|made| (made.attrs, made.dir)), self.model.mkdir(cred, now, d, name, set))
            }
            Op::Symlink { dir, name, target, set } => {
                let (d, id) = self.pick(*dir);
                let real = block(self.real.symlink(cred, now, id, name, target, set));
                let want = self.model.symlink(cred, now, d, name, target, set);
                (d, real.map(|made| (made.attrs, made.dir)), want)
            }
            Op::Mknod { dir, name, kind, set } => {
                let (d, id) = self.pick(*dir);
                let real = block(self.real.mknod(cred, now, id, name, *kind, (8, 3), set));
                let want = self.model.mknod(cred, now, d, name, *kind, (8, 3), set);
                (d, real.map(|made| (made.attrs, made.dir)), want)
            }
            Op::Link { file, dir, name } => {
                let ((f, file), (d, id)) = (self.pick(*file), self.pick(*dir));
                let real = block(self.real.link(cred, now, file, id, name));
                (d, real.map(|made| (made.attrs, made.dir)), self.model.link(cred, now, f, d, name).map(|()| f))
            }
            _ => return,
        };
        assert_eq!(made.map(drop), want.map(drop), "{op:?} by {cred:?}");
        if let (Ok((attrs, info)), Ok(h)) = (made, want) {
            let fresh = h == self.ids.len();
            if fresh {
                self.made(h, &attrs);
            } else {
                self.check(h, &attrs);
            }
            self.check_info(dir, info, fresh || matches!(op, Op::Link { .. }));
        }
    }

    fn check_replaced(&mut self, real: &meta::Replaced, (h, orphan): (Handle, bool)) {
        assert_eq!((real.attrs.id, real.orphan), (self.ids[h], orphan));
        assert_eq!(real.attrs.nlink, self.model.nlink(h));
    }

    fn unmake(&mut self, cred: &Cred, op: &Op) {
        let now = self.now;
        match op {
            Op::Remove { dir, name } => {
                let (d, id) = self.pick(*dir);
                let real = block(self.real.remove(cred, now, id, name));
                let want = self.model.remove(cred, now, d, name);
                assert_eq!(real.as_ref().map(drop), want.as_ref().map(drop), "{op:?} by {cred:?}");
                if let (Ok(real), Ok(want)) = (real, want) {
                    self.check_replaced(&real.file, want);
                    self.check_info(d, real.dir, true);
                }
            }
            Op::Rename { from, old, to, new, how } => {
                let ((f, from), (t, to)) = (self.pick(*from), self.pick(*to));
                let before = self.model.nodes[f].changes;
                let real = block(self.real.rename(cred, now, (from, old), (to, new), *how));
                let want = self.model.rename(cred, now, (f, old), (t, new), *how);
                assert_eq!(real.as_ref().map(drop), want.as_ref().map(drop), "{op:?} by {cred:?}");
                if let (Ok(real), Ok(want)) = (real, want) {
                    assert_eq!(real.replaced.is_some(), want.is_some());
                    if let (Some(real), Some(want)) = (&real.replaced, want) {
                        self.check_replaced(real, want);
                    }
                    let changed = self.model.nodes[f].changes != before;
                    self.check_info(f, real.from, changed);
                    if t == f {
                        assert_eq!(real.to, real.from);
                    } else {
                        self.check_info(t, real.to, changed);
                    }
                }
            }
            _ => {}
        }
    }

    fn alter(&mut self, cred: &Cred, op: &Op) {
        let now = self.now;
        match op {
            Op::Setattr { file, set, open } => {
                let (h, id) = self.pick(*file);
                let before = self.real.getattr(id);
                let real = block(self.real.setattr(cred, now, id, set, *open));
                let want = self.model.setattr(cred, now, h, set, *open);
                assert_eq!(real.map(drop), want, "{op:?} by {cred:?}");
                if let Ok(real) = real {
                    assert_eq!(Ok(real.before), before);
                    self.check(h, &real.after);
                }
            }
            Op::SetSize { file, end, at, note } => {
                let (h, id) = self.pick(*file);
                let at = if *note { None } else { *at };
                let real = if *note {
                    block(self.real.record_write(cred, now, id, *end))
                } else {
                    block(self.real.set_size(cred, now, id, *end, at))
                };
                let want = self.model.set_size(cred, now, h, *end, at);
                assert_eq!(real.map(drop), want, "{op:?} by {cred:?}");
                if let Ok(real) = real {
                    self.check(h, &real.after);
                }
            }
            Op::SetXattr { file, name, value, how } => {
                let (h, id) = self.pick(*file);
                let real = block(self.real.setxattr(cred, now, id, name, value, *how));
                let want = self.model.setxattr(cred, now, h, name, value, *how);
                assert_eq!(real.map(drop), want, "set xattr {name:?} of {h} {how:?} by {cred:?}");
                if let Ok(info) = real {
                    self.check_info(h, info, true);
                }
            }
            Op::RemoveXattr { file, name } => {
                let (h, id) = self.pick(*file);
                let real = block(self.real.removexattr(cred, now, id, name));
                let want = self.model.removexattr(cred, now, h, name);
                assert_eq!(real.map(drop), want, "{op:?} by {cred:?}");
                if let Ok(info) = real {
                    self.check_info(h, info, true);
                }
            }
            Op::SetLayout { file } => {
                let (h, id) = self.pick(*file);
                let real = block(self.real.set_layout(now, id, &layout()));
                assert_eq!(real.map(drop), self.model.set_layout(h));
            }
            Op::Fence { file } => {
                let (h, id) = self.pick(*file);
                let before = self.real.info(id).map(|info| info.generation.0);
                let real = block(self.real.fence(now, id)).map(|generation| generation.0);
                match self.model.nodes[h].kind {
                    FileKind::Regular => assert_eq!(real, before.map(|generation| generation + 1)),
                    _ => assert_eq!(real, before.and(Err(Status::WrongType))),
                }
            }
            Op::Reap { file } => {
                let (h, id) = self.pick(*file);
                let real = block(self.real.reap(now, id)).expect("reap");
                let want = self.model.reap(h).then(|| (id, self.layout(h)));
                assert_eq!(real.map(|doomed| (doomed.id, doomed.layout)), want);
            }
            _ => self.move_objects(op),
        }
    }

    fn move_objects(&mut self, op: &Op) {
        match op {
            Op::BeginSwap { file, stale } => self.begin_swap(*file, *stale),
            Op::Swap { file, stale } => self.swap(*file, *stale),
            Op::ForgetUnused { file } => {
                let (h, id) = self.pick(*file);
                let Some(unused) = self.real.unused_of(id).expect("unused") else { return };
                // `forget_unused` keeps the record if it differs from the record that the caller passes.
                let other = Unused { generation: Generation(unused.generation.0 - 1), ..unused.clone() };
                block(self.real.forget_unused(self.now, &other)).expect("forget");
                assert_eq!(self.real.unused_of(id), Ok(Some(unused.clone())));
                block(self.real.forget_unused(self.now, &unused)).expect("forget");
                self.model.unused.remove(&h);
            }
            _ => {}
        }
    }

    fn layout(&self, h: Handle) -> Layout {
        layout_of(self.model.nodes[h].swaps)
    }

    /// Begins a layout swap. If `stale` is set, the test passes a layout that is not the layout of the file, so the
    /// call must change nothing.
    fn begin_swap(&mut self, file: usize, stale: bool) {
        let (h, id) = self.pick(file);
        let from = self.model.nodes[h].swaps.wrapping_add(stale.into());
        let to = from.wrapping_add(2);
        let before = self.real.info(id).map(|info| info.generation.0);
        let real = block(self.real.begin_swap(self.now, id, &layout_of(from), &layout_of(to)));
        let want = self.model.begin_swap(h, from, to);
        assert_eq!(real.map(|generation| generation.is_some()), want);
        if let Ok(Some(generation)) = real {
            assert_eq!(before, Ok(generation.0 - 1));
            let unused = Unused { file: id, generation, layout: layout_of(to) };
            assert_eq!(self.real.unused_of(id), Ok(Some(unused)));
            assert!(self.real.intents_of(id).expect("intents").contains(&Intent::Fence(generation)));
        }
    }

    /// Completes a layout swap. If `stale` is given, its number selects the argument for which the test passes a wrong
    /// value, and the call must change nothing.
    fn swap(&mut self, file: usize, stale: Option<usize>) {
        let (h, id) = self.pick(file);
        let from = self.layout(h);
        let generation = self.real.info(id).map_or(Generation(0), |info| info.generation);
        let begun = self.real.unused_of(id).expect("unused").map_or(generation, |unused| unused.generation);
        let other = layout_of(255);
        let older = |generation: Generation| Generation(generation.0.wrapping_sub(1));
        let real = block(match stale {
            None => self.real.swap_layout(self.now, id, (&from, generation), begun),
            Some(0) => self.real.swap_layout(self.now, id, (&other, generation), begun),
            Some(1) => self.real.swap_layout(self.now, id, (&from, older(generation)), begun),
            Some(_) => self.real.swap_layout(self.now, id, (&from, generation), older(begun)),
        });
        let want = self.model.swap_layout(h, stale.is_none());
        assert_eq!(real.map(|generation| generation.is_some()), want);
        if let Ok(Some(raised)) = real {
            assert_eq!(raised.0, generation.0 + 1);
            let unused = Unused { file: id, generation: raised, layout: from };
            assert_eq!(self.real.unused_of(id), Ok(Some(unused)));
            assert!(self.real.intents_of(id).expect("intents").contains(&Intent::Fence(raised)));
        }
    }

    fn look(&mut self, cred: &Cred, op: &Op) {
        match op {
            Op::Look { dir, name } => {
                let (d, id) = self.pick(*dir);
                let real = self.real.lookup(cred, id, name);
                let want = self.model.lookup(cred, d, name);
                assert_eq!(real.map(|attrs| attrs.id), want.map(|h| self.ids[h]), "{op:?} by {cred:?}");
                if let (Ok(attrs), Ok(h)) = (real, want) {
                    self.check(h, &attrs);
                }
                let real = self.real.lookup_parent(cred, id).map(|attrs| attrs.id);
                assert_eq!(real, self.model.lookup_parent(cred, d).map(|h| self.ids[h]), "parent by {cred:?}");
                self.compare_names(cred, d);
            }
            Op::Inspect { file, xattr } => {
                let (h, id) = self.pick(*file);
                let real = self.real.access(cred, id);
                let rights = |[read, write, execute]: [bool; 3]| Rights { read, write, execute };
                assert_eq!(real, self.model.access(cred, h).map(rights), "{op:?} by {cred:?}");
                assert_eq!(self.real.readlink(id).map(Vec::from), self.model.readlink(h));
                let real = self.real.getxattr(cred, id, xattr).map(Vec::from);
                assert_eq!(real, self.model.getxattr(cred, h, xattr), "{op:?} by {cred:?}");
            }
            _ => {}
        }
    }

    /// Reads a directory with two entries in each call, and compares names and attributes with the reference model.
    fn compare_names(&mut self, cred: &Cred, d: Handle) {
        let mut after = 0;
        let mut names = BTreeMap::new();
        let real = loop {
            match self.real.readdir(cred, self.ids[d], after, 2) {
                Err(status) => break Err(status),
                Ok(part) => {
                    for entry in part.entries {
                        assert!(entry.cookie > after.max(2) && entry.cookie < 1 << 63);
                        after = entry.cookie;
                        assert!(names.insert(entry.name.to_vec(), entry.attrs).is_none(), "name shown twice");
                    }
                    if part.eof {
                        break Ok(names);
                    }
                }
            }
        };
        let want = self.model.readdir(cred, d);
        assert_eq!(real.as_ref().map(drop), want.as_ref().map(drop), "readdir of {d} by {cred:?}");
        if let (Ok(real), Ok(want)) = (real, want) {
            assert!(real.keys().eq(want.keys()), "names in {d}: {:?}, wanted {:?}", real.keys(), want.keys());
            for (h, attrs) in want.values().zip(real.values()) {
                self.check(*h, attrs);
            }
        }
    }

    /// Compares all files, all directory entries, and the lists of orphans and doomed files with the reference model.
    pub fn compare_all(&mut self) {
        let root = Cred::root();
        for h in 0..self.ids.len() {
            let id = self.ids[h];
            let info = self.real.info(id);
            let node = self.model.nodes[h].clone();
            if node.gone {
                assert_eq!(info, Err(Status::Stale), "file {h}");
                assert_eq!(self.real.listxattr(id), Err(Status::Stale));
                continue;
            }
            let info = info.expect("a file that is there");
            self.check(h, &info.attrs);
            assert_eq!(info.layout, node.layout.then(|| layout_of(node.swaps)));
            let names: Vec<Vec<u8>> = self.real.listxattr(id).expect("names").into_iter().map(Vec::from).collect();
            assert!(names.iter().eq(node.xattrs.keys()));
            for (name, value) in &node.xattrs {
                assert_eq!(self.real.getxattr(&root, id, name).map(Vec::from).as_ref(), Ok(value));
            }
            let policy = self.real.effective_xattrs(id, b"weir.").expect("policy");
            let want = node.xattrs.iter().filter(|(name, _)| name.starts_with(b"weir."));
            assert!(policy.iter().map(|(n, v)| (&n[..], &v[..])).eq(want.map(|(n, v)| (&n[..], &v[..]))));
            if node.kind == FileKind::Directory {
                self.compare_names(&root, h);
            }
        }
        self.compare_leftovers();
    }

    fn compare_leftovers(&self) {
        let mut orphans: Vec<FileId> = self.model.orphans().iter().map(|h| self.ids[*h]).collect();
        orphans.sort();
        assert_eq!(self.real.orphans(FileId(0), usize::MAX), Ok(orphans.clone()));
        if let Some(first) = orphans.first() {
            assert_eq!(self.real.orphans(*first, usize::MAX).map(|rest| rest.len()), Ok(orphans.len() - 1));
        }
        let mut doomed: Vec<FileId> = self.model.doomed.iter().map(|h| self.ids[*h]).collect();
        doomed.sort();
        let real = self.real.doomed(FileId(0), usize::MAX).expect("doomed");
        assert_eq!(real.iter().map(|doomed| doomed.id).collect::<Vec<_>>(), doomed);
        let unused: Vec<(FileId, Layout)> =
            self.model.unused.iter().map(|(h, swaps)| (self.ids[*h], layout_of(*swaps))).collect();
        let mut real = self.real.unused(FileId(0), usize::MAX).expect("unused");
        real.sort_by_key(|one| unused.iter().position(|(id, _)| *id == one.file));
        assert_eq!(real.into_iter().map(|one| (one.file, one.layout)).collect::<Vec<_>>(), unused);
        let live = self.model.nodes.iter().filter(|node| !node.gone).count();
        assert_eq!(self.real.files(), Ok(live as u64));
        assert_eq!(self.real.check(), Ok(Vec::new()));
        // The check must find no fault even if its memory limits allow only one inode at a time.
        let memory = CheckMemory { inodes: 1, directories: 1 };
        let found = self.real.check_into(memory, &mut |event| {
            assert!(matches!(event, Event::Looked(_)), "{event:?}");
            Walk::On
        });
        assert_eq!(found, Ok(()));
    }
}
