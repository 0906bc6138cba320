//! Disk with simulated latency: a process serves a file in memory through FUSE, one request at a time, and delays each
//! write by the time to position the head and to transfer the bytes.
//!
//! The I/O limits of cgroups are token buckets, which limit only the rate. A client that sends one request at a time to
//! alternating disks would see no latency from such limits.

use crate::Outcome;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Simulated time to position the head before a write.
pub const POSITIONING: Duration = Duration::from_micros(2000);
/// Simulated transfer rate in bytes per second.
pub const RATE: u64 = 20_000_000;

/// Maximum length of one write request in bytes; `PAGES_MAX` is the same length in pages.
const WRITE_MAX: u32 = 1 << 20;
const PAGES_MAX: u16 = 256;
/// Opcodes of FUSE requests (`linux/fuse.h`).
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
/// Length in bytes of the header of a FUSE request, and of the additional header of a WRITE.
const HEAD: usize = 40;
const WRITE_HEAD: usize = 40;
/// Flags of INIT: FUSE_BIG_WRITES (writes longer than a page) and FUSE_MAX_PAGES (requests longer than 32 pages).
const INIT_FLAGS: u32 = 1 << 5 | 1 << 22;
/// FOPEN_KEEP_CACHE: the page cache of the file stays valid after a close.
const KEEP_CACHE: u32 = 1 << 1;

/// Mounts `image` with simulated latency over the file `at`, and serves the file until it is unmounted.
pub fn mount(image: &Path, at: &Path) -> Outcome<()> {
    let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open("/dev/fuse")?;
    let disk = OpenOptions::new().read(true).write(true).open(image)?;
    File::create(at)?;
    let place = CString::new(at.as_os_str().as_bytes())?;
    let options = CString::new(format!("fd={},rootmode=100600,user_id=0,group_id=0", device.as_raw_fd()))?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: all four pointers are to strings that end with a zero byte and live until the call returns.
    let failed = unsafe {
        libc::mount(c"spindle".as_ptr(), place.as_ptr(), c"fuse".as_ptr(), flags, options.as_ptr().cast()) != 0
    };
    if failed {
        return Err(format!("mounting {}: {}", at.display(), io::Error::last_os_error()).into());
    }
    std::thread::spawn(move || {
        // Run with real-time priority, because a real disk does not wait for a processor.
        let urgent = libc::sched_param { sched_priority: 1 };
        // SAFETY: the parameters live until the call returns; the process id 0 means this thread.
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
        // ENOENT from the device: the process that sent the request was killed.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        sent => sent.map(drop),
    }
}

/// Returns the reply to INIT (`fuse_init_out`).
fn hello() -> Vec<u8> {
    let words = [7, 31, 0, INIT_FLAGS, 0, WRITE_MAX, 1, u32::from(PAGES_MAX)];
    let mut out = words.map(u32::to_ne_bytes).concat();
    out.resize(64, 0);
    out
}

/// Returns the reply to GETATTR of the only file (`fuse_attr_out`).
fn attributes(size: u64) -> Vec<u8> {
    // Attributes that are valid for an hour: inode number, size and blocks; all times are 0.
    let words = [3600, 0, 1, size, size / 512, 0, 0, 0];
    let mut out = words.map(u64::to_ne_bytes).concat();
    // Nanoseconds of the times, mode, number of links, owner, device number 0, block size.
    out.extend([0, 0, 0, libc::S_IFREG | 0o600, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat());
    out
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}
