//! A connection of the simulated network with its two ends.

use super::{Host, Net, SILENCE};
use crate::trace;
use bytes::{Bytes, BytesMut};
use net::Address;
use net::memory::Pipe;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// How a connection ends when one of its hosts or processes has died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConnectionEnd {
    /// The opposite end of the connection receives all bytes that were sent before, and then the end of the stream.
    Closed,
    /// The opposite end of the connection receives a reset immediately.
    Reset,
    /// The opposite end of the connection receives a reset only when that end sends bytes again.
    Forgotten,
}

/// A connection between two hosts of the simulated network.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    /// The host that connected and the host that accepted.
    pub(super) hosts: [Host; 2],
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The two directions of the connection, indexed by the sending end.
    ways: [Way; 2],
    reset: bool,
    /// When the connection times out, if the network loses all segments of the connection; `None` while the network
    /// delivers segments.
    silent_until: Option<Instant>,
    /// For each end of the connection: whether the host at this end has restarted, and has forgotten the connection.
    forgotten: [bool; 2],
    /// For each end of the connection: whether this end retransmits lost bytes. If the host at the opposite end has
    /// restarted, it replies to the retransmitted bytes with a reset.
    repeats: [bool; 2],
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Way {
    under_way: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    /// When the segment that was sent last will arrive. The next segment must not arrive before this time.
    latest: Option<Instant>,
    /// When the end of the stream will arrive at the receiver; `None` until the sender has closed the stream.
    ended: Option<Instant>,
    /// Whether the receiving end has closed the connection and accepts no further bytes.
    refused: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Connection {
    pub(super) fn new(id: u64, hosts: [Host; 2]) -> Self {
        Connection { id, hosts, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all tasks that wait at either end.
    pub(super) fn wake(&self) {
        let wakers: Vec<Waker> = {
            let mut state = self.state();
            state.ways.iter_mut().flat_map(|way| [way.reader.take(), way.writer.take()]).flatten().collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn reset(&self) {
        trace::event(&[2, self.id], || format!("reset #{}", self.id));
        self.state().reset = true;
        self.wake();
    }

    /// Stops the delivery of segments in both directions of this connection from now on.
    pub(super) fn silence(&self) {
        trace::event(&[3, self.id], || format!("silence #{}", self.id));
        {
            let mut state = self.state();
            state.silent_until.get_or_insert_with(|| Instant::now() + SILENCE);
            state.repeats = [0, 1].map(|end| !state.ways[end].under_way.is_empty());
        }
        self.wake();
    }

    /// Closes the end of the connection that is on `host`. `how` determines what the opposite end receives.
    pub(super) fn end_of(&self, host: Host, how: ConnectionEnd) {
        let end = usize::from(self.hosts[1] == host);
        match how {
            ConnectionEnd::Reset => return self.reset(),
            ConnectionEnd::Closed => {
                let mut state = self.state();
                let last = state.ways[end].latest.unwrap_or_else(Instant::now);
                state.ways[end].ended.get_or_insert(last.max(Instant::now()));
                state.ways[1 - end].refused = true;
            }
            ConnectionEnd::Forgotten => {
                let mut state = self.state();
                state.forgotten[end] = true;
                if state.repeats[1 - end] {
                    drop(state);
                    return self.reset();
                }
            }
        }
        self.wake();
    }
}

/// One end of a connection of the simulated network.
#[derive(Debug)]
pub(super) struct End {
    net: Net,
    connection: Arc<Connection>,
    /// The number of this end: 0 for the host that connected, 1 for the host that accepted.
    me: usize,
    peer: Address,
    timer: Mutex<Option<Pin<Box<Sleep>>>>,
}

impl End {
    pub(super) fn new(net: Net, connection: Arc<Connection>, me: usize, host: String, port: u16) -> Self {
        End { net, connection, me, peer: Address::Tcp { host, port }, timer: Mutex::default() }
    }

    fn is_cut(&self) -> bool {
        let [a, b] = self.connection.hosts;
        self.net.is_cut(a, b)
    }

    /// Polls the timer of this end, which wakes the reading task at the time `at`.
    fn wait_until(&self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        let sleep = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(cx)
    }

    /// Fails if the connection was reset or has timed out.
    fn check(&self, state: &State) -> io::Result<()> {
        let silent = state.silent_until.is_some_and(|until| until <= Instant::now());
        if state.reset || silent { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl Pipe for End {
    fn peer(&self) -> Address {
        self.peer.clone()
    }

    fn poll_read(&self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Bytes>> {
        let cut = self.is_cut();
        loop {
            let mut state = self.connection.state();
            self.check(&state)?;
            if state.ways[self.me].ended.is_some() {
                return Poll::Ready(Ok(Bytes::new()));
            }
            let silent = state.silent_until;
            let way = &mut state.ways[1 - self.me];
            way.reader = Some(cx.waker().clone());
            let due = match (silent, way.under_way.front()) {
                (Some(until), _) => Some(until),
                (None, _) if cut => None,
                (None, Some((at, _))) => Some(*at),
                (None, None) => way.ended,
            };
            let Some(due) = due else { return Poll::Pending };
            if due > Instant::now() {
                drop(state);
                match self.wait_until(due, cx) {
                    Poll::Ready(()) => continue,
                    Poll::Pending => return Poll::Pending,
                }
            }
            let Some((_, bytes)) = way.under_way.front_mut() else { return Poll::Ready(Ok(Bytes::new())) };
            let taken = bytes.split_to(max.min(bytes.len()));
            if bytes.is_empty() {
                way.under_way.pop_front();
            }
            way.bytes -= taken.len();
            let writer = way.writer.take();
            drop(state);
            if let Some(writer) = writer {
                writer.wake();
            }
            return Poll::Ready(Ok(taken));
        }
    }

    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let window = self.net.window();
        let mut state = self.connection.state();
        self.check(&state)?;
        if state.ways[self.me].ended.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if state.forgotten[1 - self.me] {
            drop(state);
            self.connection.reset();
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let silent = state.silent_until.is_some();
        let way = &mut state.ways[self.me];
        let room = window.saturating_sub(way.bytes);
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut piece = BytesMut::new();
        for part in parts {
            let take = part.len().min(room - piece.len());
            piece.extend_from_slice(&part[..take]);
        }
        let len = piece.len();
        let delay = self.net.departs(self.connection.hosts[self.me]);
        trace::event(&[4, self.connection.id, self.me as u64, trace::digest(&piece)], || {
            let arrow = if self.me == 0 { "->" } else { "<-" };
            format!("send #{} {arrow} {len} bytes, {} ms", self.connection.id, delay.as_millis())
        });
        if way.refused || silent {
            // The network loses this segment. A real sender cannot detect this loss when it sends, so return success.
            state.repeats[self.me] = true;
            return Ok(len);
        }
        let arrives = (Instant::now() + delay).max(way.latest.unwrap_or_else(Instant::now));
        way.latest = Some(arrives);
        way.bytes += len;
        way.under_way.push_back((arrives, piece.freeze()));
        let reader = way.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(len)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let window = self.net.window();
        let mut state = self.connection.state();
        self.check(&state)?;
        let way = &mut state.ways[self.me];
        if way.ended.is_some() || way.bytes < window {
            return Poll::Ready(Ok(()));
        }
        way.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn shutdown(&self) {
        {
            let mut state = self.connection.state();
            let now = Instant::now();
            let way = &mut state.ways[self.me];
            let last = way.latest.unwrap_or(now).max(now) + Duration::from_millis(1);
            way.ended.get_or_insert(last);
            state.ways[1 - self.me].refused = true;
        }
        self.connection.wake();
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.shutdown();
        let over = self.connection.state().ways.iter().all(|way| way.ended.is_some());
        if over {
            self.net.forget(self.connection.id);
        }
    }
}
