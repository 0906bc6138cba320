//! Tests of PULL, which copies bytes from one iod to another or within one iod: its results, its errors, and its access
//! checks.

use std::net::TcpListener;

use iod::{Features, Iod, Local, Store};
use types::{FileId, Generation, IodId, ObjectId, Status};
use wire::native::*;

use crate::cluster::{ALL, Client, FSID, Fault, Server, cluster_key, config, format_store, now, pattern};

const OTHER: IodId = IodId([6; 16]);

/// Returns a capability for an object on the iod `at`. `session` is the session number of the peer that uses the
/// capability: that of the mgr, or `PULL_SESSION` for an iod that reads on behalf of the mgr.
fn sign(at: &Server, object: u64, generation: u32, rights: Rights, session: u64) -> Capability {
    let key = cluster_key().of_iod(at.running().iod());
    key.sign_capability(FSID, ObjectId::stream_0(FileId(object)), Generation(generation), rights, now() + 1000, session)
}

fn server(sums: bool) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    format_store(&Local::new(&store), Features { block_checksums: sums });
    Server { running: Some(Iod::start(config(&store)).unwrap()), dir }
}

/// Starts a second iod of the same file system, with the iod id `OTHER`.
fn another(sums: bool) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    Store::format_as(&Local::new(&store), FSID, Features { block_checksums: sums }, OTHER).unwrap();
    Server { running: Some(Iod::start(config(&store)).unwrap()), dir }
}

/// Returns a client that has opened a session as the mgr.
fn mgr(server: &Server) -> Client {
    session(server, MGR_SESSION)
}

fn session(server: &Server, number: u64) -> Client {
    let mut client = Client::new(server.tcp());
    let ticket = cluster_key().of_iod(server.running().iod()).ticket(FSID, number, now() + 1000);
    client.hello_with(&ticket, Origin { owner: [2; 16], incarnation: 0 }, true).unwrap();
    client.checksums = true;
    client
}

/// Returns the arguments of a PULL from object 2 of the iod `source` into object 1 of the iod `target`.
fn args(target: &Server, source: &Server, extents: &[(u64, u64, u32)]) -> PullArgs {
    let extents = extents.iter().map(|(from, to, len)| PullExtent { from: *from, to: *to, len: *len }).collect();
    let (iod, address) = (source.running().iod(), source.running().addrs()[0]);
    let addresses = vec!["not an address".into(), address.to_string()];
    let cap = sign(source, 2, 1, Rights::READ, PULL_SESSION);
    let ticket = cluster_key().of_iod(iod).ticket(FSID, PULL_SESSION, now() + 1000);
    let source = PullSource { cap, ticket, iod, addresses };
    PullArgs { cap: sign(target, 1, 1, Rights::WRITE, MGR_SESSION), stable: false, source, extents }
}

fn pull(client: &mut Client, args: &PullArgs) -> Result<PullReply, Fault> {
    client.call(Procedure::Pull, args)
}

/// Returns all bytes of an object.
fn content(server: &Server, object: u64) -> Vec<u8> {
    let mut client = server.client();
    let size = client.size(object).unwrap().size;
    (0..size).step_by(1 << 20).flat_map(|at| client.read(object, at, 1 << 20).unwrap()).collect()
}

#[test]
fn pull_copies_bytes_between_iods_and_within_one() {
    for (of_source, of_target) in [(false, false), (true, false), (false, true), (true, true)] {
        for within in [false, true] {
            let (one, other) = (server(of_target), another(of_source));
            let source = if within { &one } else { &other };
            let mut from = pattern(3 << 20, 1);
            source.client().write(2, 0, &from[..1 << 20]).unwrap();
            source.client().write(2, 1 << 20, &from[1 << 20..2 << 20]).unwrap();
            // The source object ends with a hole. PULL must write zeros into the target object for this hole, and for
            // the range past the end of the source object.
            source.client().truncate(2, 5 << 19).unwrap();
            from[2 << 20..].fill(0);
            let mut want = pattern(4 << 20, 9);
            for at in (0..4usize << 20).step_by(1 << 20) {
                one.client().write(1, at as u64, &want[at..at + (1 << 20)]).unwrap();
            }
            let extents = [(5, 4097, 10), (1000, 70_000, (1 << 20) + 333), (2 << 20, 3 << 20, 1 << 20), (0, 9, 0)];
            let mut asked = args(&one, source, &extents);
            asked.stable = true;
            let reply = pull(&mut mgr(&one), &asked).unwrap();
            assert_eq!((reply.stable, reply.size, reply.done, reply.stopped), (true, 4 << 20, asked.len(), None));
            for (from_at, to, len) in extents.map(|(from, to, len)| (from as usize, to as usize, len as usize)) {
                want[to..to + len].copy_from_slice(&from[from_at..from_at + len]);
            }
            assert!(content(&one, 1) == want, "within {within}, checksums {of_source} {of_target}");
            let (pulled, copied) = (one.counter("bytes.pulled"), one.counter("bytes.copied"));
            assert_eq!((pulled, copied), if within { (0, asked.len()) } else { (asked.len(), 0) });
            // If the target object does not exist, PULL creates it.
            let mut asked = args(&one, source, &[(0, 100, 1 << 20)]);
            asked.cap = sign(&one, 3, 1, Rights::WRITE, MGR_SESSION);
            assert_eq!(pull(&mut mgr(&one), &asked).unwrap().size, 100 + (1 << 20));
            assert!(content(&one, 3)[100..] == from[..1 << 20]);
        }
    }
}

#[test]
fn only_the_mgr_may_send_pull() {
    let (one, other) = (server(false), another(false));
    other.client().write(2, 0, b"secret").unwrap();
    let good = args(&one, &other, &[(0, 0, 6)]);
    let refused = |args: &PullArgs| pull(&mut mgr(&one), args).unwrap_err().status();
    assert_eq!(pull(&mut one.client(), &good).unwrap_err().status(), Status::CapRefused);
    let with = |change: fn(&mut PullArgs)| {
        let mut args = good.clone();
        change(&mut args);
        args
    };
    let mut bad = good.clone();
    bad.cap = sign(&one, 1, 1, Rights::READ, MGR_SESSION);
    assert_eq!(refused(&bad), Status::CapRefused);
    for (bad, status) in [
        (with(|args| args.extents = vec![PullExtent { from: 0, to: 0, len: 1 << 22 }; 2]), Status::TooBig),
        (with(|args| args.extents[0].from = u64::MAX), Status::FBig),
        (with(|args| args.extents[0].to = types::limits::FILE_SIZE_MAX), Status::FBig),
    ] {
        assert_eq!(refused(&bad), status, "{bad:?}");
    }
    // The source iod checks the capability for the source object. The target iod checks this capability only if it has
    // the source object itself.
    let source_cap = |at: &Server, object, rights, session| sign(at, object, 1, rights, session);
    for (object, rights, session) in [
        (2, ALL, MGR_SESSION),
        (2, Rights::WRITE, PULL_SESSION),
        (0, Rights::READ, PULL_SESSION),
        (2, Rights::ADMIN, PULL_SESSION),
    ] {
        let mut bad = good.clone();
        bad.source.cap = source_cap(&other, object, rights, session);
        let reply = pull(&mut mgr(&one), &bad).unwrap();
        assert!(reply.done == 0 && reply.stopped.is_some(), "{bad:?}");
        let mut within = args(&one, &one, &[(0, 0, 6)]);
        within.source.cap = source_cap(&one, object, rights, session);
        assert_eq!(refused(&within), Status::CapRefused, "{within:?}");
    }
    let mut bad = good.clone();
    bad.source.cap = source_cap(&one, 2, Rights::READ, PULL_SESSION);
    assert!(pull(&mut mgr(&one), &bad).unwrap().stopped.is_some(), "a capability for another iod");
    let mut same = args(&one, &one, &[(0, 10, 5)]);
    same.source.cap = sign(&one, 1, 1, Rights::READ, PULL_SESSION);
    assert_eq!(refused(&same), Status::Inval);
    assert_eq!(one.client().size(1).unwrap().size, 0, "none of the refused pulls has written");
    assert_eq!(pull(&mut mgr(&one), &good).unwrap().done, 6);
    // An iod that reads on behalf of the mgr (`PULL_SESSION`) may not request a PULL itself.
    let mut reader = session(&other, PULL_SESSION);
    assert_eq!(pull(&mut reader, &good).unwrap_err().status(), Status::CapRefused);
}

#[test]
fn pull_stops_if_the_source_cannot_be_read_and_for_no_other_reason() {
    let (one, other) = (server(false), another(false));
    other.client().write(2, 0, &pattern(1 << 20, 1)).unwrap();
    let mut mgr = mgr(&one);
    let good = args(&one, &other, &[(0, 0, 1 << 20)]);
    let mut stopped = |args: &PullArgs| {
        let reply = pull(&mut mgr, args).unwrap();
        assert_eq!(reply.size, 0);
        (reply.done, reply.stopped.is_some())
    };
    // PULL ends early for each of these wrong addresses of the source iod: a listener that never replies, a port
    // without a listener, and an iod other than the source iod.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for address in [silent.local_addr().unwrap(), gone, one.running().addrs()[0]] {
        let mut bad = good.clone();
        bad.source.addresses = vec![address.to_string()];
        assert_eq!(stopped(&bad), (0, true), "{address}");
    }
    let mut bad = good.clone();
    bad.source.addresses.clear();
    assert_eq!(stopped(&bad), (0, true));
    let mut bad = good.clone();
    bad.source.iod = IodId([7; 16]);
    assert_eq!(stopped(&bad), (0, true));
    // After a fence of the source object, PULL ends early, because the source iod refuses the old capability.
    other.client().fence(2, 5).unwrap();
    assert_eq!(stopped(&good), (0, true));
    assert_eq!(one.counter("pulls.stopped"), 6);
    let mut newer = good;
    newer.source.cap = sign(&other, 2, 5, Rights::READ, PULL_SESSION);
    assert_eq!(pull(&mut mgr, &newer).unwrap().done, 1 << 20);
    // After a fence of the target object, PULL fails, because the target iod refuses the old capability.
    one.client().fence(1, 5).unwrap();
    assert_eq!(pull(&mut mgr, &newer).unwrap_err().status(), Status::Fenced);
}

#[test]
fn two_iods_pull_from_each_other_at_once() {
    let servers = [server(false), another(true)];
    for server in &servers {
        for at in 0..4 {
            server.client().write(2, at << 20, &pattern(1 << 20, at)).unwrap();
        }
    }
    std::thread::scope(|scope| {
        for way in 0..24u64 {
            let (one, other) = (&servers[way as usize % 2], &servers[(way as usize + 1) % 2]);
            scope.spawn(move || {
                let mut asked = args(one, other, &[(0, 0, 4 << 20)]);
                asked.cap = sign(one, 10 + way, 1, Rights::WRITE, MGR_SESSION);
                let mut client = mgr(one);
                let reply = pull(&mut client, &asked).unwrap();
                assert_eq!((reply.done, reply.stopped), (4 << 20, None));
            });
        }
    });
    for way in 0..24u64 {
        let want: Vec<u8> = (0..4).flat_map(|at| pattern(1 << 20, at)).collect();
        assert!(content(&servers[way as usize % 2], 10 + way) == want);
    }
}
