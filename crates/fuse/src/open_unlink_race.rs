//! The race between open and unlink: names that are removed while a program opens them.
//!
//! Between the LOOKUP of a name and the OPEN of its file, another program may remove the file. The mount then replies
//! ESTALE, and the kernel looks up the whole path again, once. A local file system would have opened the old or the new
//! file, or found none. So a thread that retries its open reserves the name from its LOOKUP until it has opened the
//! file. Until then, a thread of this mount that removes the name or replaces its file waits. Removals through other
//! mounts do not wait.
//!
//! The kernel caches names for a while, in which other programs may remove the names or replace their files. A removed
//! file exists as long as a program has the file open. A thread must not open the file by a name that the file no
//! longer has. But a thread may open the file by a descriptor (`/proc/self/fd`) or by a file handle. The mount
//! recognizes such a thread by a second OPEN of the file without a LOOKUP between the two OPENs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Largest number of retrying threads that the mount records.
const MOST: usize = 1024;
/// How long a retrying thread reserves a name at most.
const HELD_FOR: Duration = Duration::from_millis(500);
/// How long the mount records a retrying thread that makes no request.
const KNOWN_FOR: Duration = Duration::from_secs(5);

/// A name: the inode number of its directory, and the name in the directory.
type Name = (u64, Box<[u8]>);

/// Threads for which the kernel looks up a path again, and names that are being removed.
#[derive(Default)]
pub(crate) struct OpenUnlinkRaces {
    any: AtomicBool,
    state: Mutex<State>,
    /// Notified when a thread may have released its name, or a removal has ended.
    changed: Notify,
}

#[derive(Default)]
struct State {
    threads: HashMap<u32, Trying>,
    /// Names that are being removed, with the number of removals of each name in progress.
    removing: HashMap<Name, u32>,
}

/// A thread that retries an open.
struct Trying {
    /// When the thread received ESTALE for its first attempt to open the file.
    since: Instant,
    /// The name that the thread looked up last, and the time until which the thread reserves this name.
    held: Option<(Name, Instant)>,
    /// The number of the file that the thread found by its reserved name.
    found: Option<u64>,
    /// The number of the file that no longer existed at the thread's first attempt to open the file.
    gone: u64,
}

/// Guard of the removal of a name. Dropping the guard records that the removal has ended.
pub(crate) struct Removal<'a>(&'a OpenUnlinkRaces, Name);

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if let Some(many) = state.removing.get_mut(&self.1) {
            *many -= 1;
            if *many == 0 {
                state.removing.remove(&self.1);
            }
        }
        drop(state);
        self.0.wake();
    }
}

impl OpenUnlinkRaces {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that wait in [`OpenUnlinkRaces::wait`]. Threads wait only while some thread retries an open.
    fn wake(&self) {
        if self.any.load(SeqCst) {
            self.changed.notify_waiters();
        }
    }

    /// Waits until `free` returns `Ok`. An `Err` from `free` contains the latest time for the next call of `free`.
    async fn wait<T>(&self, mut free: impl FnMut(&mut State) -> Result<T, Instant>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Register for notifications before the call of `free`, so that no notification is missed.
            changed.as_mut().enable();
            let until = match free(&mut self.state()) {
                Ok(done) => return done,
                Err(until) => until,
            };
            let _ = tokio::time::timeout_at(until, changed).await;
        }
    }

    /// Begins a LOOKUP by a thread. A retrying thread waits while another thread removes the name, and then reserves
    /// the name.
    pub(crate) async fn looks_up(&self, thread: u32, dir: u64, name: &[u8]) {
        if !self.any.load(SeqCst) || !self.state().threads.contains_key(&thread) {
            return;
        }
        let name: Name = (dir, name.into());
        let latest = Instant::now() + HELD_FOR;
        let free = |state: &mut State| {
            if state.removing.contains_key(&name) && Instant::now() < latest {
                return Err(latest);
            }
            if let Some(trying) = state.threads.get_mut(&thread) {
                (trying.held, trying.found) = (Some((name.clone(), Instant::now() + HELD_FOR)), None);
            }
            Ok(())
        };
        // Boxed, so that lookups that need not wait reserve no memory for this future.
        Box::pin(self.wait(free)).await;
        self.wake();
    }

    /// Records the file that the LOOKUP found, or `None` if the name does not exist.
    pub(crate) fn looked_up(&self, thread: u32, node: Option<u64>) {
        if !self.any.load(SeqCst) {
            return;
        }
        match node {
            Some(node) => {
                if let Some(trying) = self.state().threads.get_mut(&thread) {
                    trying.found = Some(node);
                }
            }
            None => self.opened(thread),
        }
    }

    /// Begins the removal or replacement of a name by a thread: waits until no other thread has the name reserved.
    pub(crate) async fn removes(&self, thread: u32, dir: u64, name: &[u8]) -> Removal<'_> {
        let name: Name = (dir, name.into());
        if self.any.load(SeqCst) {
            self.opened(thread);
            let free = |state: &mut State| match state.held(&name) {
                Some(until) => Err(until),
                None => {
                    *state.removing.entry(name.clone()).or_default() += 1;
                    Ok(())
                }
            };
            Box::pin(self.wait(free)).await;
        } else {
            *self.state().removing.entry(name.clone()).or_default() += 1;
        }
        Removal(self, name)
    }

    /// Records that a thread has opened a file or has made another request. Both end the thread's retry of an open.
    pub(crate) fn opened(&self, thread: u32) {
        if self.any.load(SeqCst) {
            self.ends(&mut self.state(), thread);
            self.changed.notify_waiters();
        }
    }

    fn ends(&self, state: &mut State, thread: u32) {
        state.threads.remove(&thread);
        state.threads.retain(|_, trying| trying.since.elapsed() < KNOWN_FOR);
        if state.threads.is_empty() {
            self.any.store(false, SeqCst);
        }
    }

    /// Returns whether a thread may open a file that has no name any more. A thread that uses a descriptor may open the
    /// file: this thread received ESTALE for the file before, and has looked up no name after that. A retrying thread
    /// may open the file if it has just found the file by a name that it reserved. An unknown thread (id 0) may open
    /// the file too.
    pub(crate) fn may_be_nameless(&self, thread: u32, node: u64) -> bool {
        let may = |trying: &Trying| match trying.found {
            Some(found) => found == node,
            None => trying.gone == node && trying.held.is_none(),
        };
        thread == 0 || (self.any.load(SeqCst) && self.state().threads.get(&thread).is_some_and(may))
    }

    /// Records that a file no longer existed when a thread opened it. At the thread's first attempt to open the file,
    /// returns `None`, and the kernel looks up the path again. At the second attempt, returns the directory and the
    /// name by which the thread has just found the file.
    pub(crate) fn gone(&self, thread: u32, node: u64) -> Option<(u64, Vec<u8>)> {
        let mut state = self.state();
        let again = state.threads.get_mut(&thread).filter(|trying| trying.found == Some(node));
        let again = again.and_then(|trying| trying.held.take());
        if let Some(((dir, name), _)) = again {
            self.ends(&mut state, thread);
            drop(state);
            self.changed.notify_waiters();
            return Some((dir, name.into()));
        }
        if state.threads.len() >= MOST {
            state.threads.clear();
        }
        state.threads.insert(thread, Trying { since: Instant::now(), held: None, found: None, gone: node });
        self.any.store(true, SeqCst);
        None
    }
}

impl State {
    /// Returns until when a thread has a name reserved, or `None` if no thread has reserved it.
    fn held(&self, name: &Name) -> Option<Instant> {
        let held = self.threads.values().filter_map(|trying| trying.held.as_ref());
        let now = Instant::now();
        held.filter(|(held, until)| held == name && *until > now).map(|(_, until)| *until).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    /// Polls a future once. Returns its result, or `None` if the future is not ready.
    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_retrying_thread_keeps_the_name_until_it_has_opened_the_file() {
        let open_unlink_races = OpenUnlinkRaces::default();
        assert!(now(open_unlink_races.looks_up(1, 5, b"f")).is_some());
        open_unlink_races.looked_up(1, Some(7));
        assert!(now(open_unlink_races.removes(2, 5, b"f")).is_some(), "this is the first attempt");
        assert_eq!(open_unlink_races.gone(1, 7), None);
        assert!(now(open_unlink_races.looks_up(1, 5, b"f")).is_some());
        assert!(now(open_unlink_races.removes(2, 5, b"f")).is_none(), "the thread is looking up the name");
        open_unlink_races.looked_up(1, Some(8));
        assert!(now(open_unlink_races.removes(2, 5, b"f")).is_none(), "the thread is about to open the file");
        assert!(now(open_unlink_races.removes(2, 6, b"f")).is_some(), "another directory");
        assert!(now(open_unlink_races.looks_up(3, 5, b"f")).is_some(), "another thread");
        let waits = async { drop(open_unlink_races.removes(2, 5, b"f").await) };
        let opens = async {
            tokio::task::yield_now().await;
            open_unlink_races.opened(1);
        };
        let began = Instant::now();
        tokio::join!(waits, opens);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(!open_unlink_races.any.load(SeqCst) && open_unlink_races.state().removing.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_waits_for_a_running_removal() {
        let open_unlink_races = OpenUnlinkRaces::default();
        let removal = open_unlink_races.removes(2, 5, b"f").await;
        let other = open_unlink_races.removes(3, 5, b"f").await;
        assert!(now(open_unlink_races.looks_up(1, 5, b"f")).is_some(), "this is the first attempt");
        assert_eq!(open_unlink_races.gone(1, 7), None);
        assert!(now(open_unlink_races.looks_up(1, 1, b"dir")).is_some());
        drop(other);
        assert!(now(open_unlink_races.looks_up(1, 5, b"f")).is_none());
        let waits = open_unlink_races.looks_up(1, 5, b"f");
        let ends = async {
            tokio::task::yield_now().await;
            drop(removal);
        };
        let began = Instant::now();
        tokio::join!(waits, ends);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(now(open_unlink_races.removes(2, 5, b"f")).is_none());
        open_unlink_races.looked_up(1, None);
        assert!(now(open_unlink_races.removes(2, 5, b"f")).is_some(), "the lookup failed");
    }

    #[tokio::test(start_paused = true)]
    async fn no_thread_waits_for_long() {
        let open_unlink_races = OpenUnlinkRaces::default();
        assert_eq!(open_unlink_races.gone(1, 7), None);
        open_unlink_races.looks_up(1, 5, b"f").await;
        let began = Instant::now();
        let removal = open_unlink_races.removes(2, 5, b"f").await;
        assert_eq!(began.elapsed(), HELD_FOR);
        open_unlink_races.looks_up(1, 5, b"f").await;
        assert_eq!(began.elapsed(), HELD_FOR * 2);
        drop(removal);
        // Thread 1 has reserved the name, and now removes it. So the retry of thread 1 ends, and the removal does not
        // wait.
        drop(open_unlink_races.removes(1, 5, b"f").await);
        assert_eq!(began.elapsed(), HELD_FOR * 2);
        assert!(!open_unlink_races.any.load(SeqCst));
        // The mount forgets a thread that received ESTALE and makes no request for `KNOWN_FOR`.
        assert_eq!(open_unlink_races.gone(1, 7), None);
        tokio::time::advance(KNOWN_FOR).await;
        drop(open_unlink_races.removes(2, 5, b"f").await);
        assert!(!open_unlink_races.any.load(SeqCst));
    }

    #[test]
    fn a_repeated_open_without_a_lookup_or_an_open_after_a_lookup_may_use_a_removed_file() {
        let open_unlink_races = OpenUnlinkRaces::default();
        assert!(!open_unlink_races.may_be_nameless(1, 7), "this is the first attempt");
        assert_eq!(open_unlink_races.gone(1, 7), None);
        assert!(open_unlink_races.may_be_nameless(1, 7));
        assert!(!open_unlink_races.may_be_nameless(1, 8), "another file");
        assert!(!open_unlink_races.may_be_nameless(2, 7), "another thread");
        now(open_unlink_races.looks_up(1, 5, b"f")).unwrap();
        assert!(!open_unlink_races.may_be_nameless(1, 7), "the thread is looking up a name");
        open_unlink_races.looked_up(1, Some(8));
        assert!(
            !open_unlink_races.may_be_nameless(1, 7) && open_unlink_races.may_be_nameless(1, 8),
            "the thread has found another file"
        );
        open_unlink_races.opened(1);
        assert!(!open_unlink_races.may_be_nameless(1, 7), "the file was opened");
        assert!(open_unlink_races.may_be_nameless(0, 7), "the thread with the number 0 is unknown");
    }

    #[test]
    fn a_removed_file_is_reported_with_the_name_of_the_last_lookup_of_the_thread() {
        let open_unlink_races = OpenUnlinkRaces::default();
        assert_eq!(open_unlink_races.gone(1, 7), None);
        now(open_unlink_races.looks_up(1, 5, b"f")).unwrap();
        open_unlink_races.looked_up(1, Some(8));
        assert_eq!(open_unlink_races.gone(1, 9), None, "another file, which the kernel opened by a cached name");
        now(open_unlink_races.looks_up(1, 5, b"f")).unwrap();
        open_unlink_races.looked_up(1, Some(8));
        assert_eq!(open_unlink_races.gone(2, 8), None, "another thread");
        assert_eq!(open_unlink_races.gone(1, 8), Some((5, b"f".to_vec())));
        assert_eq!(open_unlink_races.gone(1, 8), None, "another call");
        (0..3 * MOST as u32).for_each(|thread| assert_eq!(open_unlink_races.gone(thread, 1), None));
        assert!(open_unlink_races.state().threads.len() <= MOST);
    }
}
