//! Child processes that never outlive this process, and their CPU time.

use crate::Outcome;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A server in its own process. Dropping the value kills the server process. If this process ends without the drop, the
/// kernel kills the server process.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts the server process.
    pub fn start(command: &mut Command) -> Outcome<Daemon> {
        tied(command);
        let name = command.get_program().to_owned();
        let child = command.spawn().map_err(|e| format!("cannot start {}: {e}", name.display()))?;
        Ok(Daemon { child })
    }

    /// Starts the server process and waits for its first line of output, which contains the address of the server.
    pub fn announced(mut command: Command) -> Outcome<(Daemon, String)> {
        let name = command.get_program().to_owned();
        let mut daemon = Daemon::start(command.stdout(Stdio::piped()))?;
        let mut line = String::new();
        if let Some(output) = daemon.child.stdout.as_mut() {
            BufReader::new(output).read_line(&mut line)?;
        }
        match line.trim() {
            "" => Err(format!("{} ended: {}", name.display(), daemon.child.wait()?).into()),
            line => Ok((daemon, line.to_owned())),
        }
    }

    /// Starts this program as a server process in one of its roles, and waits for the address as [`Daemon::announced`]
    /// does.
    pub fn in_role(prefix: &[OsString], role: &impl Serialize) -> Outcome<(Daemon, String)> {
        Daemon::announced(this(prefix, role)?)
    }

    /// Returns the process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ignore errors: an error means that the server process has already ended, and nobody needs the exit status.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command that starts this program in one of its roles, with `prefix` before the command line.
fn this(prefix: &[OsString], role: &impl Serialize) -> Outcome<Command> {
    let own = std::env::current_exe()?.into_os_string();
    let mut words = prefix.iter().cloned().chain([own, "--role".into(), serde_json::to_string(role)?.into()]);
    let mut command = Command::new(words.next().ok_or("no program")?);
    command.args(words);
    Ok(command)
}

/// Makes the kernel kill the command's process when this thread ends.
fn tied(command: &mut Command) {
    let tie = || {
        // SAFETY: prctl is a plain system call, which is async-signal-safe, so it may run between fork and exec.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: `tie` runs between fork and exec; it allocates no memory and takes no lock.
    unsafe { command.pre_exec(tie) };
}

/// Runs a command to its end; returns its output and its CPU seconds (user and system).
pub fn run(mut command: Command) -> Outcome<(String, f64)> {
    tied(&mut command);
    let name = command.get_program().to_owned();
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|e| format!("cannot start {}: {e}", name.display()))?;
    let mut output = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut output)?;
    }
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: no other code waits for this child process, and wait4 writes only to two live local variables.
    let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, usage.as_mut_ptr()) };
    if waited < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: wait4 has filled in the `rusage`; a zeroed `rusage` is also a valid value.
    let usage = unsafe { usage.assume_init() };
    if status != 0 {
        return Err(format!("{command:?} failed (wait status {status})").into());
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok((output, seconds(usage.ru_utime) + seconds(usage.ru_stime)))
}

/// Runs this program in one of its roles to its end; returns its result and its CPU seconds (user and system).
pub fn run_role<T: DeserializeOwned>(prefix: &[OsString], role: &impl Serialize) -> Outcome<(T, f64)> {
    let (output, cpu) = run(this(prefix, role)?)?;
    Ok((serde_json::from_str(&output).map_err(|e| format!("{e} in {output:?}"))?, cpu))
}

/// Returns the CPU seconds (user and system) of a process so far, with nanosecond resolution, including ended threads.
pub fn cpu_of(pid: u32) -> Outcome<f64> {
    // The CPU clock of a process includes all threads of the process.
    let mut clock = 0;
    // SAFETY: clock_getcpuclockid writes a clock id into a live local variable.
    let failed = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
    if failed != 0 {
        return Err(std::io::Error::from_raw_os_error(failed).into());
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes a time into a live local variable.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Returns the sum of the CPU seconds of several processes.
pub fn cpu_of_all(pids: &[u32]) -> Outcome<f64> {
    pids.iter().try_fold(0.0, |sum, pid| Ok(sum + cpu_of(*pid)?))
}
