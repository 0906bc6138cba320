//! The registrations of a data log with the shards of the index.

use super::LogLayout;
use super::own_log::OwnLog;
use crate::Error;
use crate::drivers::{Attempt, NotDone};
use bytes::Bytes;
use log_index::{Run, encode};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Mutex as AsyncMutex;
use tokio::sync::oneshot::{self, error::TryRecvError};
use types::Status;
use types::limits::EXTENTS_MAX;
use wire::native::{Procedure, RegisterArgs, RegisterReply};

/// Largest number of runs in one REGISTER: those of one write of [`EXTENTS_MAX`] ranges. Their encoding is always
/// shorter than [`wire::native::RUNS_BYTES_MAX`].
const RUNS_MAX: usize = EXTENTS_MAX;
/// Number of pending runs of a shard from which on the client commits before it writes more. A shard refuses more than
/// [`log_index::PENDING_MAX`].
const PENDING_MANY: u32 = 16384;

/// The registrations of one data log with one shard of the index.
#[derive(Default)]
pub(super) struct LaneRegistrations {
    state: Mutex<LaneState>,
    /// Held while the client sends a registration with runs, because the shard applies registrations in the order of
    /// their numbers.
    turn: AsyncMutex<()>,
}

#[derive(Default)]
struct LaneState {
    /// Runs of writes that wait for their registration.
    waiting: VecDeque<Waiting>,
    /// The sequence number of the last registration that the client sent.
    sent: u64,
    /// The sequence number of the last registration that the shard acknowledged; 0 if there is none.
    registered: u64,
    /// The sequence number up to which the registrations are durable.
    durable: u64,
    /// Number of pending runs of all writers of the file, in the last reply of the shard.
    pending: u32,
}

/// The runs of one write.
struct Waiting {
    runs: Vec<Run>,
    /// Whether the write asks for durable runs.
    stable: bool,
    /// Receives the outcome: whether the runs are durable.
    outcome: oneshot::Sender<Attempt<bool>>,
}

impl LaneRegistrations {
    fn state(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sequence number of the last registration that the shard acknowledged; 0 if there is none.
    pub(super) fn registered(&self) -> u64 {
        self.state().registered
    }

    /// Returns whether all registrations that the client sent are durable.
    pub(super) fn is_durable(&self) -> bool {
        let state = self.state();
        state.durable == state.sent && state.waiting.is_empty()
    }

    /// Returns whether the client must commit before it registers more runs, because the shard has many pending runs,
    /// among them runs of this client.
    pub(super) fn is_full(&self) -> bool {
        let state = self.state();
        state.pending > PENDING_MANY && state.registered > state.durable
    }

    /// Takes the first waiting writes, as many as one registration has room for.
    fn take(&self) -> Vec<Waiting> {
        let mut state = self.state();
        let (mut taken, mut runs) = (Vec::new(), 0);
        while let Some(next) = state.waiting.front().filter(|next| runs == 0 || runs + next.runs.len() <= RUNS_MAX) {
            runs += next.runs.len();
            taken.extend(state.waiting.pop_front());
        }
        taken
    }
}

/// Returns an equal error, for another write whose runs were in the same request.
fn copy(not_done: &NotDone) -> NotDone {
    match not_done {
        NotDone::NotAttempted(error) => NotDone::NotAttempted(error.clone()),
        NotDone::Unanswered(error) => NotDone::Unanswered(error.clone()),
        NotDone::Stale(error) => NotDone::Stale(error.clone()),
        NotDone::Failed(error) => NotDone::Failed(error.clone()),
    }
}

impl LogLayout {
    /// Registers the runs of a write with the shard of a lane, after the iods acknowledged their bytes. Returns whether
    /// the runs are durable, for which `stable` asks.
    ///
    /// Registers the runs of all writes that wait at that time together.
    pub(super) async fn register(&self, lane: usize, log: &OwnLog, runs: Vec<Run>, stable: bool) -> Attempt<bool> {
        let registrations = &log.lanes[lane];
        let (outcome, mut received) = oneshot::channel();
        registrations.state().waiting.push_back(Waiting { runs, stable, outcome });
        let _turn = registrations.turn.lock().await;
        loop {
            match received.try_recv() {
                Ok(outcome) => return outcome,
                // The task that sent the registration of these runs was cancelled.
                Err(TryRecvError::Closed) => {
                    let what = "registering written bytes: the request was cancelled".to_owned();
                    return Err(NotDone::Unanswered(Error::connection(what)));
                }
                Err(TryRecvError::Empty) => self.register_waiting(lane, log).await,
            }
        }
    }

    /// Sends one registration with the runs of the writes that wait, and gives them its outcome. The caller holds the
    /// turn of the lane.
    async fn register_waiting(&self, lane: usize, log: &OwnLog) {
        let registrations = &log.lanes[lane];
        let writes = registrations.take();
        let runs = encode(writes.iter().flat_map(|write| write.runs.iter().copied())).into();
        let stable = writes.iter().any(|write| write.stable);
        let sequence = {
            let mut state = registrations.state();
            state.sent += 1;
            state.sent
        };
        let outcome = self.send_runs(lane, log, sequence, runs, stable).await;
        for write in writes {
            let outcome = outcome.as_ref().map(|durable| *durable).map_err(copy);
            // A write that was cancelled does not wait for the outcome.
            let _ = write.outcome.send(outcome);
        }
    }

    /// Sends a registration; returns whether its runs are durable.
    async fn send_runs(&self, lane: usize, log: &OwnLog, sequence: u64, runs: Bytes, stable: bool) -> Attempt<bool> {
        // All runs that this lane has registered become durable together. So their bytes must be durable, and no iod
        // may have lost some: check the epoch after the objects, because a COMMIT whose reply has another verifier also
        // counts as one that covers its writes.
        let durable = stable && log.unsynced().is_empty() && self.file.epoch() == log.epoch;
        let up_to = if durable { sequence } else { 0 };
        match self.send_registration(lane, log, (sequence, up_to), runs.clone()).await {
            Err(NotDone::Failed(error)) if error.is(Status::Delay) => {}
            outcome => return outcome.map(|()| durable),
        }
        // The shard has too many pending runs, and has not registered these.
        self.commit_log(lane, log).await?;
        match self.send_registration(lane, log, (sequence, 0), runs).await {
            Err(NotDone::Failed(error)) if error.is(Status::Delay) => Err(NotDone::NotAttempted(error)),
            outcome => outcome.map(|()| false),
        }
    }

    /// Sends one REGISTER. The registrations up to the number `durable` become durable.
    pub(super) async fn send_registration(
        &self,
        lane: usize,
        log: &OwnLog,
        (sequence, durable): (u64, u64),
        runs: Bytes,
    ) -> Attempt<()> {
        let target = self.index_target(lane)?;
        let args = RegisterArgs { cap: target.cap.clone(), log: log.log.0, sequence, durable, runs };
        let what = if args.runs.is_empty() { "committing" } else { "registering written bytes" };
        let reply: RegisterReply = self.iods().call(&target, Procedure::Register, &args, what).await?;
        self.file.saw(lane, reply.verifier);
        let mut state = log.lanes[lane].state();
        state.registered = sequence.max(state.registered);
        state.durable = durable.max(state.durable);
        state.pending = reply.pending;
        Ok(())
    }
}
