//! Tests of the permission rules of Linux, one test for each rule.

#[path = "common/block.rs"]
mod block;

use block::block;
use meta::{CreateMode, Memory, Namespace, Rights, SetXattr, merge};
use types::{Cred, FileId, FileKind, Fsid, Renaming, SetAttrs, SetTime, Status, Timestamp};

const NOW: Timestamp = Timestamp { secs: 100, nanos: 0 };
const LATER: Timestamp = Timestamp { secs: 200, nanos: 0 };

fn owner() -> Cred {
    Cred { uid: 1, gid: 10, groups: vec![11] }
}

/// Returns a user that is in the files' group through a supplementary group.
fn fellow() -> Cred {
    Cred { uid: 2, gid: 20, groups: vec![21, 10] }
}

fn stranger() -> Cred {
    Cred { uid: 3, gid: 30, groups: vec![] }
}

fn mode(mode: u32) -> SetAttrs {
    SetAttrs { mode: Some(mode), ..SetAttrs::default() }
}

struct World {
    fs: Namespace<Memory>,
}

impl World {
    fn new() -> Self {
        let root_mode = 0o777;
        let format =
            meta::Format { fsid: Fsid([1; 16]), now: NOW, cookie_key: [2; 16], root_mode, root_uid: 0, root_gid: 0 };
        World { fs: block(Namespace::format(Memory::new(merge), format)).expect("format") }
    }

    fn file(&self, cred: &Cred, dir: FileId, name: &str, bits: u32) -> Result<FileId, Status> {
        let how = CreateMode::Guarded(mode(bits));
        block(self.fs.create(cred, NOW, dir, name.as_bytes(), &how, None)).map(|made| made.file.attrs.id)
    }

    fn dir(&self, cred: &Cred, dir: FileId, name: &str, bits: u32) -> Result<FileId, Status> {
        block(self.fs.mkdir(cred, NOW, dir, name.as_bytes(), &mode(bits))).map(|made| made.attrs.id)
    }

    fn set(&self, cred: &Cred, id: FileId, set: SetAttrs) -> Result<(), Status> {
        block(self.fs.setattr(cred, LATER, id, &set, false)).map(drop)
    }

    fn mode(&self, id: FileId) -> u32 {
        self.fs.getattr(id).expect("attributes").mode
    }
}

#[test]
fn the_first_matching_permission_class_decides() {
    let world = World::new();
    for bits in 0..0o1000 {
        let file = world.file(&owner(), FileId::ROOT, &format!("f{bits}"), bits).expect("create");
        let dir = world.dir(&owner(), FileId::ROOT, &format!("d{bits}"), bits).expect("mkdir");
        for (cred, shift) in [(owner(), 6), (fellow(), 3), (stranger(), 0)] {
            let class = bits >> shift;
            let want = Rights { read: class & 4 != 0, write: class & 2 != 0, execute: class & 1 != 0 };
            assert_eq!(world.fs.access(&cred, file), Ok(want), "{bits:o} {cred:?}");
            assert_eq!(world.fs.access(&cred, dir), Ok(want), "{bits:o} {cred:?}");
        }
        let root = Cred::root();
        let all = Rights { read: true, write: true, execute: true };
        assert_eq!(world.fs.access(&root, file), Ok(Rights { execute: bits & 0o111 != 0, ..all }), "{bits:o}");
        assert_eq!(world.fs.access(&root, dir), Ok(all), "{bits:o}");
    }
}

#[test]
fn directory_permissions_govern_listing_lookup_and_changes() {
    for bits in 0..8u32 {
        let world = World::new();
        let dir = world.dir(&owner(), FileId::ROOT, "d", 0o777).expect("mkdir");
        for name in ["a", "b", "e"] {
            world.file(&owner(), dir, name, 0o644).expect("create");
        }
        let sub = world.dir(&owner(), dir, "sub", 0o777).expect("mkdir");
        world.set(&owner(), dir, mode(0o700 | bits)).expect("chmod");
        let (read, write, search) = (bits & 4 != 0, bits & 2 != 0, bits & 1 != 0);
        let if_ok = |ok: bool| if ok { Ok(()) } else { Err(Status::Access) };
        let who = stranger();
        let fs = &world.fs;
        assert_eq!(fs.readdir(&who, dir, 0, 9).map(drop), if_ok(read));
        assert_eq!(fs.lookup(&who, dir, b"a").map(drop), if_ok(search));
        assert_eq!(fs.lookup_parent(&who, dir).map(drop), if_ok(search));
        let change = if_ok(search && write);
        assert_eq!(world.file(&who, dir, "new", 0o600).map(drop), change, "{bits:o}");
        assert_eq!(world.dir(&who, dir, "newdir", 0o700).map(drop), change);
        assert_eq!(block(fs.symlink(&who, NOW, dir, b"newlink", b"t", &mode(0))).map(drop), change);
        let set = mode(0o600);
        let fifo = fs.mknod(&who, NOW, dir, b"fifo", FileKind::Fifo, (0, 0), &set);
        assert_eq!(block(fifo).map(drop), change);
        let file = fs.lookup(&owner(), dir, b"a").expect("lookup").id;
        assert_eq!(block(fs.link(&who, NOW, file, dir, b"linked")).map(drop), change);
        assert_eq!(block(fs.rename(&who, NOW, (dir, b"b"), (dir, b"c"), Renaming::Replace)).map(drop), change);
        assert_eq!(block(fs.remove(&who, NOW, dir, b"a")).map(drop), change);
        // If the name exists, a create must fail with EEXIST even if the caller has no write permission on the
        // directory, because `mkdir -p` depends on this.
        assert_eq!(
            world.dir(&who, dir, "sub", 0o700).map(drop),
            Err(if search { Status::Exist } else { Status::Access })
        );
        let gone = if search { Status::NoEnt } else { Status::Access };
        assert_eq!(block(fs.remove(&who, NOW, dir, b"none")).map(drop), Err(gone));
        // A rename that moves an entry into or out of the directory `dir` needs write permission on `dir`.
        assert_eq!(block(fs.rename(&who, NOW, (dir, b"e"), (FileId::ROOT, b"e"), Renaming::Replace)).map(drop), change);
        world.file(&who, FileId::ROOT, "mine", 0o600).expect("create");
        assert_eq!(
            block(fs.rename(&who, NOW, (FileId::ROOT, b"mine"), (dir, b"mine"), Renaming::Replace)).map(drop),
            change
        );
        assert_eq!(fs.getattr(sub).map(|attrs| attrs.kind), Ok(FileKind::Directory));
    }
}

#[test]
fn a_directory_that_moves_must_be_writable_itself() {
    let world = World::new();
    let to = world.dir(&stranger(), FileId::ROOT, "to", 0o777).expect("mkdir");
    world.dir(&owner(), FileId::ROOT, "moved", 0o755).expect("mkdir");
    let rename = |cred: &Cred, from: (FileId, &[u8]), to: (FileId, &[u8])| {
        block(world.fs.rename(cred, NOW, from, to, Renaming::Replace)).map(drop)
    };
    let root = FileId::ROOT;
    assert_eq!(rename(&stranger(), (root, b"moved"), (to, b"moved")), Err(Status::Access));
    assert_eq!(rename(&stranger(), (root, b"moved"), (root, b"renamed")), Ok(()));
    assert_eq!(rename(&owner(), (root, b"renamed"), (to, b"moved")), Ok(()));
}

#[test]
fn sticky_directories_protect_names() {
    let world = World::new();
    let sticky = world.dir(&owner(), FileId::ROOT, "tmp", 0o1777).expect("mkdir");
    let cases = [
        (fellow(), "his", stranger(), Err(Status::Perm)),
        (fellow(), "his", fellow(), Ok(())),
        (fellow(), "his", owner(), Ok(())),
        (fellow(), "his", Cred::root(), Ok(())),
        (owner(), "mine", fellow(), Err(Status::Perm)),
    ];
    for (maker, name, remover, want) in cases {
        let fs = &world.fs;
        world.file(&maker, sticky, name, 0o666).expect("create");
        let removed = block(fs.remove(&remover, NOW, sticky, name.as_bytes())).map(drop);
        assert_eq!(removed, want, "{name} by {remover:?}");
        if want.is_ok() {
            world.file(&maker, sticky, name, 0o666).expect("create");
        }
        let renamed =
            block(fs.rename(&remover, NOW, (sticky, name.as_bytes()), (sticky, b"moved"), Renaming::Replace)).map(drop);
        assert_eq!(renamed, want, "{name} by {remover:?}");
        let left: &[u8] = if want.is_ok() { b"moved" } else { name.as_bytes() };
        // A rename may not replace a name that the sticky bit protects.
        world.file(&remover, sticky, "over", 0o666).expect("create");
        let over = block(fs.rename(&remover, NOW, (sticky, b"over"), (sticky, left), Renaming::Replace)).map(drop);
        assert_eq!(over, want, "over {name} by {remover:?}");
        for name in [left, b"over"] {
            let removed = block(fs.remove(&Cred::root(), NOW, sticky, name)).map(drop);
            assert!(matches!(removed, Ok(()) | Err(Status::NoEnt)));
        }
    }
    // Only the owner may set extended attributes of a sticky directory.
    let set = |cred: &Cred| block(world.fs.setxattr(cred, NOW, sticky, b"n", b"v", SetXattr::Either)).map(drop);
    assert_eq!((set(&stranger()), set(&owner()), set(&Cred::root())), (Err(Status::Perm), Ok(()), Ok(())));
}

#[test]
fn new_files_inherit_the_group_of_a_setgid_directory() {
    let world = World::new();
    let dir = world.dir(&owner(), FileId::ROOT, "shared", 0o2777).expect("mkdir");
    assert_eq!(world.mode(dir), 0o2777);
    let made = |cred: &Cred, name: &str, bits| {
        let id = world.file(cred, dir, name, bits).expect("create");
        let attrs = world.fs.getattr(id).expect("attributes");
        (attrs.uid, attrs.gid, attrs.mode)
    };
    assert_eq!(made(&stranger(), "a", 0o644), (3, 10, 0o644));
    // A user outside the directory's group cannot create an executable file with the set-group-id bit. On a file
    // without group execute permission, the bit means mandatory locking and is kept.
    assert_eq!(made(&stranger(), "b", 0o2755), (3, 10, 0o755));
    assert_eq!(made(&stranger(), "c", 0o2745), (3, 10, 0o2745));
    assert_eq!(made(&fellow(), "d", 0o2755), (2, 10, 0o2755));
    assert_eq!(made(&Cred::root(), "e", 0o2755), (0, 10, 0o2755));
    let sub = world.dir(&stranger(), dir, "sub", 0o755).expect("mkdir");
    let attrs = world.fs.getattr(sub).expect("attributes");
    assert_eq!((attrs.gid, attrs.mode), (10, 0o2755));
    let plain = world.dir(&stranger(), FileId::ROOT, "plain", 0o755).expect("mkdir");
    assert_eq!(world.fs.getattr(plain).map(|attrs| (attrs.gid, attrs.mode)), Ok((30, 0o755)));
}

#[test]
fn only_the_owner_may_chmod() {
    let world = World::new();
    let file = world.file(&owner(), FileId::ROOT, "f", 0o666).expect("create");
    assert_eq!(world.set(&fellow(), file, mode(0o777)), Err(Status::Perm));
    assert_eq!(world.set(&owner(), file, mode(0o10000)), Err(Status::Inval));
    assert_eq!(world.set(&owner(), file, mode(0o7711)), Ok(()));
    assert_eq!(world.mode(file), 0o7711);
    // An owner who is not in the file's group cannot set the set-group-id bit.
    let outside = Cred { groups: vec![], gid: 99, ..owner() };
    assert_eq!(world.set(&outside, file, mode(0o6711)), Ok(()));
    assert_eq!(world.mode(file), 0o4711);
    assert_eq!(world.set(&Cred::root(), file, mode(0o6711)), Ok(()));
    assert_eq!(world.mode(file), 0o6711);
}

#[test]
fn only_root_may_chown_except_to_groups_of_the_owner() {
    let world = World::new();
    let give = |uid, gid| SetAttrs { uid, gid, ..SetAttrs::default() };
    let file = world.file(&owner(), FileId::ROOT, "f", 0o6755).expect("create");
    assert_eq!(world.set(&owner(), file, give(Some(2), None)), Err(Status::Perm));
    assert_eq!(world.set(&owner(), file, give(None, Some(99))), Err(Status::Perm));
    assert_eq!(world.set(&fellow(), file, give(None, Some(10))), Err(Status::Perm));
    assert_eq!(world.set(&fellow(), file, give(Some(1), None)), Err(Status::Perm));
    assert_eq!(world.mode(file), 0o6755);
    assert_eq!(world.set(&owner(), file, give(Some(1), Some(11))), Ok(()));
    assert_eq!(world.fs.getattr(file).map(|a| (a.uid, a.gid, a.mode)), Ok((1, 11, 0o755)));
    // A chown by root clears the set-user-id and set-group-id bits too. On a file without group execute permission, the
    // set-group-id bit means mandatory locking and is kept.
    for (before, after) in [(0o6755, 0o755), (0o4711, 0o711), (0o2644, 0o2644), (0o6644, 0o2644)] {
        assert_eq!(world.set(&Cred::root(), file, mode(before)), Ok(()));
        assert_eq!(world.set(&Cred::root(), file, give(Some(1), None)), Ok(()));
        assert_eq!(world.mode(file), after, "{before:o}");
    }
    // A SETATTR with owner and mode works like chown followed by chmod.
    let both = SetAttrs { uid: Some(2), ..mode(0o4755) };
    assert_eq!(world.set(&Cred::root(), file, both), Ok(()));
    assert_eq!(world.fs.getattr(file).map(|a| (a.uid, a.mode)), Ok((2, 0o4755)));
    // A chown of a directory keeps its set-user-id and set-group-id bits.
    let dir = world.dir(&owner(), FileId::ROOT, "d", 0o2755).expect("mkdir");
    assert_eq!(world.set(&Cred::root(), dir, give(Some(2), Some(20))), Ok(()));
    assert_eq!(world.mode(dir), 0o2755);
}

#[test]
fn setting_size_and_times_needs_write_permission() {
    let world = World::new();
    let file = world.file(&owner(), FileId::ROOT, "f", 0o6620).expect("create");
    let size = |n| SetAttrs { size: Some(n), ..SetAttrs::default() };
    assert_eq!(world.set(&stranger(), file, size(1)), Err(Status::Access));
    let open = block(world.fs.setattr(&stranger(), LATER, file, &size(1), true)).expect("as opened");
    assert_eq!((open.before.size, open.after.size, open.after.mtime), (0, 1, LATER));
    // A truncate clears the set-user-id and set-group-id bits, unless root truncates the file.
    assert_eq!(open.after.mode, 0o620);
    world.set(&owner(), file, mode(0o6630)).expect("chmod");
    assert_eq!(world.set(&Cred::root(), file, size(5)), Ok(()));
    assert_eq!(world.mode(file), 0o6630);
    assert_eq!(world.set(&fellow(), file, size(6)), Ok(()));
    assert_eq!(world.mode(file), 0o630);
    assert_eq!(world.set(&owner(), file, size(u64::MAX)), Err(Status::FBig));
    let dir = world.dir(&owner(), FileId::ROOT, "d", 0o777).expect("mkdir");
    assert_eq!(world.set(&owner(), dir, size(0)), Err(Status::IsDir));
    assert_eq!(world.set(&owner(), file, size(6)), Ok(()));

    let times = |atime, mtime| SetAttrs { atime, mtime, ..SetAttrs::default() };
    let (now, chosen) = (Some(SetTime::Now), Some(SetTime::To(Timestamp { secs: 1, nanos: 2 })));
    assert_eq!(world.set(&fellow(), file, times(now, now)), Ok(()));
    assert_eq!(world.set(&fellow(), file, times(chosen, now)), Err(Status::Perm));
    assert_eq!(world.set(&stranger(), file, times(now, now)), Err(Status::Access));
    assert_eq!(world.set(&fellow(), file, times(now, None)), Err(Status::Perm));
    assert_eq!(world.set(&stranger(), file, times(None, chosen)), Err(Status::Perm));
    assert_eq!(world.set(&owner(), file, times(now, chosen)), Ok(()));
    let attrs = world.fs.getattr(file).expect("attributes");
    assert_eq!((attrs.atime, attrs.mtime, attrs.ctime), (LATER, Timestamp { secs: 1, nanos: 2 }, LATER));
}

#[test]
fn writes_clear_set_id_bits_unless_root_writes() {
    let world = World::new();
    let file = world.file(&owner(), FileId::ROOT, "f", 0o6755).expect("create");
    let write = |cred: &Cred| block(world.fs.set_size(cred, LATER, file, 9, None)).expect("write").after;
    assert_eq!(write(&Cred::root()).mode, 0o6755);
    let after = write(&owner());
    assert_eq!((after.mode, after.size, after.mtime), (0o755, 9, LATER));
}

#[test]
fn only_root_may_create_device_nodes() {
    let world = World::new();
    let make = |cred: &Cred, name: &str, kind| {
        block(world.fs.mknod(cred, NOW, FileId::ROOT, name.as_bytes(), kind, (8, 1), &mode(0o600)))
            .map(|made| made.attrs.rdev)
    };
    assert_eq!(make(&owner(), "a", FileKind::Block), Err(Status::Perm));
    assert_eq!(make(&owner(), "a", FileKind::Char), Err(Status::Perm));
    assert_eq!(make(&owner(), "b", FileKind::Socket), Ok((0, 0)));
    assert_eq!(make(&owner(), "c", FileKind::Fifo), Ok((0, 0)));
    assert_eq!(make(&Cred::root(), "d", FileKind::Block), Ok((8, 1)));
    assert_eq!(make(&Cred::root(), "e", FileKind::Directory), Err(Status::BadType));
}

#[test]
fn extended_attributes_need_the_permissions_of_the_mode() {
    let world = World::new();
    let file = world.file(&owner(), FileId::ROOT, "f", 0o640).expect("create");
    let set = |cred: &Cred| block(world.fs.setxattr(cred, NOW, file, b"n", b"v", SetXattr::Either)).map(drop);
    assert_eq!((set(&owner()), set(&fellow()), set(&stranger())), (Ok(()), Err(Status::Access), Err(Status::Access)));
    let get = |cred: &Cred| world.fs.getxattr(cred, file, b"n").map(|value| value.to_vec());
    assert_eq!((get(&fellow()), get(&stranger())), (Ok(b"v".to_vec()), Err(Status::Access)));
    let remove = |cred: &Cred| block(world.fs.removexattr(cred, NOW, file, b"n")).map(drop);
    assert_eq!((remove(&fellow()), remove(&owner())), (Err(Status::Access), Ok(())));
    assert_eq!(get(&owner()), Err(Status::NoXattr));
    let link = block(world.fs.symlink(&owner(), NOW, FileId::ROOT, b"l", b"t", &mode(0))).expect("symlink").attrs.id;
    let on_link = block(world.fs.setxattr(&owner(), NOW, link, b"n", b"v", SetXattr::Either)).map(drop);
    assert_eq!((on_link, world.fs.getxattr(&owner(), link, b"n")), (Err(Status::Perm), Err(Status::NoXattr)));
}

#[test]
fn new_files_belong_to_their_creator() {
    let world = World::new();
    let make = |cred: &Cred, name: &str, uid, gid| {
        let how = CreateMode::Guarded(SetAttrs { uid, gid, ..mode(0o4755) });
        let made = block(world.fs.create(cred, NOW, FileId::ROOT, name.as_bytes(), &how, None));
        made.map(|made| (made.file.attrs.uid, made.file.attrs.gid, made.file.attrs.mode))
    };
    assert_eq!(make(&owner(), "a", None, None), Ok((1, 10, 0o4755)));
    assert_eq!(make(&owner(), "b", Some(1), Some(11)), Ok((1, 11, 0o4755)));
    assert_eq!(make(&owner(), "c", Some(2), None), Err(Status::Perm));
    assert_eq!(make(&owner(), "c", None, Some(12)), Err(Status::Perm));
    assert_eq!(make(&Cred::root(), "c", Some(5), Some(6)), Ok((5, 6, 0o4755)));
}

#[test]
fn extended_attributes_are_bounded_in_number_and_sum() {
    let world = World::new();
    let dir = world.dir(&owner(), FileId::ROOT, "d", 0o755).expect("mkdir");
    let set = |id, name: String, len: usize| {
        block(world.fs.setxattr(&owner(), NOW, id, name.as_bytes(), &vec![0; len], SetXattr::Either)).map(drop)
    };
    let full = 60 << 10;
    for n in 0..4 {
        assert_eq!(set(dir, format!("weir.{n}"), full), Ok(()));
    }
    // The limit on the total length of extended attributes applies to all attributes of a directory, including those
    // that the directory copied from its parent.
    let sub = world.dir(&owner(), dir, "sub", 0o755).expect("mkdir");
    for id in [dir, sub] {
        let left = (256 << 10) - 4 * (full + 6) - 1;
        assert_eq!(set(id, "x".into(), left + 1), Err(Status::NoSpc));
        assert_eq!(set(id, "x".into(), left), Ok(()));
        assert_eq!(set(id, "y".into(), 0), Err(Status::NoSpc));
        assert_eq!(set(id, "weir.0".into(), 0), Ok(()));
        assert_eq!(set(id, "y".into(), 0), Ok(()));
        assert_eq!(world.fs.listxattr(id).map(|names| names.len()), Ok(6));
    }
    let many = world.file(&owner(), FileId::ROOT, "f", 0o644).expect("create");
    assert!((0..256).all(|n| set(many, format!("{n}"), 1) == Ok(())));
    assert_eq!(set(many, "one more".into(), 1), Err(Status::NoSpc));
    // One batch deletes a file together with all its extended attributes.
    let removed = block(world.fs.remove(&owner(), NOW, FileId::ROOT, b"f")).expect("remove");
    assert!(removed.file.orphan);
    assert_eq!(block(world.fs.reap(NOW, many)), Ok(None));
    assert_eq!(world.fs.listxattr(many), Err(Status::Stale));
}
