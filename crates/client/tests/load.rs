//! The automatic write threshold follows the load of the mgr: the tests make the mgr slow, or keep it from replying.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::options::Rule;
use client::{Access, CreateOptions, File, Mount, Options, Settings};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The delay that the proxy adds to each message to and from an iod.
const WAY: Duration = Duration::from_millis(20);
/// How long the thread of a busy mgr blocks each time before it serves requests again.
const BUSY: Duration = Duration::from_millis(150);
/// The time limit for the client to send small writes to the mgr again after the mgr has become idle.
const LONG: Duration = Duration::from_secs(30);

/// Starts a proxy to `target` that delays all data in both directions. Returns the address of the proxy.
fn far(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            // If the server at `target` has already stopped, close the connection.
            let Ok(far) = TcpStream::connect(target) else { continue };
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || pass(near, far));
            std::thread::spawn(move || pass(far_too, near_too));
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 256 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        std::thread::sleep(WAY);
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// What the only thread of the mgr does, apart from serving requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LoadState {
    Idle,
    /// The thread repeatedly blocks for [`BUSY`].
    Busy,
    /// The thread blocks until the test sets another state.
    Still,
}

#[derive(Clone)]
struct LoadThread(Arc<(Mutex<LoadState>, Condvar)>);

impl LoadThread {
    fn start(runtime: &Runtime) -> LoadThread {
        let load_thread = LoadThread(Arc::new((Mutex::new(LoadState::Idle), Condvar::new())));
        let own = load_thread.clone();
        runtime.spawn(async move {
            loop {
                let (state, changed) = &*own.0;
                let now = *state.lock().unwrap();
                match now {
                    LoadState::Idle => tokio::time::sleep(Duration::from_millis(1)).await,
                    LoadState::Busy => {
                        std::thread::sleep(BUSY);
                        tokio::task::yield_now().await;
                    }
                    LoadState::Still => drop(changed.wait_while(state.lock().unwrap(), |now| *now == LoadState::Still)),
                }
            }
        });
        load_thread
    }

    fn set(&self, state: LoadState) {
        *self.0.0.lock().unwrap() = state;
        self.0.1.notify_all();
    }
}

fn runtime(threads: usize) -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap()
}

/// Starts a cluster with one iod, behind a proxy that delays all messages to and from the iod.
fn far_cluster(runtime: &Runtime) -> Cluster {
    runtime.block_on(Cluster::start_behind(1, false, far))
}

async fn mounted(cluster: &Cluster) -> Mount {
    let policy =
        Settings { write_threshold: Some(Rule::Auto), access: Some(Access::Unbuffered), ..Settings::default() };
    cluster.mount(Options { policy, ..options() }).await
}

/// Creates a file of 2 MiB, for which the client gets a layout.
async fn file(mount: &Mount, name: &str) -> File {
    let file = mount.create(&mount.root(), name.as_bytes(), CreateOptions::default()).await.unwrap();
    file.write_at(0, Bytes::from(vec![1; 2 << 20])).await.unwrap();
    file.fsync().await.unwrap();
    file
}

/// Writes 1000 bytes at position number `n` behind the first 2 MiB of the file. Two positions are 4096 bytes apart, so
/// no two writes are adjacent.
async fn write(file: &File, n: u64) {
    file.write_at((2 << 20) + n * 4096, Bytes::from(vec![2; 1000])).await.unwrap();
}

/// On the direct path, the client sends single writes as probes to measure the latency. A write that begins where a
/// probe ended does not count as sequential, and stays on the mgr path.
#[test]
fn writes_behind_a_latency_probe_do_not_follow_it_to_the_direct_path() {
    let (servers, clients) = (runtime(1), runtime(2));
    let cluster = far_cluster(&servers);
    clients.block_on(async {
        let mount = mounted(&cluster).await;
        let file = file(&mount, "f").await;
        let before = mount.counters().written_via_mgr;
        for n in 0..100 {
            file.write_at((3 << 20) + n * 1000, Bytes::from(vec![2; 1000])).await.unwrap();
            file.fsync().await.unwrap();
        }
        let through = mount.counters().written_via_mgr - before;
        assert!((90_000..100_000).contains(&through), "{through} bytes went through the mgr");
        mount.disconnect().await.unwrap();
    });
}

#[test]
fn small_writes_avoid_an_overloaded_mgr_until_it_is_idle() {
    let (servers, clients) = (runtime(1), runtime(2));
    let cluster = far_cluster(&servers);
    let load_thread = LoadThread::start(&servers);
    clients.block_on(async {
        let mount = mounted(&cluster).await;
        let file = file(&mount, "f").await;
        let mut n = 0;
        for _ in 0..300 {
            n += 1;
            write(&file, n).await;
        }
        let quiet = mount.write_threshold();
        assert!(quiet > 1000, "{quiet}: the iods are far away");
        assert!(mount.counters().written_via_mgr > 200_000, "fewer bytes took the mgr path");

        load_thread.set(LoadState::Busy);
        let before = n;
        while mount.write_threshold() > 1000 {
            n += 1;
            assert!(n < before + 100, "small writes still take the path of the busy mgr");
            write(&file, n).await;
        }
        let mut asked = 0;
        while mount.write_threshold() > 0 {
            asked += 1;
            assert!(asked < 100, "the write threshold does not fall to 0");
            mount.getattr(&mount.root()).await.unwrap();
        }
        let before = mount.counters().written_via_mgr;
        for _ in 0..20 {
            n += 1;
            write(&file, n).await;
        }
        let through = mount.counters().written_via_mgr - before;
        assert!(through <= 2000, "{through} bytes through an overloaded mgr");

        load_thread.set(LoadState::Idle);
        // The mgr reports a moving average of its queue delay. So after the mgr has become idle, several reports must
        // arrive before the client sends small writes to the mgr again.
        let begun = Instant::now();
        while mount.write_threshold() <= 1000 {
            assert!(begun.elapsed() < LONG, "small writes do not return to the idle mgr");
            // The reply to GETATTR contains the queue delay of the mgr, from which the client computes the write
            // threshold again.
            mount.getattr(&mount.root()).await.unwrap();
        }
        let before = mount.counters().written_via_mgr;
        write(&file, n + 1).await;
        assert_eq!(mount.counters().written_via_mgr - before, 1000);
        file.close().await.unwrap();
    });
    drop(clients);
    servers.block_on(async { drop(cluster) });
}

#[test]
fn small_writes_do_not_wait_for_a_mgr_that_does_not_answer() {
    let (servers, clients) = (runtime(1), runtime(2));
    let cluster = far_cluster(&servers);
    let load_thread = LoadThread::start(&servers);
    clients.block_on(async {
        let mount = mounted(&cluster).await;
        let file = Arc::new(file(&mount, "f").await);
        for n in 1..=300 {
            write(&file, n).await;
        }
        assert!(mount.write_threshold() > 1000);
        load_thread.set(LoadState::Still);
        // The first small writes wait for the mgr. When the client notices this wait, it sends later writes on the
        // direct path.
        let straight = mount.counters().written_direct;
        let mut writers = Vec::new();
        while mount.counters().written_direct < straight + 5000 {
            assert!(writers.len() < 5000, "small writes still wait for the mgr");
            let (file, n) = (file.clone(), 400 + writers.len() as u64);
            writers.push(tokio::spawn(async move { write(&file, n).await }));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        load_thread.set(LoadState::Idle);
        let count = writers.len() as u64;
        for writer in writers {
            writer.await.unwrap();
        }
        let file = Arc::try_unwrap(file).map_err(drop).unwrap();
        for n in (1..=300).chain(400..400 + count) {
            let got = file.read_at((2 << 20) + n * 4096, 1000).await.unwrap();
            assert!(got.to_vec() == [2; 1000], "{n}");
        }
        file.close().await.unwrap();
    });
    drop(clients);
    servers.block_on(async { drop(cluster) });
}
