//! Links to iods: a link is the set of connections of the mgr to one iod, over which the mgr calls procedures of the
//! native data program.

use net::clock::unix_now;
use net::rpc::{Connection, Limits, NoService};
use net::{Address, Counters, Error};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;
use types::{Fsid, Generation, IodId, ObjectId, Status};
use wire::native::{
    Capability, HelloArgs, HelloReply, IodKey, Key, LengthsArgs, LengthsReply, MGR_SESSION, Origin, PROGRAM,
    PULL_SESSION, Procedure, ProveReply, PullArgs, PullReply, PullSource, Rights, VERSION, WriteReportsArgs,
    WriteReportsReply, decode_reply,
};
use wire::rpc::Auth;
use xdr::{Writer, Xdr};

/// How long an iod may leave a request without a reply before the mgr regards the iod as down. An iod executes one
/// request in less time, unless its disk hangs.
pub(super) const SILENT: Duration = Duration::from_secs(20);

/// Number of connections to one iod for requests other than WRITE_REPORTS and LENGTHS. The iod executes one request of
/// each connection at a time.
const CONNECTIONS: usize = 4;
/// Time limit for connecting to an iod, and for its reply to HELLO.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a request to an iod. It must suffice for a stable write of a full payload on a slow disk, queued
/// behind other requests.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the mgr sends no PULL to an iod after the iod could not read from a source iod. Each failed PULL may take
/// some seconds.
const PULL_REST: Duration = Duration::from_secs(30);
/// Largest number of PULL requests to one iod at a time. A PULL takes some seconds if the source iod does not reply.
/// Requests behind the PULLs must not wait so long that the mgr regards this iod as down.
const PULLS: usize = 2;
/// Time limit for the DNS lookup of an iod's address.
const LOOKUP: Duration = Duration::from_secs(1);
/// Lifetime of the tickets and capabilities that the mgr signs for itself, in seconds. The lifetime is far longer than
/// any request takes, and exceeds any clock difference between two hosts.
const RIGHT_SECS: u64 = 3600;

/// The connections to an iod that is up.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) hello: HelloReply,
    pub(crate) proven: ProveReply,
    fsid: Fsid,
    /// The key with which the mgr signs tickets and capabilities for this iod.
    key: IodKey,
    connections: Vec<Connection>,
    turn: AtomicUsize,
    /// The connection for WRITE_REPORTS (write reports), if the iod serves NFS.
    write_reports: Option<Connection>,
    /// The connection for LENGTHS (requests of the iod for file lengths), if the iod serves NFS. The file lengths that
    /// the mgr sends to the iod must not wait until the mgr has processed WRITE_REPORTS.
    lengths: Option<Connection>,
    /// The configured address of the iod.
    address: Address,
    /// The configured address as IP addresses with ports, resolved at first use.
    numeric: OnceCell<Vec<String>>,
    /// Semaphore that limits the PULL requests to this iod.
    pulls: Semaphore,
    /// After a failed PULL request (a copy from a source iod), the time until which the mgr sends no PULL requests to
    /// this iod.
    rests_until: Mutex<Option<Instant>>,
    /// The IP address at which the mgr reaches the iod, if the data server of the iod listens on all addresses of its
    /// host.
    reached: Option<IpAddr>,
}

/// Why the mgr could not connect to an iod.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error(transparent)]
    Net(#[from] Error),
    #[error(
        "it refused the session ({0}): it belongs to another file system, has another cluster file, runs an older version of weir, or its clock is \
         more than an hour ahead"
    )]
    Refused(wire::native::Failure),
    #[error(
        "it claims to be iod {0} and cannot prove it: it has another cluster file, or another program answers at its address; the mgr sent it no secret"
    )]
    Unproven(IodId),
    #[error("it does not speak a protocol version of this mgr ({0}): use the same version of weir on all hosts")]
    Version(wire::native::Failure),
    #[error("{0}")]
    Failed(wire::native::Failure),
    #[error("it belongs to file system {0}, not to this one")]
    Foreign(Fsid),
    #[error("its replies name different iods")]
    Inconsistent,
}

impl Link {
    /// Connects to the iod at `address`, over its Unix socket if the iod is on this host.
    ///
    /// `incarnation` must be larger than the incarnation numbers of all earlier links to this address, including the
    /// links of earlier starts of the mgr. When this function returns, the iod no longer executes requests of earlier
    /// links.
    pub(super) async fn connect(
        address: &Address,
        fsid: Fsid,
        key: &Key,
        incarnation: u64,
        counters: &Counters,
    ) -> Result<Self, LinkError> {
        // The owner id of the link includes the configured address. If two addresses of one iod are configured by
        // mistake, a new link to one address then does not end the link to the other address.
        let origin = Origin { owner: key.derived_id(format!("mgr {address}").as_bytes()), incarnation };
        let greet = async |way: &Address| greet(way, way != address, fsid, key, origin, counters).await;
        let (mut connection, mut hello, mut proven) = greet(address).await?;
        let mut way = address.clone();
        if let (Address::Tcp { .. }, Some(path)) = (address, local_path(&proven)) {
            let local = Address::Unix(path.into());
            // If connecting to the Unix socket fails, use TCP. The socket path may be stale, or belong to another mount
            // namespace or to a user whom the mgr does not trust.
            if let Ok((over_unix, answer, more)) = greet(&local).await
                && answer.iod == hello.iod
            {
                (connection, hello, proven, way) = (over_unix, answer, more, local);
            }
        }
        let mut connections = vec![connection];
        while connections.len() < CONNECTIONS {
            let (connection, answer, _) = greet(&way).await?;
            if (answer.iod, answer.verifier) != (hello.iod, hello.verifier) {
                return Err(LinkError::Inconsistent);
            }
            connections.push(connection);
        }
        // The iod replies to the requests of a connection in order, and replies to WRITE_REPORTS and LENGTHS only when
        // it has something to report. So WRITE_REPORTS and LENGTHS each need a connection of their own.
        let (mut write_reports, mut lengths) = (None, None);
        if !proven.data_server.is_empty() {
            write_reports = Some(greet(&way).await?.0);
            lengths = Some(greet(&way).await?.0);
        }
        // Resolve the host name only if the data server listens on all addresses of its host, because only then does
        // the mgr use the result.
        let anywhere = |text: &String| text.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_unspecified());
        let reached = match address {
            Address::Tcp { host, port } if proven.data_server.iter().any(anywhere) => {
                tokio::net::lookup_host((host.as_str(), *port)).await.ok().and_then(|mut found| found.next())
            }
            _ => None,
        };
        let reached = reached.map(|address| address.ip());
        Ok(Link {
            fsid,
            key: key.of_iod(hello.iod),
            hello,
            proven,
            connections,
            turn: AtomicUsize::new(0),
            write_reports,
            lengths,
            address: address.clone(),
            numeric: OnceCell::new(),
            pulls: Semaphore::new(PULLS),
            rests_until: Mutex::default(),
            reached,
        })
    }

    /// Returns a capability with which the mgr itself uses an object. [`wire::native::STORE_OBJECT`] as the object
    /// stands for the whole store of the iod.
    pub(crate) fn capability(&self, object: ObjectId, generation: Generation, rights: Rights) -> Capability {
        self.sign(object, generation, rights, MGR_SESSION)
    }

    fn sign(&self, object: ObjectId, generation: Generation, rights: Rights, session: u64) -> Capability {
        self.key.sign_capability(self.fsid, object, generation, rights, unix_now() + RIGHT_SECS, session)
    }

    /// Returns the capability, ticket and addresses with which another iod can copy an object from this iod.
    pub(crate) async fn to_pull(&self, object: ObjectId, generation: Generation) -> PullSource {
        PullSource {
            cap: self.sign(object, generation, Rights::READ, PULL_SESSION),
            ticket: self.key.ticket(self.fsid, PULL_SESSION, unix_now() + RIGHT_SECS),
            iod: self.hello.iod,
            addresses: self.numeric_addresses().await,
        }
    }

    /// Returns whether any connection of the link is closed. The iod may have restarted, so no request may use this
    /// link any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.all().any(Connection::is_closed)
    }

    fn all(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().chain(&self.write_reports).chain(&self.lengths)
    }

    /// Returns whether the iod reports the writes of NFS clients (WRITE_REPORTS).
    pub(crate) fn has_write_reports(&self) -> bool {
        self.write_reports.is_some()
    }

    /// Waits for the next write reports of the iod. Returns `Delay` when the connection to the iod is lost.
    pub(crate) async fn write_reports(&self, arguments: &WriteReportsArgs) -> Result<WriteReportsReply, Status> {
        let connection = self.write_reports.as_ref().ok_or(Status::NotSupp)?;
        let result = call(connection, Procedure::WriteReports, arguments, CALL_TIMEOUT).await;
        result.map_err(|e| self.status(Procedure::WriteReports, e))
    }

    /// Sends the lengths of files and waits for the iod's next requests for lengths. Returns `Delay` when the
    /// connection to the iod is lost.
    pub(crate) async fn lengths(&self, arguments: &LengthsArgs) -> Result<LengthsReply, Status> {
        let connection = self.lengths.as_ref().ok_or(Status::NotSupp)?;
        let result = call(connection, Procedure::Lengths, arguments, CALL_TIMEOUT).await;
        result.map_err(|e| self.status(Procedure::Lengths, e))
    }

    /// Waits until a connection of the link is closed, and then closes the other connections of the link. Returns why
    /// the first connection was closed.
    pub(super) async fn closed(&self) -> Error {
        let ends = self.all().map(|c| Box::pin(c.closed()));
        let (why, ..) = futures_util::future::select_all(ends).await;
        self.all().for_each(Connection::close);
        why
    }

    /// Closes all connections of the link.
    pub(super) fn close(&self) {
        self.all().for_each(Connection::close);
    }

    /// Returns the addresses at which the iod serves NFS. The IP address at which the mgr reaches the iod replaces a
    /// wildcard address.
    pub(crate) fn data_server(&self) -> Vec<SocketAddr> {
        let known = self.proven.data_server.iter().filter_map(|text| text.parse::<SocketAddr>().ok());
        let reached = self.reached;
        known
            .filter_map(|address| match address.ip().is_unspecified() {
                true => reached.map(|ip| SocketAddr::new(ip, address.port())),
                false => Some(address),
            })
            .collect()
    }

    /// Returns the address to which the mgr is connected: a TCP address or a Unix socket.
    pub(crate) fn path(&self) -> Address {
        self.connections[0].peer().clone()
    }

    /// Calls a procedure of the iod and waits for the result.
    ///
    /// # Errors
    /// `Delay` if the iod does not reply, or if the mgr fenced the file during the call. Otherwise the status with
    /// which the iod refused the request.
    pub(crate) async fn call<R: Xdr>(&self, procedure: Procedure, arguments: &impl Xdr) -> Result<R, Status> {
        self.attempt(procedure, arguments).await.map_err(|e| if e == Status::Fenced { Status::Delay } else { e })
    }

    /// Does the same as [`Self::call`], but returns `Fenced` if the capability is of an older generation than the iod
    /// has for the object.
    pub(crate) async fn attempt<R: Xdr>(&self, procedure: Procedure, arguments: &impl Xdr) -> Result<R, Status> {
        let turn = self.turn.fetch_add(1, Relaxed);
        let connection = &self.connections[turn % self.connections.len()];
        let result = call(connection, procedure, arguments, CALL_TIMEOUT).await;
        result.map_err(|e| self.status(procedure, e))
    }

    /// Does the same as [`Self::call`], but returns the iod's own status and explanation if the iod refuses the
    /// request.
    pub(crate) async fn ask<R: Xdr>(&self, procedure: Procedure, arguments: &impl Xdr) -> Result<R, RequestError> {
        let turn = self.turn.fetch_add(1, Relaxed);
        let connection = &self.connections[turn % self.connections.len()];
        call(connection, procedure, arguments, CALL_TIMEOUT).await.map_err(|e| match e {
            CallError::Net(error) => {
                tracing::info!(iod = %self.hello.iod, procedure = procedure.name(), "{error}");
                RequestError::Down
            }
            CallError::Failed(failure) => RequestError::Refused(failure.status, failure.detail.unwrap_or_default()),
        })
    }

    /// Returns the addresses at which other iods reach this iod, as `address:port`. Empty if the iod has only a Unix
    /// socket.
    async fn numeric_addresses(&self) -> Vec<String> {
        let look_up = async {
            let Address::Tcp { host, port } = &self.address else { return Vec::new() };
            if let Some(address) = self.address.socket_addr() {
                return vec![address.to_string()];
            }
            let found = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((host.as_str(), *port))).await;
            found.ok().and_then(Result::ok).into_iter().flatten().map(|address| address.to_string()).take(4).collect()
        };
        self.numeric.get_or_init(|| look_up).await.clone()
    }

    /// Makes the iod copy bytes of an object, on another iod or on the same iod, into an object of its own (PULL).
    /// Returns `None` if the iod does not support PULL or could not read all bytes. The caller must then copy the bytes
    /// another way. After such a failure, the mgr sends this iod no PULL for [`PULL_REST`].
    pub(crate) async fn pull(&self, arguments: &PullArgs) -> Result<Option<PullReply>, Status> {
        // Acquiring a permit fails only if the semaphore is closed, and no code closes it.
        let _turn = self.pulls.acquire().await.map_err(|_| Status::Delay)?;
        let resting = || self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        if resting().is_some_and(|until| Instant::now() < until) {
            return Ok(None);
        }
        match self.ask::<PullReply>(Procedure::Pull, arguments).await {
            Ok(reply) if reply.stopped.is_none() && reply.done == arguments.len() => return Ok(Some(reply)),
            Ok(reply) => {
                let why = reply.stopped.unwrap_or_default();
                tracing::info!(iod = %self.hello.iod, source = %arguments.source.iod, "the iod could not copy from the source iod: {why}");
            }
            Err(RequestError::Refused(status @ (Status::NoSpc | Status::DQuot | Status::FBig), _)) => {
                return Err(status);
            }
            // The object is busy on the iod, or the caller has lost the right to write the object. This is no failure
            // of PULL, so the mgr continues to send PULLs to this iod.
            Err(RequestError::Refused(Status::Delay | Status::Fenced, _)) => return Ok(None),
            Err(RequestError::Refused(status, why)) => {
                tracing::info!(iod = %self.hello.iod, %status, "the iod refused to copy from another iod: {why}");
            }
            Err(RequestError::Down) => {}
        }
        *resting() = Some(Instant::now() + PULL_REST);
        Ok(None)
    }

    /// Translates a failed call to the status that the caller in the mgr gets.
    fn status(&self, procedure: Procedure, error: CallError) -> Status {
        let iod = self.hello.iod;
        match error {
            CallError::Net(error @ (Error::Broken(_) | Error::Timeout(_) | Error::Connect { .. })) => {
                tracing::info!(%iod, procedure = procedure.name(), "{error}");
                Status::Delay
            }
            CallError::Net(error) => {
                tracing::error!(%iod, procedure = procedure.name(), "{error}");
                Status::Io
            }
            CallError::Failed(failure) => match failure.status {
                // The network damaged the bytes, so the client must send them again.
                Status::BadChecksum => Status::Delay,
                Status::Fenced
                | Status::Delay
                | Status::NoSpc
                | Status::DQuot
                | Status::FBig
                | Status::NotSupp
                | Status::Lost => failure.status,
                _ => {
                    tracing::error!(%iod, procedure = procedure.name(), "the iod refused: {failure}");
                    Status::Io
                }
            },
        }
    }
}

/// Why an iod did not execute a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RequestError {
    /// The iod is down, or the connection to it was lost.
    Down,
    /// The iod refused the request with this status and explanation.
    Refused(Status, String),
}

enum CallError {
    Net(Error),
    Failed(wire::native::Failure),
}

impl From<CallError> for LinkError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Net(e) => e.into(),
            CallError::Failed(failure) => match failure.status {
                Status::CapRefused | Status::CapExpired => LinkError::Refused(failure),
                Status::BadVersion => LinkError::Version(failure),
                _ => LinkError::Failed(failure),
            },
        }
    }
}

async fn call<R: Xdr>(
    connection: &Connection,
    procedure: Procedure,
    arguments: &impl Xdr,
    timeout: Duration,
) -> Result<R, CallError> {
    let mut out = Writer::new();
    arguments.encode(&mut out);
    let reply = connection.call(PROGRAM, VERSION, procedure as u32, &Auth::None, out.finish(), timeout).await;
    if let Err(Error::Timeout(_)) = &reply {
        // After a timeout, the iod may still execute the request. So close the link. When the mgr connects again, the
        // iod stops executing requests of the old connections.
        connection.close();
    }
    let mut body = reply.map_err(CallError::Net)?.body;
    let result = decode_reply(&mut body).map_err(|e| CallError::Net(e.into()))?;
    result.map_err(CallError::Failed)
}

/// Connects to an iod, sends HELLO, and checks that the mgr and the iod have the same key (PROVE).
async fn greet(
    address: &Address,
    is_sent: bool,
    fsid: Fsid,
    key: &Key,
    origin: Origin,
    counters: &Counters,
) -> Result<(Connection, HelloReply, ProveReply), LinkError> {
    let limits = Limits::default();
    let (service, counters) = (Arc::new(NoService), counters.clone());
    let connection = match is_sent {
        true => Connection::connect_sent(address, service, limits, counters, CONNECT_TIMEOUT).await?,
        false => Connection::connect(address, service, limits, counters, CONNECT_TIMEOUT).await?,
    };
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|_| LinkError::Failed(Status::ServerFault.into()))?;
    let expires = unix_now() + RIGHT_SECS;
    // HELLO contains no secret: before the reply, the mgr does not know which iod the peer is, or whether the peer is
    // an iod at all.
    let hello = HelloArgs::new(&key.of_iod(IodId([0; 16])).ticket(fsid, MGR_SESSION, expires), nonce, true);
    let reply: HelloReply = call(&connection, Procedure::Hello, &hello, CONNECT_TIMEOUT).await?;
    if reply.fsid != fsid {
        return Err(LinkError::Foreign(reply.fsid));
    }
    let ticket = key.of_iod(reply.iod).ticket(fsid, MGR_SESSION, expires);
    let proof = ticket.check(&hello, &reply, origin).map_err(|_| LinkError::Unproven(reply.iod))?;
    let proven: ProveReply = call(&connection, Procedure::Prove, &proof, CONNECT_TIMEOUT).await?;
    ticket.check_prove_reply(&hello, &reply, &proven).map_err(|_| LinkError::Unproven(reply.iod))?;
    Ok((connection, reply, proven))
}

/// Returns the path of the iod's Unix socket, if the iod is on this host.
fn local_path(proven: &ProveReply) -> Option<String> {
    let local = proven.local.as_ref()?;
    let host: Fsid = local.host.trim().parse().ok()?;
    (net::address::boot_id() == Some(host.0)).then(|| local.path.clone())
}

/// Returns the result of a request to an iod, or `Delay` if the request takes longer than `limit`.
pub(super) async fn within<T>(limit: Duration, answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    tokio::time::timeout(limit, answer).await.unwrap_or(Err(Status::Delay))
}
