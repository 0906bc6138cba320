//! The system call of the thread that waits for a FUSE request, read from `/proc/<tid>/syscall`.
//!
//! A FUSE request does not say whether a program named a file by a path or by a descriptor. After ESTALE, the kernel
//! walks a path again, but a call with a descriptor fails. So the mount reads the system call to choose the reply.

use libc::c_long;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use types::ByteRange;

/// The time limit for reading the system call of a thread.
const SHOWN_WITHIN: Duration = Duration::from_millis(100);
/// Pauses in milliseconds between attempts to read the system call of a thread that `/proc` shows as running. The
/// kernel shows a call only while the thread waits, and does not report when the wait begins.
const PAUSES: [u64; 8] = [0, 0, 0, 1, 2, 5, 10, 20];
/// Largest number of buffers in one system call (`UIO_MAXIOV`).
const BUFFERS_MAX: u64 = 1024;
/// Longest path of a system call in bytes, with the zero byte at its end.
const PATH_MAX: usize = 4096;
/// `AT_EMPTY_PATH`: an empty path stands for the file to which the descriptor refers.
const EMPTY_PATH: u64 = 0x1000;
/// The numbers of newer system calls, which are the same on every architecture. libc may not define these numbers.
const FCHMODAT2: c_long = 452;
const SETXATTRAT: c_long = 463;
const GETXATTRAT: c_long = 464;
const LISTXATTRAT: c_long = 465;
const REMOVEXATTRAT: c_long = 466;

/// The system call in which a thread waits for the reply to its FUSE request.
#[derive(Debug, Default)]
pub(crate) struct Call {
    thread: u32,
    /// The content of `/proc/<tid>/syscall`: the number and the arguments of the call.
    text: String,
    number: Option<c_long>,
    arguments: [u64; 6],
}

/// How a system call names the file whose attributes the call reads or changes.
enum Names {
    /// The system call always names the file by a path.
    Path,
    /// The system call names the file by a path, unless the argument with this index is a null pointer.
    PathUnlessNull(usize),
    /// The system call names the file by a path, unless the argument with this index contains the flag
    /// `AT_EMPTY_PATH`.
    PathUnlessEmpty(usize),
}

/// Returns the result of `look` for the system call of a thread, or the default if the mount cannot read the call in
/// time.
///
/// The kernel shows the call and the memory of a process under locks that the process holds during execve(2). Such a
/// process may wait for the very FUSE request for which the mount reads the call. So a separate thread reads the call,
/// and the mount waits at most [`SHOWN_WITHIN`] for this thread.
pub(crate) async fn look<T: Default + Send + 'static>(thread: u32, look: impl FnOnce(Call) -> T + Send + 'static) -> T {
    let looking = tokio::task::spawn_blocking(move || look(Call::of(thread)));
    let looked = tokio::time::timeout(SHOWN_WITHIN, looking).await;
    looked.ok().and_then(Result::ok).unwrap_or_default()
}

impl Call {
    /// Returns the system call in which a thread waits. The call is unknown if `/proc` does not show the thread, or if
    /// io_uring made the request.
    fn of(thread: u32) -> Self {
        let read = || std::fs::read_to_string(format!("/proc/{thread}/syscall")).unwrap_or_default();
        let mut text = read();
        for pause in PAUSES {
            // The thread has sent the request but does not wait for the reply yet, perhaps because another thread
            // occupies its processor. Until the thread waits, `/proc` does not show its call.
            if !text.starts_with("running") {
                break;
            }
            std::thread::sleep(Duration::from_millis(pause));
            text = read();
        }
        Call::parse(thread, text)
    }

    fn parse(thread: u32, text: String) -> Self {
        // If `/proc` shows the thread as running after all pauses, its call is unknown.
        let text = if text.starts_with("running") { String::new() } else { text };
        let mut words = text.split_whitespace();
        let number = words.next().and_then(|number| number.parse().ok()).filter(|number| *number >= 0);
        let mut arguments = [0; 6];
        for (argument, word) in arguments.iter_mut().zip(words) {
            *argument = word.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
        }
        Call { thread, text, number, arguments }
    }

    /// Returns whether the mount could not read the system call.
    pub(crate) fn is_unknown(&self) -> bool {
        self.number.is_none()
    }

    /// Returns the content of `/proc/<tid>/syscall`, which distinguishes this call from other calls of the thread.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the call reads or changes the attributes of a file that the call names by a path. Returns false
    /// for an unknown call.
    pub(crate) fn is_by_path(&self) -> bool {
        let Some(number) = self.number else { return false };
        let names = match number {
            libc::SYS_truncate | libc::SYS_fchmodat | libc::SYS_openat | libc::SYS_openat2 => Names::Path,
            libc::SYS_setxattr | libc::SYS_lsetxattr | libc::SYS_getxattr | libc::SYS_lgetxattr => Names::Path,
            libc::SYS_listxattr | libc::SYS_llistxattr | libc::SYS_removexattr | libc::SYS_lremovexattr => Names::Path,
            libc::SYS_utimensat => match self.arguments[1] {
                0 => return false,
                _ => Names::PathUnlessEmpty(3),
            },
            libc::SYS_fchownat => Names::PathUnlessEmpty(4),
            FCHMODAT2 => Names::PathUnlessEmpty(3),
            SETXATTRAT | GETXATTRAT | LISTXATTRAT | REMOVEXATTRAT => Names::PathUnlessEmpty(2),
            number => match old_names(number) {
                Some(names) => names,
                None => return false,
            },
        };
        match names {
            Names::Path => true,
            Names::PathUnlessNull(at) => self.arguments[at] != 0,
            Names::PathUnlessEmpty(at) => self.arguments[at] & EMPTY_PATH == 0,
        }
    }

    /// Returns whether the call writes to a file. Returns false for an unknown call.
    pub(crate) fn writes(&self) -> bool {
        const WRITES: [c_long; 7] = [
            libc::SYS_write,
            libc::SYS_pwrite64,
            libc::SYS_writev,
            libc::SYS_pwritev,
            libc::SYS_pwritev2,
            libc::SYS_sendfile,
            libc::SYS_splice,
        ];
        self.is_one_of(&WRITES) || self.is_asynchronous()
    }

    /// Returns the byte range of a file that the call writes, or `None` if the range is unknown.
    pub(crate) fn written_range(&self) -> Option<ByteRange> {
        let [descriptor, from, count, offset, ..] = self.arguments;
        let (len, named) = match self.number? {
            libc::SYS_write => (count, false),
            libc::SYS_pwrite64 => (count, true),
            libc::SYS_writev => (self.buffers(from, count)?, false),
            libc::SYS_pwritev => (self.buffers(from, count)?, true),
            // The offset -1 of pwritev2(2) stands for the file position of the descriptor, so read this position
            // instead.
            libc::SYS_pwritev2 => (self.buffers(from, count)?, offset != u64::MAX),
            _ => return None,
        };
        ByteRange::new(if named { offset } else { self.shown_of(descriptor, "pos:")? }, len)
    }

    /// Returns the total length in bytes of the buffers in an `iovec` array of the calling process.
    fn buffers(&self, from: u64, count: u64) -> Option<u64> {
        let mut list = vec![0; size_of::<libc::iovec>() * count.min(BUFFERS_MAX) as usize];
        File::open(format!("/proc/{}/mem", self.thread)).ok()?.read_exact_at(&mut list, from).ok()?;
        // Each `struct iovec` has two words, `iov_base` and `iov_len`, so read the second word.
        let lens = list.chunks_exact(size_of::<libc::iovec>()).map(|buffer| buffer[size_of::<usize>()..].try_into());
        lens.map(|len| len.ok().map(u64::from_ne_bytes)).try_fold(0u64, |sum, len| sum.checked_add(len?))
    }

    /// Returns a value in the `fdinfo` file of a descriptor: the file position (`pos:`) or the inode number (`ino:`).
    fn shown_of(&self, descriptor: u64, what: &str) -> Option<u64> {
        let shown = std::fs::read_to_string(format!("/proc/{}/fdinfo/{descriptor}", self.thread)).ok()?;
        shown.lines().find_map(|line| line.strip_prefix(what)?.trim().parse().ok())
    }

    /// Returns whether the call reads from a file. Returns false for an unknown call.
    pub(crate) fn reads(&self) -> bool {
        const READS: [c_long; 7] = [
            libc::SYS_read,
            libc::SYS_pread64,
            libc::SYS_readv,
            libc::SYS_preadv,
            libc::SYS_preadv2,
            libc::SYS_sendfile,
            libc::SYS_splice,
        ];
        self.is_one_of(&READS) || self.is_asynchronous()
    }

    /// Returns whether the call is a write that need not be durable when the call returns. Does not check the
    /// descriptor for `O_SYNC` or `O_DSYNC`.
    pub(crate) fn writes_lazily(&self) -> bool {
        // The mask 0x6 contains RWF_DSYNC and RWF_SYNC. The mount cannot see the flags of an asynchronous call
        // (io_submit, io_uring), so assume that such a call requires durable bytes.
        let syncs = self.number == Some(libc::SYS_pwritev2) && self.arguments[5] & 0x6 != 0;
        self.writes() && !syncs && !self.is_asynchronous()
    }

    /// Returns whether the call is an lseek(2) relative to the end of a file (`SEEK_END`).
    pub(crate) fn seeks_the_end(&self) -> bool {
        self.number == Some(libc::SYS_lseek) && self.arguments[2] == libc::SEEK_END as u64
    }

    /// Returns whether the call opens a file by a path.
    pub(crate) fn opens(&self) -> bool {
        self.is_one_of(&[libc::SYS_openat, libc::SYS_openat2]) || self.number.is_some_and(is_old_open)
    }

    fn is_asynchronous(&self) -> bool {
        self.is_one_of(&[libc::SYS_io_submit, libc::SYS_io_uring_enter])
    }

    fn is_one_of(&self, numbers: &[c_long]) -> bool {
        self.number.is_some_and(|number| numbers.contains(&number))
    }

    /// Returns whether the call requests the attributes of an open descriptor.
    pub(crate) fn is_fstat(&self) -> bool {
        match self.number {
            Some(libc::SYS_fstat) => true,
            Some(libc::SYS_newfstatat) => self.arguments[3] & EMPTY_PATH != 0,
            Some(libc::SYS_statx) => self.arguments[2] & EMPTY_PATH != 0,
            _ => false,
        }
    }

    /// Returns whether the call creates a name and fails after ESTALE, because the kernel does not walk the path of
    /// this call again. The only such call is bind(2) of a Unix socket.
    pub(crate) fn never_walks_again(&self) -> bool {
        self.number == Some(libc::SYS_bind)
    }

    /// Returns whether the call creates a file with the name `name` without opening the file. `dir` is the name of the
    /// directory, if the mount knows the name. If the mount replies ESTALE to such a call for the last name of the
    /// path, the kernel does not walk the path again.
    pub(crate) fn makes(&self, dir: Option<&[u8]>, name: &[u8]) -> bool {
        let (at, source) = match self.number {
            Some(libc::SYS_mkdirat | libc::SYS_mknodat) => (1, None),
            Some(libc::SYS_symlinkat) => (2, None),
            Some(libc::SYS_linkat) => (3, Some(1)),
            Some(number) => match old_making(number) {
                Some(found) => found,
                None => return false,
            },
            None => return false,
        };
        // If the mount cannot read the path argument of the call, `name` is most likely the last name of the path, so
        // assume that.
        let Some(path) = self.path(at) else { return true };
        let Some((last, above)) = names(&path).split_last().map(|(last, above)| (*last, above.to_vec())) else {
            return false;
        };
        let source = source.and_then(|at| self.path(at)).unwrap_or_default();
        let elsewhere = above.contains(&name) || names(&source).contains(&name);
        // If `name` occurs several times in the paths of the call, the request may concern another occurrence of
        // `name`. So also compare the name of the directory, which may differ if a symbolic link leads to the
        // directory.
        let here = || above.last().zip(dir).is_none_or(|(above, dir)| *above == dir);
        last == name && (!elsewhere || here())
    }

    /// Returns whether the path argument of the call is only `name`, relative to a descriptor of the directory with
    /// the inode number `dir`. For such a call, the kernel does not look up the directory by a name.
    pub(crate) fn begins_at(&self, dir: u64, name: &[u8]) -> bool {
        const AT_DESCRIPTOR: [c_long; 11] = [
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_unlinkat,
            libc::SYS_newfstatat,
            libc::SYS_statx,
            libc::SYS_readlinkat,
            libc::SYS_faccessat,
            libc::SYS_faccessat2,
            libc::SYS_fchmodat,
            libc::SYS_fchownat,
            libc::SYS_utimensat,
        ];
        let begins = |path: Vec<u8>| !path.starts_with(b"/") && names(&path) == [name];
        self.is_one_of(&AT_DESCRIPTOR)
            && self.path(1).is_some_and(begins)
            && self.shown_of(self.arguments[0], "ino:") == Some(dir)
    }

    /// Returns the path to which the argument with the given index points.
    fn path(&self, at: usize) -> Option<Vec<u8>> {
        let memory = File::open(format!("/proc/{}/mem", self.thread)).ok()?;
        let (mut path, mut from) = (Vec::new(), self.arguments[at]);
        while path.len() < PATH_MAX {
            // Read at most up to the end of the memory page, because the next page may not be mapped.
            let mut piece = vec![0; PATH_MAX - from as usize % PATH_MAX];
            memory.read_exact_at(&mut piece, from).ok()?;
            if let Some(end) = piece.iter().position(|byte| *byte == 0) {
                path.extend_from_slice(&piece[..end]);
                return Some(path);
            }
            from = from.checked_add(piece.len() as u64)?;
            path.append(&mut piece);
        }
        None
    }
}

/// Returns the names on a path, without slashes.
fn names(path: &[u8]) -> Vec<&[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect()
}

/// Returns how a system call names its file. Handles only calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
fn old_names(number: c_long) -> Option<Names> {
    match number {
        libc::SYS_chmod | libc::SYS_chown | libc::SYS_lchown | libc::SYS_utime | libc::SYS_utimes => Some(Names::Path),
        libc::SYS_open | libc::SYS_creat => Some(Names::Path),
        libc::SYS_futimesat => Some(Names::PathUnlessNull(1)),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn old_names(_: c_long) -> Option<Names> {
    None
}

/// Returns whether a system call opens a file. Handles only calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
fn is_old_open(number: c_long) -> bool {
    matches!(number, libc::SYS_open | libc::SYS_creat)
}

#[cfg(not(target_arch = "x86_64"))]
fn is_old_open(_: c_long) -> bool {
    false
}

/// Returns the argument index of the path to create and, for link(2), of the path of the existing file. Handles only
/// calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
fn old_making(number: c_long) -> Option<(usize, Option<usize>)> {
    match number {
        libc::SYS_mkdir | libc::SYS_mknod => Some((0, None)),
        libc::SYS_symlink => Some((1, None)),
        libc::SYS_link => Some((1, Some(0))),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn old_making(_: c_long) -> Option<(usize, Option<usize>)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: c_long, arguments: [u64; 6]) -> Call {
        let words = arguments.map(|argument| format!("{argument:#x}")).join(" ");
        Call::parse(7, format!("{number} {words} 0x7fff12345678 0x7f0012345678\n"))
    }

    #[test]
    fn calls_by_descriptor_are_distinguished_from_calls_by_path() {
        let by_path = |number, arguments| call(number, arguments).is_by_path();
        assert!(by_path(libc::SYS_truncate, [0x7000, 5, 0, 0, 0, 0]));
        assert!(!by_path(libc::SYS_ftruncate, [3, 5, 0, 0, 0, 0]));
        assert!(by_path(libc::SYS_fchmodat, [3, 0x7000, 0o644, 0, 0, 0]) && !by_path(libc::SYS_fchmod, [3; 6]));
        assert!(by_path(libc::SYS_utimensat, [3, 0x7000, 0, 0, 0, 0]));
        assert!(!by_path(libc::SYS_utimensat, [3, 0, 0x7000, 0, 0, 0]), "futimens");
        assert!(!by_path(libc::SYS_utimensat, [3, 0x7000, 0, 0x1000, 0, 0]));
        assert!(by_path(libc::SYS_fchownat, [3, 0x7000, 0, 0, 0x100, 0]));
        assert!(!by_path(libc::SYS_fchownat, [3, 0x7000, 0, 0, 0x1100, 0]));
        assert!(by_path(libc::SYS_setxattr, [0x7000; 6]) && !by_path(libc::SYS_fsetxattr, [3; 6]));
        assert!(!by_path(libc::SYS_write, [3; 6]), "a write clears setuid bits");
        for unknown in ["running\n", "-1 0x7fff12345678 0x7f0012345678\n", ""] {
            let call = Call::parse(7, unknown.to_owned());
            assert!(call.is_unknown() && !call.is_by_path());
        }
    }

    #[test]
    fn fstat_is_recognized_for_every_system_call_that_libc_uses() {
        assert!(call(libc::SYS_fstat, [3; 6]).is_fstat());
        assert!(call(libc::SYS_newfstatat, [3, 0x7000, 0x7100, 0x1000, 0, 0]).is_fstat());
        assert!(!call(libc::SYS_newfstatat, [3, 0x7000, 0x7100, 0x100, 0, 0]).is_fstat());
        assert!(call(libc::SYS_statx, [3, 0x7000, 0x1000, 0xfff, 0x7100, 0]).is_fstat());
        assert!(!call(libc::SYS_statx, [3, 0x7000, 0x100, 0xfff, 0x7100, 0]).is_fstat());
    }

    #[test]
    fn the_created_name_is_the_last_component_of_the_path() {
        let path = b"live/sub/new//\0";
        let made =
            Call { thread: std::process::id(), ..call(libc::SYS_mkdirat, [3, path.as_ptr() as u64, 0, 0, 0, 0]) };
        assert!(made.makes(None, b"new") && !made.makes(None, b"sub") && !made.makes(None, b"live"));
        assert!(made.makes(Some(b"target"), b"new"), "a symbolic link may lead to a directory of another name");
        let opened = Call { thread: std::process::id(), ..call(libc::SYS_openat, made.arguments) };
        assert!(!opened.makes(None, b"new"), "the kernel walks the path of open again");
        assert!(call(libc::SYS_mkdirat, [3, 8, 0, 0, 0, 0]).makes(None, b"x"), "a path that cannot be read");
        let twice = b"p/a/a\0";
        let nested =
            Call { thread: std::process::id(), ..call(libc::SYS_mkdirat, [3, twice.as_ptr() as u64, 0, 0, 0, 0]) };
        assert!(nested.makes(Some(b"a"), b"a") && !nested.makes(Some(b"p"), b"a"));
        let (from, to) = (b"d/f\0", b"e/f\0");
        let arguments = [3, from.as_ptr() as u64, 3, to.as_ptr() as u64, 0, 0];
        let linked = Call { thread: std::process::id(), ..call(libc::SYS_linkat, arguments) };
        assert!(
            linked.makes(Some(b"e"), b"f") && !linked.makes(Some(b"d"), b"f"),
            "this is the name of the source, not of the new link"
        );
        assert!(call(libc::SYS_bind, [3; 6]).never_walks_again());
    }

    #[test]
    fn a_path_of_one_name_begins_at_an_open_directory() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        let dir = File::open("/").unwrap();
        let ino = dir.metadata().unwrap().ino();
        let begins = |number, path: &[u8], ino| {
            let arguments = [dir.as_raw_fd() as u64, path.as_ptr() as u64, 3, 3, 3, 3];
            Call { thread: std::process::id(), ..call(number, arguments) }.begins_at(ino, b"sub")
        };
        assert!(begins(libc::SYS_openat, b"sub\0", ino) && begins(libc::SYS_unlinkat, b"sub/\0", ino));
        assert!(!begins(libc::SYS_openat, b"sub\0", ino + 1), "a symbolic link that leads to another directory");
        assert!(!begins(libc::SYS_openat, b"/sub\0", ino) && !begins(libc::SYS_openat, b"sub/f\0", ino));
        assert!(!begins(libc::SYS_openat, b"other\0", ino) && !begins(libc::SYS_openat, b"\0", ino));
        assert!(!begins(libc::SYS_fsync, b"sub\0", ino));
    }

    #[test]
    fn the_range_of_a_write_call_is_found() {
        use std::io::{Seek, SeekFrom};
        let of_this = |number, arguments| Call { thread: std::process::id(), ..call(number, arguments) };
        let range = |offset, len| ByteRange::new(offset, len);
        let mut file = File::open("/proc/self/exe").unwrap();
        file.seek(SeekFrom::Start(77)).unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file) as u64;
        let buffers = [[0u8; 5].as_slice(), &[0; 8]].map(std::io::IoSlice::new);
        let list = buffers.as_ptr() as u64;
        let written = |number, arguments| of_this(number, arguments).written_range();
        assert_eq!(written(libc::SYS_pwrite64, [descriptor, 0x7000, 9, 4, 0, 0]), range(4, 9));
        assert_eq!(written(libc::SYS_write, [descriptor, 0x7000, 9, 4, 0, 0]), range(77, 9));
        assert_eq!(written(libc::SYS_writev, [descriptor, list, 2, 0, 0, 0]), range(77, 13));
        assert_eq!(written(libc::SYS_pwritev, [descriptor, list, 2, 6, 0, 0]), range(6, 13));
        assert_eq!(written(libc::SYS_pwritev2, [descriptor, list, 1, u64::MAX, 0, 0]), range(77, 5));
        assert_eq!(written(libc::SYS_writev, [descriptor, 8, 2, 0, 0, 0]), None, "no list is at this address");
        assert_eq!(written(libc::SYS_write, [u64::MAX, 0x7000, 9, 4, 0, 0]), None);
        assert_eq!(written(libc::SYS_sendfile, [descriptor; 6]), None);
    }

    #[test]
    fn the_system_call_of_a_waiting_thread_is_read() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let waits = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            std::io::Read::read(&mut reader, &mut [0]).unwrap()
        });
        let thread = receiver.recv().unwrap();
        let began = std::time::Instant::now();
        while Call::of(thread).number != Some(libc::SYS_read) {
            assert!(began.elapsed().as_secs() < 60, "{:?}", Call::of(thread));
        }
        drop(writer);
        assert_eq!(waits.join().unwrap(), 0);
    }
}
