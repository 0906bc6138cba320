//! Spawning of tasks. In a simulator, each task belongs to the group of the simulated process that started it, and is
//! killed with this group.
//!
//! All services start their tasks here. Outside a simulator, [`spawn`] is the same as `tokio::spawn`.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// The tasks of one simulated process. A clone refers to the same group.
#[derive(Clone, Debug)]
pub struct Group(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    number: u64,
    dead: AtomicBool,
    tasks: Mutex<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    live: Vec<AbortHandle>,
    /// Number of entries in the list `live` above which the group removes finished tasks from the list.
    tidy_at: usize,
}

thread_local! {
    static CURRENT: RefCell<Option<Group>> = const { RefCell::new(None) };
}

impl Group {
    /// Makes a group without tasks, with this number (see [`Group::number`]).
    pub fn new(number: u64) -> Self {
        Group(Arc::new(Inner { number, dead: AtomicBool::new(false), tasks: Mutex::default() }))
    }

    /// Returns the number by which the simulator identifies the group.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns the group of the task that runs on this thread; `None` outside a simulator.
    pub fn current() -> Option<Group> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Starts a task in this group. If the group was killed, the task does not run.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let handle = tokio::spawn(Member::new(self.clone(), future));
        self.adopt(handle.abort_handle());
        handle
    }

    /// Kills all tasks of the group at their current await point. Tasks that are started while these tasks are dropped
    /// are killed too.
    ///
    /// The tokio runtime drops the tasks after this call, when it runs again.
    pub fn kill(&self) {
        self.0.dead.store(true, Relaxed);
        let live = std::mem::take(&mut self.tasks().live);
        live.iter().for_each(AbortHandle::abort);
    }

    /// Returns whether [`Group::kill`] was called.
    pub fn is_dead(&self) -> bool {
        self.0.dead.load(Relaxed)
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adopt(&self, task: AbortHandle) {
        if self.is_dead() {
            task.abort();
            return;
        }
        let mut tasks = self.tasks();
        if tasks.live.len() > tasks.tidy_at {
            tasks.live.retain(|task| !task.is_finished());
            tasks.tidy_at = 64 + 2 * tasks.live.len();
        }
        tasks.live.push(task);
    }

    /// Runs `work` with this group as the current group of the thread.
    fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Back(Option<Group>);
        impl Drop for Back {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _back = Back(CURRENT.replace(Some(self.clone())));
        work()
    }
}

/// A task of a group. While the task is polled or dropped, its group is the current group of the thread.
struct Member<F> {
    group: Group,
    /// The future of the task; `None` after it has completed.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Member<F> {
    fn new(group: Group, future: F) -> Self {
        Member { group, future: Some(Box::pin(future)) }
    }
}

impl<F: Future> Future for Member<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        match &mut this.future {
            // The group was killed, so the runtime is about to abort this task. Do not poll its future any more.
            Some(future) if !this.group.is_dead() => this.group.enter(|| future.as_mut().poll(cx)),
            _ => Poll::Pending,
        }
    }
}

impl<F> Drop for Member<F> {
    fn drop(&mut self) {
        let future = self.future.take();
        self.group.enter(|| drop(future));
    }
}

/// Starts a task in the current tokio runtime.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Group::current() {
        Some(group) => group.spawn(future),
        None => tokio::spawn(future),
    }
}

/// Starts a task in the tokio runtime of `handle`. Any thread may call this.
pub fn spawn_on<F>(handle: &Handle, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Group::current() {
        Some(group) => group.spawn(future),
        None => handle.spawn(future),
    }
}

/// Starts a task as [`spawn_on`] does, but, outside a simulator, polls it first on the current thread. So a task that
/// does not wait needs no thread switch.
///
/// The caller must not hold a lock that the task needs.
pub fn begin_on<F>(handle: &Handle, future: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    if let Some(group) = Group::current() {
        group.spawn(future);
        return;
    }
    let begun =
        Arc::new(Begun { handle: handle.clone(), work: Mutex::new(Some(Box::pin(future))), moved: false.into() });
    let waker = Waker::from(begun.clone());
    let _runtime = handle.enter();
    let _ = begun.poll(&mut Context::from_waker(&waker));
}

/// A task that was first polled outside the tokio runtime. The first wakeup moves the task into the runtime.
struct Begun {
    handle: Handle,
    /// The future of the task; `None` after it has completed.
    work: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    moved: AtomicBool,
}

impl Begun {
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work.as_mut().is_none_or(|work| work.as_mut().poll(context).is_ready());
        if !done {
            return Poll::Pending;
        }
        *work = None;
        Poll::Ready(())
    }
}

impl Wake for Begun {
    fn wake(self: Arc<Self>) {
        // The first wakeup moves the task into the tokio runtime, which then polls the task with a waker of its own.
        // Further wakeups of this waker have no effect.
        if !self.moved.swap(true, Relaxed) {
            self.handle.clone().spawn(std::future::poll_fn(move |context| self.poll(context)));
        }
    }
}

/// Starts a task that is aborted when the `JoinSet` is dropped.
pub fn spawn_in<F>(set: &mut JoinSet<F::Output>, future: F)
where
    F: Future<Output: Send> + Send + 'static,
{
    match Group::current() {
        Some(group) => {
            let task = set.spawn(Member::new(group.clone(), future));
            group.adopt(task);
        }
        None => drop(set.spawn(future)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use tokio::sync::oneshot;

    /// A value that starts a task when it is dropped.
    struct Again(Arc<AtomicU32>);

    impl Drop for Again {
        fn drop(&mut self) {
            let ran = self.0.clone();
            spawn(async move { ran.fetch_add(1, Relaxed) });
        }
    }

    #[tokio::test]
    async fn a_task_is_polled_once_by_its_starter_and_then_by_the_runtime() {
        let ran = Arc::new(AtomicU32::new(0));
        let (tell, told) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let (count, handle) = (ran.clone(), Handle::current());
        let begin = move || {
            begin_on(&handle, async move {
                count.fetch_add(1, Relaxed);
                told.await.unwrap();
                tokio::task::yield_now().await;
                end.send(()).unwrap();
            });
        };
        std::thread::spawn(begin).join().unwrap();
        assert_eq!(ran.load(Relaxed), 1);
        tell.send(()).unwrap();
        ended.await.unwrap();
    }

    #[tokio::test]
    async fn no_task_outlives_its_group() {
        let ran = Arc::new(AtomicU32::new(0));
        let (group, other) = (Group::new(1), Group::new(2));
        let (tell, told) = oneshot::channel();
        let again = Again(ran.clone());
        let inner = group.spawn(async move {
            let mut set = JoinSet::new();
            spawn_in(&mut set, std::future::pending::<()>());
            let child = spawn(async move {
                let _again = again;
                tell.send(Group::current().map(|group| group.number())).unwrap();
                std::future::pending::<()>().await;
            });
            child.await
        });
        let bystander = other.spawn(async { 5 });
        assert_eq!(told.await, Ok(Some(1)));
        group.kill();
        assert!(inner.await.is_err_and(|e| e.is_cancelled()));
        assert!(group.spawn(async {}).await.is_err_and(|e| e.is_cancelled()));
        tokio::task::yield_now().await;
        assert_eq!(ran.load(Relaxed), 0);
        assert_eq!(bystander.await.unwrap(), 5);
        assert!(Group::current().is_none());
    }
}
