//! The NFSv4.1/4.2 server: executes COMPOUNDs on a [`FileSystem`] and on the state tables (clients, opens, locks,
//! layouts).

mod attributes;
mod call_back;
mod callbacks;
mod compound;
mod counters;
mod delegations;
mod export_of_opens;
mod files;
mod layout_recall;
mod notices;
mod ops;
mod replaced_files;
mod reply_bound;
mod set_sizes;

pub use callbacks::{CallbackPath, Callbacks, Lost};
pub use compound::Call;
pub use counters::{Counters, OpCount};
pub use reply_bound::reply_bound;

use crate::exports::Place;
use crate::fs::{Ctx, FileSystem, Iomode, LayoutGone, Replaced};
use crate::state::delegations::Use;
use crate::state::layouts::Filter;
use crate::state::{self, ClientId, Effect, State};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use types::{ByteRange, FileId, Status, Timestamp};
use wire::nfs4::{EXCHGID4_FLAG_MASK_PNFS, EXCHGID4_FLAG_USE_PNFS_DS, sessionid4};

/// Settings of a server, which stay the same while it runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Settings of the state tables: roles, lease time and limits.
    pub state: state::Config,
    /// The server owner's major id (`so_major_id`), unique among servers. Clients treat two addresses with the same
    /// major id as one server (RFC 8881 §2.10.5).
    pub major_id: Bytes,
    /// Name and version of the implementation (`nii_name`), for display only.
    pub implementation: String,
}

/// An NFSv4.1/4.2 server, without sockets or clocks: each request brings the time and a random number, and the server
/// sends callbacks through [`Callbacks`].
///
/// One lock guards the state tables. No task holds this lock while it waits.
pub struct Server<F, C> {
    fs: F,
    callbacks: C,
    config: Config,
    state: Mutex<State>,
    /// Open files without a name. The server frees each file at its last CLOSE.
    orphans: Mutex<HashSet<FileId>>,
    /// Orphans whose last name a rename replaced. The server keeps each file for about a second. Lock order: after
    /// `state`.
    lingering: Mutex<replaced_files::ReplacedFiles>,
    /// Files that the file system is freeing, so that no client may open them. Lock order: after `state`.
    reaping: Mutex<Reaped>,
    /// Number of OPENs by name in progress that have not recorded their open in `state` yet.
    opening: AtomicUsize,
    /// Wakers of the tasks that wait for the return of layouts or delegations, or for a fence, by file.
    waiters: Mutex<HashMap<FileId, Vec<Waker>>>,
    /// Wakers of the tasks that wait for a callback reply, by session and backchannel slot.
    calling: Mutex<HashMap<sessionid4, HashMap<u32, Waker>>>,
    /// Queue of callbacks that a separate task sends ([`Server::deliver`]).
    notices: Mutex<notices::Notices>,
    /// Returned and revoked layouts that `state` no longer contains, but that the file system is still processing,
    /// for example by fencing the former holder. Until the file system has finished, these layouts count as held.
    /// Lock order: after `state`.
    ending_layouts: Mutex<HashMap<FileId, EndingLayouts>>,
    /// The export through which each client reached each of its open files. Lock order: after `state`.
    reached: Mutex<export_of_opens::ExportOfOpens>,
    /// The NFSv4 minor version of each session, which the session's callbacks must carry.
    minors: Mutex<HashMap<sessionid4, u32>>,
    counters: counters::Counting,
}

/// Largest number of concurrent calls of [`FileSystem::layout_gone`].
const GONE_AT_ONCE: usize = 16;

/// The divisor that limits replaced files (files whose last name a rename has replaced): together these files may use
/// at most the free disk space divided by this number.
const LINGERING_SHARE: u64 = 4;

/// For one file: counts of the returned or revoked layouts that the state tables no longer contain, but whose end the
/// file system has not processed yet.
#[derive(Debug, Default)]
struct EndingLayouts {
    all: usize,
    /// Number of layouts whose holders the file system is fencing.
    fencing: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: FileSystem, C: Callbacks> Server<F, C> {
    /// Starts a server without client state. For one lease period, clients with a stored record may reclaim their
    /// state.
    ///
    /// # Errors
    /// The file system cannot read the client records.
    pub async fn start(fs: F, callbacks: C, config: Config, now: Timestamp) -> Result<Self, Status> {
        let records = fs.clients().await?;
        let state = State::new(config.state.clone(), records, now);
        Ok(Server {
            fs,
            callbacks,
            config,
            state: Mutex::new(state),
            orphans: Mutex::default(),
            lingering: Mutex::default(),
            reaping: Mutex::default(),
            opening: AtomicUsize::new(0),
            waiters: Mutex::default(),
            calling: Mutex::default(),
            notices: Mutex::default(),
            ending_layouts: Mutex::default(),
            reached: Mutex::default(),
            minors: Mutex::default(),
            counters: counters::Counting::default(),
        })
    }

    /// Returns the file system that this server exports.
    pub fn fs(&self) -> &F {
        &self.fs
    }

    /// Returns whether this server is only a data server (RFC 8881 §13.1).
    fn is_data_only(&self) -> bool {
        self.config.state.roles & EXCHGID4_FLAG_MASK_PNFS == EXCHGID4_FLAG_USE_PNFS_DS
    }

    /// Returns the transport of callbacks to clients.
    pub fn callbacks(&self) -> &C {
        &self.callbacks
    }

    /// Runs `look` on the state tables, for display. The closure must be short, because it holds the lock that every
    /// request needs.
    pub fn inspect<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&lock(&self.state))
    }

    /// Returns a snapshot of the counters.
    pub fn counters(&self) -> Counters {
        self.counters.snapshot()
    }

    /// Handles a closed connection. Requests of this connection continue, and the reply cache keeps their replies for
    /// retries.
    pub fn connection_lost(&self, connection: state::ConnectionId) {
        lock(&self.state).connection_lost(connection);
    }

    /// Advances time: ends expired leases, the grace period and overdue recalls, and frees the files that a rename
    /// replaced more than a second ago. The caller runs this method about once per second.
    pub async fn tick(&self, now: Timestamp) {
        let (expired, effects) = self.change(|state| state.expire(now));
        for client in expired.iter().filter(|c| c.confirmed) {
            tracing::info!(
                client = client.client.0,
                owner = %client.owner.escape_ascii(),
                opens = client.opens,
                layouts = client.layouts,
                "lease expired"
            );
        }
        let ctx = Ctx { now, ..Ctx::default() };
        if let Err(error) = self.settle(&ctx, effects).await {
            tracing::warn!(%error, "cannot remove the state of expired clients");
        }
        let due = lock(&self.lingering).take_due(now);
        for file in due {
            // A client may have got a delegation of this replaced file after the rename. Recall the delegation, unless
            // it is a data delegation (`WANT_DATA`), because the server does not free a file with a delegation.
            self.recall_late(&ctx, file, None).await;
            self.orphaned(&ctx, file).await;
        }
    }

    /// Changes the state tables, and takes the effects ([`Effect`]) of the change from the tables before it releases
    /// their lock. So each request carries out exactly the effects that this request caused.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> (R, Vec<Effect>) {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        let effects = state.take_effects();
        self.count_ending(&effects);
        (result, effects)
    }

    /// Records the minor version of a session, unless the session no longer exists.
    fn note_minor(&self, session: sessionid4, minor: u32) {
        let state = lock(&self.state);
        if state.session(session).is_some() {
            lock(&self.minors).insert(session, minor);
        }
    }

    /// Records the export through which a client reached a file that it has opened.
    fn note_reached(&self, client: u64, file: FileId, place: Place) {
        let state = lock(&self.state);
        let in_use = |file| {
            state.is_open(file)
                || state.conflicting_layouts(file, Filter::ALL, None)
                || state.is_delegated(file, Use::Write, None)
        };
        lock(&self.reached).note(client, file, place, in_use);
    }

    /// Returns the filehandle under which a client opened a file. Callbacks to the client must use this filehandle.
    fn handle_for(&self, client: u64, file: FileId) -> Bytes {
        let place = lock(&self.reached).place(client, file);
        self.fs.encode_handle(file, place)
    }

    /// Counts in `ending_layouts` the layouts that these effects end, until the file system has processed the end of
    /// each layout. The caller holds the lock of `state`.
    fn count_ending(&self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::LayoutGone { file, iomode, why, .. } = effect {
                let mut ending_layouts = lock(&self.ending_layouts);
                let ending_layouts = ending_layouts.entry(*file).or_default();
                ending_layouts.all += 1;
                ending_layouts.fencing += usize::from(why.is_to_be_fenced(*iomode));
            }
        }
    }

    /// Counts in `ending_layouts` the returned layouts, until the file system has processed the return of these
    /// layouts. The caller holds the lock of `state`.
    fn count_returned(&self, gone: Vec<(FileId, Iomode, ByteRange)>) -> Vec<(FileId, Iomode, ByteRange)> {
        for (file, ..) in &gone {
            lock(&self.ending_layouts).entry(*file).or_default().all += 1;
        }
        gone
    }

    /// Reports the end of a layout to the file system, then wakes the tasks that wait for the return of layouts of the
    /// file.
    async fn layout_gone(
        &self,
        ctx: &Ctx,
        client: u64,
        file: FileId,
        (iomode, range): (Iomode, ByteRange),
        why: LayoutGone,
    ) -> Result<(), Status> {
        let fences = why == LayoutGone::Revoked;
        let told = self.fs.layout_gone(ctx, client, file, iomode, range, why).await;
        if let Entry::Occupied(mut ending_layouts) = lock(&self.ending_layouts).entry(file) {
            ending_layouts.get_mut().all -= 1;
            ending_layouts.get_mut().fencing -= usize::from(fences);
            if ending_layouts.get().all == 0 {
                ending_layouts.remove();
            }
        }
        self.wake(file);
        told
    }

    /// Returns whether the file system is fencing a former layout holder of the file, so that late writes may still
    /// arrive at data servers.
    fn is_fencing(&self, file: FileId) -> bool {
        lock(&self.ending_layouts).get(&file).is_some_and(|ending_layouts| ending_layouts.fencing > 0)
    }

    /// Carries out, in order, the effects of a change of the state tables ([`Effect`]), and then the further effects
    /// that these actions cause. Returns the first failure to store or delete a client record, because the request
    /// that caused the change must then fail too. Logs every failure.
    async fn settle(&self, ctx: &Ctx, effects: Vec<Effect>) -> Result<(), Status> {
        let mut outcome = Ok(());
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            let of_record = effect.is_of_record();
            // The future of `carry_out` is large and rarely needed, so it is boxed.
            let done = Box::pin(self.carry_out(ctx, effect, &mut effects)).await;
            if let Err(error) = done {
                tracing::warn!(%error, "cannot handle a change of the NFS state");
                if of_record {
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }

    /// Reports ended layouts to the file system concurrently, because the file system may wait for data servers in each
    /// call.
    async fn layouts_gone(&self, ctx: &Ctx, gone: Vec<Effect>) {
        let told = stream::iter(gone).map(|effect| async move {
            let Effect::LayoutGone { client, file, iomode, range, why } = effect else { return };
            let why = match why.is_to_be_fenced(iomode) {
                false => LayoutGone::Forgotten,
                true => LayoutGone::Revoked,
            };
            if let Err(error) = self.layout_gone(ctx, client.0, file, (iomode, range), why).await {
                tracing::warn!(%error, file = file.0, "cannot revoke a layout");
            }
        });
        told.buffer_unordered(GONE_AT_ONCE).for_each(|()| std::future::ready(())).await;
    }

    /// Carries out one effect of a change of the state tables. Handles consecutive [`Effect::LayoutGone`] effects
    /// together, and adds new effects to `more`.
    async fn carry_out(&self, ctx: &Ctx, effect: Effect, more: &mut VecDeque<Effect>) -> Result<(), Status> {
        match effect {
            Effect::Persist(record) => self.fs.persist_client(record).await,
            Effect::Forget(owner) => self.fs.forget_client(owner).await,
            Effect::Lapse { client, owner } => {
                self.fs.forget_client(owner).await?;
                more.extend(self.change(|state| state.lapsed(client)).1);
                Ok(())
            }
            Effect::GraceOver(owners) => {
                for owner in &owners {
                    self.fs.forget_client(owner.clone()).await?;
                }
                more.extend(self.change(|state| state.grace_over(&owners)).1);
                Ok(())
            }
            Effect::Distrust { client, owner } => {
                self.fs.forget_client(owner).await?;
                more.extend(self.change(|state| state.distrusted(client, ctx.now)).1);
                Ok(())
            }
            Effect::LockFree { client, file, owner } => {
                self.notify([notices::Notice::LockFree { client, file, owner }]);
                Ok(())
            }
            Effect::DelegationGone(file) => {
                self.wake(file);
                Ok(())
            }
            Effect::LastClose(file) => self.reap_closed(ctx, file).await,
            Effect::LayoutGone { .. } => {
                let mut gone = vec![effect];
                while let Some(next) = more.pop_front_if(|next| matches!(next, Effect::LayoutGone { .. })) {
                    gone.push(next);
                }
                self.layouts_gone(ctx, gone).await;
                Ok(())
            }
            Effect::SessionGone(session) => {
                lock(&self.minors).remove(&session);
                let calling = lock(&self.calling).remove(&session);
                calling.into_iter().flatten().for_each(|(_, waker)| waker.wake());
                Ok(())
            }
        }
    }

    /// Frees a file that has lost its last name: immediately if no client has the file open, otherwise at its last
    /// CLOSE.
    async fn orphaned(&self, ctx: &Ctx, file: FileId) {
        lock(&self.orphans).insert(file);
        if let Err(error) = self.reap_closed(ctx, file).await {
            tracing::warn!(%error, file = file.0, "cannot free the space of a removed file");
        }
    }

    /// Handles a file whose last name a rename has replaced. The server frees the file after about a second, or at the
    /// file's last CLOSE, whichever is later. If replaced files use too much of the free disk space, the server frees
    /// the oldest of them earlier.
    async fn replaced(&self, ctx: &Ctx, replaced: Replaced) {
        // Add the file to `lingering` before `orphans`, so that a concurrent CLOSE does not free the file.
        let over = lock(&self.lingering).add(replaced.id, replaced.bytes, replaced.room / LINGERING_SHARE, ctx.now);
        self.keep_orphan(replaced.id);
        for file in over {
            self.orphaned(ctx, file).await;
        }
    }

    /// Returns whether the server must refuse an OPEN of a replaced file, whose last name a rename has replaced. Weir's
    /// clients may open such a file. Other clients may open it only while some client has it open.
    fn is_replaced_for(&self, client: ClientId, file: FileId) -> bool {
        if !lock(&self.lingering).keeps(file) {
            return false;
        }
        let state = lock(&self.state);
        !state.is_open(file) && !state.is_own(client)
    }

    /// Records an open file without a name, which the last CLOSE must free.
    fn keep_orphan(&self, file: FileId) {
        lock(&self.orphans).insert(file);
    }

    /// Returns whether the file system is freeing a file. OPEN must check this after it has recorded its open,
    /// because a removal may have begun to free the file after OPEN read the attributes of the file.
    fn is_reaping(&self, file: FileId) -> bool {
        lock(&self.reaping).contains_key(&file)
    }

    /// Frees a file that has had no name since before this start of the server: immediately if no client has the file
    /// open, otherwise at the last CLOSE of the file.
    pub async fn free_orphan(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        self.keep_orphan(file);
        self.reap_closed(ctx, file).await
    }

    /// Frees an orphan, unless a client has it open, it is in `lingering` (a rename has just replaced its last name),
    /// or the grace period is in progress, in which a client could still reclaim an open of it. After the grace period
    /// the mgr calls [`Server::free_orphan`] for every orphan that is left.
    async fn reap_closed(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        let (effects, _reaping) = {
            let mut state = lock(&self.state);
            let stays = state.is_open(file) || state.in_grace() || lock(&self.lingering).keeps(file);
            if stays || !lock(&self.orphans).remove(&file) {
                return Ok(());
            }
            state.forget_layouts(file);
            let effects = state.take_effects();
            self.count_ending(&effects);
            (effects, Reaping::begin(&self.reaping, file))
        };
        for effect in effects {
            if let Effect::LayoutGone { client, iomode, range, .. } = effect {
                let told = self.layout_gone(ctx, client.0, file, (iomode, range), LayoutGone::Forgotten).await;
                told.unwrap_or_else(|error| tracing::warn!(%error, file = file.0, "cannot drop a returned layout"));
            }
        }
        self.fs.reap(ctx, file).await
    }
}

/// Files that the file system is freeing, each with the number of its [`Reaping`] guards.
type Reaped = HashMap<FileId, u32>;

/// Guard that marks a file as being freed, until the guard is dropped.
struct Reaping<'a>(&'a Mutex<Reaped>, FileId);

impl<'a> Reaping<'a> {
    fn begin(all: &'a Mutex<Reaped>, file: FileId) -> Self {
        *lock(all).entry(file).or_default() += 1;
        Reaping(all, file)
    }
}

impl Drop for Reaping<'_> {
    fn drop(&mut self) {
        let mut all = lock(self.0);
        if let Some(times) = all.get_mut(&self.1).filter(|times| **times > 1) {
            *times -= 1;
        } else {
            all.remove(&self.1);
        }
    }
}

/// Guard that counts an OPEN by name as in progress, until the guard is dropped.
struct Opening<'a>(&'a AtomicUsize);

impl<'a> Opening<'a> {
    fn begin(all: &'a AtomicUsize) -> Self {
        all.fetch_add(1, SeqCst);
        Opening(all)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Guard of a REMOVE or RENAME in progress. Until the guard is dropped, no client can open the files that the operation
/// may free.
struct Ending<'a, F: FileSystem, C: Callbacks> {
    server: &'a Server<F, C>,
    files: Mutex<Vec<Reaping<'a>>>,
}

impl<'a, F: FileSystem, C: Callbacks> Ending<'a, F, C> {
    fn new(server: &'a Server<F, C>) -> Self {
        Ending { server, files: Mutex::default() }
    }

    /// Returns whether a file that loses its last name may be freed at once. The file must have no open, delegation or
    /// layout. No client may be able to reclaim such state, and no OPEN by name may be in progress.
    fn may_end(&self, file: FileId) -> bool {
        // An OPEN decrements `opening` only after it has recorded its open under the lock of `state`. So, while this
        // function holds this lock, an OPEN by name is either recorded in `state` or still counted in `opening`.
        let state = lock(&self.server.state);
        let known = state.is_open(file) || state.has_layouts(file) || state.in_grace();
        let unknown = !known && self.server.opening.load(SeqCst) == 0;
        if unknown {
            // Mark the file as being freed before releasing the lock of `state`. An OPEN that begins later then finds
            // the mark, or does not find the file at all.
            lock(&self.files).push(Reaping::begin(&self.server.reaping, file));
        }
        unknown
    }
}

#[cfg(test)]
mod tests;
