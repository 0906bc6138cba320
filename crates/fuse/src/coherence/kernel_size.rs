//! Coherence of the kernel's cached size and times: reads what the kernel has cached for a file, and corrects it.
//!
//! With a write-back cache, the kernel takes size and times of a regular file only from calls that set them. So when
//! another client has changed a file, this process sets them as any program would. The mount answers the resulting
//! SETATTR from its own records.

use crate::mounting;
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps, UTIME_OMIT};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use types::{Attrs, Timestamp};

/// The type of FUSE file handles: `FILEID_INO64_GEN` of Linux `include/linux/exportfs.h`.
const FILEID_INO64_GEN: i32 = 0x81;
/// How often [`KernelSizes::expire`] and [`KernelSizes::show_size`] try at most.
const EXPIRES: usize = 1000;
/// Bytes of such a handle: both halves of the node id, and the generation.
const FILEID_LEN: usize = 12;

/// `struct file_handle` (Linux `include/linux/fs.h`) of a FUSE file.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    id: [u32; FILEID_LEN / 4],
}

/// Access to the attributes that the kernel has cached.
#[derive(Default)]
pub(super) struct KernelSizes {
    /// The directory of the mount, and its device number.
    place: OnceLock<(PathBuf, (u32, u32))>,
    /// Threads of this process that are setting attributes, and the attributes that each sets.
    setting: Mutex<HashMap<u32, Told>>,
    /// Threads of this process that make the kernel ask for attributes, and the size in the answer to the kernel, if it
    /// asked.
    expiring: Mutex<HashMap<u32, Option<u64>>>,
}

/// The attributes that this process is setting on a file.
#[derive(Clone)]
pub(super) struct Told {
    attrs: Attrs,
    /// The modification time that was set first, for a shared file that is written to the page cache. No write sets
    /// that time.
    mark: Option<Timestamp>,
    /// The path of the file, valid while the attributes are being set.
    path: Arc<CString>,
}

impl Told {
    /// Returns the attributes that the kernel has to cache.
    pub(super) fn attrs(&self) -> Attrs {
        self.attrs
    }

    /// Returns whether the file is a shared file that is written to the page cache.
    pub(super) fn is_of_shared(&self) -> bool {
        self.mark.is_some()
    }

    /// Returns whether no program wrote to the page cache of the file since `mark` was set: a write would have changed
    /// the time.
    pub(super) fn is_untouched(&self) -> bool {
        let Some(mark) = self.mark else { return false };
        let believed = rustix::fs::statx(CWD, &*self.path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS);
        believed.is_ok_and(|believed| !differs(&believed, &Attrs { mtime: mark, ..self.attrs }).1)
    }
}

/// A thread is setting attributes, until this is dropped.
struct Setting<'a>(&'a KernelSizes, u32);

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        self.0.setting().remove(&self.1);
    }
}

impl KernelSizes {
    fn setting(&self) -> MutexGuard<'_, HashMap<u32, Told>> {
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records where the file system is mounted.
    pub(super) fn mounted_at(&self, dir: &Path) {
        if let Some(device) = mounting::device_numbers_at(dir) {
            let _ = self.place.set((dir.to_owned(), device));
        }
    }

    /// Returns the attributes that a thread of this process is setting, if it is.
    pub(super) fn set_by(&self, thread: u32) -> Option<Told> {
        self.setting().get(&thread).cloned()
    }

    fn expiring(&self) -> MutexGuard<'_, HashMap<u32, Option<u64>>> {
        self.expiring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a thread of this process asks for attributes in [`KernelSizes::expire`] or [`KernelSizes::show_size`].
    pub(super) fn is_expiring(&self, thread: u32) -> bool {
        self.expiring().contains_key(&thread)
    }

    /// Records that the answer to such a thread's request contains this size.
    pub(super) fn answers(&self, thread: u32, size: u64) {
        if let Some(answered) = self.expiring().get_mut(&thread) {
            *answered = Some(size);
        }
    }

    /// Makes the kernel ask for the attributes of a file, which get no lifetime. From then on the kernel asks before
    /// each read of the file. An `INVAL_INODE` does not achieve that, as the kernel does not count the size among what
    /// it has to ask for. Like [`KernelSizes::correct`], this needs a thread of its own.
    ///
    /// The kernel drops an answer if it has to forget pages, or a program truncates the file, before the answer
    /// arrives. So this repeats until the kernel asks the mount for the size. The kernel does not ask while its cached
    /// size is valid.
    ///
    /// # Errors
    /// `NotFound`: the kernel has forgotten the file. `TimedOut`: the cached attributes of the kernel remained valid.
    pub(super) fn expire(&self, number: u64) -> io::Result<()> {
        let (file, _) = self.look(number)?;
        for _ in 0..EXPIRES {
            if self.ask(&file, AtFlags::empty(), StatxFlags::SIZE)?.is_some() {
                return Ok(());
            }
            self.ask(&file, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)?;
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Makes the kernel ask for the size of a file until it caches the answer, and returns that size. The kernel drops
    /// an answer if a write ends meanwhile. For mounts that do not write back. Like [`KernelSizes::correct`], this needs a
    /// thread of its own.
    ///
    /// # Errors
    /// The errors of [`KernelSizes::expire`].
    pub(super) fn show_size(&self, number: u64) -> io::Result<u64> {
        let (file, _) = self.look(number)?;
        for _ in 0..EXPIRES {
            let answered = self.ask(&file, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)?;
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let believed = rustix::fs::statx(&file, c"", flags, StatxFlags::BASIC_STATS)?;
            if answered == Some(believed.stx_size) {
                return Ok(believed.stx_size);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Returns the size that the kernel has cached. Like [`KernelSizes::correct`], this needs a thread of its own.
    ///
    /// # Errors
    /// `NotFound`: the kernel has forgotten the file.
    pub(super) fn size(&self, number: u64) -> io::Result<u64> {
        Ok(self.look(number)?.1.stx_size)
    }

    /// Asks for attributes in this thread. Returns the size in the answer to the kernel, if the kernel asked.
    fn ask(&self, file: &OwnedFd, how: AtFlags, what: StatxFlags) -> io::Result<Option<u64>> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        self.expiring().insert(thread, None);
        let told = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH | how, what);
        let answered = self.expiring().remove(&thread).flatten();
        Ok(told.map(|_| answered)?)
    }

    /// Returns the kernel's inode with this number, if it has one, and its cached attributes. Opening the directory
    /// makes a request to this very file system.
    fn look(&self, number: u64) -> io::Result<(OwnedFd, Statx)> {
        let (dir, device) = self.place.get().ok_or_else(|| io::Error::other("where the mount is, is not known"))?;
        let mount = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let file = open_by_number(mount, number)?;
        // STATX_BASIC_STATS selects the cached attributes, and the flag keeps the kernel from asking this mount.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let believed = rustix::fs::statx(&file, c"", flags, StatxFlags::BASIC_STATS)?;
        if (believed.stx_dev_major, believed.stx_dev_minor) != *device {
            // Another file system is mounted there by now.
            return Err(io::Error::other("something else is mounted there"));
        }
        Ok((file, believed))
    }

    /// Makes the kernel cache the size and modification time in `attrs`. Returns the attributes from `refresh` if it
    /// had to set the size or, of an unshared file, the time; otherwise `None`. May wait for a caller that has the
    /// inode locked, such as a write, so a thread that answers requests must never call it. It makes requests to this
    /// very file system, and needs a thread of its own ([`crate::self_requests`]).
    ///
    /// `refresh` returns the present attributes of the file, as `attrs` may be old by now. A *shared* file is written
    /// to the page cache meanwhile. For a shared file, this call always compares the size, and compares the time only
    /// if `times`. It sets the time first, and then `refresh` writes back the earlier writes. The handler of the
    /// request that sets the size checks whether a program wrote since.
    ///
    /// # Errors
    /// `NotFound`: the kernel has forgotten the file. After every error, the kernel's cached attributes are unknown.
    pub(super) fn correct(
        &self,
        number: u64,
        attrs: &Attrs,
        (shared, times): (bool, bool),
        refresh: impl FnOnce() -> io::Result<Attrs>,
    ) -> io::Result<Option<Attrs>> {
        let (file, believed) = self.look(number)?;
        let (size, mtime) = differs(&believed, attrs);
        if !size && (!mtime || shared && !times) {
            return Ok(None);
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        // The path goes through the descriptor table of this thread, and other processes can resolve it too. `/proc`
        // has its own names for threads, whose numbers may be of another PID namespace.
        let here = std::fs::read_link("/proc/thread-self")?;
        let path = format!("/proc/{}/fd/{}", here.display(), file.as_raw_fd());
        let path = Arc::new(CString::new(path).map_err(io::Error::other)?);
        let mark = shared.then(|| if size { earlier_than_writes(attrs.mtime) } else { attrs.mtime });
        let setting = |attrs: Attrs| Told { attrs, mark, path: path.clone() };
        self.setting().insert(thread, setting(*attrs));
        let _setting = Setting(self, thread);
        if let Some(mark) = mark {
            set_time(&path, mark)?;
            if !size {
                return Ok(None);
            }
        }
        let fresh = refresh()?;
        self.setting().insert(thread, setting(fresh));
        let len = i64::try_from(fresh.size).map_err(io::Error::other)?;
        // SAFETY: the string ends with a zero byte, and the other argument is an integer.
        if unsafe { libc::truncate64(path.as_ptr(), len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        set_time(&path, fresh.mtime)?;
        Ok(Some(fresh))
    }
}

/// Returns this time, or a time just before now if it is in the future: no write from now on sets it. The kernel takes
/// the times of writes from a clock that advances once in some milliseconds.
fn earlier_than_writes(time: Timestamp) -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let before = match now.tv_nsec {
        0 => Timestamp { secs: now.tv_sec - 1, nanos: 999_999_999 },
        nanos => Timestamp { secs: now.tv_sec, nanos: nanos as u32 - 1 },
    };
    time.min(before)
}

fn set_time(path: &CStr, mtime: Timestamp) -> io::Result<()> {
    let mtime = Timespec { tv_sec: mtime.secs, tv_nsec: i64::from(mtime.nanos) };
    let times = Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: mtime };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())?)
}

/// Returns whether the size and the modification time differ.
fn differs(believed: &Statx, attrs: &Attrs) -> (bool, bool) {
    let mtime = (believed.stx_mtime.tv_sec, believed.stx_mtime.tv_nsec);
    (believed.stx_size != attrs.size, mtime != (attrs.mtime.secs, attrs.mtime.nanos))
}

/// Opens the kernel's inode with this number with `O_PATH`, for statx and for its path; this makes no request.
fn open_by_number(mount: impl AsFd, number: u64) -> io::Result<OwnedFd> {
    // Every entry of this mount has the generation 0.
    let id = [(number >> 32) as u32, number as u32, 0];
    let mut handle = FileHandle { bytes: FILEID_LEN as u32, kind: FILEID_INO64_GEN, id };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    let handle: *mut FileHandle = &mut handle;
    // SAFETY: the handle is as long as it says, and is only read.
    let fd = unsafe { libc::open_by_handle_at(mount.as_fd().as_raw_fd(), handle.cast(), flags) };
    match fd {
        // The kernel has no such inode.
        ..0 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESTALE) => Err(io::ErrorKind::NotFound.into()),
            error => Err(error),
        },
        // SAFETY: it was opened just now, and no other owner exists.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Returns whether this process may do all this: it needs the right to open files by handle (`CAP_DAC_READ_SEARCH`).
pub(super) fn may() -> bool {
    let Ok(here) = rustix::fs::open("/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    match open_by_number(here, u64::MAX) {
        // The kernel checks the right first.
        Err(error) => error.kind() != io::ErrorKind::PermissionDenied,
        Ok(_) => true,
    }
}
