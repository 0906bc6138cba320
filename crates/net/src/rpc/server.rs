//! Accepting connections and serving them until told to stop.

use super::Limits;
use super::connection::{Connection, Service};
use crate::{Address, Counters, Listener};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long accepting pauses when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running server; dropping it stops it at once.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<Address>,
    shared: Arc<Shared>,
    acceptors: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    counters: Counters,
    stop: watch::Sender<bool>,
    connections: Mutex<HashMap<u64, Connection>>,
}

/// Serves `service` on every listener, in tasks of the current runtime.
pub fn serve<S: Service>(listeners: Vec<Listener>, service: Arc<S>, limits: Limits, counters: Counters) -> Server {
    let addresses = listeners.iter().map(|l| l.address().clone()).collect();
    let (stop, _) = watch::channel(false);
    let shared = Arc::new(Shared { limits, counters, stop, connections: Mutex::default() });
    let mut acceptors = JoinSet::new();
    for listener in listeners {
        acceptors.spawn(accept(listener, service.clone(), shared.clone()));
    }
    Server { addresses, shared, acceptors }
}

impl Server {
    /// Where it listens, in the order of the listeners.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Stops accepting, lets calls in progress finish within the grace of the limits, then closes every connection.
    pub async fn shutdown(mut self) {
        self.shared.stop.send_replace(true);
        while self.acceptors.join_next().await.is_some() {}
        let connections: Vec<_> = self.shared.connections().values().cloned().collect();
        let drained = futures_util::future::join_all(connections.iter().map(Connection::drained));
        if tokio::time::timeout(self.shared.limits.shutdown_grace, drained).await.is_err() {
            tracing::warn!("calls were still in progress when the server stopped");
        }
        for connection in connections {
            connection.close();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.send_replace(true);
        for connection in self.shared.connections().values() {
            connection.close();
        }
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
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
                tracing::warn!(address = %listener.address(), "cannot accept a connection: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if shared.connections().len() >= shared.limits.connections_max {
            tracing::warn!(peer = %stream.peer(), "too many connections: one turned away");
            shared.counters.refused();
            continue;
        }
        let (connection, receiver) = Connection::accepted(stream, shared.limits, shared.counters.clone());
        shared.connections().insert(connection.id(), connection.clone());
        let (service, shared) = (service.clone(), shared.clone());
        tokio::spawn(async move {
            let id = connection.id();
            connection.serve(receiver, service).await;
            shared.connections().remove(&id);
        });
    }
}
