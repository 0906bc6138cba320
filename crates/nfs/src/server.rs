//! The server half: COMPOUNDs in, replies out, over a [`FileSystem`] and the state tables.

mod attributes;
mod bound;
mod call_back;
mod callbacks;
mod compound;
mod counters;
mod delegations;
mod files;
mod lingering;
mod notices;
mod ops;
mod reached;
mod recall;

pub use bound::reply_bound;
pub use callbacks::{CallbackPath, Callbacks, Lost};
pub use compound::Call;
pub use counters::{Counters, OpCount};

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

/// What a server fixes once, before the first request.
#[derive(Clone, Debug)]
pub struct Config {
    /// Limits and roles of the state tables.
    pub state: state::Config,
    /// Identity of this server, different from every other server's (`so_major_id`): servers that share it are taken
    /// for two addresses of one (RFC 8881 §2.10.5).
    pub major_id: Bytes,
    /// Name and version shown to clients (`nii_name`); for people only.
    pub implementation: String,
}

/// An NFSv4.1 and 4.2 server.
///
/// It owns no socket, clock or random number: requests come with the time and a random number, callbacks leave
/// through [`Callbacks`]. The state tables stand behind one lock that is never held while anything waits.
pub struct Server<F, C> {
    fs: F,
    callbacks: C,
    config: Config,
    state: Mutex<State>,
    /// Files without a name that are still open: freed with the last CLOSE.
    orphans: Mutex<HashSet<FileId>>,
    /// Of those, the ones that are kept a moment longer. Locked after `state`.
    lingering: Mutex<lingering::Lingering>,
    /// Files that are being freed: nobody has them open, and nobody gets to. Locked after `state`.
    reaping: Mutex<Reaped>,
    /// Opens by name that are not on record yet.
    opening: AtomicUsize,
    /// Who waits for layouts or delegations of a file to come back.
    waiters: Mutex<HashMap<FileId, Vec<Waker>>>,
    /// Who waits for an answer on the backchannel of a session, by slot.
    calling: Mutex<HashMap<sessionid4, HashMap<u32, Waker>>>,
    /// What clients are to be told without anybody waiting for it.
    notices: Mutex<notices::Notices>,
    /// Layouts that are gone from the tables, but not yet known to be so by the file system: until it has fenced their
    /// holders and learned what they wrote, they count as held. Locked after `state`.
    leaving: Mutex<HashMap<FileId, Leaving>>,
    /// Where clients reached files. Locked after `state`.
    reached: Mutex<reached::Reached>,
    /// Minor version of each session: callbacks have to carry it.
    minors: Mutex<HashMap<sessionid4, u32>>,
    counters: counters::Counting,
}

/// Layouts that the file system is told of at a time.
const GONE_AT_ONCE: usize = 16;

/// Which part of the room on the disks replaced files may keep from others, as a divisor.
const LINGERING_SHARE: u64 = 4;

/// How many layouts of a file are about to be gone.
#[derive(Debug, Default)]
struct Leaving {
    all: usize,
    /// Those whose holders are being fenced.
    fencing: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: FileSystem, C: Callbacks> Server<F, C> {
    /// A server without clients; those that the file system has records of may reclaim for one lease.
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

    /// The file system served.
    pub fn fs(&self) -> &F {
        &self.fs
    }

    /// Whether this is a data server and nothing else (RFC 8881 §13.1).
    fn is_data_only(&self) -> bool {
        self.config.state.roles & EXCHGID4_FLAG_MASK_PNFS == EXCHGID4_FLAG_USE_PNFS_DS
    }

    /// The way to clients.
    pub fn callbacks(&self) -> &C {
        &self.callbacks
    }

    /// Looks at the state tables, for display; keep it short, every request waits meanwhile.
    pub fn inspect<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&lock(&self.state))
    }

    /// What has been done so far.
    pub fn counters(&self) -> Counters {
        self.counters.snapshot()
    }

    /// A connection is closed. Its requests go on; their replies are kept for the retry.
    pub fn connection_lost(&self, connection: state::ConnectionId) {
        lock(&self.state).connection_lost(connection);
    }

    /// Lets time pass: ends leases, the grace period and overdue recalls, and frees what that leaves unused. Call it
    /// about once per second.
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
            tracing::warn!(%error, "could not clean up after expired clients");
        }
        let due = lock(&self.lingering).take_due(now);
        for file in due {
            // Of an open since then, which may be over: it would keep the file for as long as the client does not think of it.
            self.recall_late(&ctx, file, None).await;
            self.orphaned(&ctx, file).await;
        }
    }

    /// Changes the state and takes what follows from it, in one hold of the lock, so that every effect is carried out by
    /// the request that caused it.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> (R, Vec<Effect>) {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        let effects = state.take_effects();
        self.note_leaving(&effects);
        (result, effects)
    }

    /// Notes the minor version that a session speaks, unless the session is gone already.
    fn note_minor(&self, session: sessionid4, minor: u32) {
        let state = lock(&self.state);
        if state.session(session).is_some() {
            lock(&self.minors).insert(session, minor);
        }
    }

    /// Notes that a client opened a file that it reached by an export.
    fn note_reached(&self, client: u64, file: FileId, place: Place) {
        let state = lock(&self.state);
        let in_use = |file| {
            state.is_open(file)
                || state.conflicting_layouts(file, Filter::ALL, None)
                || state.is_delegated(file, Use::Change, None)
        };
        lock(&self.reached).note(client, file, place, in_use);
    }

    /// The filehandle that a client knows a file by, for callbacks.
    fn handle_for(&self, client: u64, file: FileId) -> Bytes {
        let place = lock(&self.reached).place(client, file);
        self.fs.encode_handle(file, place)
    }

    /// Notes layouts that are about to be gone; called while the state is locked.
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

    /// Notes layouts that a client returned, as [`Server::note_leaving`] does; called while the state is locked.
    fn leave(&self, gone: Vec<(FileId, Iomode, ByteRange)>) -> Vec<(FileId, Iomode, ByteRange)> {
        for (file, ..) in &gone {
            lock(&self.leaving).entry(*file).or_default().all += 1;
        }
        gone
    }

    /// Tells the file system that a layout is gone, then whoever waits for that.
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

    /// Whether clients that lost layouts of a file are being fenced from the data servers: what they sent may still come.
    fn is_fencing(&self, file: FileId) -> bool {
        lock(&self.leaving).get(&file).is_some_and(|leaving| leaving.fencing > 0)
    }

    /// Carries out effects, in order, and what follows from them. The first failure to store or delete a client's record is
    /// reported, for the request must not succeed without it; other failures are logged.
    async fn settle(&self, ctx: &Ctx, effects: Vec<Effect>) -> Result<(), Status> {
        let mut outcome = Ok(());
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            let of_record = effect.is_of_record();
            // Boxed, for it is large and rare.
            let done = Box::pin(self.carry_out(ctx, effect, &mut effects)).await;
            if let Err(error) = done {
                tracing::warn!(%error, "could not follow a change of state");
                if of_record {
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }

    /// Tells the file system of layouts that are gone, of several at a time: each may have to wait for data servers.
    async fn layouts_gone(&self, ctx: &Ctx, gone: Vec<Effect>) {
        let told = stream::iter(gone).map(|effect| async move {
            let Effect::LayoutGone { client, file, iomode, range, why } = effect else { return };
            let why = match why.is_to_be_fenced(iomode) {
                false => LayoutGone::Forgotten,
                true => LayoutGone::Revoked,
            };
            if let Err(error) = self.layout_gone(ctx, client.0, file, (iomode, range), why).await {
                tracing::warn!(%error, file = file.0, "could not take a layout away");
            }
        });
        told.buffer_unordered(GONE_AT_ONCE).for_each(|()| std::future::ready(())).await;
    }

    /// Carries out one effect, and those like it that come next if they go together; what follows from it is added to `more`.
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

    /// A file has lost its last name: frees it now, or with the last CLOSE.
    async fn orphaned(&self, ctx: &Ctx, file: FileId) {
        lock(&self.orphans).insert(file);
        if let Err(error) = self.reap_closed(ctx, file).await {
            tracing::warn!(%error, file = file.0, "could not free a removed file");
        }
    }

    /// A rename has taken a file's last name: frees it a second later, with the last CLOSE, or now if it needs too much of the disks' room.
    async fn replaced(&self, ctx: &Ctx, replaced: Replaced) {
        // First, or a CLOSE frees it that comes in between.
        let over = lock(&self.lingering).add(replaced.id, replaced.bytes, replaced.room / LINGERING_SHARE, ctx.now);
        self.keep_orphan(replaced.id);
        for file in over {
            self.orphaned(ctx, file).await;
        }
    }

    /// Whether a rename took a file's last name, nobody has it open, and this client may not open it any more.
    fn is_replaced_for(&self, client: ClientId, file: FileId) -> bool {
        if !lock(&self.lingering).keeps(file) {
            return false;
        }
        let state = lock(&self.state);
        !state.is_open(file) && !state.is_own(client)
    }

    /// A file without a name has been opened again: frees it with its last CLOSE.
    fn keep_orphan(&self, file: FileId) {
        lock(&self.orphans).insert(file);
    }

    /// Whether a file is being freed. Whoever opens one is to ask once the open is on record, and not to believe what the
    /// file system says of the file until then.
    fn is_reaping(&self, file: FileId) -> bool {
        lock(&self.reaping).contains_key(&file)
    }

    /// Frees a file that was found without a name: now, or with the last CLOSE.
    pub async fn free_orphan(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        self.keep_orphan(file);
        self.reap_closed(ctx, file).await
    }

    /// Frees an orphan unless somebody has it open, or may still open it again after a restart: what is left when the grace
    /// period ends is for whoever looks through the orphans of earlier starts then.
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
                told.unwrap_or_else(|error| tracing::warn!(%error, file = file.0, "could not drop a layout"));
            }
        }
        self.fs.reap(ctx, file).await
    }
}

/// Files that are being freed, and how many times each.
type Reaped = HashMap<FileId, u32>;

/// A file that is being freed, until dropped.
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

/// An open by name on its way, until dropped.
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

/// A removal under way: files of which it was told that they may end with their names are opened by nobody until it is dropped.
struct Ending<'a, F: FileSystem, C: Callbacks> {
    server: &'a Server<F, C>,
    files: Mutex<Vec<Reaping<'a>>>,
}

impl<'a, F: FileSystem, C: Callbacks> Ending<'a, F, C> {
    fn new(server: &'a Server<F, C>) -> Self {
        Ending { server, files: Mutex::default() }
    }

    /// Whether nothing is known of a file that loses its last name: no open, no delegation, no layout, and nobody who may
    /// still come for one, or has found or made it already and is about to.
    fn may_end(&self, file: FileId) -> bool {
        // Opens come on record under this lock, and count as on their way until then.
        let state = lock(&self.server.state);
        let known = state.is_open(file) || state.has_layouts(file) || state.in_grace();
        let unknown = !known && self.server.opening.load(SeqCst) == 0;
        if unknown {
            // While nobody can open it: who does so later finds it here, or gone.
            lock(&self.files).push(Reaping::begin(&self.server.reaping, file));
        }
        unknown
    }
}

#[cfg(test)]
mod tests;
