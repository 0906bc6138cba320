//! A relay of RPC records between a guest and a daemon, which can store, delay, repeat, truncate or drop the records.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Maximum length of a record that the relay forwards, in bytes.
const RECORD_MAX: usize = 4 << 20;

/// The sender of a record on a relayed connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// The guest, which is the NFS client.
    Client,
    /// The daemon, which is the NFS server.
    Server,
}

/// A generator of pseudorandom numbers that follow from a seed (SplitMix of Steele, Lea and Flood).
struct Dice(AtomicU64);

impl Dice {
    fn below(&self, end: u64) -> u64 {
        let state = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, SeqCst);
        let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Counters of the faults that the relay has injected, by kind.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Harm {
    /// Number of records that the relay has forwarded late.
    pub delayed: u64,
    /// Number of records that the relay has forwarded twice.
    pub repeated: u64,
    /// Number of records of which the relay has forwarded only a part before it closed the connection.
    pub cut: u64,
    /// Number of times that the relay has dropped a record and all later records from the same sender, and has closed
    /// the connection some time later.
    pub dropped: u64,
}

struct Shared {
    target: SocketAddr,
    seen: Mutex<Vec<(From, Vec<u8>)>>,
    remember: AtomicBool,
    harm: Mutex<Harm>,
    dice: Dice,
    /// The relay delays, repeats, truncates or drops one of this many records; 0: none.
    one_in: AtomicU64,
    /// Whether the relay drops callbacks, which are requests of the daemon to the guest.
    deaf: AtomicBool,
    /// Number of callbacks that the relay has dropped.
    unheard: AtomicU64,
    pairs: Mutex<Vec<[TcpStream; 2]>>,
    stopping: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A relay in front of one port of a daemon. Dropping this value stops the relay.
pub struct Relay {
    shared: Arc<Shared>,
    port: u16,
}

impl Relay {
    /// Starts a relay on a free port. The relay forwards to the port `target` of this machine.
    pub fn start(target: u16, seed: u64) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            target: SocketAddr::from(([127, 0, 0, 1], target)),
            seen: Mutex::default(),
            remember: AtomicBool::new(false),
            harm: Mutex::default(),
            dice: Dice(AtomicU64::new(seed)),
            one_in: AtomicU64::new(0),
            deaf: AtomicBool::new(false),
            unheard: AtomicU64::new(0),
            pairs: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.stopping.load(SeqCst) {
                    return;
                }
                // No daemon listens at the target port, so close the guest's connection.
                let Ok(server) = TcpStream::connect(accepting.target) else { continue };
                lead(&accepting, client, server);
            }
        });
        Relay { shared, port }
    }

    /// Returns the port where the relay listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on, stores a copy of each record.
    pub fn remember(&self) {
        self.shared.remember.store(true, SeqCst);
    }

    /// Returns the stored copies. Copies of records from one sender are in the order in which the sender sent the
    /// records.
    pub fn seen(&self) -> Vec<(From, Vec<u8>)> {
        lock(&self.shared.seen).clone()
    }

    /// From now on, delays, repeats, truncates or drops one of `one_in` records; 0: none.
    pub fn mistreat(&self, one_in: u64) {
        self.shared.one_in.store(one_in, SeqCst);
    }

    /// Sets whether the relay drops callbacks, which are requests of the daemon to the guest. The relay still forwards
    /// all other records.
    pub fn deafen(&self, deaf: bool) {
        self.shared.deaf.store(deaf, SeqCst);
    }

    /// Returns the number of callbacks that the relay has dropped.
    pub fn unheard(&self) -> u64 {
        self.shared.unheard.load(SeqCst)
    }

    /// Returns how many records the relay has delayed, repeated, truncated or dropped.
    pub fn harm(&self) -> Harm {
        *lock(&self.shared.harm)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stopping.store(true, SeqCst);
        for pair in lock(&self.shared.pairs).drain(..) {
            cut(&pair);
        }
        // Connect to the relay, to wake the thread that accepts connections. The thread then sees the stop flag.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn cut(pair: &[TcpStream; 2]) {
    for socket in pair {
        // Ignore the error: the peer may already have closed the connection.
        let _ = socket.shutdown(Shutdown::Both);
    }
}

fn lead(shared: &Arc<Shared>, client: TcpStream, server: TcpStream) {
    let both = || Some([client.try_clone().ok()?, server.try_clone().ok()?]);
    let (Some(kept), Some(one), Some(other)) = (both(), both(), both()) else { return };
    for socket in &kept {
        // Ignore the error: without TCP_NODELAY, the relay is slower, but works.
        let _ = socket.set_nodelay(true);
    }
    lock(&shared.pairs).push(kept);
    for (from, pair) in [(From::Client, one), (From::Server, other)] {
        let shared = shared.clone();
        thread::spawn(move || {
            // When the relay stops forwarding in one direction, for any reason, close the connection in both
            // directions.
            let _ = pass(&shared, from, &pair);
            cut(&pair);
        });
    }
}

/// Returns whether a record is a call. Otherwise it is a reply (RFC 5531 §9: the message type follows the transaction
/// id).
fn is_call(record: &[u8]) -> bool {
    record.get(4..8) == Some(&[0; 4])
}

/// Forwards the records from one sender to the other end of the connection, until the connection ends.
fn pass(shared: &Shared, from: From, pair: &[TcpStream; 2]) -> io::Result<()> {
    let (mut input, mut output) = if from == From::Client { (&pair[0], &pair[1]) } else { (&pair[1], &pair[0]) };
    loop {
        let mut record = vec![0; 4];
        input.read_exact(&mut record)?;
        let len = (u32::from_be_bytes([record[0], record[1], record[2], record[3]]) & 0x7fff_ffff) as usize;
        if len > RECORD_MAX {
            return Err(io::Error::other("a record that is too long"));
        }
        record.resize(4 + len, 0);
        input.read_exact(&mut record[4..])?;
        if shared.remember.load(SeqCst) {
            lock(&shared.seen).push((from, record[4..].to_vec()));
        }
        if from == From::Server && is_call(&record[4..]) && shared.deaf.load(SeqCst) {
            shared.unheard.fetch_add(1, SeqCst);
            continue;
        }
        let one_in = shared.one_in.load(SeqCst);
        if one_in == 0 || shared.dice.below(one_in) > 0 {
            output.write_all(&record)?;
            continue;
        }
        match shared.dice.below(8) {
            0..4 => {
                lock(&shared.harm).delayed += 1;
                thread::sleep(Duration::from_millis(shared.dice.below(300)));
                output.write_all(&record)?;
            }
            4..6 => {
                lock(&shared.harm).repeated += 1;
                output.write_all(&record)?;
                output.write_all(&record)?;
            }
            6 => {
                lock(&shared.harm).cut += 1;
                output.write_all(&record[..shared.dice.below(record.len() as u64) as usize])?;
                return Ok(());
            }
            _ => {
                lock(&shared.harm).dropped += 1;
                // Forward nothing from this sender for some time, so that the relay behaves like a host that is down.
                // The relay drops all records from this sender that arrive in this time.
                thread::sleep(Duration::from_millis(500 + shared.dice.below(2500)));
                return Ok(());
            }
        }
    }
}
