//! The transport over io_uring (FUSE over io_uring, Linux 6.14 and later).
//!
//! The kernel puts the requests of each processor into memory of this process. A thread on the same processor
//! executes the requests there, and the kernel takes replies from the same memory. One system call both sends the
//! last reply and fetches the next request.
//!
//! INIT, INTERRUPT and FORGET still arrive through the device, and the mount sends notifications through the device.
//! So this transport uses a device transport as well.

mod entry;
mod nudge;
mod ring;

use crate::Errno;
use crate::abi;
use crate::dispatch::{Dispatcher, Serve};
use crate::reply::Reply;
use crate::transport::Transport;
use ring::{Ring, RingContext, Server};
use rustix::fd::RawFd;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

pub(crate) use crate::abi::uring::SWITCH;

const EINVAL: Errno = Errno(22);
/// The bit that marks tickets of requests in rings. Tickets of requests from the device do not have this bit.
const RINGS: u64 = 1 << 63;

/// Returns the ticket of a request that arrived in an entry of a ring.
fn ticket(ring: u32, entry: u32) -> u64 {
    RINGS | u64::from(ring) << 32 | u64::from(entry)
}

/// The io_uring transport: the rings, and the device transport.
pub(crate) struct Uring {
    classic: Arc<dyn Serve>,
    rings: Vec<Arc<Ring>>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
    /// Whether INIT has negotiated io_uring. If so, the rings start when the kernel has received the reply to INIT.
    agreed: AtomicBool,
    /// The channels of ring threads that wait for the reply to INIT.
    waiting: Mutex<Vec<Sender<Arc<Dispatcher>>>>,
    dispatcher: Mutex<Option<Arc<Dispatcher>>>,
}

/// Returns the reason why FUSE over io_uring is not available, as a message for users, or `None` if it is available.
pub(crate) fn unavailable() -> Option<String> {
    match std::fs::read(SWITCH) {
        Ok(value) if value.starts_with(b"Y") => None,
        Ok(_) => Some(format!("it is disabled: root enables it for new mounts with \"echo Y > {SWITCH}\"")),
        Err(_) => Some("this kernel does not have it: Linux 6.14 or later, built with CONFIG_FUSE_IO_URING".to_owned()),
    }
}

/// Returns the number of possible processors, from a list such as `0-3,8`. The kernel requires a queue for each
/// processor.
fn processors(possible: &str) -> Option<usize> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    possible.trim().split(',').map(count).sum()
}

impl Uring {
    /// Creates rings for an open device of the mount at `place`, for payloads of up to `payload` bytes. `classic` is
    /// the transport over the device. Fails if the process cannot create the rings.
    pub(crate) fn new(device: RawFd, place: &Path, classic: Arc<dyn Serve>, payload: usize) -> io::Result<Uring> {
        let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
        let queues = processors(&possible).and_then(|count| u16::try_from(count).ok());
        let queues = queues.filter(|count| *count > 0).ok_or_else(|| io::Error::other("too many processors"))?;
        // Start one thread for each processor that this process may use. These threads also serve the queues of all
        // other processors.
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(queues.into());
        let (mut rings, mut threads, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..count {
            let own: Vec<u16> = (number as u16..queues).step_by(count).collect();
            let ring = Arc::new(Ring::new(own.len(), payload)?);
            rings.push(ring.clone());
            let ((go, start), (made, ready)) = (mpsc::channel(), mpsc::channel());
            let context = RingContext { device, place: place.into() };
            let run = move || serve(ring, number as u32, &own, &context, &made, &start);
            threads.push(Builder::new().name(format!("fuse-ring-{number}")).spawn(run)?);
            ready.recv().unwrap_or_else(|_| Err(io::Error::other("its thread died")))?;
            waiting.push(go);
        }
        Ok(Uring {
            classic,
            rings,
            threads: Mutex::new(threads),
            agreed: AtomicBool::new(false),
            waiting: Mutex::new(waiting),
            dispatcher: Mutex::default(),
        })
    }

    /// Starts the rings, or ends their threads if INIT has not negotiated io_uring. Called after the reply to INIT.
    fn begin(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        let Some(dispatcher) = lock(&self.dispatcher).take().filter(|_| self.agreed.load(Relaxed)) else { return };
        // Sending the dispatcher to a ring's thread fails if the thread has ended. The thread has already reported its
        // error, so ignore the failed send.
        waiting.iter().for_each(|go| drop(go.send(dispatcher.clone())));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Binds the calling thread to one processor.
fn stay_on(processor: usize) -> io::Result<()> {
    if processor >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut own = CpuSet::new();
    own.set(processor);
    Ok(sched_setaffinity(None, &own)?)
}

/// Runs the thread of a ring until the file system is unmounted.
fn serve(
    ring: Arc<Ring>,
    number: u32,
    queues: &[u16],
    context: &RingContext,
    made: &Sender<io::Result<()>>,
    start: &Receiver<Arc<Dispatcher>>,
) -> io::Result<()> {
    if let Err(error) = stay_on(number as usize) {
        // Only log the error: the thread works on any processor, but is faster on the processor of its queue.
        tracing::debug!(number, "cannot bind a ring to its processor: {error}");
    }
    let server = match Server::new(ring, number, queues, context) {
        Ok(server) => server,
        Err(error) => {
            let _ = made.send(Err(error));
            return Ok(());
        }
    };
    let _ = made.send(Ok(()));
    match start.recv() {
        Ok(dispatcher) => {
            server.serve(&dispatcher).inspect_err(|error| tracing::error!(number, "a ring failed: {error}"))
        }
        // INIT has not negotiated io_uring, so the ring gets no requests.
        Err(_) => Ok(()),
    }
}

impl Serve for Uring {
    fn serve(self: Arc<Self>, dispatcher: Arc<Dispatcher>) -> io::Result<()> {
        *lock(&self.dispatcher) = Some(dispatcher.clone());
        let served = self.classic.clone().serve(dispatcher);
        lock(&self.waiting).clear();
        self.rings.iter().for_each(|ring| ring.end());
        let threads = std::mem::take(&mut *lock(&self.threads));
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("panic"))));
        ended.fold(served, |all, one| all.and(one))
    }
}

impl Transport for Uring {
    fn wants(&self) -> u64 {
        abi::init::OVER_IO_URING
    }

    fn agreed(&self, flags: u64) {
        self.agreed.store(flags & abi::init::OVER_IO_URING != 0, Relaxed);
    }

    fn answer(&self, ticket: u64, unique: u64, reply: Reply) {
        if ticket & RINGS == 0 {
            self.classic.answer(ticket, unique, reply);
            // The first reply through the device is the reply to INIT. So this call starts the rings after the reply to
            // INIT; later calls have no effect.
            return self.begin();
        }
        if let Some(ring) = self.rings.get((ticket >> 32 & 0x7fff_ffff) as usize) {
            ring.answer(ticket as u32, unique, &reply);
        }
    }

    fn may_lose_interrupts(&self) -> bool {
        true
    }

    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()> {
        self.classic.notify(code, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_possible_processors_is_parsed() {
        assert_eq!(processors("0-1\n"), Some(2));
        assert_eq!(processors("0\n"), Some(1));
        assert_eq!(processors("0-3,8-9,12\n"), Some(7));
        assert_eq!(processors(""), None);
        assert_eq!(processors("3-0"), None);
    }
}
