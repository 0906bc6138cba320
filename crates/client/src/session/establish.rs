//! Establishing and recovering a session with the mgr: connection, client id, session, and the order of the reclaim
//! after a restart of the mgr.

use super::held_state::{NewSession, OpenId};
use super::{COMPOUND, MINOR, Shared, lock, now};
use crate::compound::{Compound, Failed, nfs_error};
use crate::counters::add;
use crate::{Error, Options, Result};
use bytes::Bytes;
use net::Address;
use net::rpc::{Connection, Limits, Refusal};
use nfs::client::recovery::{self, Continuity, continuity};
use nfs::client::session::{self, Identity, Session, SessionWants};
use std::time::Duration;
use tokio::time::Instant;
use types::limits::SLOTS_MAX;
use types::{Cred, Status};
use wire::admin::{self, LocalSocketArgs, LocalSocketReply};
use wire::nfs4::compound::{OpNumber, Ops, OpsWriter, ResHeader};
use wire::nfs4::*;
use wire::rpc::{AUTH_REJECTEDCRED, AUTH_TOOWEAK, Auth, AuthSys};
use xdr::Xdr;

/// The lease time that the client assumes before the mgr has reported it.
const LEASE_UNKNOWN: Duration = Duration::from_secs(15);

/// How many times the client tries to end a session. The client tries again only after a connection failure.
const END_TRIES: usize = 3;

/// The parts of a session that the client has established: the connection, the client id, and the session itself.
#[derive(Default)]
pub(super) struct Link {
    connection: Option<Connection>,
    /// The epoch of the session; `None` if the client has no session, or if the mgr no longer knows the session.
    epoch: Option<u64>,
    /// The client id that the mgr issued, and the sequence number of the next CREATE_SESSION.
    identity: Option<Identity>,
    /// The part of the reclaim of opens and locks that is still to be done. If the session is lost before the reclaim
    /// is complete, the next session continues the reclaim.
    pending_reclaim: PendingReclaim,
    epochs: u64,
    ever: bool,
}

/// The part of the reclaim of opens and locks that the client still has to do.
#[derive(Default)]
enum PendingReclaim {
    /// The client has nothing left to reclaim.
    #[default]
    Nothing,
    /// The reclaim of opens and locks has not begun, or was interrupted.
    Everything,
    /// The client has tried to reclaim all opens and locks, and the mgr refused the opens in this list. The client has
    /// not sent RECLAIM_COMPLETE yet.
    End(Vec<OpenId>),
}

/// Returns the RPC credential of requests that the client sends for itself.
pub(super) fn auth(options: &Options) -> Auth {
    auth_of(options, &options.cred)
}

/// Returns the RPC credential of requests that the client sends for a user.
pub(crate) fn auth_of(options: &Options, cred: &Cred) -> Auth {
    Auth::Sys(AuthSys::new(cred, options.name.split(' ').next().unwrap_or_default()))
}

/// Returns the client owner. By default, each process has a unique owner. With a fixed identity, successive processes
/// have the same owner and different verifiers.
pub(super) fn owner(options: &Options) -> Result<client_owner4> {
    let mut random = [0u8; 24];
    getrandom::fill(&mut random).map_err(|e| Error::usage(format!("the system provides no random numbers: {e}")))?;
    let mut co_verifier = [0; 8];
    co_verifier.copy_from_slice(&random[16..]);
    let mut name = b"weir ".to_vec();
    match &options.identity {
        Some(identity) => name.extend_from_slice(identity),
        None => {
            name.extend_from_slice(format!("{} ", options.name).as_bytes());
            name.extend_from_slice(&random[..16]);
        }
    }
    Ok(client_owner4 { co_verifier, co_ownerid: Bytes::from(name) })
}

impl Shared {
    /// Returns a connection to the mgr and the epoch of the session. Establishes both if necessary, and retries for at
    /// most `patience`.
    pub(super) async fn ready(&self, patience: Duration) -> Result<(Connection, u64)> {
        let deadline = Instant::now() + patience;
        let mut link = self.link.lock().await;
        for attempt in 0.. {
            if let (Some(connection), Some(epoch)) = (&link.connection, link.epoch)
                && !connection.is_closed()
            {
                return Ok((connection.clone(), epoch));
            }
            // Box the future, which is large and rarely needed. So most requests need no memory for it.
            let error = match Box::pin(self.establish(&mut link)).await {
                Ok(()) => continue,
                // If the client has never connected to the mgr, do not retry: most likely the address is wrong.
                Err(error) if error.kind() == crate::ErrorKind::Connection && link.ever => error,
                Err(error) if error.is(types::Status::Delay) => error,
                Err(error) => return Err(error),
            };
            self.pause(attempt, deadline).await.map_err(|()| error)?;
        }
        unreachable!("the loop ends by its deadline")
    }

    /// Drops the session of this epoch, because the mgr no longer knows the session.
    pub(super) async fn forget_session(&self, epoch: u64) {
        let mut link = self.link.lock().await;
        if link.epoch == Some(epoch) {
            link.epoch = None;
        }
    }

    /// Drops the session with the sequence number `epoch` like [`Shared::forget_session`]. Also drops the client id,
    /// because the mgr has lost the opens of this client.
    pub(super) async fn forget_state(&self, epoch: u64) {
        let mut link = self.link.lock().await;
        if link.epoch == Some(epoch) {
            (link.epoch, link.identity) = (None, None);
        }
    }

    /// Closes the connection. The next request connects again, and binds the new connection for callbacks.
    pub(super) async fn hang_up(&self) {
        if let Some(connection) = self.link.lock().await.connection.take() {
            connection.close();
        }
    }

    /// Returns the lease time, or a default before the mgr has reported it.
    pub(super) fn lease(&self) -> Duration {
        lock(&self.table).lease.unwrap_or(LEASE_UNKNOWN)
    }

    /// Records the lease time that the mgr reported.
    pub(super) fn set_lease(&self, lease: Duration) {
        let mut table = lock(&self.table);
        table.lease = Some(lease);
        if let Some(session) = &mut table.session {
            session.set_lease(lease);
        }
    }

    /// Returns how long the client waits for a reply before it sends the request again over a new connection. If the
    /// mgr's host has lost power, the client may notice the restart of the mgr only by sending again. After the
    /// restart, the mgr accepts reclaims of locks only for one lease time. So the client waits at most a third of the
    /// lease time.
    pub(super) fn attempt_timeout(&self) -> Duration {
        let usual = self.options.attempt_timeout();
        lock(&self.table).lease.map_or(usual, |lease| usual.min(lease / 3))
    }

    async fn establish(&self, link: &mut Link) -> Result<()> {
        let connection = self.connected(link).await?;
        if link.epoch.is_some() {
            let session = lock(&self.table).session.as_ref().map(Session::id);
            if let Some(session) = session
                && self.bind(&connection, session).await?
            {
                return Ok(());
            }
            link.epoch = None;
        }
        let mut identity = self.exchange_id(&connection).await?;
        let continuity = match &link.identity {
            Some(before) => continuity(before, &identity),
            None => Continuity::Lost,
        };
        match (continuity, &link.identity) {
            (Continuity::Elsewhere, _) => {
                let message = format!("another file system than before answers at {}; mount again", self.address);
                return Err(Error::protocol(message));
            }
            // If the mgr still knows this client id, the next CREATE_SESSION must continue the client id's sequence
            // numbers (RFC 8881 §18.36.4).
            (Continuity::Kept, Some(before)) => identity.sequence = before.sequence,
            _ => {}
        }
        // Begin a reclaim of all state only if the mgr has lost the state of this client. Otherwise keep
        // `pending_reclaim`: if the previous session was lost during a reclaim, this session continues that reclaim.
        if continuity == Continuity::Lost {
            link.pending_reclaim = PendingReclaim::Everything;
        }
        // If the reply is lost, CREATE_SESSION with the same sequence number returns the same session.
        link.identity = Some(identity.clone());
        let present = || lock(&self.table).session.as_ref().map(Session::id);
        let replaced = present().filter(|_| continuity == Continuity::Kept);
        let epoch = self.create_session(link, &connection, identity).await?;
        if let Some(replaced) = replaced {
            let by = present();
            self.let_go(&connection, replaced, by).await?;
        }
        let session = NewSession { shared: self, connection: &connection, epoch };
        if matches!(link.pending_reclaim, PendingReclaim::Everything) {
            link.pending_reclaim = PendingReclaim::End(self.held.reclaim(&session).await?);
        }
        if let PendingReclaim::End(refused) = &link.pending_reclaim {
            self.end_reclaim(&session, refused).await?;
            link.pending_reclaim = PendingReclaim::Nothing;
        }
        link.epoch = Some(epoch);
        Ok(())
    }

    /// Destroys a session that a newer session has replaced. The mgr refuses DESTROY_CLIENTID, which this client sends
    /// when it unmounts, as long as the client id has such a session.
    async fn let_go(&self, connection: &Connection, old: sessionid4, new: Option<sessionid4>) -> Result<()> {
        if new == Some(old) {
            return Ok(());
        }
        let args = DESTROY_SESSION4args { dsa_sessionid: old };
        let gone = self.lone::<wire::native::Nothing>(connection, OP_DESTROY_SESSION, &args, "replacing a session");
        // Usually the mgr has already destroyed the old session, so ignore the status.
        gone.await.map(drop)
    }

    /// Returns the connection to the mgr. Connects to the mgr if the client has no open connection.
    async fn connected(&self, link: &mut Link) -> Result<Connection> {
        let connection = match link.connection.take().filter(|c| !c.is_closed()) {
            Some(connection) => connection,
            None => self.dial(link).await?,
        };
        link.connection = Some(connection.clone());
        Ok(connection)
    }

    async fn dial(&self, link: &mut Link) -> Result<Connection> {
        let (net, limits) = (self.net.clone(), Limits { reserved_port: true, ..Limits::default() });
        let (callbacks, timeout) = (self.callbacks.clone(), self.options.connect_timeout);
        let connected = match &self.options.connector {
            Some(connector) => connector.connect(callbacks, limits, net),
            None => Connection::connect(&self.address, callbacks, limits, net, timeout).await,
        };
        let connection = connected.map_err(|e| {
            Error::connection(format!(
                "{e}; is the mgr running there? (`weir status` asks one, `weir up` starts a cluster)"
            ))
        })?;
        let connection = self.nearer(&connection).await.unwrap_or(connection);
        tracing::info!(mgr = %self.address, way = %connection.peer(), "connected to an mgr");
        if link.ever {
            add(&self.tally.reconnects, 1);
        }
        link.ever = true;
        Ok(connection)
    }

    /// Connects to the Unix socket of the mgr at the other end of `connection`. Returns `None` if the mgr runs on
    /// another machine or offers no socket to this client. A Unix socket costs less per message than TCP.
    async fn nearer(&self, connection: &Connection) -> Option<Connection> {
        let from = connection.local()?.to_string();
        let told = self.near(connection, from).await?;
        let local = told.local?;
        let boot_id = local.host.trim().parse::<types::Fsid>().ok()?;
        if net::address::boot_id() != Some(boot_id.0) {
            return None;
        }
        let address = Address::parse(&local.path, None).ok().filter(|address| matches!(address, Address::Unix(_)))?;
        let (net, limits) = (self.net.clone(), Limits::default());
        let connected =
            Connection::connect_sent(&address, self.callbacks.clone(), limits, net, self.options.connect_timeout).await;
        // A process other than the mgr could own the path of the Unix socket. So check that the peer reports the same
        // random run id that the mgr reported over TCP.
        let near = connected
            .inspect_err(|e| tracing::debug!("the Unix socket of the mgr is unusable, so the client keeps TCP: {e}"))
            .ok()?;
        let run = self.near(&near, String::new()).await?.run;
        (run == told.run).then_some(near)
    }

    async fn near(&self, connection: &Connection, from: String) -> Option<LocalSocketReply> {
        let (body, timeout) = (LocalSocketArgs { from }.to_bytes().into(), self.attempt_timeout());
        let sent =
            connection.call(admin::PROGRAM, admin::VERSION, admin::LOCAL_SOCKET, &self.auth, body, timeout).await;
        // An mgr that does not know the procedure LOCAL_SOCKET offers no Unix socket, so the client keeps TCP.
        let mut reply = sent
            .inspect_err(|e| tracing::debug!("the mgr reports no Unix socket, so the client keeps TCP: {e}"))
            .ok()?;
        LocalSocketReply::decode(&mut reply.body).ok()
    }

    /// Sends a COMPOUND with one operation, which needs no session. Returns the result of the operation.
    async fn lone<T: Xdr>(
        &self,
        connection: &Connection,
        number: nfs_opnum4,
        args: &impl Xdr,
        what: &str,
    ) -> Result<std::result::Result<T, nfsstat4>> {
        let mut out = OpsWriter::new();
        out.op(number, args);
        self.tally.compound([number.number()].into_iter());
        let (body, timeout) = (out.into_args(Bytes::new(), MINOR), self.attempt_timeout());
        let sent = connection.call(NFS4_PROGRAM, NFS_V4, COMPOUND, &self.auth, body, timeout).await;
        let reply = match sent {
            Ok(reply) => reply,
            Err(net::Error::Refused(Refusal::Auth(AUTH_REJECTEDCRED))) => {
                let why =
                    "no export allows this machine; add the machine to an [[export]] in the configuration of the mgr";
                return Err(Error::status(Status::Access, format!("mgr {}: {why}", self.address)));
            }
            Err(net::Error::Refused(Refusal::Auth(AUTH_TOOWEAK))) => {
                // The mgr accepts requests from this machine only from source ports below 1024. Close the connection,
                // because the next connection may get such a port.
                connection.close();
                if rustix::process::geteuid().is_root() {
                    let why = "it accepts requests from this machine only from ports below 1024, and all of them are in use here; end a program that uses one";
                    return Err(Error::connection(format!("mgr {}: {why}", self.address)));
                }
                let why = "it accepts requests from this machine only from ports below 1024, which only root may use: run this as root, on a mount, or on the \
                           mgr's machine, or set \"privileged_ports = false\" for the export";
                return Err(Error::status(Status::Access, format!("mgr {}: {why}", self.address)));
            }
            Err(e @ (net::Error::Refused(_) | net::Error::Malformed(_))) => {
                return Err(Error::protocol(format!("{what}: {} does not speak NFSv4: {e}", self.address)));
            }
            Err(e) => {
                connection.close();
                return Err(Error::connection(format!("{what}: mgr {}: {e}", self.address)));
            }
        };
        let malformed = |e| Error::protocol(format!("{what}: the mgr sent a malformed reply: {e}"));
        let mut input = reply.body;
        let head = ResHeader::decode(&mut input).map_err(malformed)?;
        let mut ops = Ops::new(head.numres, input);
        if head.status == NFS4ERR_MINOR_VERS_MISMATCH {
            return Err(Error::protocol(format!("{what}: {} does not speak NFSv4.2", self.address)));
        }
        if ops.next_number().map_err(malformed)? != Some(number.number()) {
            return Ok(Err(head.status));
        }
        match nfsstat4::decode(ops.input()).map_err(malformed)? {
            NFS4_OK => ops.body().map(Ok).map_err(malformed),
            status => Ok(Err(status)),
        }
    }

    async fn exchange_id(&self, connection: &Connection) -> Result<Identity> {
        let what = "registering this client";
        let client_owner4 { co_verifier, co_ownerid } = self.owner.clone();
        let args = session::exchange_id_args(co_ownerid, co_verifier, EXCHGID4_FLAG_USE_PNFS_MDS);
        let got: std::result::Result<EXCHANGE_ID4resok, _> = self.lone(connection, OP_EXCHANGE_ID, &args, what).await?;
        got.map(|got| Identity::from(&got)).map_err(|status| match recovery::exchange_id_failed(status) {
            recovery::Next::Wait | recovery::Next::StartOver => Error::status(Status::Delay, what),
            recovery::Next::GiveUp => nfs_error(status, what),
        })
    }

    async fn create_session(&self, link: &mut Link, connection: &Connection, identity: Identity) -> Result<u64> {
        let what = "creating a session";
        let wants = SessionWants::new(SLOTS_MAX);
        let sent = now();
        let got: CREATE_SESSION4resok =
            match self.lone(connection, OP_CREATE_SESSION, &wants.args(&identity), what).await? {
                Ok(got) => got,
                Err(status) => {
                    link.identity = None;
                    return Err(match recovery::create_session_failed(status) {
                        recovery::Next::Wait | recovery::Next::StartOver => Error::status(Status::Delay, what),
                        recovery::Next::GiveUp => nfs_error(status, what),
                    });
                }
            };
        let lease = self.lease();
        let table = Session::new(&identity, &wants, &got, sent, lease);
        let table = table.map_err(|e| Error::protocol(format!("{what}: {e}")))?;
        self.callbacks.begin_session(&table);
        link.epochs += 1;
        let sequence = identity.sequence.wrapping_add(1);
        link.identity = Some(Identity { sequence, confirmed: true, ..identity });
        {
            let mut epoch = lock(&self.table);
            (epoch.number, epoch.session) = (link.epochs, Some(table));
        }
        self.freed.notify_waiters();
        Ok(link.epochs)
    }

    /// Binds a new connection to the session for both channels (BIND_CONN_TO_SESSION). Returns false if the mgr does
    /// not know the session any more.
    async fn bind(&self, connection: &Connection, session: sessionid4) -> Result<bool> {
        let what = "binding a connection";
        let args = BIND_CONN_TO_SESSION4args {
            bctsa_sessid: session,
            bctsa_dir: CDFC4_FORE_OR_BOTH,
            bctsa_use_conn_in_rdma_mode: false,
        };
        let got = self.lone::<BIND_CONN_TO_SESSION4resok>(connection, OP_BIND_CONN_TO_SESSION, &args, what).await?;
        match got {
            Ok(_) => Ok(true),
            Err(NFS4ERR_BADSESSION | NFS4ERR_DEADSESSION | NFS4ERR_STALE_CLIENTID) => Ok(false),
            Err(status) => Err(nfs_error(status, what)),
        }
    }

    /// Sends RECLAIM_COMPLETE. Then sends a new OPEN for each open whose reclaim the mgr refused.
    async fn end_reclaim(&self, session: &NewSession<'_>, refused: &[OpenId]) -> Result<()> {
        let mut compound = Compound::new("ending recovery").cached();
        compound.op(OP_RECLAIM_COMPLETE, &RECLAIM_COMPLETE4args { rca_one_fs: false });
        let mut results = session.call(compound).await?;
        match results.raw::<wire::native::Nothing>(OP_RECLAIM_COMPLETE) {
            // COMPLETE_ALREADY: the mgr has already executed an earlier RECLAIM_COMPLETE, whose reply was lost (RFC
            // 8881 §18.51.4).
            Ok(_) | Err(Failed::Nfs(NFS4ERR_COMPLETE_ALREADY)) => {}
            Err(failed) => return Err(results.error(&failed)),
        }
        self.begin_settling(session).await?;
        // If the mgr dropped the state of this client because the lease expired, and did not restart, the mgr refuses
        // reclaims. The mgr accepts new opens only after RECLAIM_COMPLETE (RFC 8881 §18.51.3). So open the files of the
        // refused reclaims again now.
        self.held.open_again(session, refused).await
    }

    /// Ends the session and destroys the client id. Otherwise the mgr would keep the opens for a lease time, and after
    /// a restart wait for this client in its grace period.
    pub(super) async fn end(&self) -> Result<()> {
        let mut link = self.link.lock().await;
        link.epoch = None;
        let Some(session) = lock(&self.table).session.take() else { return Ok(()) };
        let mut outcome = Ok(());
        for _ in 0..END_TRIES {
            outcome = self.leave(&mut link, &session).await;
            // Every operation that ends the session is idempotent, so the client can repeat all of them.
            if !matches!(&outcome, Err(error) if error.kind() == crate::ErrorKind::Connection) {
                break;
            }
        }
        if let Some(connection) = link.connection.take() {
            connection.close();
        }
        outcome
    }

    async fn leave(&self, link: &mut Link, session: &Session) -> Result<()> {
        let what = "ending the session";
        let connection = self.connected(link).await?;
        let args = DESTROY_SESSION4args { dsa_sessionid: session.id() };
        let gone = self.lone::<wire::native::Nothing>(&connection, OP_DESTROY_SESSION, &args, what).await?;
        // The mgr still considers an earlier connection of the session open, so the mgr refuses DESTROY_SESSION over a
        // connection that is not bound to the session. Bind this connection, and send DESTROY_SESSION again.
        if gone == Err(NFS4ERR_CONN_NOT_BOUND_TO_SESSION) && self.bind(&connection, session.id()).await? {
            let _ = self.lone::<wire::native::Nothing>(&connection, OP_DESTROY_SESSION, &args, what).await?;
        }
        if self.forget_me(&connection, session.clientid()).await? == Err(NFS4ERR_STALE_CLIENTID) {
            // The mgr has restarted. In its grace period, the mgr waits for this client owner to reclaim. So register
            // again and destroy the new client id, which ends this wait.
            let fresh = self.exchange_id(&connection).await?;
            let _ = self.forget_me(&connection, fresh.clientid).await?;
        }
        Ok(())
    }

    async fn forget_me(&self, connection: &Connection, id: clientid4) -> Result<std::result::Result<(), nfsstat4>> {
        let args = DESTROY_CLIENTID4args { dca_clientid: id };
        let gone = self.lone::<wire::native::Nothing>(connection, OP_DESTROY_CLIENTID, &args, "ending the session");
        Ok(gone.await?.map(|_| ()))
    }
}
