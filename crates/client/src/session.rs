//! The session with the mgr: COMPOUNDs over slots, the same slot again after a lost connection, a new session when the
//! mgr has forgotten the old one.

mod callbacks;
mod establish;
mod lease;

use crate::compound::{Compound, Results, nfs_error};
use crate::counters::{Tally, add};
use crate::mount::Inodes;
use crate::{Error, Options, Result, Target};
use callbacks::Callbacks;
use establish::{Established, Link};
use layout::kinds::{Device, KindId};
use net::Address;
use net::rpc::{Connection, Reply};
use nfs::client::slots::{Slots, Ticket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;
use types::IodId;
use types::limits::{COMPOUND_OPS_MAX, LAYOUT_BODY_MAX};
use wire::nfs4::compound::{OpNumber, Ops, ResHeader};
use wire::nfs4::*;
use wire::rpc::Auth;
use xdr::Xdr;

/// The minor version spoken: the first with extended attributes, SEEK and DEALLOCATE.
const MINOR: u32 = 2;
/// The procedure that carries COMPOUNDs (RFC 8881 §16.2).
const COMPOUND: u32 = 1;
/// Pauses before something is tried again, doubling from the first to the last.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(1);

/// A session. Clones share it.
#[derive(Clone)]
pub(crate) struct Session {
    shared: Arc<Shared>,
}

struct Shared {
    address: Address,
    options: Options,
    tally: Arc<Tally>,
    net: net::Counters,
    auth: Auth,
    owner: client_owner4,
    link: AsyncMutex<Link>,
    slots: Mutex<Epoch>,
    /// Told when a slot becomes free or the epoch changes.
    freed: Notify,
    callbacks: Arc<Callbacks>,
    inodes: Arc<Inodes>,
    last_used: Mutex<Instant>,
}

/// The slots of the present session; each session of this client is an epoch.
struct Epoch {
    number: u64,
    slots: Slots,
    limit: u32,
}

/// What came back for a COMPOUND.
enum Answer {
    /// The SEQUENCE was accepted.
    Taken { status: nfsstat4, count: u32, ops: Ops, flags: u32 },
    /// The SEQUENCE was refused, and with it the whole.
    Refused(nfsstat4),
}

/// What to do next with a COMPOUND that was sent.
enum Next {
    Done(Results),
    /// Send it again on the same slot under the same number.
    Repeat(Error),
    /// Send it as a new request; nothing of it was done.
    Anew(Error),
    /// The session is gone.
    Dead(Error),
}

impl Session {
    /// Connects to the mgr and makes a session.
    pub(crate) async fn connect(
        target: &Target,
        options: Options,
        tally: Arc<Tally>,
        inodes: Arc<Inodes>,
    ) -> Result<Self> {
        let address = Address::Tcp { host: target.host().to_owned(), port: target.port() };
        let shared = Shared {
            auth: establish::auth(&options),
            owner: establish::owner()?,
            address,
            options,
            tally,
            net: net::Counters::default(),
            link: AsyncMutex::default(),
            slots: Mutex::new(Epoch { number: 0, slots: Slots::new(1), limit: 1 }),
            freed: Notify::new(),
            callbacks: Arc::new(Callbacks::new(inodes.clone())),
            inodes,
            last_used: Mutex::new(Instant::now()),
        };
        let session = Session { shared: Arc::new(shared) };
        session.shared.ready(session.shared.options.connect_timeout).await?;
        let lease = session.lease_time().await?;
        tokio::spawn(lease::keep(Arc::downgrade(&session.shared), lease));
        Ok(session)
    }

    /// Bytes and connections, to be shared with the connections to iods.
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
        let seconds = values.lease_time.ok_or_else(|| Error::protocol(format!("{what}: the mgr did not say")))?;
        Ok(Duration::from_secs(u64::from(seconds.max(1))))
    }

    /// Asks for the address of an iod.
    pub(crate) async fn device(&self, iod: IodId, kind: KindId) -> Result<Device> {
        let mut compound = Compound::new(format!("asking for the address of iod {iod}"));
        let args = GETDEVICEINFO4args {
            gdia_device_id: iod.0,
            gdia_layout_type: kind.number(),
            gdia_maxcount: LAYOUT_BODY_MAX as u32 + 1024,
            gdia_notify_types: Vec::new(),
        };
        compound.op(OP_GETDEVICEINFO, &args);
        let got: GETDEVICEINFO4resok = self.call(compound).await?.take(OP_GETDEVICEINFO)?;
        let bad = |e| Error::protocol(format!("the mgr sent an address of iod {iod} that makes no sense: {e}"));
        Device::decode(kind, &got.gdir_device_addr.da_addr_body).map_err(bad)
    }

    /// Asks the mgr how it and its cluster stand.
    pub(crate) async fn status(&self) -> Result<wire::admin::Status> {
        let what = format!("asking mgr {} for its status", self.shared.address);
        let (connection, _) = self.shared.ready(self.shared.options.retry_timeout).await?;
        let (program, version, procedure) = (wire::admin::PROGRAM, wire::admin::VERSION, wire::admin::STATUS);
        let timeout = self.shared.options.retry_timeout;
        let nothing = xdr::Segments::default();
        let reply = connection.call(program, version, procedure, &self.shared.auth, nothing, timeout).await;
        let mut reply = reply.map_err(|e| Error::connection(format!("{what}: {e}")))?;
        let malformed = |e| Error::protocol(format!("{what}: the reply makes no sense: {e}"));
        wire::admin::Status::decode(&mut reply.body).map_err(malformed)
    }

    /// Sends a COMPOUND and gives the results, whatever their status. What is lost on the way is sent again, and the
    /// mgr sees to it that it is done once.
    pub(crate) async fn call(&self, compound: Compound) -> Result<Results> {
        self.shared.call(compound).await
    }

    /// Ends the session and the client id, so that the mgr need not wait for the lease to expire.
    pub(crate) async fn end(&self) -> Result<()> {
        self.shared.end().await
    }
}

impl Shared {
    fn slots(&self) -> MutexGuard<'_, Epoch> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self, compound: Compound) -> Result<Results> {
        let deadline = Instant::now() + self.options.retry_timeout;
        let mut pause = *PAUSE.start();
        loop {
            let (connection, established) = self.ready(self.options.retry_timeout).await?;
            let Some(ticket) = self.slot(established.epoch).await else { continue };
            let mut slot = Slot { shared: self, epoch: established.epoch, ticket, settled: false };
            let error = match self.on_slot(&mut slot, connection, &established, &compound, deadline).await? {
                Next::Done(results) => return Ok(results),
                Next::Anew(error) | Next::Repeat(error) => error,
                Next::Dead(error) => {
                    self.forget_session(established.epoch).await;
                    error
                }
            };
            drop(slot);
            if Instant::now() + pause > deadline {
                return Err(error);
            }
            add(&self.tally.retries, 1);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(*PAUSE.end());
        }
    }

    /// Sends on one slot until there is an answer to be had there.
    async fn on_slot(
        &self,
        slot: &mut Slot<'_>,
        mut connection: Connection,
        established: &Established,
        compound: &Compound,
        deadline: Instant,
    ) -> Result<Next> {
        let mut pause = *PAUSE.start();
        loop {
            let next = match self.send(&connection, established, slot.ticket, compound).await {
                Ok(answer) => self.judge(slot, answer, compound),
                Err(error @ (net::Error::Refused(_) | net::Error::TooBig { .. } | net::Error::Malformed(_))) => {
                    slot.settle(Slots::lost);
                    return Err(Error::protocol(format!("{}: {error}", compound.what())));
                }
                Err(error) => {
                    connection.close();
                    let message = format!("{}: mgr {}: {error}", compound.what(), self.address);
                    Next::Repeat(Error::connection(message))
                }
            };
            let Next::Repeat(error) = next else { return Ok(next) };
            if Instant::now() + pause > deadline {
                slot.settle(Slots::lost);
                return Err(error);
            }
            add(&self.tally.retries, 1);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(*PAUSE.end());
            let (fresh, now) = self.ready(deadline.saturating_duration_since(Instant::now())).await?;
            if now.epoch != established.epoch {
                // The mgr has forgotten the slot, and whether it carried the request out cannot be known any more.
                slot.settle(Slots::lost);
                return Ok(Next::Anew(error));
            }
            connection = fresh;
        }
    }

    fn judge(&self, slot: &mut Slot<'_>, answer: Answer, compound: &Compound) -> Next {
        match answer {
            Answer::Taken { status, count, ops, flags } => {
                slot.settle(Slots::done);
                self.heed(flags);
                let error = nfs_error(status, compound.what());
                let waiting = matches!(status, NFS4ERR_DELAY | NFS4ERR_GRACE);
                if waiting && compound.harmless_before((count as usize).saturating_sub(2)) {
                    return Next::Anew(error);
                }
                Next::Done(Results::new(compound.what().to_owned(), ops))
            }
            Answer::Refused(status) => {
                let error = nfs_error(status, compound.what());
                match status {
                    // The mgr is still at work on it.
                    NFS4ERR_DELAY => Next::Repeat(error),
                    NFS4ERR_SEQ_MISORDERED => {
                        slot.settle(Slots::misordered);
                        if self.slots().slots.is_dead() { Next::Dead(error) } else { Next::Anew(error) }
                    }
                    // It was carried out, but the reply was not kept, as doing it again does no harm.
                    NFS4ERR_RETRY_UNCACHED_REP => {
                        slot.settle(Slots::done);
                        Next::Anew(error)
                    }
                    NFS4ERR_BADSESSION | NFS4ERR_DEADSESSION | NFS4ERR_STALE_CLIENTID | NFS4ERR_BADSLOT => {
                        Next::Dead(error)
                    }
                    _ => {
                        slot.settle(Slots::refused);
                        tracing::debug!(?status, "the mgr refused a SEQUENCE");
                        Next::Done(Results::refused(compound.what().to_owned(), status))
                    }
                }
            }
        }
    }

    /// Sends once.
    async fn send(
        &self,
        connection: &Connection,
        established: &Established,
        ticket: Ticket,
        compound: &Compound,
    ) -> std::result::Result<Answer, net::Error> {
        let highest = self.slots().slots.highest_used().unwrap_or(ticket.slot).max(ticket.slot);
        let sequence = SEQUENCE4args {
            sa_sessionid: established.session,
            sa_sequenceid: ticket.sequence,
            sa_slotid: ticket.slot,
            sa_highest_slotid: highest,
            sa_cachethis: compound.is_cached(),
        };
        let reply = self.exchange(connection, Some(&sequence), compound).await?;
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let (header, mut ops) = header(reply)?;
        let number = ops.next_number()?;
        if number != Some(OP_SEQUENCE.number()) {
            return Err(xdr::Malformed::Invalid("the first result is not that of SEQUENCE").into());
        }
        let status = nfsstat4::decode(ops.input())?;
        if status != NFS4_OK {
            return Ok(Answer::Refused(status));
        }
        let got: SEQUENCE4resok = ops.body()?;
        let mut epoch = self.slots();
        if epoch.number == established.epoch {
            let limit = epoch.limit;
            epoch.slots.grant(got.sr_highest_slotid, got.sr_target_highest_slotid, limit);
        }
        drop(epoch);
        self.freed.notify_waiters();
        Ok(Answer::Taken { status: header.status, count: header.numres, ops, flags: got.sr_status_flags })
    }

    async fn exchange(
        &self,
        connection: &Connection,
        sequence: Option<&SEQUENCE4args>,
        compound: &Compound,
    ) -> std::result::Result<Reply, net::Error> {
        debug_assert!(compound.numbers().count() < COMPOUND_OPS_MAX as usize);
        self.tally.compound(compound.numbers().map(OpNumber::number));
        let body = compound.encode(sequence, MINOR);
        connection.call(NFS4_PROGRAM, NFS_V4, COMPOUND, &self.auth, body, self.options.retry_timeout).await
    }

    /// A free slot of this epoch, `None` when it is over.
    async fn slot(&self, epoch: u64) -> Option<Ticket> {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            {
                let mut now = self.slots();
                if now.number != epoch {
                    return None;
                }
                if let Some(ticket) = now.slots.acquire() {
                    return Some(ticket);
                }
            }
            freed.await;
        }
    }
}

/// A slot in use. One that is dropped before its request was answered is given up as lost.
struct Slot<'a> {
    shared: &'a Shared,
    epoch: u64,
    ticket: Ticket,
    settled: bool,
}

impl Slot<'_> {
    fn settle(&mut self, how: fn(&mut Slots, Ticket)) {
        if self.settled {
            return;
        }
        self.settled = true;
        let mut epoch = self.shared.slots();
        if epoch.number == self.epoch {
            how(&mut epoch.slots, self.ticket);
        }
        drop(epoch);
        self.shared.freed.notify_waiters();
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.settle(Slots::lost);
    }
}

/// The header of a reply and the results behind it.
fn header(reply: Reply) -> std::result::Result<(ResHeader, Ops), xdr::Malformed> {
    let mut body = reply.body;
    let header = ResHeader::decode(&mut body)?;
    let ops = Ops::new(header.numres, body);
    Ok((header, ops))
}

/// A session that may be over.
type WeakShared = Weak<Shared>;
