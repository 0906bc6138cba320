//! A process beside a mount that ends the mount's connection to the kernel when the process that serves it is killed.
//!
//! The kernel does that by itself once nobody has the device open. But a thread that has the kernel forget pages (FUSE_NOTIFY_INVAL_INODE) waits there
//! until those are written back, cannot be killed meanwhile, and has the device open. Nobody writes them back any more, so it would wait for ever, and
//! with it everybody who uses the mount.

use crate::mounting;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;

/// What it is called in lists of processes.
const NAME: &str = "fuse-guard";
/// Where the kernel has its connections: `Documentation/filesystems/fuse.rst` of Linux.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// The type of that file system.
const TYPE: &str = "fusectl";

/// One that stands until this is dropped.
pub(crate) struct Guard(OwnedFd);

impl Guard {
    /// Has a command ([`stand_guard`]) stand guard over what is mounted at a directory.
    ///
    /// # Errors
    /// The connection cannot be ended from here: fusectl is not mounted, and we are not root. Those of starting a process.
    pub(crate) fn stand(program: &[OsString], dir: &Path) -> io::Result<Guard> {
        let abort = abort_of(dir)?;
        let [program, args @ ..] = program else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut command = Command::new(program);
        command.args(args).arg0(NAME).env_clear().current_dir("/").process_group(0);
        command.stdin(abort).stdout(Stdio::null()).stderr(Stdio::null());
        let own = rustix::process::getpid();
        let tie = move || {
            wait_for_signal(true)?;
            // SAFETY: numbers.
            if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal() as libc::c_ulong) } < 0 {
                return Err(io::Error::last_os_error());
            }
            // Whatever is open here must not stay open there; this one is to be read until it runs.
            // SAFETY: numbers; where there is no such call all but what others have opened is closed all the same.
            unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
            let alone = rustix::process::getppid() != Some(own);
            if alone { Err(Errno::SRCH.into()) } else { Ok(()) }
        };
        // SAFETY: `tie` makes system calls and allocates nothing.
        unsafe { command.pre_exec(tie) };
        let (tell, told) = mpsc::channel();
        // The signal comes when the thread ends that has started it: one that does nothing but wait, and so is gone as soon as the process is killed.
        let wait = move || {
            let started = command.spawn().and_then(|child| {
                let pid = rustix::process::Pid::from_child(&child);
                Ok((rustix::process::pidfd_open(pid, PidfdFlags::empty())?, child))
            });
            let child = match started {
                Ok((process, child)) => {
                    let _ = tell.send(Ok(Guard(process)));
                    Some(child)
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                    None
                }
            };
            // However it ends: it is not needed, or somebody has killed it.
            let _ = child.map(|mut child| child.wait());
        };
        std::thread::Builder::new().name(NAME.to_owned()).spawn(wait)?;
        told.recv().map_err(io::Error::other)?
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It may have gone.
        let _ = rustix::process::pidfd_send_signal(&self.0, Signal::KILL);
    }
}

/// What the guard is told by that the mount's process is no more. Nobody sends this one by hand.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

/// Keeps the signal for who waits for it, and waits for it if it is not only to be kept.
fn wait_for_signal(only_keep: bool) -> io::Result<()> {
    // SAFETY: a set that is made empty before it is used, and numbers.
    let failed = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal());
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
            0 if !only_keep => libc::sigwait(&set, &mut 0),
            outcome => outcome,
        }
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

/// The file that ends the connection of what is mounted at a directory when something is written to it.
fn abort_of(dir: &Path) -> io::Result<File> {
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    let device = mounting::device_at(&mounts, dir).ok_or(io::ErrorKind::NotFound)?;
    // Connections are called by the number of the device, whose first part is zero.
    let number = device.split_once(':').and_then(|(_, minor)| minor.parse::<u32>().ok());
    let name = format!("{}/abort", number.ok_or(io::ErrorKind::InvalidData)?);
    let open = |at: &dyn AsFd| rustix::fs::openat(at, &name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    let there = File::open(CONNECTIONS)?;
    match open(&there) {
        Err(Errno::NOENT) => Ok(open(&connections()?)?.into()),
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

/// What the guard does: waits until the process that has started it is killed, and ends the connection that standard input stands for.
///
/// # Errors
/// The connection has ended by itself, which is as well.
pub fn stand_guard() -> io::Result<()> {
    rustix::thread::set_name(c"fuse-guard")?;
    wait_for_signal(false)?;
    rustix::io::write(std::io::stdin(), b"1")?;
    Ok(())
}
