//! Tests of OPEN with all claims and create modes, OPEN_DOWNGRADE, CLOSE, and the checks of stateids.

use super::*;
use crate::exports::View;
use crate::fs::FileSystem;
use crate::testing::bench::Bench;
use types::Cred;

fn guarded() -> openflag4 {
    openflag4::OPEN4_CREATE(createhow4::GUARDED4(mode(0o600)))
}

fn exclusive(verifier: u8) -> openflag4 {
    openflag4::OPEN4_CREATE(createhow4::EXCLUSIVE4_1(creatverfattr { cva_verf: [verifier; 8], cva_attrs: mode(0o600) }))
}

fn in_root(args: OPEN4args) -> Vec<Arg> {
    vec![Arg::OP_PUTROOTFH, Arg::OP_OPEN(args), Arg::OP_GETFH]
}

#[test]
fn files_are_created_in_every_create_mode() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let made = peer.ok(in_root(open("a", OPEN4_SHARE_ACCESS_BOTH, guarded())));
    let ok = opened(&made[1]);
    assert_eq!(ok.attrset, mode(0).attrmask);
    assert_eq!(ok.rflags, OPEN4_RESULT_LOCKTYPE_POSIX | OPEN4_RESULT_PRESERVE_UNLINKED | OPEN4_RESULT_MAY_NOTIFY_LOCK);
    assert_eq!(ok.delegation, open_delegation4::OPEN_DELEGATE_NONE);
    assert_eq!(ok.stateid.seqid, 1);
    assert!(ok.cinfo.before < ok.cinfo.after);
    assert_eq!(peer.fails(in_root(open("a", OPEN4_SHARE_ACCESS_BOTH, guarded()))), NFS4ERR_EXIST);
    let again = opened(&peer.ok(in_root(open("a", OPEN4_SHARE_ACCESS_READ, unchecked(0o644))))[1]);
    assert_eq!((again.stateid.other, again.stateid.seqid), (ok.stateid.other, 2), "one open per owner and file");
    assert!(again.attrset.is_empty(), "nothing is set on a file that was there");
    peer.ok(in_root(open("e", OPEN4_SHARE_ACCESS_BOTH, exclusive(1))));
    peer.ok(in_root(open("e", OPEN4_SHARE_ACCESS_BOTH, exclusive(1))));
    assert_eq!(peer.fails(in_root(open("e", OPEN4_SHARE_ACCESS_BOTH, exclusive(2)))), NFS4ERR_EXIST);
}

#[test]
fn only_an_open_that_creates_accepts_the_unsynced_attribute() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let attrs = attrs::encode_new(&SetAttrs { mode: Some(0o644), ..SetAttrs::default() }, true);
    let how = || openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(attrs.clone()));
    let made = opened(&peer.ok(in_root(open("a", OPEN4_SHARE_ACCESS_BOTH, how())))[1]);
    assert_eq!(made.attrset, attrs.attrmask);
    let found = opened(&peer.ok(in_root(open("a", OPEN4_SHARE_ACCESS_BOTH, how())))[1]);
    assert!(found.attrset.is_empty(), "{:?}", found.attrset);
    let create = CREATE4args { objtype: createtype4::NF4DIR, objname: text("d"), createattrs: attrs.clone() };
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, Arg::OP_CREATE(create)]), NFS4ERR_ATTRNOTSUPP);
    let set = SETATTR4args { stateid: ANONYMOUS, obj_attributes: attrs };
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, Arg::OP_SETATTR(set)]), NFS4ERR_ATTRNOTSUPP);
}

#[test]
fn an_unchecked_create_with_size_zero_truncates_the_file() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (stateid, handle) = file(&peer, "a");
    peer.ok(write(&handle, stateid, 0, b"0123456789"));
    let cut = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(attrs::encode_set(&size(0))));
    let ok = opened(&peer.ok(in_root(open("a", OPEN4_SHARE_ACCESS_WRITE, cut)))[1]);
    assert_eq!(ok.attrset, attrs::encode_set(&size(0)).attrmask);
    let results = peer.ok(read(&handle, stateid4 { seqid: 0, ..stateid }, 0, 100));
    let nothing = READ4resok { eof: true, data: Bytes::new() };
    assert_eq!(results[1], Res::OP_READ(READ4res::NFS4_OK(nothing)));
}

#[test]
fn invalid_opens_are_refused() {
    let bench = Bench::default();
    let mut peer = Peer::meet(&bench, 1);
    peer.ok(in_root(open("private", OPEN4_SHARE_ACCESS_BOTH, unchecked(0o600))));
    let objtype = createtype4::NF4LNK(text("x"));
    for (name, objtype) in [("dir", createtype4::NF4DIR), ("link", objtype), ("fifo", createtype4::NF4FIFO)] {
        let create = CREATE4args { objtype, objname: text(name), createattrs: mode(0o777) };
        peer.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_CREATE(create)]);
    }
    let both = OPEN4_SHARE_ACCESS_BOTH;
    let cases = [
        (open("absent", both, PLAIN), NFS4ERR_NOENT),
        (open("dir", both, PLAIN), NFS4ERR_ISDIR),
        (open("dir", both, unchecked(0)), NFS4ERR_ISDIR),
        (open("link", both, PLAIN), NFS4ERR_SYMLINK),
        (open("fifo", both, PLAIN), NFS4ERR_WRONG_TYPE),
        (open("a", 0, unchecked(0)), NFS4ERR_INVAL),
        (open("a", both | 0x1000_0000, unchecked(0)), NFS4ERR_INVAL),
        (open("", both, unchecked(0)), NFS4ERR_INVAL),
        (OPEN4args { share_deny: 4, ..open("private", both, PLAIN) }, NFS4ERR_INVAL),
        (OPEN4args { claim: open_claim4::CLAIM_FH, ..open("", both, guarded()) }, NFS4ERR_INVAL),
        (OPEN4args { claim: open_claim4::CLAIM_DELEG_PREV_FH, ..open("", both, PLAIN) }, NFS4ERR_NOTSUPP),
        (
            OPEN4args { claim: open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_NONE), ..open("", both, PLAIN) },
            NFS4ERR_NO_GRACE,
        ),
    ];
    for (args, status) in cases {
        assert_eq!(peer.fails(in_root(args.clone())), status, "{args:?}");
    }
    peer.cred = Cred { uid: 2000, gid: 2000, groups: vec![] };
    assert_eq!(peer.fails(in_root(open("private", OPEN4_SHARE_ACCESS_READ, PLAIN))), NFS4ERR_ACCESS);
}

#[test]
fn the_creating_open_is_not_limited_by_the_file_mode() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let results = peer.ok(in_root(open("a", OPEN4_SHARE_ACCESS_BOTH, unchecked(0o400))));
    let (stateid, handle) = (opened(&results[1]).stateid, handle(&results[2]));
    peer.ok(write(&handle, stateid, 0, b"bytes"));
    peer.ok(setattr(&handle, stateid, size(2)));
    assert_eq!(peer.fails(setattr(&handle, ANONYMOUS, size(1))), NFS4ERR_ACCESS);
    let mut other = open("a", OPEN4_SHARE_ACCESS_WRITE, PLAIN);
    other.owner.owner = text("other");
    assert_eq!(peer.fails(in_root(other)), NFS4ERR_ACCESS);
    // The owner of a file may open the file by filehandle even if its mode denies access, because clients recover
    // opens in this way.
    peer.ok(by_handle(&handle, OPEN4_SHARE_ACCESS_WRITE));
}

#[test]
fn delegation_wants_are_answered_with_a_reason() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let none = |why| open_delegation4::OPEN_DELEGATE_NONE_EXT(why);
    let cases = [
        (OPEN4_SHARE_ACCESS_WANT_NO_DELEG, none(open_none_delegation4::Default(WND4_NOT_WANTED))),
        (OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG, none(open_none_delegation4::WND4_RESOURCE(false))),
        (OPEN4_SHARE_ACCESS_WANT_CANCEL, none(open_none_delegation4::Default(WND4_CANCELLED))),
    ];
    for (want, answer) in cases {
        let args = open("a", OPEN4_SHARE_ACCESS_READ | want, unchecked(0o644));
        assert_eq!(opened(&peer.ok(in_root(args))[1]).delegation, answer);
    }
}

#[test]
fn share_reservations_hold_between_clients() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let deny = OPEN4args { share_deny: OPEN4_SHARE_DENY_WRITE, ..open("a", OPEN4_SHARE_ACCESS_READ, unchecked(0o666)) };
    let results = one.ok(in_root(deny));
    let (stateid, handle) = (opened(&results[1]).stateid, handle(&results[2]));
    assert_eq!(two.fails(in_root(open("a", OPEN4_SHARE_ACCESS_WRITE, PLAIN))), NFS4ERR_SHARE_DENIED);
    assert_eq!(two.fails(write(&handle, ANONYMOUS, 0, b"x")), NFS4ERR_LOCKED);
    assert_eq!(two.fails(setattr(&handle, ANONYMOUS, size(0))), NFS4ERR_LOCKED);
    one.ok(close(&handle, stateid));
    two.ok(write(&handle, ANONYMOUS, 0, b"x"));
}

#[test]
fn old_and_closed_stateids_are_refused() {
    let bench = Bench::default();
    let (peer, other) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let reading = opened(&peer.ok(in_root(open("a", OPEN4_SHARE_ACCESS_READ, unchecked(0o644))))[1]).stateid;
    let (stateid, handle) = file(&peer, "a");
    let old = stateid4 { seqid: stateid.seqid - 1, ..stateid };
    let next = stateid4 { seqid: stateid.seqid + 1, ..stateid };
    let whatever = stateid4 { seqid: 0, ..stateid };
    assert_eq!(reading.other, stateid.other);
    assert_eq!(peer.fails(read(&handle, old, 0, 1)), NFS4ERR_OLD_STATEID);
    assert_eq!(peer.fails(read(&handle, next, 0, 1)), NFS4ERR_BAD_STATEID);
    assert_eq!(other.fails(read(&handle, stateid, 0, 1)), NFS4ERR_BAD_STATEID);
    peer.ok(read(&handle, whatever, 0, 1));
    let tested = vec![stateid, old, next, ANONYMOUS];
    let results = peer.ok(vec![Arg::OP_TEST_STATEID(TEST_STATEID4args { ts_stateids: tested })]);
    let statuses = vec![NFS4_OK, NFS4ERR_OLD_STATEID, NFS4ERR_BAD_STATEID, NFS4ERR_BAD_STATEID];
    let answer = TEST_STATEID4res::NFS4_OK(TEST_STATEID4resok { tsr_status_codes: statuses });
    assert_eq!(results[0], Res::OP_TEST_STATEID(answer));
    let free = Arg::OP_FREE_STATEID(FREE_STATEID4args { fsa_stateid: stateid });
    assert_eq!(peer.fails(vec![free]), NFS4ERR_LOCKS_HELD);
    let downgrade = |share_access| {
        let args = OPEN_DOWNGRADE4args { open_stateid: whatever, seqid: 0, share_access, share_deny: 0 };
        vec![putfh(&handle), Arg::OP_OPEN_DOWNGRADE(args)]
    };
    assert_eq!(peer.fails(downgrade(OPEN4_SHARE_ACCESS_WRITE)), NFS4ERR_INVAL, "never opened so");
    peer.ok(downgrade(OPEN4_SHARE_ACCESS_READ));
    assert_eq!(peer.fails(write(&handle, whatever, 0, b"x")), NFS4ERR_OPENMODE);
    let results = peer.ok(close(&handle, whatever));
    let ended = CLOSE4res::NFS4_OK(crate::state::stateids::INVALID);
    assert_eq!(results[1], Res::OP_CLOSE(ended));
    assert_eq!(peer.fails(close(&handle, whatever)), NFS4ERR_BAD_STATEID);
    assert_eq!(bench.server.fs().calls().closed.len(), 1);
}

#[test]
fn the_current_stateid_is_saved_and_cleared_with_the_filehandle() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let read = || Arg::OP_READ(READ4args { stateid: CURRENT, offset: 0, count: 1 });
    let open = || Arg::OP_OPEN(open("a", OPEN4_SHARE_ACCESS_BOTH, unchecked(0o644)));
    let close = || Arg::OP_CLOSE(CLOSE4args { seqid: 0, open_stateid: CURRENT });
    peer.ok(vec![Arg::OP_PUTROOTFH, open(), read(), close()]);
    peer.ok(vec![Arg::OP_PUTROOTFH, open(), Arg::OP_SAVEFH, Arg::OP_PUTROOTFH, Arg::OP_RESTOREFH, read(), close()]);
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, lookup("a"), read()]), NFS4ERR_BAD_STATEID);
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, open(), close(), read()]), NFS4ERR_BAD_STATEID);
}

#[test]
fn only_close_and_downgrade_check_the_seqid_of_the_current_stateid() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let open = || Arg::OP_OPEN(open("a", OPEN4_SHARE_ACCESS_BOTH, unchecked(0o644)));
    // RESTOREFH restores the stateid of the first OPEN. The second OPEN of the same open-owner has incremented the
    // sequence number of this stateid.
    let old =
        |last: Arg| vec![Arg::OP_PUTROOTFH, open(), Arg::OP_SAVEFH, Arg::OP_PUTROOTFH, open(), Arg::OP_RESTOREFH, last];
    peer.ok(old(Arg::OP_READ(READ4args { stateid: CURRENT, offset: 0, count: 1 })));
    assert_eq!(peer.fails(old(Arg::OP_CLOSE(CLOSE4args { seqid: 0, open_stateid: CURRENT }))), NFS4ERR_OLD_STATEID);
    let access = OPEN4_SHARE_ACCESS_BOTH;
    let lower = OPEN_DOWNGRADE4args { open_stateid: CURRENT, seqid: 0, share_access: access, share_deny: 0 };
    assert_eq!(peer.fails(old(Arg::OP_OPEN_DOWNGRADE(lower))), NFS4ERR_OLD_STATEID);
}

#[test]
fn removed_files_live_until_their_last_close() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (first, handle) = file(&one, "a");
    let results = two.ok(in_root(open("a", OPEN4_SHARE_ACCESS_READ, PLAIN)));
    let second = opened(&results[1]).stateid;
    one.ok(remove("a"));
    one.ok(write(&handle, first, 0, b"still here"));
    one.ok(close(&handle, first));
    two.ok(read(&handle, second, 0, 10));
    assert!(bench.server.fs().calls().reaped.is_empty());
    two.ok(close(&handle, second));
    assert_eq!(bench.server.fs().calls().reaped.len(), 1);
    assert_eq!(two.fails(by_handle(&handle, OPEN4_SHARE_ACCESS_READ)), NFS4ERR_STALE);
}

#[test]
fn a_file_may_end_with_its_name_only_if_no_client_can_open_it() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (stateid, handle) = file(&peer, "a");
    let file = bench.server.fs().decode_handle(View::ALL, &handle).unwrap().0;
    let (one, other) = (crate::server::Ending::new(&bench.server), crate::server::Ending::new(&bench.server));
    assert!(!one.may_end(file), "it is open");
    peer.ok(close(&handle, stateid));
    let somebody = crate::server::Opening::begin(&bench.server.opening);
    assert!(!one.may_end(file), "somebody may be about to open it");
    drop(somebody);
    assert!(one.may_end(file) && one.may_end(file) && other.may_end(file));
    let again = || by_handle(&handle, OPEN4_SHARE_ACCESS_BOTH);
    assert_eq!(peer.fails(again()), NFS4ERR_STALE);
    let by_name = || vec![Arg::OP_PUTROOTFH, Arg::OP_OPEN(open("a", OPEN4_SHARE_ACCESS_BOTH, PLAIN))];
    assert_eq!(peer.fails(by_name()), NFS4ERR_DELAY, "soon it is gone, or there again");
    drop(one);
    assert_eq!(peer.fails(again()), NFS4ERR_STALE, "the other removal is still under way");
    drop(other);
    // Dropping the guards `one` and `other` simulates that both removals end without removing the file. So a client
    // can open the file again.
    peer.ok(again());
}

#[test]
fn a_file_that_is_being_freed_cannot_be_opened() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (stateid, handle) = file(&peer, "a");
    peer.ok(close(&handle, stateid));
    let file = bench.server.fs().decode_handle(View::ALL, &handle).unwrap().0;
    // The guard simulates a removal that found no open of the file and is freeing the file.
    let freeing = crate::server::Reaping::begin(&bench.server.reaping, file);
    assert_eq!(peer.fails(by_handle(&handle, OPEN4_SHARE_ACCESS_BOTH)), NFS4ERR_STALE);
    assert!(!bench.server.inspect(|state| state.is_open(file)));
    drop(freeing);
    peer.ok(by_handle(&handle, OPEN4_SHARE_ACCESS_BOTH));
}
