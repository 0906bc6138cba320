//! In-process connections: each end passes its messages directly to the other end, without a socket.
//!
//! A call from the connecting end starts on the caller's thread. If it has nothing to wait for, it is answered without
//! a switch to another thread. A call from the serving end (a callback) starts in its own task, because the callback
//! may have to wait for the calling thread.

use super::connection::{Attended, CallContext, Connection, Link, Service, attend, carry_out};
use super::memory::Memory;
use super::outbox::Place;
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

/// An entry for clients into a server of the same process; see [`super::Server::door`].
///
/// It holds only weak references: after the server has stopped, connecting fails.
#[derive(Clone, Debug)]
pub struct Door {
    address: Address,
    shared: Weak<Shared>,
    service: Weak<dyn Erased>,
}

/// A [`Service`] with its type erased.
pub(super) trait Erased: Send + Sync {
    fn call_boxed(self: Arc<Self>, context: CallContext, body: Reader)
    -> BoxFuture<'static, Result<Segments, Refusal>>;
    fn bound(&self, header: &CallHeader, body: &Reader) -> usize;
    fn lost(&self, connection: u64);
}

impl<S: Service> Erased for S {
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

impl std::fmt::Debug for dyn Erased {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a service")
    }
}

/// An [`Erased`] service as a [`Service`].
#[derive(Debug)]
struct Any(Arc<dyn Erased>);

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

/// What one end knows about the other.
#[derive(Debug, Default)]
pub(super) struct Inside(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// The connection is being set up.
    #[default]
    New,
    Open(Arc<End>),
    Closed(Error),
}

/// One end as seen from the other. The two ends refer to each other until one of them is closed.
#[derive(Debug)]
struct End {
    link: Arc<Link>,
    service: Arc<Any>,
    /// Whether calls start on the caller's thread.
    at_once: bool,
    runtime: Handle,
}

impl Inside {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a message to the other end. The reply to a call may have arrived when this returns.
    pub(super) fn send(&self, message: &Segments) -> Result<(), Error> {
        let end = match &*self.state() {
            State::Open(end) => end.clone(),
            State::Closed(error) => return Err(error.clone()),
            State::New => return Err(Error::broken("not connected yet")),
        };
        end.take(message.to_bytes());
        Ok(())
    }

    /// Returns the reason why the connection has ended, if it has.
    pub(super) fn closed(&self) -> Option<Error> {
        match &*self.state() {
            State::Closed(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// Closes both ends; only the first reason counts.
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
    /// Handles a message from the other end.
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
            // Both ends are parts of the same program.
            Ok(Message::WrongVersion { .. }) | Err(_) => self.link.close(Error::broken("not an RPC message")),
        }
    }

    /// Executes a call once it has a slot and memory. The call completes even if its caller has stopped waiting.
    async fn work_on(self: Arc<Self>, (header, len, arrived): (CallHeader, usize, Instant), body: Reader) {
        let link = &self.link;
        let Ok(permit) = link.incoming.clone().acquire_owned().await else { return };
        let reply = self.service.reply_bound(&header, &body).min(link.limits.record_max);
        let Some(charge) = link.account.admit(len + CALL_BYTES + reply).await else { return };
        let hold = Arc::new(Place { _permit: permit, charge: Some(charge) });
        carry_out(link, &*self.service, (header, len, arrived), body, hold).await;
    }
}

impl Door {
    pub(super) fn new<S: Service>(address: Address, shared: &Arc<Shared>, service: &Arc<S>) -> Self {
        let service: Arc<dyn Erased> = service.clone();
        Door { address, shared: Arc::downgrade(shared), service: Arc::downgrade(&service) }
    }

    /// Connects to the server as [`Connection::connect`] does. For the server, the client's address is the server's
    /// own.
    ///
    /// # Errors
    /// When the server is gone or has too many connections.
    pub fn enter<S: Service>(&self, service: Arc<S>, limits: Limits, counters: Counters) -> Result<Connection, Error> {
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
            Link::inside(connection_id(), &self.address, limits, memory, counters)
        };
        let (here, there) = (link(limits, &memory, &counters), link(shared.limits, &shared.memory, &shared.counters));
        let end = |link: &Arc<Link>, service: Arc<dyn Erased>, at_once| {
            Arc::new(End { link: link.clone(), service: Arc::new(Any(service)), at_once, runtime: runtime.clone() })
        };
        let (client, server) = (end(&here, service, false), end(&there, serving, true));
        let of_client = Attended::new(here.clone(), client.service.clone());
        let of_server = Attended::new(there.clone(), server.service.clone());
        here.opened(State::Open(server));
        there.opened(State::Open(client));
        task::spawn(attend(of_client));
        let inner = Connection::of(there);
        shared.admit(&inner);
        task::spawn(async move {
            attend(of_server).await;
            shared.ended(&inner);
        });
        Ok(Connection::closing(here))
    }
}

impl Link {
    fn opened(&self, state: State) {
        if let Some(inside) = self.as_inside() {
            *inside.state() = state;
        }
    }
}
