//! A guard process that aborts a mount's FUSE connection when the process that serves the mount is killed.
//!
//! The kernel aborts the connection itself once no process has the device open. But a thread that makes the kernel
//! drop pages (FUSE_NOTIFY_INVAL_INODE) waits in the kernel until these pages are written back. During this wait, the
//! thread has the device open and cannot be killed. After the process that serves the mount was killed, no thread
//! writes these pages back. So without the guard process, this thread and every program that uses the mount wait
//! forever.

use crate::mounting;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// The name of the guard process in process lists.
const NAME: &str = "fuse-guard";
/// The directory of the kernel's FUSE connections (Linux `Documentation/filesystems/fuse.rst`).
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// The type of the file system with the kernel's FUSE connections.
const TYPE: &str = "fusectl";
/// The pause before a new guard process replaces a guard process that ended. The pause doubles each time.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause before a new guard process starts.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// A guard process. Unless the mount dismisses the guard, the guard aborts the FUSE connection when the mount process
/// ends for any reason.
pub(crate) struct Guard(Arc<GuardState>);

/// The state that [`Guard`] shares with the thread that keeps the guard process running.
#[derive(Default)]
struct GuardState {
    state: Mutex<State>,
    dismissed: Condvar,
}

#[derive(Default)]
struct State {
    /// The guard process, until it is reaped. Until then, no other process can get the process id of the guard process.
    process: Option<Child>,
    dismissed: bool,
}

impl Guard {
    /// Starts a guard process for the mount at `dir`, with a command that calls [`stand_guard`].
    ///
    /// # Errors
    /// This process cannot open the file that aborts the connection: fusectl is not mounted, and the process is not
    /// root. Or the command cannot be started.
    pub(crate) fn stand(program: &[OsString], dir: &Path) -> io::Result<Guard> {
        let abort = abort_of(dir)?;
        let [program, args @ ..] = program else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut command = Command::new(program);
        command.args(args).arg0(NAME).current_dir("/").process_group(0);
        command.stdin(abort).stdout(Stdio::null()).stderr(Stdio::null());
        let guard_state = Arc::new(GuardState::default());
        let kept = guard_state.clone();
        let (tell, told) = mpsc::channel();
        // The kernel signals the guard process when the thread that started the guard process ends. This thread only
        // waits, so it ends as soon as the mount process is killed.
        std::thread::Builder::new().name(NAME.to_owned()).spawn(move || kept.keep(command, &tell))?;
        told.recv().map_err(io::Error::other)??;
        Ok(Guard(guard_state))
    }

    /// Stops the guard process, because the connection has ended.
    pub(crate) fn dismiss(self) {
        let mut state = self.0.state();
        state.dismissed = true;
        // The guard process may have ended already, so ignore an error.
        let _ = state.process.as_mut().map(Child::kill);
        self.0.dismissed.notify_all();
    }
}

impl GuardState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a guard process running until [`Guard::dismiss`]. Sends the result of the first start of a guard process
    /// to `tell`. The thread of this function must not end while a guard process runs, because the guard process takes
    /// the end of this thread for the end of the mount process.
    fn keep(&self, mut command: Command, tell: &mpsc::Sender<io::Result<()>>) {
        let [process, thread] = [rustix::process::getpid(), rustix::thread::gettid()];
        command.args([process, thread].map(|number| number.as_raw_nonzero().to_string()));
        // SAFETY: between fork and exec, the closure makes only system calls and allocates no memory.
        unsafe { command.pre_exec(move || become_guard(process, thread)) };
        let mut pause = PAUSE;
        let mut first = true;
        loop {
            let ended = match command.spawn() {
                Ok(child) => {
                    // `Guard::stand` receives only the message about the first start, so ignore an error later.
                    let _ = tell.send(Ok(()));
                    self.ended(child)
                }
                Err(error) if first => {
                    let _ = tell.send(Err(error));
                    return;
                }
                Err(error) => error.to_string(),
            };
            first = false;
            let (state, _) = self
                .dismissed
                .wait_timeout_while(self.state(), pause, |state| !state.dismissed)
                .unwrap_or_else(PoisonError::into_inner);
            if state.dismissed {
                return;
            }
            tracing::warn!("the guard of the mount has ended ({ended}); starting another one");
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Waits until the guard process has ended, and describes how it ended.
    fn ended(&self, child: Child) -> String {
        let id = Pid::from_child(&child);
        let mut state = self.state();
        let dismissed = state.dismissed;
        let child = state.process.insert(child);
        if dismissed {
            let _ = child.kill();
        }
        drop(state);
        // Wait without reaping the child, so that no other process gets the child's process id while `dismiss` may
        // still kill it.
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while rustix::process::waitid(WaitId::Pid(id), how).err() == Some(Errno::INTR) {}
        let child = self.state().process.take();
        child.map_or(String::new(), |mut child| match child.wait() {
            Ok(status) => format!("{NAME}: {status}"),
            Err(error) => format!("{NAME}: {error}"),
        })
    }
}

/// The signal by which the kernel reports the end of the mount process to the guard process. No program sends this
/// signal for another reason.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

/// Prepares a new process as a guard process: requests the signal for the end of the mount process, closes unneeded
/// descriptors at exec, and blocks all signals. So the guard process survives signals to a whole process group.
fn become_guard(process: Pid, thread: Pid) -> io::Result<()> {
    // SAFETY: `sigfillset` initializes the set before its use, and the other arguments are integers or null.
    let failed = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut())
    };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    // The guard process must not keep descriptors of the mount process open. The kernel closes these descriptors when
    // the new process executes the guard's program.
    // SAFETY: all arguments are integers. On a kernel without close_range(2), only descriptors without close-on-exec
    // stay open.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if tie(process, thread)? { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Makes the kernel send the parent-death signal to this process when the thread that started the process ends. Returns
/// whether that thread still exists.
fn tie(process: Pid, thread: Pid) -> io::Result<bool> {
    // SAFETY: the call takes only integers.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal() as libc::c_ulong) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let [number, of] = [process, thread].map(|id| id.as_raw_nonzero().get());
    // SAFETY: the call takes only integers; signal 0 only checks whether the thread exists.
    let asked = unsafe { libc::syscall(libc::SYS_tgkill, number, of, 0) };
    let gone = asked < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    Ok(!gone && rustix::process::getppid() == Some(process))
}

/// Opens the `abort` file of the mount's FUSE connection. A write to this file aborts the connection.
fn abort_of(dir: &Path) -> io::Result<File> {
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    let device = mounting::device_at(&mounts, dir).ok_or(io::ErrorKind::NotFound)?;
    // In `/sys/fs/fuse/connections`, the name of a connection is the device number of the mount. The major number is
    // zero, so the name is the minor number.
    let number = device.split_once(':').and_then(|(_, minor)| minor.parse::<u32>().ok());
    let name = format!("{}/abort", number.ok_or(io::ErrorKind::InvalidData)?);
    let open = |at: &dyn AsFd| rustix::fs::openat(at, &name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    match File::open(CONNECTIONS).and_then(|there| Ok(open(&there)?)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(open(&connections()?)?.into()),
        found => Ok(found?.into()),
    }
}

/// Returns the file system of the kernel's FUSE connections as a detached mount, for systems where it is not mounted.
fn connections() -> io::Result<OwnedFd> {
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
    let system = rustix::mount::fsopen(TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(system.as_fd())?;
    Ok(rustix::mount::fsmount(system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// Runs the guard process: waits until the thread that started the guard process ends, and then aborts the connection
/// whose `abort` file is standard input. `process` and `thread` are the ids of the mount process and of that thread.
/// The mount appends these ids to the command in [`crate::Config::guard`].
///
/// # Errors
/// `InvalidInput`: `process` or `thread` is not a valid id. A failed write means that the connection has already
/// ended.
pub fn stand_guard(process: i32, thread: i32) -> io::Result<()> {
    let number = |id: i32| if id > 0 { Pid::from_raw(id) } else { None }.ok_or(io::ErrorKind::InvalidInput);
    let [process, thread] = [number(process)?, number(thread)?];
    rustix::thread::set_name(c"fuse-guard")?;
    // Set the parent-death signal again: the kernel clears the signal on execve(2) of a set-user-ID, set-group-ID or
    // file-capability program.
    if tie(process, thread)? {
        wait_for_signal()?;
    }
    rustix::io::write(std::io::stdin(), b"1")?;
    Ok(())
}

/// Waits for the signal that reports the end of the mount process. All signals are blocked, so the signal stays
/// pending until this wait.
fn wait_for_signal() -> io::Result<()> {
    // SAFETY: `sigemptyset` initializes the set before its use, and the other arguments are integers or valid
    // references.
    let failed = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal());
        libc::sigwait(&set, &mut 0)
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}
