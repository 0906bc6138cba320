//! Coherence of the kernel's cached size and times: reads what the kernel has cached for a file, and corrects it.
//!
//! With write-back, the kernel ignores the size and times in replies, and changes them only when a program sets them.
//! So when another client has changed a file, a thread of this process sets size and times like a program. The mount
//! replies to the resulting SETATTR from its own records.

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
/// Largest number of attempts in one call of [`KernelSizes::expire`] or [`KernelSizes::show_size`].
const EXPIRES: usize = 1000;
/// Length in bytes of a FUSE file handle: both halves of the node id, and the generation.
const FILEID_LEN: usize = 12;

/// `struct file_handle` (Linux `include/linux/fs.h`) of a FUSE file.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    id: [u32; FILEID_LEN / 4],
}

/// Reads and corrects the size and times that the kernel has cached.
#[derive(Default)]
pub(super) struct KernelSizes {
    /// The mount point, and the device number of the mounted file system.
    place: OnceLock<(PathBuf, (u32, u32))>,
    /// The attributes that threads of this process are setting, by thread id.
    setting: Mutex<HashMap<u32, AttrsBeingSet>>,
    /// Threads of this process that make the kernel request attributes, by thread id. The value is the size in the
    /// mount's reply to this request, or `None` if the kernel has not sent the request yet.
    expiring: Mutex<HashMap<u32, Option<u64>>>,
}

/// The attributes that this process is setting on a file.
#[derive(Clone)]
pub(super) struct AttrsBeingSet {
    attrs: Attrs,
    /// For a file that other clients use and the kernel writes through its page cache: the modification time that a
    /// correction of the kernel's attributes sets before it sets the size. No write sets this time, so another time
    /// shows that a program has written to the file.
    mark: Option<Timestamp>,
    /// A path by which the kernel finds the file, valid while the thread sets the attributes.
    path: Arc<CString>,
}

impl AttrsBeingSet {
    /// Returns the attributes of the file that the kernel has to cache.
    pub(super) fn attrs(&self) -> Attrs {
        self.attrs
    }

    /// Returns whether other clients use the file while the kernel writes it through its page cache.
    pub(super) fn is_of_shared(&self) -> bool {
        self.mark.is_some()
    }

    /// Returns whether no program has written to the file since a correction of the kernel's attributes set the file's
    /// modification time to `mark`. A write changes this time.
    pub(super) fn is_untouched(&self) -> bool {
        let Some(mark) = self.mark else { return false };
        let cached = rustix::fs::statx(CWD, &*self.path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS);
        cached.is_ok_and(|cached| !differs(&cached, &Attrs { mtime: mark, ..self.attrs }).1)
    }
}

/// Guard of a thread that is setting attributes. Dropping the guard removes the thread from the table of such threads.
struct Setting<'a>(&'a KernelSizes, u32);

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        self.0.setting().remove(&self.1);
    }
}

impl KernelSizes {
    fn setting(&self) -> MutexGuard<'_, HashMap<u32, AttrsBeingSet>> {
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records where the file system is mounted.
    pub(super) fn mounted_at(&self, dir: &Path) {
        if let Some(device) = mounting::device_numbers_at(dir) {
            let _ = self.place.set((dir.to_owned(), device));
        }
    }

    /// Returns the attributes that a thread of this process is setting, or `None` if it sets none.
    pub(super) fn set_by(&self, thread: u32) -> Option<AttrsBeingSet> {
        self.setting().get(&thread).cloned()
    }

    fn expiring(&self) -> MutexGuard<'_, HashMap<u32, Option<u64>>> {
        self.expiring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a thread runs [`KernelSizes::expire`] or [`KernelSizes::show_size`] to make the kernel request
    /// attributes.
    pub(super) fn is_expiring(&self, thread: u32) -> bool {
        self.expiring().contains_key(&thread)
    }

    /// Records the size in the mount's reply to an attribute request that a thread of this process caused.
    pub(super) fn answers(&self, thread: u32, size: u64) {
        if let Some(answered) = self.expiring().get_mut(&thread) {
            *answered = Some(size);
        }
    }

    /// Makes the kernel request the attributes of a file; the mount replies with attributes without a lifetime. From
    /// then on the kernel requests attributes before each read of the file. An `INVAL_INODE` notification does not
    /// achieve this with write-back, because the kernel does not expire the size. Must run on its own thread, like
    /// [`KernelSizes::correct`].
    ///
    /// The kernel discards a reply if it has to drop pages, or a program truncates the file, before the reply arrives.
    /// So this function repeats its stat calls until the kernel sends a request for a call that needs only the size.
    /// While the kernel's cached size is valid, such a call causes no request.
    ///
    /// # Errors
    /// `NotFound`: the kernel has no inode of the file. `TimedOut`: the cached attributes of the kernel remained
    /// valid.
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

    /// Makes the kernel request the size of a file until it caches the size in the reply, and returns this size. The
    /// kernel discards a reply if a write of the file ends between the request and the reply. Used on mounts without
    /// write-back. Must run on its own thread, like [`KernelSizes::correct`].
    ///
    /// # Errors
    /// The errors of [`KernelSizes::expire`].
    pub(super) fn show_size(&self, number: u64) -> io::Result<u64> {
        let (file, _) = self.look(number)?;
        for _ in 0..EXPIRES {
            let answered = self.ask(&file, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)?;
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let cached = rustix::fs::statx(&file, c"", flags, StatxFlags::BASIC_STATS)?;
            if answered == Some(cached.stx_size) {
                return Ok(cached.stx_size);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Returns the size that the kernel has cached. Must run on its own thread, like [`KernelSizes::correct`].
    ///
    /// # Errors
    /// `NotFound`: the kernel has no inode of the file.
    pub(super) fn size(&self, number: u64) -> io::Result<u64> {
        Ok(self.look(number)?.1.stx_size)
    }

    /// Calls statx(2) in this thread. Returns the size in the mount's reply, or `None` if the kernel sent no request.
    fn ask(&self, file: &OwnedFd, how: AtFlags, what: StatxFlags) -> io::Result<Option<u64>> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        self.expiring().insert(thread, None);
        let told = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH | how, what);
        let answered = self.expiring().remove(&thread).flatten();
        Ok(told.map(|_| answered)?)
    }

    /// Opens the kernel's inode with the given number, if the kernel has one, and reads its cached attributes. Opens
    /// the mount point too, which makes a request to this very file system.
    fn look(&self, number: u64) -> io::Result<(OwnedFd, Statx)> {
        let (dir, device) = self.place.get().ok_or_else(|| io::Error::other("where the mount is, is not known"))?;
        let mount = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let file = open_by_number(mount, number)?;
        // With STATX_DONT_SYNC, the kernel returns its cached attributes without a request to this mount.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let cached = rustix::fs::statx(&file, c"", flags, StatxFlags::BASIC_STATS)?;
        if (cached.stx_dev_major, cached.stx_dev_minor) != *device {
            // Another file system is mounted over the mount point, so the opened file is not a file of this mount.
            return Err(io::Error::other("something else is mounted there"));
        }
        Ok((file, cached))
    }

    /// Corrects the size and modification time that the kernel has cached, if they differ from `attrs`. Returns the
    /// attributes that this function has set, or `None` if it has not set the size. May wait for a program's call that
    /// has the inode locked, such as a write. So a thread that replies to requests must not call this function. Needs
    /// its own thread ([`crate::self_requests`]), because it makes requests to this very file system.
    ///
    /// `refresh` returns the current attributes of the file, because `attrs` may be outdated. `shared`: other clients
    /// use the file while the kernel writes it through its page cache. `times`: for a shared file, correct the time
    /// even if the size is right.
    ///
    /// Before it corrects the size of a shared file, this function sets a modification time that no later write sets.
    /// The mount's handler of the SETATTR with the new size checks whether the file still has this time. If not, a
    /// program has written to the file since then.
    ///
    /// # Errors
    /// `NotFound`: the kernel has no inode of the file. After any error, the kernel's cached attributes are unknown.
    pub(super) fn correct(
        &self,
        number: u64,
        attrs: &Attrs,
        (shared, times): (bool, bool),
        refresh: impl FnOnce() -> io::Result<Attrs>,
    ) -> io::Result<Option<Attrs>> {
        let (file, cached) = self.look(number)?;
        let (size, mtime) = differs(&cached, attrs);
        if !size && (!mtime || shared && !times) {
            return Ok(None);
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        // The path names the file through the descriptor table of this thread, so the other threads of this process,
        // which do not have the descriptor, can resolve the path too. `/proc` may number threads for another PID
        // namespace than gettid(2), so read the thread's id from `/proc`.
        let here = std::fs::read_link("/proc/thread-self")?;
        let path = format!("/proc/{}/fd/{}", here.display(), file.as_raw_fd());
        let path = Arc::new(CString::new(path).map_err(io::Error::other)?);
        let mark = shared.then(|| if size { earlier_than_writes(attrs.mtime) } else { attrs.mtime });
        let setting = |attrs: Attrs| AttrsBeingSet { attrs, mark, path: path.clone() };
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
        // SAFETY: the path ends with a zero byte and lives during the call; the other argument is an integer.
        if unsafe { libc::truncate64(path.as_ptr(), len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        set_time(&path, fresh.mtime)?;
        Ok(Some(fresh))
    }
}

/// Returns a modification time that no later write sets: `time`, or one nanosecond before the present if `time` is
/// later. The present is read from the kernel's coarse clock, which advances only every few milliseconds and from
/// which the kernel takes the times of writes.
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

/// Compares attributes that the kernel has cached with `attrs`. Returns whether the sizes differ, and whether the
/// modification times differ.
fn differs(cached: &Statx, attrs: &Attrs) -> (bool, bool) {
    let mtime = (cached.stx_mtime.tv_sec, cached.stx_mtime.tv_nsec);
    (cached.stx_size != attrs.size, mtime != (attrs.mtime.secs, attrs.mtime.nanos))
}

/// Opens the kernel's inode `number` with `O_PATH`. Makes no request to the mount.
fn open_by_number(mount: impl AsFd, number: u64) -> io::Result<OwnedFd> {
    // All inodes of this mount have the generation 0, so the last word of the file handle is 0.
    let id = [(number >> 32) as u32, number as u32, 0];
    let mut handle = FileHandle { bytes: FILEID_LEN as u32, kind: FILEID_INO64_GEN, id };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    let handle: *mut FileHandle = &mut handle;
    // SAFETY: the handle has the length that its field `bytes` says, and the kernel only reads it.
    let fd = unsafe { libc::open_by_handle_at(mount.as_fd().as_raw_fd(), handle.cast(), flags) };
    match fd {
        // ESTALE means that the kernel has no inode `number`.
        ..0 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESTALE) => Err(io::ErrorKind::NotFound.into()),
            error => Err(error),
        },
        // SAFETY: open_by_handle_at(2) has just opened `fd`, and nothing else owns it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Returns whether this process may open files by handle (`CAP_DAC_READ_SEARCH`), which this module requires.
pub(super) fn may() -> bool {
    let Ok(here) = rustix::fs::open("/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    match open_by_number(here, u64::MAX) {
        // The kernel checks the capability before it checks the file handle, so any other error proves that the
        // process has the capability.
        Err(error) => error.kind() != io::ErrorKind::PermissionDenied,
        Ok(_) => true,
    }
}
