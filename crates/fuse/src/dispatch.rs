//! Requests on their way: carried out at once as far as that goes, then whenever what they wait for is there.
//!
//! A request is first worked on by the thread that read it. Many end there, such as a write that the window has room for.
//! One that has to wait costs no switch to another thread before its answer comes: it is handed to the runtime by whoever
//! wakes it ([`crate::turns`]), which is the task that read the answer from the network.

use crate::Errno;
use crate::fs::FileSystem;
use crate::ops::GivenUp;
use crate::reply::Reply;
use crate::request::{Op, Request};
use crate::signals;
use crate::transport::Transport;
use crate::turns::Turns;
use futures_util::future::{BoxFuture, FutureExt};
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;

const EINTR: Errno = Errno(4);
const EIO: Errno = Errno(5);

/// Takes requests from a transport and sees to it that each is answered once.
pub(crate) struct Dispatcher {
    fs: Arc<FileSystem>,
    transport: Arc<dyn Transport>,
    runtime: Handle,
    underway: Mutex<Underway>,
    /// Whether it is looked from time to time for signals that the kernel did not tell of.
    looking: AtomicBool,
}

/// What is known of requests by their numbers.
#[derive(Default)]
struct Underway {
    /// Those that are not answered yet.
    tasks: HashMap<u64, Arc<Task>>,
    /// The last that were to be given up and were not seen yet, or were answered already: a request and its interrupt may
    /// come by different ways.
    early: VecDeque<u64>,
}

/// How many of those are kept.
const EARLY: usize = 64;

/// How often the thread that read a request looks at it, as long as it is woken meanwhile.
const LOOKS: usize = 4;

/// A request being worked on.
struct Task {
    dispatcher: Arc<Dispatcher>,
    ticket: u64,
    unique: u64,
    /// When it may be left undone because of a signal, and who asked for it.
    given_up: GivenUp,
    asker: u32,
    /// Whether signals that came before it did were looked for.
    looked: AtomicBool,
    turns: Turns,
    /// What is left to be done; `None` when it is answered.
    work: Mutex<Option<BoxFuture<'static, Reply>>>,
}

impl Dispatcher {
    /// A dispatcher whose requests wait in `runtime`.
    pub(crate) fn new(fs: Arc<FileSystem>, transport: Arc<dyn Transport>, runtime: Handle) -> Self {
        Dispatcher { fs, transport, runtime, underway: Mutex::default(), looking: AtomicBool::new(false) }
    }

    fn underway(&self) -> MutexGuard<'_, Underway> {
        self.underway.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on a request as far as that goes without waiting.
    pub(crate) fn accept(self: &Arc<Self>, request: Request, ticket: u64) {
        let unique = request.header.unique;
        match &request.op {
            Op::Interrupt { unique: whom } => return self.interrupt(ticket, unique, *whom),
            Op::Forget { nlookup } => return self.fs.forget(&[(request.header.node, *nlookup)]),
            Op::BatchForget { nodes } => return self.fs.forget(nodes),
            _ => {}
        }
        let (given_up, asker) = (request.op.given_up(), request.header.pid);
        let work = AssertUnwindSafe(self.fs.clone().carry_out(request)).catch_unwind();
        let work = work.map(|outcome| outcome.unwrap_or(Reply::Failed(EIO))).boxed();
        let (turns, work) = (Turns::begun(), Mutex::new(Some(work)));
        let task = Arc::new(Task {
            dispatcher: self.clone(),
            ticket,
            unique,
            given_up,
            asker,
            looked: AtomicBool::new(given_up == GivenUp::Never),
            turns,
            work,
        });
        let _runtime = self.runtime.enter();
        // Before it is worked on: it may end at any moment afterwards.
        let signalled = self.underway().add(unique, &task);
        if signalled {
            task.clone().signalled();
        }
        task.begin();
    }

    /// The asker of a request got a signal: the request is given up if it may be; else it ends by itself. One that was not seen yet is
    /// dealt with when it comes.
    fn interrupt(&self, ticket: u64, unique: u64, whom: u64) {
        let task = self.underway().signalled(whom);
        let Some(task) = task else { return self.transport.answer(ticket, unique, Reply::None) };
        task.signalled();
        self.transport.answer(ticket, unique, Reply::None);
    }

    /// Something waits: signals for who asked for it are looked for as long as there is anything, if the kernel may not have told of them.
    /// Once for each request: of those that come later it tells.
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
                    // One may have come before that.
                    if dispatcher.underway().tasks.is_empty() || dispatcher.looking.swap(true, SeqCst) {
                        return;
                    }
                }
            }
        });
    }
}

impl Underway {
    /// Requests that may be given up, each once.
    fn not_looked_at(&self) -> Vec<Arc<Task>> {
        self.tasks.values().filter(|task| !task.looked.swap(true, Relaxed)).cloned().collect()
    }

    /// A request has come; whether it was told before that its asker got a signal.
    fn add(&mut self, unique: u64, task: &Arc<Task>) -> bool {
        self.tasks.insert(unique, task.clone());
        self.early.contains(&unique)
    }

    /// The asker of a request got a signal: the one that is being worked on.
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

    /// Its asker got a signal.
    fn signalled(self: Arc<Self>) {
        match self.given_up {
            GivenUp::Never => {}
            GivenUp::WhenKilled => self.watch(),
            GivenUp::OnSignal => self.give_up(),
        }
    }

    /// Leaves it undone, if it is not answered yet.
    fn give_up(&self) {
        if self.work().take().is_some() {
            self.dispatcher.underway().tasks.remove(&self.unique);
            self.dispatcher.transport.answer(self.ticket, self.unique, Reply::Failed(EINTR));
        }
    }

    /// Leaves it undone once its asker is being killed. The kernel tells of its first signal only, which may have been another.
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

    /// Works on it in the thread that read it.
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

    /// Works on it in a task.
    fn go_on(self: Arc<Self>) {
        let runtime = self.dispatcher.runtime.clone();
        runtime.spawn(std::future::poll_fn(move |context| self.poll(context)));
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let reply = {
            let mut work = self.work();
            // Answered, or given up.
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
