//! Memory of idle sessions: the test compares the memory of this process without and with a thousand sessions.
//!
//! The clients are plain sockets, so the mgr uses nearly all of the memory.

#[path = "../volume/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "../hostile/link.rs"]
#[allow(dead_code)]
mod link;
#[path = "../../../../fuzz/mutate.rs"]
mod mutate;
#[path = "../hostile/nfs.rs"]
#[allow(dead_code)]
mod nfs;
#[path = "../hostile/seeded_random.rs"]
mod seeded_random;

use cluster::Cluster;
use link::Place;
use nfs::Session;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;
use types::limits::IDLE_BYTES_MAX;
use wire::nfs4::nfs_argop4;

const SESSIONS: usize = 1000;
/// Number of sessions that the test creates before the first measurement, so that one-time allocations do not count.
const BEFORE: usize = 50;
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("/proc shows the memory");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("how much is in use");
    line.split_whitespace().next().and_then(|n| n.parse::<usize>().ok()).expect("a number") << 10
}

#[test]
fn a_thousand_idle_sessions_take_little_memory() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("as many files as the system grants");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
    let mut cluster = runtime.block_on(Cluster::stopped(1, "64K"));
    // The lease is long, because the sessions send no requests and must not expire during the test.
    cluster.config.lease_secs = 3600;
    runtime.block_on(cluster.start_mgr());
    let place = Place::Tcp(cluster.mgr().addresses()[0].socket_addr().expect("TCP"));
    let session = || {
        let mut session = Session::establish(&place, 1000, true, PATIENCE).expect("a session");
        session.ops(vec![nfs_argop4::OP_PUTROOTFH, nfs_argop4::OP_GETFH]).expect("a request");
        session
    };
    let mut held: Vec<_> = (0..BEFORE).map(|_| session()).collect();
    let before = resident();
    held.extend((0..SESSIONS).map(|_| session()));
    let after = resident();
    let each = after.saturating_sub(before) / SESSIONS;
    println!("{each} bytes for each of {SESSIONS} idle sessions");
    assert!(each <= IDLE_BYTES_MAX, "{each} bytes for each idle session");
    let number = |group: &str, name: &str| {
        let status = cluster.mgr().status();
        status.group(group).expect("it is shown").get_number(name)
    };
    assert_eq!(number("mgr", "sessions"), (BEFORE + SESSIONS) as u64);
    // The mgr frees the memory of its last reply after it has sent the reply. The client may receive the reply before
    // the memory is free, so wait.
    let nothing = || number("network", "memory_held_bytes") == 0;
    runtime.block_on(cluster::until("nothing is set aside for who does nothing", nothing));
    // The mgr must not have discarded any of the idle sessions.
    for session in &mut held {
        session.ops(vec![nfs_argop4::OP_PUTROOTFH]).expect("the session is alive");
    }
    drop(held);
    runtime.block_on(cluster.mgr.take().expect("it runs").stop());
}
