//! Background jobs of the mgr: work that no client request waits for. A job works in passes, and each job has a loop of
//! its own that repeats these passes.
//!
//! To add a job, add one file with a [`Job`] and one line to [`JOBS`].

pub(crate) mod collect_unowned_objects;
mod delete_objects;
mod delete_unused;
mod expire_leases;
pub(crate) mod finish_intents;
mod flush_gathered;
mod leave_marks;
mod listen_to_data_servers;
mod rebuild_copies;
mod recall_layouts;
mod record_exports;
pub(crate) mod scrub;
mod send_callbacks;

use crate::fs::NfsServer;
use crate::volume::Volume;
use net::task;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use types::Status;

/// All background jobs, in the order in which the mgr starts them.
const JOBS: [fn(&mut JoinSet<()>, &net::Counters, &Context); 14] = [
    begin::<delete_objects::DeleteObjects>,
    begin::<delete_unused::DeleteUnused>,
    begin::<rebuild_copies::RebuildCopies>,
    begin::<scrub::Scrub>,
    begin::<leave_marks::LeaveMarks>,
    begin::<record_exports::RecordExports>,
    begin::<finish_intents::ForgetIntents>,
    begin::<flush_gathered::FlushGathered>,
    begin::<listen_to_data_servers::ListenToDataServers>,
    begin::<recall_layouts::RecallLayouts>,
    begin::<finish_intents::FinishIntents>,
    begin::<collect_unowned_objects::CollectUnownedObjects>,
    begin::<expire_leases::ExpireLeases>,
    begin::<send_callbacks::SendCallbacks>,
];

/// The components of the mgr that a background job uses.
#[derive(Clone)]
struct Context {
    volume: Arc<Volume>,
    server: Arc<NfsServer>,
}

impl Context {
    /// Returns a receiver that is notified whenever an iod connects. The receiver starts with one pending notification,
    /// so that the first pass of the job does not wait.
    fn came_up(&self) -> watch::Receiver<u64> {
        let mut came_up = self.volume.iods.came_up.subscribe();
        came_up.mark_changed();
        came_up
    }
}

/// A background job of the mgr. The job runs as long as the mgr runs. After a panic, the mgr starts the job again.
trait Job: Sized + Send + 'static {
    /// Name of the job for the log line about a panic of the job.
    const NAME: &'static str;

    /// Returns the job in its initial state, before its first pass.
    fn new(context: &Context) -> Self;

    /// Completes when the next pass of the job is due.
    fn due(&mut self) -> impl Future<Output = ()> + Send;

    /// Makes one pass over the work of the job.
    ///
    /// # Errors
    /// Returns the status that ended the pass early. The job loop passes the error to [`Job::failed`].
    fn pass(&mut self) -> impl Future<Output = Result<(), Status>> + Send;

    /// Logs the error that ended a pass. A job may override this function to set the time of its next pass.
    fn failed(&mut self, error: Status) {
        tracing::error!("{} failed: {error}", Self::NAME);
    }
}

/// Starts all background jobs. Dropping the returned set stops the jobs.
pub(crate) fn start(network: &net::Counters, volume: &Arc<Volume>, server: &Arc<NfsServer>) -> JoinSet<()> {
    let context = Context { volume: volume.clone(), server: server.clone() };
    let mut jobs = JoinSet::new();
    for begin in JOBS {
        begin(&mut jobs, network, &context);
    }
    jobs
}

fn begin<J: Job>(jobs: &mut JoinSet<()>, network: &net::Counters, context: &Context) {
    let (network, context) = (network.clone(), context.clone());
    task::spawn_in(jobs, async move { net::supervise(J::NAME, network, || run(J::new(&context))).await });
}

/// Repeats the passes of a job until the mgr stops.
async fn run(mut job: impl Job) {
    loop {
        job.due().await;
        if let Err(error) = job.pass().await {
            job.failed(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::Mutex;

    /// A test job: every second pass fails, and after the fourth pass no further pass is due.
    struct FailingJob {
        calls: Arc<Mutex<Vec<&'static str>>>,
        passes: usize,
    }

    impl FailingJob {
        fn called(&self, name: &'static str) {
            self.calls.lock().unwrap().push(name);
        }
    }

    impl Job for FailingJob {
        const NAME: &'static str = "a test";

        fn new(_: &Context) -> Self {
            FailingJob { calls: Arc::default(), passes: 0 }
        }

        async fn due(&mut self) {
            self.called("due");
            if self.passes == 4 {
                std::future::pending().await
            }
        }

        async fn pass(&mut self) -> Result<(), Status> {
            self.called("pass");
            self.passes += 1;
            if self.passes.is_multiple_of(2) { Err(Status::Delay) } else { Ok(()) }
        }

        fn failed(&mut self, error: Status) {
            assert_eq!(error, Status::Delay);
            self.called("failed");
        }
    }

    #[test]
    fn passes_run_when_due_and_only_failures_are_handled() {
        let calls = Arc::<Mutex<Vec<_>>>::default();
        assert_eq!(run(FailingJob { calls: calls.clone(), passes: 0 }).now_or_never(), None);
        let twice = ["due", "pass", "due", "pass", "failed"];
        assert_eq!(*calls.lock().unwrap(), [&twice[..], &twice, &["due"]].concat());
    }
}
