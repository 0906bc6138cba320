//! Coherence of two mounts that use one file: each call must see the effects of all calls that returned before it on
//! the other mount.

use crate::cluster::Cluster;
use crate::histories::{History, Slot};
use crate::seeded_random::{SeededRandom, seed};
use crate::test_mount::{TestMount, can_mount, full};
use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_OMIT};
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Two mounts of one cluster, which a test uses at the same time.
struct Pair {
    name: &'static str,
    places: [TestMount; 2],
    cluster: Option<Cluster>,
    _dir: tempfile::TempDir,
}

impl Pair {
    fn end(mut self) {
        // Do not unmount the mount of `weir up`, because it ends with the `weir up` process.
        let own = self.name == UP;
        for place in self.places.into_iter().skip(usize::from(own)) {
            place.unmount();
        }
        self.cluster.take().unwrap().stop();
    }

    fn open(&self, who: usize, name: &str) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.places[who].at(name)).unwrap()
    }
}

const DEFAULT: &str = "default";
const UP: &str = "weir up --mount beside weir mount";

/// The combinations of two mounts that the tests use, each mount with its options.
const PAIRS: &[(&str, [&[&str]; 2])] = &[
    (DEFAULT, [&[], &[]]),
    ("writeback beside default", [&["-o", "writeback"], &[]]),
    ("writeback", [&["-o", "writeback"], &["-o", "writeback"]]),
    ("page", [&["--access", "page"], &["--access", "page"]]),
    ("page beside unbuffered", [&["--access", "page"], &["--access", "unbuffered"]]),
    (UP, [&[], &[]]),
];

/// Calls `work` with each combination of two mounts, one after another.
fn with_pairs(work: impl Fn(&Pair)) {
    if !can_mount() {
        return;
    }
    for (name, options) in PAIRS {
        println!("{name}");
        let dir = tempfile::tempdir().unwrap();
        let (data, one, two) = (dir.path().join("data"), dir.path().join("one"), dir.path().join("two"));
        let (cluster, first) = match *name == UP {
            true => {
                let cluster = Cluster::start_with(&data, &["--mount", one.to_str().unwrap()]);
                (cluster, TestMount::there(&one))
            }
            false => {
                let cluster = Cluster::start(&data);
                let first = TestMount::new(&cluster, &one, options[0]);
                (cluster, first)
            }
        };
        let places = [first, TestMount::new(&cluster, &two, options[1])];
        let pair = Pair { name, places, cluster: Some(cluster), _dir: dir };
        work(&pair);
        pair.end();
    }
}

/// Returns the number of rounds of a test: `few`, or `many` with `WEIR_TEST_SCALE=full`.
fn rounds(few: usize, many: usize) -> usize {
    if full() { many } else { few }
}

fn read(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut buffer = vec![0; len];
    let got = file.read_at(&mut buffer, at).unwrap();
    buffer.truncate(got);
    buffer
}

#[test]
fn an_older_write_does_not_land_over_a_newer_one() {
    with_pairs(|pair| {
        for round in 0..rounds(10, 10_000) {
            let (first, second) = (pair.open(round % 2, "f"), pair.open(1 - round % 2, "f"));
            first.write_all_at(b"OLD!", 0).unwrap();
            second.write_all_at(b"new.", 0).unwrap();
            second.sync_all().unwrap();
            drop((first, second));
            assert_eq!(fs::read(pair.places[0].at("f")).unwrap(), b"new.");
        }
    });
}

#[test]
fn another_mount_sees_bytes_and_size_of_a_returned_write() {
    with_pairs(|pair| {
        for round in 0..rounds(10, 1_000) {
            let name = format!("f{round}");
            let (first, second) = (pair.open(round % 2, &name), pair.open(1 - round % 2, &name));
            first.write_all_at(&[1; 32], 100).unwrap();
            assert_eq!(read(&second, 100, 100), [1; 32], "{}", pair.name);
            assert_eq!(second.metadata().unwrap().len(), 132);
            second.write_all_at(&[2; 9_000], 132).unwrap();
            let found = read(&first, 132, 10_000);
            let wrong = found.iter().position(|byte| *byte != 2);
            assert!(found == [2; 9_000], "{}: {} bytes, the first wrong one at {wrong:?}", pair.name, found.len());
            assert_eq!(first.metadata().unwrap().len(), 9_132);
            second.set_len(10).unwrap();
            assert_eq!((first.metadata().unwrap().len(), read(&first, 0, 100).len()), (10, 10), "{}", pair.name);
            first.write_all_at(&[3; 5], 20).unwrap();
            assert_eq!(read(&second, 10, 100), [[0; 10].as_slice(), &[3; 5]].concat(), "{}", pair.name);
        }
    });
}

/// An open must discard attributes that the kernel cached before the open, because another mount may have changed the
/// file.
#[test]
fn an_open_file_has_the_size_that_another_mount_has_made() {
    with_pairs(|pair| {
        for round in 0..rounds(10, 1_000) {
            let (name, who) = (format!("f{round}"), round % 2);
            let mut theirs = pair.open(who, &name);
            assert_eq!(fs::metadata(pair.places[1 - who].at(&name)).unwrap().len(), 0);
            let mut mine = pair.open(1 - who, &name);
            for len in 1..4 {
                theirs.write_all(b"x").unwrap();
                // With write-back caching, do not use `lseek`: the kernel answers `lseek` from its cached file size,
                // which may be out of date (docs/SEMANTICS.md).
                if round % 4 < 2 || pair.name.starts_with("writeback") {
                    assert_eq!(mine.metadata().unwrap().len(), len, "{}, round {round}", pair.name);
                } else {
                    assert_eq!(mine.seek(SeekFrom::End(0)).unwrap(), len, "{}, round {round}", pair.name);
                }
            }
        }
    });
}

/// Lists a directory like `ls -l`. The kernel gets file sizes from READDIRPLUS; the mgr stored these sizes before the
/// writer got its delegation, so the mount must correct them.
#[test]
fn a_listing_shows_what_another_mount_has_written_so_far() {
    with_pairs(|pair| {
        for round in 0..rounds(6, 500) {
            let (dir, who) = (format!("d{round}"), round % 2);
            fs::create_dir(pair.places[who].at(&dir)).unwrap();
            let mut files: Vec<File> = (0..8).map(|at| pair.open(who, &format!("{dir}/f{at}"))).collect();
            for len in [5_000, 10_000] {
                files.iter_mut().for_each(|file| file.write_all(&[1; 5_000]).unwrap());
                let listed = fs::read_dir(pair.places[1 - who].at(&dir)).unwrap();
                let sizes: Vec<u64> = listed.map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
                assert_eq!(sizes, [len; 8], "{}, round {round}", pair.name);
            }
        }
    });
}

/// Opens files as MPI-IO does: one process creates and closes a file, and then all processes open the file at the
/// same time. So the mgr recalls delegations and layouts while the mount returns them because of the first close.
#[test]
fn opening_a_new_file_on_all_mounts_at_once_loses_no_recall() {
    with_pairs(|pair| {
        for round in 0..rounds(60, 2_000) {
            let name = format!("f{}", round % 8);
            drop(File::create(pair.places[0].at(&name)).unwrap());
            let (all, began) = (Barrier::new(4), Instant::now());
            std::thread::scope(|scope| {
                for who in 0..4u64 {
                    let (all, name) = (&all, &name);
                    scope.spawn(move || {
                        all.wait();
                        let file = pair.open(who as usize % 2, name);
                        file.write_all_at(&[b'a' + who as u8], who).unwrap();
                        all.wait();
                        assert_eq!(read(&file, 0, 9), b"abcd", "{}, round {round}, rank {who}", pair.name);
                    });
                }
            });
            assert_eq!(fs::read(pair.places[round % 2].at(&name)).unwrap(), b"abcd", "{}, round {round}", pair.name);
            // If a mount lost a recall, the opens wait until the lease of this mount expires, so the round takes too
            // long.
            assert!(began.elapsed() < Duration::from_secs(60), "{}, round {round}", pair.name);
        }
    });
}

#[test]
fn bytes_truncated_by_another_mount_do_not_come_back() {
    with_pairs(|pair| {
        for round in 0..rounds(10, 10_000) {
            let (name, who) = (format!("f{}", round % 7), round % 2);
            let mut open = pair.open(who, &name);
            open.set_len(0).unwrap();
            open.write_all(b"0123456789").unwrap();
            OpenOptions::new().write(true).open(pair.places[1 - who].at(&name)).unwrap().set_len(0).unwrap();
            drop(open);
            assert_eq!(fs::read(pair.places[who].at(&name)).unwrap(), b"", "{}", pair.name);
            assert_eq!(fs::read(pair.places[1 - who].at(&name)).unwrap(), b"", "{}", pair.name);
        }
    });
}

/// Several threads write adjacent records at the same time. A page that contains bytes of several records must lose
/// none of these bytes.
#[test]
fn concurrent_writes_of_adjacent_records_lose_no_byte() {
    with_pairs(|pair| {
        for round in 0..rounds(6, 10_000) {
            let (name, len) = (format!("f{round}"), [5_000, 47_000, 4_097][round % 3]);
            let ready = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for rank in 0..4 {
                    let (name, ready) = (&name, &ready);
                    scope.spawn(move || {
                        let file = pair.open(usize::from(rank == 3), name);
                        ready.fetch_add(1, SeqCst);
                        while ready.load(SeqCst) < 4 {
                            std::thread::yield_now();
                        }
                        file.write_all_at(&vec![rank as u8 + 1; len], (rank * len) as u64).unwrap();
                        file.sync_all().unwrap();
                    });
                }
            });
            let want: Vec<u8> = (1..5).flat_map(|rank| vec![rank; len]).collect();
            for place in &pair.places {
                let found = fs::read(place.at(&name)).unwrap();
                let wrong = found.iter().zip(&want).position(|(found, want)| found != want);
                assert!(found == want, "{}: {} bytes, the first wrong one at {wrong:?}", pair.name, found.len());
            }
        }
    });
}

/// Several threads write different records to the same range of a file at the same time. Each byte of a record also
/// occurs in another record, at the same offset. After all writes, the range must contain exactly one of the written
/// records.
#[test]
fn one_of_several_concurrent_writes_remains_as_a_whole() {
    // Any two records have some equal bytes, and no mixture of two records equals any of the four records.
    let records = [[1, 1, 1], [1, 2, 2], [2, 1, 2], [2, 2, 1]].map(|three| three.repeat(33));
    with_pairs(|pair| {
        let files = [0, 1, 0, 1].map(|place| pair.open(place, "f"));
        for round in 0..rounds(30, 10_000) {
            let all = Barrier::new(4);
            std::thread::scope(|scope| {
                for (file, record) in files.iter().zip(&records) {
                    let all = &all;
                    scope.spawn(move || {
                        all.wait();
                        file.write_all_at(record, 1_000).unwrap();
                    });
                }
            });
            let found = [0, 1].map(|at| read(&files[at], 1_000, 99));
            assert!(found[0] == found[1] && records.contains(&found[0]), "{}, round {round}: {found:?}", pair.name);
        }
    });
}

/// Writes small numbers, most of whose bytes are zeros, to a file that the other mount has open. The mount must send
/// many of these writes in one list I/O request.
#[test]
fn many_small_changes_of_a_shared_file_are_sent_together() {
    with_pairs(|pair| {
        let (file, other) = (pair.open(0, "f"), pair.open(1, "f"));
        let numbers: Vec<u8> = (0..20_000u64).flat_map(|number| (number % 250 + 1).to_le_bytes()).collect();
        file.write_all_at(&numbers, 0).unwrap();
        assert!(read(&other, 0, numbers.len()) == numbers, "{}", pair.name);
        file.sync_all().unwrap();
    });
}

#[test]
fn a_modification_time_that_a_program_sets_stays() {
    with_pairs(|pair| {
        for round in 0..rounds(3, 300) {
            let (name, who) = (format!("f{round}"), round % 2);
            let file = pair.open(who, &name);
            file.write_all_at(&vec![1; 3 << 20], 0).unwrap();
            let time = Timespec { tv_sec: 1_000_000_000 + round as i64, tv_nsec: 5 };
            let times =
                Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: time };
            rustix::fs::futimens(&file, &times).unwrap();
            drop(file);
            for place in &pair.places {
                let found = fs::metadata(place.at(&name)).unwrap();
                assert_eq!((found.mtime(), found.mtime_nsec()), (time.tv_sec, 5), "{}", pair.name);
            }
        }
    });
}

/// Describes the differences of two byte strings: how many bytes differ, and the first and the last differing byte.
/// Returns `None` if all bytes are equal.
fn differing(found: &[u8], want: &[u8]) -> Option<String> {
    let other = |at: &usize| found.get(*at) != want.get(*at);
    let wrong: Vec<usize> = (0..found.len().max(want.len())).filter(other).collect();
    let show = |at: usize| format!("{:?} for {:?} at {at}", found.get(at), want.get(at));
    Some(format!("{} wrong, {} to {}", wrong.len(), show(*wrong.first()?), show(*wrong.last()?)))
}

/// Maps the file, calls `work` with the mapped bytes, and syncs the mapping with `msync`.
fn mapped(file: &File, len: usize, work: impl FnOnce(&mut [u8])) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    // Read the attributes of the file first, as programs do: they need the length and modification time before they map
    // a file.
    assert_eq!(file.metadata().unwrap().len(), len as u64);
    let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: this creates a new shared mapping of an open file. The code below accesses only its first `len` bytes,
    // and unmaps it after the last access.
    let at = unsafe { mmap(std::ptr::null_mut(), len, access, shared, file, 0) }.unwrap();
    // SAFETY: `at` is a mapping of `len` bytes, which no other thread uses, and which stays mapped until `work` has
    // returned.
    work(unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) });
    // SAFETY: `at` is a mapping of `len` bytes that is still mapped.
    unsafe { msync(at, len, MsyncFlags::SYNC) }.unwrap();
    // SAFETY: `at` is a mapping of `len` bytes, and no reference to these bytes exists any more.
    unsafe { munmap(at, len) }.unwrap();
}

/// Three opens of one file on each of two mounts, with which the test makes calls in random order, and a model of the
/// file's content.
struct Turns<'a> {
    pair: &'a Pair,
    files: Vec<(usize, File)>,
    names: [&'static str; 2],
    model: Vec<u8>,
    random: SeededRandom,
}

impl Turns<'_> {
    fn path(&self, who: usize) -> std::path::PathBuf {
        self.pair.places[who].at(self.names[0])
    }

    fn step(&mut self) -> String {
        let (number, at) = (self.random.below(self.files.len()), self.random.below(60_000));
        let len = [1, 9, 4_096, 5_000, 30_000][self.random.below(5)];
        let (who, file) = &self.files[number];
        let who = *who;
        match self.random.below(24) {
            0..=4 => {
                let byte = 1 + self.random.below(255) as u8;
                file.write_all_at(&vec![byte; len], at as u64).unwrap();
                self.model.resize(self.model.len().max(at + len), 0);
                self.model[at..at + len].fill(byte);
                format!("{number} writes {len} at {at}")
            }
            5..=10 => {
                let found = read(file, at as u64, len);
                let want = self.model.get(at..).unwrap_or_default();
                let want = &want[..want.len().min(len)];
                let wrong = differing(&found, want);
                assert!(wrong.is_none(), "{number} read {} for {} at {at}: {wrong:?}", found.len(), want.len());
                format!("{number} reads {len} at {at}")
            }
            11 => {
                let mut append = OpenOptions::new().append(true).open(self.path(who)).unwrap();
                append.write_all(&vec![7; len]).unwrap();
                self.model.resize(self.model.len() + len, 7);
                format!("mount {who} appends {len}")
            }
            12 => {
                file.set_len(at as u64).unwrap();
                self.model.resize(at, 0);
                format!("{number} truncates to {at}")
            }
            13 => {
                let truncated = OpenOptions::new().write(true).truncate(true).open(self.path(who)).unwrap();
                drop(truncated);
                self.model.clear();
                format!("mount {who} truncates by name")
            }
            14 => {
                file.sync_all().unwrap();
                format!("{number} syncs")
            }
            15 => {
                let again = OpenOptions::new().read(true).write(true).open(self.path(who)).unwrap();
                self.files[number].1 = again;
                format!("{number} closes and opens")
            }
            16 => {
                fs::rename(self.path(who), self.pair.places[who].at(self.names[1])).unwrap();
                self.names.swap(0, 1);
                format!("mount {who} renames")
            }
            17 => {
                let time = Timespec { tv_sec: 1_000_000_000 + at as i64, tv_nsec: 7 };
                let times =
                    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: time };
                rustix::fs::futimens(file, &times).unwrap();
                let other = &self.files[(number + 1) % self.files.len()].1;
                assert_eq!(other.metadata().unwrap().mtime(), time.tv_sec, "the time set by process {number}");
                format!("{number} sets the time")
            }
            18..=22 => self.step_by_pages(number, (at, len)),
            _ => {
                let size = file.metadata().unwrap().len();
                assert_eq!(size, self.model.len() as u64, "the size that process {number} sees");
                format!("{number} looks at the size")
            }
        }
    }
    /// Makes a random call in which the kernel itself reads or maps pages of the file (`copy_file_range`, `sendfile` or
    /// `mmap`). First reads the attributes of the file, because these calls end at the file size that the kernel has
    /// cached.
    fn step_by_pages(&mut self, number: usize, (at, len): (usize, usize)) -> String {
        let (file, size) = (&self.files[number].1, self.model.len());
        assert_eq!(file.metadata().unwrap().len(), size as u64);
        let end = size.min(at + len);
        match self.random.below(4) {
            0 => {
                let (mut source, mut target, to) = (0, size as u64 / 2, size / 2);
                let asked = len.min(to);
                let copied =
                    rustix::fs::copy_file_range(file, Some(&mut source), file, Some(&mut target), asked).unwrap();
                assert_eq!(copied, asked);
                self.model.copy_within(..copied, to);
                format!("{number} copies {copied} to {to}")
            }
            1 => {
                let copy = tempfile::tempfile().unwrap();
                let sent = rustix::fs::sendfile(&copy, file, Some(&mut (at as u64)), len).unwrap();
                let wrong = differing(&read(&copy, 0, len), self.model.get(at..end).unwrap_or_default());
                assert!(wrong.is_none(), "{number} sends {sent} from {at} to {end}: {wrong:?}");
                format!("{number} sends {sent} from {at}")
            }
            stores => {
                if at < end {
                    let model = &mut self.model[at..end];
                    mapped(file, size, |bytes| {
                        let wrong = differing(&bytes[at..end], model);
                        assert!(wrong.is_none(), "{number} finds in a mapping from {at} to {end}: {wrong:?}");
                        if stores == 2 {
                            bytes[at..end].fill(3);
                            model.fill(3);
                        }
                    });
                }
                format!("{number} maps {at} to {end}, and stores there: {}", stores == 2)
            }
        }
    }
}

#[test]
fn calls_in_turns_on_two_mounts_behave_as_on_one_machine() {
    let seed = seed();
    with_pairs(|pair| {
        let files = (0..6).map(|number| (number % 2, pair.open(number % 2, "f"))).collect();
        let mut turns = Turns { pair, files, names: ["f", "g"], model: Vec::new(), random: SeededRandom(seed) };
        let mut last: Vec<String> = Vec::new();
        for step in 0..rounds(400, 100_000) {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| turns.step()));
            match done {
                Ok(done) => last.push(done),
                Err(error) => {
                    let from = last.len().saturating_sub(30);
                    println!("{}, step {step}, after {:#?}", pair.name, &last[from..]);
                    std::panic::resume_unwind(error);
                }
            }
        }
    });
}

/// Programs on two mounts write and read six ranges of a file at the same time. For each range, an order must exist
/// that explains the results of all calls. Most rounds make a few calls on a file that all programs have just opened;
/// one round makes many calls on one file.
#[test]
fn calls_at_the_same_time_have_an_order() {
    let seed = seed();
    with_pairs(|pair| {
        for round in 0..rounds(10, 1_000) {
            let (history, name) = (History::new(6), format!("f{}", round % 8));
            drop(File::create(pair.places[round % 2].at(&name)).unwrap());
            let calls = if round == 0 { rounds(120, 10_000) } else { 15 };
            std::thread::scope(|scope| {
                for rank in 0..4usize {
                    let (history, name) = (&history, &name);
                    let mut random = SeededRandom(seed.wrapping_add((round * 4 + rank) as u64));
                    scope.spawn(move || {
                        let file = pair.open(rank % 2, name);
                        for _ in 0..calls {
                            call(&file, (history, rank), &mut random);
                        }
                    });
                }
            });

            // Check linearizability only for mounts without a page cache. A page cache shows a write to programs on its
            // own mount before other mounts see the write.
            history.check([DEFAULT, UP].contains(&pair.name));
        }
    });
}

/// Writes or reads a random one of six ranges of the file, and records the call in `history`.
fn call(file: &File, (history, rank): (&History, usize), random: &mut SeededRandom) {
    let slot = Slot(random.below(6));
    let place = slot.0 as u64 * 1_000;
    if random.below(3) == 0 {
        let write = history.begin_write(slot, rank);
        file.write_all_at(&write.value().to_be_bytes(), place).unwrap();
        history.end_write(write);
    } else {
        let asked = history.begin_read(slot, rank);
        let mut value = [0; 8];
        let found = read(file, place, 8);
        value[..found.len()].copy_from_slice(&found);
        history.end_read(asked, u64::from_be_bytes(value));
    }
}

/// A new mapping of a file must show the bytes that the other mount has written. After `msync`, the other mount must
/// read the bytes that a program has stored through the mapping.
#[test]
fn msync_and_new_mappings_exchange_bytes_between_mounts() {
    const LEN: usize = 8_192;
    with_pairs(|pair| {
        let (mine, theirs) = (pair.open(0, "f"), pair.open(1, "f"));
        for round in (2..10u8).step_by(2) {
            theirs.write_all_at(&[round - 1; LEN], 0).unwrap();
            mapped(&mine, LEN, |bytes| {
                assert_eq!((bytes[0], bytes[LEN - 1]), (round - 1, round - 1), "{}", pair.name);
                bytes.fill(round);
            });
            assert!(read(&theirs, 0, LEN) == [round; LEN], "{}", pair.name);
        }
    });
}

/// With `sharing=close-to-open`, a mount must gather writes even while another mount has the file open.
#[test]
fn sharing_close_to_open_gathers_writes_of_a_shared_file() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = |name: &str| {
        TestMount::new(&cluster, &dir.path().join(name), &["-o", "sharing=close-to-open,gather_delay=max"])
    };
    let (one, two) = (place("one"), place("two"));
    let flags = OFlags::RDWR.bits() as i32;
    let open = |path: &Path| {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path).unwrap()
    };
    let (mine, theirs) = (open(&one.at("f")), open(&two.at("f")));
    mine.write_all_at(b"later", 0).unwrap();
    assert_eq!(read(&theirs, 0, 9), b"");
    drop(mine);
    assert_eq!(fs::read(two.at("f")).unwrap(), b"later");
    drop(theirs);
    one.unmount();
    two.unmount();
}
