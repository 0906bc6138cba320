//! Random system calls on a mount and in a local directory, which must have the same results.
//!
//! The calls use several descriptors of a few files.

use crate::files::mounted;
use crate::test_mount::full;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, fallocate, fstat, ftruncate, linkat, openat,
    renameat_with, seek, statat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite, read, write};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The names that the files in the directory have or can get.
const NAMES: [&str; 5] = ["a", "b", "c", "d/e", "d/f"];
/// Maximum number of descriptors that are open at the same time.
const OPEN_MAX: usize = 8;

/// One of the two file systems to compare: a directory, and the open descriptors of files in it.
struct Side {
    dir: PathBuf,
    open: Vec<OwnedFd>,
}

/// A system call. The first number of each variant selects an open descriptor or a name.
#[derive(Clone, Debug)]
enum Call {
    Open(usize, u32),
    Close(usize),
    Pread(usize, u64, usize),
    Read(usize, usize),
    Pwrite(usize, u64, Vec<u8>),
    Write(usize, Vec<u8>),
    Seek(usize, u64),
    Ftruncate(usize, u64),
    Truncate(usize, u64),
    Fstat(usize),
    Stat(usize),
    Rename(usize, usize, u32),
    Link(usize, usize),
    Unlink(usize),
    Zero(usize, u64, u64),
    Sync(usize),
    /// Reads a byte through a shared mapping of its page. With `Some(value)`, then stores `value` in the byte.
    Map(usize, u64, Option<u8>),
    Whole(usize),
}

/// The result of a system call: a number and bytes, or an error.
type Seen = Result<(i64, Vec<u8>), Errno>;

impl Side {
    fn at(&self, name: usize) -> PathBuf {
        self.dir.join(NAMES[name])
    }

    fn carry_out(&mut self, call: &Call) -> Seen {
        let nothing = |()| (0, Vec::new());
        let number = |n: usize| (n as i64, Vec::new());
        let told =
            |stat: rustix::fs::Stat| (stat.st_size, [stat.st_mode, stat.st_nlink as u32].map(|n| n as u8).into());
        match call {
            Call::Open(name, flags) => {
                // Set `O_CLOEXEC`, so that no program that another test starts inherits the descriptor and keeps the
                // mount busy.
                let flags = OFlags::from_bits_retain(*flags) | OFlags::CLOEXEC;
                let made = openat(CWD, self.at(*name), flags, Mode::from_raw_mode(0o644))?;
                self.open.push(made);
                Ok((0, Vec::new()))
            }
            Call::Close(n) => {
                drop(self.open.remove(*n));
                Ok((0, Vec::new()))
            }
            Call::Pread(n, at, len) => {
                let mut found = vec![0; *len];
                let got = pread(&self.open[*n], &mut found[..], *at)?;
                found.truncate(got);
                Ok((got as i64, found))
            }
            Call::Read(n, len) => {
                let mut found = vec![0; *len];
                let got = read(&self.open[*n], &mut found[..])?;
                found.truncate(got);
                Ok((got as i64, found))
            }
            Call::Pwrite(n, at, data) => pwrite(&self.open[*n], data, *at).map(number),
            Call::Write(n, data) => write(&self.open[*n], data).map(number),
            Call::Seek(n, at) => seek(&self.open[*n], SeekFrom::Start(*at)).map(|at| (at as i64, Vec::new())),
            Call::Ftruncate(n, len) => ftruncate(&self.open[*n], *len).map(nothing),
            Call::Truncate(name, len) => {
                let open = openat(CWD, self.at(*name), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                ftruncate(&open, *len).map(nothing)
            }
            Call::Fstat(n) => fstat(&self.open[*n]).map(told),
            Call::Stat(name) => statat(CWD, self.at(*name), AtFlags::SYMLINK_NOFOLLOW).map(told),
            Call::Rename(from, to, flags) => {
                let flags = RenameFlags::from_bits_retain(*flags);
                renameat_with(CWD, self.at(*from), CWD, self.at(*to), flags).map(nothing)
            }
            Call::Link(from, to) => linkat(CWD, self.at(*from), CWD, self.at(*to), AtFlags::empty()).map(nothing),
            Call::Unlink(name) => unlinkat(CWD, self.at(*name), AtFlags::empty()).map(nothing),
            Call::Zero(n, at, len) => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.open[*n], how, *at, *len).map(nothing)
            }
            Call::Sync(n) => rustix::fs::fsync(&self.open[*n]).map(nothing),
            Call::Map(n, at, set) => through_mapping(&self.open[*n], *at, *set),
            Call::Whole(name) => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                let open = File::from(openat(CWD, self.at(*name), flags, Mode::empty())?);
                let len = open.metadata().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?.len();
                let mut found = vec![0; len as usize];
                let read = open.read_exact_at(&mut found, 0);
                read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                Ok((len as i64, found))
            }
        }
    }
}

/// Reads a byte through a shared mapping. If `set` has a value, then stores this value in the byte. Does nothing beyond
/// the end of the file.
fn through_mapping(open: &OwnedFd, at: u64, set: Option<u8>) -> Seen {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    if at >= fstat(open)?.st_size as u64 {
        return Ok((-1, Vec::new()));
    }
    let prot = if set.is_some() { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let (page, within) = (at / 4096 * 4096, (at % 4096) as usize);
    // SAFETY: this is a new mapping of one page that the file contains. The block accesses one byte in it, and unmaps
    // it at its end.
    let found = unsafe {
        let mapped = mmap(std::ptr::null_mut(), 4096, prot, MapFlags::SHARED, open, page)?;
        let byte = mapped.cast::<u8>().add(within);
        let found = byte.read_volatile();
        if let Some(set) = set {
            byte.write_volatile(set);
        }
        munmap(mapped, 4096)?;
        found
    };
    Ok((0, vec![found]))
}

/// Returns a random system call for a file system with `open` open descriptors.
fn draw_call(open: usize, draw: &mut impl FnMut(u64) -> u64) -> Call {
    let flags = {
        let access = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR][draw(3) as usize];
        let more = [
            (OFlags::CREATE, 2),
            (OFlags::TRUNC, 8),
            (OFlags::APPEND, 4),
            (OFlags::CREATE.union(OFlags::EXCL), 15),
            (OFlags::SYNC, 15),
        ];
        more.iter().fold(access, |flags, (flag, in_so_many)| if draw(*in_so_many) == 0 { flags | *flag } else { flags })
    };
    let at = match draw(4) {
        0 => draw(100),
        1 => draw(60) * 4096,
        _ => draw(300_000),
    };
    let len = ((1 << draw(17)) + draw(50)) as usize;
    let data = (0..len as u64).map(|n| (at + n * 7 + draw(1)) as u8 | 1).collect();
    let (name, other) = (draw(NAMES.len() as u64) as usize, draw(NAMES.len() as u64) as usize);
    if open == 0 {
        return Call::Open(name, flags.bits());
    }
    let n = draw(open as u64) as usize;
    match draw(40) {
        0..6 if open < OPEN_MAX => Call::Open(name, flags.bits()),
        0..8 => Call::Close(n),
        8..12 => Call::Pread(n, at, len),
        12..14 => Call::Read(n, len),
        14..18 => Call::Pwrite(n, at, data),
        18..21 => Call::Write(n, data),
        21 => Call::Seek(n, at),
        22 => Call::Ftruncate(n, at),
        23 => Call::Truncate(name, at),
        24..26 => Call::Fstat(n),
        26 => Call::Stat(name),
        27..29 => Call::Rename(name, other, draw(3) as u32),
        29 => Call::Link(name, other),
        30 => Call::Unlink(name),
        31 => Call::Zero(n, at, len as u64),
        32 => Call::Sync(n),
        33..36 => Call::Map(n, at, (draw(2) == 0).then_some(draw(256) as u8)),
        _ => Call::Whole(name),
    }
}

fn side(dir: &Path) -> Side {
    std::fs::create_dir_all(dir.join("d")).unwrap();
    Side { dir: dir.to_owned(), open: Vec::new() }
}

/// `WEIR_TEST_SEED` sets the seed of the first round. With `WEIR_TEST_SCALE=full`, the test makes a hundred times as
/// many calls.
#[test]
fn random_calls_have_the_same_outcome_as_on_a_local_file_system() {
    let Some((_dir, _cluster, place)) = mounted(&[]) else { return };
    let local = tempfile::tempdir().unwrap();
    let seed: u64 = std::env::var("WEIR_TEST_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let rounds = if full() { 300 } else { 3 };
    for seed in seed..seed + rounds {
        let mut state = seed;
        // The SplitMix64 generator suffices to select calls, and gives the same numbers on every machine.
        let mut draw = |below: u64| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % below
        };
        let name = seed.to_string();
        let (mut ours, mut theirs) = (side(&place.at(&name)), side(&local.path().join(&name)));
        let mut calls = Vec::new();
        for step in 0..700 {
            let call = draw_call(ours.open.len(), &mut draw);
            calls.push(call.clone());
            let (seen, wanted) = (ours.carry_out(&call), theirs.carry_out(&call));
            if seen != wanted {
                let differs = match (&seen, &wanted) {
                    (Ok((a, x)), Ok((b, y))) => {
                        format!("{a}, {b}, first at {:?}", x.iter().zip(y).position(|(x, y)| x != y))
                    }
                    _ => format!("{:?}, {:?}", seen.as_ref().map(|seen| seen.0), wanted.as_ref().map(|seen| seen.0)),
                };
                let short = |call: &Call| format!("{call:?}").chars().take(60).collect::<String>();
                let last: Vec<String> = calls.iter().rev().take(40).rev().map(short).collect();
                panic!("seed {seed} (WEIR_TEST_SEED), step {step}: {differs}; the last calls {last:#?}");
            }
        }
    }
    place.unmount();
}
