//! What the kernel believes of files whose size and times it keeps itself, and how it is told better.
//!
//! Where its page cache is written back the kernel takes size and times of a regular file from nobody but who sets them. So when others have
//! changed a file, this process sets them as any program would, and answers its own request (SETATTR) from what it knows.

use crate::mounting;
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps, UTIME_OMIT};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use types::{Attrs, Timestamp};

/// The handles of FUSE's files: `FILEID_INO64_GEN` of Linux `include/linux/exportfs.h`.
const FILEID_INO64_GEN: i32 = 0x81;
/// How often the kernel is told that it shall not believe the attributes of a file any more.
const EXPIRES: usize = 1000;
/// Bytes of one: both halves of the node id, and the generation.
const FILEID_LEN: usize = 12;

/// `struct file_handle` (Linux `include/linux/fs.h`) of a file of FUSE.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    id: [u32; FILEID_LEN / 4],
}

/// A way to what the kernel believes.
#[derive(Default)]
pub(crate) struct Beliefs {
    /// Where the mount is, and its device there.
    place: OnceLock<(PathBuf, (u32, u32))>,
    /// Threads of this process that are setting attributes, and to what.
    setting: Mutex<HashMap<u32, Told>>,
    /// Threads of this process that ask for attributes, for the kernel to believe in those it has no longer; and what it was answered then, if it asked.
    expiring: Mutex<HashMap<u32, Option<u64>>>,
}

/// What the kernel is being told of a file.
#[derive(Clone)]
pub(crate) struct Told {
    attrs: Attrs,
    /// The modification time that was set first, of a file that is written to its page cache though it is shared. No write sets that.
    mark: Option<Timestamp>,
    /// The file, as long as it is being told.
    path: Arc<CString>,
}

impl Told {
    /// The attributes that it shall believe.
    pub(crate) fn attrs(&self) -> Attrs {
        self.attrs
    }

    /// Whether the file is told of as a shared one that is written to its page cache.
    pub(crate) fn is_of_shared(&self) -> bool {
        self.mark.is_some()
    }

    /// Whether nothing was written to the page cache of the file since the kernel was told the time: writing would have changed that.
    pub(crate) fn is_untouched(&self) -> bool {
        let Some(mark) = self.mark else { return false };
        let believed = rustix::fs::statx(CWD, &*self.path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS);
        believed.is_ok_and(|believed| !differs(&believed, &Attrs { mtime: mark, ..self.attrs }).1)
    }
}

/// A thread is setting attributes, until this is dropped.
struct Setting<'a>(&'a Beliefs, u32);

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        self.0.setting().remove(&self.1);
    }
}

impl Beliefs {
    fn setting(&self) -> MutexGuard<'_, HashMap<u32, Told>> {
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mount is at this directory now.
    pub(crate) fn mounted_at(&self, dir: &Path) {
        if let Some(device) = mounting::device_numbers_at(dir) {
            let _ = self.place.set((dir.to_owned(), device));
        }
    }

    /// What a thread of this process is setting attributes to, if it is.
    pub(crate) fn set_by(&self, thread: u32) -> Option<Told> {
        self.setting().get(&thread).cloned()
    }

    fn expiring(&self) -> MutexGuard<'_, HashMap<u32, Option<u64>>> {
        self.expiring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a thread of this process asks for attributes in [`Beliefs::expire`] or [`Beliefs::show_size`].
    pub(crate) fn is_expiring(&self, thread: u32) -> bool {
        self.expiring().contains_key(&thread)
    }

    /// Such a thread is about to be answered that the file is so long.
    pub(crate) fn answers(&self, thread: u32, size: u64) {
        if let Some(answered) = self.expiring().get_mut(&thread) {
            *answered = Some(size);
        }
    }

    /// Has the kernel ask for the attributes of a file, which it is told to believe for no time: from then on it asks before each read of the file. An
    /// `INVAL_INODE` does not do that, as the kernel does not count the size among what it has to ask for. As [`Beliefs::correct`], in a thread for that.
    ///
    /// The kernel takes no notice of an answer if, before the answer arrives, it is told to forget pages or a program truncates the file. So this asks
    /// until the kernel asks the mount for the size: it does not while it believes in one.
    ///
    /// # Errors
    /// `NotFound`: the kernel has forgotten the file. `TimedOut`: it always finds a reason to believe what it believes.
    pub(crate) fn expire(&self, number: u64) -> io::Result<()> {
        let (file, _) = self.look(number)?;
        for _ in 0..EXPIRES {
            if self.ask(&file, AtFlags::empty(), StatxFlags::SIZE)?.is_some() {
                return Ok(());
            }
            self.ask(&file, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)?;
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Has the kernel ask how long a file is, until it believes the answer: it takes no notice of one beside a write that ends meanwhile. For mounts that do
    /// not write back. As [`Beliefs::correct`], in a thread for that. The size that it believes in then.
    ///
    /// # Errors
    /// Those of [`Beliefs::expire`].
    pub(crate) fn show_size(&self, number: u64) -> io::Result<u64> {
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

    /// Asks for attributes in this thread; which size the kernel was answered, if it asked for that.
    fn ask(&self, file: &OwnedFd, how: AtFlags, what: StatxFlags) -> io::Result<Option<u64>> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        self.expiring().insert(thread, None);
        let told = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH | how, what);
        let answered = self.expiring().remove(&thread).flatten();
        Ok(told.map(|_| answered)?)
    }

    /// The kernel's inode of this number, if it has one, and what it believes of it. Opening the directory asks this very file system.
    fn look(&self, number: u64) -> io::Result<(OwnedFd, Statx)> {
        let (dir, device) = self.place.get().ok_or_else(|| io::Error::other("where the mount is, is not known"))?;
        let mount = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let file = open_by_number(mount, number)?;
        // STATX_BASIC_STATS asks for what is there, and the flag keeps the kernel from asking us.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let believed = rustix::fs::statx(&file, c"", flags, StatxFlags::BASIC_STATS)?;
        if (believed.stx_dev_major, believed.stx_dev_minor) != *device {
            // Something else is mounted there by now.
            return Err(io::Error::other("something else is mounted there"));
        }
        Ok((file, believed))
    }

    /// Makes the kernel believe size and modification time of these; in what it believes now if it believed something else. May wait for whoever has the inode locked, such as a write: never to be called by who answers requests.
    /// It asks this very file system, and is to be called in a thread for that ([`crate::asking`]).
    ///
    /// # Errors
    /// `NotFound`: the kernel has forgotten the file. With every error, what it believes is not known.
    ///
    /// `refresh` asks how the file is once more, as these may be old by now. Of a *shared* file, which is written to its page cache meanwhile, the
    /// size counts, and the time if `times`: then the time goes first, `refresh` has what was written before written back, and who answers the setting of the size looks whether
    /// something was since.
    pub(crate) fn correct(
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
        // In the table of descriptors of this thread, and named so that others find it, too: by what /proc calls it, which may be that of other numbers.
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
        // SAFETY: a string that ends, and a number.
        if unsafe { libc::truncate64(path.as_ptr(), len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        set_time(&path, fresh.mtime)?;
        Ok(Some(fresh))
    }
}

/// This time, or one just before now if it is not over: no write from now on sets it. The kernel takes the times of writes from a clock that moves
/// once in some milliseconds.
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

/// Whether size and modification time are others.
fn differs(believed: &Statx, attrs: &Attrs) -> (bool, bool) {
    let mtime = (believed.stx_mtime.tv_sec, believed.stx_mtime.tv_nsec);
    (believed.stx_size != attrs.size, mtime != (attrs.mtime.secs, attrs.mtime.nanos))
}

/// The kernel's inode of this number: for looking at it and naming it, which asks nobody.
fn open_by_number(mount: impl AsFd, number: u64) -> io::Result<OwnedFd> {
    // The generation is that of every entry here.
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
        // SAFETY: it was opened just now and belongs to nobody else.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Whether this process may do all this: it takes the right to open files by handle (`CAP_DAC_READ_SEARCH`).
pub(crate) fn may() -> bool {
    let Ok(here) = rustix::fs::open("/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    match open_by_number(here, u64::MAX) {
        // The right is looked at first.
        Err(error) => error.kind() != io::ErrorKind::PermissionDenied,
        Ok(_) => true,
    }
}
