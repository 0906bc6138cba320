//! Rewalks: threads whose path the kernel walks again because the mount replied ESTALE.
//!
//! The kernel walks a path again at most once in a system call, and then looks up every name on the path. So the mount
//! executes a second request of the same call without path expectations. Either the kernel has just looked up the
//! names, or the path begins at an open directory, whose own name the kernel does not look up.
//!
//! A thread may make the same call with the same arguments again, for another file: `rm -r` opens directories by the
//! same descriptor, with names at the same address. So the mount has to detect the end of a call. A call ends with the
//! operation for which the kernel walked the path, such as OPEN. A call that ends with a LOOKUP, such as stat(2), has
//! no such operation. The mount detects its end when the thread makes a request that cannot follow this LOOKUP in one
//! call.
//!
//! After a LOOKUP of a name that does not exist, the kernel can only look up the same name again or create it. After a
//! LOOKUP of an existing name, the kernel may repeat the LOOKUP in the same call, but then the directory of the name
//! still exists. So a repeated LOOKUP in a removed directory belongs to a new call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Largest number of threads, and of dropped names, that [`Rewalks`] records.
const MOST: usize = 1024;
/// How long the mount keeps a record: that of a thread after the last reply to the thread, that of a dropped name after
/// the drop.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// Threads whose path the kernel walks again: they received ESTALE because the path no longer leads to the file in the
/// kernel's cache.
#[derive(Default)]
pub(crate) struct Rewalks {
    any: AtomicBool,
    threads: Mutex<HashMap<u32, Rewalk>>,
    dropped: Mutex<HashMap<Name, Dropped>>,
}

/// A name: the inode number of its directory, and the name in the directory.
type Name = (u64, Box<[u8]>);

/// A cached name that the kernel drops, because the name now stands for another file. Each thread that looked up the
/// name before the drop gets ESTALE once, and looks up the name again.
struct Dropped {
    at: Instant,
    threads: Vec<u32>,
}

/// A thread that received ESTALE, and whose path the kernel walks again.
struct Rewalk {
    /// When the thread last received a reply; `None` while the thread waits for a reply.
    last: Option<Instant>,
    /// The system call of the thread, with its arguments.
    call: String,
    /// The name that the thread last looked up in its path walk, and whether the name existed.
    looked_up: Option<(Name, bool)>,
    /// The name that the thread is looking up now.
    looking_up: Option<Name>,
}

impl Rewalk {
    fn is_known(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() < KNOWN_FOR)
    }

    /// Returns whether the thread looks up again the name that its last LOOKUP found.
    fn repeats_lookup(&self) -> bool {
        matches!((&self.looked_up, &self.looking_up), (Some((found, true)), Some(asking)) if found == asking)
    }
}

/// Guard of a request for which a thread waits. If the thread is killed, the guard is dropped without a reply.
pub(crate) struct RewalkGuard<'a> {
    rewalks: &'a Rewalks,
    thread: u32,
}

impl Drop for RewalkGuard<'_> {
    fn drop(&mut self) {
        if let Some(rewalk) = self.rewalks.threads().get_mut(&self.thread) {
            rewalk.last.get_or_insert_with(Instant::now);
        }
    }
}

/// A request of a thread for which the kernel walks or has walked a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    /// A lookup of a name in a directory.
    LookUp(u64, &'a [u8]),
    /// The creation of a name, perhaps after a failed lookup.
    Make,
    /// Any other request that addresses a file by its path, such as OPEN or UNLINK.
    Other,
}

impl Rewalks {
    fn threads(&self) -> MutexGuard<'_, HashMap<u32, Rewalk>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a thread in the system call `call` receives ESTALE.
    pub(crate) fn begin(&self, thread: u32, call: &str) {
        let mut threads = self.threads();
        threads.retain(|_, rewalk| rewalk.is_known());
        if threads.len() >= MOST {
            threads.clear();
        }
        let rewalk = Rewalk { last: Some(Instant::now()), call: call.to_owned(), looked_up: None, looking_up: None };
        threads.insert(thread, rewalk);
        self.any.store(true, SeqCst);
    }

    /// Records that a thread receives ESTALE for a name that now stands for another file, and that the kernel drops
    /// the name.
    pub(crate) fn dropped(&self, thread: u32, dir: u64, name: &[u8]) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.retain(|_, dropped| dropped.at.elapsed() < KNOWN_FOR);
        if dropped.len() >= MOST {
            dropped.clear();
        }
        dropped.insert((dir, name.into()), Dropped { at: Instant::now(), threads: vec![thread] });
        self.any.store(true, SeqCst);
    }

    /// Records that a thread uses a directory to which no path leads any more, for example by an open descriptor. The
    /// kernel cannot walk a path to this directory again. So no thread receives ESTALE any more for a dropped name in
    /// this directory.
    pub(crate) fn worked_in(&self, dir: u64) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).retain(|(in_dir, _), _| *in_dir != dir);
    }

    /// Returns whether this LOOKUP must get ESTALE, so that the kernel looks up the name again: the kernel has dropped
    /// the name because of another thread, and this thread has not received ESTALE for the name yet.
    pub(crate) fn drops(&self, thread: u32, dir: u64, name: &[u8]) -> bool {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let found = dropped.get_mut(&(dir, name.into())).filter(|dropped| dropped.at.elapsed() < KNOWN_FOR);
        let Some(found) = found.filter(|found| !found.threads.contains(&thread) && found.threads.len() < MOST) else {
            return false;
        };
        found.threads.push(thread);
        true
    }

    /// Begins a request that addresses a file by its path. If the request belongs to the system call for which the
    /// thread received ESTALE, the mount keeps the record of the thread until the reply. Otherwise it removes the
    /// record.
    pub(crate) fn begin_request(&self, thread: u32, step: Step) -> Option<Box<RewalkGuard<'_>>> {
        if !self.any.load(SeqCst) {
            return None;
        }
        let mut threads = self.threads();
        let rewalk = threads.get_mut(&thread)?;
        let absent = rewalk.looked_up.as_ref().filter(|(_, found)| !found).map(|((dir, name), _)| (*dir, &**name));
        let follows = match (absent, step) {
            (Some(absent), Step::LookUp(dir, name)) => absent == (dir, name),
            (Some(_), Step::Other) => false,
            _ => true,
        };
        if !follows || !rewalk.is_known() {
            threads.remove(&thread);
            return None;
        }
        rewalk.last = None;
        rewalk.looking_up = match step {
            Step::LookUp(dir, name) => Some((dir, name.into())),
            _ => None,
        };
        // Boxed, because rewalks are rare, and otherwise every request reserves memory for the guard.
        Some(Box::new(RewalkGuard { rewalks: self, thread }))
    }

    /// Returns whether a thread already received ESTALE in the system call `call`: its number and arguments as text,
    /// empty if the mount could not read `/proc/<tid>/syscall`. An empty text counts as the same call.
    pub(crate) fn is_walking(&self, thread: u32, call: &str) -> bool {
        let is = |rewalk: &Rewalk| {
            let same = rewalk.call == call || rewalk.call.is_empty() || call.is_empty();
            same && rewalk.is_known() && !rewalk.repeats_lookup()
        };
        self.any.load(SeqCst) && self.threads().get(&thread).is_some_and(is)
    }

    /// Records the reply to a thread's LOOKUP: whether the name exists.
    pub(crate) fn looked_up(&self, thread: u32, found: bool) {
        if self.any.load(SeqCst)
            && let Some(rewalk) = self.threads().get_mut(&thread)
        {
            rewalk.last = Some(Instant::now());
            rewalk.looked_up = rewalk.looking_up.take().map(|name| (name, found));
        }
    }

    /// Records the end of a path walk: the mount has replied to the operation (such as OPEN) for which the thread's
    /// system call walked the path.
    pub(crate) fn end(&self, thread: u32) {
        if self.any.load(SeqCst) {
            let mut threads = self.threads();
            threads.remove(&thread);
            threads.retain(|_, rewalk| rewalk.is_known());
            self.any.store(!threads.is_empty(), SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_repeats_the_path_walk_until_its_operation_is_answered() {
        let rewalks = Rewalks::default();
        assert!(!rewalks.is_walking(5, "open"));
        rewalks.begin(5, "open");
        assert!(rewalks.is_walking(5, "open") && !rewalks.is_walking(6, "open"));
        assert!(!rewalks.is_walking(5, "stat"), "another call of the same thread");
        let asking = rewalks.begin_request(5, Step::LookUp(1, b"d"));
        rewalks.looked_up(5, true);
        drop(asking);
        assert!(rewalks.is_walking(5, "open"), "the walk looks up names");
        rewalks.end(6);
        rewalks.end(5);
        assert!(!rewalks.is_walking(5, "open") && !rewalks.any.load(SeqCst));
    }

    #[test]
    fn each_thread_gets_one_error_for_a_dropped_name() {
        let rewalks = Rewalks::default();
        assert!(!rewalks.drops(5, 1, b"f"));
        rewalks.dropped(5, 1, b"f");
        assert!(!rewalks.drops(5, 1, b"f") && !rewalks.drops(6, 1, b"g") && !rewalks.drops(6, 2, b"f"));
        assert!(rewalks.drops(6, 1, b"f") && !rewalks.drops(6, 1, b"f"));
        rewalks.worked_in(2);
        assert!(rewalks.drops(7, 1, b"f"));
        rewalks.worked_in(1);
        assert!(!rewalks.drops(8, 1, b"f"));
    }

    #[test]
    fn the_same_call_on_another_file_is_a_separate_walk() {
        let after = |found, step| {
            let rewalks = Rewalks::default();
            rewalks.begin(5, "open");
            let asking = rewalks.begin_request(5, Step::LookUp(1, b"f"));
            assert!(rewalks.is_walking(5, "open"));
            rewalks.looked_up(5, found);
            drop(asking);
            let _asking = rewalks.begin_request(5, step);
            rewalks.is_walking(5, "open")
        };
        assert!(after(false, Step::LookUp(1, b"f")) && after(false, Step::Make));
        assert!(
            !after(false, Step::Other) && !after(false, Step::LookUp(1, b"g")) && !after(false, Step::LookUp(2, b"f"))
        );
        assert!(after(true, Step::LookUp(2, b"g")) && after(true, Step::Make) && after(true, Step::Other));
        assert!(
            !after(true, Step::LookUp(1, b"f")),
            "the name was there a moment before, so the thread must walk again"
        );
    }

    #[test]
    fn a_waiting_thread_is_remembered_for_any_time() {
        let rewalks = Rewalks::default();
        rewalks.begin(5, "open");
        let asking = rewalks.begin_request(5, Step::Other);
        assert_eq!(rewalks.threads()[&5].last, None);
        rewalks.begin(6, "open");
        assert!(rewalks.is_walking(5, "open"));
        let past = Instant::now().checked_sub(KNOWN_FOR).unwrap();
        rewalks.threads().get_mut(&6).unwrap().last = Some(past);
        assert!(rewalks.begin_request(6, Step::Other).is_none());
        assert!(!rewalks.is_walking(6, "open") && rewalks.threads().len() == 1);
        // The thread is killed before it receives a reply.
        drop(asking);
        assert!(rewalks.threads()[&5].last.is_some());
    }

    #[test]
    fn an_unreadable_system_call_counts_as_the_same_call() {
        let rewalks = Rewalks::default();
        rewalks.begin(5, "open");
        assert!(rewalks.is_walking(5, "") && !rewalks.is_walking(6, ""));
        rewalks.begin(6, "");
        assert!(rewalks.is_walking(6, "open"));
    }

    #[test]
    fn threads_that_do_not_return_are_forgotten() {
        let rewalks = Rewalks::default();
        (0..3 * MOST as u32).for_each(|thread| rewalks.begin(thread, "open"));
        assert!(rewalks.threads().len() <= MOST);
        let past = Instant::now().checked_sub(KNOWN_FOR).unwrap();
        rewalks.threads().values_mut().for_each(|rewalk| rewalk.last = Some(past));
        assert!(!rewalks.is_walking(3 * MOST as u32 - 1, "open"));
        rewalks.end(0);
        assert!(rewalks.threads().is_empty() && !rewalks.any.load(SeqCst));
    }
}
