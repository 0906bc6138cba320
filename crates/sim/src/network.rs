//! The network of a simulated cluster: hosts, connections with delay, cuts between hosts, resets, silent losses.
//!
//! A connection delivers its bytes in order, each piece after a delay of its own; connections know nothing of one
//! another, so what went out later over another one may arrive earlier. What is cut waits and arrives when the cut heals,
//! as retransmission has it, or the connection dies of its silence.

mod pipe;
mod port;

use crate::random::Rng;
use crate::trace;
use net::memory::{Network, Pipe, Port};
use net::task::Group;
use pipe::{Connection, End, Fate};
use port::{Gate, Listening};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A host, by number: that of the group of tasks that runs on it.
pub type Host = u64;

/// How long a connection lives on whose other end says nothing at all.
pub const SILENCE: Duration = Duration::from_secs(60);

/// How the network behaves when nothing is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weather {
    /// Longest usual delay of a piece, in milliseconds.
    pub delay_ms: u64,
    /// Of a hundred pieces, so many are late.
    pub late_percent: u64,
    /// How late they are at most, in milliseconds.
    pub late_ms: u64,
    /// Bytes of one direction of a connection that may be under way.
    pub window: usize,
}

/// The network; clones are the same one.
#[derive(Clone, Debug)]
pub struct Net(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told when cuts, hosts or listeners change.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    weather: Weather,
    names: BTreeMap<String, Host>,
    /// Hosts without power.
    dark: BTreeSet<Host>,
    cuts: BTreeSet<(Host, Host)>,
    gates: BTreeMap<(Host, u16), Arc<Gate>>,
    connections: BTreeMap<u64, Arc<Connection>>,
    next: u64,
    /// Told when a host has sent so many more pieces.
    alarms: BTreeMap<Host, (u64, Arc<Notify>)>,
}

fn pair(a: Host, b: Host) -> (Host, Host) {
    (a.min(b), a.max(b))
}

impl Net {
    /// A network of hosts with these names and numbers.
    pub fn new(rng: Rng, weather: Weather, hosts: impl IntoIterator<Item = (String, Host)>) -> Self {
        let state = State {
            rng,
            weather,
            names: hosts.into_iter().collect(),
            dark: BTreeSet::new(),
            cuts: BTreeSet::new(),
            gates: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: 1,
            alarms: BTreeMap::new(),
        };
        Net(Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another usual behaviour from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    fn of_host(&self, host: Host) -> Vec<Arc<Connection>> {
        let state = self.state();
        state.connections.values().filter(|c| c.hosts.contains(&host)).cloned().collect()
    }

    /// The process on a host has died: its ports are closed, its connections end, some of them with a reset.
    pub fn process_died(&self, host: Host) {
        self.close_ports(host);
        for connection in self.of_host(host) {
            let reset = self.state().rng.percent(50);
            connection.end_of(host, if reset { Fate::Reset } else { Fate::Closed });
        }
        self.0.changed.notify_waiters();
    }

    /// The power of a host is gone: it says nothing any more, and its peers learn of it late.
    pub fn lights_out(&self, host: Host) {
        self.close_ports(host);
        self.state().dark.insert(host);
        for connection in self.of_host(host) {
            connection.silence();
        }
        self.0.changed.notify_waiters();
    }

    /// The host has power again, and knows none of its old connections.
    pub fn lights_on(&self, host: Host) {
        self.state().dark.remove(&host);
        for connection in self.of_host(host) {
            connection.end_of(host, Fate::Forgotten);
        }
        self.0.changed.notify_waiters();
    }

    fn close_ports(&self, host: Host) {
        let mut state = self.state();
        let gates: Vec<_> = state.gates.keys().filter(|(at, _)| *at == host).copied().collect();
        gates.iter().for_each(|gate| drop(state.gates.remove(gate)));
    }

    /// Nothing passes between two hosts from now on.
    pub fn cut(&self, a: Host, b: Host) {
        self.state().cuts.insert(pair(a, b));
    }

    /// What waited between two hosts passes again.
    pub fn heal(&self, a: Host, b: Host) {
        self.state().cuts.remove(&pair(a, b));
        self.between(a, b).iter().for_each(|c| c.wake());
        self.0.changed.notify_waiters();
    }

    /// The connections between two hosts have been silent for too long: both ends give them up.
    pub fn give_up(&self, a: Host, b: Host) {
        self.between(a, b).iter().for_each(|c| c.reset());
    }

    fn between(&self, a: Host, b: Host) -> Vec<Arc<Connection>> {
        let state = self.state();
        state.connections.values().filter(|c| pair(c.hosts[0], c.hosts[1]) == pair(a, b)).cloned().collect()
    }

    /// Resets some connection of a host, if it has any.
    pub fn reset_one(&self, host: Host) {
        let mine = self.of_host(host);
        if !mine.is_empty() {
            let which = self.state().rng.below(mine.len() as u64) as usize;
            mine[which].reset();
        }
    }

    /// Lets some connection of a host lose everything from now on, without telling anybody.
    pub fn lose_one(&self, host: Host) {
        let mine = self.of_host(host);
        if !mine.is_empty() {
            let which = self.state().rng.below(mine.len() as u64) as usize;
            mine[which].silence();
        }
    }

    /// Completes when the host has sent so many more pieces.
    pub fn after_pieces(&self, host: Host, pieces: u64) -> Arc<Notify> {
        let told = Arc::new(Notify::new());
        self.state().alarms.insert(host, (pieces, told.clone()));
        told
    }

    /// Whether nothing passes between two hosts.
    fn is_cut(&self, a: Host, b: Host) -> bool {
        self.state().cuts.contains(&pair(a, b))
    }

    /// A piece leaves `from`: how long it is under way.
    fn departs(&self, from: Host) -> Duration {
        let mut state = self.state();
        let state = &mut *state;
        let weather = state.weather;
        let mut delay = state.rng.between(0, weather.delay_ms);
        if state.rng.percent(weather.late_percent) {
            delay += state.rng.between(0, weather.late_ms);
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
        self.state().weather.window
    }

    /// Listens on behalf of `host`, for servers that do not come over [`net::Listener`].
    pub fn listen(&self, host: Host, port: u16) -> io::Result<Arc<dyn Port>> {
        let mut state = self.state();
        if state.gates.contains_key(&(host, port)) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let gate = Arc::new(Gate::default());
        state.gates.insert((host, port), gate.clone());
        drop(state);
        self.0.changed.notify_waiters();
        Ok(Arc::new(Listening { net: self.clone(), at: (host, port), gate }))
    }

    async fn connect_from(self, from: Host, to: String, port: u16) -> io::Result<Arc<dyn Pipe>> {
        let to = self.state().names.get(&to).copied().ok_or(io::ErrorKind::NotFound)?;
        let mut again = Duration::from_secs(1);
        loop {
            tokio::time::sleep(self.departs(from)).await;
            let lost = self.is_cut(from, to) || self.state().dark.contains(&to);
            if !lost {
                break;
            }
            tokio::time::sleep(again).await;
            again *= 2;
        }
        let made = {
            let mut state = self.state();
            let gate = state.gates.get(&(to, port)).cloned().ok_or(io::ErrorKind::ConnectionRefused)?;
            let id = state.next;
            state.next += 1;
            let connection = Arc::new(Connection::new(id, [from, to]));
            state.connections.insert(id, connection.clone());
            (gate, connection)
        };
        let (gate, connection) = made;
        let named = |host: Host| {
            let state = self.state();
            state.names.iter().find(|(_, h)| **h == host).map_or_else(String::new, |(name, _)| name.clone())
        };
        trace::event(&[1, from, to, connection.id], || {
            format!("connect {} -> {} #{}", named(from), named(to), connection.id)
        });
        let far = End::new(self.clone(), connection.clone(), 1, named(from), 0);
        let near = End::new(self.clone(), connection, 0, named(to), port);
        gate.arrive(Arc::new(far));
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
