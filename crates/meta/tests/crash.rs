//! Crash tests of the embedded store: the tests cut the power after every write and sync of a fixed workload. Durable
//! changes must survive, and every batch must be applied completely or not at all.

#[path = "common/disk.rs"]
mod disk;

use disk::{Disk, Operation};
use futures_util::future::join_all;
use meta::engine::{Engine, Walk};
use meta::{CreateMode, Embedded, Format, Layout, Namespace, SetXattr, Step, Stepper, check, merge};
use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use types::{Cred, FileId, Fsid, Renaming, SetAttrs, Timestamp};

const NOW: Timestamp = Timestamp { secs: 100, nanos: 0 };
const ID: [u8; 16] = [9; 16];

/// A splitmix64 pseudorandom generator, which gives the same numbers for the same seed on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }
}

type Fs = Namespace<Arc<Embedded>>;

/// Runs the operation that `choice` selects. If the operation reports that its change is durable, returns the number of
/// a store state that contains the change.
async fn operate(fs: &Fs, dirs: &[FileId], choice: [usize; 6], state: &Cell<usize>) -> Option<usize> {
    let cred = Cred::root();
    let [what, from, to, a, b, size] = choice;
    // An operation on the handle `soon` completes before its change is durable, so a crash may lose the change. If the
    // change survives a crash, all earlier changes survive too.
    let soon = size % 3 == 0;
    let fs = if soon { &fs.soon() } else { fs };
    let (from, to) = (dirs[from % dirs.len()], dirs[to % dirs.len()]);
    let (a, b) = (format!("name-{a}"), format!("name-{b}"));
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let set = SetAttrs { mode: Some(0o640), ..SetAttrs::default() };
    let id = fs.lookup(&cred, from, a).map(|attrs| attrs.id);
    let done = match (what, id) {
        (0..4, _) => {
            let layout = Layout { kind: 1, body: vec![7; size % 100].into() };
            fs.create(&cred, NOW, from, a, &CreateMode::Guarded(set), Some(&layout)).await.map(drop)
        }
        (4, _) => fs.symlink(&cred, NOW, from, a, b, &set).await.map(drop),
        (5, _) => fs.mkdir(&cred, NOW, from, a, &set).await.map(drop),
        (6 | 7, _) => {
            // A rename between two names of the same file changes nothing and waits for no flush, so after this rename
            // earlier changes need not be durable.
            let how = [Renaming::Replace, Renaming::NoReplace, Renaming::Exchange][size % 3];
            let _ = fs.rename(&cred, NOW, (from, a), (to, b), how).await;
            return None;
        }
        (8 | 9, _) => match fs.remove(&cred, NOW, from, a).await {
            Ok(gone) => {
                let removed = state.get();
                if gone.file.orphan && size % 2 == 0 {
                    let _ = fs.reap(NOW, gone.file.attrs.id).await;
                }
                return (!soon).then_some(removed);
            }
            Err(status) => Err(status),
        },
        (10, Ok(id)) => fs.link(&cred, NOW, id, to, b).await.map(drop),
        (11, Ok(id)) => fs.setxattr(&cred, NOW, id, b, &vec![3; size], SetXattr::Either).await.map(drop),
        (12, Ok(id)) => fs.set_size(&cred, NOW, id, size as u64, None).await.map(drop),
        (13, Ok(id)) => {
            let _ = fs.record_write(&cred, NOW, id, size as u64).await;
            return None;
        }
        (14, _) => return fs.settle().await.is_ok().then(|| state.get()),
        _ => return None,
    };
    (done.is_ok() && !soon).then(|| state.get())
}

/// Returns a hash of all records of a store.
fn fingerprint(engine: &dyn Engine) -> u64 {
    let mut hasher = DefaultHasher::new();
    let view = engine.view().expect("view");
    let all = view.scan(&[][..]..&[0xff; 16][..], usize::MAX, &mut |key, value| {
        (key, value).hash(&mut hasher);
        Walk::On
    });
    assert_eq!(all, Ok(None));
    hasher.finish()
}

/// The trace of a workload: all disk operations, and a hash of each store state. For each state that was reported as
/// durable, `promised` has the number of disk operations before the report.
struct Work {
    history: Vec<(usize, Operation)>,
    states: Vec<u64>,
    promised: Vec<(usize, usize)>,
}

fn open(disk: &Disk, room: u64) -> Result<(Embedded, Stepper), meta::StoreError> {
    Embedded::stepped(disk.clone(), disk.log(room), ID, merge, || None)
}

/// Calls [`Stepper::step`] until `work` completes, and calls `stepped` after each step.
fn drive<T>(work: Pin<&mut (impl Future<Output = T> + ?Sized)>, stepper: &mut Stepper, mut stepped: impl FnMut()) -> T {
    let mut work = work;
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
            return done;
        }
        assert_ne!(stepper.step(Duration::ZERO), Step::Idle);
        stepped();
    }
}

/// Runs a workload on a store whose log has a ring of at most `room` bytes, and returns the trace of the workload.
fn work(groups: usize, room: u64, seed: u64) -> Work {
    let mut random = Random(seed);
    let disk = Disk::default();
    disk.record();
    let (store, mut stepper) = open(&disk, room).expect("store");
    let store = Arc::new(store);
    let format =
        Format { fsid: Fsid([7; 16]), now: NOW, cookie_key: [3; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 };
    let format = std::pin::pin!(Namespace::format(store.clone(), format));
    let fs = drive(format, &mut stepper, || ()).expect("format");
    let mut states = vec![fingerprint(&store)];
    let mut promised = vec![(disk.operations(), 0)];
    let mut dirs = vec![FileId::ROOT];
    for name in [&b"d1"[..], b"d2", b"d3"] {
        let parent = *dirs.last().expect("a directory");
        let (cred, set) = (Cred::root(), SetAttrs::default());
        let mut mkdir = Box::pin(fs.mkdir(&cred, NOW, parent, name, &set));
        let made = drive(mkdir.as_mut(), &mut stepper, || states.push(fingerprint(&store)));
        dirs.push(made.expect("mkdir").attrs.id);
    }
    for group in 0..groups {
        let choices: Vec<[usize; 6]> =
            (0..=random.below(4)).map(|_| [15, 4, 4, 12, 12, 900].map(|end| random.below(end))).collect();
        let state = Cell::new(states.len() - 1);
        let all = choices.into_iter().map(|choice| operate(&fs, &dirs, choice, &state));
        let mut all = Box::pin(join_all(all));
        let done = drive(all.as_mut(), &mut stepper, || {
            states.push(fingerprint(&store));
            state.set(states.len() - 1);
        });
        drop(all);
        if let Some(state) = done.into_iter().flatten().max() {
            promised.push((disk.operations(), state));
        }
        // Pass a time at which the checkpoint is overdue, so that the stepper (the writer of the store) makes it.
        if group % 16 == 15 && stepper.due().is_some() {
            assert_eq!(stepper.step(Duration::from_secs(2)), Step::Checkpoint);
        }
    }
    assert_eq!(check(&*store.view().expect("view")), Ok(Vec::new()));
    Work { history: disk.history(), states, promised }
}

fn kept(seed: u64) -> impl FnMut(usize) -> usize {
    let mut random = Random(seed);
    // Each seed lets a different fraction of the unsynced sectors survive the power cut, from none to nearly all. A
    // few sectors are torn.
    let share = random.below(11);
    move |len| match random.below(10) {
        n if n < share => len,
        _ if random.below(20) == 0 => random.below(len + 1),
        _ => 0,
    }
}

/// Opens the store after a power cut, with a second power cut while the store is being opened. `seed` determines which
/// unsynced data survive. Returns a hash of the recovered store.
fn reopen(cut: &Disk, room: u64, seed: u64) -> Result<u64, meta::StoreError> {
    // Simulate a second power cut while the store is being opened.
    let again = cut.after_power_cut(|len| len);
    let mut random = Random(seed);
    again.break_after(random.below(40));
    drop(open(&again, room));
    let cut = again.after_power_cut(kept(seed ^ 0x5555));
    let (store, stepper) = open(&cut, room)?;
    let faults = check(&*store.view().expect("view")).expect("check");
    let state = fingerprint(&store);
    if store.view().expect("view").get(meta::schema::FORMAT) != Ok(None) {
        assert_eq!(faults, [], "seed {seed}");
    }
    // Opening the store has made the replayed changes durable, so another power cut must not lose these changes.
    cut.break_after(0);
    drop((store, stepper));
    let (store, _stepper) = open(&cut.after_power_cut(|_| 0), room)?;
    assert_eq!(fingerprint(&store), state);
    Ok(state)
}

fn is_full_scale() -> bool {
    std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

/// Replays the trace of disk operations, with a simulated power cut after every `stride` operations on average. If
/// `stride` is 1, the power is cut after every operation.
fn cut_everywhere(work: &Work, room: u64, seed: u64, stride: usize) {
    let disk = Disk::default();
    let mut random = Random(seed);
    let mut next = random.below(stride);
    let mut points = 0;
    for n in 0..=work.history.len() {
        if n == next {
            next += 1 + random.below(2 * stride - 1);
            points += 1;
            let cut = disk.after_power_cut(kept(seed + n as u64));
            let found = reopen(&cut, room, seed + n as u64);
            // The power cut may lose operations that did not report durability. The recovered state must contain all
            // operations that reported durability.
            let promised = work.promised.iter().rev().find(|(operations, _)| *operations <= n);
            match (found, promised) {
                (Ok(state), Some((_, first))) => assert!(
                    work.states[*first..].contains(&state),
                    "seed {seed}, cut after operation {n}: the store is not as it was when it promised, nor as later"
                ),
                (Err(error), Some(_)) => panic!("seed {seed}, cut after operation {n}: {error}"),
                // The power was cut before the store was created, so there is no store to check.
                (_, None) => {}
            }
        }
        if let Some(operation) = work.history.get(n) {
            disk.repeat(operation.clone());
        }
    }
    println!("{points} of {} points, {} states", work.history.len() + 1, work.states.len());
}

#[test]
fn a_crash_after_any_operation_keeps_durable_changes() {
    let (groups, stride, seeds) = if is_full_scale() { (600, 1, 2) } else { (120, 6, 1) };
    // A log with a ring of three blocks is always full and wraps around. A log with a ring of 4 MiB never fills. If the
    // log has no ring, the store flushes the database for every commit group.
    for (room, more) in [(3 * 4096, 0), (64 << 10, 1), (4 << 20, 2), (0, 3)] {
        for seed in 0..seeds {
            let seed = 1000 * seed + more;
            cut_everywhere(&work(groups, room, seed), room, seed, stride);
        }
    }
}

/// Change attributes after a crash must differ from all change attributes that clients saw before the crash. The test
/// makes changes that are not durable, cuts the power, and makes different changes.
#[test]
fn change_attributes_are_never_reused_after_a_crash() {
    let cred = Cred::root();
    let disk = Disk::default();
    disk.record();
    let (store, mut stepper) = open(&disk, 64 << 10).expect("store");
    let format =
        Format { fsid: Fsid([7; 16]), now: NOW, cookie_key: [3; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 };
    let format = std::pin::pin!(Namespace::format(store, format));
    let fs = drive(format, &mut stepper, || ()).expect("format");
    fs.begin(1);
    let told = |fs: &Namespace<Embedded>| fs.getattr(FileId::ROOT).expect("the root").change;
    let set = CreateMode::Guarded(SetAttrs::default());
    let mut seen = vec![(disk.operations(), told(&fs))];
    for n in 0..24 {
        let name = format!("x{n}");
        let mut made = Box::pin(fs.create_soon(&cred, NOW, FileId::ROOT, name.as_bytes(), &set, None));
        let change = drive(made.as_mut(), &mut stepper, || ()).expect("create").dir;
        assert_eq!((change.before, change.after), (seen.last().expect("one").1, told(&fs)));
        seen.push((disk.operations(), told(&fs)));
        if n % 8 == 7 {
            drive(std::pin::pin!(fs.settle()), &mut stepper, || ()).expect("settle");
        }
    }
    let (history, disk) = (disk.history(), Disk::default());
    for n in 0..=history.len() {
        let last = seen.iter().rev().find(|(operations, _)| *operations <= n).map(|(_, change)| *change);
        let cut = disk.after_power_cut(kept(n as u64));
        if let (Some(last), Ok((store, mut stepper))) = (last, open(&cut, 64 << 10)) {
            let fs = Namespace::open(store).expect("open");
            fs.begin(2);
            assert!(told(&fs) > last, "cut after operation {n}");
            let mut made = Box::pin(fs.create(&cred, NOW, FileId::ROOT, b"y", &set, None));
            let made = drive(made.as_mut(), &mut stepper, || ()).expect("create");
            assert!(made.dir.before > last && made.dir.after == told(&fs), "cut after operation {n}");
            let file = fs.lookup(&cred, FileId::ROOT, b"y").expect("it is there");
            assert_eq!(file.change, made.file.attrs.change);
        }
        if let Some(operation) = history.get(n) {
            disk.repeat(operation.clone());
        }
    }
}
