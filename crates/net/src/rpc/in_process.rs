//! In-process RPC connections: each end passes messages to the other end by function calls, without a socket.
//!
//! A call by the client starts on the caller's thread, so a call that does not wait needs no thread switch. A call by
//! the server (a callback) starts in a task of its own. If the callback ran on the server thread that makes the call,
//! the callback could wait for work that only this thread can do.

use super::connection::{CallContext, Connection, Link, ServedConnection, Service, carry_out, serve_connection};
use super::memory::Memory;
use super::outbox::CallSlot;
use super::server::Shared;
use super::{Limits, Refusal};
use crate::transports::connection_id;
use crate::{Address, Counters, Error, task};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::runtime::Handle;
use tokio::time::Instant;
use types::limits::CALL_BYTES;
use wire::rpc::{CallHeader, Message, decode_message};
use xdr::{Reader, Segments};

/// A handle with which clients in the same process connect to a server; see [`super::Server::connector`].
///
/// A handle has only weak references to the server, so connects fail after the server has stopped.
#[derive(Clone, Debug)]
pub struct InProcessConnector {
    address: Address,
    shared: Weak<Shared>,
    service: Weak<dyn DynService>,
}

/// The object-safe version of [`Service`].
pub(super) trait DynService: Send + Sync {
    fn call_boxed(self: Arc<Self>, context: CallContext, body: Reader)
    -> BoxFuture<'static, Result<Segments, Refusal>>;
    fn bound(&self, header: &CallHeader, body: &Reader) -> usize;
    fn lost(&self, connection: u64);
}

impl<S: Service> DynService for S {
    fn call_boxed(
        self: Arc<Self>,
        context: CallContext,
        body: Reader,
    ) -> BoxFuture<'static, Result<Segments, Refusal>> {
        Box::pin(async move { self.call(context, body).await })
    }

    fn bound(&self, header: &CallHeader, body: &Reader) -> usize {
        self.reply_bound(header, body)
    }

    fn lost(&self, connection: u64) {
        self.disconnected(connection);
    }
}

impl std::fmt::Debug for dyn DynService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a service")
    }
}

/// An adapter that implements [`Service`] for a [`DynService`].
#[derive(Debug)]
struct Any(Arc<dyn DynService>);

impl Service for Any {
    fn call(&self, context: CallContext, body: Reader) -> impl Future<Output = Result<Segments, Refusal>> + Send {
        self.0.clone().call_boxed(context, body)
    }

    fn reply_bound(&self, header: &CallHeader, body: &Reader) -> usize {
        self.0.bound(header, body)
    }

    fn disconnected(&self, connection: u64) {
        self.0.lost(connection);
    }
}

/// One end of an in-process connection: its reference to the other end, or the reason why the connection has ended.
#[derive(Debug, Default)]
pub(super) struct InProcess(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// The server and the client have not connected the two ends of the connection with each other yet.
    #[default]
    New,
    Open(Arc<End>),
    Closed(Error),
}

/// One end of an in-process connection, to which the opposite end passes messages. Each end keeps the opposite end
/// alive until the connection is closed.
#[derive(Debug)]
struct End {
    link: Arc<Link>,
    service: Arc<Any>,
    /// Whether a call to this end starts on the caller's thread.
    at_once: bool,
    runtime: Handle,
}

impl InProcess {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a message to the other end. If the message is a call, its reply may arrive before this function returns.
    pub(super) fn send(&self, message: &Segments) -> Result<(), Error> {
        let end = match &*self.state() {
            State::Open(end) => end.clone(),
            State::Closed(error) => return Err(error.clone()),
            State::New => return Err(Error::broken("not connected yet")),
        };
        end.take(message.to_bytes());
        Ok(())
    }

    /// Returns the reason why the connection has ended; `None` while it is open.
    pub(super) fn closed(&self) -> Option<Error> {
        match &*self.state() {
            State::Closed(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// Closes both ends of the connection. If the connection is closed already, keeps the reason of the first close.
    pub(super) fn close(&self, error: Error) {
        let mut state = self.state();
        if matches!(*state, State::Closed(_)) {
            return;
        }
        let before = std::mem::replace(&mut *state, State::Closed(error));
        drop(state);
        if let State::Open(other) = before {
            other.link.close(Error::broken("closed by the peer"));
        }
    }
}

impl End {
    /// Handles a message that the other end has sent: a call or a reply.
    fn take(self: Arc<Self>, message: Bytes) {
        let (arrived, len) = (Instant::now(), message.len());
        let mut body = Reader::new(message.clone());
        match decode_message(&mut body) {
            Ok(Message::Reply(header)) => self.link.answered(header.xid, message),
            Ok(Message::Call(header)) => {
                drop(message);
                self.link.counters.call(true, header.program, header.procedure);
                let (at_once, runtime) = (self.at_once, self.runtime.clone());
                let work = self.work_on((header, len, arrived), body);
                match at_once {
                    true => task::begin_on(&runtime, work),
                    false => drop(task::spawn_on(&runtime, work)),
                }
            }
            // Both ends run the same build of Weir, so an invalid message can only be the result of a bug. Close the
            // connection.
            Ok(Message::WrongVersion { .. }) | Err(_) => self.link.close(Error::broken("not an RPC message")),
        }
    }

    /// Executes a call as soon as a slot and memory are free. The call runs to completion even if the caller stops
    /// waiting.
    async fn work_on(self: Arc<Self>, (header, len, arrived): (CallHeader, usize, Instant), body: Reader) {
        let link = &self.link;
        let Ok(permit) = link.incoming.clone().acquire_owned().await else { return };
        let reply = self.service.reply_bound(&header, &body).min(link.limits.record_max);
        let Some(charge) = link.account.admit(len + CALL_BYTES + reply).await else { return };
        let hold = Arc::new(CallSlot { _permit: permit, charge: Some(charge) });
        carry_out(link, &*self.service, (header, len, arrived), body, hold).await;
    }
}

impl InProcessConnector {
    pub(super) fn new<S: Service>(address: Address, shared: &Arc<Shared>, service: &Arc<S>) -> Self {
        let service: Arc<dyn DynService> = service.clone();
        InProcessConnector { address, shared: Arc::downgrade(shared), service: Arc::downgrade(&service) }
    }

    /// Connects to the server as [`Connection::connect`] does. The server sees its own address as the address of the
    /// client.
    ///
    /// # Errors
    /// When the server has stopped or has too many connections.
    pub fn connect<S: Service>(
        &self,
        service: Arc<S>,
        limits: Limits,
        counters: Counters,
    ) -> Result<Connection, Error> {
        let refused = |reason: &str| Error::Connect { address: self.address.to_string().into(), reason: reason.into() };
        let (Some(shared), Some(serving)) = (self.shared.upgrade(), self.service.upgrade()) else {
            return Err(refused("the server has stopped"));
        };
        if let Some(why) = shared.refuses(&self.address, Some(rustix::process::geteuid().as_raw())) {
            return Err(refused(why));
        }
        let runtime = Handle::current();
        let memory = Memory::new(&limits, counters.clone());
        let link = |limits, memory: &Arc<Memory>, counters: &Counters| {
            Link::in_process(connection_id(), &self.address, limits, memory, counters)
        };
        let (here, there) = (link(limits, &memory, &counters), link(shared.limits, &shared.memory, &shared.counters));
        let end = |link: &Arc<Link>, service: Arc<dyn DynService>, at_once| {
            Arc::new(End { link: link.clone(), service: Arc::new(Any(service)), at_once, runtime: runtime.clone() })
        };
        let (client, server) = (end(&here, service, false), end(&there, serving, true));
        let of_client = ServedConnection::new(here.clone(), client.service.clone());
        let of_server = ServedConnection::new(there.clone(), server.service.clone());
        here.opened(State::Open(server));
        there.opened(State::Open(client));
        task::spawn(serve_connection(of_client));
        let inner = Connection::of(there);
        shared.admit(&inner);
        task::spawn(async move {
            serve_connection(of_server).await;
            shared.ended(&inner);
        });
        Ok(Connection::closing(here))
    }
}

impl Link {
    fn opened(&self, state: State) {
        if let Some(in_process) = self.as_in_process() {
            *in_process.state() = state;
        }
    }
}
