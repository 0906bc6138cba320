//! A TCP proxy that counts bytes, closes connections, and delays, drops or alters replies on request of a test.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A counter of the bytes that pass through all proxies that share it.
#[derive(Default)]
pub struct Meter {
    passed: Mutex<u64>,
    more: Condvar,
}

impl Meter {
    fn add(&self, bytes: u64) {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
        self.more.notify_all();
    }

    /// Returns the number of bytes that have passed through the proxies so far, in both directions together.
    #[allow(dead_code)]
    pub fn passed(&self) -> u64 {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `bytes` bytes have passed through the proxies. Returns false if `over` returns true before that,
    /// which means that no more bytes will pass.
    #[allow(dead_code)]
    pub fn wait(&self, bytes: u64, mut over: impl FnMut() -> bool) -> bool {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        while *passed < bytes {
            if over() {
                return false;
            }
            let waited = self.more.wait_timeout(passed, Duration::from_millis(20));
            passed = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// A proxy that forwards connections to one address; dropping the proxy stops the forwarding.
pub struct Proxy {
    shared: Arc<Shared>,
}

struct Shared {
    address: SocketAddr,
    meter: Arc<Meter>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    target: SocketAddr,
    pairs: HashMap<u64, [TcpStream; 2]>,
    next: u64,
    /// The number of replies that the proxy still forwards before it delays all later replies.
    free: u64,
    answers: u64,
    /// The number of replies that the proxy delays or has delayed.
    held: u64,
    /// The sequence number of the first connection on which the proxy delays requests. The proxy also delays requests
    /// on all later connections.
    keeping: u64,
    /// The number of replies that the proxy still forwards before it drops one reply and closes the connection of this
    /// reply.
    losing: Option<u64>,
    lost: u64,
    /// The byte string that the proxy replaces in replies, and its replacement.
    altering: Option<[Vec<u8>; 2]>,
    altered: u64,
    /// The state of the random number generator, or `None` while the proxy closes no connections at random.
    random: Option<u64>,
    cuts: u64,
    /// The number of connections that failed because no server listened at the address that the proxy forwards to.
    refused: u64,
    stopping: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns how many bytes a new connection may carry before the proxy closes it: a random number from 16 KiB to 16
    /// MiB on a logarithmic scale. The number is unlimited if the proxy does not close connections at random.
    fn budget(&mut self) -> u64 {
        let Some(random) = &mut self.random else { return u64::MAX };
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (power, fraction) = ((*random >> 60) % 10, (*random >> 33) & 0x3fff);
        ((16 << 10) + fraction) << power
    }

    /// Replaces each occurrence of one byte string in one chunk of a reply, if the test has requested this.
    fn alter(&mut self, answer: &mut [u8]) {
        let Some([genuine, false_bytes]) = &self.altering else { return };
        let mut at = 0;
        while let Some(found) = answer[at..].windows(genuine.len()).position(|bytes| bytes == genuine) {
            at += found;
            answer[at..at + false_bytes.len()].copy_from_slice(false_bytes);
            at += genuine.len();
            self.altered += 1;
        }
    }

    fn cut(&mut self, pair: u64) -> bool {
        let Some(sockets) = self.pairs.remove(&pair) else { return false };
        for socket in sockets {
            // Ignore errors, because the socket may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        true
    }
}

#[allow(dead_code)]
impl Proxy {
    /// Starts a proxy to `target` on a free port of this machine.
    pub fn start(target: SocketAddr, meter: Arc<Meter>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("no port is free");
        let state = State {
            target,
            pairs: HashMap::new(),
            next: 0,
            free: u64::MAX,
            answers: 0,
            held: 0,
            keeping: u64::MAX,
            losing: None,
            lost: 0,
            altering: None,
            altered: 0,
            random: None,
            cuts: 0,
            refused: 0,
            stopping: false,
        };
        let address = listener.local_addr().expect("the listening socket has no address");
        let shared = Arc::new(Shared { address, meter, state: Mutex::new(state), changed: Condvar::new() });
        let accepting = shared.clone();
        std::thread::spawn(move || accept(&accepting, &listener));
        Proxy { shared }
    }

    /// Returns the address where the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// From now on, forwards new connections to `target`.
    pub fn lead_to(&self, target: SocketAddr) {
        self.shared.state().target = target;
    }

    /// Closes every open connection.
    pub fn cut(&self) {
        let mut state = self.shared.state();
        let pairs: Vec<u64> = state.pairs.keys().copied().collect();
        for pair in pairs {
            state.cut(pair);
        }
        self.shared.changed.notify_all();
    }

    /// Closes all open connections at once. From now on, closes each new connection after a random number of bytes;
    /// `seed` is the seed of the random generator.
    pub fn cut_at_random(&self, seed: u64) {
        self.shared.state().random = Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        self.cut();
    }

    /// Stops closing connections at random. Returns the number of connections closed since [`Proxy::cut_at_random`].
    pub fn calm(&self) -> u64 {
        let mut state = self.shared.state();
        state.random = None;
        std::mem::take(&mut state.cuts)
    }

    /// Forwards `free` more replies, and delays all replies after them. Each chunk of bytes counts as one reply. The
    /// count is exact if the client sends each request only after it has received the previous reply.
    pub fn hold_answers_after(&self, free: u64) {
        self.shared.state().free = free;
    }

    /// Returns the number of connections that the proxy has accepted.
    pub fn connections(&self) -> u64 {
        self.shared.state().next
    }

    /// Delays requests on the connection with this sequence number, counted from 1, and on later connections. The
    /// server receives these requests after [`Proxy::let_requests_go`], even if the client has closed the connection.
    pub fn hold_requests_from(&self, connection: u64) {
        self.shared.state().keeping = connection;
    }

    /// Forwards all requests that the proxy delays.
    pub fn let_requests_go(&self) {
        self.shared.state().keeping = u64::MAX;
        self.shared.changed.notify_all();
    }

    /// Returns the number of replies that the proxy has forwarded.
    pub fn answers(&self) -> u64 {
        self.shared.state().answers
    }

    /// Waits until the proxy delays a reply, which means that the server has executed the request. Returns false if
    /// `over` returns true before that, which means that no reply will come.
    pub fn wait_for_held_answer(&self, mut over: impl FnMut() -> bool) -> bool {
        let mut state = self.shared.state();
        while state.held == 0 {
            if over() {
                return false;
            }
            let waited = self.shared.changed.wait_timeout(state, Duration::from_millis(20));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Drops the delayed replies and closes their connections. From now on, the proxy forwards replies without delay.
    pub fn drop_answers(&self) {
        self.cut();
        let mut state = self.shared.state();
        (state.free, state.held) = (u64::MAX, 0);
        self.shared.changed.notify_all();
    }

    /// Forwards `passing` replies, then drops one reply and closes the connection of this reply.
    pub fn lose_answer_after(&self, passing: u64) {
        self.shared.state().losing = Some(passing);
    }

    /// Waits until `more` further connections have failed, because no server listened at the address that the proxy
    /// forwards to. Also returns when `over` returns true.
    pub fn wait_for_refusals(&self, more: u64, mut over: impl FnMut() -> bool) {
        let mut state = self.shared.state();
        let wanted = state.refused + more;
        while state.refused < wanted && !over() {
            let waited = self.shared.changed.wait_timeout(state, Duration::from_millis(20));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// From now on, replaces the byte string `genuine` by `false_bytes` in replies, if `genuine` lies within one chunk
    /// of bytes that the proxy received.
    pub fn alter_answers(&self, genuine: &[u8], false_bytes: &[u8]) {
        assert_eq!(genuine.len(), false_bytes.len(), "the false answer has another length");
        self.shared.state().altering = Some([genuine.to_vec(), false_bytes.to_vec()]);
    }

    /// Stops altering replies.
    pub fn leave_answers(&self) {
        self.shared.state().altering = None;
    }

    /// Returns how many times [`Proxy::alter_answers`] has replaced bytes.
    pub fn altered(&self) -> u64 {
        self.shared.state().altered
    }

    /// Returns the number of replies that [`Proxy::lose_answer_after`] has dropped.
    pub fn lost(&self) -> u64 {
        self.shared.state().lost
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().stopping = true;
        self.cut();
        // Connect once, to wake the thread that accepts connections. The thread then sees that it must stop.
        let _ = TcpStream::connect(self.shared.address);
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for client in listener.incoming() {
        let (target, stopping) = {
            let state = shared.state();
            (state.target, state.stopping)
        };
        if stopping {
            return;
        }
        let Ok(client) = client else { continue };
        let Ok(server) = TcpStream::connect(target) else {
            shared.state().refused += 1;
            shared.changed.notify_all();
            continue;
        };
        // Disable Nagle's algorithm, so that the proxy adds no latency to small messages.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone()) else { continue };
        let (Ok(client_end), Ok(server_end)) = (client.try_clone(), server.try_clone()) else { continue };
        let (pair, budget) = {
            let mut state = shared.state();
            state.next += 1;
            let pair = state.next;
            state.pairs.insert(pair, [client_end, server_end]);
            (pair, Arc::new(Mutex::new(state.budget())))
        };
        let (there, back) = (shared.clone(), shared.clone());
        let other = budget.clone();
        std::thread::spawn(move || pump(&there, pair, client, server, false, &budget));
        std::thread::spawn(move || pump(&back, pair, server_too, client_too, true, &other));
    }
}

/// Forwards bytes in one direction, until the client, the server or the proxy closes the connection.
fn pump(shared: &Shared, pair: u64, mut from: TcpStream, mut to: TcpStream, answers: bool, budget: &Mutex<u64>) {
    let mut buffer = vec![0; 256 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if answers {
            if !let_through(shared, pair) {
                break;
            }
            shared.state().alter(&mut buffer[..len]);
        } else {
            let mut state = shared.state();
            while state.keeping <= pair && !state.stopping {
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        let allowed = {
            let mut left = budget.lock().unwrap_or_else(PoisonError::into_inner);
            if *left < len as u64 && shared.state().random.is_none() {
                // The test has stopped random closes. So a connection that was opened before the stop may now carry any
                // number of bytes.
                *left = u64::MAX;
            }
            let allowed = (*left).min(len as u64);
            *left -= allowed;
            allowed as usize
        };
        if to.write_all(&buffer[..allowed]).is_err() {
            break;
        }
        shared.meter.add(allowed as u64);
        if allowed < len {
            let mut state = shared.state();
            state.cuts += u64::from(state.cut(pair));
            break;
        }
    }
    shared.state().cut(pair);
    shared.changed.notify_all();
}

/// Waits while the proxy delays replies. Returns whether the proxy may forward this reply.
fn let_through(shared: &Shared, pair: u64) -> bool {
    let mut state = shared.state();
    state.losing = match state.losing {
        Some(0) => {
            state.lost += 1;
            state.cut(pair);
            None
        }
        passing => passing.map(|passing| passing - 1),
    };
    if state.free == 0 {
        state.held += 1;
        shared.changed.notify_all();
    }
    while state.free == 0 && state.pairs.contains_key(&pair) {
        state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    if !state.pairs.contains_key(&pair) {
        return false;
    }
    (state.free, state.answers) = (if state.free == u64::MAX { u64::MAX } else { state.free - 1 }, state.answers + 1);
    true
}
