//! Wake affinity: who gets a reply goes on running where it asked.
//!
//! Linux wakes a task on an idle processor if there is one. The thread of a ring works on the processor of whoever asked, which so is busy
//! with that thread when the reply is there: the asker is moved to another processor, which has to be interrupted out of its sleep for it, asks
//! the next thing there, and is moved back. That costs several times what the request does, most of all in virtual machines.
//!
//! A processor that runs nothing but tasks of the policy `SCHED_IDLE` counts as idle (`select_idle_sibling` of `kernel/sched/fair.c`), and such a
//! task gives way at once. So the thread of a ring has that policy while one request comes after the other. As it gets next to nothing of a
//! processor that others want as well, it is watched, and has the policy of all others again as soon as it has waited long for one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How often it is looked at a thread that has much to do.
const LOOK: Duration = Duration::from_millis(5);
/// Requests that come before it is looked at a thread again that had little to do.
const WAKES: u64 = 64;
/// Requests per second from which on a thread gives way.
const MANY: u64 = 4000;
/// Requests per second below which it does not, whatever it was before; of the mount, and of each thread.
const FEW: u64 = 1000;
/// How long a thread does not give way after one was kept from running by that; twice as long each time.
const PAUSE: Duration = Duration::from_millis(50);
/// And at most.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long threads have to have given way in all, without that, for all that to be forgotten.
const PROVEN: Duration = Duration::from_secs(1);

/// Requests per second.
fn rate(requests: u64, elapsed: Duration) -> u64 {
    u64::try_from(u128::from(requests) * 1_000_000_000 / elapsed.as_nanos().max(1)).unwrap_or(u64::MAX)
}

/// Says whether the threads of a mount that have something to do are to give way.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Judge {
    give_way: bool,
    /// Requests per second up to the last look.
    rate: u64,
    /// For how long they have given way since one was last kept from running by that.
    lasted: Duration,
    /// For how long they must not.
    pause: Duration,
    /// For how long they must not next time.
    next_pause: Duration,
}

impl Judge {
    fn new() -> Judge {
        Judge { give_way: false, rate: 0, lasted: Duration::ZERO, pause: Duration::ZERO, next_pause: PAUSE }
    }

    /// So many requests have come since the last look, so long ago; and of a thread that gave way it has become known that it was kept from running.
    fn look(&mut self, elapsed: Duration, requests: u64, starved: bool) {
        self.rate = rate(requests, elapsed);
        self.pause = self.pause.saturating_sub(elapsed);
        if self.give_way {
            self.lasted += elapsed;
            if self.lasted >= PROVEN {
                self.next_pause = PAUSE;
            }
        }
        // Of what was there before it ceased nothing new is learnt.
        if starved && self.pause.is_zero() {
            (self.give_way, self.lasted, self.pause) = (false, Duration::ZERO, self.next_pause);
            self.next_pause = (2 * self.next_pause).min(PAUSE_MAX);
        }
        // Who asks little may just have nothing to ask: that is not held against it.
        let enough = if self.give_way { FEW } else { MANY };
        self.give_way = self.rate >= enough && self.pause.is_zero();
    }

    /// Nothing was asked for so long, or nearly.
    fn rested(&mut self, time: Duration) {
        self.pause = self.pause.saturating_sub(time);
    }

    /// Whether nothing changes as long as nothing more is asked.
    fn is_at_rest(&self) -> bool {
        !self.give_way && self.rate < MANY
    }
}

/// Whether a thread of this process has ever given way because of what is here.
static EVER: AtomicBool = AtomicBool::new(false);

/// To be called first by every thread that requests may start, as those of a runtime: it would go on giving way like the one that has
/// started it. Where nobody does because of a mount, the policy of a thread is as it was.
pub fn thread_begins() {
    if EVER.load(Relaxed) && policy(0).is_ok_and(|policy| policy == libc::SCHED_IDLE) {
        // Allowed, as it was tried before anybody gave way.
        let _ = set_policy(0, false);
    }
}

/// The policy of the scheduler for a thread, by its number; a priority of real time is none of ours.
fn set_policy(thread: i32, gives_way: bool) -> io::Result<()> {
    let policy = if gives_way { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: numbers, and what the kernel reads. By number, as not every C library passes this call on.
    let done = unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const none) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The policy that a thread has.
fn policy(thread: i32) -> io::Result<i32> {
    // SAFETY: numbers.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) };
    if policy < 0 { Err(io::Error::last_os_error()) } else { Ok(policy as i32) }
}

/// Whether a thread that gives way may be told not to any more: with CAP_SYS_NICE, and where `RLIMIT_NICE` reaches to its own niceness. Tried with one
/// that sleeps, and is left alone if it has to go on giving way: it might not end soon.
fn may_come_back() -> io::Result<()> {
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let sleeps = move || {
        let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
        let _ = ended.recv();
    };
    let sleeper = thread::Builder::new().spawn(sleeps)?;
    let thread = told.recv().map_err(io::Error::other)?;
    set_policy(thread, true)?;
    set_policy(thread, false)?;
    drop(end);
    sleeper.join().map_err(|_| io::Error::other("panic"))
}

/// What a thread of a ring has while it is looked after; dropped by that thread.
pub(super) struct Member(Arc<Pulse>);

impl Member {
    /// It has got a request.
    pub(super) fn beat(&self) {
        self.0.beat();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Its number may be another's as soon as it has ended.
        let mut threads = self.0.watch.threads();
        threads.retain(|known| known.pulse.thread != self.0.thread);
        let _ = set_policy(0, false);
    }
}

/// What a thread of a ring tells those who look after it.
struct Pulse {
    thread: i32,
    /// What the system says of it (`/proc/PID/task/TID/stat`), and how long it ran and waited, in nanoseconds (`schedstat` beside it).
    state: File,
    times: File,
    requests: AtomicU64,
    watch: Arc<Shared>,
}

impl Pulse {
    fn beat(&self) {
        let before = self.requests.fetch_add(1, Relaxed);
        if before % WAKES == WAKES - 1 && !self.watch.awake.load(Relaxed) && !self.watch.awake.swap(true, SeqCst) {
            self.watch.wake();
        }
    }

    /// Whether it runs, or would if it had a processor.
    fn is_runnable(&self) -> io::Result<bool> {
        let mut text = [0; 128];
        let len = self.state.read_at(&mut text, 0)?;
        // "12 (a name (perhaps)) R 1 ..."
        let name_ends = text[..len].iter().rposition(|byte| *byte == b')').ok_or(io::ErrorKind::InvalidData)?;
        Ok(text[..len].get(name_ends + 2) == Some(&b'R'))
    }

    /// How long it has waited for a processor in all; the last time is known when it has got one.
    fn waited(&self) -> io::Result<Duration> {
        let mut text = [0; 80];
        let len = self.times.read_at(&mut text, 0)?;
        let waited =
            std::str::from_utf8(&text[..len]).ok().and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
        waited.map(Duration::from_nanos).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// What is known of one thread.
#[derive(Default)]
struct Standing {
    gives_way: bool,
    /// The most requests per second since it gives way.
    most: u64,
    /// It got little done while it gave way, after it had waited for so long in all; up to a look that came so long after the one before.
    suspect: Option<(Duration, Duration)>,
}

impl Standing {
    /// Whether nothing of it is to be found out by another look.
    fn is_at_rest(&self) -> bool {
        !self.gives_way && self.suspect.is_none()
    }

    /// So many requests have come to it in so long a time. Whether it was kept from running while it gave way, and has not just waited for who asks or for servers,
    /// is known a look later: how long it `waits` in all is counted when it gets a processor, which it does when it has the policy of all others.
    fn was_starved(
        &mut self,
        elapsed: Duration,
        requests: u64,
        is_runnable: impl Fn() -> bool,
        waits: impl Fn() -> Option<Duration>,
    ) -> bool {
        let rate = rate(requests, elapsed);
        let mut starved = false;
        if let Some((before, looked)) = self.suspect.take() {
            let waited = waits().unwrap_or(before).saturating_sub(before);
            if waited.is_zero() && is_runnable() {
                // It has got no processor yet.
                self.suspect = Some((before, looked));
            }
            starved = waited >= looked / 2;
        }
        self.most = if self.gives_way { self.most.max(rate) } else { 0 };
        if self.gives_way && rate < FEW.max(self.most / 2) && self.suspect.is_none() {
            self.suspect = waits().map(|before| (before, elapsed));
        }
        starved
    }
}

/// A thread that is looked after.
struct Known {
    pulse: Arc<Pulse>,
    /// Requests up to the last look.
    before: u64,
    standing: Standing,
}

impl Known {
    /// Requests since the last look.
    fn news(&mut self) -> u64 {
        let requests = self.pulse.requests.load(Relaxed);
        requests - std::mem::replace(&mut self.before, requests)
    }

    fn was_starved(&mut self, elapsed: Duration, news: u64) -> bool {
        let pulse = &self.pulse;
        let (runnable, waits) = (|| pulse.is_runnable().unwrap_or(false), || pulse.waited().ok());
        self.standing.was_starved(elapsed, news, runnable, waits)
    }

    fn set(&mut self, gives_way: bool) {
        if self.standing.gives_way == gives_way {
            return;
        }
        EVER.fetch_or(gives_way, Relaxed);
        match set_policy(self.pulse.thread, gives_way) {
            Ok(()) => self.standing.gives_way = gives_way,
            // Tried again at the next look.
            Err(error) => {
                tracing::debug!(thread = self.pulse.thread, gives_way, "the policy of the scheduler: {error}")
            }
        }
    }
}

/// What threads share with the one that looks after them.
#[derive(Default)]
struct Shared {
    threads: Mutex<Vec<Known>>,
    /// Whether it looks from time to time, and need not be woken.
    awake: AtomicBool,
    ended: AtomicBool,
    watcher: OnceLock<Thread>,
}

impl Shared {
    fn threads(&self) -> MutexGuard<'_, Vec<Known>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.unpark();
        }
    }

    /// Looks after all until it is told to end.
    fn run(&self) {
        let (mut judge, mut last) = (Judge::new(), Instant::now());
        while !self.ended.load(SeqCst) {
            if judge.is_at_rest() && self.threads().iter().all(|known| known.standing.is_at_rest()) {
                self.awake.store(false, SeqCst);
                thread::park();
                // Little was done in that time, however much the last moment had of it.
                self.threads().iter_mut().for_each(|known| _ = known.news());
                judge.rested(last.elapsed());
                last = Instant::now();
            }
            thread::park_timeout(LOOK);
            if self.ended.load(SeqCst) {
                return;
            }
            let elapsed = last.elapsed();
            last += elapsed;
            self.look(&mut judge, elapsed);
        }
    }

    fn look(&self, judge: &mut Judge, elapsed: Duration) {
        let (mut all, mut starved, gave_way) = (0, false, judge.give_way);
        let mut threads = self.threads();
        let news: Vec<u64> = threads.iter_mut().map(Known::news).collect();
        for (known, news) in threads.iter_mut().zip(&news) {
            all += news;
            starved |= known.was_starved(elapsed, *news);
        }
        judge.look(elapsed, all, starved);
        if judge.give_way != gave_way {
            tracing::trace!(give_way = judge.give_way, all, starved, "the threads of rings");
        }
        // Those that have little to do have nothing to gain, and who asks them is not to wait for it.
        let busy = |news: u64| rate(news, elapsed) >= FEW;
        threads.iter_mut().zip(&news).for_each(|(known, news)| known.set(judge.give_way && busy(*news)));
    }
}

/// Looks after the threads of rings, until it is dropped: when they have ended.
pub(super) struct Watch {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

impl Watch {
    /// Nobody yet.
    ///
    /// # Errors
    /// This process may not do that, or can start no thread.
    pub(super) fn new() -> io::Result<Watch> {
        may_come_back()?;
        let shared = Arc::<Shared>::default();
        let watch = shared.clone();
        let watcher = thread::Builder::new().name("fuse-affinity".to_owned()).spawn(move || watch.run())?;
        let _ = shared.watcher.set(watcher.thread().clone());
        Ok(Watch { shared, watcher: Some(watcher) })
    }

    /// The calling thread is looked after from here on.
    ///
    /// # Errors
    /// Somebody has given it another policy, which it keeps; the system does not tell whether it runs.
    pub(super) fn join(&self) -> io::Result<Member> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        if policy(thread)? != libc::SCHED_OTHER {
            return Err(io::Error::other("it has a policy of its own"));
        }
        let open = |what| File::open(format!("/proc/self/task/{thread}/{what}"));
        let (state, times, watch) = (open("stat")?, open("schedstat")?, self.shared.clone());
        let pulse = Arc::new(Pulse { thread, state, times, requests: AtomicU64::new(0), watch });
        pulse.waited()?;
        if !pulse.is_runnable()? {
            return Err(io::Error::other("it runs, and the system says that it does not"));
        }
        self.shared.threads().push(Known { pulse: pulse.clone(), before: 0, standing: Standing::default() });
        Ok(Member(pulse))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        self.shared.wake();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

#[cfg(test)]
mod tests;
