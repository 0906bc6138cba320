//! The NFSv4.1 session with the mgr: sends COMPOUNDs in slots, sends them again after a lost connection, and replaces a
//! lost session.

mod callbacks;
mod durability_barrier;
mod establish;
mod held_state;
mod lease;
mod revoked;

use crate::compound::{Compound, Results, Sealed, nfs_error};
use crate::counters::{Tally, add};
use crate::devices::DeviceSource;
use crate::lock_order::{AsyncMutex, Rank};
use crate::long_waits::LongWaits;
use crate::mgr_load::MgrLoad;
use crate::{Error, Options, Result, Target};
use async_trait::async_trait;
use bytes::Bytes;
use callbacks::Callbacks;
use establish::Link;
pub(crate) use establish::auth_of;
pub(crate) use held_state::{HeldState, HeldStateid, NewSession, OpenId};
use layout::kinds::KindId;
use net::Address;
use net::rpc::Connection;
use nfs::client::compound::Results as RawResults;
use nfs::client::recovery;
use nfs::client::session::{Outcome, Session as Table};
use nfs::client::slots::Ticket;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::limits::LAYOUT_BODY_MAX;
use types::{IodId, Status, Timestamp};
use wire::nfs4::compound::OpNumber;
use wire::nfs4::*;
use wire::rpc::Auth;
use xdr::{Segments, Xdr};

/// The minor version of NFSv4 that the client uses (NFSv4.2), which is the first with SEEK and DEALLOCATE and allows
/// extended attributes.
const MINOR: u32 = 2;
/// The RPC procedure for COMPOUNDs (RFC 8881 §16.2).
const COMPOUND: u32 = 1;
/// How long the client treats the mgr as reachable after a reply.
const LATELY: Duration = Duration::from_secs(1);

/// A session with the mgr; clones share it.
#[derive(Clone)]
pub(crate) struct Session {
    shared: Arc<Shared>,
}

struct Shared {
    address: Address,
    options: Options,
    tally: Arc<Tally>,
    load: Arc<MgrLoad>,
    net: net::Counters,
    auth: Auth,
    owner: client_owner4,
    link: AsyncMutex<Link>,
    table: Arc<Mutex<Epoch>>,
    /// Notified when a slot of the session becomes free, or when a new session replaces the current session.
    freed: Notify,
    callbacks: Arc<Callbacks>,
    held: Arc<dyn HeldState>,
    /// Whether a task is searching for state that the mgr has revoked.
    testing: AtomicBool,
    settling: durability_barrier::DurabilityBarrier,
    waits: LongWaits,
}

/// The current session, and its sequence number among all sessions of this client (the epoch).
#[derive(Default)]
struct Epoch {
    number: u64,
    session: Option<Table>,
    /// The lease time, once the mgr has reported it.
    lease: Option<Duration>,
}

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> Timestamp {
    Timestamp::from(net::clock::now())
}

/// What the client does with a COMPOUND after it has sent the COMPOUND, or failed to send it.
enum Next {
    Done(Results),
    /// Send the COMPOUND again in the same slot with the same sequence number.
    Repeat(Error),
    /// Send the COMPOUND again as a new request. This is safe, because the mgr has executed no operation of it, or only
    /// read-only operations.
    Anew(Error),
    /// The mgr has restarted and is in its grace period: send the request again, later, as a new request.
    Grace(Error),
    /// Replace the session, which the mgr no longer knows.
    Dead(Error),
}

impl Session {
    /// Returns the random verifier (`co_verifier` of EXCHANGE_ID), which distinguishes this client from all other
    /// clients.
    pub(crate) fn verifier(&self) -> u64 {
        u64::from_be_bytes(self.shared.owner.co_verifier)
    }

    /// Connects to the mgr and creates a session. The session calls `held` when the mgr recalls or revokes state that
    /// the mgr has granted.
    pub(crate) async fn connect(
        target: &Target,
        options: Options,
        tally: Arc<Tally>,
        held: Arc<dyn HeldState>,
    ) -> Result<Self> {
        let address = Address::Tcp { host: target.host().to_owned(), port: target.port() };
        let table = Arc::new(Mutex::new(Epoch::default()));
        let shared = Shared {
            auth: establish::auth(&options),
            owner: establish::owner(&options)?,
            waits: LongWaits::of(&address),
            address,
            options,
            tally,
            load: Arc::default(),
            net: net::Counters::default(),
            link: AsyncMutex::new(Rank::SessionLink, Link::default()),
            callbacks: Arc::new(Callbacks::new(held.clone(), table.clone())),
            table,
            freed: Notify::new(),
            held,
            testing: AtomicBool::new(false),
            settling: Default::default(),
        };
        let session = Session { shared: Arc::new(shared) };
        let (made, patience) = (&session.shared, session.shared.options.connect_timeout);
        made.waits.watch(Box::pin(made.ready(patience)), patience, || "the mgr".to_owned()).await?;
        let lease = session.lease_time().await?;
        session.shared.set_lease(lease);
        net::task::spawn(lease::keep(Arc::downgrade(&session.shared)));
        Ok(session)
    }

    /// Returns the queue delay that the mgr last reported.
    pub(crate) fn load(&self) -> &MgrLoad {
        &self.shared.load
    }

    /// Returns the counters of bytes and connections. The connections to the mgr and to iods share these counters.
    pub(crate) fn net_counters(&self) -> net::Counters {
        self.shared.net.clone()
    }

    async fn lease_time(&self) -> Result<Duration> {
        let what = "asking for the lease time";
        let mut compound = Compound::new(what);
        let wanted = nfs::attrs::Mask::of(&[FATTR4_LEASE_TIME]);
        compound.void(OP_PUTROOTFH).op(OP_GETATTR, &GETATTR4args { attr_request: wanted.to_bitmap() });
        let mut results = self.call(compound).await?;
        results.done(&[OP_PUTROOTFH])?;
        let got: GETATTR4resok = results.take(OP_GETATTR)?;
        let values = nfs::attrs::decode(&got.obj_attributes).map_err(|e| Error::protocol(format!("{what}: {e}")))?;
        let seconds = values
            .lease_time
            .ok_or_else(|| Error::protocol(format!("{what}: the mgr's answer lacks the attribute")))?;
        Ok(Duration::from_secs(u64::from(seconds.max(1))))
    }

    /// Requests the status of the mgr and of its cluster.
    pub(crate) async fn status(&self) -> Result<wire::admin::Status> {
        let what = format!("asking mgr {} for its status", self.shared.address);
        let (connection, _) = self.shared.ready(self.shared.options.retry_timeout).await?;
        let (program, version, procedure) = (wire::admin::PROGRAM, wire::admin::VERSION, wire::admin::STATUS);
        let timeout = self.shared.options.retry_timeout;
        let nothing = Segments::default();
        let reply = connection.call(program, version, procedure, &self.shared.auth, nothing, timeout).await;
        let mut reply = reply.map_err(|e| Error::connection(format!("{what}: {e}")))?;
        let malformed = |e| Error::protocol(format!("{what}: the mgr sent a malformed reply: {e}"));
        wire::admin::Status::decode(&mut reply.body).map_err(malformed)
    }

    /// Sends a COMPOUND and returns its results, whatever their status. If the request or reply is lost, sends the
    /// COMPOUND again; the reply cache of the mgr ensures that the mgr executes the COMPOUND only once.
    pub(crate) async fn call(&self, compound: Compound) -> Result<Results> {
        // Box the future, so that operations without a request to the mgr, such as most reads and writes, need no
        // memory for it.
        let shared = &self.shared;
        let what = compound.what();
        tracing::debug!(mgr = %shared.address, what, "request");
        let patience = shared.options.retry_timeout;
        let (request, server) = (Box::pin(shared.call(compound)), || "the mgr".to_owned());
        shared.waits.watch(request, patience, server).await
    }

    /// Checks that the mgr is reachable. Returns at once if the mgr has replied recently. Otherwise sends a request and
    /// waits for the reply.
    ///
    /// # Errors
    /// The mgr is unreachable.
    pub(crate) async fn answers(&self) -> Result<()> {
        let lately =
            lock(&self.shared.table).session.as_ref().is_some_and(|session| session.is_heard_of(LATELY, now()));
        if !lately {
            self.call(Compound::new("checking whether the mgr answers")).await?;
        }
        Ok(())
    }

    /// Ensures that the lease is valid. If the lease may have expired, sends a request to the mgr and waits for the
    /// reply.
    pub(crate) async fn ensure_lease(&self) -> Result<()> {
        let over = lock(&self.shared.table).session.as_ref().is_some_and(|session| session.lease_over(now()));
        if over {
            self.call(Compound::new("renewing the lease")).await?;
        }
        Ok(())
    }

    /// Returns the lease time, or a default before the mgr has reported it.
    pub(crate) fn lease(&self) -> Duration {
        self.shared.lease()
    }

    /// Returns the epoch: the sequence number of the current session among all sessions of this client.
    pub(crate) fn epoch(&self) -> u64 {
        lock(&self.shared.table).number
    }

    /// Returns the sequence number of the current session ([`Session::epoch`]) if the mgr has recently received a
    /// request of this client; otherwise `None`. Only after a recent request is it certain that the mgr recalls a
    /// directory delegation of this client before another client changes names in the directory.
    pub(crate) fn epoch_of_names(&self) -> Option<u64> {
        let table = lock(&self.shared.table);
        let session = table.session.as_ref()?;
        session.is_heard_of(nfs::name_delegations::RELIED_ON, now()).then_some(table.number)
    }

    /// Returns the client id of the current session.
    pub(crate) fn clientid(&self) -> Option<u64> {
        lock(&self.shared.table).session.as_ref().map(Table::clientid)
    }

    /// Acknowledges to the mgr that `stateid` is no longer valid.
    pub(crate) async fn free_stateid(&self, stateid: stateid4) -> Result<()> {
        self.shared.free_stateid(stateid).await
    }

    /// Ends the session and the client id, so that the mgr can release the state of this client before the lease
    /// expires.
    pub(crate) async fn end(&self) -> Result<()> {
        self.shared.end().await
    }
}

#[async_trait]
impl DeviceSource for Session {
    async fn address(&self, kind: KindId, device: [u8; 16]) -> Result<Bytes> {
        let mut compound = Compound::new(format!("asking for the address of {} device {}", kind.name(), IodId(device)));
        let args = GETDEVICEINFO4args {
            gdia_device_id: device,
            gdia_layout_type: kind.number(),
            gdia_maxcount: LAYOUT_BODY_MAX as u32 + 1024,
            gdia_notify_types: Vec::new(),
        };
        compound.op(OP_GETDEVICEINFO, &args);
        let got: GETDEVICEINFO4resok = self.call(compound).await?.take(OP_GETDEVICEINFO)?;
        Ok(got.gdir_device_addr.da_addr_body)
    }

    fn lease(&self) -> Duration {
        self.shared.lease()
    }
}

impl Shared {
    async fn call(self: &Arc<Self>, compound: Compound) -> Result<Results> {
        let compound = compound.seal();
        let begun = Instant::now();
        let mut deadline = begun + self.options.retry_timeout;
        for attempt in 0.. {
            let (connection, epoch) = self.ready(self.options.retry_timeout).await?;
            let Some(ticket) = self.slot(epoch).await else {
                self.forget_session(epoch).await;
                continue;
            };
            let mut slot = Slot { shared: self, epoch, ticket, sent: false, first: None, settled: false };
            let error = match self.on_slot(&mut slot, connection, &compound, deadline).await? {
                Next::Done(results) => return Ok(results),
                Next::Anew(error) | Next::Repeat(error) => error,
                Next::Grace(error) => {
                    // The mgr is reachable. In its grace period, the mgr waits for all earlier clients, some of which
                    // may never return. So extend the deadline of the request by a lease time.
                    deadline = begun + self.options.retry_timeout + self.lease();
                    error
                }
                Next::Dead(error) => {
                    self.forget_session(epoch).await;
                    error
                }
            };
            drop(slot);
            self.pause(attempt, deadline).await.map_err(|()| error)?;
        }
        unreachable!("the loop ends by its deadline")
    }

    /// Waits before the next attempt to send a request. Fails if the wait would end after the deadline.
    async fn pause(&self, attempt: u32, deadline: Instant) -> std::result::Result<(), ()> {
        let pause = recovery::pause(attempt).min(Duration::from_secs(1));
        if Instant::now() + pause > deadline {
            return Err(());
        }
        add(&self.tally.retries, 1);
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Sends a request in one slot, repeatedly if necessary, until the mgr replies or no longer knows the session of
    /// the slot.
    async fn on_slot(
        self: &Arc<Self>,
        slot: &mut Slot<'_>,
        mut connection: Connection,
        compound: &Sealed,
        deadline: Instant,
    ) -> Result<Next> {
        for attempt in 0.. {
            let resent = slot.sent;
            let next = match self.send(&connection, slot, compound).await {
                Ok(outcome) => self.judge(slot, outcome, compound)?,
                Err(error @ (net::Error::Refused(_) | net::Error::TooBig { .. } | net::Error::Malformed(_))) => {
                    return Err(Error::protocol(format!("{}: {error}", compound.what)));
                }
                Err(error) => {
                    connection.close();
                    let message = format!("{}: mgr {}: {error}", compound.what, self.address);
                    Next::Repeat(Error::connection(message))
                }
            };
            let error = match next {
                Next::Repeat(error) => error,
                Next::Dead(error)
                    if recovery::after_session_lost(!resent, compound.once) == recovery::Redo::Unknown =>
                {
                    self.forget_session(slot.epoch).await;
                    return Err(unknown(compound, &error));
                }
                next => return Ok(next),
            };
            // If the client gives up a non-idempotent request that it has sent, the outcome is in doubt: the mgr may
            // have executed the request.
            let given_up = |error| if compound.once && slot.sent { unknown(compound, &error) } else { error };
            if self.pause(attempt, deadline).await.is_err() {
                return Err(given_up(error));
            }
            let again = self.ready(deadline.saturating_duration_since(Instant::now())).await;
            let (fresh, epoch) = again.map_err(given_up)?;
            if epoch != slot.epoch {
                // The mgr no longer knows this session, and has dropped its reply cache. So the client cannot learn
                // whether the mgr executed the request.
                return if compound.once { Err(unknown(compound, &error)) } else { Ok(Next::Anew(error)) };
            }
            connection = fresh;
        }
        unreachable!("the loop ends by its deadline")
    }

    fn judge(self: &Arc<Self>, slot: &mut Slot<'_>, outcome: Outcome, compound: &Sealed) -> Result<Next> {
        let what = &compound.what;
        let because = |why: &str| Error::status(Status::Delay, format!("{what}: {why}"));
        slot.settled = !matches!(outcome, Outcome::Wait | Outcome::Bind);
        Ok(match outcome {
            Outcome::Done { results, status, flags } => {
                self.heed(slot.epoch, flags);
                let failed_at = results.left().saturating_sub(1) as usize;
                let waiting = matches!(status, NFS4ERR_DELAY | NFS4ERR_GRACE);
                if waiting && compound.harmless_before(failed_at) {
                    let error = nfs_error(status, what);
                    return Ok(if status == NFS4ERR_GRACE { Next::Grace(error) } else { Next::Anew(error) });
                }
                Next::Done(Results::new(compound, RawResults::new(results), &self.load))
            }
            Outcome::Wait => Next::Repeat(because("the mgr is still executing the request")),
            Outcome::Bind => Next::Repeat(because("the connection is not bound to the session")),
            Outcome::Again => Next::Anew(because("the slot has another sequence number at the mgr")),
            // The mgr has received the request before, but has not cached the reply. So the client does not know
            // whether the request succeeded.
            Outcome::Executed if compound.once => return Err(unknown(compound, &because("the reply was lost"))),
            Outcome::Executed => Next::Anew(because("the reply was lost")),
            Outcome::Refused(status) => Next::Done(Results::refused(compound, status)),
            Outcome::SessionLost => Next::Dead(Error::connection(format!("{what}: the mgr has ended the session"))),
            Outcome::Malformed(e) => {
                return Err(Error::protocol(format!("{what}: the mgr sent a malformed reply: {e}")));
            }
        })
    }

    /// Sends a COMPOUND in its slot, without retries.
    async fn send(
        &self,
        connection: &Connection,
        slot: &mut Slot<'_>,
        compound: &Sealed,
    ) -> std::result::Result<Outcome, net::Error> {
        let gone = || Err(net::Error::Broken("the session was replaced".into()));
        let sequence = {
            let table = lock(&self.table);
            match table.session.as_ref().filter(|_| table.number == slot.epoch) {
                Some(session) => session.sequence(slot.ticket, compound.request.is_once()),
                None => return gone(),
            }
        };
        let soon = self.sends_soon(compound.request.changes());
        let body = compound.request.encode(&sequence, MINOR, soon);
        self.tally.compound(compound.request.numbers().iter().map(|op| op.number()));
        tracing::trace!(client = %self.options.name, operations = ?compound.request.numbers(), "{}", compound.what);
        // For a repeated request, record the time of the first transmission. A reply from the reply cache shows only
        // that the mgr received the first transmission.
        let sent = *slot.first.get_or_insert_with(now);
        let timeout = self.attempt_timeout();
        slot.sent = true;
        let auth = compound.caller.as_deref().unwrap_or(&self.auth);
        let reply = connection.call(NFS4_PROGRAM, NFS_V4, COMPOUND, auth, body, timeout).await;
        if soon {
            self.answered_soon();
        }
        let reply = reply?;
        let outcome = {
            let mut table = lock(&self.table);
            let same = table.number == slot.epoch;
            match table.session.as_mut().filter(|_| same) {
                Some(session) => session.replied(slot.ticket, reply.body.rest(), sent),
                None => return gone(),
            }
        };
        self.freed.notify_waiters();
        Ok(outcome)
    }

    /// Waits for a free slot in the session with the sequence number `epoch`. Returns `None` if a new session has
    /// replaced this session, or if the client has abandoned a request in every slot, so that no slot is usable.
    async fn slot(&self, epoch: u64) -> Option<Ticket> {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            {
                let mut table = lock(&self.table);
                let same = table.number == epoch;
                let session = table.session.as_mut().filter(|_| same)?;
                if let Some(ticket) = session.acquire() {
                    return Some(ticket);
                }
                if session.slots().is_dead() {
                    return None;
                }
            }
            freed.await;
        }
    }
}

/// Returns the "in doubt" error: the mgr may have executed this non-idempotent request.
fn unknown(compound: &Sealed, error: &Error) -> Error {
    let hint = "the mgr may have executed the request: check the result, and repeat it if necessary";
    Error::connection(format!("{error}; {hint} ({})", compound.what)).with_doubt()
}

/// A slot in use. If this value is dropped before the mgr has replied, the session never uses the slot again.
struct Slot<'a> {
    shared: &'a Shared,
    epoch: u64,
    ticket: Ticket,
    sent: bool,
    /// When the client first sent the request.
    first: Option<Timestamp>,
    settled: bool,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        {
            let mut table = lock(&self.shared.table);
            let same = table.number == self.epoch;
            if let Some(session) = table.session.as_mut().filter(|_| same) {
                session.give_up(self.ticket, self.sent);
            }
        }
        self.shared.freed.notify_waiters();
    }
}
