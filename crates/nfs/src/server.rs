//! The NFS server: executes COMPOUNDs over a [`FileSystem`] and the state tables.

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

/// Settings that a server fixes before the first request.
#[derive(Clone, Debug)]
pub struct Config {
    /// Limits and roles of the state tables.
    pub state: state::Config,
    /// Identity of this server (`so_major_id`), different from that of every other server. Clients take servers with
    /// the same id for two addresses of one server (RFC 8881 §2.10.5).
    pub major_id: Bytes,
    /// Name and version shown to clients (`nii_name`); for people only.
    pub implementation: String,
}

/// An NFSv4.1 and 4.2 server.
///
/// It owns no socket, clock or random number: each request carries the time and a random number, and callbacks leave
/// through [`Callbacks`]. One lock guards the state tables; it is never held while anything waits.
pub struct Server<F, C> {
    fs: F,
    callbacks: C,
    config: Config,
    state: Mutex<State>,
    /// Files without a name that are still open; the last CLOSE frees them.
    orphans: Mutex<HashSet<FileId>>,
    /// Orphans that are kept a moment longer after a rename. Locked after `state`.
    lingering: Mutex<replaced_files::ReplacedFiles>,
    /// Files that are being freed: no client has them open or can open them. Locked after `state`.
    reaping: Mutex<Reaped>,
    /// Number of OPENs by name in progress whose open is not in `state` yet.
    opening: AtomicUsize,
    /// Tasks that wait for the return of layouts or delegations of a file.
    waiters: Mutex<HashMap<FileId, Vec<Waker>>>,
    /// Tasks that wait for an answer on the backchannel of a session, by slot.
    calling: Mutex<HashMap<sessionid4, HashMap<u32, Waker>>>,
    /// Callbacks to clients that no request waits for.
    notices: Mutex<notices::Notices>,
    /// Layouts that are removed from the tables, but that the file system does not yet know to be gone. They count as
    /// held until it has fenced their holders and learned the bytes that they wrote. Locked after `state`.
    leaving: Mutex<HashMap<FileId, Leaving>>,
    /// The export through which each client reached its files. Locked after `state`.
    reached: Mutex<export_of_opens::ExportOfOpens>,
    /// Minor version of each session, which callbacks must carry.
    minors: Mutex<HashMap<sessionid4, u32>>,
    counters: counters::Counting,
}

/// Largest number of ended layouts that are reported to the file system at the same time.
const GONE_AT_ONCE: usize = 16;

/// The share of the free disk space that replaced files may occupy, as a divisor.
const LINGERING_SHARE: u64 = 4;

/// Number of layouts of a file that are about to be gone.
#[derive(Debug, Default)]
struct Leaving {
    all: usize,
    /// Layouts whose holders are being fenced.
    fencing: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: FileSystem, C: Callbacks> Server<F, C> {
    /// Starts a server without clients; clients with records in the file system may reclaim for one lease period.
    ///
    /// # Errors
    /// The records cannot be read.
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
            leaving: Mutex::default(),
            reached: Mutex::default(),
            minors: Mutex::default(),
            counters: counters::Counting::default(),
        })
    }

    /// Returns the file system served.
    pub fn fs(&self) -> &F {
        &self.fs
    }

    /// Returns whether this server has only the role of a data server (RFC 8881 §13.1).
    fn is_data_only(&self) -> bool {
        self.config.state.roles & EXCHGID4_FLAG_MASK_PNFS == EXCHGID4_FLAG_USE_PNFS_DS
    }

    /// Returns the connection to the clients' backchannels.
    pub fn callbacks(&self) -> &C {
        &self.callbacks
    }

    /// Reads the state tables, for display. Must be short, as every request waits meanwhile.
    pub fn inspect<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&lock(&self.state))
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> Counters {
        self.counters.snapshot()
    }

    /// Handles a closed connection. Its requests continue; their replies are kept for the retry.
    pub fn connection_lost(&self, connection: state::ConnectionId) {
        lock(&self.state).connection_lost(connection);
    }

    /// Advances time: ends leases, the grace period and overdue recalls, and then frees unused entries. Call it about
    /// once per second.
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
            // A delegation from an open since then would keep the file for as long as the client keeps it, so recall
            // it.
            self.recall_late(&ctx, file, None).await;
            self.orphaned(&ctx, file).await;
        }
    }

    /// Changes the state and takes its effects under one lock, so that the request that caused an effect carries it
    /// out.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> (R, Vec<Effect>) {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        let effects = state.take_effects();
        self.note_leaving(&effects);
        (result, effects)
    }

    /// Records the minor version of a session, unless the session is already gone.
    fn note_minor(&self, session: sessionid4, minor: u32) {
        let state = lock(&self.state);
        if state.session(session).is_some() {
            lock(&self.minors).insert(session, minor);
        }
    }

    /// Records the export through which a client reached a file that it opened.
    fn note_reached(&self, client: u64, file: FileId, place: Place) {
        let state = lock(&self.state);
        let in_use = |file| {
            state.is_open(file)
                || state.conflicting_layouts(file, Filter::ALL, None)
                || state.is_delegated(file, Use::Change, None)
        };
        lock(&self.reached).note(client, file, place, in_use);
    }

    /// Returns the filehandle by which a client knows a file, for callbacks.
    fn handle_for(&self, client: u64, file: FileId) -> Bytes {
        let place = lock(&self.reached).place(client, file);
        self.fs.encode_handle(file, place)
    }

    /// Records layouts that are about to be gone; the caller holds the state lock.
    fn note_leaving(&self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::LayoutGone { file, iomode, why, .. } = effect {
                let mut leaving = lock(&self.leaving);
                let leaving = leaving.entry(*file).or_default();
                leaving.all += 1;
                leaving.fencing += usize::from(why.is_to_be_fenced(*iomode));
            }
        }
    }

    /// Records layouts that a client returned, as [`Server::note_leaving`] does; the caller holds the state lock.
    fn leave(&self, gone: Vec<(FileId, Iomode, ByteRange)>) -> Vec<(FileId, Iomode, ByteRange)> {
        for (file, ..) in &gone {
            lock(&self.leaving).entry(*file).or_default().all += 1;
        }
        gone
    }

    /// Reports the end of a layout to the file system, and then wakes the tasks that wait for this end.
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
        if let Entry::Occupied(mut leaving) = lock(&self.leaving).entry(file) {
            leaving.get_mut().all -= 1;
            leaving.get_mut().fencing -= usize::from(fences);
            if leaving.get().all == 0 {
                leaving.remove();
            }
        }
        self.wake(file);
        told
    }

    /// Returns whether clients that lost layouts of a file are being fenced from the data servers: their writes may
    /// still arrive.
    fn is_fencing(&self, file: FileId) -> bool {
        lock(&self.leaving).get(&file).is_some_and(|leaving| leaving.fencing > 0)
    }

    /// Carries out effects in order, and the effects that follow from them. Returns the first failure to store or
    /// delete a client's record, because the request must not succeed without it; logs other failures.
    async fn settle(&self, ctx: &Ctx, effects: Vec<Effect>) -> Result<(), Status> {
        let mut outcome = Ok(());
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            let of_record = effect.is_of_record();
            // Boxed, because the future is large and rarely needed.
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

    /// Reports ended layouts to the file system, several at a time: each call may have to wait for data servers.
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

    /// Carries out one effect, together with directly following effects of the same kind where possible; adds new
    /// effects to `more`.
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

    /// Handles a file that has lost its last name: frees it now, or with the last CLOSE.
    async fn orphaned(&self, ctx: &Ctx, file: FileId) {
        lock(&self.orphans).insert(file);
        if let Err(error) = self.reap_closed(ctx, file).await {
            tracing::warn!(%error, file = file.0, "cannot free the space of a removed file");
        }
    }

    /// Handles a file whose last name a rename has replaced: frees it a second later, with the last CLOSE, or now if it
    /// needs too much of the free disk space.
    async fn replaced(&self, ctx: &Ctx, replaced: Replaced) {
        // This must come first, or a CLOSE in between would free the file.
        let over = lock(&self.lingering).add(replaced.id, replaced.bytes, replaced.room / LINGERING_SHARE, ctx.now);
        self.keep_orphan(replaced.id);
        for file in over {
            self.orphaned(ctx, file).await;
        }
    }

    /// Returns whether a rename replaced a file's last name, no client has it open, and this client may no longer open
    /// it.
    fn is_replaced_for(&self, client: ClientId, file: FileId) -> bool {
        if !lock(&self.lingering).keeps(file) {
            return false;
        }
        let state = lock(&self.state);
        !state.is_open(file) && !state.is_own(client)
    }

    /// Records a file without a name that is open, so that the last CLOSE frees it.
    fn keep_orphan(&self, file: FileId) {
        lock(&self.orphans).insert(file);
    }

    /// Returns whether a file is being freed. The OPEN operation must check this after it has recorded the open, and
    /// must not trust earlier answers of the file system about the file.
    fn is_reaping(&self, file: FileId) -> bool {
        lock(&self.reaping).contains_key(&file)
    }

    /// Frees a file that was found without a name: now, or with the last CLOSE.
    pub async fn free_orphan(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        self.keep_orphan(file);
        self.reap_closed(ctx, file).await
    }

    /// Frees an orphan unless a client has it open, or may open it again after a restart. At the end of the grace
    /// period the scan for orphans of earlier starts frees the remaining ones.
    async fn reap_closed(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        let (effects, _reaping) = {
            let mut state = lock(&self.state);
            let stays = state.is_open(file) || state.in_grace() || lock(&self.lingering).keeps(file);
            if stays || !lock(&self.orphans).remove(&file) {
                return Ok(());
            }
            state.forget_layouts(file);
            let effects = state.take_effects();
            self.note_leaving(&effects);
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

/// Files that are being freed, with the number of [`Reaping`] guards of each.
type Reaped = HashMap<FileId, u32>;

/// Marks a file as being freed, until this guard is dropped.
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

/// Counts an OPEN by name as in progress, until this guard is dropped.
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

/// A removal in progress: until it is dropped, no client can open the files that it may free with their names.
struct Ending<'a, F: FileSystem, C: Callbacks> {
    server: &'a Server<F, C>,
    files: Mutex<Vec<Reaping<'a>>>,
}

impl<'a, F: FileSystem, C: Callbacks> Ending<'a, F, C> {
    fn new(server: &'a Server<F, C>) -> Self {
        Ending { server, files: Mutex::default() }
    }

    /// Returns whether a file that loses its last name may be freed at once: it has no open, delegation or layout, no
    /// client can reclaim one, and no OPEN that has found or created it is in progress.
    fn may_end(&self, file: FileId) -> bool {
        // OPENs are recorded under this lock, and count as in progress until then.
        let state = lock(&self.server.state);
        let known = state.is_open(file) || state.has_layouts(file) || state.in_grace();
        let unknown = !known && self.server.opening.load(SeqCst) == 0;
        if unknown {
            // Marked while no client can open the file: a later OPEN finds it marked here, or gone.
            lock(&self.files).push(Reaping::begin(&self.server.reaping, file));
        }
        unknown
    }
}

#[cfg(test)]
mod tests;
