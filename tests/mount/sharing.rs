//! Changes of files and names on one mount, as another mount of the same file system sees them.

use crate::cluster::Cluster;
use crate::test_mount::{TestMount, can_mount, full};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Returns a cluster with two mounts. Returns `None` if this process cannot mount file systems.
pub fn two() -> Option<(tempfile::TempDir, Cluster, [TestMount; 2])> {
    two_with(&[])
}

/// Returns a cluster with two mounts like [`two`]. Both mounts have the options `options`.
fn two_with(options: &[&str]) -> Option<(tempfile::TempDir, Cluster, [TestMount; 2])> {
    if !can_mount() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = |name: &str| TestMount::new(&cluster, &dir.path().join(name), options);
    let places = [place("one"), place("two")];
    Some((dir, cluster, places))
}

/// The kernel keeps its cached pages of a file when it receives new attributes of the file. So an open must make the
/// kernel drop pages that another mount has changed.
#[test]
fn an_open_discards_cached_pages_that_another_mount_has_changed() {
    let Some((_dir, _cluster, [one, two])) = two_with(&["-o", "access=page"]) else { return };
    for round in 0..10u8 {
        let (writer, reader) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        // Give the text the same length in each round, because a new length alone may make the kernel drop cached
        // pages. Make the text longer than the read-ahead.
        let text = vec![round + 1; 300_000];
        fs::write(writer.at("f"), &text).unwrap();
        rustix::fs::statx(CWD, reader.at("f"), AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).unwrap();
        assert!(fs::read(reader.at("f")).unwrap() == text, "round {round}");
        assert!(fs::read(writer.at("f")).unwrap() == text, "round {round}");
    }
    one.unmount();
    two.unmount();
}

#[test]
fn an_open_sees_data_closed_on_another_mount() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    for round in 0..20u32 {
        let (writer, reader) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let text = format!("round {round} {}", "x".repeat(round as usize * 1000));
        fs::write(writer.at("f"), &text).unwrap();
        let file = File::open(reader.at("f")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), text.len() as u64, "round {round}");
        let mut found = vec![0; text.len() + 1];
        let len = file.read_at(&mut found, 0).unwrap();
        assert_eq!(std::str::from_utf8(&found[..len]).unwrap(), text);
    }
    // After a failed lookup of a name, the mount must find the name when the other mount has created it.
    assert_eq!(fs::metadata(two.at("g")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::write(one.at("g"), b"now").unwrap();
    assert_eq!(fs::read(two.at("g")).unwrap(), b"now");
    one.unmount();
    two.unmount();
}

/// A guard that sets its flag if this thread panics, so that the other threads do not wait for this thread.
struct TellsOfFailure<'a>(&'a AtomicBool);

impl Drop for TellsOfFailure<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), SeqCst);
    }
}

/// Reads the growing output of a program on another machine, as `tail -f` does.
#[test]
fn another_mount_sees_data_that_is_neither_synced_nor_closed() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    let mut log = File::create(one.at("log")).unwrap();
    let seen = File::open(two.at("log")).unwrap();
    for round in 1..=3 {
        log.write_all(b"a line\n").unwrap();
        let text = "a line\n".repeat(round);
        // Wait until the file has its new length. From then on, its content must contain the new line.
        while seen.metadata().unwrap().len() < text.len() as u64 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut found = vec![0; text.len()];
        seen.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(String::from_utf8(found).unwrap(), text);
    }
    drop((log, seen));
    one.unmount();
    two.unmount();
}

/// A program only reads a file that it has open, while the other mount extends or truncates the file. After each
/// change, the program must find the current end of the file, on the direct path and on the mgr path.
#[test]
fn a_reader_finds_the_end_that_another_mount_has_made() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    for len in [100, 5_000, 300_000] {
        let path = one.at("f");
        fs::write(&path, vec![b'a'; len]).unwrap();
        let reader = File::open(two.at("f")).unwrap();
        let at = |offset: usize| {
            let mut found = [0; 100];
            let len = reader.read_at(&mut found, offset as u64).unwrap();
            String::from_utf8(found[..len].to_vec()).unwrap()
        };
        assert_eq!(at(len - 60), "a".repeat(60));
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&[b'b'; 20]).unwrap();
        while at(len - 60) != "a".repeat(60) + &"b".repeat(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
        OpenOptions::new().write(true).open(&path).unwrap().set_len(10).unwrap();
        assert_eq!((at(len - 60), at(0)), (String::new(), "a".repeat(10)), "{len}");
        drop(reader);
        fs::remove_file(&path).unwrap();
    }
    one.unmount();
    two.unmount();
}

/// The mounts look up missing names so often that they start to cache failed lookups. When one mount has created such a
/// name, a lookup on the other mount must find the name.
#[test]
fn a_missing_name_is_found_once_another_mount_creates_it() {
    const DIRS: usize = 30;
    let Some((_dir, _cluster, places)) = two() else { return };
    let (made, failed): ([AtomicUsize; 2], _) = Default::default();
    for dir in 0..DIRS {
        fs::create_dir(places[0].at(&format!("d{dir}"))).unwrap();
    }
    std::thread::scope(|scope| {
        for me in 0..2 {
            let (place, made, failed) = (&places[me], &made, &failed);
            scope.spawn(move || {
                let _told = TellsOfFailure(failed);
                for dir in 0..DIRS {
                    let path = |who: usize| place.at(&format!("d{dir}/{who}"));
                    // Both mounts create a name in each directory. One mount creates its name while the other mount
                    // looks this name up.
                    let before = if dir % 2 == me { 40 } else { 5 };
                    let mut rounds = 0;
                    loop {
                        let others = made[1 - me].load(SeqCst) > dir;
                        let there = path(1 - me).symlink_metadata().is_ok();
                        assert!(there || !others, "directory {dir}: the name was created before the lookup");
                        if rounds == before {
                            match dir % 3 {
                                0 => drop(File::create(path(me)).unwrap()),
                                1 => fs::create_dir(path(me)).unwrap(),
                                _ => symlink("x", path(me)).unwrap(),
                            }
                            path(me).symlink_metadata().unwrap();
                            made[me].store(dir + 1, SeqCst);
                        }
                        if (rounds >= before && others) || failed.load(SeqCst) {
                            break;
                        }
                        rounds += 1;
                    }
                }
            });
        }
    });
    places.into_iter().for_each(TestMount::unmount);
}

/// A removed file still exists while a program has it open, and the kernel caches the name of the file for a while. An
/// open by the name must not open the removed file.
#[test]
fn a_file_removed_by_another_mount_is_not_opened_by_its_old_name() {
    let Some((_dir, _cluster, [one, two])) = two_with(&["--entry-timeout", "1000"]) else { return };
    for round in 0..20u32 {
        let (mine, others) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        fs::write(mine.at("f"), b"old").unwrap();
        let kept = [mine, others].map(|place| File::open(place.at("f")).unwrap());
        let text = format!("round {round}");
        if round % 4 < 2 {
            fs::write(others.at("tmp"), &text).unwrap();
            fs::rename(others.at("tmp"), others.at("f")).unwrap();
            assert_eq!(fs::read_to_string(mine.at("f")).unwrap(), text);
        } else {
            fs::remove_file(others.at("f")).unwrap();
            if round % 8 < 4 {
                assert_eq!(File::open(mine.at("f")).unwrap_err().kind(), ErrorKind::NotFound);
            }
            // Writing to the name `f` creates a new file, or truncates the file that now has this name. This must not
            // change the bytes of the removed file, which the test still has open.
            fs::write(mine.at("f"), &text).unwrap();
            assert_eq!(fs::read_to_string(others.at("f")).unwrap(), text);
        }
        for file in &kept {
            let mut found = [0; 4];
            assert_eq!((file.read_at(&mut found, 0).unwrap(), &found[..3]), (3, &b"old"[..]), "round {round}");
            // A program must be able to open a file without a name again, through its descriptor in `/proc`.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            assert_eq!(fs::read(path).unwrap(), b"old");
        }
        drop(kept);
        fs::remove_file(mine.at("f")).unwrap();
    }
    one.unmount();
    two.unmount();
}

#[test]
fn appenders_do_not_overwrite_each_other() {
    let Some((_dir, cluster, places)) = two() else { return };
    let lines = 40;
    std::thread::scope(|scope| {
        for (n, place) in places.iter().flat_map(|place| [(0, place), (1, place)]) {
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(place.at("log")).unwrap();
                for line in 0..lines {
                    file.write_all(format!("{n} {line} {}\n", "=".repeat(line * 7 % 90)).as_bytes()).unwrap();
                }
            });
        }
    });
    let log = String::from_utf8(cluster.run(["cat", "/log"])).unwrap();
    let mut found: Vec<&str> = log.lines().collect();
    found.sort_unstable();
    let mut want: Vec<String> = (0..4)
        .flat_map(|n| (0..lines).map(move |line| format!("{} {line} {}", n % 2, "=".repeat(line * 7 % 90))))
        .collect();
    want.sort_unstable();
    assert!(found == want, "every line is complete and occurs once: {found:?}");
    places.into_iter().for_each(TestMount::unmount);
}

/// Applies one random change or read to the file. Applies the same change to `model`, which the file must equal. The
/// caller holds the lock of the file. `draw` returns the random numbers.
fn step(file: &File, model: &mut Vec<u8>, draw: &mut impl FnMut(u64) -> u64) -> String {
    const MOST: u64 = 600_000;
    let (at, len) = (draw(MOST) as usize, (1 << draw(18)) + draw(300) as usize);
    match draw(10) {
        0 => {
            file.set_len(at as u64).unwrap();
            model.resize(at, 0);
            format!("cut to {at}")
        }
        1..5 => {
            let byte = draw(255) as u8 + 1;
            file.write_all_at(&vec![byte; len], at as u64).unwrap();
            let end = at + len;
            model.resize(model.len().max(end), 0);
            model[at..end].fill(byte);
            format!("wrote {byte} at {at} to {end}")
        }
        5 => {
            file.sync_all().unwrap();
            "synced".into()
        }
        _ => {
            let mut found = vec![0; len];
            let mut got = 0;
            while got < len {
                match file.read_at(&mut found[got..], (at + got) as u64).unwrap() {
                    0 => break,
                    more => got += more,
                }
            }
            let (from, to) = (at.min(model.len()), (at + len).min(model.len()));
            let differs = found[..got].iter().zip(&model[from..to]).position(|(a, b)| a != b);
            assert!(got == to - from && differs.is_none(), "read {got} of {len} at {at}, first difference {differs:?}");
            format!("read {len} at {at}")
        }
    }
}

/// Two threads, each with its own mount, alternate under a lock and must see the same file. They truncate, read, and
/// write below and above the write threshold.
#[test]
fn a_file_used_by_two_mounts_under_locks_equals_its_model() {
    let Some((_dir, cluster, places)) = two() else { return };
    File::create(places[0].at("f")).unwrap();
    let steps: u64 = if full() { 50_000 } else { 200 };
    let seed: u64 = std::env::var("WEIR_TEST_SEED").map_or(7, |seed| seed.parse().expect("a number"));
    let shared = std::sync::Mutex::new((Vec::new(), Vec::new()));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        std::thread::scope(|scope| {
            for (who, place) in places.iter().enumerate() {
                let shared = &shared;
                scope.spawn(move || {
                    let file = OpenOptions::new().read(true).write(true).open(place.at("f")).unwrap();
                    let mut state = seed * 2 + who as u64 + 1;
                    // The SplitMix64 generator suffices to select changes and reads, and gives the same numbers on
                    // every machine.
                    let mut draw = |below: u64| {
                        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                        (z ^ (z >> 31)) % below
                    };
                    for _ in 0..steps {
                        rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
                        let (model, log): &mut (Vec<u8>, Vec<String>) = &mut shared.lock().unwrap();
                        let done = step(&file, model, &mut draw);
                        log.push(format!("{who} {done}"));
                        rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
                    }
                });
            }
        });
    }));
    let (model, log) = shared.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let last = &log[log.len().saturating_sub(20)..];
    assert!(outcome.is_ok(), "seed {seed} (WEIR_TEST_SEED), after {} steps, the last of them {last:#?}", log.len());
    assert!(cluster.run(["cat", "/f"]) == model, "seed {seed}");
    places.into_iter().for_each(TestMount::unmount);
}

/// Starts a process that locks a file with flock(1), prints a line when it has the lock, and waits for a line of input.
fn locker(path: &std::path::Path, options: &[&str]) -> Child {
    let mut command = Command::new("flock");
    command.args(options).arg(path).args(["sh", "-c", "echo locked; read line"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("flock(1) is part of util-linux")
}

fn line(child: &mut Child) -> String {
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
    line
}

#[test]
fn locks_hold_across_mounts_and_a_signal_ends_the_wait() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    File::create(one.at("f")).unwrap();
    let mut holder = locker(&one.at("f"), &[]);
    assert_eq!(line(&mut holder), "locked\n");
    let refused = Command::new("flock").args(["-n", "-E", "7"]).arg(two.at("f")).arg("true").status().unwrap();
    assert_eq!(refused.code(), Some(7), "the other mount sees the lock");
    let mut impatient = locker(&two.at("f"), &[]);
    // Wait until the flock(1) process sleeps in the kernel, because it then waits for the lock. SIGTERM must end this
    // wait.
    let state = || fs::read_to_string(format!("/proc/{}/wchan", impatient.id())).unwrap_or_default();
    while !state().contains("request_wait") && !state().contains("fuse") {
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&impatient);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(!impatient.wait().unwrap().success(), "a signal ends the wait");
    let mut next = locker(&two.at("f"), &[]);
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(holder.wait().unwrap().success());
    assert_eq!(line(&mut next), "locked\n", "the lock passes to the next process");
    next.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(next.wait().unwrap().success());
    one.unmount();
    two.unmount();
}

#[test]
fn handled_signals_do_not_interrupt_system_calls() {
    let Some((_dir, cluster, [one, two])) = two() else { return };
    let script = r#"
        use Time::HiRes "ualarm";
        my ($dir, $seen) = (shift, 0);
        $SIG{ALRM} = sub { $seen++ };
        ualarm(1000, 700);
        for (my $n = 0; $n < 300 || $seen < 300; $n++) {
            my $name = "$dir/name" . $n % 9;
            lstat($name) or die "lstat: $!";
            open(my $file, "+<", $name) or die "open: $!";
            sysread($file, my $bytes, 100000) // die "read: $!";
            syswrite($file, "x") // die "write: $!";
            close($file) or die "close: $!";
            link($name, "$name.too") && unlink("$name.too") or die "link: $!";
            opendir(my $entries, $dir) or die "opendir: $!";
            (() = readdir($entries)) == 11 or die "readdir: $!";
        }
        ualarm(0);
    "#;
    // Make the files so long that the program must wait for some of their bytes.
    (0..9).for_each(|n| fs::write(one.at(&format!("name{n}")), vec![n; 200_000]).unwrap());
    crate::cluster::succeed(Command::new("perl").args(["-e", script]).arg(two.at("")));
    one.unmount();
    two.unmount();
    drop(cluster);
}

#[test]
fn a_killed_process_does_not_wait_for_servers() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    cluster.put("/f", &[7; 100_000], &[]);
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), &["--retry-timeout", "86400", "--no-short-circuit"]);
    // Before the fatal signal, send a signal that the program handles. The kernel reports (FUSE INTERRUPT) only the
    // first signal during a request to the mount, so the mount does not learn of the fatal signal.
    let script = r#"
        $SIG{USR1} = sub { };
        open(my $file, "<", shift) or die $!;
        $| = 1;
        print "open\n";
        readline;
        sysread($file, my $bytes, 100000) or die $!;
    "#;
    let mut perl = Command::new("perl");
    perl.args(["-e", script]).arg(place.at("f"));
    let mut waits = perl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line(&mut waits), "open\n");
    crate::cluster::signal(&cluster.child, rustix::process::Signal::STOP);
    let stopped = || {
        let threads = fs::read_dir(format!("/proc/{}/task", cluster.child.id())).unwrap();
        let mut states = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("status")).unwrap());
        states.all(|status| status.contains("\nState:\tT"))
    };
    while !stopped() {
        std::thread::yield_now();
    }
    waits.stdin.take().unwrap().write_all(b"\n").unwrap();
    let path = format!("/proc/{}/wchan", waits.id());
    let wchan = || fs::read_to_string(&path).unwrap_or_default();
    // Wait until `wchan` names a kernel function in which the process waits for the mount. In a read through the page
    // cache, this may be a function of the page cache, whose name contains `folio`.
    while !["request_wait", "fuse", "folio"].iter().any(|place| wchan().contains(place)) {
        assert!(waits.try_wait().unwrap().is_none(), "nobody can read it");
    }
    crate::cluster::signal(&waits, rustix::process::Signal::USR1);
    crate::cluster::signal(&waits, rustix::process::Signal::KILL);
    assert!(!waits.wait().unwrap().success());
    crate::cluster::signal(&cluster.child, rustix::process::Signal::CONT);
    // Unmount while the servers run, because without servers the mount retries for the whole `--retry-timeout`.
    let process = PathBuf::from(format!("/proc/{}", place.daemon().as_raw_nonzero()));
    place.unmount();
    while process.exists() {
        std::thread::yield_now();
    }
}

/// Moves this thread to the processor `number`.
fn on_processor(number: usize) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    set.set(number);
    // Ignore the error: if this process may not use the processor, the thread stays on its current processor.
    let _ = sched_setaffinity(None, &set);
}

#[test]
fn flock_works_whatever_the_open_mode() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    fs::write(one.at("f"), b"what is read").unwrap();
    fs::set_permissions(one.at("f"), fs::Permissions::from_mode(0o444)).unwrap();
    let [mut first, second] = [&one, &two].map(|place| File::open(place.at("f")).unwrap());
    let taken = |file: &File| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    first.lock_shared().unwrap();
    second.lock_shared().unwrap();
    assert!(matches!(first.try_lock(), Err(TryLockError::WouldBlock)));
    second.unlock().unwrap();
    first.lock().unwrap();
    assert!(taken(&second) && matches!(second.try_lock(), Err(TryLockError::WouldBlock)));
    let mut found = String::new();
    first.read_to_string(&mut found).unwrap();
    assert_eq!(found, "what is read");
    // The holder of a shared lock must be able to convert it to an exclusive lock, and back.
    first.lock_shared().unwrap();
    second.lock_shared().unwrap();
    second.unlock().unwrap();
    first.lock().unwrap();
    assert!(taken(&second));
    // Closing the file must release its lock. A file that is open only for writing must be able to have a shared lock.
    drop(first);
    second.lock().unwrap();
    let writer = OpenOptions::new().write(true).open(one.at("f")).unwrap();
    assert!(taken(&writer));
    second.unlock().unwrap();
    writer.lock_shared().unwrap();
    assert!(!taken(&second));
    drop((second, writer));
    // When `close` returns, the locks of the descriptor must be released, although the kernel does not wait for
    // RELEASE. The next lock request may even come from another processor, and so through another queue of the mount.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for round in 0..200 {
        let [holder, next] = [(), ()].map(|()| File::open(one.at("f")).unwrap());
        holder.lock().unwrap();
        on_processor(round % processors);
        drop(holder);
        on_processor((round + 1) % processors);
        next.try_lock().unwrap();
    }
    one.unmount();
    two.unmount();
}

#[test]
fn fcntl_locks_belong_to_the_process_not_to_the_descriptor() {
    use rustix::fs::FlockOperation::{NonBlockingLockExclusive, NonBlockingUnlock};
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    fs::write(one.at("f"), b"").unwrap();
    let open = |place: &TestMount| OpenOptions::new().read(true).write(true).open(place.at("f")).unwrap();
    let lock = |file: &File| rustix::fs::fcntl_lock(file, NonBlockingLockExclusive).is_ok();
    let (mut first, second, others) = (open(&one), open(&one), open(&two));
    assert!(lock(&first) && !lock(&others));
    // When the process unlocks through `second`, the bytes that it wrote through `first` under the lock must become
    // visible to the other mount.
    first.write_all(b"written under it").unwrap();
    rustix::fs::fcntl_lock(&second, NonBlockingUnlock).unwrap();
    assert!(lock(&others));
    assert_eq!(fs::read(two.at("f")).unwrap(), b"written under it");
    // This process locked the file on the second mount. By POSIX, the close in `fs::read` has released this lock, so
    // the lock on the first mount succeeds.
    assert!(lock(&first) && !lock(&others));
    // When a process closes any descriptor of the file, the mount must release the POSIX locks of this process on the
    // file, even if the descriptor was open only for reading.
    drop(File::open(one.at("f")).unwrap());
    assert!(lock(&others) && !lock(&first));
    drop((first, second, others));
    one.unmount();
    two.unmount();
}

#[test]
fn ofd_locks_end_only_when_their_own_open_is_closed() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    fs::write(one.at("f"), b"").unwrap();
    // In the script, 37 is F_OFD_SETLK and 1 is F_WRLCK; the lock covers the whole file. `close` does not wait for
    // RELEASE, so the mount may release the locks of the closed file shortly after `close` has returned.
    let script = r#"
        my ($here, $there) = @ARGV;
        sub file { open(my $file, "+<", shift) or die $!; $file }
        sub locked { my $lock = pack("s s x4 q q i x4", 1, 0, 0, 0, 0); fcntl(shift, 37, $lock) }
        my ($first, $second, $other, $far) = (file($here), file($here), file($here), file($there));
        locked($first) or die "first: $!";
        !locked($second) && !locked($far) or die "two processes have the lock at the same time";
        close($other);
        !locked($second) && !locked($far) or die "another open was closed";
        close($first);
        1 until locked($far);
        !locked($second) or die "two processes have the lock at the same time";
    "#;
    let mut perl = Command::new("perl");
    crate::cluster::succeed(perl.args(["-e", script]).args([one.at("f"), two.at("f")]));
    one.unmount();
    two.unmount();
}

/// A program on one mount has a directory open, and the other mount removes the directory. The program must then read
/// an empty directory, as in a local file system.
#[test]
fn an_open_directory_is_empty_after_another_mount_removes_it() {
    let Some((_dir, _cluster, [one, two])) = two() else { return };
    let deep = "d/1/2/3/4/5/6";
    fs::create_dir_all(one.at(deep)).unwrap();
    fs::write(one.at(deep).join("f"), b"x").unwrap();
    // Set `O_CLOEXEC`, so that no program that another test starts inherits the descriptor and keeps the mount busy.
    let dir = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: PathBuf| rustix::fs::open(path, dir, Mode::empty()).unwrap();
    let (held, mut other) = (open(two.at(deep)), rustix::fs::Dir::new(open(two.at(deep))).unwrap());
    let names = |dir: &mut rustix::fs::Dir| dir.by_ref().filter(|entry| !is_dot(entry)).collect::<Vec<_>>();
    assert_eq!(names(&mut other).len(), 1);
    // Look up the name `f`, so that the kernel has the name cached from now on.
    rustix::fs::statat(&held, "f", AtFlags::empty()).unwrap();
    fs::remove_dir_all(one.at("d")).unwrap();
    assert_eq!(rustix::fs::unlinkat(&held, "f", AtFlags::empty()), Err(Errno::NOENT));
    assert_eq!(rustix::fs::unlinkat(&held, "g", AtFlags::empty()), Err(Errno::NOENT));
    assert_eq!(rustix::fs::mkdirat(&held, "g", Mode::RWXU), Err(Errno::NOENT));
    let made = rustix::fs::openat(&held, "g", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR);
    assert_eq!(made.map(drop), Err(Errno::NOENT));
    other.rewind();
    let found = names(&mut other);
    assert!(found.iter().all(|entry| matches!(entry, Err(Errno::NOENT))), "{found:?}");
    // If the kernel has cached a directory that no longer exists, the kernel must look up the path again.
    fs::create_dir_all(one.at("d/1")).unwrap();
    fs::write(two.at("d/1/c"), "").unwrap();
    fs::remove_dir_all(one.at("d")).unwrap();
    fs::create_dir_all(one.at("d/1")).unwrap();
    for name in ["a", "b"] {
        fs::write(two.at("d/1").join(name), name).unwrap();
    }
    let names = fs::read_dir(one.at("d/1")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<BTreeSet<_>>(), ["a", "b"].map(OsString::from).into());
    one.unmount();
    drop((held, other));
    two.unmount();
}

fn is_dot(entry: &rustix::io::Result<rustix::fs::DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."))
}
