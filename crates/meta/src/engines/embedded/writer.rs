//! The writer of the embedded store. It appends the queued batches to the batch log, with at most one flush for each
//! commit group. A checkpoint later moves the changes of many commit groups into the database table. A *commit group*
//! is the batches that the writer commits together.

use super::guard::guarded;
use super::open::{begin, change, commit, open, snapshot, write};
use super::{Shared, Space, TABLE};
use crate::engine::{Batch, Broken, CommitGroup, Job, Key, Merged, Outcome, Point, Value, Verdict};
use crate::log::{Changes, Log, Plan};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use types::limits;

/// If at least this many bytes are free, the writer queries the free space only once in each interval [`LOOK`].
/// Within this interval, other programs cannot fill so much space with ordinary writes. They can fill it with
/// `fallocate(2)`, but more frequent queries cannot rule that out either.
const ROOMY: u64 = 4 << 30;
/// Interval between queries for the free space of a disk with at least [`ROOMY`] bytes free.
const LOOK: Duration = Duration::from_millis(20);
const _: () = assert!(ROOMY > 8 * limits::META_RESERVE_BYTES);

/// The work that one call of [`Stepper::step`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The call did nothing, because the queue is empty and no checkpoint is due.
    Idle,
    /// The writer applied or refused this number of batches, and sent their outcomes.
    CommitGroup(usize),
    /// The writer made a checkpoint, which frees space in the log.
    Checkpoint,
    /// The store was dropped. The writer has sent the outcomes of all batches and has made a final checkpoint.
    Closed,
}

/// The writer of a store without a writer thread, which tests use to control when the store commits.
///
/// To close the store after its [`Embedded`](super::Embedded) is dropped, call [`Self::step`] until it returns
/// [`Step::Closed`]. To simulate a crash, make the disks fail and drop the stepper before [`Step::Closed`].
#[derive(Debug)]
pub struct Stepper(Writer);

impl Stepper {
    pub(super) fn new(writer: Writer) -> Self {
        Stepper(writer)
    }

    /// Commits at most one commit group of queued batches and sends their outcomes. If no batch is queued, makes a
    /// checkpoint if one is due. `now` is the time since a fixed moment, which the caller chooses.
    pub fn step(&mut self, now: Duration) -> Step {
        match self.0.shared.queue.take() {
            Some(jobs) => self.0.step(jobs, now),
            None => {
                self.0.close();
                Step::Closed
            }
        }
    }

    /// Completes when the queue has batches or the store was dropped.
    pub async fn ready(&self) {
        self.0.shared.queue.ready().await;
    }

    /// Returns the time from which [`Self::step`] makes a checkpoint even if no batch arrives.
    pub fn due(&self) -> Option<Duration> {
        self.0.plan.due()
    }
}

/// The writer of the store. A store has exactly one.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    log: Log,
    plan: Plan,
    /// Result and time of the last query for the free space on the disk.
    space: Option<(Space, Duration)>,
}

impl Drop for Writer {
    /// Closes the queue, so that threads that submit batches later learn that no outcome will come.
    fn drop(&mut self) {
        self.shared.queue.abandon();
    }
}

/// The outcomes and the changes of the batches in a commit group.
struct Decided {
    verdicts: Vec<Result<Vec<Merged>, Outcome>>,
    /// Whether a batch of the commit group requires durability. If so, the outcomes of the batches wait for a flush.
    durable: bool,
    changes: Changes,
}

/// How a commit group was committed: in the log without a flush, in the log with a flush, or in the database.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The changes of the commit group are in the log, which was not flushed.
    Light,
    /// The changes of the commit group are in the log, which was flushed.
    Log,
    /// The changes of the commit group are in the database table, which was flushed.
    Store,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, log: Log) -> Self {
        Writer { shared, log, plan: Plan::default(), space: None }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the time from which a checkpoint is due even if no batch arrives.
    pub(super) fn due(&self) -> Option<Duration> {
        self.plan.due()
    }

    /// Returns whether a checkpoint is due at `now`.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.plan.is_due(now)
    }

    /// Returns whether the log is so full that it may not have space for the next commit groups.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.log.is_nearly_full()
    }

    /// Commits the batches of `jobs` and sends their outcomes. If `jobs` is empty, makes a checkpoint if one is due.
    pub(super) fn step(&mut self, jobs: Vec<Job>, now: Duration) -> Step {
        if !jobs.is_empty() {
            let step = self.commit_group(jobs, now);
            self.relieve();
            return step;
        }
        if !self.plan.is_due(now) {
            return Step::Idle;
        }
        self.checkpoint_or_fail();
        Step::Checkpoint
    }

    /// Makes a final checkpoint if changes in the log are not yet in the database. The caller has closed the queue,
    /// which is empty.
    pub(super) fn close(&mut self) {
        if self.plan.due().is_some() {
            self.checkpoint_or_fail();
        }
    }

    /// Makes a checkpoint. If the checkpoint fails, marks the store as failed, so that no later checkpoint is due.
    fn checkpoint_or_fail(&mut self) {
        if self.shared.state().broken.is_some() {
            self.plan.flushed();
        } else if let Err(broken) = guarded(|| self.checkpoint()).flatten() {
            self.fail(&broken);
        }
    }

    fn fail(&mut self, broken: &Broken) {
        tracing::error!(store = %self.shared.path.display(), %broken, "the metadata store failed and accepts no more changes");
        self.plan.flushed();
        self.shared.fail(broken);
    }

    /// Commits the batches of `jobs` in one or more transactions, and sends their outcomes.
    pub(super) fn commit_group(&mut self, mut jobs: Vec<Job>, now: Duration) -> Step {
        let count = jobs.len();
        while !jobs.is_empty() {
            let rest = jobs.split_off(self.fitting(&jobs, now));
            self.commit_and_answer(jobs, now);
            jobs = rest;
        }
        Step::CommitGroup(count)
    }

    /// Returns how many batches of `jobs` go into the next transaction. On a nearly full disk, a transaction may use
    /// only a fraction of the space that is reserved for removals. The query for free space after the transaction
    /// then shows how much space the transaction used.
    fn fitting(&mut self, jobs: &[Job], now: Duration) -> usize {
        let Space { free, reserve } = self.look(now);
        let writes = jobs.iter().map(|job| job.batch.writes.len()).sum();
        if free >= reserve.saturating_add(self.plan.needs(writes)) {
            return jobs.len();
        }
        let mut needs = 0;
        let fits = jobs.iter().take_while(|job| {
            needs += job.batch.len() as u64 + limits::META_CHANGE_BYTES * job.batch.writes.len() as u64;
            needs <= reserve / 8
        });
        fits.count().max(1)
    }

    fn commit_and_answer(&mut self, jobs: Vec<Job>, now: Duration) {
        let broken = self.shared.state().broken.clone();
        let outcomes = match broken {
            Some(broken) => Err(broken),
            None => {
                let batches: Vec<&Batch> = jobs.iter().map(|job| &job.batch).collect();
                let committed = guarded(|| self.commit(&batches, now)).flatten();
                committed.inspect_err(|broken| self.fail(broken))
            }
        };
        match outcomes {
            Ok(outcomes) => {
                for (job, outcome) in jobs.into_iter().zip(outcomes) {
                    // Ignore an error of the send: the send fails only if the caller has dropped its `Pending`.
                    let _ = job.answer.send(outcome);
                }
            }
            Err(broken) => {
                for job in jobs {
                    let _ = job.answer.send(Outcome::Unknown(broken.clone()));
                }
            }
        }
    }

    /// Returns whether the memtable exceeds its memory limit.
    pub(super) fn is_laden(&self) -> bool {
        let bytes = self.shared.recent.bytes();
        bytes > 0 && bytes >= limits::META_RECENT_BYTES.min(self.log.anchor().size / 2)
    }

    /// Moves the memtable into the database if the memtable exceeds its memory limit. The writer does this after it has
    /// sent the outcomes, so only the next commit group waits.
    pub(super) fn relieve(&mut self) {
        if !self.is_laden() || self.shared.state().broken.is_some() {
            return;
        }
        if let Err(broken) = guarded(|| self.bring(&Changes::new(), false)).flatten() {
            self.fail(&broken);
        }
    }

    /// Applies `batches` in the given order and commits them together. If the commit fails, the outcome of every batch
    /// is unknown.
    fn commit(&mut self, batches: &[&Batch], now: Duration) -> Result<Vec<Outcome>, Broken> {
        let writes = batches.iter().map(|batch| batch.writes.len()).sum();
        let space = self.space(writes, now)?;
        let mut decided = self.decide(batches, space)?;
        if decided.changes.is_empty() {
            // A durable batch without changes, such as the batch that `settle` submits, makes all earlier batches
            // durable.
            let flush = decided.durable && !self.log.is_flushed();
            if flush {
                self.log.flush().map_err(Broken::new)?;
            }
            return Ok(self.count(decided, 0, if flush { Way::Log } else { Way::Light }));
        }
        // A view may contain a change only after the log or the database has the change. So add the changes to the
        // memtable last.
        let way = self.promise(&decided, space, writes, now)?;
        let bytes = |(key, value): (&Key, &Option<Value>)| (key.len() + value.as_ref().map_or(0, Value::len)) as u64;
        let bytes = decided.changes.iter().map(bytes).sum();
        let changes = std::mem::take(&mut decided.changes);
        match way {
            Way::Store => self.bring(&changes, true)?,
            Way::Light | Way::Log => {
                self.plan.applied(now, changes.len());
                self.shared.recent.add(changes);
            }
        }
        Ok(self.count(decided, bytes, way))
    }

    /// Returns the free space of the disk. If the last query found at least [`ROOMY`] bytes, the result may be as old
    /// as the interval [`LOOK`]; otherwise the result is current.
    fn look(&mut self, now: Duration) -> Space {
        if let Some((space, at)) = self.space
            && space.free >= ROOMY
            && now.saturating_sub(at) < LOOK
        {
            return space;
        }
        let space = self.ask();
        self.space = Some((space, now));
        space
    }

    /// Queries the free space of the disk. If the operating system does not report the free space, assumes an unlimited
    /// disk.
    fn ask(&self) -> Space {
        (self.shared.free)().unwrap_or(Space { free: u64::MAX, reserve: limits::META_RESERVE_BYTES })
    }

    /// Returns the free space of the disk. If the space is low, first makes a checkpoint of all changes in the log.
    /// After the checkpoint, only the next `writes` changes still need space.
    fn space(&mut self, writes: usize, now: Duration) -> Result<Space, Broken> {
        let found = self.look(now);
        if self.plan.due().is_none() || found.free >= found.reserve.saturating_add(self.plan.needs(writes)) {
            return Ok(found);
        }
        self.checkpoint()?;
        Ok(self.ask())
    }

    fn decide(&self, batches: &[&Batch], Space { free, reserve }: Space) -> Result<Decided, Broken> {
        let view = self.shared.recent.view(&self.shared.corrupt);
        let mut group = CommitGroup::new(&view, self.shared.merge);
        let mut verdicts = Vec::with_capacity(batches.len());
        let mut durable = false;
        for batch in batches {
            let room = if batch.frees { reserve / 4 } else { reserve };
            if free < room && !batch.writes.is_empty() {
                verdicts.push(Err(Outcome::Full));
                continue;
            }
            match group.apply(batch)? {
                Verdict::Applied(merged) => {
                    durable |= batch.durable;
                    verdicts.push(Ok(merged));
                }
                Verdict::Conflict(index) => verdicts.push(Err(Outcome::Conflict(index))),
                Verdict::Corrupt(key) => verdicts.push(Err(Outcome::Corrupt(key))),
            }
        }
        Ok(Decided { verdicts, durable, changes: group.into_changes() })
    }

    /// Appends the changes to the log, and flushes the log if a batch requires durability. Returns [`Way::Store`]
    /// without writing to the log if the changes must be written to the database at once.
    fn promise(&mut self, decided: &Decided, space: Space, writes: usize, now: Duration) -> Result<Way, Broken> {
        // On a nearly full disk, write every commit group to the database at once. The next query for free space then
        // shows how much space the commit group used.
        let tight = space.free < space.reserve.saturating_add(self.plan.needs(writes));
        if tight || self.plan.is_due(now) {
            return Ok(Way::Store);
        }
        if !self.log.prepare(&decided.changes) {
            if self.plan.due().is_some() {
                self.grow(space)?;
            }
            return Ok(Way::Store);
        }
        self.log.append().map_err(Broken::new)?;
        if !decided.durable {
            return Ok(Way::Light);
        }
        self.log.flush().map_err(Broken::new)?;
        Ok(Way::Log)
    }

    /// Doubles the log, if the log was full before a checkpoint was due and the disk has enough free space.
    fn grow(&mut self, Space { free, reserve }: Space) -> Result<(), Broken> {
        let size = self.log.anchor().size;
        // Do not double a log that is already twice as large as the space reserved for removals, so that the log
        // stays small on a small disk.
        if size >= 2 * reserve || free < size.saturating_add(2 * reserve) {
            return Ok(());
        }
        match self.log.grow() {
            Ok(_) => Ok(()),
            Err(cause) if cause.kind() == ErrorKind::StorageFull => Ok(()),
            Err(cause) => Err(Broken::new(cause)),
        }
    }

    /// Makes a checkpoint: moves all changes from the log to the database table, durably.
    fn checkpoint(&mut self) -> Result<(), Broken> {
        self.bring(&Changes::new(), true)?;
        self.shared.state().counters.checkpoints += 1;
        Ok(())
    }

    /// Writes the memtable, and then `changes`, to the database in one transaction. The log does not contain `changes`.
    ///
    /// If `durable` is set, the transaction empties the log. Otherwise the transaction also stores the log's current
    /// anchor (the position after which a replay begins), because redb may make the transaction durable at any time.
    fn bring(&mut self, changes: &Changes, durable: bool) -> Result<(), Broken> {
        let Shared { recent, database, .. } = &*self.shared;
        let transaction = begin(database).map_err(Broken::new)?;
        let mut table = open(&transaction, TABLE).map_err(Broken::new)?;
        let mut sealed = Vec::new();
        recent.each(|key, value| change(&mut table, key, value, &mut sealed)).map_err(Broken::new)?;
        write(&mut table, changes).map_err(Broken::new)?;
        drop(table);
        commit(transaction, &self.log.anchor(), durable).map_err(Broken::new)?;
        recent.renew(snapshot(database).map_err(Broken::new)?);
        if durable {
            self.log.applied();
            self.plan.flushed();
        }
        Ok(())
    }

    fn count(&self, decided: Decided, bytes: u64, way: Way) -> Vec<Outcome> {
        let mut state = self.shared.state();
        state.point += 1;
        let point = Point(state.point);
        state.counters.flushes += u64::from(way != Way::Light);
        state.counters.checkpoints += u64::from(way == Way::Store);
        state.counters.bytes += bytes;
        let settle = |verdict| match verdict {
            Ok(merged) => {
                state.counters.batches += 1;
                Outcome::Committed { point, merged }
            }
            Err(outcome) => {
                state.counters.conflicts += u64::from(matches!(outcome, Outcome::Conflict(_)));
                outcome
            }
        };
        decided.verdicts.into_iter().map(settle).collect()
    }
}
