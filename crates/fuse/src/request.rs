//! Decoding and bounds checks of requests from the kernel (Linux `include/uapi/linux/fuse.h`).
//!
//! A message has a header, arguments of fixed size, and a rest: names, each followed by a zero byte, or bytes to
//! write. The device delivers all three in one piece. An io_uring entry delivers the rest separately.

use crate::abi::{self, opcode};
use bytes::Bytes;
use std::fmt;

/// `fuse_in_header`: the operation, the file and the caller of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Length of the whole message in bytes.
    pub len: u32,
    /// The operation code; see [`abi::opcode`].
    pub opcode: u32,
    /// Number of the request; the reply repeats it.
    pub unique: u64,
    /// Node id of the file that the request concerns.
    pub node: u64,
    /// Filesystem user ID (fsuid) of the caller.
    pub uid: u32,
    /// Filesystem group ID (fsgid) of the caller.
    pub gid: u32,
    /// Thread id of the caller; 0 if the caller is in a PID namespace that this process cannot see.
    pub pid: u32,
    /// Whether the mount executes the request only if the path by which the kernel found the file still leads to this
    /// file. The mount sets this field; the kernel's request does not contain it.
    pub expects: bool,
}

/// A decoded request of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The header of the message.
    pub header: Header,
    /// The operation with its arguments.
    pub op: Op,
}

/// The arguments of SETATTR (`fuse_setattr_in`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct SetAttr {
    /// Which of the fields below are valid: [`abi::fattr`].
    pub valid: u32,
    pub fh: u64,
    pub size: u64,
    pub atime: (i64, u32),
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The arguments of a lock request (`fuse_lk_in`): byte range, kind and owner of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The handle of the open file whose lock is requested.
    pub fh: u64,
    /// The kernel's number of the lock owner.
    pub owner: u64,
    /// Offset in the file of the first byte of the lock.
    pub start: u64,
    /// Offset of the last byte of the lock; `i64::MAX` means the end of the file, even if the file grows.
    pub end: u64,
    /// The kind of the lock: `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// The id of the process that requests the lock.
    pub pid: u32,
    /// Whether this is a flock(2) lock, which does not depend on the access mode of the open. In all other respects,
    /// the mount treats flock(2) and fcntl(2) locks alike.
    pub flock: bool,
}

/// The operation of a request. Fields have the kernel's names.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Op {
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u64,
    },
    Destroy,
    Lookup {
        name: Bytes,
    },
    Forget {
        nlookup: u64,
    },
    BatchForget {
        nodes: Vec<(u64, u64)>,
    },
    Interrupt {
        unique: u64,
    },
    Getattr {
        fh: Option<u64>,
    },
    Setattr(SetAttr),
    Access {
        mask: u32,
    },
    Readlink,
    Symlink {
        name: Bytes,
        target: Bytes,
    },
    Mknod {
        name: Bytes,
        mode: u32,
        rdev: u32,
    },
    Mkdir {
        name: Bytes,
        mode: u32,
    },
    Unlink {
        name: Bytes,
    },
    Rmdir {
        name: Bytes,
    },
    Rename {
        newdir: u64,
        flags: u32,
        name: Bytes,
        newname: Bytes,
    },
    Link {
        oldnode: u64,
        newname: Bytes,
    },
    Open {
        flags: u32,
        open_flags: u32,
    },
    Create {
        name: Bytes,
        flags: u32,
        mode: u32,
        open_flags: u32,
    },
    Read {
        fh: u64,
        offset: u64,
        size: u32,
        /// Whether a program reads directly and bypasses the page cache.
        past: bool,
    },
    Write {
        fh: u64,
        offset: u64,
        write_flags: u32,
        flags: u32,
        data: Bytes,
    },
    Flush {
        fh: u64,
        lock_owner: u64,
    },
    Release {
        fh: u64,
    },
    Fsync {
        fh: u64,
    },
    Statfs,
    Syncfs,
    Setxattr {
        name: Bytes,
        value: Bytes,
        flags: u32,
    },
    Getxattr {
        name: Bytes,
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: Bytes,
    },
    Opendir,
    Readdir {
        fh: u64,
        offset: u64,
        size: u32,
        plus: bool,
    },
    Releasedir {
        fh: u64,
    },
    Fsyncdir {
        fh: u64,
    },
    Getlk(Lock),
    Setlk {
        lock: Lock,
        sleep: bool,
    },
    Fallocate {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    Lseek {
        fh: u64,
        offset: u64,
        whence: u32,
    },
    CopyFileRange {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    },
    /// An operation that the mount does not support.
    Unknown,
}

/// The error for a message that is not a valid request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a FUSE request that makes no sense: {}", self.0)
    }
}

/// A reader of fixed-size fields in the machine's byte order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Malformed("it is too short"))?;
        self.0 = rest;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_ne_bytes)
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Malformed> {
        self.0 = self.0.get(bytes..).ok_or(Malformed("it is too short"))?;
        Ok(())
    }
}

/// Splits off a name and the zero byte after the name.
fn name(rest: &mut Bytes) -> Result<Bytes, Malformed> {
    let end = rest.iter().position(|b| *b == 0).ok_or(Malformed("a name does not end"))?;
    let name = rest.split_to(end);
    let _zero = rest.split_to(1);
    Ok(name)
}

impl Header {
    /// Decodes the header at the front of a message. Also returns the length in bytes of the extensions at the end of
    /// the message.
    pub fn decode(message: &[u8]) -> Result<(Header, usize), Malformed> {
        let mut f = Fields(message);
        let (len, opcode, unique, node) = (f.u32()?, f.u32()?, f.u64()?, f.u64()?);
        let (uid, gid, pid, extensions) = (f.u32()?, f.u32()?, f.u32()?, f.u16()?);
        let header = Header { len, opcode, unique, node, uid, gid, pid, expects: false };
        Ok((header, usize::from(extensions) * 8))
    }
}

/// Returns the length in bytes of the fixed-size arguments of a kind of request, for minor versions from
/// [`abi::MINOR_OLDEST`] on.
pub fn fixed_size(code: u32) -> usize {
    match code {
        opcode::FORGET | opcode::INTERRUPT | opcode::ACCESS | opcode::BATCH_FORGET | opcode::GETXATTR => 8,
        opcode::LISTXATTR | opcode::MKDIR | opcode::RENAME | opcode::LINK | opcode::OPEN | opcode::OPENDIR => 8,
        opcode::SETXATTR | opcode::SYNCFS => 8,
        opcode::GETATTR | opcode::MKNOD | opcode::RENAME2 | opcode::CREATE | opcode::FSYNC | opcode::FSYNCDIR => 16,
        opcode::FLUSH | opcode::RELEASE | opcode::RELEASEDIR | opcode::LSEEK | opcode::STATX => 24,
        opcode::FALLOCATE => 32,
        opcode::READ | opcode::WRITE | opcode::READDIR | opcode::READDIRPLUS => 40,
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => 48,
        opcode::COPY_FILE_RANGE => 56,
        opcode::SETATTR => 88,
        opcode::INIT => 16,
        _ => 0,
    }
}

impl Request {
    /// Decodes a message that arrived in one piece.
    pub fn decode(mut message: Bytes) -> Result<Request, Malformed> {
        let (header, extensions) = Header::decode(&message)?;
        if header.len as usize != message.len() {
            return Err(Malformed("its length is not the one it says"));
        }
        let end = message.len().checked_sub(extensions).filter(|end| *end >= abi::IN_HEADER);
        message.truncate(end.ok_or(Malformed("its extensions are longer than itself"))?);
        let mut rest = message.split_off(abi::IN_HEADER);
        let fixed = rest.split_to(fixed_size(header.opcode).min(rest.len()));
        Ok(Request { header, op: Op::decode(&header, &fixed, rest)? })
    }
}

impl Request {
    /// Decodes a message that arrived in parts: the header, a memory area that begins with the fixed-size arguments,
    /// and the rest.
    pub fn decode_parts(header: &[u8], room: &[u8], mut rest: Bytes) -> Result<Request, Malformed> {
        let (header, extensions) = Header::decode(header)?;
        let fixed = room.get(..fixed_size(header.opcode)).ok_or(Malformed("it is too short"))?;
        let len = abi::IN_HEADER + fixed.len() + rest.len();
        let behind = rest.len().checked_sub(extensions);
        rest.truncate(behind.ok_or(Malformed("its extensions are longer than itself"))?);
        let op = Op::decode(&header, fixed, rest)?;
        // The mount does not know how long the arguments of unknown operations are, so it checks only known operations.
        if op != Op::Unknown && header.len as usize != len {
            return Err(Malformed("its length is not the one it says"));
        }
        Ok(Request { header, op })
    }
}

impl Op {
    /// Decodes the fixed-size arguments and the rest of a message.
    pub fn decode(header: &Header, fixed: &[u8], mut rest: Bytes) -> Result<Op, Malformed> {
        let mut f = Fields(fixed);
        Ok(match header.opcode {
            opcode::INIT => init(&mut f, rest)?,
            opcode::DESTROY => Op::Destroy,
            opcode::LOOKUP => Op::Lookup { name: name(&mut rest)? },
            opcode::FORGET => Op::Forget { nlookup: f.u64()? },
            opcode::BATCH_FORGET => Op::BatchForget { nodes: forgets(f.u32()?, &rest)? },
            opcode::INTERRUPT => Op::Interrupt { unique: f.u64()? },
            // After the fields of GETATTR, STATX also has a mask of requested attributes. The mount ignores the mask
            // and returns all attributes.
            opcode::GETATTR | opcode::STATX => {
                let flags = f.u64()? as u32;
                let fh = f.u64()?;
                Op::Getattr { fh: (flags & abi::GETATTR_FH != 0).then_some(fh) }
            }
            opcode::SETATTR => Op::Setattr(setattr(&mut f)?),
            opcode::ACCESS => Op::Access { mask: f.u32()? },
            opcode::READLINK => Op::Readlink,
            opcode::STATFS => Op::Statfs,
            opcode::SYNCFS => Op::Syncfs,
            opcode::OPEN => Op::Open { flags: f.u32()?, open_flags: f.u32()? },
            opcode::FLUSH => {
                let fh = f.u64()?;
                f.skip(8)?;
                Op::Flush { fh, lock_owner: f.u64()? }
            }
            opcode::RELEASE => Op::Release { fh: f.u64()? },
            opcode::FSYNC => Op::Fsync { fh: f.u64()? },
            opcode::OPENDIR => Op::Opendir,
            opcode::RELEASEDIR => Op::Releasedir { fh: f.u64()? },
            opcode::FSYNCDIR => Op::Fsyncdir { fh: f.u64()? },
            opcode::GETLK => Op::Getlk(lock(&mut f)?),
            opcode::SETLK => Op::Setlk { lock: lock(&mut f)?, sleep: false },
            opcode::SETLKW => Op::Setlk { lock: lock(&mut f)?, sleep: true },
            opcode::LSEEK => Op::Lseek { fh: f.u64()?, offset: f.u64()?, whence: f.u32()? },
            opcode::FALLOCATE => Op::Fallocate { fh: f.u64()?, offset: f.u64()?, length: f.u64()?, mode: f.u32()? },
            opcode::READ | opcode::WRITE | opcode::READDIR | opcode::READDIRPLUS => io(header.opcode, &mut f, rest)?,
            opcode::COPY_FILE_RANGE => Op::CopyFileRange {
                fh_in: f.u64()?,
                off_in: f.u64()?,
                nodeid_out: f.u64()?,
                fh_out: f.u64()?,
                off_out: f.u64()?,
                len: f.u64()?,
                flags: f.u64()?,
            },
            opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
                xattr(header.opcode, &mut f, rest)?
            }
            _ => names(header.opcode, &mut f, rest)?,
        })
    }
}

/// Decodes requests that create, rename and remove names.
fn names(code: u32, f: &mut Fields, mut rest: Bytes) -> Result<Op, Malformed> {
    let rest = &mut rest;
    Ok(match code {
        opcode::SYMLINK => Op::Symlink { name: name(rest)?, target: name(rest)? },
        opcode::MKNOD => Op::Mknod { mode: f.u32()?, rdev: f.u32()?, name: name(rest)? },
        opcode::MKDIR => Op::Mkdir { mode: f.u32()?, name: name(rest)? },
        opcode::UNLINK => Op::Unlink { name: name(rest)? },
        opcode::RMDIR => Op::Rmdir { name: name(rest)? },
        opcode::RENAME => Op::Rename { newdir: f.u64()?, flags: 0, name: name(rest)?, newname: name(rest)? },
        opcode::RENAME2 => Op::Rename { newdir: f.u64()?, flags: f.u32()?, name: name(rest)?, newname: name(rest)? },
        opcode::LINK => Op::Link { oldnode: f.u64()?, newname: name(rest)? },
        opcode::CREATE => {
            let (flags, mode) = (f.u32()?, f.u32()?);
            // Skip the umask, which the kernel has already applied to `mode`.
            f.skip(4)?;
            Op::Create { flags, mode, open_flags: f.u32()?, name: name(rest)? }
        }
        _ => Op::Unknown,
    })
}

fn init(f: &mut Fields, rest: Bytes) -> Result<Op, Malformed> {
    let (major, minor, max_readahead, low) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    // Kernels that know more than 32 INIT flags set `INIT_EXT`, and send the flags from bit 32 on in an additional
    // field.
    let high = if u64::from(low) & abi::init::INIT_EXT != 0 { Fields(&rest).u32()? } else { 0 };
    Ok(Op::Init { major, minor, max_readahead, flags: u64::from(low) | u64::from(high) << 32 })
}

fn forgets(count: u32, rest: &[u8]) -> Result<Vec<(u64, u64)>, Malformed> {
    if rest.len() < (count as usize).saturating_mul(16) {
        return Err(Malformed("it forgets more files than it names"));
    }
    let mut f = Fields(rest);
    (0..count).map(|_| Ok((f.u64()?, f.u64()?))).collect()
}

fn setattr(f: &mut Fields) -> Result<SetAttr, Malformed> {
    let valid = f.u32()?;
    f.skip(4)?;
    let (fh, size, _lock_owner) = (f.u64()?, f.u64()?, f.u64()?);
    let secs = [f.u64()? as i64, f.u64()? as i64, f.u64()? as i64];
    let nanos = [f.u32()?, f.u32()?, f.u32()?];
    let [atime, mtime, ctime] = [0, 1, 2].map(|n| (secs[n], nanos[n]));
    let mode = f.u32()?;
    f.skip(4)?;
    let (uid, gid) = (f.u32()?, f.u32()?);
    Ok(SetAttr { valid, fh, size, atime, mtime, ctime, mode, uid, gid })
}

fn lock(f: &mut Fields) -> Result<Lock, Malformed> {
    let (fh, owner, start, end, kind) = (f.u64()?, f.u64()?, f.u64()?, f.u64()?, f.u32()?);
    let (pid, lk_flags, _padding) = (f.u32()?, f.u32()?, f.u32()?);
    Ok(Lock { fh, owner, start, end, kind, pid, flock: lk_flags & abi::LK_FLOCK != 0 })
}

fn io(code: u32, f: &mut Fields, rest: Bytes) -> Result<Op, Malformed> {
    let (fh, offset, size, io_flags, _lock_owner, flags) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?, f.u64()?, f.u32()?);
    Ok(match code {
        opcode::READ => Op::Read { fh, offset, size, past: io_flags & abi::READ_LOCKOWNER != 0 },
        opcode::READDIR => Op::Readdir { fh, offset, size, plus: false },
        opcode::READDIRPLUS => Op::Readdir { fh, offset, size, plus: true },
        _ if rest.len() != size as usize => return Err(Malformed("it writes other than the bytes it brings")),
        _ => Op::Write { fh, offset, write_flags: io_flags, flags, data: rest },
    })
}

fn xattr(code: u32, f: &mut Fields, mut rest: Bytes) -> Result<Op, Malformed> {
    Ok(match code {
        opcode::SETXATTR => {
            let (size, flags, name) = (f.u32()?, f.u32()?, name(&mut rest)?);
            if rest.len() != size as usize {
                return Err(Malformed("the value of an attribute is not as long as it says"));
            }
            Op::Setxattr { name, value: rest, flags }
        }
        opcode::GETXATTR => Op::Getxattr { size: f.u32()?, name: name(&mut rest)? },
        opcode::LISTXATTR => Op::Listxattr { size: f.u32()? },
        _ => Op::Removexattr { name: name(&mut rest)? },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(code: u32, fixed: &[u8], rest: &[u8]) -> Bytes {
        let mut out = Vec::new();
        let len = abi::IN_HEADER + fixed.len() + rest.len();
        out.extend_from_slice(&(len as u32).to_ne_bytes());
        out.extend_from_slice(&code.to_ne_bytes());
        [7u64, 9].iter().for_each(|n| out.extend_from_slice(&n.to_ne_bytes()));
        [1000u32, 100, 4321, 0].iter().for_each(|n| out.extend_from_slice(&n.to_ne_bytes()));
        out.extend_from_slice(fixed);
        out.extend_from_slice(rest);
        out.into()
    }

    #[test]
    fn a_lookup_is_parsed() {
        let request = Request::decode(message(opcode::LOOKUP, &[], b"name\0")).unwrap();
        let (opcode, unique, node, pid) = (1, 7, 9, 4321);
        let header = Header { len: 45, opcode, unique, node, uid: 1000, gid: 100, pid, expects: false };
        assert_eq!(request, Request { header, op: Op::Lookup { name: Bytes::from_static(b"name") } });
    }

    #[test]
    fn the_data_of_a_write_have_the_stated_length() {
        let mut fixed = [0; 40];
        fixed[16..20].copy_from_slice(&3u32.to_ne_bytes());
        let op = Request::decode(message(opcode::WRITE, &fixed, b"abc")).unwrap().op;
        assert!(matches!(op, Op::Write { data, .. } if data == b"abc"[..]));
        assert!(Request::decode(message(opcode::WRITE, &fixed, b"ab")).is_err());
    }

    #[test]
    fn a_message_in_parts_equals_the_whole_message() {
        for code in 1..=opcode::STATX {
            let fixed = vec![0; fixed_size(code)];
            let mut whole = message(code, &fixed, b"a\0b\0");
            let (head, mut room) = (whole.split_to(abi::IN_HEADER), fixed.clone());
            room.resize(128, 0x55);
            let parts = Request::decode_parts(&head, &room, Bytes::from_static(b"a\0b\0"));
            assert_eq!(parts, Request::decode(message(code, &fixed, b"a\0b\0")), "opcode {code}");
            let known = parts.is_ok_and(|request| request.op != Op::Unknown);
            let short = Request::decode_parts(&head, &room, Bytes::from_static(b"a\0b"));
            assert!(!known || short.is_err(), "opcode {code}");
        }
    }

    #[test]
    fn truncated_messages_are_refused() {
        for code in 1..=opcode::STATX {
            let whole = message(code, &vec![0; fixed_size(code)], b"a\0b\0");
            for len in 0..whole.len() {
                assert!(Request::decode(whole.slice(..len)).is_err(), "opcode {code}, {len} bytes");
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_request_or_an_error(code in 0u32..64, body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::decode(message(code, &body, &[]));
            let _ = Request::decode(body.into());
        }
    }
}
