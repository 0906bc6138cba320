//! The writer of the embedded store, which logs queued batches window by window with one flush each, and moves many
//! windows together into the table. A *window* is a group of batches that are committed together.

use super::guard::guarded;
use super::open::{begin, change, commit, open, snapshot, write};
use super::{Shared, Space, TABLE};
use crate::engine::{Batch, Broken, Job, Key, Merged, Outcome, Point, Value, Verdict, Window};
use crate::log::{Changes, Log, Plan};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use types::limits;

/// A disk with so many free bytes does not fill up within [`LOOK`], whatever other programs write. Only reserving space
/// (`fallocate`) can fill any disk at once, also between a look and the write after it.
const ROOMY: u64 = 4 << 30;
/// How often the writer asks for the free space of a disk that has plenty.
const LOOK: Duration = Duration::from_millis(20);
const _: () = assert!(ROOMY > 8 * limits::META_RESERVE_BYTES);

/// What a step of a store's writer did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The writer did nothing: no batch waits, and no checkpoint is due.
    Idle,
    /// The writer applied or refused this number of batches, and answered them.
    Window(usize),
    /// The writer flushed the store, which frees space in the log.
    Checkpoint,
    /// The store was dropped: all its batches are answered, and it is flushed.
    Closed,
}

/// The writer of a store that has no thread of its own: its owner decides when the store works.
///
/// After its [`Embedded`](super::Embedded) is dropped, a store is closed properly by stepping until [`Step::Closed`].
/// Dropping the stepper earlier simulates a crash, if the disks below are dead by then.
#[derive(Debug)]
pub struct Stepper(Writer);

impl Stepper {
    pub(super) fn new(writer: Writer) -> Self {
        Stepper(writer)
    }

    /// Takes up to a window of queued batches and answers them. Without batches, makes the next checkpoint if it is
    /// due. `now` is the time since any fixed moment.
    pub fn step(&mut self, now: Duration) -> Step {
        match self.0.shared.queue.take() {
            Some(jobs) => self.0.step(jobs, now),
            None => {
                self.0.close();
                Step::Closed
            }
        }
    }

    /// Completes when [`Self::step`] would find batches, or when the store was dropped.
    pub async fn ready(&self) {
        self.0.shared.queue.ready().await;
    }

    /// Returns when [`Self::step`] will have something to do even if no batch arrives.
    pub fn due(&self) -> Option<Duration> {
        self.0.plan.due()
    }
}

/// The only writer of the store.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    log: Log,
    plan: Plan,
    /// The space of the disk as of the last query, and the time of that query.
    space: Option<(Space, Duration)>,
}

impl Drop for Writer {
    /// The closed queue tells senders of further batches that no answer will come.
    fn drop(&mut self) {
        self.shared.queue.abandon();
    }
}

/// The decisions about the batches of a window.
struct Decided {
    verdicts: Vec<Result<Vec<Merged>, Outcome>>,
    /// Whether an answer waits for stable storage.
    durable: bool,
    changes: Changes,
}

/// How a window was committed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In memory only: the changes are in the log, which is not flushed.
    Light,
    /// By a flush of the log.
    Log,
    /// By a flush of the store.
    Store,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, log: Log) -> Self {
        Writer { shared, log, plan: Plan::default(), space: None }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns when the next checkpoint is due even if no batch arrives.
    pub(super) fn due(&self) -> Option<Duration> {
        self.plan.due()
    }

    /// Returns whether a checkpoint is due.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.plan.is_due(now)
    }

    /// Returns whether the log may soon have no space for a window.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.log.is_nearly_full()
    }

    /// Commits and answers these batches. Without batches, makes the next checkpoint if it is due.
    pub(super) fn step(&mut self, jobs: Vec<Job>, now: Duration) -> Step {
        if !jobs.is_empty() {
            let step = self.window(jobs, now);
            self.relieve();
            return step;
        }
        if !self.plan.is_due(now) {
            return Step::Idle;
        }
        self.checkpoint_or_fail();
        Step::Checkpoint
    }

    /// Closes the store, as no more batches will arrive.
    pub(super) fn close(&mut self) {
        if self.plan.due().is_some() {
            self.checkpoint_or_fail();
        }
    }

    /// Checkpoints the store; after a failure nothing is due any more.
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

    /// Applies or refuses these batches, and answers them.
    pub(super) fn window(&mut self, mut jobs: Vec<Job>, now: Duration) -> Step {
        let count = jobs.len();
        while !jobs.is_empty() {
            let rest = jobs.split_off(self.fitting(&jobs, now));
            self.commit_and_answer(jobs, now);
            jobs = rest;
        }
        Step::Window(count)
    }

    /// Returns how many of these batches go into one commit. On a nearly full disk, one commit may take only a part of
    /// the reserve, so that the next one sees what is left.
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
                    // The caller has dropped its `Pending`.
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

    /// Returns whether the memtable has become large.
    pub(super) fn is_laden(&self) -> bool {
        let bytes = self.shared.recent.bytes();
        bytes > 0 && bytes >= limits::META_RECENT_BYTES.min(self.log.anchor().size / 2)
    }

    /// Moves the memtable into the table when it has become large. Only the next window waits for this.
    pub(super) fn relieve(&mut self) {
        if !self.is_laden() || self.shared.state().broken.is_some() {
            return;
        }
        if let Err(broken) = guarded(|| self.bring(&Changes::new(), false)).flatten() {
            self.fail(&broken);
        }
    }

    /// Applies the batches in order, all in one commit; after an error the outcome of each batch is unknown.
    fn commit(&mut self, batches: &[&Batch], now: Duration) -> Result<Vec<Outcome>, Broken> {
        let writes = batches.iter().map(|batch| batch.writes.len()).sum();
        let space = self.space(writes, now)?;
        let mut decided = self.decide(batches, space)?;
        if decided.changes.is_empty() {
            // A durable batch without changes makes everything before it durable.
            let flush = decided.durable && !self.log.is_flushed();
            if flush {
                self.log.flush().map_err(Broken::new)?;
            }
            return Ok(self.count(decided, 0, if flush { Way::Log } else { Way::Light }));
        }
        // No reader may see a change before the log or the table has it: first the log or the table, then the memtable.
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

    /// Returns the space of the disk, at most [`LOOK`] old if there was plenty, else as of now.
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

    /// Queries the space of the disk; a disk that does not report its space counts as empty.
    fn ask(&self) -> Space {
        (self.shared.free)().unwrap_or(Space { free: u64::MAX, reserve: limits::META_RESERVE_BYTES })
    }

    /// Returns the space of the disk. If it is low, first flushes the store, so that only the next `writes` changes
    /// still need space.
    fn space(&mut self, writes: usize, now: Duration) -> Result<Space, Broken> {
        let found = self.look(now);
        if self.plan.due().is_none() || found.free >= found.reserve.saturating_add(self.plan.needs(writes)) {
            return Ok(found);
        }
        self.checkpoint()?;
        Ok(self.ask())
    }

    fn decide(&self, batches: &[&Batch], Space { free, reserve }: Space) -> Result<Decided, Broken> {
        let view = self.shared.recent.picture(&self.shared.corrupt);
        let mut window = Window::new(&view, self.shared.merge);
        let mut verdicts = Vec::with_capacity(batches.len());
        let mut durable = false;
        for batch in batches {
            let room = if batch.frees { reserve / 4 } else { reserve };
            if free < room && !batch.writes.is_empty() {
                verdicts.push(Err(Outcome::Full));
                continue;
            }
            match window.apply(batch)? {
                Verdict::Applied(merged) => {
                    durable |= batch.durable;
                    verdicts.push(Ok(merged));
                }
                Verdict::Conflict(index) => verdicts.push(Err(Outcome::Conflict(index))),
                Verdict::Corrupt(key) => verdicts.push(Err(Outcome::Corrupt(key))),
            }
        }
        Ok(Decided { verdicts, durable, changes: window.into_changes() })
    }

    /// Writes the changes into the log and flushes it if an answer waits for that; or returns that the store must be
    /// flushed.
    fn promise(&mut self, decided: &Decided, space: Space, writes: usize, now: Duration) -> Result<Way, Broken> {
        // With little space every window goes into the table at once, so that the next one sees what is left.
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

    /// Enlarges a log that is full before its flush was due, if the disk has the space.
    fn grow(&mut self, Space { free, reserve }: Space) -> Result<(), Broken> {
        let size = self.log.anchor().size;
        // On a small disk the log stays a small part of the disk.
        if size >= 2 * reserve || free < size.saturating_add(2 * reserve) {
            return Ok(());
        }
        match self.log.grow() {
            Ok(_) => Ok(()),
            Err(cause) if cause.kind() == ErrorKind::StorageFull => Ok(()),
            Err(cause) => Err(Broken::new(cause)),
        }
    }

    /// Moves all changes in the log into the table, on stable storage.
    fn checkpoint(&mut self) -> Result<(), Broken> {
        self.bring(&Changes::new(), true)?;
        self.shared.state().counters.checkpoints += 1;
        Ok(())
    }

    /// Moves the memtable into the table, and then `changes`, which are in no log, in one transaction.
    ///
    /// If `durable`, the log is free afterwards. Otherwise the table also keeps the anchor that matches its content,
    /// because the commit may reach stable storage at any time.
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
