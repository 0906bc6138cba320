//! Conformance tests of the `Engine` trait, run on each store.

#[path = "common/disk.rs"]
mod disk;

use bytes::Bytes;
use disk::Disk;
use meta::engine::{Batch, Engine, Expect, Key, Outcome, Pending, RequestId, Value, View, Walk, Write};
use meta::{Embedded, Memory, Step, Stepper};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

/// A merge function for the tests: appends the delta to the existing value. The merge fails if the record is missing or
/// the result exceeds eight bytes.
fn append(old: Option<&[u8]>, delta: &[u8]) -> Option<Value> {
    let joined = [old?, delta].concat();
    (joined.len() <= 8).then(|| joined.into())
}

type Map = BTreeMap<Key, Value>;

#[derive(Clone, Debug, PartialEq)]
enum Want {
    Committed(Vec<(Option<Value>, Value)>),
    Conflict(usize),
}

/// The reference for the commit of a batch: applies the batch to a plain map.
fn apply(map: &mut Map, batch: &Batch) -> Want {
    for (n, expect) in batch.expects.iter().enumerate() {
        let holds = match expect {
            Expect::Absent(key) => !map.contains_key(key),
            Expect::Reads(key, value) => map.get(key) == Some(value),
            Expect::NoneIn(from, to) => !map.keys().any(|key| from <= key && key < to),
        };
        if !holds {
            return Want::Conflict(n);
        }
    }
    let mut after = map.clone();
    let mut merged = Vec::new();
    for (n, (key, write)) in batch.writes.iter().enumerate() {
        match write {
            Write::Put(value) => drop(after.insert(key.clone(), value.clone())),
            Write::Delete => drop(after.remove(key)),
            Write::Merge(delta) => {
                let old = after.get(key).cloned();
                let Some(new) = append(old.as_deref(), delta) else {
                    return Want::Conflict(batch.expects.len() + n);
                };
                after.insert(key.clone(), new.clone());
                merged.push((old, new));
            }
        }
    }
    *map = after;
    Want::Committed(merged)
}

fn outcome(outcome: Outcome) -> Want {
    match outcome {
        Outcome::Committed { merged, .. } => Want::Committed(merged),
        Outcome::Conflict(n) => Want::Conflict(n),
        other => panic!("{other:?}"),
    }
}

fn entries(view: &dyn View, from: &[u8], to: &[u8], limit: usize, stop_at: usize) -> (Vec<(Key, Value)>, Option<Key>) {
    let mut shown = Vec::new();
    let next = view
        .scan(from..to, limit, &mut |key, value| {
            shown.push((key.to_vec(), Bytes::copy_from_slice(value)));
            if shown.len() == stop_at { Walk::Stop } else { Walk::On }
        })
        .expect("scan");
    (shown, next)
}

fn compare(view: &dyn View, map: &Map) {
    let (from, to) = (Key::new(), vec![0xff; 4]);
    let all: Vec<_> = map.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert_eq!(entries(view, &from, &to, usize::MAX, 0), (all.clone(), None));
    for n in 0..all.len() {
        assert_eq!(view.get(&all[n].0).expect("get"), Some(all[n].1.clone()));
        let rest = (all[..n].to_vec(), Some(all[n].0.clone()));
        assert_eq!(entries(view, &from, &to, n, 0), rest);
        if n > 0 {
            assert_eq!(entries(view, &from, &to, usize::MAX, n), rest);
        }
        assert_eq!(entries(view, &all[n].0, &to, usize::MAX, 0).0, all[n..]);
        assert_eq!(entries(view, &from, &all[n].0, usize::MAX, 0), (all[..n].to_vec(), None));
    }
    assert_eq!(entries(view, &to, &from, usize::MAX, 0), (vec![], None));
    assert_eq!(view.get(b"never written").expect("get"), None);
}

/// Submits all batches of a group, then calls `work`, which lets the store commit them. After each group, compares the
/// outcomes and the content of the store with the reference map.
fn run(engine: &dyn Engine, work: &mut dyn FnMut(), groups: Vec<Vec<Batch>>) -> Map {
    let mut map = Map::new();
    for group in groups {
        let pending: Vec<Pending> = group.iter().map(|batch| engine.submit(batch.clone())).collect();
        work();
        for (batch, pending) in group.iter().zip(pending) {
            assert_eq!(outcome(pending.wait()), apply(&mut map, batch), "{batch:?}");
        }
        compare(&*engine.view().expect("view"), &map);
    }
    let settled = engine.settle();
    work();
    assert!(matches!(settled.wait(), Outcome::Committed { .. }));
    map
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![(0..4u8).prop_map(|n| vec![n]), (0..4u8, 0..3u8).prop_map(|(n, m)| vec![n, m]), Just(vec![])]
}

fn value() -> impl Strategy<Value = Value> {
    prop::collection::vec(0..3u8, 0..3).prop_map(Bytes::from)
}

fn batch() -> impl Strategy<Value = Batch> {
    let expect = prop_oneof![
        key().prop_map(Expect::Absent),
        (key(), value()).prop_map(|(key, value)| Expect::Reads(key, value)),
        (key(), key()).prop_map(|(from, to)| Expect::NoneIn(from, to)),
    ];
    let write = prop_oneof![
        3 => value().prop_map(Write::Put),
        2 => Just(Write::Delete),
        2 => value().prop_map(Write::Merge),
    ];
    let expects = prop::collection::vec(expect, 0..2);
    let writes = prop::collection::vec((key(), write), 0..5);
    (expects, writes, any::<bool>(), any::<u64>()).prop_map(|(expects, writes, durable, id)| Batch {
        id: RequestId(id),
        expects,
        writes,
        durable,
        frees: false,
    })
}

fn groups() -> impl Strategy<Value = Vec<Vec<Batch>>> {
    prop::collection::vec(prop::collection::vec(batch(), 1..6), 1..15)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn memory_engine_follows_the_rules(groups in groups()) {
        run(&Memory::new(append), &mut || (), groups);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    #[test]
    fn embedded_engine_follows_the_rules_and_keeps_its_data(groups in groups()) {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("store");
        let store = Embedded::create(&path, [9; 16], append).expect("store");
        let map = run(&store, &mut || (), groups);
        drop(store);
        let store = Embedded::open(&path, append).expect("store");
        compare(&*store.view().expect("view"), &map);
    }

    #[test]
    fn stepped_engine_follows_the_rules_and_keeps_its_data(groups in groups()) {
        let disk = Disk::default();
        let (store, mut stepper) = stepped(&disk);
        let map = run(&store, &mut || while is_ready(&stepper) { stepper.step(NOW); }, groups);
        drop(store);
        while stepper.step(NOW) != Step::Closed {}
        drop(stepper);
        let (store, _stepper) = stepped(&disk);
        compare(&*store.view().expect("view"), &map);
    }

    /// Views of every earlier state of the store must stay unchanged. With a small log, the store moves the memtable
    /// into the database every few commit groups; with a large log, only at a checkpoint.
    #[test]
    fn views_of_all_states_stay_unchanged(groups in groups(), room in prop_oneof![Just(3u64), Just(6), Just(1000)]) {
        let disk = Disk::default();
        let (store, mut stepper) =
            Embedded::stepped(disk.clone(), disk.log(room * 4096), [9; 16], append, || None).expect("store");
        let mut map = Map::new();
        let mut states = vec![(store.view().expect("view"), map.clone())];
        for (n, group) in groups.iter().enumerate() {
            for batch in group {
                let pending = store.submit(batch.clone());
                stepper.step(NOW);
                prop_assert_eq!(outcome(pending.wait()), apply(&mut map, batch));
            }
            // Drop all views now and then, so that the store can discard old versions of records.
            if n % 3 == 0 {
                states.clear();
            }
            states.push((store.view().expect("view"), map.clone()));
            if n % 5 == 4 {
                stepper.step(Duration::from_secs(2 * n as u64));
            }
        }
        for (view, map) in &states {
            compare(&**view, map);
        }
    }
}

const NOW: Duration = Duration::ZERO;

fn stepped(disk: &Disk) -> (Embedded, Stepper) {
    Embedded::stepped(disk.clone(), disk.log(64 << 10), [9; 16], append, || None).expect("store")
}

fn is_ready(stepper: &Stepper) -> bool {
    pin!(stepper.ready()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_store_without_a_thread_works_only_when_stepped() {
    let (store, mut stepper) = stepped(&Disk::default());
    assert_eq!(stepper.step(NOW), Step::Idle);
    assert!(!is_ready(&stepper));
    let put = || {
        let writes = vec![(b"key".to_vec(), Write::Put(Bytes::from_static(b"value")))];
        store.submit(Batch { writes, durable: true, ..Batch::default() })
    };
    let waiting = [put(), put()];
    assert_eq!(store.view().expect("view").get(b"key").expect("get"), None);
    assert!(is_ready(&stepper));
    assert_eq!(stepper.step(NOW), Step::CommitGroup(2));
    assert!(waiting.into_iter().all(|pending| matches!(pending.wait(), Outcome::Committed { .. })));
    let [left, late] = [put(), put()];
    drop(stepper);
    // The test has dropped the stepper, so no writer exists, and the outcome of these batches is unknown.
    assert!([left, late, put()].into_iter().all(|pending| matches!(pending.wait(), Outcome::Unknown(_))));
}

#[test]
fn a_view_is_a_stable_snapshot() {
    let dir = tempfile::tempdir().expect("directory");
    let store = Embedded::create(&dir.path().join("store"), [9; 16], append).expect("store");
    let put = |value: &'static [u8]| {
        let writes = vec![(b"key".to_vec(), Write::Put(Bytes::from_static(value)))];
        assert!(matches!(store.submit(Batch { writes, ..Batch::default() }).wait(), Outcome::Committed { .. }));
    };
    put(b"old");
    let view = store.view().expect("view");
    put(b"new");
    assert_eq!(view.get(b"key").expect("get").as_deref(), Some(&b"old"[..]));
    assert_eq!(store.view().expect("view").get(b"key").expect("get").as_deref(), Some(&b"new"[..]));
    assert!(store.status().bytes > 0);
}
