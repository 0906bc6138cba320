//! Tests of layouts on the server (grant, LAYOUTCOMMIT, return, recall, revocation) and of GETDEVICEINFO.

use super::*;
use crate::fs::LayoutGone;
use crate::testing::bench::{Bench, LEASE};
use crate::testing::memory::DEVICE;
use futures_util::task::noop_waker;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

/// Opens a file and gets a layout of it in one COMPOUND, as Linux does. Returns open stateid, layout and filehandle.
fn holder(peer: &Peer, name: &str, iomode: layoutiomode4) -> (stateid4, LAYOUTGET4resok, Bytes) {
    let open = Arg::OP_OPEN(open(name, OPEN4_SHARE_ACCESS_BOTH, unchecked(0o666)));
    let get = Arg::OP_LAYOUTGET(layoutget(CURRENT, iomode));
    let results = peer.ok(vec![Arg::OP_PUTROOTFH, open, Arg::OP_GETFH, get]);
    (opened(&results[1]).stateid, layout(&results[3]), handle(&results[2]))
}

fn gone(bench: &Bench) -> Vec<LayoutGone> {
    bench.server.fs().calls().gone.into_iter().map(|(_, _, why)| why).collect()
}

#[test]
fn a_layout_is_granted_with_the_open_and_returned_with_the_close() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (stateid, held, handle) = holder(&peer, "a", LAYOUTIOMODE4_RW);
    assert_eq!(held.logr_stateid.seqid, 1);
    assert!(!held.logr_return_on_close);
    let expected = layout4 {
        lo_offset: 0,
        lo_length: u64::MAX,
        lo_iomode: LAYOUTIOMODE4_RW,
        lo_content: layout_content4 { loc_type: LAYOUT_KIND, loc_body: Bytes::from(DEVICE.to_vec()) },
    };
    assert_eq!(held.logr_layout, vec![expected]);
    let again = Arg::OP_LAYOUTGET(layoutget(held.logr_stateid, LAYOUTIOMODE4_READ));
    let more = layout(&peer.ok(vec![putfh(&handle), again])[1]);
    assert_eq!((more.logr_stateid.other, more.logr_stateid.seqid), (held.logr_stateid.other, 2));
    assert_eq!(bench.server.counters().layouts, 2);
    let getattr = Arg::OP_GETATTR(GETATTR4args { attr_request: vec![0x18] });
    let closing = Arg::OP_CLOSE(CLOSE4args { seqid: 0, open_stateid: stateid });
    let results = peer.ok(vec![putfh(&handle), layoutreturn(more.logr_stateid), getattr, closing]);
    let none = LAYOUTRETURN4res::NFS4_OK(layoutreturn_stateid::FALSE);
    assert_eq!(results[1], Res::OP_LAYOUTRETURN(none));
    assert_eq!(gone(&bench), vec![LayoutGone::Returned { kind: LAYOUT_KIND, body: text("body") }; 2]);
    assert_eq!(bench.server.inspect(|state| state.counts().layouts), 0);
}

#[test]
fn a_return_on_close_layout_ends_with_the_close() {
    let bench = Bench::default();
    bench.server.fs().set_return_on_close(true);
    let peer = Peer::meet(&bench, 1);
    let (stateid, held, handle) = holder(&peer, "a", LAYOUTIOMODE4_RW);
    assert!(held.logr_return_on_close);
    peer.ok(close(&handle, stateid));
    assert_eq!(gone(&bench), vec![LayoutGone::Forgotten]);
}

#[test]
fn invalid_layoutget_requests_are_refused() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (stateid, handle) = file(&peer, "a");
    let get = |change: fn(&mut LAYOUTGET4args)| {
        let mut args = layoutget(stateid, LAYOUTIOMODE4_RW);
        change(&mut args);
        vec![putfh(&handle), Arg::OP_LAYOUTGET(args)]
    };
    assert_eq!(peer.fails(get(|a| a.loga_layout_type = 99)), NFS4ERR_UNKNOWN_LAYOUTTYPE);
    assert_eq!(peer.fails(get(|a| a.loga_iomode = LAYOUTIOMODE4_ANY)), NFS4ERR_BADIOMODE);
    assert_eq!(peer.fails(get(|a| a.loga_length = 0)), NFS4ERR_INVAL);
    assert_eq!(peer.fails(get(|a| (a.loga_offset, a.loga_length) = (5, u64::MAX - 2))), NFS4ERR_INVAL);
    assert_eq!(peer.fails(get(|a| a.loga_maxcount = 40)), NFS4ERR_TOOSMALL);
    assert_eq!(peer.fails(get(|a| a.loga_maxcount = 60)), NFS4ERR_TOOSMALL);
    assert_eq!(peer.fails(get(|a| a.loga_stateid = ANONYMOUS)), NFS4ERR_BAD_STATEID);
    let reading = Arg::OP_OPEN(open("b", OPEN4_SHARE_ACCESS_READ, unchecked(0o644)));
    let get = Arg::OP_LAYOUTGET(layoutget(CURRENT, LAYOUTIOMODE4_RW));
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, reading, get.clone()]), NFS4ERR_OPENMODE);
    let writing = Arg::OP_OPEN(open("c", OPEN4_SHARE_ACCESS_WRITE, unchecked(0o644)));
    let get_read = Arg::OP_LAYOUTGET(layoutget(CURRENT, LAYOUTIOMODE4_READ));
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, writing, get_read]), NFS4ERR_OPENMODE);
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, get]), NFS4ERR_BAD_STATEID);
}

fn layoutcommit(stateid: stateid4, last: Option<u64>) -> LAYOUTCOMMIT4args {
    LAYOUTCOMMIT4args {
        loca_offset: 0,
        loca_length: last.map_or(0, |last| last + 1),
        loca_reclaim: false,
        loca_stateid: stateid,
        loca_last_write_offset: last.map_or(newoffset4::FALSE, newoffset4::TRUE),
        loca_time_modify: newtime4::FALSE,
        loca_layoutupdate: layoutupdate4 { lou_type: LAYOUT_KIND, lou_body: Bytes::new() },
    }
}

#[test]
fn layoutcommit_only_increases_the_size() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (open, held, handle) = holder(&peer, "a", LAYOUTIOMODE4_RW);
    let commit = |args| vec![putfh(&handle), Arg::OP_LAYOUTCOMMIT(args)];
    let answer = |locr_newsize| Res::OP_LAYOUTCOMMIT(LAYOUTCOMMIT4res::NFS4_OK(LAYOUTCOMMIT4resok { locr_newsize }));
    let stateid = held.logr_stateid;
    assert_eq!(peer.ok(commit(layoutcommit(stateid, Some(99))))[1], answer(newsize4::TRUE(100)));
    assert_eq!(peer.ok(commit(layoutcommit(stateid, Some(49))))[1], answer(newsize4::FALSE));
    assert_eq!(peer.ok(commit(layoutcommit(stateid, None)))[1], answer(newsize4::FALSE));
    assert_eq!(peer.fails(commit(layoutcommit(open, Some(1)))), NFS4ERR_BAD_STATEID);
    assert_eq!(peer.fails(commit(layoutcommit(stateid, Some(1 << 40)))), NFS4ERR_FBIG);
    let bad_time = newtime4::TRUE(nfstime4 { seconds: 0, nseconds: u32::MAX });
    let args = LAYOUTCOMMIT4args { loca_time_modify: bad_time, ..layoutcommit(stateid, None) };
    assert_eq!(peer.fails(commit(args)), NFS4ERR_INVAL);
    let args = LAYOUTCOMMIT4args { loca_reclaim: true, ..layoutcommit(stateid, None) };
    assert_eq!(peer.fails(commit(args)), NFS4ERR_NO_GRACE);
    let (_, held, handle) = holder(&peer, "b", LAYOUTIOMODE4_READ);
    let commit = Arg::OP_LAYOUTCOMMIT(layoutcommit(held.logr_stateid, Some(1)));
    assert_eq!(peer.fails(vec![putfh(&handle), commit]), NFS4ERR_BADLAYOUT);
}

/// Polls a future once, and does not wait until the future completes.
fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(&noop_waker()))
}

#[test]
fn a_truncation_waits_for_layouts_of_other_clients() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (_, held, handle) = holder(&one, "a", LAYOUTIOMODE4_RW);
    holder(&two, "a", LAYOUTIOMODE4_RW);
    let mut cut = pin!(two.start(setattr(&handle, ANONYMOUS, size(0))));
    assert!(poll(cut.as_mut()).is_pending());
    let callbacks = bench.server.callbacks().taken();
    let [(path, call)] = &callbacks[..] else { panic!("{callbacks:?}") };
    assert_eq!((path.connection, path.program), (one.connection, 0x4000_0000));
    assert_eq!(call.minorversion, one.minor, "clients look for the session under its minor version");
    let nfs_cb_argop4::OP_CB_LAYOUTRECALL(recall) = &call.argarray[1] else { panic!("{call:?}") };
    let layoutrecall4::LAYOUTRECALL4_FILE(which) = &recall.clora_recall else { panic!("{recall:?}") };
    assert_eq!((&which.lor_fh, which.lor_stateid.seqid), (&handle, held.logr_stateid.seqid + 1));
    // While a truncation waits for a layout recall, the server grants no new layout of the file. The server still
    // replies to requests of other clients.
    let get = Arg::OP_LAYOUTGET(layoutget(held.logr_stateid, LAYOUTIOMODE4_RW));
    assert_eq!(one.fails(vec![putfh(&handle), get]), NFS4ERR_RECALLCONFLICT);
    assert!(poll(cut.as_mut()).is_pending());
    one.ok(vec![putfh(&handle), layoutreturn(which.lor_stateid)]);
    let Poll::Ready(reply) = poll(cut.as_mut()) else { panic!("every layout is back") };
    assert_eq!(reply.status, NFS4_OK);
    let again = Arg::OP_OPEN(open("a", OPEN4_SHARE_ACCESS_BOTH, PLAIN));
    let get = Arg::OP_LAYOUTGET(layoutget(CURRENT, LAYOUTIOMODE4_RW));
    one.ok(vec![Arg::OP_PUTROOTFH, again, get]);
}

#[test]
fn a_nomatching_layout_answer_to_a_recall_ends_the_layout() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (_, _, handle) = holder(&one, "a", LAYOUTIOMODE4_RW);
    bench.server.callbacks().next(Some(NFS4ERR_NOMATCHING_LAYOUT));
    two.ok(setattr(&handle, ANONYMOUS, size(0)));
    assert_eq!(gone(&bench), vec![LayoutGone::Forgotten]);
}

#[test]
fn a_recall_is_repeated_and_the_layout_finally_revoked() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (_, held, handle) = holder(&one, "a", LAYOUTIOMODE4_RW);
    bench.server.callbacks().next(Some(NFS4ERR_DELAY));
    bench.server.callbacks().next(None);
    let mut cut = pin!(two.start(setattr(&handle, ANONYMOUS, size(0))));
    for _ in 0..8 {
        assert!(poll(cut.as_mut()).is_pending());
    }
    assert_eq!(bench.server.callbacks().taken().len(), 3, "busy, lost, then it promised to return");
    // The holder renews its lease but does not return the layout. So the deadline of the recall passes, and the lease
    // does not expire.
    for _ in 0..4 {
        bench.pass(LEASE / 3);
        assert!(one.run(vec![Arg::OP_PUTROOTFH]).0 == NFS4_OK && two.bench.now.get().secs > 0);
    }
    let Poll::Ready(reply) = poll(cut.as_mut()) else { panic!("the layout was revoked") };
    assert_eq!(reply.status, NFS4_OK);
    assert_eq!(gone(&bench), vec![LayoutGone::Revoked]);
    let free = Arg::OP_FREE_STATEID(FREE_STATEID4args { fsa_stateid: held.logr_stateid });
    one.ok(vec![free]);
}

#[test]
fn removing_a_file_ends_its_layouts() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (stateid, held, handle) = holder(&one, "a", LAYOUTIOMODE4_RW);
    one.ok(close(&handle, stateid));
    two.ok(remove("a"));
    assert_eq!(gone(&bench), vec![LayoutGone::Forgotten]);
    assert_eq!(bench.server.fs().calls().reaped.len(), 1);
    assert_eq!(one.fails(vec![putfh(&handle), layoutreturn(held.logr_stateid)]), NFS4ERR_BAD_STATEID);
}

#[test]
fn layoutreturn_all_returns_every_layout() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    holder(&peer, "a", LAYOUTIOMODE4_RW);
    holder(&peer, "b", LAYOUTIOMODE4_RW);
    let all = |which| {
        Arg::OP_LAYOUTRETURN(LAYOUTRETURN4args {
            lora_reclaim: false,
            lora_layout_type: LAYOUT_KIND,
            lora_iomode: LAYOUTIOMODE4_ANY,
            lora_layoutreturn: layoutreturn4::Default(which),
        })
    };
    assert_eq!(peer.fails(vec![all(LAYOUTRETURN4_FSID)]), NFS4ERR_NOFILEHANDLE);
    peer.ok(vec![all(LAYOUTRETURN4_ALL)]);
    assert_eq!(gone(&bench).len(), 2);
    assert_eq!(bench.server.inspect(|state| state.counts().layouts), 0);
}

#[test]
fn getdeviceinfo_returns_the_address_of_a_device() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let ask = |gdia_device_id, gdia_layout_type, gdia_maxcount, notify| {
        vec![Arg::OP_GETDEVICEINFO(GETDEVICEINFO4args {
            gdia_device_id,
            gdia_layout_type,
            gdia_maxcount,
            gdia_notify_types: notify,
        })]
    };
    let address = |body: &str, gdir_notification| {
        let gdir_device_addr = device_addr4 { da_layout_type: LAYOUT_KIND, da_addr_body: text(body) };
        Res::OP_GETDEVICEINFO(GETDEVICEINFO4res::NFS4_OK(GETDEVICEINFO4resok { gdir_device_addr, gdir_notification }))
    };
    assert_eq!(peer.ok(ask(DEVICE, LAYOUT_KIND, 4096, vec![6]))[0], address("one device", vec![6]));
    assert_eq!(peer.ok(ask(DEVICE, LAYOUT_KIND, 4096, vec![]))[0], address("one device", vec![]));
    assert_eq!(peer.ok(ask(DEVICE, LAYOUT_KIND, 0, vec![7]))[0], address("", vec![6]));
    let (status, results) = peer.run(ask(DEVICE, LAYOUT_KIND, 10, vec![]));
    assert_eq!(status, NFS4ERR_TOOSMALL);
    assert_eq!(results[0], Res::OP_GETDEVICEINFO(GETDEVICEINFO4res::NFS4ERR_TOOSMALL(20)));
    assert_eq!(peer.fails(ask([0; 16], LAYOUT_KIND, 4096, vec![])), NFS4ERR_NOENT);
    assert_eq!(peer.fails(ask(DEVICE, 1, 4096, vec![])), NFS4ERR_UNKNOWN_LAYOUTTYPE);
}
