//! A loan: the file of one object, which an iod lent for short-circuit reads, and the checks of whether the loan is
//! still valid.

use super::buffers::Buffer;
use crate::drivers::native::ObjectRun;
use bytes::Bytes;
use rustix::fs::{FileType, Stat};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use types::ByteRange;

/// `f_type` of tmpfs (Linux `include/uapi/linux/magic.h`). Files on tmpfs do not support non-blocking reads
/// (`RWF_NOWAIT`), but a read of such a file never waits for a disk.
const TMPFS: i64 = 0x0102_1994;

/// The unit of `st_blocks` in bytes.
const STAT_BLOCK: u64 = 512;
/// Minimum length and alignment of holes in a lent file, in bytes.
const PAGE: u64 = 4096;

/// A file that an iod lent, and the conditions under which the client may read it.
pub(crate) struct Loan {
    file: OwnedFd,
    /// The offset in the lent file at which the bytes of the object begin.
    begin: u64,
    /// The object header at the beginning of the file, as it was when the iod lent the file. If the beginning of the
    /// file has changed since then, the loan is invalid.
    mark: Bytes,
    /// When the capability of the loan expires, in Unix seconds.
    expires: u64,
    /// Returns whether the client is still connected to the iod that lent the file.
    is_there: Box<dyn Fn() -> bool + Send + Sync>,
    flags: ReadWriteFlags,
}

/// The error for an invalid loan: the file may contain bytes that the client must not see, or the client cannot read
/// the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoanEnded;

impl Loan {
    /// Accepts a file that an iod lent under a capability that expires at `expires` (Unix seconds). May wait for the
    /// disk.
    ///
    /// # Errors
    /// The file does not support non-blocking reads.
    pub(crate) fn new(
        file: OwnedFd,
        loan: wire::native::Loan,
        expires: u64,
        is_there: impl Fn() -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("the lent descriptor is not a regular file"));
        }
        let wire::native::Loan { begin, mark } = loan;
        let (is_there, mut flags) = (Box::new(is_there), ReadWriteFlags::NOWAIT);
        // Read the object header at the beginning of the file, so that the page cache contains it. Later checks of the
        // header then do not wait for the disk.
        rustix::io::pread(&file, &mut vec![0; mark.len()], 0)?;
        match rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut [0])], 0, flags) {
            Err(Errno::OPNOTSUPP) if rustix::fs::fstatfs(&file)?.f_type as i64 == TMPFS => {
                flags = ReadWriteFlags::empty();
            }
            Err(Errno::AGAIN) => {}
            read => drop(read?),
        }
        Ok(Loan { file, begin, mark, expires, is_there, flags })
    }

    /// Reads extents of the object at time `now` (Unix seconds); the result describes the extents in order, as ranges
    /// of data and holes. Returns `None` if the client must send the read to the iod instead: some bytes are not in the
    /// page cache, or bytes are zero and only the iod knows whether they are a hole.
    ///
    /// # Errors
    /// The loan is no longer valid, and the client must not use the bytes that it read.
    pub(crate) fn read(&self, now: u64, extents: &[ByteRange]) -> Result<Option<Vec<ObjectRun>>, LoanEnded> {
        if now >= self.expires || !(self.is_there)() {
            return Err(LoanEnded);
        }
        let all: u64 = extents.iter().map(|extent| extent.len).sum();
        let mut buffer = Buffer::new(usize::try_from(all).map_err(|_| LoanEnded)?);
        let mut got = Vec::with_capacity(extents.len());
        let mut rest = buffer.bytes();
        for extent in extents {
            let (here, behind) = rest.split_at_mut(extent.len as usize);
            let at = self.begin.checked_add(extent.offset).ok_or(LoanEnded)?;
            got.push(self.read_at(here, at)?);
            rest = behind;
        }
        // Check the loan after the reads, because a loan that is valid now was valid during all reads before.
        let (end, has_holes) = self.checked()?;
        let lacking = |(extent, got): (&ByteRange, &u64)| *got < extent.len && self.begin + extent.offset + got < end;
        if extents.iter().zip(&got).any(lacking) || has_holes && has_zeros(extents, &got, self.begin, buffer.bytes()) {
            return Ok(None);
        }
        let mut bytes = buffer.freeze();
        let mut found = Vec::with_capacity(extents.len());
        for (extent, got) in extents.iter().zip(got) {
            let mut here = bytes.split_to(extent.len as usize);
            here.truncate(got as usize);
            if got > 0 {
                found.push(ObjectRun::Data(here));
            }
            if got < extent.len {
                found.push(ObjectRun::Beyond(extent.len - got));
            }
        }
        Ok(Some(found))
    }

    /// Reads bytes at file offset `at`, if they are in the page cache. Returns the number of bytes that were read,
    /// which may be less than the length of the buffer.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<u64, LoanEnded> {
        loop {
            match rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(buffer)], at, self.flags) {
                Ok(got) => return Ok(got as u64),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(_) => return Err(LoanEnded),
            }
        }
    }

    /// Checks that the loan is valid. Returns the length of the lent file, and whether the file may have holes.
    fn checked(&self) -> Result<(u64, bool), LoanEnded> {
        let mut mark = [0; wire::native::LOAN_MARK_MAX];
        let mark = mark.get_mut(..self.mark.len()).ok_or(LoanEnded)?;
        if self.read_at(mark, 0)? < self.mark.len() as u64 || *mark != *self.mark {
            return Err(LoanEnded);
        }
        match rustix::fs::fstat(&self.file) {
            Ok(Stat { st_nlink: 1.., st_size, st_blocks, .. }) => {
                let end = u64::try_from(st_size).map_err(|_| LoanEnded)?;
                Ok((end, u64::try_from(st_blocks).is_ok_and(|blocks| blocks * STAT_BLOCK < end)))
            }
            _ => Err(LoanEnded),
        }
    }
}

/// Returns whether the bytes that were read include a page (or a part of a page) of zeros only.
fn has_zeros(extents: &[ByteRange], got: &[u64], begin: u64, bytes: &[u8]) -> bool {
    let mut rest = bytes;
    extents.iter().zip(got).any(|(extent, got)| {
        let (here, behind) = rest.split_at(extent.len as usize);
        rest = behind;
        let (mut at, mut here) = (begin + extent.offset, &here[..*got as usize]);
        while !here.is_empty() {
            let (page, next) = here.split_at(here.len().min((PAGE - at % PAGE) as usize));
            if page.iter().all(|byte| *byte == 0) {
                return true;
            }
            (at, here) = (at + page.len() as u64, next);
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    const MARK: &[u8] = b"this is the beginning";
    const BEGIN: u64 = 4096;

    struct Lent {
        _dir: tempfile::TempDir,
        path: std::path::PathBuf,
        file: File,
        loan: Loan,
        is_there: Arc<AtomicBool>,
    }

    /// Creates an object's file with these bytes, and a loan of the file that expires at second 100.
    fn lent(bytes: &[u8]) -> Lent {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("object");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(MARK, 0).unwrap();
        file.set_len(BEGIN).unwrap();
        file.write_all_at(bytes, BEGIN).unwrap();
        let is_there = Arc::new(AtomicBool::new(true));
        let there = is_there.clone();
        let mark = wire::native::Loan { begin: BEGIN, mark: Bytes::from_static(MARK) };
        let read_only = File::open(&path).unwrap().into();
        let loan = Loan::new(read_only, mark, 100, move || there.load(Relaxed)).unwrap();
        Lent { _dir: dir, path, file, loan, is_there }
    }

    impl Lent {
        fn read(&self, now: u64, extents: &[(u64, u64)]) -> Result<Option<Vec<ObjectRun>>, LoanEnded> {
            let extents: Vec<_> =
                extents.iter().map(|(offset, len)| ByteRange { offset: *offset, len: *len }).collect();
            self.loan.read(now, &extents)
        }
    }

    fn data(bytes: &'static [u8]) -> ObjectRun {
        ObjectRun::Data(Bytes::from_static(bytes))
    }

    #[test]
    fn a_read_returns_bytes_and_what_is_beyond_the_end() {
        let lent = lent(b"0123456789");
        let read = |extents: &[(u64, u64)]| lent.read(99, extents).unwrap().unwrap();
        assert_eq!(read(&[(0, 10)]), [data(b"0123456789")]);
        assert_eq!(
            read(&[(8, 1), (2, 3), (9, 5), (50, 7)]),
            [data(b"8"), data(b"234"), data(b"9"), ObjectRun::Beyond(4), ObjectRun::Beyond(7)]
        );
        assert_eq!(read(&[]), []);
        assert_eq!(lent.read(99, &[(u64::MAX - 5, 1)]), Err(LoanEnded), "the offset is beyond the largest file offset");
        lent.file.set_len(BEGIN + 3).unwrap();
        assert_eq!(read(&[(0, 10)]), [data(b"012"), ObjectRun::Beyond(7)]);
    }

    #[test]
    fn expiry_disconnect_fence_and_removal_end_a_loan() {
        let good = |lent: &Lent, now| lent.read(now, &[(0, 4)]).is_ok();
        let one = lent(b"bytes");
        assert!(good(&one, 99) && !good(&one, 100), "the capability expires at second 100");
        one.is_there.store(false, Relaxed);
        assert!(!good(&one, 99), "the connection to the iod is closed");

        for (at, byte) in MARK.iter().enumerate() {
            let fenced = lent(b"bytes");
            fenced.file.write_all_at(&[byte ^ 1], at as u64).unwrap();
            assert!(!good(&fenced, 99), "byte {at}");
        }

        let removed = lent(b"bytes");
        std::fs::remove_file(&removed.path).unwrap();
        std::fs::write(&removed.path, std::fs::read("/proc/self/exe").unwrap()).unwrap();
        assert!(!good(&removed, 99));

        let cut = lent(b"bytes");
        cut.file.set_len(5).unwrap();
        assert!(!good(&cut, 99), "the file is shorter than an object header");
    }

    #[test]
    fn bytes_outside_the_page_cache_are_not_waited_for_and_not_taken_for_the_end() {
        let bytes = Bytes::from((0..1 << 20).map(|n: u32| (n / 4096) as u8).collect::<Vec<_>>());
        let lent = lent(&bytes);
        lent.file.sync_all().unwrap();
        if rustix::fs::fstatfs(&lent.file).unwrap().f_type as i64 == TMPFS {
            eprintln!("tmpfs keeps all bytes in memory: the test checks nothing");
            return;
        }
        let (mut missed, half) = (0, 1 << 19);
        for len in [1 << 20, 3 << 18, 4096].into_iter().cycle().take(300) {
            let there = std::num::NonZeroU64::new(1 << 20);
            rustix::fs::fadvise(&lent.file, BEGIN + half, there, rustix::fs::Advice::DontNeed).unwrap();
            let at = if len == 4096 { 3 << 18 } else { 0 };
            // After a read that misses the page cache, the kernel may load the missing bytes from the disk. So a later
            // read of the same bytes may succeed.
            match lent.read(0, &[(at, len)]).unwrap() {
                None => missed += 1,
                Some(found) => assert!(found == [ObjectRun::Data(bytes.slice(at as usize..(at + len) as usize))]),
            }
            assert!(
                lent.read(0, &[(1 << 20, 9)]).unwrap().unwrap() == [ObjectRun::Beyond(9)],
                "a read beyond the end needs no disk access"
            );
        }
        assert!(missed > 0, "every read found all bytes in memory");
    }

    #[test]
    fn zeros_in_a_file_with_holes_are_not_returned_as_data() {
        let mut bytes = vec![7; 3 * PAGE as usize];
        bytes[PAGE as usize..2 * PAGE as usize].fill(0);
        let lent = lent(&bytes);
        lent.file.write_all_at(&vec![1; BEGIN as usize - MARK.len()], MARK.len() as u64).unwrap();
        lent.file.sync_all().unwrap();
        let all = [(0, 3 * PAGE)];
        assert!(
            lent.read(0, &all).unwrap().unwrap() == [ObjectRun::Data(bytes.into())],
            "the file has no holes, so its zeros are data"
        );
        lent.file.set_len(BEGIN + 90 * PAGE).unwrap();
        let read = |offset, len| lent.read(0, &[(0, 5), (offset, len)]).unwrap().is_some();
        assert!(read(0, PAGE) && read(2 * PAGE, PAGE) && read(0, PAGE - 1));
        for (offset, len) in
            [(PAGE / 2, PAGE), (PAGE, PAGE), (PAGE, 1), (2 * PAGE - 1, 2), (0, 3 * PAGE), (50 * PAGE, 5)]
        {
            assert!(!read(offset, len), "{len} bytes at {offset}");
        }
    }

    #[test]
    fn only_regular_files_can_be_lent() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let loan = || wire::native::Loan { begin: 0, mark: Bytes::from_static(b"m") };
        assert!(Loan::new(reader.into(), loan(), 9, || true).is_err());
        let dir = File::open("/").unwrap();
        assert!(Loan::new(dir.into(), loan(), 9, || true).is_err());
    }
}
