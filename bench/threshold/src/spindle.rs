//! A disk that takes its time: a file in memory that this process serves through FUSE, one request after the other, each write only
//! after the head is where it belongs and the bytes have passed it.
//!
//! Token buckets, as cgroups have them, hold back what comes too fast and delay nothing else: whoever goes round several
//! disks one request at a time would meet no latency at all.

use crate::Outcome;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the head takes to get to a write.
pub const POSITIONING: Duration = Duration::from_micros(2000);
/// Bytes a second that pass it.
pub const RATE: u64 = 20_000_000;

/// Longest write of one request, in bytes and pages.
const WRITE_MAX: u32 = 1 << 20;
const PAGES_MAX: u16 = 256;
/// The kernel's numbers of what it asks for (`linux/fuse.h`).
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
/// Lengths of the heads of requests, and of those of writes.
const HEAD: usize = 40;
const WRITE_HEAD: usize = 40;
/// Writes longer than a page; requests longer than 32 pages.
const INIT_FLAGS: u32 = 1 << 5 | 1 << 22;
/// What the page cache has of the file outlives its being closed.
const KEEP_CACHE: u32 = 1 << 1;

/// Mounts `image` at the file `at` as one that takes its time, until it is unmounted there.
pub fn mount(image: &Path, at: &Path) -> Outcome<()> {
    let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open("/dev/fuse")?;
    let disk = OpenOptions::new().read(true).write(true).open(image)?;
    File::create(at)?;
    let place = CString::new(at.as_os_str().as_bytes())?;
    let options = CString::new(format!("fd={},rootmode=100600,user_id=0,group_id=0", device.as_raw_fd()))?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: all four are strings that end with zero and live until it returns.
    let failed = unsafe {
        libc::mount(c"spindle".as_ptr(), place.as_ptr(), c"fuse".as_ptr(), flags, options.as_ptr().cast()) != 0
    };
    if failed {
        return Err(format!("mounting {}: {}", at.display(), io::Error::last_os_error()).into());
    }
    std::thread::spawn(move || {
        // A disk waits for no processor.
        let urgent = libc::sched_param { sched_priority: 1 };
        // SAFETY: the parameters live until it returns; zero is this thread.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &urgent) } != 0 {
            eprintln!("threshold: disks compete with programs: {}", io::Error::last_os_error());
        }
        if let Err(error) = serve(&device, &disk) {
            eprintln!("threshold: a disk: {error}");
        }
    });
    Ok(())
}

fn serve(device: &File, disk: &File) -> io::Result<()> {
    let size = disk.metadata()?.len();
    let mut buffer = vec![0; WRITE_MAX as usize + 4096];
    loop {
        let len = match (&mut &*device).read(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Interrupted) => continue,
            Err(error) => return Err(error),
        };
        let request = &buffer[..len];
        let (opcode, unique, body) = (u32_at(request, 4), u64_at(request, 8), request.get(HEAD..).unwrap_or_default());
        match opcode {
            FORGET | BATCH_FORGET | INTERRUPT => {}
            INIT => answer(device, unique, 0, &hello())?,
            GETATTR => answer(device, unique, 0, &attributes(size))?,
            OPEN => answer(device, unique, 0, &[0, 0, KEEP_CACHE, 0].map(u32::to_ne_bytes).concat())?,
            RELEASE => answer(device, unique, 0, &[])?,
            READ => {
                let mut out = vec![0; u32_at(body, 16) as usize];
                let read = disk.read_at(&mut out, u64_at(body, 8))?;
                answer(device, unique, 0, &out[..read])?;
            }
            WRITE => {
                let begun = Instant::now();
                let data = body.get(WRITE_HEAD..).unwrap_or_default();
                disk.write_all_at(data, u64_at(body, 8))?;
                let passing = Duration::from_nanos(data.len() as u64 * 1_000_000_000 / RATE);
                std::thread::sleep((POSITIONING + passing).saturating_sub(begun.elapsed()));
                answer(device, unique, 0, &[data.len() as u32, 0].map(u32::to_ne_bytes).concat())?;
            }
            _ => answer(device, unique, -libc::ENOSYS, &[])?,
        }
    }
}

fn answer(mut device: &File, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
    let len = (16 + body.len()) as u32;
    let head = [&len.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes()].concat();
    match device.write_vectored(&[IoSlice::new(&head), IoSlice::new(body)]) {
        // Whoever asked was killed.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        sent => sent.map(drop),
    }
}

/// `fuse_init_out`.
fn hello() -> Vec<u8> {
    let words = [7, 31, 0, INIT_FLAGS, 0, WRITE_MAX, 1, u32::from(PAGES_MAX)];
    let mut out = words.map(u32::to_ne_bytes).concat();
    out.resize(64, 0);
    out
}

/// `fuse_attr_out` of the only file.
fn attributes(size: u64) -> Vec<u8> {
    // For an hour; number, size and blocks; no times.
    let words = [3600, 0, 1, size, size / 512, 0, 0, 0];
    let mut out = words.map(u64::to_ne_bytes).concat();
    // Parts of seconds, mode, links, owner, no device, length of blocks.
    out.extend([0, 0, 0, libc::S_IFREG | 0o600, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat());
    out
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}
