//! The generator of random actions for the model test: a random user applies a random operation to names and files.

use bytes::Bytes;
use meta::{CreateMode, SetXattr};
use proptest::prelude::*;
use types::{Cred, FileKind, Renaming, SetAttrs, SetTime, Timestamp};

/// Returns the credentials of test user number `n`.
pub fn user(n: usize) -> Cred {
    match n {
        0 => Cred::root(),
        1 => Cred { uid: 1001, gid: 10, groups: vec![20] },
        2 => Cred { uid: 1002, gid: 20, groups: vec![] },
        _ => Cred { uid: 1003, gid: 30, groups: vec![31, 32] },
    }
}

/// Selects one of the files that the test has created so far: the number modulo the number of files is the index of the
/// file.
pub type Pick = usize;
pub type Name = Bytes;

#[derive(Clone, Debug)]
pub enum Op {
    Create {
        dir: Pick,
        name: Name,
        how: CreateMode,
        layout: bool,
    },
    Mkdir {
        dir: Pick,
        name: Name,
        set: SetAttrs,
    },
    Symlink {
        dir: Pick,
        name: Name,
        target: Bytes,
        set: SetAttrs,
    },
    Mknod {
        dir: Pick,
        name: Name,
        kind: FileKind,
        set: SetAttrs,
    },
    Link {
        file: Pick,
        dir: Pick,
        name: Name,
    },
    Remove {
        dir: Pick,
        name: Name,
    },
    Rename {
        from: Pick,
        old: Name,
        to: Pick,
        new: Name,
        how: Renaming,
    },
    Setattr {
        file: Pick,
        set: SetAttrs,
        open: bool,
    },
    SetSize {
        file: Pick,
        end: u64,
        at: Option<Timestamp>,
        note: bool,
    },
    SetXattr {
        file: Pick,
        name: Name,
        value: Bytes,
        how: SetXattr,
    },
    RemoveXattr {
        file: Pick,
        name: Name,
    },
    SetLayout {
        file: Pick,
    },
    Fence {
        file: Pick,
    },
    Reap {
        file: Pick,
    },
    /// Begins a layout swap. If `stale` is set, the call passes a layout that is not the layout of the file.
    BeginSwap {
        file: Pick,
        stale: bool,
    },
    /// Completes a layout swap. If `stale` is given, its number selects the argument for which the call passes a wrong
    /// value.
    Swap {
        file: Pick,
        stale: Option<usize>,
    },
    ForgetUnused {
        file: Pick,
    },
    Look {
        dir: Pick,
        name: Name,
    },
    Inspect {
        file: Pick,
        xattr: Name,
    },
}

#[derive(Clone, Debug)]
pub enum Action {
    /// A user runs an operation. The fields are the number of the user, the seconds by which the clock advances, and
    /// the operation.
    Do(usize, i64, Op),
    /// The test closes the store and opens it again.
    Reopen,
}

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![
        40 => (0..6usize).prop_map(|n| Bytes::from_static([b"a", b"b", b"c", b"d", b"e", &[0xff][..]][n])),
        1 => Just(Bytes::from_static(b"")),
        1 => Just(Bytes::from_static(b".")),
        1 => Just(Bytes::from_static(b"..")),
        1 => Just(Bytes::from_static(b"x/y")),
        1 => Just(Bytes::from_static(b"nul\0")),
        1 => Just(Bytes::from(vec![b'l'; 255])),
        1 => Just(Bytes::from(vec![b'l'; 256])),
    ]
}

fn xattr() -> impl Strategy<Value = Name> {
    prop_oneof![
        4 => Just(Bytes::from_static(b"weir.stripe")),
        4 => Just(Bytes::from_static(b"weir.")),
        4 => Just(Bytes::from_static(b"colour")),
        4 => Just(Bytes::from_static(b"zz")),
        1 => Just(Bytes::from_static(b"")),
        1 => Just(Bytes::from_static(b"a\0b")),
        1 => Just(Bytes::from(vec![0xff; 250])),
        1 => Just(Bytes::from(vec![b'n'; 251])),
    ]
}

fn mode() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => prop_oneof![Just(0o777), Just(0o1777), Just(0o2777), Just(0o755), Just(0o2775), Just(0o770)],
        3 => 0..=0o7777u32,
        1 => Just(0o10000),
    ]
}

fn time() -> impl Strategy<Value = SetTime> {
    prop_oneof![
        Just(SetTime::Now),
        (-10i64..10_000, 0..1_000_000_000u32).prop_map(|(secs, nanos)| SetTime::To(Timestamp { secs, nanos })),
    ]
}

fn id() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0u32), Just(1001), Just(1002), Just(10), Just(20), Just(30)]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..5u64, 3 => any::<u32>().prop_map(u64::from), 1 => any::<u64>()]
}

/// Generates attributes for a SETATTR or a create. `odds` scales the probability that each attribute is set.
fn attrs(odds: f64) -> impl Strategy<Value = SetAttrs> {
    let part = move |p: f64| p.min(0.95);
    (
        prop::option::weighted(part(odds * 2.0), mode()),
        prop::option::weighted(odds / 3.0, id()),
        prop::option::weighted(odds / 2.0, id()),
        prop::option::weighted(odds / 2.0, size()),
        prop::option::weighted(odds / 2.0, time()),
        prop::option::weighted(odds / 2.0, time()),
    )
        .prop_map(|(mode, uid, gid, size, atime, mtime)| SetAttrs { mode, uid, gid, size, atime, mtime })
}

fn how() -> impl Strategy<Value = CreateMode> {
    (0..3u8, 0..2u8, attrs(0.45)).prop_map(|(how, v, set)| match how {
        0 => CreateMode::Unchecked(set),
        1 => CreateMode::Guarded(set),
        _ => CreateMode::Exclusive([v; 8], set),
    })
}

fn kind() -> impl Strategy<Value = FileKind> {
    (1..=7u32).prop_map(|n| FileKind::from_number(n).expect("a kind"))
}

fn target() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        8 => Just(Bytes::from_static(b"../some/where")),
        1 => Just(Bytes::from_static(b"")),
        1 => Just(Bytes::from_static(b"nul\0")),
        1 => Just(Bytes::from(vec![b't'; 4095])),
        1 => Just(Bytes::from(vec![b't'; 4096])),
    ]
}

fn value() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from),
        2 => Just(Bytes::from(vec![7; 60 << 10])),
        1 => Just(Bytes::from(vec![7; (60 << 10) + 1])),
    ]
}

fn exist() -> impl Strategy<Value = SetXattr> {
    prop_oneof![3 => Just(SetXattr::Either), 1 => Just(SetXattr::Create), 1 => Just(SetXattr::Replace)]
}

/// Selects a file, mostly one of the first files, which are directories with entries.
fn pick() -> impl Strategy<Value = Pick> {
    prop_oneof![3 => 0..5usize, 2 => any::<usize>()]
}

fn renaming() -> impl Strategy<Value = Renaming> {
    prop_oneof![3 => Just(Renaming::Replace), 1 => Just(Renaming::NoReplace), 2 => Just(Renaming::Exchange)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (pick(), name(), how(), any::<bool>())
            .prop_map(|(dir, name, how, layout)| Op::Create { dir, name, how, layout }),
        8 => (pick(), name(), attrs(0.5)).prop_map(|(dir, name, set)| Op::Mkdir { dir, name, set }),
        2 => (pick(), name(), target(), attrs(0.1))
            .prop_map(|(dir, name, target, set)| Op::Symlink { dir, name, target, set }),
        2 => (pick(), name(), kind(), attrs(0.3)).prop_map(|(dir, name, kind, set)| Op::Mknod { dir, name, kind, set }),
        4 => (any::<usize>(), pick(), name()).prop_map(|(file, dir, name)| Op::Link { file, dir, name }),
        8 => (pick(), name()).prop_map(|(dir, name)| Op::Remove { dir, name }),
        14 => (pick(), name(), pick(), name(), renaming())
            .prop_map(|(from, old, to, new, how)| Op::Rename { from, old, to, new, how }),
        8 => (any::<usize>(), attrs(0.4), any::<bool>()).prop_map(|(file, set, open)| Op::Setattr { file, set, open }),
        3 => (any::<usize>(), size(), prop::option::of(Just(Timestamp { secs: 77, nanos: 7 })), any::<bool>())
            .prop_map(|(file, end, at, note)| Op::SetSize { file, end, at, note }),
        6 => (pick(), xattr(), value(), exist())
            .prop_map(|(file, name, value, how)| Op::SetXattr { file, name, value, how }),
        2 => (pick(), xattr()).prop_map(|(file, name)| Op::RemoveXattr { file, name }),
        1 => any::<usize>().prop_map(|file| Op::SetLayout { file }),
        1 => any::<usize>().prop_map(|file| Op::Fence { file }),
        3 => any::<usize>().prop_map(|file| Op::Reap { file }),
        3 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(file, stale)| Op::BeginSwap { file, stale }),
        3 => (any::<usize>(), prop::option::weighted(0.3, 0..3usize))
            .prop_map(|(file, stale)| Op::Swap { file, stale }),
        1 => any::<usize>().prop_map(|file| Op::ForgetUnused { file }),
        2 => (pick(), name()).prop_map(|(dir, name)| Op::Look { dir, name }),
        2 => (any::<usize>(), xattr()).prop_map(|(file, xattr)| Op::Inspect { file, xattr }),
    ]
}

/// Generates sequences of up to `max` actions.
pub fn actions(max: usize) -> impl Strategy<Value = Vec<Action>> {
    let step = prop_oneof![9 => 0..3i64, 1 => -100..100i64];
    let one = prop_oneof![
        40 => (0..4usize, step, op()).prop_map(|(who, step, op)| Action::Do(who, step, op)),
        1 => Just(Action::Reopen),
    ];
    prop::collection::vec(one, 1..max)
}
