//! Wake affinity: keeps the caller of a request on its processor when the reply arrives.
//!
//! Linux wakes a task on an idle processor if there is one. The thread of a ring works on the caller's processor, so
//! this processor is busy with that thread when the reply is ready. The scheduler then moves the caller to another
//! processor, which has to be interrupted out of its sleep. The caller makes the next request there, and is moved back.
//! That costs several times as much as the request, most of all in virtual machines.
//!
//! A processor that runs only tasks of the policy `SCHED_IDLE` counts as idle (`select_idle_sibling` of
//! `kernel/sched/fair.c`), and such a task yields at once. So the thread of a ring has that policy while requests
//! follow one another. Such a thread gets next to nothing of a processor that other tasks want as well. So the mount
//! watches it, and restores the normal policy as soon as the thread has waited long for a processor.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// The interval at which the watcher looks at busy threads.
const LOOK: Duration = Duration::from_millis(5);
/// Requests of a thread that wake the sleeping watcher.
const WAKES: u64 = 64;
/// Requests per second of the mount from which on its busy threads yield.
const MANY: u64 = 4000;
/// Requests per second below which threads do not yield, whatever they did before: of the mount, and of each thread.
const FEW: u64 = 1000;
/// How long threads do not yield after yielding has starved one of them; doubles each time.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long threads have to yield in all, without starvation, until the pause is reset.
const PROVEN: Duration = Duration::from_secs(1);

/// Requests per second.
fn rate(requests: u64, elapsed: Duration) -> u64 {
    u64::try_from(u128::from(requests) * 1_000_000_000 / elapsed.as_nanos().max(1)).unwrap_or(u64::MAX)
}

/// The decision whether the busy threads of a mount yield.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Judge {
    give_way: bool,
    /// Requests per second up to the last look.
    rate: u64,
    /// How long the threads have yielded since yielding last starved one of them.
    lasted: Duration,
    /// How much longer they must not yield.
    pause: Duration,
    /// The length of the next pause.
    next_pause: Duration,
}

impl Judge {
    fn new() -> Judge {
        Judge { give_way: false, rate: 0, lasted: Duration::ZERO, pause: Duration::ZERO, next_pause: PAUSE }
    }

    /// Updates the decision with the requests since the last look, and with whether a thread that yielded is now known
    /// to have been starved.
    fn look(&mut self, elapsed: Duration, requests: u64, starved: bool) {
        self.rate = rate(requests, elapsed);
        self.pause = self.pause.saturating_sub(elapsed);
        if self.give_way {
            self.lasted += elapsed;
            if self.lasted >= PROVEN {
                self.next_pause = PAUSE;
            }
        }
        // Starvation from before the present pause is no news.
        if starved && self.pause.is_zero() {
            (self.give_way, self.lasted, self.pause) = (false, Duration::ZERO, self.next_pause);
            self.next_pause = (2 * self.next_pause).min(PAUSE_MAX);
        }
        // A low rate may just mean that programs make few requests, so it does not count as starvation.
        let enough = if self.give_way { FEW } else { MANY };
        self.give_way = self.rate >= enough && self.pause.is_zero();
    }

    /// Records a time with no or few requests.
    fn rested(&mut self, time: Duration) {
        self.pause = self.pause.saturating_sub(time);
    }

    /// Returns whether the decision remains the same as long as no more requests arrive.
    fn is_at_rest(&self) -> bool {
        !self.give_way && self.rate < MANY
    }
}

/// Whether a thread of this process has ever yielded because of this module.
static EVER: AtomicBool = AtomicBool::new(false);

/// Restores the normal policy of the calling thread, if it inherited `SCHED_IDLE` from a thread that yields. Every
/// thread that requests may start, such as a runtime's, has to call this first. Without a yielding mount, the policy
/// stays as it is.
pub fn thread_begins() {
    if EVER.load(Relaxed) && policy(0).is_ok_and(|policy| policy == libc::SCHED_IDLE) {
        // This is permitted: it was tried before any thread yielded.
        let _ = set_policy(0, false);
    }
}

/// Sets the scheduling policy of a thread, by its number. This module does not use real-time priorities.
fn set_policy(thread: i32, gives_way: bool) -> io::Result<()> {
    let policy = if gives_way { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: numbers, and memory that the kernel only reads. By number, as not every C library passes this call on.
    let done = unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const none) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the policy of a thread.
fn policy(thread: i32) -> io::Result<i32> {
    // SAFETY: numbers.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) };
    if policy < 0 { Err(io::Error::last_os_error()) } else { Ok(policy as i32) }
}

/// Checks whether a yielding thread may get the normal policy again: with CAP_SYS_NICE, or if `RLIMIT_NICE` reaches to
/// the thread's own niceness. Uses a sleeping thread for the test, and abandons it if it has to go on yielding: it
/// might not end soon.
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

/// The registration of a ring's thread with the watcher; dropped by that thread.
pub(super) struct Member(Arc<Pulse>);

impl Member {
    /// Counts a request.
    pub(super) fn beat(&self) {
        self.0.beat();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // The system may reuse the thread's number as soon as the thread has ended.
        let mut threads = self.0.watch.threads();
        threads.retain(|known| known.pulse.thread != self.0.thread);
        let _ = set_policy(0, false);
    }
}

/// The counters of a ring's thread that the watcher reads.
struct Pulse {
    thread: i32,
    /// The state of the thread (`/proc/PID/task/TID/stat`), and its run and wait times in nanoseconds (`schedstat`
    /// beside it).
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

    /// Returns whether the thread runs, or would run on a free processor.
    fn is_runnable(&self) -> io::Result<bool> {
        let mut text = [0; 128];
        let len = self.state.read_at(&mut text, 0)?;
        // "12 (a name (perhaps)) R 1 ..."
        let name_ends = text[..len].iter().rposition(|byte| *byte == b')').ok_or(io::ErrorKind::InvalidData)?;
        Ok(text[..len].get(name_ends + 2) == Some(&b'R'))
    }

    /// Returns how long the thread has waited for a processor in all. The system counts a wait when it ends.
    fn waited(&self) -> io::Result<Duration> {
        let mut text = [0; 80];
        let len = self.times.read_at(&mut text, 0)?;
        let waited =
            std::str::from_utf8(&text[..len]).ok().and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
        waited.map(Duration::from_nanos).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The scheduling state of one thread.
#[derive(Default)]
struct Standing {
    gives_way: bool,
    /// The most requests per second since the thread yields.
    most: u64,
    /// A suspicion of starvation: the total wait before the look at which the thread got little done, and the time
    /// since the look before it.
    suspect: Option<(Duration, Duration)>,
}

impl Standing {
    /// Returns whether another look at the thread would find nothing new.
    fn is_at_rest(&self) -> bool {
        !self.gives_way && self.suspect.is_none()
    }

    /// Returns whether the thread is now known to have been starved while it yielded, rather than waiting for callers
    /// or servers. This is known one look later: the system counts a wait (`waits`) when the thread gets a processor,
    /// which happens once the thread has the normal policy.
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
                // The thread has got no processor yet.
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

/// A watched thread.
struct Known {
    pulse: Arc<Pulse>,
    /// Requests up to the last look.
    before: u64,
    standing: Standing,
}

impl Known {
    /// Returns the requests since the last look.
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
            // The next look tries again.
            Err(error) => {
                tracing::debug!(thread = self.pulse.thread, gives_way, "the policy of the scheduler: {error}")
            }
        }
    }
}

/// The state that the ring threads share with the watcher.
#[derive(Default)]
struct Shared {
    threads: Mutex<Vec<Known>>,
    /// Whether the watcher looks at regular intervals, and need not be woken.
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

    /// Runs the watcher until `ended` is set.
    fn run(&self) {
        let (mut judge, mut last) = (Judge::new(), Instant::now());
        while !self.ended.load(SeqCst) {
            if judge.is_at_rest() && self.threads().iter().all(|known| known.standing.is_at_rest()) {
                self.awake.store(false, SeqCst);
                thread::park();
                // The rate was low during that time, even if the last moment had many requests.
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
        // Threads with few requests gain nothing by yielding, and their callers should not wait for a processor.
        let busy = |news: u64| rate(news, elapsed) >= FEW;
        threads.iter_mut().zip(&news).for_each(|(known, news)| known.set(judge.give_way && busy(*news)));
    }
}

/// The watcher of the rings' threads, until this is dropped after these threads have ended.
pub(super) struct Watch {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts a watcher without threads.
    ///
    /// # Errors
    /// This process may not change policies in this way, or cannot start a thread.
    pub(super) fn new() -> io::Result<Watch> {
        may_come_back()?;
        let shared = Arc::<Shared>::default();
        let watch = shared.clone();
        let watcher = thread::Builder::new().name("fuse-affinity".to_owned()).spawn(move || watch.run())?;
        let _ = shared.watcher.set(watcher.thread().clone());
        Ok(Watch { shared, watcher: Some(watcher) })
    }

    /// Registers the calling thread with the watcher.
    ///
    /// # Errors
    /// The thread has another policy, which it keeps, or the system does not report whether the thread runs.
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
