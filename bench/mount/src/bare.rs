//! Bare FUSE: a file system in memory that answers every request of the kernel at once, and gets the same requests as
//! Weir's mount.
//!
//! This file implements the protocol of `/dev/fuse` itself (Linux `include/uapi/linux/fuse.h`), so bare FUSE shares no
//! code with Weir and has no cost of a library. The flags of INIT and of opens decide which requests the kernel sends,
//! so these flags are the same as in Weir's mount: `crates/fuse/src/mounting.rs`, `ops/init.rs`, `config.rs`, and
//! `fs.rs` for opens.

use crate::Outcome;
use crate::memory::{AFTER_DOTS, Found, Inode, Inodes};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::path::Path;

/// The largest number of bytes that one request reads or writes.
const LARGEST: u32 = 1 << 20;
const PAGE: u32 = 4096;
/// The newest version of the FUSE protocol that bare FUSE supports.
const VERSION: (u32, u32) = (7, 42);
/// Flags of INIT: ASYNC_READ, POSIX_LOCKS, ATOMIC_O_TRUNC, BIG_WRITES, FLOCK_LOCKS, DO_READDIRPLUS, READDIRPLUS_AUTO,
/// ASYNC_DIO, PARALLEL_DIROPS, MAX_PAGES, CACHE_SYMLINKS, INIT_EXT, DIRECT_IO_ALLOW_MMAP.
const WANTED: [u32; 13] = [0, 1, 3, 5, 10, 13, 14, 15, 18, 22, 23, 30, 36];
const BACKGROUND: u16 = 128;
/// Time in seconds for which the kernel caches names and attributes.
const LIFETIME: u64 = 1;
/// Flags in the answer to OPEN: FOPEN_DIRECT_IO and FOPEN_PARALLEL_DIRECT_WRITES.
const DIRECT: u32 = 1 | 1 << 6;
/// The preferred I/O size of files in bytes (`st_blksize`).
const BLOCK: u32 = 256 << 10;

/// The part of a FUSE request that is not decoded yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Found<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Found<u32> {
        Ok(u32::from_ne_bytes(self.take(4)?.try_into().map_err(|_| Errno::IO)?))
    }

    fn u64(&mut self) -> Found<u64> {
        Ok(u64::from_ne_bytes(self.take(8)?.try_into().map_err(|_| Errno::IO)?))
    }

    fn name(&self) -> Found<&'a [u8]> {
        self.0.split(|byte| *byte == 0).next().ok_or(Errno::IO)
    }
}

/// The header of a FUSE request (`fuse_in_header`).
struct Header {
    opcode: u32,
    unique: u64,
    node: u64,
    owner: (u32, u32),
}

fn header(request: &mut Fields) -> Found<Header> {
    request.u32()?;
    let (opcode, unique, node) = (request.u32()?, request.u64()?, request.u64()?);
    let owner = (request.u32()?, request.u32()?);
    request.take(8)?;
    Ok(Header { opcode, unique, node, owner })
}

/// The encoded fields of an answer to a FUSE request.
#[derive(Default)]
struct Answer(Vec<u8>);

impl Answer {
    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends the attributes of a file (`fuse_attr`).
    fn attr(&mut self, number: u64, inode: &Inode) -> &mut Self {
        let (size, kind, links) =
            (inode.content.len() as u64, if inode.directory { libc::S_IFDIR } else { libc::S_IFREG }, 1);
        // All file times are 1970, because no row of the benchmark uses file times.
        self.u64(number).u64(size).u64(size.div_ceil(512)).bytes(&[0; 36]);
        self.u32(kind | inode.mode).u32(links).u32(inode.owner.0).u32(inode.owner.1).u32(0).u32(BLOCK).u32(0)
    }

    /// Appends the answer to a lookup (`fuse_entry_out`).
    fn entry(&mut self, number: u64, inode: &Inode) -> &mut Self {
        self.u64(number).u64(0).u64(LIFETIME).u64(LIFETIME).u64(0).attr(number, inode)
    }

    /// Appends the answer to an open (`fuse_open_out`).
    fn opened(&mut self, how: u32) -> &mut Self {
        self.u64(0).u32(how).u32(0)
    }
}

/// The data of an answer to a FUSE request after its encoded fields.
enum Then<'a> {
    Nothing,
    Bytes(&'a [u8]),
    /// No answer, because the kernel expects no answer to this request.
    Silence,
}

fn init(mut request: Fields, answer: &mut Answer) -> Found<()> {
    let (major, minor, read_ahead, low) = (request.u32()?, request.u32()?, request.u32()?, request.u32()?);
    if major != VERSION.0 {
        return Err(Errno::PROTO);
    }
    let offered = u64::from(low) | u64::from(request.u32().unwrap_or(0)) << 32;
    let flags = offered & WANTED.iter().fold(0, |flags, bit| flags | 1 << bit);
    answer.u32(VERSION.0).u32(VERSION.1.min(minor)).u32(read_ahead).u32(flags as u32);
    answer.bytes(&BACKGROUND.to_ne_bytes()).bytes(&(BACKGROUND / 4 * 3).to_ne_bytes());
    // Fields of the answer to INIT: max_write, time_gran (1 ns), max_pages, flags2.
    answer.u32(LARGEST).u32(1).u32(LARGEST / PAGE).u32((flags >> 32) as u32).bytes(&[0; 28]);
    Ok(())
}

/// Executes READDIR and READDIRPLUS.
fn read_dir(inodes: &mut Inodes, node: u64, request: &mut Fields, plus: bool, answer: &mut Answer) -> Found<()> {
    request.u64()?;
    let (offset, work_dir) = (request.u64()?, request.u32()? as usize);
    let begun = answer.0.len();
    for (number, name, after) in inodes.entries(node, offset)? {
        let len = (if plus { 128 } else { 0 } + 24 + name.len()).next_multiple_of(8);
        let end = answer.0.len() + len;
        if end - begun > work_dir {
            break;
        }
        // The kernel counts no lookup for the entries `.` and `..`.
        if plus && after > AFTER_DOTS {
            inodes.told(number)?;
        }
        let inode = inodes.get(number)?;
        if plus {
            answer.entry(number, inode);
        }
        let kind = if inode.directory { libc::DT_DIR } else { libc::DT_REG };
        answer.u64(number).u64(after).u32(name.len() as u32).u32(u32::from(kind)).bytes(&name).0.resize(end, 0);
    }
    Ok(())
}

/// Executes OPEN, READ and WRITE. Refuses all other requests with ENOSYS, so that the kernel does not repeat them.
fn of_content<'a>(
    inodes: &'a mut Inodes,
    header: &Header,
    mut request: Fields,
    answer: &mut Answer,
) -> Found<Then<'a>> {
    let node = header.node;
    match header.opcode {
        // Opcode FUSE_OPEN.
        14 => {
            if request.u32()? as i32 & libc::O_TRUNC != 0 {
                inodes.get_mut(node)?.content = Vec::new();
            }
            answer.opened(DIRECT);
        }
        // Opcode FUSE_READ.
        15 => {
            request.u64()?;
            let (at, most) = (request.u64()?, request.u32()?);
            return Ok(Then::Bytes(inodes.read(node, at as usize, most as usize)?));
        }
        // Opcode FUSE_WRITE.
        16 => {
            request.u64()?;
            let (at, len) = (request.u64()?, request.u32()?);
            request.take(20)?;
            inodes.write(node, at as usize, request.take(len as usize)?)?;
            answer.u32(len).u32(0);
        }
        _ => return Err(Errno::NOSYS),
    }
    Ok(Then::Nothing)
}

/// Executes one FUSE request of the kernel.
fn carry_out<'a>(inodes: &'a mut Inodes, header: &Header, mut request: Fields, answer: &mut Answer) -> Found<Then<'a>> {
    let node = header.node;
    match header.opcode {
        // Opcode FUSE_LOOKUP.
        1 => {
            let number = inodes.lookup(node, request.name()?)?;
            answer.entry(number, inodes.get(number)?);
        }
        // Opcodes FUSE_FORGET and FUSE_BATCH_FORGET.
        2 => {
            inodes.forget(node, request.u64()?);
            return Ok(Then::Silence);
        }
        42 => {
            let count = request.u32()?;
            request.u32()?;
            for _ in 0..count {
                inodes.forget(request.u64()?, request.u64()?);
            }
            return Ok(Then::Silence);
        }
        // Opcode FUSE_GETATTR.
        3 => {
            answer.u64(LIFETIME).u64(0).attr(node, inodes.get(node)?);
        }
        // Opcode FUSE_MKDIR.
        9 => {
            let mode = request.u32()?;
            request.u32()?;
            let number = inodes.make((node, request.name()?), true, mode, header.owner)?;
            answer.entry(number, inodes.get(number)?);
        }
        // Opcode FUSE_CREATE.
        35 => {
            request.u32()?;
            let mode = request.u32()?;
            request.u64()?;
            let number = inodes.make((node, request.name()?), false, mode, header.owner)?;
            answer.entry(number, inodes.get(number)?).opened(DIRECT);
        }
        // Opcodes FUSE_UNLINK and FUSE_RMDIR.
        10 | 11 => inodes.remove(node, request.name()?)?,
        // Opcodes FUSE_RELEASE, FUSE_FSYNC, FUSE_FLUSH, FUSE_RELEASEDIR and FUSE_DESTROY.
        18 | 20 | 25 | 29 | 38 => {}
        // Opcode FUSE_GETXATTR: no file has extended attributes. Do not answer ENOSYS, because the kernel would then
        // send no more GETXATTR. Bare FUSE has to get the same requests as Weir's mount, which does get GETXATTR.
        22 => return Err(Errno::NODATA),
        // Opcode FUSE_INIT.
        26 => init(request, answer)?,
        // Opcode FUSE_OPENDIR.
        27 => {
            answer.opened(0);
        }
        // Opcodes FUSE_READDIR and FUSE_READDIRPLUS.
        28 | 44 => read_dir(inodes, node, &mut request, header.opcode == 44, answer)?,
        // Opcode FUSE_INTERRUPT: bare FUSE answers the interrupted request anyway.
        36 => return Ok(Then::Silence),
        _ => return of_content(inodes, header, request, answer),
    }
    Ok(Then::Nothing)
}

/// Length of `fuse_out_header` in bytes.
const HEAD: usize = 16;

fn send(mut device: &File, unique: u64, outcome: Found<Then>, answer: &mut Answer) -> io::Result<()> {
    let (error, bytes) = match outcome {
        Ok(Then::Silence) => return Ok(()),
        Ok(Then::Nothing) => (0, &[][..]),
        Ok(Then::Bytes(bytes)) => (0, bytes),
        Err(error) => {
            answer.0.truncate(HEAD);
            (-error.raw_os_error(), &[][..])
        }
    };
    let len = (answer.0.len() + bytes.len()) as u32;
    answer.0[..4].copy_from_slice(&len.to_ne_bytes());
    answer.0[4..8].copy_from_slice(&error.to_ne_bytes());
    answer.0[8..HEAD].copy_from_slice(&unique.to_ne_bytes());
    match device.write_vectored(&[IoSlice::new(&answer.0), IoSlice::new(bytes)]) {
        // ENOENT from a write to the device: the process that made the request was killed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome.map(|_| ()),
    }
}

/// Answers requests until the file system is unmounted.
fn answer_all(mut device: &File, inodes: &mut Inodes) -> Outcome<()> {
    let mut buffer = vec![0; (LARGEST + PAGE) as usize];
    let mut answer = Answer::default();
    loop {
        let len = match device.read(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            // ENOENT from a read of the device: the process that made the request was killed.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Interrupted) => continue,
            Err(error) => return Err(error.into()),
        };
        let mut request = Fields(&buffer[..len]);
        let header = header(&mut request)?;
        answer.0.clear();
        answer.0.resize(HEAD, 0);
        let outcome = carry_out(inodes, &header, request, &mut answer);
        send(device, header.unique, outcome, &mut answer)?;
    }
}

/// Mounts bare FUSE on a directory, prints a line, and answers requests until the file system is unmounted.
pub fn serve(at: &Path) -> Outcome<()> {
    // On Ctrl-C, the terminal sends SIGINT to this child process too. Ignore the signal, because the benchmark still
    // needs this mount to finish its current row. SAFETY: no handler runs; the signal is ignored.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let data = CString::new(format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={LARGEST},allow_other",
        device.as_raw_fd(),
        owner.0,
        owner.1
    ))?;
    rustix::mount::mount("memory", at, "fuse.memory", MountFlags::NODEV | MountFlags::NOSUID, Some(data.as_c_str()))?;
    println!("mounted");
    io::stdout().flush()?;
    answer_all(&device, &mut Inodes::new(owner))
}

/// Unmounts the FUSE file system at this directory.
pub fn unmount(at: &Path) -> Outcome<()> {
    Ok(rustix::mount::unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

/// Returns whether the user of this process may mount a FUSE file system.
pub fn is_allowed() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ROOT;

    fn ask(inodes: &mut Inodes, opcode: u32, node: u64, body: &[u8]) -> Found<Vec<u8>> {
        let header = Header { opcode, unique: 1, node, owner: (0, 0) };
        let mut answer = Answer::default();
        let then = carry_out(inodes, &header, Fields(body), &mut answer)?;
        if let Then::Bytes(bytes) = then {
            answer.bytes(bytes);
        }
        Ok(answer.0)
    }

    #[test]
    fn answers_are_as_long_as_the_kernel_wants_them() {
        let mut inodes = Inodes::new((0, 0));
        let create = [&[0; 16][..], b"name\0"].concat();
        assert_eq!(ask(&mut inodes, 35, ROOT, &create).unwrap().len(), 128 + 16);
        assert_eq!(ask(&mut inodes, 1, ROOT, b"name\0").unwrap().len(), 128);
        assert_eq!(ask(&mut inodes, 1, ROOT, b"nam\0"), Err(Errno::NOENT));
        assert_eq!(ask(&mut inodes, 3, ROOT, &[0; 16]).unwrap().len(), 104);
        let write = [&[0; 16][..], &3u32.to_ne_bytes(), &[0; 20], b"abc"].concat();
        assert_eq!(ask(&mut inodes, 16, 2, &write).unwrap(), [3u32.to_ne_bytes(), [0; 4]].concat());
        let read = [&[0; 16][..], &9u32.to_ne_bytes(), &[0; 20]].concat();
        assert_eq!(ask(&mut inodes, 15, 2, &read).unwrap(), b"abc");
        let init = [7u32, 45, 1 << 17, u32::MAX, u32::MAX].map(u32::to_ne_bytes).concat();
        assert_eq!(ask(&mut inodes, 26, 0, &init).unwrap().len(), 64);
        let list = [&[0; 16][..], &4096u32.to_ne_bytes(), &[0; 20]].concat();
        assert_eq!(ask(&mut inodes, 28, ROOT, &list).unwrap().len(), 3 * 32);
        assert_eq!(ask(&mut inodes, 44, ROOT, &list).unwrap().len(), 3 * 160);
        assert_eq!(ask(&mut inodes, 16, 2, &write[..20]), Err(Errno::IO));
    }
}
