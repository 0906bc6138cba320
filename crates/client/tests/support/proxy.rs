//! A TCP proxy that counts what passes, and loses connections and loses or alters answers on purpose.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that passed through any of the proxies that share it.
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

    /// Bytes so far, both directions.
    #[allow(dead_code)]
    pub fn passed(&self) -> u64 {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many bytes have passed; false when `over` says that no more will come.
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

/// A proxy in front of one address; it ends when it is dropped.
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
    /// How many answers pass before all further ones are kept back.
    free: u64,
    answers: u64,
    /// How many runs of bytes are kept back.
    held: u64,
    /// What is asked over this connection and later ones is kept back.
    keeping: u64,
    /// The answer after so many more is thrown away together with its connection.
    losing: Option<u64>,
    lost: u64,
    /// Bytes that are replaced in answers, and what they are replaced by.
    altering: Option<[Vec<u8>; 2]>,
    altered: u64,
    /// Where random numbers come from while connections are cut at random.
    random: Option<u64>,
    cuts: u64,
    /// Connections that could not be led on, as nobody listened there.
    refused: u64,
    stopping: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How many bytes a new connection carries before it is cut: 16 KiB to 16 MiB, each size as likely as its double.
    fn budget(&mut self) -> u64 {
        let Some(random) = &mut self.random else { return u64::MAX };
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (power, fraction) = ((*random >> 60) % 10, (*random >> 33) & 0x3fff);
        ((16 << 10) + fraction) << power
    }

    /// Replaces the bytes that are to be altered in a run of an answer.
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
            // It may be gone already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        true
    }
}

#[allow(dead_code)]
impl Proxy {
    /// A proxy to `target` on a free port of this machine.
    pub fn start(target: SocketAddr, meter: Arc<Meter>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
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
        let address = listener.local_addr().expect("a socket that listens has an address");
        let shared = Arc::new(Shared { address, meter, state: Mutex::new(state), changed: Condvar::new() });
        let accepting = shared.clone();
        std::thread::spawn(move || accept(&accepting, &listener));
        Proxy { shared }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// From now on new connections lead here.
    pub fn lead_to(&self, target: SocketAddr) {
        self.shared.state().target = target;
    }

    /// Cuts every connection there is.
    pub fn cut(&self) {
        let mut state = self.shared.state();
        let pairs: Vec<u64> = state.pairs.keys().copied().collect();
        for pair in pairs {
            state.cut(pair);
        }
        self.shared.changed.notify_all();
    }

    /// From now on every new connection is cut after some bytes, as many as the seed has it; those there are, at once.
    pub fn cut_at_random(&self, seed: u64) {
        self.shared.state().random = Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        self.cut();
    }

    /// No more connections are cut at random; how many were since that began.
    pub fn calm(&self) -> u64 {
        let mut state = self.shared.state();
        state.random = None;
        std::mem::take(&mut state.cuts)
    }

    /// Keeps answers back after so many have passed. A run of bytes counts as an answer: it is one where nothing is asked
    /// before the answer before has come.
    pub fn hold_answers_after(&self, free: u64) {
        self.shared.state().free = free;
    }

    /// How many connections there were so far.
    pub fn connections(&self) -> u64 {
        self.shared.state().next
    }

    /// Keeps back what is asked over the connection of this number, counted from 1, and over later ones. It arrives when
    /// it is let go, though whoever asked may have left.
    pub fn hold_requests_from(&self, connection: u64) {
        self.shared.state().keeping = connection;
    }

    /// Lets all that was asked and kept back go.
    pub fn let_requests_go(&self) {
        self.shared.state().keeping = u64::MAX;
        self.shared.changed.notify_all();
    }

    /// Answers that have passed.
    pub fn answers(&self) -> u64 {
        self.shared.state().answers
    }

    /// Waits until an answer is kept back: whoever sent it has done what it was asked. False when `over` says that none
    /// will come.
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

    /// Throws the answers that were kept back away with their connections, and keeps none back any more.
    pub fn drop_answers(&self) {
        self.cut();
        let mut state = self.shared.state();
        (state.free, state.held) = (u64::MAX, 0);
        self.shared.changed.notify_all();
    }

    /// Throws one answer away, and its connection with it, after so many have passed.
    pub fn lose_answer_after(&self, passing: u64) {
        self.shared.state().losing = Some(passing);
    }

    /// Waits until so many more connections were refused because nobody listened at the target, or `over` says that no more
    /// will come.
    pub fn wait_for_refusals(&self, more: u64, mut over: impl FnMut() -> bool) {
        let mut state = self.shared.state();
        let wanted = state.refused + more;
        while state.refused < wanted && !over() {
            let waited = self.shared.changed.wait_timeout(state, Duration::from_millis(20));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// From now on replaces some bytes by as many others wherever they are in an answer, in one run of bytes.
    pub fn alter_answers(&self, genuine: &[u8], false_bytes: &[u8]) {
        assert_eq!(genuine.len(), false_bytes.len(), "an answer keeps its length");
        self.shared.state().altering = Some([genuine.to_vec(), false_bytes.to_vec()]);
    }

    /// Passes answers on as they are again.
    pub fn leave_answers(&self) {
        self.shared.state().altering = None;
    }

    /// How often bytes were replaced by [`Proxy::alter_answers`].
    pub fn altered(&self) -> u64 {
        self.shared.state().altered
    }

    /// Answers thrown away by [`Proxy::lose_answer_after`].
    pub fn lost(&self) -> u64 {
        self.shared.state().lost
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().stopping = true;
        self.cut();
        // Wakes the thread that accepts.
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
        // A proxy must not add to how long small messages take.
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

/// Passes bytes on until either side ends or the connection is cut.
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
                // It is calm again, for those that were made before too.
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

/// Whether an answer may pass; waits while answers are kept back.
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
