//! Memory of dead clients: many clients with open files, locks and layouts die at the same time, and the mgr frees all
//! state of these clients.
//!
//! The test uses as many clients as a small cluster has, and each client uses all its slots. The test also limits the
//! memory that each client takes.

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
use std::time::Duration;
use wire::nfs4::*;

/// Number of clients. The mgr grants this many clients all the slots that they request.
const CLIENTS: u64 = 32;
const FILES: u64 = 20;
/// Number of session slots that the Linux client requests.
const SLOTS: u32 = 64;
/// Largest memory that the mgr may use for one client, in bytes: for 64 cached replies and the state of the client's
/// files.
const GUEST_MAX: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// The special stateid that stands for the current stateid, which the previous operation returned (RFC 8881
/// §16.2.3.1.2).
const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };

fn open(name: String, client: u64) -> nfs_argop4 {
    nfs_argop4::OP_OPEN(OPEN4args {
        seqid: 0,
        share_access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
        share_deny: 0,
        owner: open_owner4 { clientid: client, owner: name.clone().into() },
        openhow: openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr4 {
            attrmask: vec![],
            attr_vals: Default::default(),
        })),
        claim: open_claim4::CLAIM_NULL(name.into()),
    })
}

/// Creates a file and writes to it. The client releases neither its open nor its lock nor its layout of the file.
fn hold(session: &mut Session, name: String) {
    let lock = nfs_argop4::OP_LOCK(LOCK4args {
        locktype: WRITE_LT,
        reclaim: false,
        offset: 0,
        length: u64::MAX,
        locker: locker4::TRUE(open_to_lock_owner4 {
            open_seqid: 0,
            open_stateid: CURRENT,
            lock_seqid: 0,
            lock_owner: lock_owner4 { clientid: session.client, owner: name.clone().into() },
        }),
    });
    let write = nfs_argop4::OP_WRITE(WRITE4args {
        stateid: CURRENT,
        offset: 0,
        stable: UNSTABLE4,
        data: bytes::Bytes::from_static(&[7; 4096]),
    });
    let layoutget = nfs_argop4::OP_LAYOUTGET(LAYOUTGET4args {
        loga_signal_layout_avail: false,
        loga_layout_type: layout::kinds::native::KIND,
        loga_iomode: LAYOUTIOMODE4_RW,
        loga_offset: 0,
        loga_length: u64::MAX,
        loga_minlength: 0,
        loga_stateid: CURRENT,
        loga_maxcount: 4096,
    });
    let open = open(name, session.client);
    session.ops(vec![nfs_argop4::OP_PUTROOTFH, open, lock, write, layoutget]).expect("a file of one's own");
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("/proc shows the memory");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("how much is in use");
    line.split_whitespace().next().and_then(|n| n.parse::<usize>().ok()).expect("a number") << 10
}

#[test]
fn dead_clients_leave_no_state_and_no_memory() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
    let mut cluster = runtime.block_on(Cluster::stopped(2, "64K"));
    // With a lease of 3 s, the mgr deletes the state of a dead client after 27 s: after the lease and the courtesy time
    // of eight leases. The mgr would delete the state earlier only if another client requested a conflicting open or
    // lock.
    cluster.config.lease_secs = 3;
    runtime.block_on(cluster.start_mgr());
    runtime.block_on(cluster.wait_up(2));
    let place = Place::Tcp(cluster.mgr().addresses()[0].socket_addr().expect("TCP"));
    let number = |group: &str, name: &str| {
        let status = cluster.mgr().status();
        status.group(group).expect("it is shown").get_number(name)
    };
    let state = || ["clients", "sessions", "open_files", "locks", "layouts"].map(|name| number("mgr", name));
    let before = resident();
    let guest = |guest: u64| {
        let mut session = Session::establish(&place, 0, true, PATIENCE).expect("a session");
        for slot in 1..SLOTS {
            session.first_on_slot(slot, vec![nfs_argop4::OP_PUTROOTFH, nfs_argop4::OP_GETFH]).expect("a request");
        }
        (0..FILES).for_each(|file| hold(&mut session, format!("{guest}-{file}")));
        session
    };
    let sessions: Vec<_> = (0..CLIENTS).map(guest).collect();
    let each = resident().saturating_sub(before) / CLIENTS as usize;
    println!("{each} bytes for each of {CLIENTS} clients with {FILES} files and {SLOTS} slots in use");
    assert!(each <= GUEST_MAX, "{each} bytes for each client");
    assert_eq!(number("mgr", "layouts"), CLIENTS * FILES);
    // Close the connections without DESTROY_SESSION and DESTROY_CLIENTID, as if the clients had died.
    drop(sessions);
    runtime.block_on(cluster::until("their state is gone", || state() == [0; 5]));
    runtime.block_on(cluster::until("no memory is held", || number("network", "memory_held_bytes") == 0));
    // Another client can open, lock and write a file of a dead client without waiting.
    let mut other = Session::establish(&place, 0, true, PATIENCE).expect("a session");
    hold(&mut other, "0-0".to_owned());
    assert_eq!(state(), [1; 5]);
    drop(other);
    runtime.block_on(cluster.mgr.take().expect("it runs").stop());
}
