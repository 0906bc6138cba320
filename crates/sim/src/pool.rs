//! Runs in processes of their own, several at a time.
//!
//! Each is forked from this process while it is in the same state, as some libraries count for the whole process what
//! they draw random numbers from. A run that takes too long or dies harms no other one.

use crate::run::{self, Focus, Verdict};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::time::{Duration, Instant};

/// A run that goes on.
struct Child {
    seed: u64,
    pid: Pid,
    answer: PipeReader,
    read: Vec<u8>,
    begun: Instant,
}

/// How seeds are carried out.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// Runs at a time.
    pub jobs: usize,
    /// Longest time of one.
    pub limit: Duration,
    /// A mistake to look for.
    pub focus: Option<Focus>,
    /// Print every event.
    pub print: bool,
}

impl Pool {
    /// Carries out all seeds, and hands over each verdict as it comes. Must be called while this process has no other
    /// thread.
    ///
    /// # Errors
    /// When no process can be made.
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
        // SAFETY: this process has one thread, so the child finds no lock taken that nobody will release.
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
        // SAFETY: ends the process without running what its parent wants to run at its own end.
        unsafe { libc::_exit(code) }
    }

    /// The verdict of a run, when it is there.
    fn look(&self, child: &mut Child) -> io::Result<Option<Verdict>> {
        let mut events = [PollFd::new(&child.answer, PollFlags::IN)];
        if poll(&mut events, Some(&rustix::event::Timespec::default()))? == 0 {
            if child.begun.elapsed() < self.limit {
                return Ok(None);
            }
            // It may end by itself at this very moment.
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

/// Waits until some run has something to say, or one of them may have taken too long.
fn wait_for_some(children: &[Child]) -> io::Result<()> {
    let mut events: Vec<PollFd<'_>> = children.iter().map(|c| PollFd::new(&c.answer, PollFlags::IN)).collect();
    let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
    match poll(&mut events, Some(&second)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
