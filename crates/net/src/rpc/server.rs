//! The RPC server, which accepts connections and serves their calls until it is stopped.

use super::Limits;
use super::connection::{Connection, Service, machine};
use super::in_process::InProcessConnector;
use super::memory::Memory;
use crate::{Address, Counters, Listener, may_log, task};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use types::Machine;
use types::machine::is_share_full;

/// Pause after `accept` failed, for instance because the process has no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running server. Dropping this value stops the server immediately.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<Address>,
    shared: Arc<Shared>,
    connector: Option<InProcessConnector>,
    acceptors: JoinSet<()>,
}

/// The state that all connections of a server share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) limits: Limits,
    pub(super) counters: Counters,
    stop: watch::Sender<bool>,
    pub(super) memory: Arc<Memory>,
    connections: Mutex<Connections>,
}

/// The open connections by number, and the number of connections from each machine.
#[derive(Debug, Default)]
struct Connections {
    by_id: HashMap<u64, Connection>,
    by_machine: HashMap<Machine, usize>,
}

impl Connections {
    fn add(&mut self, connection: &Connection) {
        *self.by_machine.entry(connection.machine()).or_default() += 1;
        self.by_id.insert(connection.id(), connection.clone());
    }

    fn remove(&mut self, connection: &Connection) {
        if self.by_id.remove(&connection.id()).is_none() {
            return;
        }
        let machine = connection.machine();
        if let Some(count) = self.by_machine.get_mut(&machine) {
            *count -= 1;
            if *count == 0 {
                self.by_machine.remove(&machine);
            }
        }
    }

    /// Returns the reason why the server must refuse another connection from this machine. Returns `None` if the
    /// server may accept the connection.
    fn full(&self, machine: Machine, limits: &Limits) -> Option<&'static str> {
        if self.by_id.len() >= limits.connections_max {
            return Some("too many connections");
        }
        let own = self.by_machine.get(&machine).copied().unwrap_or(0);
        let full = own >= limits.connections_per_peer || is_share_full(own, self.by_id.len(), limits.connections_max);
        full.then_some("too many connections of one machine")
    }
}

/// Serves `service` on each listener, in tasks of the current tokio runtime.
pub fn serve<S: Service>(listeners: Vec<Listener>, service: Arc<S>, limits: Limits, counters: Counters) -> Server {
    let addresses: Vec<_> = listeners.iter().map(|l| l.address().clone()).collect();
    let (stop, _) = watch::channel(false);
    let memory = Memory::new(&limits, counters.clone());
    let shared = Arc::new(Shared { limits, counters, stop, memory, connections: Mutex::default() });
    let connector = addresses.first().map(|address| InProcessConnector::new(address.clone(), &shared, &service));
    let mut acceptors = JoinSet::new();
    for listener in listeners {
        task::spawn_in(&mut acceptors, accept(listener, service.clone(), shared.clone()));
    }
    Server { addresses, shared, connector, acceptors }
}

impl Server {
    /// Returns the addresses of the listeners, in the order of the listeners.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns a handle with which clients in this process can connect without a socket. Their connections have the
    /// address of the first listener. Returns `None` if the server has no listener.
    pub fn connector(&self) -> Option<InProcessConnector> {
        self.connector.clone()
    }

    /// Stops the server: accepts no more connections, waits for calls in progress up to `Limits::shutdown_grace`, and
    /// closes all connections.
    pub async fn shutdown(mut self) {
        self.shared.stop.send_replace(true);
        while self.acceptors.join_next().await.is_some() {}
        let connections: Vec<_> = self.shared.connections().by_id.values().cloned().collect();
        let drained = futures_util::future::join_all(connections.iter().map(Connection::drained));
        if tokio::time::timeout(self.shared.limits.shutdown_grace, drained).await.is_err() {
            tracing::warn!("the server stopped before all calls were finished");
        }
        for connection in connections {
            connection.close();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.send_replace(true);
        for connection in self.shared.connections().by_id.values() {
            connection.close();
        }
    }
}

impl Shared {
    /// Returns the reason why the server must refuse another connection from this peer. Returns `None` if the server
    /// may accept the connection. Counts the refusals because of a limit, and logs them at a limited rate.
    pub(super) fn refuses(&self, peer: &Address, user: Option<u32>) -> Option<&'static str> {
        if *self.stop.borrow() {
            return Some("the server stops");
        }
        let machine = machine(peer, user);
        let why = self.connections().full(machine, &self.limits);
        why.inspect(|why| {
            if let Some(left_out) = may_log(why, machine) {
                tracing::warn!(%peer, left_out, "refused a connection: {why}");
            }
            self.counters.refused();
        })
    }

    /// Adds a connection to the table of open connections.
    pub(super) fn admit(&self, connection: &Connection) {
        self.connections().add(connection);
    }

    /// Removes a connection that has ended from the table of open connections.
    pub(super) fn ended(&self, connection: &Connection) {
        self.memory.forget(connection.id());
        self.connections().remove(connection);
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept<S: Service>(listener: Listener, service: Arc<S>, shared: Arc<Shared>) {
    let mut stop = shared.stop.subscribe();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(e) => {
                tracing::warn!(address = %listener.address(), error = %e, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if shared.refuses(&stream.peer(), stream.peer_user().map(|user| user.uid)).is_some() {
            continue;
        }
        let accepted = Connection::accepted(stream, shared.limits, &shared.memory, shared.counters.clone());
        let (connection, receiver) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                tracing::warn!(address = %listener.address(), error = %e, "cannot set up an accepted connection");
                continue;
            }
        };
        shared.admit(&connection);
        let (service, shared) = (service.clone(), shared.clone());
        task::spawn(async move {
            connection.clone().serve(receiver, service).await;
            shared.ended(&connection);
        });
    }
}
