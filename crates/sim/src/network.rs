//! The simulated network of a cluster: hosts, connections with delays, partitions, resets, and silent losses.
//!
//! Clients and daemons send each message in one or several segments, as with TCP; the code calls a segment a piece. A
//! connection delivers its segments in order, each after a random delay. A segment may overtake earlier segments of
//! other connections. While two hosts are partitioned, the segments between the two hosts wait. These segments arrive
//! when the partition ends, as with TCP retransmission. If the partition lasts too long, the connection times out
//! instead.

mod pipe;
mod port;

use crate::hosts::name;
use crate::random::Rng;
use crate::trace;
use net::memory::{Network, Pipe, Port};
use net::task::Group;
use pipe::{Connection, ConnectionEnd, End};
use port::{AcceptQueue, Listening};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Identifier of a host, and of the task group that runs on the host.
pub type Host = u64;

/// Time after which a simulated TCP connection that delivers no segments is reset.
pub const SILENCE: Duration = Duration::from_secs(60);

/// Delays and window (bytes in flight) of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConditions {
    /// Maximum normal delay of a network segment in milliseconds.
    pub delay_ms: u64,
    /// Percentage of network segments that have an additional delay on top of the normal delay.
    pub late_percent: u64,
    /// Maximum additional delay in milliseconds.
    pub late_ms: u64,
    /// Maximum number of bytes in flight in one direction of a connection.
    pub window: usize,
}

/// The simulated network. Clones share the same network.
#[derive(Clone, Debug)]
pub struct Net(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when two hosts are partitioned or joined, a host starts or stops, or a port opens or closes.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    conditions: LinkConditions,
    names: BTreeMap<String, Host>,
    /// Hosts that have no power now.
    powered_off: BTreeSet<Host>,
    cuts: BTreeSet<(Host, Host)>,
    ports: BTreeMap<(Host, u16), Arc<AcceptQueue>>,
    connections: BTreeMap<u64, Arc<Connection>>,
    next: u64,
    /// The pending notifications of [`Net::after_pieces`]: the host, and how many more segments the host must send
    /// before the notification is sent.
    alarms: BTreeMap<Host, (u64, Arc<Notify>)>,
}

fn pair(a: Host, b: Host) -> (Host, Host) {
    (a.min(b), a.max(b))
}

impl Net {
    /// Returns a network of the given hosts, each with its name and number.
    pub fn new(rng: Rng, conditions: LinkConditions, hosts: impl IntoIterator<Item = (String, Host)>) -> Self {
        let state = State {
            rng,
            conditions,
            names: hosts.into_iter().collect(),
            powered_off: BTreeSet::new(),
            cuts: BTreeSet::new(),
            ports: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: 1,
            alarms: BTreeMap::new(),
        };
        Net(Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the delays and the window of the network from now on.
    pub fn set_conditions(&self, conditions: LinkConditions) {
        self.state().conditions = conditions;
    }

    fn of_host(&self, host: Host) -> Vec<Arc<Connection>> {
        let state = self.state();
        state.connections.values().filter(|c| c.hosts.contains(&host)).cloned().collect()
    }

    /// Handles the death of the process on a host: closes the ports of the host, and ends its connections. A random
    /// half of these connections end with a reset.
    pub fn process_died(&self, host: Host) {
        self.close_ports(host);
        for connection in self.of_host(host) {
            let reset = self.state().rng.percent(50);
            connection.end_of(host, if reset { ConnectionEnd::Reset } else { ConnectionEnd::Closed });
        }
        self.0.changed.notify_waiters();
    }

    /// Handles the power loss of a host. The host sends nothing more, so its peers detect the power loss only by
    /// timeouts.
    pub fn power_off(&self, host: Host) {
        self.close_ports(host);
        self.state().powered_off.insert(host);
        for connection in self.of_host(host) {
            connection.silence();
        }
        self.0.changed.notify_waiters();
    }

    /// Powers a host on. The host does not know the connections that it had before the power loss, so a peer that
    /// sends data on such a connection receives a reset.
    pub fn power_on(&self, host: Host) {
        self.state().powered_off.remove(&host);
        for connection in self.of_host(host) {
            connection.end_of(host, ConnectionEnd::Forgotten);
        }
        self.0.changed.notify_waiters();
    }

    fn close_ports(&self, host: Host) {
        let mut state = self.state();
        let ports: Vec<_> = state.ports.keys().filter(|(at, _)| *at == host).copied().collect();
        ports.iter().for_each(|queue| drop(state.ports.remove(queue)));
    }

    /// Partitions two hosts from now on.
    pub fn cut(&self, a: Host, b: Host) {
        self.state().cuts.insert(pair(a, b));
    }

    /// Ends the partition of two hosts and delivers the segments that waited for the end of the partition.
    pub fn heal(&self, a: Host, b: Host) {
        self.state().cuts.remove(&pair(a, b));
        self.between(a, b).iter().for_each(|c| c.wake());
        self.0.changed.notify_waiters();
    }

    /// Resets the connections between two hosts. The fault injector calls this function when a partition of the two
    /// hosts has lasted for [`SILENCE`].
    pub fn give_up(&self, a: Host, b: Host) {
        self.between(a, b).iter().for_each(|c| c.reset());
    }

    fn between(&self, a: Host, b: Host) -> Vec<Arc<Connection>> {
        let state = self.state();
        state.connections.values().filter(|c| pair(c.hosts[0], c.hosts[1]) == pair(a, b)).cloned().collect()
    }

    /// Resets a random connection of a host, if the host has a connection.
    pub fn reset_one(&self, host: Host) {
        let mine = self.of_host(host);
        if !mine.is_empty() {
            let which = self.state().rng.below(mine.len() as u64) as usize;
            mine[which].reset();
        }
    }

    /// Lets a random connection of a host lose all segments from now on. Neither end of the connection is notified.
    pub fn lose_one(&self, host: Host) {
        let mine = self.of_host(host);
        if !mine.is_empty() {
            let which = self.state().rng.below(mine.len() as u64) as usize;
            mine[which].silence();
        }
    }

    /// Returns a notification that is sent after the host has sent `pieces` more network segments.
    pub fn after_pieces(&self, host: Host, pieces: u64) -> Arc<Notify> {
        let told = Arc::new(Notify::new());
        self.state().alarms.insert(host, (pieces, told.clone()));
        told
    }

    /// Returns whether two hosts are partitioned.
    fn is_cut(&self, a: Host, b: Host) -> bool {
        self.state().cuts.contains(&pair(a, b))
    }

    /// Counts a network segment that the host `from` sends. Returns the random delay of the segment.
    fn departs(&self, from: Host) -> Duration {
        let mut state = self.state();
        let state = &mut *state;
        let conditions = state.conditions;
        let mut delay = state.rng.between(0, conditions.delay_ms);
        if state.rng.percent(conditions.late_percent) {
            delay += state.rng.between(0, conditions.late_ms);
        }
        if let Some((left, told)) = state.alarms.get_mut(&from) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                told.notify_one();
                state.alarms.remove(&from);
            }
        }
        Duration::from_millis(delay)
    }

    fn forget(&self, id: u64) {
        self.state().connections.remove(&id);
    }

    fn window(&self) -> usize {
        self.state().conditions.window
    }

    /// Opens the port `port` on `host`, for a server that does not use [`net::Listener`].
    pub fn listen(&self, host: Host, port: u16) -> io::Result<Arc<dyn Port>> {
        let mut state = self.state();
        if state.ports.contains_key(&(host, port)) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let queue = Arc::new(AcceptQueue::default());
        state.ports.insert((host, port), queue.clone());
        drop(state);
        self.0.changed.notify_waiters();
        Ok(Arc::new(Listening { net: self.clone(), at: (host, port), queue }))
    }

    async fn connect_from(self, from: Host, to: String, port: u16) -> io::Result<Arc<dyn Pipe>> {
        let to = self.state().names.get(&to).copied().ok_or(io::ErrorKind::NotFound)?;
        let mut again = Duration::from_secs(1);
        loop {
            tokio::time::sleep(self.departs(from)).await;
            let lost = self.is_cut(from, to) || self.state().powered_off.contains(&to);
            if !lost {
                break;
            }
            tokio::time::sleep(again).await;
            again *= 2;
        }
        let made = {
            let mut state = self.state();
            let queue = state.ports.get(&(to, port)).cloned().ok_or(io::ErrorKind::ConnectionRefused)?;
            let id = state.next;
            state.next += 1;
            let connection = Arc::new(Connection::new(id, [from, to]));
            state.connections.insert(id, connection.clone());
            (queue, connection)
        };
        let (queue, connection) = made;
        trace::event(&[1, from, to, connection.id], || {
            format!("connect {} -> {} #{}", name(from), name(to), connection.id)
        });
        let far = End::new(self.clone(), connection.clone(), 1, name(from), 0);
        let near = End::new(self.clone(), connection, 0, name(to), port);
        queue.arrive(Arc::new(far));
        tokio::time::sleep(self.departs(to)).await;
        Ok(Arc::new(near))
    }
}

impl Network for Net {
    fn connect(&self, host: &str, port: u16) -> Pin<Box<dyn Future<Output = io::Result<Arc<dyn Pipe>>> + Send>> {
        let from = Group::current().map_or(0, |group| group.number());
        Box::pin(self.clone().connect_from(from, host.to_owned(), port))
    }

    fn bind(&self, _host: &str, port: u16) -> io::Result<Arc<dyn Port>> {
        self.listen(Group::current().map_or(0, |group| group.number()), port)
    }

    fn connection_id(&self) -> u64 {
        let mut state = self.state();
        state.next += 1;
        state.next - 1
    }
}
