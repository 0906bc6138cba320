//! The connections to one iod, and the native procedures called over them.

use net::clock::unix_now;
use net::rpc::{Connection, Limits, NoService};
use net::{Address, Counters, Error};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;
use types::{FileId, Fsid, Generation, IodId, Status};
use wire::native::{
    Capability, HelloArgs, HelloReply, IodKey, Key, LengthsArgs, LengthsReply, MGR_SESSION, NewsArgs, NewsReply,
    Origin, PROGRAM, PULL_SESSION, Procedure, ProveReply, PullArgs, PullReply, PullSource, Rights, VERSION,
    decode_reply,
};
use wire::rpc::Auth;
use xdr::{Writer, Xdr};

/// Connections to one iod: it works on one request of each at a time.
const CONNECTIONS: usize = 4;
/// How long connecting and HELLO may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request may take: a stable write of a full payload on a slow disk, with others before it.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an iod that could not read from another one is not asked to again: each try may take some seconds.
const PULL_REST: Duration = Duration::from_secs(30);
/// How many copies from others an iod is asked for at a time. Each may take some seconds while the other is silent, and requests behind
/// it must not wait so long that the iod is taken for silent itself.
const PULLS: usize = 2;
/// How long looking up the address of an iod may take.
const LOOKUP: Duration = Duration::from_secs(1);
/// How long tickets and capabilities that the mgr makes for itself are good for, in seconds: far longer than any request takes, and than clocks of
/// hosts differ.
const RIGHT_SECS: u64 = 3600;

/// An iod being reached.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) hello: HelloReply,
    pub(crate) proven: ProveReply,
    fsid: Fsid,
    /// What is signed for this iod.
    key: IodKey,
    connections: Vec<Connection>,
    turn: AtomicUsize,
    /// For NEWS, when the iod has any.
    news: Option<Connection>,
    /// For LENGTHS, likewise: its answers must not wait for what NEWS are dealt with.
    lengths: Option<Connection>,
    /// What it is configured as.
    address: Address,
    /// That, as numbers; looked up when it is needed first.
    numeric: OnceCell<Vec<String>>,
    /// The right to ask it to copy from others.
    pulls: Semaphore,
    /// Until when it is not asked to copy from others.
    rests_until: Mutex<Option<Instant>>,
    /// Its address in the network, when the configured one is not a name that only some can resolve.
    reached: Option<IpAddr>,
}

/// Why an iod was not reached.
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
        "it says that it is iod {0} and cannot prove it: it has another cluster file, or something else answers at its address; it was told nothing"
    )]
    Unproven(IodId),
    #[error("it does not speak a protocol version of this mgr ({0}): use the same version of weir on all hosts")]
    Version(wire::native::Failure),
    #[error("{0}")]
    Failed(wire::native::Failure),
    #[error("it belongs to file system {0}, not to this one")]
    Foreign(Fsid),
    #[error("its answers name different iods")]
    Inconsistent,
}

impl Link {
    /// Connects to the iod at `address`, over its Unix socket if it is on this host.
    ///
    /// `incarnation` is larger than that of all earlier links to this address, those of earlier mgrs included: what they
    /// have sent is not carried out any more when this returns.
    pub(super) async fn connect(
        address: &Address,
        fsid: Fsid,
        key: &Key,
        incarnation: u64,
        counters: &Counters,
    ) -> Result<Self, LinkError> {
        // An iod that is configured under two addresses by mistake keeps the connections of both.
        let origin = Origin { owner: key.derived_id(format!("mgr {address}").as_bytes()), incarnation };
        let greet = async |way: &Address| greet(way, way != address, fsid, key, origin, counters).await;
        let (mut connection, mut hello, mut proven) = greet(address).await?;
        let mut way = address.clone();
        if let (Address::Tcp { .. }, Some(path)) = (address, local_path(&proven)) {
            let local = Address::Unix(path.into());
            // Another mount namespace, a stale path, or the socket of a user who is not trusted with one: TCP is as good.
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
        // It waits for most of its time, and an iod answers a connection's requests in their order.
        let (mut news, mut lengths) = (None, None);
        if !proven.data_server.is_empty() {
            news = Some(greet(&way).await?.0);
            lengths = Some(greet(&way).await?.0);
        }
        // Looked up only where it is needed: a data server that listens on all addresses of its host.
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
            news,
            lengths,
            address: address.clone(),
            numeric: OnceCell::new(),
            pulls: Semaphore::new(PULLS),
            rests_until: Mutex::default(),
            reached,
        })
    }

    /// What the mgr shows the iod to use an object; [`wire::native::STORE_OBJECT`] for the whole store.
    pub(crate) fn capability(&self, object: FileId, generation: Generation, rights: Rights) -> Capability {
        self.sign(object, generation, rights, MGR_SESSION)
    }

    fn sign(&self, object: FileId, generation: Generation, rights: Rights, session: u64) -> Capability {
        self.key.sign_capability(self.fsid, object, generation, rights, unix_now() + RIGHT_SECS, session)
    }

    /// What another iod shows this one to copy from an object.
    pub(crate) async fn to_pull(&self, object: FileId, generation: Generation) -> PullSource {
        PullSource {
            cap: self.sign(object, generation, Rights::READ, PULL_SESSION),
            ticket: self.key.ticket(self.fsid, PULL_SESSION, unix_now() + RIGHT_SECS),
            iod: self.hello.iod,
            addresses: self.numeric_addresses().await,
        }
    }

    /// Whether any of the connections has ended: the iod may have restarted, so none is used any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.all().any(Connection::is_closed)
    }

    fn all(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().chain(&self.news).chain(&self.lengths)
    }

    /// Whether the iod has news of what clients write.
    pub(crate) fn has_news(&self) -> bool {
        self.news.is_some()
    }

    /// Waits for news; `Delay` when the iod is gone.
    pub(crate) async fn news(&self, arguments: &NewsArgs) -> Result<NewsReply, Status> {
        let connection = self.news.as_ref().ok_or(Status::NotSupp)?;
        let result = call(connection, Procedure::News, arguments, CALL_TIMEOUT).await;
        result.map_err(|e| self.status(Procedure::News, e))
    }

    /// Answers how long files are, and waits for what is asked next; `Delay` when the iod is gone.
    pub(crate) async fn lengths(&self, arguments: &LengthsArgs) -> Result<LengthsReply, Status> {
        let connection = self.lengths.as_ref().ok_or(Status::NotSupp)?;
        let result = call(connection, Procedure::Lengths, arguments, CALL_TIMEOUT).await;
        result.map_err(|e| self.status(Procedure::Lengths, e))
    }

    /// Waits until one of the connections has ended, closes the others and tells why.
    pub(super) async fn closed(&self) -> Error {
        let ends = self.all().map(|c| Box::pin(c.closed()));
        let (why, ..) = futures_util::future::select_all(ends).await;
        self.all().for_each(Connection::close);
        why
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        self.all().for_each(Connection::close);
    }

    /// Where the iod serves NFS. A host that stands for all of its own becomes the one that it is reached at.
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

    /// Where it is connected to.
    pub(crate) fn path(&self) -> Address {
        self.connections[0].peer().clone()
    }

    /// Calls a procedure and waits for its result.
    ///
    /// `Delay` when the iod is gone or too slow, or when the file was fenced meanwhile; what the iod answered when it refused.
    pub(crate) async fn call<R: Xdr>(&self, procedure: Procedure, arguments: &impl Xdr) -> Result<R, Status> {
        self.attempt(procedure, arguments).await.map_err(|e| if e == Status::Fenced { Status::Delay } else { e })
    }

    /// As [`Self::call`], but `Fenced` when the capability is of an older generation than the iod knows.
    pub(crate) async fn attempt<R: Xdr>(&self, procedure: Procedure, arguments: &impl Xdr) -> Result<R, Status> {
        let turn = self.turn.fetch_add(1, Relaxed);
        let connection = &self.connections[turn % self.connections.len()];
        let result = call(connection, procedure, arguments, CALL_TIMEOUT).await;
        result.map_err(|e| self.status(procedure, e))
    }

    /// As [`Self::call`] for whoever wants to know what exactly an iod has against it.
    pub(crate) async fn ask<R: Xdr>(&self, procedure: Procedure, arguments: &impl Xdr) -> Result<R, Asked> {
        let turn = self.turn.fetch_add(1, Relaxed);
        let connection = &self.connections[turn % self.connections.len()];
        call(connection, procedure, arguments, CALL_TIMEOUT).await.map_err(|e| match e {
            CallError::Net(error) => {
                tracing::info!(iod = %self.hello.iod, procedure = procedure.name(), "{error}");
                Asked::Away
            }
            CallError::Failed(failure) => Asked::Refused(failure.status, failure.detail.unwrap_or_default()),
        })
    }

    /// Where other iods reach it, `address:port`; nowhere when it is known by a Unix socket alone.
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

    /// Has the iod copy from another one, as a write. `None` when it does not know how, or could not read all of it: then the bytes
    /// have to go another way, and so do others for a while.
    pub(crate) async fn pull(&self, arguments: &PullArgs) -> Result<Option<PullReply>, Status> {
        // Never closed.
        let _turn = self.pulls.acquire().await.map_err(|_| Status::Delay)?;
        let resting = || self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        if resting().is_some_and(|until| Instant::now() < until) {
            return Ok(None);
        }
        match self.ask::<PullReply>(Procedure::Pull, arguments).await {
            Ok(reply) if reply.stopped.is_none() && reply.done == arguments.len() => return Ok(Some(reply)),
            Ok(reply) => {
                let why = reply.stopped.unwrap_or_default();
                tracing::info!(iod = %self.hello.iod, source = %arguments.source.iod, "could not copy from there: {why}");
            }
            Err(Asked::Refused(status @ (Status::NoSpc | Status::DQuot | Status::FBig), _)) => return Err(status),
            // It is at that of others; or whoever asked has lost the right to write.
            Err(Asked::Refused(Status::Delay | Status::Fenced, _)) => return Ok(None),
            Err(Asked::Refused(status, why)) => {
                tracing::info!(iod = %self.hello.iod, %status, "does not copy from other iods: {why}");
            }
            Err(Asked::Away) => {}
        }
        *resting() = Some(Instant::now() + PULL_REST);
        Ok(None)
    }

    /// What a failed call means to whoever asked the mgr.
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
                // Damaged on the way: another try sees other bits.
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

/// Why an iod did not answer what it was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// It is down, or was lost on the way.
    Away,
    /// It refused, with this explanation.
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
        // It may still be carried out: another try must come over connections that replace this one.
        connection.close();
    }
    let mut body = reply.map_err(CallError::Net)?.body;
    let result = decode_reply(&mut body).map_err(|e| CallError::Net(e.into()))?;
    result.map_err(CallError::Failed)
}

/// Connects and says HELLO.
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
    // Nothing in it is secret: which iod answers, and whether it is one, is not known before it does.
    let hello = HelloArgs::new(&key.of_iod(IodId([0; 16])).ticket(fsid, MGR_SESSION, expires), nonce, true);
    let reply: HelloReply = call(&connection, Procedure::Hello, &hello, CONNECT_TIMEOUT).await?;
    if reply.fsid != fsid {
        return Err(LinkError::Foreign(reply.fsid));
    }
    let ticket = key.of_iod(reply.iod).ticket(fsid, MGR_SESSION, expires);
    let proof = ticket.check(&hello, &reply, origin).map_err(|_| LinkError::Unproven(reply.iod))?;
    let proven: ProveReply = call(&connection, Procedure::Prove, &proof, CONNECT_TIMEOUT).await?;
    ticket.check_told(&hello, &reply, &proven).map_err(|_| LinkError::Unproven(reply.iod))?;
    Ok((connection, reply, proven))
}

/// The path of the iod's Unix socket if it is on this host.
fn local_path(proven: &ProveReply) -> Option<String> {
    let local = proven.local.as_ref()?;
    let host: Fsid = local.host.trim().parse().ok()?;
    (net::address::boot_id() == Some(host.0)).then(|| local.path.clone())
}
