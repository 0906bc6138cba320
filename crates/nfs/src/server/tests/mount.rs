//! Tests with the requests that the Linux client sends from mount to umount, and after a restart of client or server.

use super::*;
use crate::attrs::Mask;
use crate::exports::Place;
use crate::fs::{ClientRecord, Ctx, FileSystem, OpenHow};
use crate::testing::bench::{Bench, linux_channels};
use crate::testing::memory::Memory;
use futures_util::FutureExt;
use types::{Cred, FileId};

const CAPS: &[u32] = &[0, 2, 5, 6, 13, 16, 17, 75];
const FSINFO: &[u32] = &[10, 27, 30, 31, 51, 62, 65, 77, 79, 82];
const STANDARD: &[u32] = &[1, 3, 4, 8, 20, 33, 35, 36, 37, 41, 45, 47, 52, 53, 55];
const OWNER: &str = "Linux NFSv4.2 guest";

fn getattr(numbers: &[u32]) -> Arg {
    Arg::OP_GETATTR(GETATTR4args { attr_request: Mask::of(numbers).to_bitmap() })
}

fn exchanged(result: EXCHANGE_ID4res) -> EXCHANGE_ID4resok {
    match result {
        EXCHANGE_ID4res::NFS4_OK(ok) => ok,
        EXCHANGE_ID4res::Default(status) => panic!("EXCHANGE_ID: {status:?}"),
    }
}

fn attributes(result: &Res) -> crate::values::Values {
    match result {
        Res::OP_GETATTR(GETATTR4res::NFS4_OK(ok)) => attrs::decode(&ok.obj_attributes).unwrap(),
        other => panic!("not attributes: {other:?}"),
    }
}

/// Sends EXCHANGE_ID twice and then CREATE_SESSION, as Linux does at mount. Returns the reply to the second
/// EXCHANGE_ID.
fn establish(peer: &mut Peer, verifier: verifier4) -> EXCHANGE_ID4resok {
    let first = exchanged(peer.introduce(OWNER, verifier));
    let second = exchanged(peer.introduce(OWNER, verifier));
    if first.eir_flags & EXCHGID4_FLAG_CONFIRMED_R == 0 {
        assert_ne!(first.eir_clientid, second.eir_clientid, "an unconfirmed record is replaced");
    }
    let (fore, back) = linux_channels();
    let session = peer.new_session(second.eir_sequenceid, fore, back).unwrap();
    assert_eq!(session.csr_flags, CREATE_SESSION4_FLAG_CONN_BACK_CHAN);
    second
}

fn reclaim_complete(peer: &Peer) {
    peer.ok(vec![Arg::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false })]);
}

#[test]
fn the_requests_of_a_linux_mount_and_umount_succeed() {
    for minor in [1, 2] {
        let bench = Bench::default();
        let mut peer = Peer::stranger(&bench, 1);
        peer.minor = minor;
        let met = establish(&mut peer, [1; 8]);
        assert_eq!(met.eir_flags, EXCHGID4_FLAG_USE_PNFS_MDS);
        assert_eq!((met.eir_sequenceid, met.eir_server_scope.len()), (1, 16));
        reclaim_complete(&peer);
        let results = peer.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_SECINFO_NO_NAME(SECINFO_STYLE4_CURRENT_FH)]);
        let flavors = SECINFO4res::NFS4_OK(vec![secinfo4::Default(AUTH_SYS)]);
        assert_eq!(results[1], Res::OP_SECINFO_NO_NAME(flavors));
        let results = peer.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_GETFH, getattr(STANDARD)]);
        let root = handle(&results[1]);
        let standard = attributes(&results[2]);
        assert_eq!(standard.kind, Some(types::FileKind::Directory));
        assert_eq!(standard.owner, Some(0));
        for (numbers, later) in [(CAPS, &[][..]), (FSINFO, &[77, 79, 82][..]), (&[28, 29][..], &[][..])] {
            let results = peer.ok(vec![Arg::OP_PUTFH(PUTFH4args { object: root.clone() }), getattr(numbers)]);
            let values = attributes(&results[1]);
            let expected = Mask::of(numbers).without(if minor == 1 { Mask::of(later) } else { Mask::NONE });
            let sent = attrs::encode(expected, &values);
            assert_eq!(Mask::from_bitmap(&sent.attrmask).0, expected, "exactly what was asked and is offered");
        }
        let access = Arg::OP_ACCESS(ACCESS4args { access: 0x1f });
        let results = peer.ok(vec![Arg::OP_PUTFH(PUTFH4args { object: root }), access, getattr(STANDARD)]);
        let granted = ACCESS4resok { supported: 0x1f, access: 0x1f };
        assert_eq!(results[1], Res::OP_ACCESS(ACCESS4res::NFS4_OK(granted)));
        assert_eq!(bench.server.fs().owners(), vec![Bytes::from_static(OWNER.as_bytes())]);
        unmount(&peer);
        assert_eq!(bench.server.inspect(|state| state.counts()), crate::state::Counts::default());
        assert!(bench.server.fs().owners().is_empty());
    }
}

fn unmount(peer: &Peer) {
    let destroy = Arg::OP_DESTROY_SESSION(DESTROY_SESSION4args { dsa_sessionid: peer.session });
    assert_eq!(peer.send(vec![destroy]).status, NFS4_OK);
    let destroy = Arg::OP_DESTROY_CLIENTID(DESTROY_CLIENTID4args { dca_clientid: peer.client });
    assert_eq!(peer.send(vec![destroy]).status, NFS4_OK);
}

#[test]
fn a_verifier_of_ones_purges_the_record_of_an_earlier_mount() {
    let bench = Bench::default();
    let mut peer = Peer::stranger(&bench, 1);
    establish(&mut peer, [1; 8]);
    reclaim_complete(&peer);
    let first = (peer.client, peer.session);
    // The client mounts a second time: the server finds the confirmed client record.
    let again = exchanged(peer.introduce(OWNER, [1; 8]));
    assert_eq!(again.eir_clientid, first.0);
    assert_ne!(again.eir_flags & EXCHGID4_FLAG_CONFIRMED_R, 0);
    // To purge its old state, Linux sends EXCHANGE_ID with a verifier of all ones, and then with its real verifier.
    // The old session lives until a CREATE_SESSION confirms the new client record.
    let purge = exchanged(peer.introduce(OWNER, [0xff; 8]));
    assert_ne!(purge.eir_clientid, first.0);
    assert_eq!(purge.eir_flags & EXCHGID4_FLAG_CONFIRMED_R, 0);
    assert!(bench.server.inspect(|state| state.session(first.1).is_some()));
    let (fore, back) = linux_channels();
    peer.new_session(purge.eir_sequenceid, fore.clone(), back.clone()).unwrap();
    assert!(bench.server.inspect(|state| state.session(first.1).is_none()));
    let real = exchanged(peer.introduce(OWNER, [1; 8]));
    peer.new_session(real.eir_sequenceid, fore, back).unwrap();
    reclaim_complete(&peer);
    peer.ok(vec![Arg::OP_PUTROOTFH, getattr(STANDARD)]);
    let counts = bench.server.inspect(|state| state.counts());
    assert_eq!((counts.clients, counts.sessions), (1, 1));
}

#[test]
fn after_a_restart_known_clients_reclaim_and_new_clients_wait() {
    let before = Bench::default();
    let mut peer = Peer::stranger(&before, 1);
    establish(&mut peer, [1; 8]);
    reclaim_complete(&peer);
    let bench = restarted(&before);
    let handle = bench.server.fs().encode_handle(made(&bench, "a"), Place::default());
    let mut known = Peer::stranger(&bench, 2);
    establish(&mut known, [1; 8]);
    let mut other = Peer::stranger(&bench, 3);
    other.introduce("somebody else", [2; 8]);
    let (fore, back) = linux_channels();
    other.new_session(1, fore, back).unwrap();
    let reclaim = || reclaim(&handle);
    assert_eq!(other.fails(reclaim()), NFS4ERR_NO_GRACE);
    let stateid = opened(&known.ok(reclaim())[1]).stateid;
    reclaim_complete(&other);
    assert_eq!(other.fails(remove("a")), NFS4ERR_GRACE);
    assert_eq!(other.fails(read(&handle, ANONYMOUS, 0, 1)), NFS4ERR_GRACE);
    let by_name = Arg::OP_OPEN(open("a", OPEN4_SHARE_ACCESS_READ, PLAIN));
    assert_eq!(other.fails(vec![Arg::OP_PUTROOTFH, by_name.clone()]), NFS4ERR_GRACE);
    known.ok(write(&handle, stateid, 0, b"x"));
    reclaim_complete(&known);
    assert_eq!(known.fails(reclaim()), NFS4ERR_NO_GRACE);
    other.ok(vec![Arg::OP_PUTROOTFH, by_name]);
    other.ok(remove("a"));
    let again = known.fails(vec![Arg::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false })]);
    assert_eq!(again, NFS4ERR_COMPLETE_ALREADY);
}

/// Returns operations that reclaim an open of the file after a restart of the server.
fn reclaim(handle: &Bytes) -> Vec<Arg> {
    let claim = open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_NONE);
    let args = OPEN4args { claim, ..open("", OPEN4_SHARE_ACCESS_BOTH, PLAIN) };
    vec![putfh(handle), Arg::OP_OPEN(args)]
}

#[test]
fn a_removed_file_with_a_reclaimed_open_is_freed_at_the_last_close() {
    let before = Bench::default();
    let _both = (Peer::meet(&before, 1), Peer::meet(&before, 2));
    let bench = restarted(&before);
    let file = made(&bench, "a");
    let handle = bench.server.fs().encode_handle(file, Place::default());
    let ctx = Ctx { cred: Cred::root(), ..Ctx::default() };
    bench.server.fs().remove(&ctx, FileId::ROOT, &text("a"), &|_| false).now_or_never().unwrap().unwrap();
    let back = |connection: u64| {
        let mut peer = Peer::stranger(&bench, connection);
        peer.introduce(&format!("client {connection}"), [connection as u8; 8]);
        let (fore, back) = linux_channels();
        peer.new_session(1, fore, back).unwrap();
        peer
    };
    let (one, two) = (back(1), back(2));
    let first = opened(&one.ok(reclaim(&handle))[1]).stateid;
    one.ok(close(&handle, first));
    reclaim_complete(&one);
    let second = opened(&two.ok(reclaim(&handle))[1]).stateid;
    reclaim_complete(&two);
    // At the end of the grace period, the mgr calls `free_orphan` for every file without a name.
    let free = || bench.server.free_orphan(&ctx, file).now_or_never().unwrap().unwrap();
    free();
    assert!(bench.server.fs().calls().reaped.is_empty(), "it is open");
    two.ok(close(&handle, second));
    assert_eq!(bench.server.fs().calls().reaped.len(), 1);
}

fn restarted(bench: &Bench) -> Bench {
    let memory = Memory::new();
    for owner in bench.server.fs().owners() {
        memory.persist_client(ClientRecord { owner, clientid: 1 }).now_or_never().unwrap().unwrap();
    }
    Bench::new(memory)
}

/// Creates a file directly in the file system, without a client. Returns its id.
pub(super) fn made(bench: &Bench, name: &str) -> FileId {
    let ctx = Ctx { cred: Cred { uid: 1000, gid: 1000, groups: vec![] }, ..Ctx::default() };
    let set = SetAttrs { mode: Some(0o666), ..SetAttrs::default() };
    let name = text(name);
    let made = bench.server.fs().open_create(&ctx, FileId::ROOT, &name, OpenHow::Guarded, set, false).now_or_never();
    made.unwrap().unwrap().attrs.id
}
