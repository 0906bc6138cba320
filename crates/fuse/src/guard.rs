//! A process beside a mount that ends the mount's connection to the kernel when the process that serves it is killed.
//!
//! The kernel does that by itself once nobody has the device open. But a thread that has the kernel forget pages (FUSE_NOTIFY_INVAL_INODE) waits there
//! until those are written back, cannot be killed meanwhile, and has the device open. Nobody writes them back any more, so it would wait for ever, and
//! with it everybody who uses the mount.

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

/// What it is called in lists of processes.
const NAME: &str = "fuse-guard";
/// Where the kernel has its connections: `Documentation/filesystems/fuse.rst` of Linux.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// The type of that file system.
const TYPE: &str = "fusectl";
/// How long after one has ended another takes its place; twice as long after each.
const PAUSE: Duration = Duration::from_millis(500);
/// And at most.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// One that stands until it is dismissed. Where it never is, it ends the connection when this process ends, however it does.
pub(crate) struct Guard(Arc<Post>);

/// Where it stands.
#[derive(Default)]
struct Post {
    state: Mutex<State>,
    dismissed: Condvar,
}

#[derive(Default)]
struct State {
    /// As long as its number cannot be another's.
    process: Option<Child>,
    dismissed: bool,
}

impl Guard {
    /// Has a command that calls [`stand_guard`] stand guard over what is mounted at a directory.
    ///
    /// # Errors
    /// The connection cannot be ended from here: fusectl is not mounted, and we are not root. Those of starting a process.
    pub(crate) fn stand(program: &[OsString], dir: &Path) -> io::Result<Guard> {
        let abort = abort_of(dir)?;
        let [program, args @ ..] = program else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut command = Command::new(program);
        command.args(args).arg0(NAME).current_dir("/").process_group(0);
        command.stdin(abort).stdout(Stdio::null()).stderr(Stdio::null());
        let post = Arc::new(Post::default());
        let kept = post.clone();
        let (tell, told) = mpsc::channel();
        // The guard is told when the thread ends that has started it: one that does nothing but wait, and so is gone as soon as the process is killed.
        std::thread::Builder::new().name(NAME.to_owned()).spawn(move || kept.keep(command, &tell))?;
        told.recv().map_err(io::Error::other)??;
        Ok(Guard(post))
    }

    /// It is not needed any more: the connection has ended.
    pub(crate) fn dismiss(self) {
        let mut state = self.0.state();
        state.dismissed = true;
        // It may have gone.
        let _ = state.process.as_mut().map(Child::kill);
        self.0.dismissed.notify_all();
    }
}

impl Post {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has somebody stand here until that is not needed any more; tells whether the first one does. Ends in no other way while one stands: that is
    /// what the guard takes for the end of the process.
    fn keep(&self, mut command: Command, tell: &mpsc::Sender<io::Result<()>>) {
        let [process, thread] = [rustix::process::getpid(), rustix::thread::gettid()];
        command.args([process, thread].map(|number| number.as_raw_nonzero().to_string()));
        // SAFETY: it makes system calls and allocates nothing.
        unsafe { command.pre_exec(move || become_guard(process, thread)) };
        let mut pause = PAUSE;
        let mut first = true;
        loop {
            let ended = match command.spawn() {
                Ok(child) => {
                    // Whoever asked may have given up.
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
            tracing::warn!(
                "nobody looks after the mount should this process be killed: {ended}; somebody else is sent"
            );
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Waits until it has ended; answers how.
    fn ended(&self, child: Child) -> String {
        let id = Pid::from_child(&child);
        let mut state = self.state();
        let dismissed = state.dismissed;
        let child = state.process.insert(child);
        if dismissed {
            let _ = child.kill();
        }
        drop(state);
        // Its number stays its own until it is asked for below.
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while rustix::process::waitid(WaitId::Pid(id), how).err() == Some(Errno::INTR) {}
        let child = self.state().process.take();
        child.map_or(String::new(), |mut child| match child.wait() {
            Ok(status) => format!("{NAME}: {status}"),
            Err(error) => format!("{NAME}: {error}"),
        })
    }
}

/// What it is told by that the mount's process is no more. Nobody sends this one by hand.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

/// Makes a new process one that is told, has nothing open that it does not need, and outlives what asks a whole group of processes to end.
fn become_guard(process: Pid, thread: Pid) -> io::Result<()> {
    // SAFETY: a set that is filled before it is used, and numbers.
    let failed = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut())
    };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    // Whatever is open here must not stay open there; this one is to be read until it runs.
    // SAFETY: numbers; where there is no such call all but what others have opened is closed all the same.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if tie(process, thread)? { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Has the kernel tell this process when the thread that has started it ends; answers whether that is still there.
fn tie(process: Pid, thread: Pid) -> io::Result<bool> {
    // SAFETY: numbers.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal() as libc::c_ulong) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let [number, of] = [process, thread].map(|id| id.as_raw_nonzero().get());
    // SAFETY: numbers, and no signal.
    let asked = unsafe { libc::syscall(libc::SYS_tgkill, number, of, 0) };
    let gone = asked < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    Ok(!gone && rustix::process::getppid() == Some(process))
}

/// The file that ends the connection of what is mounted at a directory when something is written to it.
fn abort_of(dir: &Path) -> io::Result<File> {
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    let device = mounting::device_at(&mounts, dir).ok_or(io::ErrorKind::NotFound)?;
    // Connections are called by the number of the device, whose first part is zero.
    let number = device.split_once(':').and_then(|(_, minor)| minor.parse::<u32>().ok());
    let name = format!("{}/abort", number.ok_or(io::ErrorKind::InvalidData)?);
    let open = |at: &dyn AsFd| rustix::fs::openat(at, &name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    match File::open(CONNECTIONS).and_then(|there| Ok(open(&there)?)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(open(&connections()?)?.into()),
        found => Ok(found?.into()),
    }
}

/// The kernel's connections where they are not mounted: mounted nowhere.
fn connections() -> io::Result<OwnedFd> {
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
    let system = rustix::mount::fsopen(TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(system.as_fd())?;
    Ok(rustix::mount::fsmount(system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// What the guard does: waits until the thread that has started it ends, and ends the connection that standard input stands for. The command of
/// [`crate::Config::guard`] gets the numbers of that process and that thread as its last arguments.
///
/// # Errors
/// What cannot be such numbers. The connection has ended by itself, which is as well.
pub fn stand_guard(process: i32, thread: i32) -> io::Result<()> {
    let number = |id: i32| if id > 0 { Pid::from_raw(id) } else { None }.ok_or(io::ErrorKind::InvalidInput);
    let [process, thread] = [number(process)?, number(thread)?];
    rustix::thread::set_name(c"fuse-guard")?;
    // Once more: what was asked for before is forgotten when a program is run that has rights of its own.
    if tie(process, thread)? {
        wait_for_signal()?;
    }
    rustix::io::write(std::io::stdin(), b"1")?;
    Ok(())
}

/// All signals are kept for who waits for them.
fn wait_for_signal() -> io::Result<()> {
    // SAFETY: a set that is made empty before it is used, and numbers.
    let failed = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal());
        libc::sigwait(&set, &mut 0)
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}
