//! The listener of an iod, which accepts connections and starts a thread for each.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::Shutdown;
use types::Machine;
use types::limits::{STALL_TIME_UNDER_PRESSURE, STRANGER_TIME, STRANGERS_MAX, STRANGERS_PER_MACHINE_MAX};
use types::machine::is_share_full;

use super::Shared;
use super::connection::{Broken, Connection};
use super::socket::{Socket, coarse_now};
use crate::counters::Counters;
use crate::lock::lock;

/// Pause after `accept` failed, for instance because the process has too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket of an iod.
#[derive(Clone)]
pub(super) enum Listener {
    /// A TCP socket.
    Tcp(Arc<TcpListener>),
    /// A Unix socket.
    Unix(Arc<UnixListener>),
}

/// The socket of an open connection, and the machine of its peer.
type OpenConnection = (Arc<Socket>, Machine);

/// The open connections of an iod, by connection number.
#[derive(Default)]
pub(super) struct OpenConnections {
    sockets: Mutex<HashMap<u64, OpenConnection>>,
    changed: Condvar,
    stopping: AtomicBool,
}

/// The entry of one open connection in [`OpenConnections`]; removed when dropped.
struct Place {
    live: Arc<OpenConnections>,
    number: u64,
}

impl OpenConnections {
    /// Closes all connections. Waits until the threads of the connections have dropped their references to the store.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let mut sockets = lock(&self.sockets);
        for (socket, _) in sockets.values() {
            socket.shutdown();
        }
        while !sockets.is_empty() {
            sockets = self.changed.wait(sockets).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes the accepting threads and the watch thread return. The iod refuses later connections.
    pub(super) fn refuse(&self) {
        let _sockets = lock(&self.sockets);
        self.stopping.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Starts the watch thread, which runs until [`OpenConnections::refuse`] and disconnects peers that are too slow.
    /// Socket timeouts catch only a peer that sends nothing at all; the watch thread also catches a peer that sends one
    /// byte now and then.
    pub(super) fn watch(live: Arc<OpenConnections>, shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
        let tick = (shared.stall / 8).clamp(Duration::from_millis(5), Duration::from_millis(500));
        thread::Builder::new().name("iod-watch".into()).spawn(move || {
            let mut sockets = lock(&live.sockets);
            while !live.stopping.load(Ordering::Acquire) {
                let pressed = shared.daemon.pool.is_short();
                let most = if pressed { shared.stall.min(STALL_TIME_UNDER_PRESSURE) } else { shared.stall };
                let now = coarse_now();
                let most_of_stranger = shared.stall.min(STRANGER_TIME).as_millis();
                for (socket, peer) in sockets.values() {
                    let unproven = socket.stranger_since().map_or(0, |since| now.saturating_sub(since));
                    if u128::from(unproven) > most_of_stranger && socket.cut_off() {
                        Counters::add(&shared.daemon.counters.connections_stalled, 1);
                        if let Some(left_out) = net::may_log("not proven", *peer) {
                            tracing::info!(
                                ?peer,
                                left_out,
                                "disconnected a peer that did not prove its identity in time"
                            );
                        }
                    }
                    let span = socket.waiting_since().map_or(0, |since| now.saturating_sub(since));
                    // `Socket::cut_off` returns true only for the first call on a connection. So the iod counts a slow
                    // connection once, although the connection stays in the table until its thread has ended.
                    if u128::from(span) > most.as_millis() && socket.cut_off() {
                        Counters::add(&shared.daemon.counters.connections_stalled, 1);
                        tracing::info!(?peer, pressed, "disconnected a peer that stalled inside a request or reply");
                    }
                }
                sockets = live.changed.wait_timeout(sockets, tick).unwrap_or_else(PoisonError::into_inner).0;
            }
        })
    }
}

impl Listener {
    /// Wakes the thread that waits in `accept`; this call and all later calls of `accept` fail.
    pub(super) fn shutdown(&self) {
        let fd = match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        };
        // On Linux, `shutdown(2)` of a listening socket makes `accept` return EINVAL, so the accepting thread wakes
        // up.
        let _ = rustix::net::shutdown(fd, Shutdown::Both);
    }

    fn accept(&self) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, peer)| (stream.into(), Some(peer))),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| (stream.into(), None)),
        }
    }

    /// Accepts connections in a new thread, which ends after [`OpenConnections::refuse`] and [`Listener::shutdown`].
    pub(super) fn serve(self, shared: Arc<Shared>, live: Arc<OpenConnections>) -> io::Result<JoinHandle<()>> {
        thread::Builder::new().name("iod-accept".into()).spawn(move || {
            while !live.stopping.load(Ordering::Acquire) {
                match self.accept() {
                    Ok((fd, peer)) => welcome(fd, peer, &shared, &live),
                    Err(_) if live.stopping.load(Ordering::Acquire) => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        thread::sleep(PAUSE);
                    }
                }
            }
        })
    }
}

/// Starts the thread of a new connection, or closes the connection if too many are open.
fn welcome(fd: OwnedFd, peer: Option<SocketAddr>, shared: &Arc<Shared>, live: &Arc<OpenConnections>) {
    let machine = machine(&fd, peer);
    let counters = &shared.daemon.counters;
    let socket = match peer {
        Some(_) => Socket::tcp(fd, shared.stall, shared.congestion.as_deref()),
        None => Socket::unix(fd, shared.stall),
    };
    let socket = match socket {
        Ok(socket) => Arc::new(socket),
        Err(error) => return tracing::debug!(?peer, %error, "connection ended before it was accepted"),
    };
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    {
        let mut sockets = lock(&live.sockets);
        let (open, most) = (sockets.len(), shared.max_connections);
        // Count the connections of the peer's machine only when many connections are open, because counting takes time.
        // With few open connections, no machine can exceed the limit for one machine.
        let own = || sockets.values().filter(|(_, other)| *other == machine).count();
        let may_be_many = open >= shared.max_per_peer || is_share_full(open, open, most);
        let many = may_be_many && {
            let own = own();
            own >= shared.max_per_peer || is_share_full(own, open, most)
        };
        if open >= most || many {
            Counters::add(&counters.connections_refused, 1);
            if let Some(left_out) = net::may_log("too many connections", machine) {
                tracing::warn!(?peer, open, left_out, "too many connections: refused a new one");
            }
            return;
        }
        let strangers =
            |(number, (socket, machine)): (&u64, &OpenConnection)| Some((socket.stranger_since()?, *number, *machine));
        let gone = gives_way(sockets.iter().filter_map(strangers), machine).and_then(|number| sockets.get(&number));
        if let Some((socket, of)) = gone
            && socket.cut_off()
        {
            Counters::add(&counters.connections_refused, 1);
            if let Some(left_out) = net::may_log("strangers", *of) {
                tracing::warn!(
                    ?of,
                    left_out,
                    "too many connections of peers that have not proven their identity: disconnected the oldest"
                );
            }
        }
        sockets.insert(number, (socket.clone(), machine));
    }
    Counters::add(&counters.connections, 1);
    Counters::add(&counters.connections_open, 1);
    let place = Place { live: live.clone(), number };
    let (thread_shared, thread_socket) = (shared.clone(), socket);
    let spawned = thread::Builder::new().name(format!("iod-{number}")).spawn(move || {
        let shared = thread_shared;
        // Catch a panic in the thread of a connection, so that it ends this connection only, not the iod.
        if panic::catch_unwind(AssertUnwindSafe(|| serve((peer, machine), &shared, thread_socket))).is_err() {
            Counters::add(&shared.daemon.counters.panics, 1);
            tracing::error!(?peer, "the work for a connection panicked");
        }
        shared.daemon.counters.connections_open.fetch_sub(1, Ordering::Relaxed);
        // Drop this thread's reference to the store before removing the connection from the table of connections. Once
        // the table is empty, the caller that stopped the iod may open the store again, so no thread may refer to the
        // store then.
        drop(shared);
        drop(place);
    });
    if let Err(error) = spawned {
        counters.connections_open.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!(?peer, %error, "cannot start a thread for a connection");
    }
}

/// Chooses an unauthenticated connection to close when a connection from `newcomer` arrives, or `None` if all may
/// stay. If `newcomer` has its maximum of unauthenticated connections, chooses the oldest of them. Otherwise, if the
/// total maximum is reached, chooses the oldest connection of the machine that has the most of them. Each item of
/// `strangers` is (time of connect, connection number, machine).
fn gives_way(strangers: impl Iterator<Item = (u64, u64, Machine)>, newcomer: Machine) -> Option<u64> {
    let strangers: Vec<_> = strangers.collect();
    if strangers.len() < STRANGERS_PER_MACHINE_MAX {
        return None;
    }
    let mut of: HashMap<Machine, (usize, (u64, u64))> = HashMap::new();
    for (since, number, machine) in &strangers {
        let (many, oldest) = of.entry(*machine).or_insert((0, (*since, *number)));
        (*many, *oldest) = (*many + 1, (*oldest).min((*since, *number)));
    }
    let own = of.get(&newcomer).filter(|(many, _)| *many >= STRANGERS_PER_MACHINE_MAX);
    // Among machines with equally many connections, choose the machine with the oldest connection. Otherwise each new
    // connection would displace the connection that arrived just before it.
    let most = || of.values().max_by_key(|(many, oldest)| (*many, Reverse(*oldest)));
    let most = || most().filter(|_| strangers.len() >= STRANGERS_MAX);
    own.or_else(most).map(|(_, (_, number))| *number)
}

/// Returns the machine of a peer. Over a Unix socket, the peer's user counts as its machine.
fn machine(fd: &OwnedFd, peer: Option<SocketAddr>) -> Machine {
    let user =
        || rustix::net::sockopt::socket_peercred(fd).map_or(Machine::UNKNOWN, |peer| Machine::Local(peer.uid.as_raw()));
    peer.map_or_else(user, |peer| Machine::of(peer.ip(), peer.port()))
}

fn serve((peer, machine): (Option<SocketAddr>, Machine), shared: &Arc<Shared>, socket: Arc<Socket>) {
    match Connection::new(shared.daemon.clone(), socket.clone(), machine).run() {
        Ok(()) if socket.is_cut_off() => Counters::add(&shared.daemon.counters.connections_broken, 1),
        Ok(()) => tracing::debug!(?peer, "connection ended"),
        Err(error) => {
            Counters::add(&shared.daemon.counters.connections_broken, 1);
            match error {
                Broken::Socket(error) => tracing::info!(?peer, %error, "connection broken"),
                error @ Broken::Replaced => tracing::info!(?peer, %error, "connection ended"),
                error => {
                    if let Some(left_out) = net::may_log("no requests", machine) {
                        let what = "connection closed: the peer sent no valid request";
                        tracing::warn!(?peer, %error, left_out, "{what}");
                    }
                }
            }
        }
    }
    socket.shutdown();
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.live.sockets).remove(&self.number);
        self.live.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_unproven_connection_of_a_machine_with_too_many_is_closed() {
        let [one, two, three] = [1, 2, 3].map(|n| Machine::at(std::net::Ipv4Addr::new(10, 0, 0, n).into()));
        let of = |machine: Machine, range: std::ops::Range<u64>| range.map(move |n| (1000 + n, n, machine));
        let most = STRANGERS_PER_MACHINE_MAX as u64;
        assert_eq!(gives_way(of(one, 0..most - 1), one), None);
        assert_eq!(gives_way(of(one, 7..most + 7), one), Some(7));
        assert_eq!(
            gives_way(of(one, 0..most), two),
            None,
            "the connections of one machine do not displace those of another"
        );
        // The maximum number of unauthenticated connections is reached, so the iod closes a connection of the machine
        // that has the most of them.
        let all = STRANGERS_MAX as u64;
        let others = (0..all - 3).map(|n| (n, n, Machine::at(std::net::Ipv4Addr::from(0x0b00_0000 + n as u32).into())));
        assert_eq!(gives_way(others.chain(of(two, all..all + 3)), three), Some(all));
        // The maximum number of unauthenticated connections is reached, and each machine has one of them, so the iod
        // closes the oldest connection.
        let each = (0..all).map(|n| (n, n, Machine::at(std::net::Ipv4Addr::from(0x0b00_0000 + n as u32).into())));
        assert_eq!(gives_way(each, three), Some(0));
    }
}
