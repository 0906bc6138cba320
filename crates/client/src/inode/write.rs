//! Asynchronous writes of an open file: gathers bytes, sends them in batches of parallel requests, and keeps them until
//! they are durable.

use super::delegation::revoked_error;
use super::read::least_size;
use super::{Batch, Inode, State};
use crate::drivers::{Layout, NotDone, Payload, Written};
use crate::effective_policy::Ruling;
use crate::extents::Extents;
use crate::mount::Due;
use crate::{Error, Result};
use bytes::Bytes;
use layout::policy::{Access, FULL, NEVER, Policy};
use layout::threshold::{self, ALWAYS_MGR, ALWAYS_STRAIGHT, Path, Rule, Verdict};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;
use types::limits::{FILE_SIZE_MAX, PAYLOAD_MAX};
use types::{ByteRange, Status, Timestamp, Verifier, leaves_hole};

/// How often the client gets a new layout for one request before the request takes the mgr path.
pub(super) const LAYOUT_TRIES: u32 = 3;

/// The largest request that is sent in the calling thread.
const BEGIN_MAX: usize = 64 << 10;

/// Most requests of a batch that are in flight at a time. Each uses some KiB meanwhile, and scattered bytes may make a
/// hundred thousand requests.
const RUNNERS: usize = 256;

/// A server whose write verifier covers bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Lane {
    /// The server of this lane of the layout.
    Direct(usize),
    /// The mgr.
    Mgr,
}

/// Bytes that a server received but may still lose.
pub(super) struct Sent {
    /// Position in the order in which requests were sent.
    pub(super) number: u64,
    /// Position in the order in which servers acknowledged the bytes.
    pub(super) booked: u64,
    pub(super) payload: Arc<Payload>,
    /// The places of the bytes in the file.
    pub(super) parts: Vec<ByteRange>,
    /// The verifier that the server returned.
    pub(super) verifier: Verifier,
    pub(super) under: Under,
}

/// The client's state when it sent bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Under {
    /// The grant ([`super::State::grant`]); without meaning on the mgr path.
    pub(super) grant: u64,
    /// Whether the file was shared. Other clients may have overwritten or truncated the bytes since, and those changes
    /// stay.
    pub(super) shared: bool,
}

impl Under {
    /// The value for bytes on the mgr path.
    const MGR: Under = Under { grant: 0, shared: false };
}

impl Sent {
    pub(super) fn bytes(&self) -> u64 {
        self.payload.data.len() as u64
    }

    /// Passes the bytes inside `range` of the file to `take`, each piece with its offset, without copying them.
    fn each(&self, range: ByteRange, mut take: impl FnMut(u64, Bytes)) {
        let mut place = ByteRange { offset: 0, len: 0 };
        for part in &self.parts {
            place = ByteRange { offset: place.end(), len: part.len };
            let Some(wanted) = part.intersection(range) else { continue };
            let in_payload = ByteRange { offset: place.offset + (wanted.offset - part.offset), len: wanted.len };
            let mut at = 0;
            for segment in self.payload.data.parts() {
                let here = ByteRange { offset: at, len: segment.len() as u64 };
                at = here.end();
                if let Some(hit) = here.intersection(in_payload) {
                    let from = (hit.offset - here.offset) as usize;
                    let data = segment.slice(from..from + hit.len as usize);
                    take(wanted.offset + (hit.offset - in_payload.offset), data);
                }
            }
        }
    }
}

/// The path of each gathered range.
struct Ways {
    straight: Vec<ByteRange>,
    through: Vec<ByteRange>,
}

/// Bytes that could not be written, and the window space to release.
struct Lost {
    error: Error,
    bytes: u64,
}

/// One request of a batch.
struct Errand {
    batch: u64,
    lane: Lane,
    payload: Arc<Payload>,
    parts: Vec<ByteRange>,
    /// Whether the server must make the bytes durable at once.
    stable: bool,
    /// Number of requests of the batch on the same path; `None` if requests are not timed one by one.
    together: Option<usize>,
}

impl Inode {
    /// Takes runs of bytes into the window; see [`crate::File::write_at`] and [`crate::File::write_list`]. Reports
    /// write errors of the open `key`.
    pub(crate) async fn write(
        self: &Arc<Self>,
        key: Option<u64>,
        ruling: &Arc<Ruling>,
        runs: impl IntoIterator<Item = (u64, Bytes), IntoIter: Send>,
    ) -> Result<()> {
        key.map_or(Ok(()), |key| self.take_error(key))?;
        let (policy, revocations) = (self.policy_by(ruling), self.state().revocations);
        let mut hull: Option<ByteRange> = None;
        for (offset, data) in runs {
            let range = ByteRange::new(offset, data.len() as u64).filter(|range| range.end() <= FILE_SIZE_MAX);
            let range = range.ok_or_else(|| Error::status(Status::FBig, "writing"))?;
            self.take_run(ruling, &policy, revocations, (offset, data)).await?;
            hull = Some(hull.map_or(range, |hull| hull.around(range)));
        }
        // Check this only after the bytes are where a recall finds them: either the recall makes them durable, or this
        // call sends them now.
        if let Some(hull) = hull.filter(|hull| !hull.is_empty())
            && (policy.access == Access::ODirect || self.writes_through())
        {
            self.ask_again();
            // Boxed: most writes gather and need no memory for this future.
            return Box::pin(self.send(key, hull)).await;
        }
        Ok(())
    }

    /// Takes one run of bytes into the window.
    async fn take_run(
        self: &Arc<Self>,
        ruling: &Arc<Ruling>,
        policy: &Policy,
        revocations: u64,
        (mut at, mut data): (u64, Bytes),
    ) -> Result<()> {
        while !data.is_empty() {
            let part = data.split_to(data.len().min(PAYLOAD_MAX));
            let len = part.len();
            if !self.mount.window.try_take(len) {
                // Boxed, as below: most writes find space.
                Box::pin(self.wait_for_room(len)).await;
            }
            let gathered = {
                let mut state = self.state();
                if state.revocations != revocations {
                    self.mount.window.release(len as u64);
                    return Err(revoked_error());
                }
                if state.pending.is_empty() || state.times.leave.is_none() {
                    self.leave_in_a_while(&mut state, policy);
                }
                state.ruling = Some(ruling.clone());
                let replaced = state.pending.insert(at, part);
                self.mount.window.release(replaced);
                state.holes |= leaves_hole(state.size, at);
                at += len as u64;
                state.size = state.size.max(at);
                state.stamp = self.mount.next_stamp();
                state.written = Some(Timestamp::from(net::clock::now()));
                state.pending.bytes()
            };
            if !self.writes_through() && self.is_enough(gathered, policy).await {
                // Boxed: most writes do not need it.
                Box::pin(self.hand_over(false)).await;
            }
        }
        Ok(())
    }

    /// Extends the file, see [`crate::File::grow`].
    pub(crate) async fn grow(self: &Arc<Self>, key: u64, ruling: &Arc<Ruling>, end: u64) -> Result<()> {
        if self.size_now().await? >= end {
            return Ok(());
        }
        // Request the layout before the new end is recorded: an end that is already recorded becomes doubtful when a
        // layout is granted again.
        if self.layout(true, None).await?.is_none() {
            // The client gets no layout, for instance because the file has copies. A write of the last byte through the
            // mgr extends the file instead.
            return self.write(Some(key), ruling, [(end - 1, Bytes::from_static(&[0]))]).await;
        }
        {
            let mut state = self.state();
            let grant = state.grant;
            state.proved(end, grant);
            state.holes = true;
            state.size = state.size.max(end);
            state.stamp = self.mount.next_stamp();
        }
        self.report().await
    }

    /// Returns when servers have answered for everything written to `range`, or reports the error.
    async fn send(self: &Arc<Self>, key: Option<u64>, range: ByteRange) -> Result<()> {
        self.expose(range).await;
        key.map_or(Ok(()), |key| self.take_error(key))
    }

    /// Returns what is due by `now`, and when the next step is due.
    pub(crate) fn is_due_by(&self, now: Instant) -> (Due, Option<Instant>) {
        self.state().times.take(now)
    }

    /// Does what is due; errors are reported later. If the mgr does not answer, the step is put off: no caller has
    /// asked for it, and the client keeps the bytes until then.
    pub(crate) async fn do_due(self: Arc<Self>, due: Due) {
        let answers = self.mount.session.answers().await;
        if let Err(error) = &answers {
            tracing::debug!(file = %self.node.id, "{error}; what was written is handed on later");
        }
        if answers.is_err() {
            let policy = self.policy();
            let mut state = self.state();
            self.leave_in_a_while(&mut state, &policy);
            state.times.settle_from(Instant::now());
        } else {
            if due.leave {
                self.hand_over(false).await;
            }
            if due.settle && !self.is_clean() {
                self.make_durable().await;
                if let Err(error) = self.report().await {
                    tracing::debug!(file = %self.node.id, "{error}; told by what comes next");
                }
            }
        }
        let next = self.state().times.done();
        next.into_iter().for_each(|at| self.mount.due_at(at));
    }

    /// Schedules the sending of gathered bytes, unless something else sends them before.
    fn leave_in_a_while(self: &Arc<Self>, state: &mut State, policy: &Policy) {
        if policy.gather_delay != NEVER {
            state.times.leave = Instant::now().checked_add(policy.gather_delay);
            state.times.leave.into_iter().for_each(|at| self.mount.due_at(at));
        }
    }

    /// Schedules a commit of sent bytes, if gathered bytes are also sent by the timer.
    pub(super) fn settle_in_a_while(self: &Arc<Self>, policy: &Policy) {
        if policy.gather_delay == NEVER {
            return;
        }
        let at = self.state().times.settle_from(Instant::now());
        at.into_iter().for_each(|at| self.mount.due_at(at));
    }

    /// Whether enough bytes have gathered to be sent.
    async fn is_enough(&self, gathered: u64, policy: &Policy) -> bool {
        match policy.gather_size {
            // Less than one request needs no layout.
            FULL => gathered >= PAYLOAD_MAX as u64 && gathered >= Box::pin(self.full(policy)).await,
            size => gathered >= size.min(self.mount.window.size() as u64 / 4),
        }
    }

    async fn wait_for_room(self: &Arc<Self>, len: usize) {
        self.mount.relieve();
        self.mount.window.take(len).await;
    }

    /// Returns the size of one full request for each server, in bytes, but at most a quarter of the window.
    async fn full(&self, policy: &Policy) -> u64 {
        // Get no layout only for this: a client with a layout prevents the mgr from gathering other clients' writes to
        // the file.
        let long = self.size() >= least_size(policy);
        let wanted = long && self.mount.present_threshold(policy.write_threshold) != ALWAYS_MGR;
        let layout = if wanted { self.layout(true, None).await.ok().flatten() } else { None };
        let count = layout.map_or(1, |layout| layout.lanes());
        ((count * PAYLOAD_MAX) as u64).min(self.mount.window.size() as u64 / 4)
    }

    /// Sends all gathered bytes to servers and returns while the requests are in flight. With `last`, a server that
    /// holds nothing uncommitted and gets just one request makes its bytes durable with that request, which saves a
    /// COMMIT.
    ///
    /// Errors are recorded and reported later.
    pub(crate) async fn hand_over(self: &Arc<Self>, last: bool) {
        let _order = self.order.lock().await;
        if self.state().pending.is_empty() {
            return;
        }
        let _leaving = self.leaving.lock().await;
        let policy = self.policy();
        if !last {
            self.settle_in_a_while(&policy);
        }
        let long_enough = self.has_layout().await;
        let shared = self.writes_through();
        let (verdict, straight) = {
            let state = self.state();
            let ranges = state.pending.ranges();
            let verdict = if shared && policy.write_threshold != Rule::Fixed(ALWAYS_MGR) {
                // Each write of a shared file is awaited by itself: the mgr would only add a hop.
                ALWAYS_STRAIGHT.into()
            } else {
                self.mount.threshold(policy.write_threshold, longest(&ranges))
            };
            let may = long_enough || state.size >= least_size(&policy);
            let verdict = if may { verdict } else { ALWAYS_MGR.into() };
            // Without a layout the number of requests is unknown: assume one to decide whether to ask for it.
            (verdict, !threshold::divide_by(&ranges, verdict, state.streamed, |_| 1).0.is_empty())
        };
        let layout = match self.end_strays().await {
            Ok(()) if straight => self.layout(true, None).await,
            Ok(()) => Ok(None),
            Err(error) => Err(error),
        };
        let layout = match layout {
            Ok(layout) => layout,
            Err(error) => {
                self.fail(error);
                let pending = std::mem::take(&mut self.state().pending);
                self.mount.window.release(pending.bytes());
                return;
            }
        };
        let rule = layout.as_deref().map(|layout| (verdict, layout));
        let (batch, extents, ways) = self.begin_batch(rule).await;
        let (mut errands, whole) = errands_of(batch, &extents, &ways, layout.as_deref());
        if last {
            self.choose_stable(batch, &mut errands);
        }
        let timed = whole.then(Instant::now);
        self.state().in_flight.entry(batch).and_modify(|b| (b.left, b.timed) = (errands.len(), timed));
        let runtime = &self.mount.runtime;
        // A small request is sent from here. Sending many takes time and should not delay other tasks.
        let alone = errands.len() == 1 && errands[0].payload.data.len() <= BEGIN_MAX;
        let runners = errands.len().min(RUNNERS);
        let errands = Arc::new(Mutex::new(errands.into_iter()));
        for _ in 0..runners {
            let (inode, layout, errands) = (self.clone(), layout.clone(), errands.clone());
            let run = async move {
                let next = || errands.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(errand) = next() {
                    inode.run(errand, layout.clone()).await;
                }
            };
            if alone {
                net::task::begin_on(runtime, run);
            } else {
                net::task::spawn_on(runtime, run);
            }
        }
    }

    /// Takes the gathered bytes, and chooses the path of each range by the threshold; without `rule` all take the mgr
    /// path. Waits until no request in flight overlaps them. Also commits overlapping bytes that took the other path,
    /// because sending those again would overwrite these. A request in flight may still change its path.
    async fn begin_batch(self: &Arc<Self>, rule: Option<(Verdict, &dyn Layout)>) -> (u64, Extents, Ways) {
        let mut settled = self.settled.subscribe();
        loop {
            let off_path = self.state().lanes_off_path(rule);
            for lane in off_path {
                self.commit_lane(lane).await;
            }
            {
                let mut state = self.state();
                if !state.lanes_off_path(rule).is_empty() {
                    continue;
                }
                let ranges = state.pending.ranges();
                if !state.in_flight.values().any(|batch| ranges.iter().any(|r| batch.touches(*r))) {
                    let ways = state.ways(rule);
                    // A short last range (a tail or a trial) does not count as a stream for later ranges. Otherwise
                    // each range would follow the one before, whatever T is by then.
                    if let (Some(last), Some((verdict, _))) = (ways.straight.last(), rule) {
                        let long = threshold::path(last.len, verdict.t) == Path::Direct;
                        state.streamed = long.then(|| last.end());
                    }
                    let number = state.next_batch;
                    state.next_batch += 1;
                    let extents = std::mem::take(&mut state.pending);
                    state.in_flight.insert(number, Batch { ranges, left: 1, timed: None });
                    return (number, extents, ways);
                }
            }
            // The sender lives as long as this inode.
            let _ = settled.changed().await;
        }
    }

    fn choose_stable(&self, batch: u64, errands: &mut [Errand]) {
        let state = self.state();
        let alone = state.in_flight.keys().all(|other| *other == batch);
        let mut counts = std::collections::BTreeMap::new();
        errands.iter().for_each(|errand| *counts.entry(errand.lane).or_insert(0) += 1);
        for errand in errands {
            let nothing_else = state.uncommitted.get(&errand.lane).is_none_or(Vec::is_empty);
            errand.stable = alone && nothing_else && counts[&errand.lane] == 1;
        }
    }

    /// Executes one request of a batch and books the outcome.
    async fn run(self: &Arc<Self>, errand: Errand, layout: Option<Arc<dyn Layout>>) {
        let outcome = match (errand.lane, layout) {
            (Lane::Direct(index), Some(layout)) => self.write_direct(index, &errand, layout).await,
            _ => self.write_via_mgr(&errand).await,
        };
        let done = outcome.is_ok();
        if let Err(lost) = outcome {
            self.mount.window.release(lost.bytes);
            self.fail(lost.error);
        }
        let mut ended = None;
        {
            let mut state = self.state();
            if let Some(batch) = state.in_flight.get_mut(&errand.batch) {
                // A failed request may end at once, so its time says nothing.
                batch.timed = batch.timed.filter(|_| done);
                batch.left -= 1;
                if batch.left == 0 {
                    ended = state.in_flight.remove(&errand.batch);
                    // A size that was requested before may be from before the mgr knew these bytes.
                    state.stamp = self.mount.next_stamp();
                }
            }
        }
        self.settled.send_modify(|count| *count += 1);
        if let Some(Batch { ranges, timed: Some(begun), .. }) = ended {
            self.mount.learn_service((Path::Direct, longest(&ranges), 1), begun, errand.stable);
        }
    }

    async fn write_direct(
        self: &Arc<Self>,
        index: usize,
        errand: &Errand,
        mut layout: Arc<dyn Layout>,
    ) -> std::result::Result<(), Lost> {
        let bytes = errand.payload.data.len() as u64;
        let lost = |error| Lost { error, bytes };
        let locks = self.lane(errand.lane);
        let mut why = None;
        for _ in 0..LAYOUT_TRIES {
            let sending = locks.sending.read().await;
            self.check_given_up(errand.batch).map_err(lost)?;
            let shared = self.writes_through();
            let under = Under { grant: self.state().grant, shared };
            let begun = Instant::now();
            let written = layout.write(index, &errand.parts, &errand.payload, errand.stable).await;
            match written.map_err(|not_done| self.note_stray(not_done)) {
                Ok(written) => {
                    if let Some(together) = errand.together {
                        self.mount.learn_service((Path::Direct, bytes, together), begun, written.stable);
                    }
                    let written = (written, under);
                    self.keep(errand.lane, errand.batch, errand.payload.clone(), errand.parts.clone(), written);
                    return Ok(());
                }
                Err(NotDone::Failed(error)) => return Err(lost(error)),
                Err(NotDone::NotAttempted(error) | NotDone::Unanswered(error)) => {
                    tracing::debug!(file = %self.node.id, "{error}; going through the mgr");
                    why = Some(error);
                    break;
                }
                Err(NotDone::Stale(_)) => {
                    drop(sending);
                    match self.layout(true, Some(&layout)).await.map_err(lost)? {
                        Some(fresh) => layout = fresh,
                        None => break,
                    }
                }
            }
        }
        self.state().in_flight.entry(errand.batch).and_modify(|batch| batch.timed = None);
        // The bytes that this iod received before and may lose must follow on the same path, and first.
        let moved = {
            let _committing = locks.committing.lock().await;
            self.move_to_mgr(errand.lane).await
        };
        moved.map_err(|error| lost(Error::by_no_path(why.clone(), error)))?;
        let written = self.write_via_mgr(errand).await;
        written.map_err(|lost| Lost { error: Error::by_no_path(why, lost.error), ..lost })
    }

    /// Writes the parts of an errand through the mgr. Its window space is split among them.
    async fn write_via_mgr(self: &Arc<Self>, errand: &Errand) -> std::result::Result<(), Lost> {
        let locks = self.lane(Lane::Mgr);
        let _sending = locks.sending.read().await;
        let stable = errand.stable && errand.parts.len() == 1;
        let mut left = errand.payload.data.len() as u64;
        for (range, data) in cut(&errand.payload, &errand.parts) {
            let lost = |error| Lost { error, bytes: left };
            let timed = self.mount.time_mgr();
            let written = self.mgr_write(errand.batch, range.offset, data.clone(), stable).await.map_err(lost)?;
            if let Some(together) = errand.together {
                timed.done(range.len, together);
            }
            left -= range.len;
            let payload = Payload::new(data.into());
            self.keep(Lane::Mgr, errand.batch, Arc::new(payload), vec![range], (written, Under::MGR));
        }
        Ok(())
    }

    /// Sends what a lane's server may still lose to the mgr instead. The caller holds the lane's lock against commits.
    pub(super) async fn move_to_mgr(self: &Arc<Self>, lane: Lane) -> Result<()> {
        let (from, to) = (self.lane(lane), self.lane(Lane::Mgr));
        let _all = from.sending.write().await;
        let _sending = to.sending.read().await;
        let mut outcome = self.end_strays().await;
        while outcome.is_ok() && !self.state().uncommitted.get(&lane).is_none_or(Vec::is_empty) {
            outcome = self.move_first_to_mgr(lane).await;
        }
        let lost = self.state().uncommitted.remove(&lane).unwrap_or_default();
        self.mount.window.release(lost.iter().map(Sent::bytes).sum());
        outcome
    }

    /// Sends the oldest bytes of a lane to the mgr. Until the mgr has them they count as bytes of the lane. A reader
    /// may meanwhile get older bytes, which are also sent again, and must find the newer ones here.
    async fn move_first_to_mgr(self: &Arc<Self>, lane: Lane) -> Result<()> {
        let first = |state: &State| {
            let sent = state.uncommitted.get(&lane)?.first()?;
            Some(((sent.booked, sent.number), sent.payload.clone(), sent.parts.clone()))
        };
        let Some(((booked, number), payload, parts)) = first(&self.state()) else { return Ok(()) };
        let mut written = Vec::new();
        for (range, data) in cut(&payload, &parts) {
            written.push((range, data.clone(), self.mgr_write(number, range.offset, data, false).await?));
        }
        let mut free = 0;
        {
            let mut state = self.state();
            let all = state.uncommitted.entry(lane).or_default();
            // The bytes may have been dropped in the meantime.
            let Some(at) = all.iter().position(|sent| sent.booked == booked) else { return Ok(()) };
            let sent = all.remove(at);
            for (range, data, written) in written {
                let payload = Payload::new(data.into());
                free += state.book(Lane::Mgr, sent.number, Arc::new(payload), vec![range], (written, Under::MGR));
            }
        }
        self.mount.window.release(free);
        Ok(())
    }

    /// Books bytes that a server received: kept if the server may lose them, released otherwise.
    fn keep(
        self: &Arc<Self>,
        lane: Lane,
        number: u64,
        payload: Arc<Payload>,
        parts: Vec<ByteRange>,
        (written, under): (Written, Under),
    ) {
        let mut state = self.state();
        let free = state.book(lane, number, payload, parts, (written, under));
        self.mount.window.release(free);
        let many = self.mount.window.size() as u64 / 2;
        if !state.committing && state.is_keeping(many) {
            state.committing = true;
            drop(state);
            net::task::spawn_on(&self.mount.runtime, self.clone().commit_behind());
        }
    }
}

impl State {
    /// Books bytes, see [`Inode::keep`]. Returns the number of bytes that need not be kept.
    fn book(
        &mut self,
        lane: Lane,
        number: u64,
        payload: Arc<Payload>,
        parts: Vec<ByteRange>,
        (written, under): (Written, Under),
    ) -> u64 {
        if lane != Lane::Mgr && written.stable {
            self.proved(parts.iter().map(|r| r.end()).max().unwrap_or(0), under.grant);
        }
        if written.stable || number < self.given_up {
            return payload.data.len() as u64;
        }
        let sent = Sent { number, booked: self.booked, payload, parts, verifier: written.verifier, under };
        self.booked += 1;
        self.kept_at_most += sent.bytes();
        self.uncommitted.entry(lane).or_default().push(sent);
        0
    }

    /// Whether servers may lose more than `many` bytes. Committed bytes are subtracted only when the upper bound
    /// exceeds `many`, because there may be a hundred thousand pieces.
    fn is_keeping(&mut self, many: u64) -> bool {
        if self.kept_at_most > many {
            self.kept_at_most = self.uncommitted.values().flatten().map(Sent::bytes).sum();
        }
        self.kept_at_most > many
    }

    /// Returns the path of each gathered range under a threshold; without `rule` all ranges take the mgr path.
    fn ways(&self, rule: Option<(Verdict, &dyn Layout)>) -> Ways {
        let ranges = self.pending.ranges();
        let (straight, through) = match rule {
            Some((verdict, layout)) => {
                let requests = |ranges: &[ByteRange]| layout.shares(ranges).len() as u64;
                threshold::divide_by(&ranges, verdict, self.streamed, requests)
            }
            None => (Vec::new(), ranges),
        };
        Ways { straight, through }
    }

    /// Returns the lanes with uncommitted bytes that the gathered bytes replace on another path.
    fn lanes_off_path(&self, rule: Option<(Verdict, &dyn Layout)>) -> Vec<Lane> {
        let ways = self.ways(rule);
        let off_path = |(lane, sent): &(&Lane, &Vec<Sent>)| {
            let others = if **lane == Lane::Mgr { &ways.straight } else { &ways.through };
            let replaced = |part: &ByteRange| part.overlaps_any(others);
            sent.iter().any(|sent| sent.parts.iter().any(replaced))
        };
        self.uncommitted.iter().filter(off_path).map(|(lane, _)| *lane).collect()
    }

    /// Whether the mgr received bytes of `range` that it may not have sent to the iods yet.
    pub(super) fn is_gathered(&self, range: ByteRange) -> bool {
        let sent = self.uncommitted.get(&Lane::Mgr).into_iter().flatten();
        sent.flat_map(|sent| &sent.parts).any(|part| part.overlaps(range))
    }

    /// Returns the bytes of `range` that servers received but may still lose; where several overlap, the latest.
    pub(super) fn kept(&self, range: ByteRange) -> Extents {
        let overlaps = |sent: &&Sent| sent.parts.iter().any(|part| part.intersection(range).is_some());
        let mut all: Vec<&Sent> = self.uncommitted.values().flatten().filter(overlaps).collect();
        all.sort_by_key(|sent| sent.number);
        let mut kept = Extents::default();
        for sent in all {
            sent.each(range, |offset, data| {
                kept.insert(offset, data);
            });
        }
        kept
    }
}

/// Returns the requests of a batch, and whether their time is measured as a whole: so for a range that would be one
/// request to the mgr.
fn errands_of(batch: u64, extents: &Extents, ways: &Ways, layout: Option<&dyn Layout>) -> (Vec<Errand>, bool) {
    let straight = layout.map(|layout| layout.shares(&ways.straight)).unwrap_or_default();
    let through = chunks(&ways.through);
    let many = [through.len(), straight.len()].map(|many| Some(many.min(RUNNERS)));
    let whole = through.is_empty()
        && straight.len() > 1
        && matches!(ways.straight[..], [range] if range.len <= PAYLOAD_MAX as u64);
    let straight = straight.into_iter().map(|share| (Lane::Direct(share.lane), share.parts));
    let through = through.into_iter().map(|chunk| (Lane::Mgr, vec![chunk]));
    let errand = |(lane, parts): (Lane, Vec<ByteRange>)| {
        let payload = Arc::new(Payload::new(extents.gather(&parts)));
        let together = if whole { None } else { many[usize::from(lane != Lane::Mgr)] };
        Errand { batch, lane, payload, parts, stable: false, together }
    };
    (straight.chain(through).map(errand).collect(), whole)
}

/// Returns the length of the longest range.
fn longest(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|range| range.len).max().unwrap_or(0)
}

/// Returns the requests to the mgr for file ranges, each at most one payload long.
fn chunks(ranges: &[ByteRange]) -> Vec<ByteRange> {
    let mut out = Vec::new();
    for range in ranges {
        let mut offset = range.offset;
        while offset < range.end() {
            out.push(ByteRange { offset, len: (range.end() - offset).min(PAYLOAD_MAX as u64) });
            offset += PAYLOAD_MAX as u64;
        }
    }
    out
}

/// Splits a payload into the file ranges that its bytes belong to.
fn cut(payload: &Payload, parts: &[ByteRange]) -> Vec<(ByteRange, Bytes)> {
    let mut data = payload.data.to_bytes();
    parts.iter().map(|part| (*part, data.split_to(part.len as usize))).collect()
}
