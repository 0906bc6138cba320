//! An entry of a ring: memory into which the kernel puts one request, and from which the kernel takes the reply.

use crate::Errno;
use crate::abi::{IN_HEADER, uring as abi};
use crate::buffers::Buffers;
use crate::reply::{Reply, header};
use crate::request::{Malformed, Request};
use client::Segment;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
const EIO: Errno = Errno(5);

/// An entry of a ring. The kernel owns the memory of an entry that waits for a request. This process owns the memory
/// from the arrival of the request until it gives the reply to the kernel. Of all threads that might reply, only the
/// thread that sets `held` to 0 may write to the memory.
pub(super) struct Entry {
    /// The number of the kernel queue of this entry.
    pub(super) queue: u16,
    /// The memory of the entry: a page for the headers, followed by the payload.
    memory: *mut u8,
    payload: usize,
    /// The addresses of the headers and of the payload, as the kernel expects them (`struct iovec`).
    iovecs: [IoVec; 2],
    /// The number of the request that has no reply yet; 0 if the entry has no such request.
    held: AtomicU64,
    /// The number of the request whose reply is in the memory of the entry. The kernel takes the reply from there.
    answered: AtomicU64,
}

/// The kernel's `struct iovec`: the address and the length of a memory area.
#[repr(C)]
struct IoVec {
    base: *mut c_void,
    len: usize,
}

// SAFETY: the pointers refer to memory that the entry owns, and `held` decides which thread may use this memory.
unsafe impl Send for Entry {}
// SAFETY: the pointers refer to memory that the entry owns, and `held` decides which thread may use this memory.
unsafe impl Sync for Entry {}

/// Fields of `fuse_uring_ent_in_out`: the commit id and the payload length in bytes.
struct InOut {
    number: u64,
    payload: usize,
}

impl Entry {
    /// Creates an entry for a queue, with `payload` bytes for the payload.
    pub(super) fn new(queue: u16, payload: usize) -> io::Result<Entry> {
        let (len, all) = (PAGE + payload, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the call creates a new mapping at an address that the kernel chooses, so it affects no other
        // memory.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), len, all, MapFlags::PRIVATE) }?;
        let behind = memory.wrapping_byte_add(PAGE);
        let iovecs = [IoVec { base: memory, len: abi::HEADER }, IoVec { base: behind, len: payload }];
        let memory = memory.cast();
        Ok(Entry { queue, memory, payload, iovecs, held: AtomicU64::new(0), answered: AtomicU64::new(0) })
    }

    /// Returns the address and the number of the `struct iovec` elements for the kernel. The entry must not move from
    /// then on.
    pub(super) fn iovecs(&self) -> (u64, u32) {
        (self.iovecs.as_ptr() as u64, self.iovecs.len() as u32)
    }

    /// Returns the number of the request whose reply is in the memory of the entry.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Acquire)
    }

    /// Reads `N` bytes at an offset of the header page.
    fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        debug_assert!(at + N <= PAGE);
        // SAFETY: the range is within the header page. The kernel has filled the page, and no thread changes it
        // before the reply.
        unsafe { self.memory.add(at).cast::<[u8; N]>().read_unaligned() }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= PAGE + self.payload);
        // SAFETY: the range is within the mapping, and the caller owns the memory because it has set `held` to 0.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.add(at), bytes.len()) }
    }

    fn clear(&self, at: usize, len: usize) {
        debug_assert!(at + len <= PAGE + self.payload);
        // SAFETY: the range is within the mapping, and the caller owns the memory because it has set `held` to 0.
        unsafe { self.memory.add(at).write_bytes(0, len) }
    }

    fn in_out(&self) -> InOut {
        let number = u64::from_ne_bytes(self.read(abi::IN_OUT + 8));
        InOut { number, payload: u32::from_ne_bytes(self.read(abi::IN_OUT + 16)) as usize }
    }

    /// Returns the number of the request that the kernel has put into the entry, and the decoded request.
    pub(super) fn request(&self, buffers: &Arc<Buffers>) -> (u64, Result<Request, Malformed>) {
        let InOut { number, payload } = self.in_out();
        self.held.store(number, Ordering::Release);
        if payload > self.payload {
            return (number, Err(Malformed("it has more bytes than there is room for")));
        }
        let header: [u8; IN_HEADER] = self.read(0);
        let fixed: [u8; abi::FIXED] = self.read(abi::FIXED_AT);
        // SAFETY: the range is within the mapping, because `payload` was checked, and this process owns the memory
        // until the reply.
        let payload = unsafe { std::slice::from_raw_parts(self.memory.add(PAGE), payload) };
        // Copy the payload, because the mount may use the bytes of a WRITE after the reply, and the kernel reuses the
        // memory.
        (number, Request::decode_parts(&header, &fixed, buffers.copy(payload)))
    }

    /// Puts the reply to a request into the entry. Returns false if the request already has a reply. With `spare`, also
    /// returns memory of the entry to the system: the memory that the request used and the reply does not need.
    pub(super) fn answer(&self, number: u64, reply: &Reply, spare: bool) -> bool {
        if self.held.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        let (error, len) = match self.put(reply) {
            Ok(len) => (0, len),
            Err(errno) => (errno.0, 0),
        };
        self.write(0, &header(number, error, len));
        self.write(abi::IN_OUT + 16, &(len as u32).to_ne_bytes());
        let unused = len.next_multiple_of(PAGE)..self.payload;
        if spare && !unused.is_empty() {
            self.give_back(unused);
        }
        self.answered.store(number, Ordering::Release);
        true
    }

    /// Writes the payload of a reply into the entry. Returns the payload length in bytes.
    fn put(&self, reply: &Reply) -> Result<usize, Errno> {
        let room = |at: usize, len: usize| {
            let fits = at.checked_add(len).is_some_and(|end| end <= self.payload);
            fits.then_some(PAGE + at).ok_or(EIO)
        };
        match reply {
            Reply::None | Reply::Done => Ok(0),
            Reply::Failed(errno) => Err(*errno),
            Reply::Bytes(bytes) => {
                self.write(room(0, bytes.len())?, bytes);
                Ok(bytes.len())
            }
            Reply::Read(segments) => segments.iter().try_fold(0, |at, segment| match segment {
                Segment::Data(data) => {
                    self.write(room(at, data.len())?, data);
                    Ok(at + data.len())
                }
                Segment::Hole(len) => {
                    let len = usize::try_from(*len).map_err(|_| EIO)?;
                    self.clear(room(at, len)?, len);
                    Ok(at + len)
                }
            }),
        }
    }

    fn give_back(&self, unused: Range<usize>) {
        // SAFETY: the range consists of whole pages of the mapping, whose bytes this process does not need any more.
        let done = unsafe { madvise(self.memory.add(PAGE + unused.start).cast(), unused.len(), Advice::LinuxDontNeed) };
        if let Err(error) = done {
            tracing::debug!("cannot return memory to the system: {error}");
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: the entry owns the mapping. No other reference to the mapped memory exists any more, because the
        // ring through which the kernel accessed the memory is closed.
        if let Err(error) = unsafe { munmap(self.memory.cast(), PAGE + self.payload) } {
            tracing::debug!("cannot return an entry to the kernel: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;
    use crate::request::Op;
    use bytes::Bytes;

    /// Fills an entry with a request, as the kernel does.
    fn ask(entry: &Entry, code: u32, number: u64, (len, payload): (usize, &[u8])) {
        entry.write(0, &(len as u32).to_ne_bytes());
        entry.write(4, &code.to_ne_bytes());
        entry.write(8, &number.to_ne_bytes());
        entry.clear(16, IN_HEADER - 16);
        entry.clear(abi::FIXED_AT, abi::FIXED);
        entry.write(PAGE, payload);
        entry.write(abi::IN_OUT + 8, &number.to_ne_bytes());
        entry.write(abi::IN_OUT + 16, &(payload.len() as u32).to_ne_bytes());
    }

    fn payload(entry: &Entry) -> Vec<u8> {
        // SAFETY: the range is within the mapping, and no other thread uses this entry.
        unsafe { std::slice::from_raw_parts(entry.memory.add(PAGE), entry.in_out().payload) }.to_vec()
    }

    #[test]
    fn a_request_gets_exactly_one_reply() {
        let (entry, buffers) = (Entry::new(0, 8192).unwrap(), Buffers::new(8192));
        ask(&entry, opcode::LOOKUP, 6, (IN_HEADER + 5, b"name\0"));
        let (number, request) = entry.request(&buffers);
        assert_eq!((number, request.unwrap().op), (6, Op::Lookup { name: Bytes::from_static(b"name") }));
        assert!(!entry.answer(5, &Reply::Done, false), "the number belongs to another request");
        let segments = vec![Segment::Data(Bytes::from_static(b"abc")), Segment::Hole(5)];
        assert!(entry.answer(6, &Reply::Read(segments), true));
        assert_eq!((payload(&entry), entry.answered()), (b"abc\0\0\0\0\0".to_vec(), 6));
        assert!(!entry.answer(6, &Reply::Failed(EIO), false), "the request already has a reply");
        assert_eq!(i32::from_ne_bytes(entry.read(4)), 0);
    }

    #[test]
    fn a_reply_that_does_not_fit_is_an_error() {
        let (entry, buffers) = (Entry::new(0, 8192).unwrap(), Buffers::new(8192));
        ask(&entry, opcode::LOOKUP, 8, (IN_HEADER + 1, b"\0"));
        entry.write(abi::IN_OUT + 16, &8193u32.to_ne_bytes());
        assert!(entry.request(&buffers).1.is_err(), "the request claims more bytes than an entry has");
        for reply in [Reply::Bytes(vec![0; 8193]), Reply::Read(vec![Segment::Hole(8190), Segment::Hole(u64::MAX)])] {
            ask(&entry, opcode::LOOKUP, 8, (IN_HEADER + 1, b"\0"));
            assert!(entry.request(&buffers).1.is_ok());
            assert!(entry.answer(8, &reply, false));
            assert_eq!(i32::from_ne_bytes(entry.read(4)), -EIO.0);
        }
    }
}
