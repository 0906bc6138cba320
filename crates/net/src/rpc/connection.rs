//! An RPC connection, over which both ends can have several calls in progress. Calls and replies are matched by xid.

use super::in_process::InProcess;
use super::memory::{Account, Memory, MemoryHolder};
use super::outbox::{CallSlot, Hold, Outbox};
use super::pending::{Call, Pending};
use super::receive::{Begun, ReceiveError, Receiver};
use super::{Limits, Refusal};
use crate::transports::{Stream, connection_id};
use crate::{Address, Counters, Error, User, local, may_log, task};
use bytes::Bytes;
use futures_util::FutureExt;
use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};
use tokio::time::{Instant, timeout_at};
use types::Machine;
use types::limits::{CALL_BYTES, REPLY_SMALL};
use wire::rpc::{Auth, CallHeader, Message, ReplyHeader, ReplyStat, decode_message, record};
use xdr::{Reader, Segments, Writer};

/// A timeout so long that it never expires in practice.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// A service that executes the calls of peers: the procedures of a server, or the callbacks of a client.
pub trait Service: Send + Sync + 'static {
    /// Executes one call. `body` contains the encoded arguments; returns the encoded results.
    ///
    /// Each call runs in a task of its own, so calls of one connection run concurrently. A call runs to completion
    /// even if the connection breaks; the reply to the call is then discarded.
    fn call(&self, context: CallContext, body: Reader) -> impl Future<Output = Result<Segments, Refusal>> + Send;

    /// Returns an upper bound for the length of the results, derived from the arguments. The server reserves this
    /// memory before it executes the call.
    fn reply_bound(&self, _header: &CallHeader, _body: &Reader) -> usize {
        REPLY_SMALL
    }

    /// Notifies the service that a connection has ended. No further call arrives over the connection, but calls in
    /// progress run to completion.
    fn disconnected(&self, _connection: u64) {}
}

/// A service that refuses all calls, because it serves no program.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoService;

impl Service for NoService {
    async fn call(&self, _: CallContext, _: Reader) -> Result<Segments, Refusal> {
        Err(Refusal::ProgUnavail)
    }
}

/// The connection and the header of a call that a service executes.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// The connection over which the call arrived. The service can send callbacks over it.
    pub peer: Connection,
    /// The RPC header of the call.
    pub header: CallHeader,
    /// Length of the header and the arguments in bytes, without record marks.
    pub message_len: usize,
    /// When the last byte of the message arrived. After this time the call may have waited for a slot or for memory.
    pub arrived: Instant,
}

/// The reply to a call that the peer executed.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The encoded results. Opaque data decoded from the results share the memory of the receive buffer.
    pub body: Reader,
}

/// A connection to a peer. A clone of this value refers to the same connection.
///
/// A connection that [`Connection::connect`] made is closed when its last clone is dropped.
#[derive(Clone, Debug)]
pub struct Connection {
    link: Arc<Link>,
    _closer: Option<Arc<Closer>>,
}

/// One end of an RPC connection: its peer, its limits, its transport, and its calls in progress.
#[derive(Debug)]
pub(super) struct Link {
    id: u64,
    peer: Address,
    local: Option<Address>,
    peer_user: Option<User>,
    pub(super) limits: Limits,
    channel: Channel,
    xid: AtomicU32,
    pending: Mutex<Pending>,
    /// Limits the outgoing calls in progress: each call takes one permit.
    outgoing: Arc<Semaphore>,
    /// Limits the incoming calls in progress: each call takes one permit, and keeps it until its reply is sent.
    pub(super) incoming: Arc<Semaphore>,
    pub(super) account: Arc<Account>,
    begun: Begun,
    closed: Notify,
    pub(super) counters: Counters,
}

/// How messages reach the other end of the connection: over a socket, or within the process.
#[derive(Debug)]
enum Channel {
    Stream(Outbox),
    InProcess(InProcess),
}

impl Channel {
    /// Sends a message without blocking. Drops `hold`, and so frees the slot and the memory of the call, when the
    /// message is sent.
    fn send(&self, message: Segments, hold: Hold) -> Result<(), Error> {
        match self {
            Channel::Stream(outbox) => outbox.send(record::mark(message), Some(hold)),
            Channel::InProcess(in_process) => in_process.send(&message),
        }
    }

    fn closed(&self) -> Option<Error> {
        match self {
            Channel::Stream(outbox) => outbox.closed(),
            Channel::InProcess(in_process) => in_process.closed(),
        }
    }

    fn close(&self, error: Error) {
        match self {
            Channel::Stream(outbox) => outbox.close(error),
            Channel::InProcess(in_process) => in_process.close(error),
        }
    }

    fn blocked(&self) -> Option<Instant> {
        match self {
            Channel::Stream(outbox) => outbox.blocked(),
            Channel::InProcess(_) => None,
        }
    }

    /// Writes the messages that callers could not write at once, because the socket accepted no more data. Runs for the
    /// lifetime of the connection.
    async fn run(&self) {
        if let Channel::Stream(outbox) = self {
            outbox.run().await;
        }
    }
}

impl MemoryHolder for Link {
    fn stalled(&self) -> Option<Duration> {
        if self.channel.closed().is_some() {
            return None;
        }
        let begun = *self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.into_iter().chain(self.channel.blocked()).map(|since| since.elapsed()).max()
    }

    fn close_stalled(&self) {
        self.close(Error::broken("the peer made no progress while memory was short"));
    }
}

/// A guard that closes the connection when its last clone is dropped.
#[derive(Debug)]
struct Closer(Arc<Link>);

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.close(Error::broken("closed here"));
    }
}

/// Returns the error for an address to which the process cannot connect.
fn unusable(address: &Address, error: &io::Error) -> Error {
    Error::Connect { address: address.to_string().into(), reason: error.to_string().into() }
}

impl Connection {
    /// Connects to `address` within `timeout`. `service` executes the calls that the peer sends.
    pub async fn connect<S: Service>(
        address: &Address,
        service: Arc<S>,
        limits: Limits,
        counters: Counters,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let stream = Self::reach(address, limits.reserved_port, timeout).await?;
        Self::begin(address, stream, service, limits, counters)
    }

    /// Connects as [`Connection::connect`] does, to an address that a peer has sent. If the address is a Unix socket,
    /// only root or the user of this process may own the socket and the listening process (see [`crate::local`]).
    ///
    /// # Errors
    /// [`Error::Connect`] if any other user owns the socket or the listening process. In this case, this process has
    /// sent nothing over the socket.
    pub async fn connect_sent<S: Service>(
        address: &Address,
        service: Arc<S>,
        limits: Limits,
        counters: Counters,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let unusable = |e| unusable(address, &e);
        if let Address::Unix(path) = address {
            local::check_path(path).map_err(unusable)?;
        }
        let stream = Self::reach(address, limits.reserved_port, timeout).await?;
        if let Address::Unix(_) = address {
            let user =
                stream.peer_user().ok_or_else(|| io::Error::other("the system does not report the user of the server"));
            user.and_then(|user| local::check_user(user.uid)).map_err(unusable)?;
        }
        Self::begin(address, stream, service, limits, counters)
    }

    async fn reach(address: &Address, reserved: bool, timeout: Duration) -> Result<Stream, Error> {
        match tokio::time::timeout(timeout, Stream::connect(address, reserved)).await {
            Ok(connected) => connected,
            Err(_) => {
                let reason = format!("no answer within {timeout:?}").into();
                Err(Error::Connect { address: address.to_string().into(), reason })
            }
        }
    }

    fn begin<S: Service>(
        address: &Address,
        stream: Stream,
        service: Arc<S>,
        limits: Limits,
        counters: Counters,
    ) -> Result<Self, Error> {
        let memory = Memory::new(&limits, counters.clone());
        let unusable = |e: io::Error| unusable(address, &e);
        let over = Connection::over(stream, limits, &memory, None, counters);
        let (connection, receiver) = over.map_err(unusable)?;
        task::spawn(receive(connection.link.clone(), receiver, service));
        Ok(Connection::closing(connection.link))
    }

    /// Returns a handle of the connection. Dropping the handle does not close the connection.
    pub(super) fn of(link: Arc<Link>) -> Self {
        Connection { link, _closer: None }
    }

    /// Returns a handle of the connection. The connection is closed when the last clone of the handle is dropped.
    pub(super) fn closing(link: Arc<Link>) -> Self {
        Connection { _closer: Some(Arc::new(Closer(link.clone()))), link }
    }

    fn over(
        stream: Stream,
        limits: Limits,
        memory: &Arc<Memory>,
        first: Option<Instant>,
        counters: Counters,
    ) -> io::Result<(Self, Receiver)> {
        let begun = Begun::default();
        let (peer, local, peer_user) = (stream.peer(), stream.local(), stream.peer_user());
        let account = memory.account(machine(&peer, peer_user.as_ref().map(|user| user.uid)));
        let (read, write) = stream.into_split()?;
        let link = Arc::new(Link {
            peer,
            local,
            peer_user,
            begun: begun.clone(),
            ..Link::new(connection_id(), limits, account.clone(), &counters, |counters| {
                Channel::Stream(Outbox::new(write, limits.stall, counters))
            })
        });
        counters.opened();
        let watched: Weak<Link> = Arc::downgrade(&link);
        memory.watch(link.id, watched);
        let writer = link.clone();
        task::spawn(async move { writer.channel.run().await });
        Ok((Connection::of(link), Receiver::new(read, &limits, account, begun, first, counters)))
    }

    /// Serves a connection that the server has accepted, until the connection ends.
    pub(super) async fn serve<S: Service>(self, receiver: Receiver, service: Arc<S>) {
        receive(self.link.clone(), receiver, service).await;
    }

    pub(super) fn accepted(
        stream: Stream,
        limits: Limits,
        memory: &Arc<Memory>,
        counters: Counters,
    ) -> io::Result<(Self, Receiver)> {
        Connection::over(stream, limits, memory, Some(Instant::now() + limits.first_request), counters)
    }

    /// Calls `procedure` of the peer with the encoded arguments `body`. Waits up to `timeout` for the results.
    ///
    /// If the maximum number of calls is in progress, waits for a slot first; this wait counts towards `timeout`.
    pub async fn call(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        auth: &Auth,
        body: Segments,
        timeout: Duration,
    ) -> Result<Reply, Error> {
        let link = &*self.link;
        let now = Instant::now();
        let until = now.checked_add(timeout).unwrap_or(now + FAR);
        let hold = link.place(until).await.ok_or(Error::Timeout(timeout))?;
        let hold = Arc::new(CallSlot { _permit: hold.ok_or_else(|| link.why_closed())?, charge: None });
        let xid = link.xid.fetch_add(1, Relaxed);
        let header = CallHeader { xid, program, version, procedure, cred: auth.clone(), verf: Auth::None };
        let mut out = Writer::new();
        header.encode(&mut out);
        let mut message = out.finish();
        message.extend(body);
        let (len, max) = (message.len(), link.limits.record_max);
        if len > max {
            return Err(Error::TooBig { len, max });
        }
        let (waiting, answer) = Waiting::new(&self.link, xid, (until, timeout), hold.clone());
        link.counters.call(false, program, procedure);
        link.channel.send(message, hold)?;
        let answer = answer.await.unwrap_or_else(|_| Err(link.why_closed()));
        drop(waiting);
        let mut body = Reader::new(answer?);
        match decode_message(&mut body)? {
            Message::Reply(ReplyHeader { stat, .. }) => Refusal::from_stat(stat)?,
            _ => return Err(xdr::Malformed::Invalid("a reply was expected").into()),
        }
        Ok(Reply { body })
    }

    /// Returns the number of this connection, which no other connection of this process has.
    pub fn id(&self) -> u64 {
        self.link.id
    }

    /// Returns the address of the peer; an empty address if the peer is a client on a Unix socket.
    pub fn peer(&self) -> &Address {
        &self.link.peer
    }

    /// Returns the address of this end of the connection; `None` if the connection does not use TCP.
    pub fn local(&self) -> Option<&Address> {
        self.link.local.as_ref()
    }

    /// Returns the user id of the peer of a Unix socket, at the time when the peer connected or began to listen.
    /// Returns `None` for TCP.
    pub fn peer_user(&self) -> Option<u32> {
        self.peer_identity().map(|user| user.uid)
    }

    /// Returns the peer's user as [`Connection::peer_user`] does, with its groups.
    pub fn peer_identity(&self) -> Option<&User> {
        self.link.peer_user.as_ref()
    }

    /// Returns the machine of the peer, by which the server limits connections and memory.
    pub fn machine(&self) -> Machine {
        machine(&self.link.peer, self.peer_user())
    }

    /// Returns whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.link.channel.closed().is_some()
    }

    /// Waits until the connection has ended; returns the reason for the end.
    pub async fn closed(&self) -> Error {
        self.link.ended().await
    }

    /// Closes the connection. Calls that wait for a reply of the peer fail with [`Error::Broken`].
    pub fn close(&self) {
        self.link.close(Error::broken("closed here"));
    }

    /// Stops accepting calls from the peer. Waits until the replies to the calls in progress are sent, or the
    /// connection ends.
    pub(super) async fn drained(&self) {
        let all = u32::try_from(self.link.limits.in_flight).unwrap_or(u32::MAX);
        // Wait until all slots are free, because all replies are sent then. `acquire_many` fails only if the
        // connection is closed; then no reply can be sent any more.
        if let Ok(places) = self.link.incoming.acquire_many(all).await {
            places.forget();
        }
    }
}

/// A guard of a call that waits for its reply. If the caller stops waiting, the guard removes the call from the table
/// of waiting calls.
struct Waiting<'a> {
    link: &'a Link,
    xid: u32,
    _hold: Hold,
}

impl<'a> Waiting<'a> {
    fn new(
        link: &'a Arc<Link>,
        xid: u32,
        (until, timeout): (Instant, Duration),
        hold: Hold,
    ) -> (Self, oneshot::Receiver<Result<Bytes, Error>>) {
        let (reply_sender, answer) = oneshot::channel();
        let alarm = link.pending().add(xid, Call { reply_sender, until, timeout });
        if let Some(at) = alarm {
            task::spawn(watch(Arc::downgrade(link), at));
        }
        (Waiting { link, xid, _hold: hold }, answer)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let call = self.link.pending().take(self.xid);
        drop(call);
    }
}

/// Ends each call whose deadline has passed with a timeout error. Sleeps until the deadline `at`, and then until the
/// next deadline of a call, again and again. Returns when no call waits for a reply, or when another task already
/// watches an earlier deadline.
async fn watch(link: Weak<Link>, mut at: Instant) {
    loop {
        tokio::time::sleep_until(at).await;
        let Some(link) = link.upgrade() else { return };
        let (late, again) = link.pending().ring(at, Instant::now());
        for call in late {
            // Ignore the error of this send: the send fails only if the caller no longer waits for the reply.
            let _ = call.reply_sender.send(Err(Error::Timeout(call.timeout)));
        }
        match again {
            Some(again) => at = again,
            None => return,
        }
    }
}

/// Returns the machine of a peer. Over a Unix socket, each user counts as a machine.
pub(super) fn machine(peer: &Address, user: Option<u32>) -> Machine {
    match (user, peer) {
        (Some(user), _) => Machine::Local(user),
        (None, Address::Tcp { port, .. }) => peer.ip().map_or(Machine::UNKNOWN, |ip| Machine::of(ip, *port)),
        (None, Address::Unix(_)) => Machine::UNKNOWN,
    }
}

impl Link {
    fn new(
        id: u64,
        limits: Limits,
        account: Arc<Account>,
        counters: &Counters,
        channel: impl FnOnce(Counters) -> Channel,
    ) -> Self {
        Link {
            id,
            peer: Address::Unix(Default::default()),
            local: None,
            peer_user: None,
            limits,
            channel: channel(counters.clone()),
            xid: AtomicU32::new(1),
            pending: Mutex::default(),
            outgoing: Arc::new(Semaphore::new(limits.in_flight)),
            incoming: Arc::new(Semaphore::new(limits.in_flight)),
            account,
            begun: Begun::default(),
            closed: Notify::new(),
            counters: counters.clone(),
        }
    }

    /// Makes one end of an in-process connection. The caller must then connect this end with the other end.
    pub(super) fn in_process(
        id: u64,
        peer: &Address,
        limits: Limits,
        memory: &Arc<Memory>,
        counters: &Counters,
    ) -> Arc<Self> {
        let own = User::own();
        let account = memory.account(Machine::Local(own.uid));
        let link = Link::new(id, limits, account, counters, |_| Channel::InProcess(InProcess::default()));
        counters.opened();
        Arc::new(Link { peer: peer.clone(), peer_user: Some(own), ..link })
    }

    fn machine(&self) -> Machine {
        machine(&self.peer, self.peer_user.as_ref().map(|user| user.uid))
    }

    /// Returns the in-process part of this connection; `None` if the connection uses a socket.
    pub(super) fn as_in_process(&self) -> Option<&InProcess> {
        match &self.channel {
            Channel::InProcess(in_process) => Some(in_process),
            Channel::Stream(_) => None,
        }
    }

    /// Waits until the connection has ended; returns the reason for the end.
    async fn ended(&self) -> Error {
        loop {
            let mut notified = std::pin::pin!(self.closed.notified());
            notified.as_mut().enable();
            if let Some(error) = self.channel.closed() {
                return error;
            }
            notified.await;
        }
    }

    /// Passes the reply to a call to the task that waits for the reply.
    pub(super) fn answered(&self, xid: u32, message: Bytes) {
        let waiting = self.pending().take(xid);
        if let Some(call) = waiting {
            // Ignore the error of this send: the send fails only if the caller no longer waits for the reply.
            let _ = call.reply_sender.send(Ok(message));
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits up to the deadline `until` for a slot for an outgoing call. Returns `None` if the deadline passes, and
    /// `Some(None)` if the connection is closed.
    async fn place(&self, until: Instant) -> Option<Option<OwnedSemaphorePermit>> {
        match self.outgoing.clone().try_acquire_owned() {
            Ok(permit) => Some(Some(permit)),
            Err(TryAcquireError::Closed) => Some(None),
            Err(TryAcquireError::NoPermits) => {
                // Box the waiting future, so that the future of a call that gets a slot at once stays small.
                let permit = Box::pin(timeout_at(until, self.outgoing.clone().acquire_owned())).await;
                Some(permit.ok()?.ok())
            }
        }
    }

    fn why_closed(&self) -> Error {
        self.channel.closed().unwrap_or_else(|| Error::broken("closed here"))
    }

    /// Closes the connection with the reason `error`, which all calls that wait for a reply return.
    ///
    /// This function closes the send queue first, and then empties the table of waiting calls. A call that enters the
    /// table after this cannot be sent, so its caller removes it from the table.
    pub(super) fn close(&self, error: Error) {
        self.channel.close(error);
        let error = self.why_closed();
        self.outgoing.close();
        self.incoming.close();
        self.account.close();
        let waiting = self.pending().take_all();
        for call in waiting {
            // Ignore the error of this send: the send fails only if the caller no longer waits for the reply.
            let _ = call.reply_sender.send(Err(error.clone()));
        }
        self.closed.notify_waiters();
    }

    fn reply(&self, xid: u32, result: Result<Segments, Refusal>, hold: Hold) {
        let encode = |stat: ReplyStat| {
            let mut out = Writer::new();
            ReplyHeader { xid, stat }.encode(&mut out);
            out.finish()
        };
        let message = match result {
            Ok(body) if body.len() + 24 <= self.limits.record_max => {
                let mut message = encode(ReplyHeader::success(xid).stat);
                message.extend(body);
                message
            }
            Ok(body) => {
                tracing::error!(peer = %self.peer, len = body.len(), "dropped a reply that exceeds the maximum record size");
                encode(Refusal::SystemErr.to_stat())
            }
            Err(refusal) => encode(refusal.to_stat()),
        };
        if let Some(charge) = &hold.charge {
            // The call has freed the memory of its arguments, so reduce the reserved memory (the charge) to the
            // length of the reply.
            charge.resize(message.len());
        }
        // The send fails if the connection has ended. Ignore the error, because then no peer waits for the reply.
        let _ = self.channel.send(message, hold);
    }
}

/// A guard that closes the connection and notifies the service when dropped, even if the runtime drops the task that
/// owns the guard.
pub(super) struct ServedConnection<S: Service> {
    link: Arc<Link>,
    service: Arc<S>,
    reason: Error,
}

impl<S: Service> ServedConnection<S> {
    pub(super) fn new(link: Arc<Link>, service: Arc<S>) -> Self {
        ServedConnection { link, service, reason: Error::broken("shut down") }
    }
}

impl<S: Service> Drop for ServedConnection<S> {
    fn drop(&mut self) {
        self.link.close(self.reason.clone());
        self.link.counters.closed();
        self.service.disconnected(self.link.id);
    }
}

/// Waits until an in-process connection has ended. Its messages need no receiving task, because the other end passes
/// them by function calls.
pub(super) async fn serve_connection<S: Service>(mut end: ServedConnection<S>) {
    end.reason = end.link.ended().await;
}

/// Receives messages until the connection ends. Passes each reply to the task that waits for the reply, and each call
/// to the service.
async fn receive<S: Service>(link: Arc<Link>, mut receiver: Receiver, service: Arc<S>) {
    let mut end = ServedConnection::new(link.clone(), service.clone());
    end.reason = loop {
        let record = match receiver.record().await {
            Ok(Some(record)) => record,
            Ok(None) => break Error::broken("closed by the peer"),
            Err(e) => {
                if let ReceiveError::Malformed(_) = e {
                    if let Some(left_out) = may_log("no record", link.machine()) {
                        tracing::warn!(peer = %link.peer, left_out, error = %e, "disconnected a peer: bad record");
                    }
                    link.counters.malformed();
                }
                break Error::broken(e);
            }
        };
        let arrived = Instant::now();
        let mut body = Reader::new(record.bytes.clone());
        let (xid, call) = match decode_message(&mut body) {
            Ok(Message::Reply(header)) => {
                link.answered(header.xid, record.bytes);
                continue;
            }
            Ok(Message::Call(header)) => (header.xid, Some(header)),
            Ok(Message::WrongVersion { xid }) => (xid, None),
            Err(e) => {
                if let Some(left_out) = may_log("no message", link.machine()) {
                    tracing::warn!(peer = %link.peer, left_out, error = %e, "disconnected a peer: not an RPC message");
                }
                link.counters.malformed();
                break Error::broken(format_args!("not an RPC message: {e}"));
            }
        };
        // While all slots or all memory are in use, wait here and receive nothing. Further calls of the peer then wait
        // in the socket buffers.
        let Ok(permit) = link.incoming.clone().acquire_owned().await else { break link.why_closed() };
        let reply = call.as_ref().map_or(REPLY_SMALL, |header| service.reply_bound(header, &body));
        let bytes = record.bytes.len() + CALL_BYTES + reply.min(link.limits.record_max);
        let charge = match record.charge {
            Some(charge) => {
                charge.resize(bytes);
                Some(charge)
            }
            None => link.account.admit(bytes).await,
        };
        let Some(charge) = charge else { break link.why_closed() };
        let hold = Arc::new(CallSlot { _permit: permit, charge: Some(charge) });
        let Some(header) = call else {
            link.reply(xid, Err(Refusal::RpcMismatch { low: 2, high: 2 }), hold);
            continue;
        };
        link.counters.call(true, header.program, header.procedure);
        let message_len = record.bytes.len();
        drop(record.bytes);
        execute(&link, &service, (header, message_len, arrived), body, hold);
    };
    drop(end);
}

/// Executes a call of the peer in a new task.
fn execute<S: Service>(
    link: &Arc<Link>,
    service: &Arc<S>,
    call: (CallHeader, usize, Instant),
    body: Reader,
    hold: Hold,
) {
    let (link, service) = (link.clone(), service.clone());
    task::spawn(async move { carry_out(&link, &*service, call, body, hold).await });
}

/// Executes a call and sends the reply. The parameter tuple contains the header of the call, the length of the call
/// message in bytes, and the time when this message arrived.
pub(super) async fn carry_out<S: Service>(
    link: &Arc<Link>,
    service: &S,
    (header, message_len, arrived): (CallHeader, usize, Instant),
    body: Reader,
    hold: Hold,
) {
    let xid = header.xid;
    let peer = Connection::of(link.clone());
    let work = service.call(CallContext { peer, header, message_len, arrived }, body);
    // If the service panics, the peer must still get a reply. Unwind safety holds, because no code uses the state of
    // the call after its panic.
    let result = AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!(peer = %link.peer, "a call panicked");
        link.counters.panicked();
        Err(Refusal::SystemErr)
    });
    link.reply(xid, result, hold);
}
