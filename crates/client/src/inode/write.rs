//! Asynchronous writes of an open file: the client gathers bytes, sends them in batches of parallel requests, and holds
//! them until they are durable.

use super::delegation::revoked_error;
use super::dirty::{Batch, Piece, SendConditions};
use super::read::least_size;
use super::{Inode, Lane, LaneLocks, LayoutUse, State};
use crate::drivers::{Layout, NotDone, Payload, Written};
use crate::effective_policy::OpenPolicy;
use crate::extents::Extents;
use crate::mount::Due;
use crate::{Error, Result};
use bytes::Bytes;
use layout::policy::{Access, FULL, NEVER, Policy};
use layout::threshold::{self, ALWAYS_DIRECT, ALWAYS_MGR, Path, Rule, ThresholdChoice};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::RwLockReadGuard;
use tokio::time::Instant;
use types::limits::{FILE_SIZE_MAX, PAYLOAD_MAX};
use types::{ByteRange, Status, Timestamp, leaves_hole};

/// Maximum number of attempts to send a request on the direct path, each under a new layout. After the last attempt the
/// client uses the mgr path.
pub(super) const LAYOUT_TRIES: u32 = 3;

/// The size in bytes of the largest write request that the caller's task sends itself; other tasks send larger
/// requests.
const BEGIN_MAX: u64 = 64 << 10;

/// Maximum number of requests of one batch in flight. Each uses some KiB of memory, and scattered writes may need a
/// hundred thousand requests.
const RUNNERS: usize = 256;

/// The gathered ranges, divided by the path that they take: direct, and through the mgr.
struct PathSplit {
    direct: Vec<ByteRange>,
    via_mgr: Vec<ByteRange>,
}

/// The error of a failed write request, and the number of its bytes that the client failed to write.
struct Lost {
    error: Error,
    bytes: u64,
}

/// One request of a batch.
struct WriteRequest {
    batch: u64,
    lane: Lane,
    piece: Piece,
    /// Whether to send a stable write, which the server makes durable at once.
    stable: bool,
    /// Number of requests of the batch on the path of this request; `None` if the client does not measure the time of
    /// each request.
    together: Option<usize>,
}

impl Inode {
    /// Accepts byte ranges into the write window; see [`crate::File::write_at`] and [`crate::File::write_list`].
    /// Reports write errors of the open `key`.
    pub(crate) async fn write(
        self: &Arc<Self>,
        key: Option<u64>,
        open_policy: &Arc<OpenPolicy>,
        runs: impl IntoIterator<Item = (u64, Bytes), IntoIter: Send>,
    ) -> Result<()> {
        key.map_or(Ok(()), |key| self.take_error(key))?;
        let (policy, revocations) = (self.policy_by(open_policy), self.state().sharing.revocations());
        let mut hull: Option<ByteRange> = None;
        for (offset, data) in runs {
            let range = ByteRange::new(offset, data.len() as u64).filter(|range| range.end() <= FILE_SIZE_MAX);
            let range = range.ok_or_else(|| Error::status(Status::FBig, "writing"))?;
            self.take_run(open_policy, &policy, revocations, (offset, data)).await?;
            hull = Some(hull.map_or(range, |hull| hull.around(range)));
        }
        // Check only now, when the inode has the bytes, whether writes must reach a server before they return. If the
        // mgr recalls the delegation after this check, the recall makes the bytes durable.
        if let Some(hull) = hull.filter(|hull| !hull.is_empty())
            && (policy.access == Access::Unbuffered || self.writes_through())
        {
            self.ask_again();
            // Box the future that sends the bytes, so that the caller's future stays small: most writes are only
            // gathered.
            return Box::pin(self.send(key, hull)).await;
        }
        Ok(())
    }

    /// Accepts one byte range into the write window.
    async fn take_run(
        self: &Arc<Self>,
        open_policy: &Arc<OpenPolicy>,
        policy: &Policy,
        revocations: u64,
        (mut at, mut data): (u64, Bytes),
    ) -> Result<()> {
        while !data.is_empty() {
            let part = data.split_to(data.len().min(PAYLOAD_MAX));
            let len = part.len();
            if !self.mount.window.try_take(len) {
                // Box the future that waits for space in the write window, so that the caller's future stays small:
                // most writes find space at once.
                Box::pin(self.wait_for_room(len)).await;
            }
            let gathered = {
                let mut state = self.state();
                if state.sharing.revocations() != revocations {
                    self.mount.window.release(len as u64);
                    return Err(revoked_error());
                }
                if state.dirty.pending().is_empty() || state.sending.times.leave.is_none() {
                    self.leave_in_a_while(&mut state, policy);
                }
                state.sending.open_policy = Some(open_policy.clone());
                let replaced = state.dirty.write(at, part, Timestamp::from(net::clock::now()));
                self.mount.window.release(replaced);
                if leaves_hole(state.size.get(), at) {
                    state.dirty.made_hole();
                }
                at += len as u64;
                state.size.extend_to(at, self.mount.next_stamp());
                state.dirty.pending().bytes()
            };
            if !self.writes_through() && self.is_enough(gathered, policy).await {
                // Box the future that sends the batch, so that the caller's future stays small: most writes do not fill
                // a batch.
                Box::pin(self.hand_over(false)).await;
            }
        }
        Ok(())
    }

    /// Extends the file with a hole, see [`crate::File::grow`].
    pub(crate) async fn grow(self: &Arc<Self>, key: u64, open_policy: &Arc<OpenPolicy>, end: u64) -> Result<()> {
        if self.size_now().await? >= end {
            return Ok(());
        }
        // Request the layout before the client records the new end of the file. If the client got a new layout after
        // the record, its next size report would make the mgr request the size from the iods, which do not know the
        // new end.
        if self.layout(true, None).await?.is_none() {
            // The mgr grants no layout, for example because the file has mirrors. So extend the file by writing a zero
            // as its last byte through the mgr.
            return self.write(Some(key), open_policy, [(end - 1, Bytes::from_static(&[0]))]).await;
        }
        {
            let mut state = self.state();
            let grant = state.dirty.grant();
            state.dirty.became_durable(end, grant);
            state.dirty.made_hole();
            state.size.extend_to(end, self.mount.next_stamp());
        }
        self.report().await
    }

    /// Sends all bytes written to `range`, waits until servers have received them, and reports the write error of the
    /// open `key`, if any.
    async fn send(self: &Arc<Self>, key: Option<u64>, range: ByteRange) -> Result<()> {
        self.expose(range).await;
        key.map_or(Ok(()), |key| self.take_error(key))
    }

    /// Returns whether the flush timer has to send or commit bytes of this file by `now`, and the next due time of the
    /// file.
    pub(crate) fn is_due_by(&self, now: Instant) -> (Due, Option<Instant>) {
        self.state().sending.times.take(now)
    }

    /// Sends and commits bytes of the file for the flush timer, as `due` says. The next write, fsync or close reports
    /// errors. While the mgr does not answer, postpones the work: no caller waits for it, and the client keeps the
    /// bytes.
    pub(crate) async fn do_due(self: Arc<Self>, due: Due) {
        let answers = self.mount.session.answers().await;
        if let Err(error) = &answers {
            tracing::debug!(file = %self.node.id, "{error}; the client keeps the written bytes and sends them later");
        }
        if answers.is_err() {
            let policy = self.policy();
            let mut state = self.state();
            self.leave_in_a_while(&mut state, &policy);
            state.sending.times.settle_from(Instant::now());
        } else {
            if due.leave {
                self.hand_over(false).await;
            }
            if due.settle && !self.is_clean() {
                self.make_durable().await;
                if let Err(error) = self.report().await {
                    tracing::debug!(file = %self.node.id, "{error}; the next fsync or close reports it");
                }
            }
        }
        let next = self.state().sending.times.done();
        next.into_iter().for_each(|at| self.mount.due_at(at));
    }

    /// Schedules the flush timer to send gathered bytes, unless the policy disables the timer.
    fn leave_in_a_while(self: &Arc<Self>, state: &mut State, policy: &Policy) {
        if policy.gather_delay != NEVER {
            state.sending.times.leave = Instant::now().checked_add(policy.gather_delay);
            state.sending.times.leave.into_iter().for_each(|at| self.mount.due_at(at));
        }
    }

    /// Schedules the flush timer to commit the bytes that the client has sent, unless the policy disables the timer.
    pub(super) fn settle_in_a_while(self: &Arc<Self>, policy: &Policy) {
        if policy.gather_delay == NEVER {
            return;
        }
        let at = self.state().sending.times.settle_from(Instant::now());
        at.into_iter().for_each(|at| self.mount.due_at(at));
    }

    /// Returns whether the client has gathered enough bytes to send them.
    async fn is_enough(&self, gathered: u64, policy: &Policy) -> bool {
        match policy.gather_size {
            // Do not send less than one full request. Check this first, because this check needs no layout.
            FULL => gathered >= PAYLOAD_MAX as u64 && gathered >= Box::pin(self.full(policy)).await,
            size => gathered >= size.min(self.mount.window.size() as u64 / 4),
        }
    }

    async fn wait_for_room(self: &Arc<Self>, len: usize) {
        self.mount.relieve();
        self.mount.window.take(len).await;
    }

    /// Returns how many bytes make one full request for each server, at most a quarter of the write window.
    async fn full(&self, policy: &Policy) -> u64 {
        // If writes take the mgr path, do not request a layout only to count its servers: a client with a layout
        // prevents the mgr from gathering other clients' writes to the file.
        let long = self.size() >= least_size(policy);
        let wanted = long && self.mount.present_threshold(policy.write_threshold) != ALWAYS_MGR;
        let layout = if wanted { self.layout(true, None).await.ok().flatten() } else { None };
        let count = layout.map_or(1, |layout| layout.lanes());
        ((count * PAYLOAD_MAX) as u64).min(self.mount.window.size() as u64 / 4)
    }

    /// Sends all gathered bytes to servers, and returns while the requests are in flight. With `last`, a server that
    /// has no uncommitted bytes and gets only one request receives a stable write, which saves a COMMIT.
    ///
    /// Records errors, which the next write, fsync or close reports.
    pub(crate) async fn hand_over(self: &Arc<Self>, last: bool) {
        let send = async {
            if !self.state().dirty.pending().is_empty() {
                self.leaving.hold(pin!(self.send_gathered(last))).await;
            }
        };
        self.order.hold(pin!(send)).await;
    }

    /// Sends all gathered bytes like [`Inode::hand_over`]. The caller has locked `order` and `leaving`.
    async fn send_gathered(self: &Arc<Self>, last: bool) {
        let policy = self.policy();
        if !last {
            self.settle_in_a_while(&policy);
        }
        let long_enough = self.has_layout();
        let shared = self.writes_through();
        let (choice, straight) = {
            let state = self.state();
            let ranges = state.dirty.pending().ranges();
            let choice = if shared && policy.write_threshold != Rule::Fixed(ALWAYS_MGR) {
                // A write to a shared file waits for its reply, so take the direct path: the mgr path has a higher
                // latency.
                ALWAYS_DIRECT.into()
            } else {
                self.mount.threshold(policy.write_threshold, longest(&ranges))
            };
            let may = long_enough || state.size.get() >= least_size(&policy);
            let choice = if may { choice } else { ALWAYS_MGR.into() };
            // Without a layout, the number of requests is unknown. To decide whether to request a layout, assume one
            // request.
            (choice, !threshold::divide_by(&ranges, choice, state.sending.streamed, |_| 1).0.is_empty())
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
                let dropped = self.state().dirty.drop_pending();
                self.mount.window.release(dropped);
                return;
            }
        };
        let rule = layout.as_deref().map(|layout| (choice, layout));
        let (batch, extents, split) = self.begin_batch(rule).await;
        let (mut requests, whole) = write_requests(batch, &extents, &split, layout.as_deref());
        if last {
            self.choose_stable(batch, &mut requests);
        }
        let timed = whole.then(Instant::now);
        self.state().dirty.divided(batch, requests.len(), timed);
        let runtime = &self.mount.runtime;
        // Send a single small request from this task. Many requests take time to send, so spawn tasks that do not delay
        // the caller.
        let alone = requests.len() == 1 && requests[0].piece.bytes() <= BEGIN_MAX;
        let runners = requests.len().min(RUNNERS);
        let requests = Arc::new(Mutex::new(requests.into_iter()));
        for _ in 0..runners {
            let (inode, layout, requests) = (self.clone(), layout.clone(), requests.clone());
            let run = async move {
                let next = || requests.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(request) = next() {
                    inode.run(request, layout.clone()).await;
                }
            };
            if alone {
                net::task::begin_on(runtime, run);
            } else {
                net::task::spawn_on(runtime, run);
            }
        }
    }

    /// Turns the gathered bytes into a batch, and chooses a path for each range by the write threshold; without `rule`
    /// all ranges take the mgr path.
    ///
    /// Waits until no request in flight overlaps the batch. First commits all uncommitted bytes that the client sent
    /// on one path (direct or mgr) and that the batch overwrites on the other path. Otherwise the client could send
    /// these older bytes again later and overwrite the new bytes.
    async fn begin_batch(self: &Arc<Self>, rule: Option<(ThresholdChoice, &dyn Layout)>) -> (u64, Extents, PathSplit) {
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
                let split = state.split_by_path(rule);
                if let Some((number, extents)) = state.dirty.begin_batch() {
                    // The next range continues a sequential write only if the last range was long. After a short range,
                    // for example one that the client writes directly only to measure the direct path, the write
                    // threshold decides again.
                    if let (Some(last), Some((choice, _))) = (split.direct.last(), rule) {
                        let long = threshold::path(last.len, choice.t) == Path::Direct;
                        state.sending.streamed = long.then(|| last.end());
                    }
                    return (number, extents, split);
                }
            }
            // Waiting for the end of a request cannot fail: the sender of the notification lives as long as this inode.
            let _ = settled.changed().await;
        }
    }

    fn choose_stable(&self, batch: u64, requests: &mut [WriteRequest]) {
        let state = self.state();
        let mut counts = std::collections::BTreeMap::new();
        requests.iter().for_each(|request| *counts.entry(request.lane).or_insert(0) += 1);
        for request in requests {
            request.stable = counts[&request.lane] == 1 && state.dirty.may_be_stable(batch, request.lane);
        }
    }

    /// Executes one request of a batch and records the outcome.
    async fn run(self: &Arc<Self>, request: WriteRequest, layout: Option<LayoutUse>) {
        let outcome = match (request.lane, layout) {
            (Lane::Direct(index), Some(layout)) => self.write_direct(index, &request, layout).await,
            _ => self.write_via_mgr(&request).await,
        };
        let done = outcome.is_ok();
        if let Err(lost) = outcome {
            let dropped = self.state().dirty.lost(request.batch, lost.bytes);
            self.mount.window.release(dropped);
            self.fail(lost.error);
        }
        let ended = {
            let mut state = self.state();
            let ended = state.dirty.request_ended(request.batch, done);
            // A size that the client requested before the write completed may not include these bytes, so treat it as
            // outdated.
            if done {
                state.size.reported(request.piece.end(), self.mount.next_stamp());
            } else if ended.is_some() {
                state.size.touch(self.mount.next_stamp());
            }
            ended
        };
        self.settled.send_modify(|count| *count += 1);
        if let Some(Batch { ranges, timed: Some(begun), .. }) = ended {
            self.mount.learn_service((Path::Direct, longest(&ranges), 1), begun, request.stable);
        }
    }

    async fn write_direct(
        self: &Arc<Self>,
        index: usize,
        request: &WriteRequest,
        mut layout: LayoutUse,
    ) -> std::result::Result<(), Lost> {
        let bytes = request.piece.bytes();
        let lost = |error| Lost { error, bytes };
        let locks = self.lane(request.lane);
        let mut why = None;
        for _ in 0..LAYOUT_TRIES {
            let sending = self.sending_after_mgr(&locks, &request.piece).await;
            self.check_given_up(request.batch).map_err(lost)?;
            let shared = self.writes_through();
            let under = SendConditions { grant: self.state().dirty.grant(), shared };
            let begun = Instant::now();
            let written = layout.write(index, &request.piece.parts, &request.piece.payload, request.stable).await;
            match written.map_err(|not_done| self.note_stray(not_done)) {
                Ok(written) => {
                    if let Some(together) = request.together {
                        self.mount.learn_service((Path::Direct, bytes, together), begun, written.stable);
                    }
                    self.received(request.batch, request.lane, request.piece.clone(), (written, under));
                    return Ok(());
                }
                Err(NotDone::Failed(error)) => return Err(lost(error)),
                Err(NotDone::NotAttempted(error) | NotDone::Unanswered(error)) => {
                    tracing::debug!(file = %self.node.id, "{error}; writing through the mgr");
                    why = Some(error);
                    break;
                }
                Err(NotDone::Stale(_)) => {
                    drop(sending);
                    match self.layout(true, Some(layout)).await.map_err(lost)? {
                        Some(fresh) => layout = fresh,
                        None => break,
                    }
                }
            }
        }
        self.state().dirty.disregard_time(request.batch);
        // The iod may lose its uncommitted bytes of earlier requests, and the client would then send them again. Send
        // these older bytes on the mgr path first, so that they do not overwrite the bytes of this request.
        let moved = locks.committing.hold(pin!(self.move_to_mgr(request.lane))).await;
        moved.map_err(|error| lost(Error::by_no_path(why.clone(), error)))?;
        let written = self.write_via_mgr(request).await;
        written.map_err(|lost| Lost { error: Error::by_no_path(why, lost.error), ..lost })
    }

    /// Waits until the iods have all older bytes that the write `piece` to an iod overwrites. While the returned guard
    /// exists, the client moves no uncommitted bytes of this iod to the mgr. Otherwise the mgr could send older bytes
    /// to the iod after `piece`.
    async fn sending_after_mgr<'a>(self: &Arc<Self>, locks: &'a LaneLocks, piece: &Piece) -> RwLockReadGuard<'a, ()> {
        loop {
            let sending = locks.sending.read().await;
            if !self.state().dirty.are_gathered(&piece.parts) {
                return sending;
            }
            drop(sending);
            // Box the future of this commit, which is rarely needed, so that the future of the whole write stays small.
            Box::pin(self.commit_lane(Lane::Mgr)).await;
        }
    }

    /// Writes the ranges of a request through the mgr, one after the other.
    async fn write_via_mgr(self: &Arc<Self>, request: &WriteRequest) -> std::result::Result<(), Lost> {
        self.lane(Lane::Mgr).sending.hold_read(pin!(self.write_parts_via_mgr(request))).await
    }

    async fn write_parts_via_mgr(self: &Arc<Self>, request: &WriteRequest) -> std::result::Result<(), Lost> {
        let stable = request.stable && request.piece.parts.len() == 1;
        let mut left = request.piece.bytes();
        for (range, data) in request.piece.split() {
            let lost = |error| Lost { error, bytes: left };
            let timed = self.mount.time_mgr();
            let written = self.mgr_write(request.batch, range.offset, data.clone(), stable).await.map_err(lost)?;
            if let Some(together) = request.together {
                timed.done(range.len, together);
            }
            left -= range.len;
            self.received(request.batch, Lane::Mgr, Piece::of_range(range, data), (written, SendConditions::MGR));
        }
        Ok(())
    }

    /// Moves the uncommitted bytes of a data server to the mgr: sends them to the mgr, and no longer commits them on
    /// the data server. The caller holds the data server's `committing` lock.
    pub(super) async fn move_to_mgr(self: &Arc<Self>, lane: Lane) -> Result<()> {
        let (from, to) = (self.lane(lane), self.lane(Lane::Mgr));
        from.sending.hold_write(pin!(to.sending.hold_read(pin!(self.move_all_to_mgr(lane))))).await
    }

    async fn move_all_to_mgr(self: &Arc<Self>, lane: Lane) -> Result<()> {
        let mut outcome = self.end_strays().await;
        while outcome.is_ok() && self.state().dirty.is_uncommitted(lane) {
            outcome = self.move_first_to_mgr(lane).await;
        }
        let dropped = self.state().dirty.drop_lane(lane);
        self.mount.window.release(dropped);
        outcome
    }

    /// Sends the first uncommitted write of a data server to the mgr. The write stays in the dirty data until the mgr
    /// has received it, so that a reader still finds its bytes on this client.
    async fn move_first_to_mgr(self: &Arc<Self>, lane: Lane) -> Result<()> {
        let Some(resend) = self.state().dirty.resend(lane, 0) else { return Ok(()) };
        let mut received = Vec::new();
        for (range, data) in resend.piece.split() {
            let written = self.mgr_write(resend.number, range.offset, data.clone(), false).await?;
            received.push((range, data, written));
        }
        let free = self.state().dirty.moved_to_mgr(lane, &resend, received);
        self.mount.window.release(free);
        Ok(())
    }

    /// Records that a server received bytes of a batch. Starts an early commit if there are many uncommitted bytes.
    fn received(self: &Arc<Self>, batch: u64, lane: Lane, piece: Piece, written: (Written, SendConditions)) {
        let mut state = self.state();
        let free = state.dirty.received(batch, lane, piece, written);
        self.mount.window.release(free);
        let many = self.mount.window.size() as u64 / 2;
        if !state.sending.committing && state.dirty.is_uncommitted_beyond(many) {
            state.sending.committing = true;
            drop(state);
            net::task::spawn_on(&self.mount.runtime, self.clone().commit_behind());
        }
    }
}

impl State {
    /// Chooses a path for each gathered range by the write threshold; without `rule` all ranges take the mgr path.
    fn split_by_path(&self, rule: Option<(ThresholdChoice, &dyn Layout)>) -> PathSplit {
        let ranges = self.dirty.pending().ranges();
        let (straight, through) = match rule {
            Some((choice, layout)) => {
                let requests = |ranges: &[ByteRange]| layout.shares(ranges).len() as u64;
                threshold::divide_by(&ranges, choice, self.sending.streamed, requests)
            }
            None => (Vec::new(), ranges),
        };
        PathSplit { direct: straight, via_mgr: through }
    }

    /// Returns the iods whose uncommitted bytes the gathered bytes will overwrite on the mgr path. The result includes
    /// the mgr if the gathered bytes will overwrite the mgr's uncommitted bytes on the direct path.
    fn lanes_off_path(&self, rule: Option<(ThresholdChoice, &dyn Layout)>) -> Vec<Lane> {
        let split = self.split_by_path(rule);
        self.dirty.lanes_off_path(&split.direct, &split.via_mgr)
    }
}

/// Returns the requests of a batch, and whether the client measures their total time. It measures the time of several
/// direct requests if their bytes fit into one request on the mgr path.
fn write_requests(
    batch: u64,
    extents: &Extents,
    split: &PathSplit,
    layout: Option<&dyn Layout>,
) -> (Vec<WriteRequest>, bool) {
    let straight = layout.map(|layout| layout.shares(&split.direct)).unwrap_or_default();
    let through = chunks(&split.via_mgr);
    let many = [through.len(), straight.len()].map(|many| Some(many.min(RUNNERS)));
    let whole = through.is_empty()
        && straight.len() > 1
        && matches!(split.direct[..], [range] if range.len <= PAYLOAD_MAX as u64);
    let straight = straight.into_iter().map(|share| (Lane::Direct(share.lane), share.parts));
    let through = through.into_iter().map(|chunk| (Lane::Mgr, vec![chunk]));
    let request = |(lane, parts): (Lane, Vec<ByteRange>)| {
        let payload = Arc::new(Payload::new(extents.gather(&parts)));
        let together = if whole { None } else { many[usize::from(lane != Lane::Mgr)] };
        WriteRequest { batch, lane, piece: Piece { payload, parts }, stable: false, together }
    };
    (straight.chain(through).map(request).collect(), whole)
}

/// Returns the length of the longest range.
fn longest(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|range| range.len).max().unwrap_or(0)
}

/// Divides file ranges into ranges that are short enough for one request to the mgr each.
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
