//! The iods of a mount: their cached addresses, and one connection to each.

mod short_circuit;

use crate::counters::{Tally, add};
use crate::long_waits::LongWaits;
use crate::short_circuit::Loans;
use crate::{Error, Options, Result};
use async_trait::async_trait;
use bytes::Bytes;
use layout::kinds::native::{self, Native};
use layout::kinds::{Kind, KindId};
use net::rpc::{Connection, Limits, NoService};
use net::{Address, Counters as NetCounters};
use short_circuit::Lender;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::Instant;
use types::limits::{EXTENTS_MAX, PAYLOAD_MAX};
use types::{IodId, Status};
use wire::native::{HelloArgs, HelloReply, Origin, PROGRAM, Procedure, ProveReply, Ticket, VERSION, decode_reply};
use wire::rpc::Auth;
use xdr::{Segments, Writer, Xdr};

/// How long the client sends nothing to an iod after it was unreachable.
const LEFT_ALONE: Duration = Duration::from_secs(5);
/// The first and the longest pause between two attempts to reach an iod. The pause doubles after each attempt.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_secs(1);

/// The source of the iods' addresses and of the lease time: the mgr, or its replacement in tests.
#[async_trait]
pub(crate) trait DeviceSource: Send + Sync {
    /// Returns the device address (`da_addr_body` of RFC 8881 §3.3.14) of a device, in the format of this layout kind.
    async fn address(&self, kind: KindId, device: [u8; 16]) -> Result<Bytes>;

    /// Returns the mgr's lease time, or the default if the client does not know it yet.
    fn lease(&self) -> Duration;
}

/// All iods that the layouts of this mount have named, and the client's connections to them.
pub(crate) struct Devices {
    shared: Arc<Shared>,
    iods: Mutex<HashMap<IodId, Arc<Iod>>>,
    /// The loans for short-circuit reads that the iods of this mount have granted.
    loans: Arc<Loans>,
}

struct Shared {
    source: Arc<dyn DeviceSource>,
    options: Options,
    tally: Arc<Tally>,
    net: NetCounters,
    boot_id: Option<[u8; 16]>,
    /// A random identifier of this mount, which the client sends to iods in HELLO.
    owner: [u8; 16],
    /// The incarnation (number) of the next connection to an iod; it increases with every attempt to connect.
    incarnation: AtomicU64,
}

/// Why a request to an iod failed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The client did not send the request, because the iod was unreachable, or speaks too old a revision of the
    /// protocol.
    Unreachable(Error),
    /// The client sent the request, and the iod never replied.
    Unanswered(Error),
    /// The iod replied with this error.
    Answer(Error),
}

impl Devices {
    /// Creates an empty set of iods, which requests the addresses of iods from `source`.
    ///
    /// # Errors
    /// The system returns no random numbers.
    pub(crate) fn new(
        source: Arc<dyn DeviceSource>,
        options: Options,
        tally: Arc<Tally>,
        net: NetCounters,
    ) -> Result<Self> {
        let mut owner = [0; 16];
        getrandom::fill(&mut owner).map_err(|e| Error::usage(format!("the system provides no random numbers: {e}")))?;
        let (boot_id, incarnation) = (net::address::boot_id(), AtomicU64::new(0));
        let shared = Arc::new(Shared { source, options, tally, net, boot_id, owner, incarnation });
        Ok(Devices { shared, iods: Mutex::default(), loans: Arc::new(Loans::new()) })
    }

    /// Returns the loans for short-circuit reads that the iods of this mount have granted.
    pub(crate) fn loans(&self) -> &Arc<Loans> {
        &self.loans
    }

    /// Returns the iod with this id, without connecting to it.
    pub(crate) fn iod(&self, id: IodId) -> Arc<Iod> {
        let mut iods = self.iods.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &self.shared;
        let made = || {
            Arc::new(Iod {
                id,
                shared: shared.clone(),
                link: AsyncMutex::default(),
                lends: AtomicBool::new(false),
                places: Semaphore::new(shared.options.in_flight_per_iod.max(1)),
                waits: LongWaits::default(),
            })
        };
        iods.entry(id).or_insert_with(made).clone()
    }
}

/// One iod and the client's connection to it.
pub(crate) struct Iod {
    id: IodId,
    shared: Arc<Shared>,
    link: AsyncMutex<Link>,
    /// Whether the iod may lend files: the current connection has a companion connection for loans, and the iod has not
    /// refused to lend.
    lends: AtomicBool,
    places: Semaphore,
    waits: LongWaits,
}

/// An established connection to an iod: HELLO has succeeded.
#[derive(Clone)]
struct IodConnection {
    connection: Connection,
    /// Whether the payloads on this connection carry checksums.
    checksums: bool,
    /// The revision of the native protocol that the client and the iod use on this connection.
    revision: u32,
    /// The companion connection for loans, if the iod may lend files.
    lender: Option<Arc<Lender>>,
}

#[derive(Default)]
struct Link {
    line: Option<IodConnection>,
    device: Option<native::Device>,
    ever: bool,
    /// After the iod was unreachable: the time before which the client does not try to connect again, and the error
    /// that requests get until this time.
    gone: Option<(Instant, Error)>,
}

impl Iod {
    /// Returns the iod's addresses, `host:port`.
    pub(crate) async fn addresses(&self) -> Result<Vec<String>> {
        let mut link = self.link.lock().await;
        self.device(&mut link, false).await.map(|device| device.tcp.clone())
    }

    /// Sends a request, which needs this revision of the protocol or a later one.
    ///
    /// Returns the result, and whether the payloads on the connection carry checksums. `args(checksums)` encodes the
    /// arguments, with checksums if `checksums` is true. If the connection breaks, sends the request again, because
    /// every native request is idempotent.
    pub(crate) async fn call<T: Xdr>(
        &self,
        (procedure, least_revision): (Procedure, u32),
        args: impl Fn(bool) -> Segments + Sync,
        what: &str,
    ) -> std::result::Result<(T, bool), Refused> {
        tracing::debug!(iod = %self.id, ?procedure, what, "request");
        let patience = self.shared.options.retry_timeout;
        let call = self.call_again((procedure, least_revision), args, what);
        self.waits.watch(call, patience, || format!("iod {}", self.id)).await
    }

    async fn call_again<T: Xdr>(
        &self,
        (procedure, least_revision): (Procedure, u32),
        args: impl Fn(bool) -> Segments + Sync,
        what: &str,
    ) -> std::result::Result<(T, bool), Refused> {
        // Waiting for a permit fails only if the semaphore is closed, and the client never closes this semaphore.
        let _place = self.places.acquire().await;
        let deadline = Instant::now() + self.shared.options.retry_timeout;
        let mut pause = *PAUSE.start();
        // The host of the iod may have lost power while a layout recall waits for the end of this request. To answer
        // the recall in time, the first two attempts to send the request together take at most a lease time. Each
        // attempt has up to twice the timeout of the previous attempt, because the iod may only have a slow disk.
        let mut patience = self.shared.source.lease() / 3;
        let mut given_up: fn(Error) -> Refused = Refused::Unreachable;
        loop {
            let IodConnection { connection, checksums, revision, .. } = self.line().await.map_err(given_up)?;
            if revision < least_revision {
                return Err(given_up(self.too_old(what, revision, least_revision)));
            }
            self.shared.tally.native(procedure);
            let timeout = self.shared.options.attempt_timeout().min(patience);
            patience = patience.saturating_mul(2);
            let error = match exchange(&connection, procedure, args(checksums), timeout).await {
                Ok(Ok(result)) => return Ok((result, checksums)),
                Ok(Err(failure)) if failure.status == Status::NoSession => {
                    connection.close();
                    self.error(what, &failure)
                }
                // A shard of the index delays a registration until its writers have made their runs durable. So return
                // this answer to the writer.
                Ok(Err(failure)) if failure.status == Status::Delay && procedure != Procedure::Register => {
                    self.error(what, &failure)
                }
                Ok(Err(failure)) => {
                    if failure.status == Status::CapRefused {
                        self.part(&connection).await;
                    }
                    let context = format!("{what} on iod {}", self.id);
                    let message = match &failure.detail {
                        Some(detail) => format!("{context}: {} ({detail})", failure.status),
                        None => format!("{context}: {}", failure.status),
                    };
                    return Err(Refused::Answer(Error::new(crate::ErrorKind::Status(failure.status), message)));
                }
                Err(error @ (net::Error::Refused(_) | net::Error::Malformed(_) | net::Error::TooBig { .. })) => {
                    let message = format!("{what} on iod {}: {error}", self.id);
                    return Err(Refused::Answer(Error::protocol(message)));
                }
                Err(error) => {
                    given_up = Refused::Unanswered;
                    connection.close();
                    self.error(what, &error)
                }
            };
            if Instant::now() + pause > deadline {
                // Mark the iod as unreachable, so that the requests that are queued for it fail at once, and do not
                // each wait for a timeout.
                self.leave_alone(&mut *self.link.lock().await, &error);
                return Err(given_up(error));
            }
            add(&self.shared.tally.retries, 1);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(*PAUSE.end());
        }
    }

    /// Closes the connection to the iod. For the next few seconds (`LEFT_ALONE`), all requests to the iod fail at once.
    fn leave_alone(&self, link: &mut Link, why: &Error) {
        if let Some(line) = link.line.take() {
            line.connection.close();
        }
        link.gone = Some((Instant::now() + LEFT_ALONE, why.clone()));
    }

    /// Closes a session in which the iod refuses the client's capabilities. This happens after the client got a new
    /// client id: the session was opened under the old client id. The next call opens a session with a new ticket.
    async fn part(&self, connection: &Connection) {
        connection.close();
        let mut link = self.link.lock().await;
        if link.line.as_ref().is_some_and(|present| present.connection.id() == connection.id()) {
            (link.line, link.device) = (None, None);
        }
    }

    fn error(&self, what: &str, why: &dyn std::fmt::Display) -> Error {
        Error::connection(format!("{what} on iod {}: {why}", self.id)).with_iod()
    }

    fn too_old(&self, what: &str, revision: u32, least: u32) -> Error {
        Error::protocol(format!(
            "{what} on iod {}: the iod speaks revision {revision} of the native protocol, and this request needs \
             revision {least}: upgrade the iod",
            self.id
        ))
    }

    fn no_connection(&self, why: &dyn std::fmt::Display) -> Error {
        Error::connection(format!("iod {}: {why}", self.id)).with_iod()
    }

    /// Returns the connection to the iod, and connects if there is none.
    async fn line(&self) -> Result<IodConnection> {
        let mut link = self.link.lock().await;
        if let Some(line) = link.line.as_ref().filter(|line| !line.connection.is_closed()) {
            return Ok(line.clone());
        }
        link.line = None;
        if let Some((until, why)) = &link.gone
            && Instant::now() < *until
        {
            return Err(why.clone());
        }
        let deadline = Instant::now() + self.shared.options.connect_timeout;
        let mut pause = *PAUSE.start();
        let mut fresh = false;
        loop {
            match self.connect(&mut link, fresh).await {
                Ok(line) => {
                    if link.ever {
                        add(&self.shared.tally.reconnects, 1);
                    }
                    link.ever = true;
                    link.gone = None;
                    link.line = Some(line.clone());
                    return Ok(line);
                }
                Err(error) if Instant::now() + pause > deadline => {
                    self.leave_alone(&mut link, &error);
                    return Err(error);
                }
                // The ticket may have expired, or the iod may have restarted with another address: request a new ticket
                // and the addresses from the mgr.
                Err(_) => fresh = true,
            }
            add(&self.shared.tally.retries, 1);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(*PAUSE.end());
        }
    }

    async fn device<'a>(&self, link: &'a mut Link, fresh: bool) -> Result<&'a native::Device> {
        if fresh || link.device.is_none() {
            let body = self.shared.source.address(Native::ID, self.id.0).await?;
            let bad = |e| Error::protocol(format!("the mgr sent a malformed address of iod {}: {e}", self.id));
            link.device = Some(native::Device::from_bytes(&body).map_err(bad)?);
        }
        link.device.as_ref().ok_or_else(|| Error::protocol(format!("the mgr has sent no address of iod {}", self.id)))
    }

    async fn connect(&self, link: &mut Link, fresh: bool) -> Result<IodConnection> {
        let device = self.device(link, fresh).await?.clone();
        let mut last = self.no_connection(&"it has no address");
        for address in addresses(&device, self.shared.boot_id) {
            let limits = Limits { in_flight: self.shared.options.in_flight_per_iod.max(1) + 1, ..Limits::default() };
            let timeout = self.shared.options.connect_timeout;
            let net = self.shared.net.clone();
            let checksums = self.shared.options.checksums && on_the_way(&address);
            self.waits.at(&address);
            match Connection::connect_sent(&address, Arc::new(NoService), limits, net, timeout).await {
                Ok(connection) => match self.hello(&connection, &device, checksums).await {
                    Ok((origin, revision)) => {
                        tracing::info!(iod = %self.id, %address, "connected to an iod");
                        let lender = self.lender(address, origin);
                        self.lends.store(lender.is_some(), Relaxed);
                        return Ok(IodConnection { connection, checksums, revision, lender });
                    }
                    Err(error) => last = error,
                },
                Err(error) => last = self.no_connection(&error),
            }
        }
        Err(last)
    }

    /// Returns the companion connection on which the iod lends files, if the client reaches the iod through a Unix
    /// socket and short-circuit reads are enabled.
    fn lender(&self, address: Address, origin: Origin) -> Option<Arc<Lender>> {
        match address {
            Address::Unix(path) if self.shared.options.short_circuit => {
                Some(Arc::new(Lender::new(self.id, path, origin, self.shared.options.connect_timeout)))
            }
            _ => None,
        }
    }

    /// Opens a session; returns the origin of the connection and the revision that the iod chose.
    async fn hello(&self, connection: &Connection, device: &native::Device, checksums: bool) -> Result<(Origin, u32)> {
        let bad = |e| Error::protocol(format!("the mgr sent a malformed ticket: {e}"));
        // Connect with a higher incarnation, so that the iod refuses late requests of earlier connections. Requests
        // that got no reply on an earlier connection are sent again over the new connection.
        let incarnation = self.shared.incarnation.fetch_add(1, Relaxed);
        let origin = Origin { owner: self.shared.owner, incarnation };
        let ticket = Ticket::from_bytes(&device.ticket).map_err(bad)?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|e| Error::usage(format!("the system provides no random numbers: {e}")))?;
        let args = HelloArgs::new(&ticket, nonce, checksums);
        let reply: HelloReply = self.greet(connection, Procedure::Hello, &args).await?;
        if reply.iod != self.id {
            let message = format!("{} answers as iod {} instead of {}", connection.peer(), reply.iod, self.id);
            return Err(Error::connection(message).with_iod());
        }
        // After HELLO, check the peer's proof that it is this iod. Without a valid proof, send it nothing more, above
        // all no capabilities.
        let proof = ticket.check(&args, &reply, origin).map_err(|_| {
            let message = format!("{} says that it is iod {} and cannot prove it", connection.peer(), self.id);
            Error::connection(message).with_iod()
        })?;
        let _: ProveReply = self.greet(connection, Procedure::Prove, &proof).await?;
        let agreed = reply.checksums == checksums
            && reply.max_payload as usize >= PAYLOAD_MAX
            && reply.max_extents as usize >= EXTENTS_MAX;
        if agreed {
            Ok((origin, reply.version))
        } else {
            Err(Error::protocol(format!("iod {} does not accept requests of full size", self.id)))
        }
    }
}

impl Iod {
    /// Sends HELLO or PROVE, the calls that open a session with the iod.
    async fn greet<T: Xdr>(&self, connection: &Connection, procedure: Procedure, args: &impl Xdr) -> Result<T> {
        let mut out = Writer::new();
        args.encode(&mut out);
        self.shared.tally.native(procedure);
        let timeout = self.shared.options.connect_timeout;
        match exchange(connection, procedure, out.finish(), timeout).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(failure)) => {
                Err(Error::status(failure.status, format!("opening a session with iod {}: {failure}", self.id)))
            }
            Err(error) => Err(self.error("opening a session", &error)),
        }
    }
}

async fn exchange<T: Xdr>(
    connection: &Connection,
    procedure: Procedure,
    args: Segments,
    timeout: Duration,
) -> std::result::Result<std::result::Result<T, wire::native::Failure>, net::Error> {
    let call = connection.call(PROGRAM, VERSION, procedure as u32, &Auth::None, args, timeout);
    let mut reply = call.await?;
    let result = decode_reply(&mut reply.body)?;
    if result.is_ok() {
        reply.body.finish()?;
    }
    Ok(result)
}

/// Returns whether payloads to this address need checksums: bytes on a network can be damaged, bytes on a Unix socket
/// cannot. Without checksums an iod can also send bytes straight from the page cache.
fn on_the_way(address: &Address) -> bool {
    !matches!(address, Address::Unix(_))
}

/// Returns the addresses of an iod, best first: its Unix socket if the iod runs on this machine, then its TCP
/// addresses. The client connects to the Unix socket only if the iod runs as root or as the user of this process.
fn addresses(device: &native::Device, boot_id: Option<[u8; 16]>) -> Vec<Address> {
    let mut out = Vec::new();
    if let Some(local) = &device.local
        && let Ok(theirs) = local.boot_id.trim().parse::<types::Fsid>()
        && boot_id == Some(theirs.0)
        && let Ok(path) = std::str::from_utf8(&local.path)
    {
        out.push(Address::Unix(PathBuf::from(path)));
    }
    out.extend(device.tcp.iter().filter_map(|text| text.parse().ok()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unix_socket_is_used_only_on_the_host_of_the_iod() {
        let here = [7; 16];
        let device = |boot: [u8; 16]| native::Device {
            iod: IodId([1; 16]),
            tcp: vec!["127.0.0.1:7".into(), "nonsense".into()],
            local: Some(native::Local {
                boot_id: types::Fsid(boot).to_string(),
                path: Bytes::from_static(b"/run/iod.sock"),
            }),
            ticket: Bytes::new(),
        };
        let tcp = Address::Tcp { host: "127.0.0.1".into(), port: 7 };
        let unix = Address::Unix("/run/iod.sock".into());
        assert_eq!(addresses(&device(here), Some(here)), [unix.clone(), tcp.clone()]);
        assert_eq!(addresses(&device([8; 16]), Some(here)), std::slice::from_ref(&tcp));
        assert_eq!(addresses(&device(here), None), std::slice::from_ref(&tcp));
        assert!(!on_the_way(&unix) && on_the_way(&tcp));
    }
}
