//! A thread with one io_uring instance (ring): it receives the FUSE requests of one or more processors from the kernel,
//! and returns the replies.

use super::entry::Entry;
use super::nudge::nudge;
use crate::abi::uring as abi;
use crate::buffers::Buffers;
use crate::dispatch::Dispatcher;
use crate::reply::Reply;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Number of entries that a queue has at its start.
const DEPTH: usize = 8;
/// Largest number of entries of a queue. Each entry holds a request until its reply. So there must be more entries
/// than processes that wait for locks at the same time on one processor: the process that unlocks needs one more
/// entry.
const DEPTH_MAX: usize = 1024;
/// Number of entries of a queue that should wait for requests at any time. With fewer entries, a burst of requests has
/// to wait until the ring's thread runs.
const SPARE: usize = 4;
/// Capacity of a ring's submission queue, in commands.
const COMMANDS: u32 = 64;
/// The user data (`io_uring_sqe::user_data`) of the command that polls the eventfd for wake-ups. The user data of every
/// other command is the number of the command's entry.
const BELL: u64 = u64::MAX;

/// The state that a ring's thread shares with the threads that reply to requests.
pub(super) struct Ring {
    entries: Box<[OnceLock<Entry>]>,
    /// The indices of entries whose replies the ring's thread has to give to the kernel.
    handed: Mutex<Vec<u32>>,
    /// Whether the ring's thread sleeps or is about to sleep, so that other threads have to wake it.
    asleep: AtomicBool,
    /// The eventfd that wakes the ring's thread.
    bell: OwnedFd,
    ended: AtomicBool,
    payload: usize,
}

impl Ring {
    /// Creates the shared state of a ring for `queues` queues.
    pub(super) fn new(queues: usize, payload: usize) -> io::Result<Ring> {
        let entries = (0..queues * DEPTH_MAX).map(|_| OnceLock::new()).collect();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (asleep, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Ring { entries, handed: Mutex::default(), asleep, bell, ended, payload })
    }

    /// Puts the reply to the request `number` into the entry `index`. Any thread may call this.
    pub(super) fn answer(&self, index: u32, number: u64, reply: &Reply) {
        let Some(entry) = self.entries.get(index as usize).and_then(OnceLock::get) else {
            return tracing::error!(index, "a reply for an entry that does not exist");
        };
        if !entry.answer(number, reply, index as usize % DEPTH_MAX >= DEPTH) {
            return tracing::error!(unique = number, "a second reply to a request");
        }
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).push(index);
        self.wake();
    }

    fn wake(&self) {
        // If the ring's thread is awake, it checks for entries with replies before it sleeps, so wake only a sleeping
        // thread.
        if self.asleep.swap(false, SeqCst) {
            // The write to the eventfd fails only if the counter of the eventfd overflows, which cannot happen, so
            // ignore the result.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Ends the ring's thread, because the kernel sends no more requests.
    pub(super) fn end(&self) {
        self.ended.store(true, SeqCst);
        self.wake();
    }
}

/// A request queue of the kernel. The kernel has one queue for each possible processor.
struct Queue {
    number: u16,
    /// The number of entries, and the number of entries that wait for requests.
    all: usize,
    free: usize,
    /// Whether the kernel may hold requests in this queue although new entries are free ([`super::nudge`]). Set when
    /// the thread registers new entries. Cleared when the kernel takes back an entry with a reply and has no queued
    /// request to put into it.
    behind: bool,
}

/// The device and the mount point that all rings of a mount share.
pub(super) struct RingContext {
    /// The descriptor of the open FUSE device.
    pub(super) device: RawFd,
    /// The mount point.
    pub(super) place: Arc<Path>,
}

/// The state of a ring's thread.
pub(super) struct Server {
    ring: Arc<Ring>,
    number: u32,
    kernel: IoUring<squeue::Entry128>,
    queues: Vec<Queue>,
    /// Number of entries, over all queues, that the kernel has not dropped.
    alive: usize,
    buffers: Arc<Buffers>,
    /// The mount point.
    place: Arc<Path>,
}

impl Server {
    /// Creates the ring for the given queues of an open device. The thread that will serve the ring has to call this
    /// function.
    pub(super) fn new(ring: Arc<Ring>, number: u32, queues: &[u16], context: &RingContext) -> io::Result<Server> {
        let kernel = IoUring::builder().setup_single_issuer().setup_defer_taskrun().dontfork().build(COMMANDS)?;
        kernel.submitter().register_files(&[context.device])?;
        let queues = queues.iter().map(|&number| Queue { number, all: 0, free: 0, behind: false }).collect();
        let buffers = Buffers::new(ring.payload);
        let place = context.place.clone();
        let mut server = Server { ring, number, kernel, queues, alive: 0, buffers, place };
        server.listen()?;
        Ok(server)
    }

    /// Starts polling the eventfd that wakes the thread.
    fn listen(&mut self) -> io::Result<()> {
        let poll =
            opcode::PollAdd::new(types::Fd(self.ring.bell.as_raw_fd()), rustix::event::PollFlags::IN.bits().into());
        self.push(poll.multi(true).build().user_data(BELL).into())
    }

    fn push(&mut self, command: squeue::Entry128) -> io::Result<()> {
        // SAFETY: the command points to an entry, which lives as long as the ring and does not move.
        while unsafe { self.kernel.submission().push(&command) }.is_err() {
            self.kernel.submit()?;
        }
        Ok(())
    }

    fn command(&mut self, code: u32, index: usize) -> io::Result<()> {
        let Some(entry) = self.ring.entries[index].get() else { return Ok(()) };
        // The command has a `fuse_uring_cmd_req`: flags, commit id, and queue number.
        let mut arguments = [0; 80];
        arguments[8..16].copy_from_slice(&entry.answered().to_ne_bytes());
        arguments[16..18].copy_from_slice(&entry.queue.to_ne_bytes());
        let (at, count) = entry.iovecs();
        let command = opcode::UringCmd80::new(types::Fixed(0), code).cmd(arguments).addr(Some(at));
        let mut command = command.build().user_data(index as u64);
        // `UringCmd80` of the crate `io_uring` cannot set `sqe.len`, the number of `struct iovec` elements.
        // SAFETY: `struct io_uring_sqe` has the 32-bit field `len` at offset 24.
        unsafe { (&raw mut command).byte_add(abi::SQE_LEN).cast::<u32>().write(count) };
        self.push(command)
    }

    /// Registers one more entry of a queue with the kernel.
    fn add_entry(&mut self, queue: usize) -> io::Result<()> {
        let Queue { number, all, .. } = self.queues[queue];
        let index = queue * DEPTH_MAX + all;
        let entry = Entry::new(number, self.ring.payload)?;
        self.ring.entries[index].get_or_init(|| entry);
        self.command(abi::REGISTER, index)?;
        let queue = &mut self.queues[queue];
        (queue.all, queue.free) = (queue.all + 1, queue.free + 1);
        self.alive += 1;
        Ok(())
    }

    /// Serves requests until the file system is unmounted.
    pub(super) fn serve(mut self, dispatcher: &Arc<Dispatcher>) -> io::Result<()> {
        for queue in 0..self.queues.len() {
            (0..DEPTH).try_for_each(|_| self.add_entry(queue))?;
        }
        let (mut handed, mut done) = (Vec::new(), Vec::<cqueue::Entry>::new());
        while self.alive > 0 && !self.ring.ended.load(SeqCst) {
            self.ring.asleep.store(true, SeqCst);
            std::mem::swap(&mut handed, &mut *self.ring.handed.lock().unwrap_or_else(PoisonError::into_inner));
            for &index in &handed {
                self.queues[index as usize / DEPTH_MAX].free += 1;
                self.command(abi::COMMIT_AND_FETCH, index as usize)?;
            }
            match self.kernel.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.ring.asleep.store(false, SeqCst);
            done.extend(self.kernel.completion());
            for index in handed.drain(..) {
                let queue = &mut self.queues[index as usize / DEPTH_MAX];
                queue.behind &= done.iter().any(|completion| completion.user_data() == index.into());
            }
            self.provide(&done)?;
            for completion in done.drain(..) {
                self.complete(&completion, dispatcher)?;
            }
        }
        Ok(())
    }

    /// Updates the number of free entries of each queue after the completions `done`, and adds entries to queues that
    /// have too few. A lock request may wait for an unlock request, which can arrive only in a free entry.
    fn provide(&mut self, done: &[cqueue::Entry]) -> io::Result<()> {
        let with_request = |entry: &&cqueue::Entry| entry.user_data() != BELL && entry.result() >= 0;
        for completion in done.iter().filter(with_request) {
            self.queues[completion.user_data() as usize / DEPTH_MAX].free -= 1;
        }
        for queue in 0..self.queues.len() {
            while self.queues[queue].free < SPARE && self.queues[queue].all < DEPTH_MAX {
                if let Err(error) = self.add_entry(queue) {
                    tracing::warn!("cannot add an entry to the queue; its requests may wait for each other: {error}");
                    break;
                }
                self.queues[queue].behind = true;
            }
            if self.queues[queue].behind {
                // The nudge request needs a free entry, so first give the new entries to the kernel.
                self.kernel.submit()?;
                nudge(self.queues[queue].number, &self.place);
            }
        }
        Ok(())
    }

    fn complete(&mut self, completion: &cqueue::Entry, dispatcher: &Arc<Dispatcher>) -> io::Result<()> {
        let index = completion.user_data();
        if index == BELL {
            return if cqueue::more(completion.flags()) { Ok(()) } else { self.listen() };
        }
        if completion.result() < 0 {
            // The kernel drops an entry when the file system ends, or when it rejects the reply in the entry. The other
            // entries remain.
            self.alive -= 1;
            let error = io::Error::from_raw_os_error(-completion.result());
            tracing::debug!(index, "the kernel has dropped an entry: {error}");
            return Ok(());
        }
        let index = index as usize;
        let Some(entry) = self.ring.entries[index].get() else { return Ok(()) };
        let (number, request) = entry.request(&self.buffers);
        match request {
            Ok(request) => dispatcher.accept(request, super::ticket(self.number, index as u32)),
            Err(malformed) => {
                tracing::error!("{malformed}");
                self.ring.answer(index as u32, number, &Reply::Failed(super::EINVAL));
            }
        }
        Ok(())
    }
}
