//! Dispatch of requests: the dispatcher polls the future of each request at once, and again whenever a result that
//! the request waits for arrives.
//!
//! The thread that read a request polls the request first. Many requests complete in this poll, such as a write that
//! fits into the client's window. A request that has to wait costs no thread switch before the reply of a server
//! arrives. When this reply arrives, the waker of the request lets the runtime poll the request
//! ([`crate::poll_scheduling`]), in a task on the thread that read the reply.

use crate::Errno;
use crate::fs::FileSystem;
use crate::ops::AbandonWhen;
use crate::poll_scheduling::PollScheduling;
use crate::reply::Reply;
use crate::request::{Op, Request};
use crate::signals;
use crate::transport::Transport;
use futures_util::future::{BoxFuture, FutureExt};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;

/// A transport that passes requests to a dispatcher.
pub(crate) trait Serve: Transport {
    /// Passes requests to the dispatcher until the file system is unmounted.
    fn serve(self: Arc<Self>, dispatcher: Arc<Dispatcher>) -> io::Result<()>;
}

const EINTR: Errno = Errno(4);
const EIO: Errno = Errno(5);

/// Receives requests from a transport, and ensures that each request gets exactly one reply.
pub(crate) struct Dispatcher {
    fs: Arc<FileSystem>,
    transport: Arc<dyn Transport>,
    runtime: Handle,
    underway: Mutex<Underway>,
    /// Whether a task checks periodically for signals that the kernel did not report.
    looking: AtomicBool,
}

/// The requests in progress, by request number (`unique`).
#[derive(Default)]
struct Underway {
    /// Requests that have no reply yet.
    tasks: HashMap<u64, Arc<Task>>,
    /// The request numbers of the last INTERRUPTs whose request was not in progress: the INTERRUPT arrived before its
    /// request, because the two may arrive through different channels, or after the reply to the request.
    early: VecDeque<u64>,
}

/// Largest number of INTERRUPTs that the mount records for requests that are not in progress.
const EARLY: usize = 64;

/// Largest number of polls of a request by the thread that read the request. That thread polls again if a wake-up
/// arrives during a poll.
const LOOKS: usize = 4;

/// A request in progress.
struct Task {
    dispatcher: Arc<Dispatcher>,
    ticket: u64,
    unique: u64,
    /// Which signals to the caller make the mount abandon the request, and the caller's thread id.
    abandon_when: AbandonWhen,
    asker: u32,
    /// Whether the mount has checked for signals that arrived before the request.
    looked: AtomicBool,
    turns: PollScheduling,
    /// The future that executes the request; `None` after the reply.
    work: Mutex<Option<BoxFuture<'static, Reply>>>,
}

impl Dispatcher {
    /// Creates a dispatcher that runs waiting requests in `runtime`.
    pub(crate) fn new(fs: Arc<FileSystem>, transport: Arc<dyn Transport>, runtime: Handle) -> Self {
        Dispatcher { fs, transport, runtime, underway: Mutex::default(), looking: AtomicBool::new(false) }
    }

    fn underway(&self) -> MutexGuard<'_, Underway> {
        self.underway.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a request, and polls it as long as it makes progress without waiting.
    pub(crate) fn accept(self: &Arc<Self>, request: Request, ticket: u64) {
        let unique = request.header.unique;
        match &request.op {
            Op::Interrupt { unique: whom } => return self.interrupt(ticket, unique, *whom),
            Op::Forget { nlookup } => return self.fs.forget(&[(request.header.node, *nlookup)]),
            Op::BatchForget { nodes } => return self.fs.forget(nodes),
            _ => {}
        }
        let (abandon_when, asker) = (request.op.abandon_when(), request.header.pid);
        let work = AssertUnwindSafe(self.fs.clone().carry_out(request)).catch_unwind();
        let work = work.map(|outcome| outcome.unwrap_or(Reply::Failed(EIO))).boxed();
        let (turns, work) = (PollScheduling::begun(), Mutex::new(Some(work)));
        let task = Arc::new(Task {
            dispatcher: self.clone(),
            ticket,
            unique,
            abandon_when,
            asker,
            looked: AtomicBool::new(abandon_when == AbandonWhen::Never),
            turns,
            work,
        });
        let _runtime = self.runtime.enter();
        // Register the task before its first poll, because the request may complete during this poll.
        let signalled = self.underway().add(unique, &task);
        if signalled {
            task.clone().signalled();
        }
        task.begin();
    }

    /// Handles the INTERRUPT of the request `whom`: abandons the request if its kind allows this. If the request has
    /// not arrived yet, the dispatcher abandons the request on its arrival.
    fn interrupt(&self, ticket: u64, unique: u64, whom: u64) {
        let task = self.underway().signalled(whom);
        let Some(task) = task else { return self.transport.answer(ticket, unique, Reply::None) };
        task.signalled();
        self.transport.answer(ticket, unique, Reply::None);
    }

    /// Starts a task that checks whether callers of waiting requests have received signals, if the kernel may not
    /// have reported some signals. The task checks each request once, because the kernel reports later signals.
    fn look(self: &Arc<Self>) {
        if !self.transport.may_lose_interrupts() || self.looking.load(Relaxed) || self.looking.swap(true, SeqCst) {
            return;
        }
        let dispatcher = self.clone();
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(signals::LOOKS).await;
                let tasks = dispatcher.underway().not_looked_at();
                for task in tasks.into_iter().filter(|task| signals::is_signalled(task.asker)) {
                    task.signalled();
                }
                if dispatcher.underway().tasks.is_empty() {
                    dispatcher.looking.store(false, SeqCst);
                    // A request that arrived between the check above and the store to `looking` started no task of its
                    // own, because `looking` was still true. So check for requests again.
                    if dispatcher.underway().tasks.is_empty() || dispatcher.looking.swap(true, SeqCst) {
                        return;
                    }
                }
            }
        });
    }
}

impl Underway {
    /// Returns the requests that were not checked for signals yet, and marks them as checked.
    fn not_looked_at(&self) -> Vec<Arc<Task>> {
        self.tasks.values().filter(|task| !task.looked.swap(true, Relaxed)).cloned().collect()
    }

    /// Adds a request. Returns whether its INTERRUPT arrived before the request.
    fn add(&mut self, unique: u64, task: &Arc<Task>) -> bool {
        self.tasks.insert(unique, task.clone());
        self.early.contains(&unique)
    }

    /// Returns the request `unique`, whose caller received a signal. If the request is not in progress, records an
    /// early interrupt.
    fn signalled(&mut self, unique: u64) -> Option<Arc<Task>> {
        let task = self.tasks.get(&unique).cloned();
        if task.is_none() {
            self.early.push_back(unique);
            if self.early.len() > EARLY {
                self.early.pop_front();
            }
        }
        task
    }
}

impl Task {
    fn work(&self) -> MutexGuard<'_, Option<BoxFuture<'static, Reply>>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a signal to the caller of this request.
    fn signalled(self: Arc<Self>) {
        match self.abandon_when {
            AbandonWhen::Never => {}
            AbandonWhen::WhenKilled => self.watch(),
            AbandonWhen::OnSignal => self.give_up(),
        }
    }

    /// Abandons the request with EINTR, if it has no reply yet.
    fn give_up(&self) {
        if self.work().take().is_some() {
            self.dispatcher.underway().tasks.remove(&self.unique);
            self.dispatcher.transport.answer(self.ticket, self.unique, Reply::Failed(EINTR));
        }
    }

    /// Abandons the request once its caller is being killed. The kernel reports only the first signal of a caller,
    /// and SIGKILL may follow another signal.
    fn watch(self: Arc<Self>) {
        let runtime = self.dispatcher.runtime.clone();
        let task = Arc::downgrade(&self);
        runtime.spawn(async move {
            while let Some(task) = task.upgrade().filter(|task| task.work().is_some()) {
                if signals::is_killed(task.asker) {
                    return task.give_up();
                }
                drop(task);
                tokio::time::sleep(signals::LOOKS).await;
            }
        });
    }

    /// Polls the request in the thread that read it.
    fn begin(self: Arc<Self>) {
        let waker = Waker::from(self.clone());
        for _ in 0..LOOKS {
            let ended = self.poll(&mut Context::from_waker(&waker)).is_ready();
            if ended {
                return;
            }
            if self.turns.rest() {
                return self.dispatcher.look();
            }
        }
        self.dispatcher.look();
        self.turns.hand_over();
        self.go_on();
    }

    /// Polls the request in a task of the runtime.
    fn go_on(self: Arc<Self>) {
        let runtime = self.dispatcher.runtime.clone();
        runtime.spawn(std::future::poll_fn(move |context| self.poll(context)));
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let reply = {
            let mut work = self.work();
            // The request already has its reply, or was abandoned, so this poll has nothing to do.
            let Some(future) = work.as_mut() else { return Poll::Ready(()) };
            let Poll::Ready(reply) = future.poll_unpin(context) else { return Poll::Pending };
            *work = None;
            reply
        };
        self.dispatcher.underway().tasks.remove(&self.unique);
        self.dispatcher.transport.answer(self.ticket, self.unique, reply);
        Poll::Ready(())
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if self.turns.wake() {
            self.go_on();
        }
    }
}
