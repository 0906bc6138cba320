//! Encoding of replies to the kernel (Linux `include/uapi/linux/fuse.h`).

use crate::{Errno, abi};
use client::Segment;
use rustix::fs::StatxFlags;
use std::time::Duration;
use types::{Attrs, FileKind, StatFs};

/// Preferred I/O size (`st_blksize`) in bytes. It is large, so that copy programs do not make a request for every
/// page.
pub const BLOCK_SIZE: u32 = 256 << 10;

/// The result of a request, from which the transport makes the reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Success, with an empty body.
    Done,
    /// Success, with the contained bytes as the body of the reply.
    Bytes(Vec<u8>),
    /// Success, with bytes read from a file as the body of the reply.
    Read(Vec<Segment>),
    /// An error with the contained errno value.
    Failed(Errno),
    /// No reply, because the kernel does not wait for one.
    None,
}

/// The body of a reply: fields in the machine's byte order.
#[derive(Default)]
pub struct Body(Vec<u8>);

impl Body {
    /// Creates an empty buffer with capacity for this many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Body(Vec::with_capacity(bytes))
    }

    /// Appends a 16-bit number.
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends a 32-bit number.
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends a 64-bit number.
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends bytes unchanged.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends `count` zero bytes.
    pub fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// Returns the body as a successful reply.
    pub fn reply(self) -> Reply {
        Reply::Bytes(self.0)
    }

    /// Returns the encoded bytes of the body.
    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }
}

/// Returns the bits of `st_mode` for a file type (`S_IFMT`).
pub fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 0o010_000,
        FileKind::Char => 0o020_000,
        FileKind::Directory => 0o040_000,
        FileKind::Block => 0o060_000,
        FileKind::Regular => 0o100_000,
        FileKind::Symlink => 0o120_000,
        FileKind::Socket => 0o140_000,
    }
}

/// Encodes a device number in the kernel's 32-bit form (`new_encode_dev`).
fn device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Decodes major and minor number from the kernel's 32-bit form of a device number.
pub fn device_numbers(rdev: u32) -> (u32, u32) {
    ((rdev & 0xfff00) >> 8, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

/// Appends the attributes of a file as `fuse_attr`.
fn attr(body: Body, attrs: &Attrs) -> Body {
    let times = [attrs.atime, attrs.mtime, attrs.ctime];
    let mut body = body.u64(attrs.id.0).u64(attrs.size).u64(attrs.used.div_ceil(512));
    for time in times {
        body = body.u64(time.secs as u64);
    }
    for time in times {
        body = body.u32(time.nanos);
    }
    body.u32(type_bits(attrs.kind) | attrs.mode)
        .u32(attrs.nlink)
        .u32(attrs.uid)
        .u32(attrs.gid)
        .u32(device(attrs.rdev))
        .u32(BLOCK_SIZE)
        .u32(0)
}

/// Encodes `fuse_attr_out`: attributes with their lifetime.
pub fn attributes(attrs: &Attrs, valid: Duration) -> Reply {
    let body = Body::with_capacity(104).u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0);
    attr(body, attrs).reply()
}

/// Encodes `fuse_statx_out`: attributes with their lifetime and the birth time.
pub fn statx(attrs: &Attrs, valid: Duration) -> Reply {
    const NO_FLAGS: u32 = 0;
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let body = Body::with_capacity(288).u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(NO_FLAGS).zeros(16);
    let body = body.u32(mask.bits()).u32(BLOCK_SIZE).u64(0).u32(attrs.nlink).u32(attrs.uid).u32(attrs.gid);
    let body = body.u16((type_bits(attrs.kind) | attrs.mode) as u16).u16(0);
    let mut body = body.u64(attrs.id.0).u64(attrs.size).u64(attrs.used.div_ceil(512)).u64(0);
    for time in [attrs.atime, attrs.btime, attrs.ctime, attrs.mtime] {
        body = body.u64(time.secs as u64).u32(time.nanos).u32(0);
    }
    // The device number of a device node, then the device of the file system, which the kernel fills in, then
    // reserved space.
    body.u32(attrs.rdev.0).u32(attrs.rdev.1).u64(0).zeros(112).reply()
}

/// How long the kernel may cache a name and the attributes of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifetimes {
    /// The lifetime of the name in the kernel's cache.
    pub entry: Duration,
    /// The lifetime of the attributes in the kernel's cache.
    pub attrs: Duration,
}

/// Appends `fuse_entry_out`: the node id and attributes of the file that a name stands for.
pub fn entry(body: Body, node: u64, attrs: &Attrs, lifetimes: Lifetimes) -> Body {
    let Lifetimes { entry, attrs: lifetime } = lifetimes;
    let body = body.u64(node).u64(0).u64(entry.as_secs()).u64(lifetime.as_secs());
    attr(body.u32(entry.subsec_nanos()).u32(lifetime.subsec_nanos()), attrs)
}

/// Encodes `fuse_entry_out` for a name that does not exist. The kernel may cache this for the time `valid`.
pub fn no_entry(valid: Duration) -> Reply {
    Body::with_capacity(128).u64(0).u64(0).u64(valid.as_secs()).u64(0).u32(valid.subsec_nanos()).zeros(92).reply()
}

/// Appends `fuse_open_out`: the file handle and the `FOPEN_*` flags.
pub fn opened(body: Body, fh: u64, flags: u32) -> Body {
    body.u64(fh).u32(flags).u32(0)
}

/// Encodes the capacity of the file system as `fuse_statfs_out`.
pub fn statfs(stat: &StatFs) -> Reply {
    const BLOCK: u64 = 4096;
    let blocks = |bytes: u64| bytes / BLOCK;
    Body::with_capacity(80)
        .u64(blocks(stat.bytes_total))
        .u64(blocks(stat.bytes_free))
        .u64(blocks(stat.bytes_avail))
        .u64(stat.files_total)
        .u64(stat.files_free)
        .u32(BLOCK as u32)
        .u32(types::limits::NAME_MAX as u32)
        .u32(BLOCK as u32)
        .zeros(28)
        .reply()
}

/// Returns the type of a directory entry (`DT_*`): the type bits of `st_mode`, shifted right by 12.
fn entry_type(kind: FileKind) -> u32 {
    type_bits(kind) >> 12
}

/// The body of a reply with as many directory entries as fit.
pub struct Entries {
    body: Body,
    room: usize,
}

impl Entries {
    /// Creates an empty body for directory entries of at most `room` bytes.
    pub fn new(room: usize) -> Self {
        Entries { body: Body::with_capacity(room), room }
    }

    /// Appends a directory entry, with its attributes (`plus`) for READDIRPLUS. Returns false if the entry does not
    /// fit. `next` is the offset at which the next READDIR continues after this entry.
    pub fn push(
        &mut self,
        (name, id, kind): (&[u8], u64, FileKind),
        next: u64,
        plus: Option<impl FnOnce(Body) -> Body>,
    ) -> bool {
        let head = if plus.is_some() { 128 } else { 0 } + 24;
        let len = (head + name.len()).next_multiple_of(8);
        if self.body.0.len() + len > self.room {
            return false;
        }
        let before = self.body.0.len();
        let body = std::mem::take(&mut self.body);
        let body = match plus {
            Some(plus) => plus(body),
            None => body,
        };
        let body = body.u64(id).u64(next).u32(name.len() as u32).u32(entry_type(kind)).bytes(name);
        let written = body.0.len() - before;
        self.body = body.zeros(len - written);
        true
    }

    /// Returns whether the body has no entries.
    pub fn is_empty(&self) -> bool {
        self.body.0.is_empty()
    }

    /// Returns the body as a successful reply.
    pub fn reply(self) -> Reply {
        self.body.reply()
    }
}

/// Encodes the `fuse_out_header` of a reply whose body has `len` bytes.
pub fn header(unique: u64, error: i32, len: usize) -> [u8; abi::OUT_HEADER] {
    let mut out = [0; abi::OUT_HEADER];
    out[..4].copy_from_slice(&((abi::OUT_HEADER + len) as u32).to_ne_bytes());
    out[4..8].copy_from_slice(&(-error).to_ne_bytes());
    out[8..].copy_from_slice(&unique.to_ne_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for numbers in [(0, 0), (8, 1), (259, 1), (4095, 255), (1, 0xfffff), (4095, 0xfffff)] {
            assert_eq!(device_numbers(device(numbers)), numbers);
        }
    }

    #[test]
    fn replies_have_the_sizes_of_the_kernel_structures() {
        let now = types::Timestamp { secs: 1, nanos: 2 };
        let attrs = Attrs {
            id: types::FileId(7),
            kind: FileKind::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 5,
            used: 4096,
            holes: false,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            change: 1,
            rdev: (0, 0),
        };
        let lifetimes = Lifetimes { entry: Duration::from_secs(1), attrs: Duration::from_millis(1500) };
        assert_eq!(entry(Body::default(), 5, &attrs, lifetimes).into_vec().len(), 128);
        let Reply::Bytes(bytes) = attributes(&attrs, Duration::ZERO) else { panic!() };
        assert_eq!(bytes.len(), 104);
        let Reply::Bytes(bytes) = no_entry(Duration::ZERO) else { panic!() };
        assert_eq!(bytes.len(), 128);
        let Reply::Bytes(bytes) = statx(&attrs, Duration::ZERO) else { panic!() };
        assert_eq!(bytes.len(), 288);
    }

    #[test]
    fn directory_entries_end_when_the_buffer_is_full() {
        let mut entries = Entries::new(64);
        let none = None::<fn(Body) -> Body>;
        assert!(entries.push((b"a", 1, FileKind::Regular), 3, none));
        assert!(entries.push((b"bb", 2, FileKind::Directory), 4, none));
        assert!(!entries.push((b"c", 3, FileKind::Regular), 5, none));
        let Reply::Bytes(bytes) = entries.reply() else { panic!() };
        assert_eq!(bytes.len(), 64);
    }
}
