//! A pool of forked processes, each of which runs one seed.
//!
//! The parent forks each process from the same state, because some libraries derive random numbers from process-wide
//! counters. A run that hangs or crashes does not affect other runs.

use crate::run::{self, Focus, Verdict};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::time::{Duration, Instant};

/// A child process that runs one seed.
struct Child {
    seed: u64,
    pid: Pid,
    answer: PipeReader,
    read: Vec<u8>,
    begun: Instant,
}

/// The settings of a pool of processes that run seeds.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// Maximum number of processes that run at the same time.
    pub jobs: usize,
    /// Maximum duration of one run in real time. The pool kills a process that takes longer.
    pub limit: Duration,
    /// The deliberate bug for which the runs use special plans, if any.
    pub focus: Option<Focus>,
    /// Whether the child processes print every event of their runs.
    pub print: bool,
}

impl Pool {
    /// Runs all seeds, and passes each verdict to `take` when it arrives. The calling process must have no other
    /// thread.
    ///
    /// # Errors
    /// The kernel cannot create a process.
    pub fn run(&self, seeds: impl IntoIterator<Item = u64>, mut take: impl FnMut(Verdict)) -> io::Result<()> {
        run::prepare(self.print);
        let mut seeds = seeds.into_iter().peekable();
        let mut children: Vec<Child> = Vec::new();
        while seeds.peek().is_some() || !children.is_empty() {
            while children.len() < self.jobs.max(1)
                && let Some(seed) = seeds.next()
            {
                children.push(self.fork(seed)?);
            }
            wait_for_some(&children)?;
            let mut at = 0;
            while at < children.len() {
                match self.look(&mut children[at])? {
                    Some(verdict) => {
                        children.swap_remove(at);
                        take(verdict);
                    }
                    None => at += 1,
                }
            }
        }
        Ok(())
    }

    fn fork(&self, seed: u64) -> io::Result<Child> {
        let (answer, writer) = io::pipe()?;
        io::stdout().flush()?;
        // SAFETY: fork is safe because this process has only one thread. So no other thread holds a lock that the child
        // would inherit.
        match unsafe { libc::fork() } {
            0 => self.be_child(seed, writer),
            pid => {
                let pid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)?;
                Ok(Child { seed, pid, answer, read: Vec::new(), begun: Instant::now() })
            }
        }
    }

    fn be_child(&self, seed: u64, mut writer: PipeWriter) -> ! {
        let verdict = run::run(seed, self.focus, self.print);
        let told = serde_json::to_vec(&verdict).map(|text| writer.write_all(&text));
        let code = i32::from(!matches!(told, Ok(Ok(()))));
        // SAFETY: `_exit` has no precondition. It ends the child without running the exit handlers of the parent.
        unsafe { libc::_exit(code) }
    }

    /// Reads the output of a child process. Returns the verdict of its run if the child has ended or exceeded its time
    /// limit.
    fn look(&self, child: &mut Child) -> io::Result<Option<Verdict>> {
        let mut events = [PollFd::new(&child.answer, PollFlags::IN)];
        if poll(&mut events, Some(&rustix::event::Timespec::default()))? == 0 {
            if child.begun.elapsed() < self.limit {
                return Ok(None);
            }
            // Ignore the error of the kill: the child may have ended by itself after it exceeded the time limit.
            let _ = kill_process(child.pid, Signal::KILL);
            waitpid(Some(child.pid), WaitOptions::empty())?;
            return Ok(Some(run::broken(child.seed, format!("took longer than {:?}", self.limit))));
        }
        let mut buffer = [0; 16 << 10];
        let n = child.answer.read(&mut buffer)?;
        child.read.extend_from_slice(&buffer[..n]);
        if n > 0 {
            return Ok(None);
        }
        let ended = waitpid(Some(child.pid), WaitOptions::empty())?;
        let verdict = serde_json::from_slice(&child.read);
        Ok(Some(verdict.unwrap_or_else(|_| run::broken(child.seed, format!("its process died: {ended:?}")))))
    }
}

/// Waits until a child process has output, or for one second. The caller then checks the time limits of all children.
fn wait_for_some(children: &[Child]) -> io::Result<()> {
    let mut events: Vec<PollFd<'_>> = children.iter().map(|c| PollFd::new(&c.answer, PollFlags::IN)).collect();
    let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
    match poll(&mut events, Some(&second)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
