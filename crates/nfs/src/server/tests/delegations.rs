//! Tests of file delegations on the server: grant with an open, recall, return, revocation, and attributes of a file
//! under a write delegation.

use super::*;
use crate::attrs::Mask;
use crate::testing::bench::{Bench, LEASE};
use crate::values::Values;
use futures_util::task::noop_waker;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

const READ: u32 = OPEN4_SHARE_ACCESS_READ;
const BOTH: u32 = OPEN4_SHARE_ACCESS_BOTH;

/// Polls a future once, and does not wait until the future completes.
fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(&noop_waker()))
}

/// Creates a file that everyone may read and write, and closes it. Returns the filehandle.
fn make(peer: &Peer, name: &str) -> Bytes {
    let (stateid, handle) = file(peer, name);
    peer.ok(setattr(&handle, stateid, SetAttrs { mode: Some(0o666), ..SetAttrs::default() }));
    peer.ok(close(&handle, stateid));
    handle
}

fn opening(name: &str, access: u32) -> Vec<Arg> {
    vec![Arg::OP_PUTROOTFH, Arg::OP_OPEN(open(name, access, PLAIN))]
}

/// Opens a file without a want for a delegation and expects a delegation. Returns the stateids of the open and the
/// delegation.
fn holder(peer: &Peer, name: &str, access: u32) -> (stateid4, stateid4) {
    let given = opened(&peer.ok(opening(name, access))[1]);
    match given.delegation {
        open_delegation4::OPEN_DELEGATE_READ(read) => (given.stateid, read.stateid),
        open_delegation4::OPEN_DELEGATE_WRITE(write) => {
            assert_eq!(write.space_limit, nfs_space_limit4::NFS_LIMIT_SIZE(0), "no room is promised");
            (given.stateid, write.stateid)
        }
        none => panic!("no delegation: {none:?}"),
    }
}

fn give_back(handle: &Bytes, deleg_stateid: stateid4) -> Vec<Arg> {
    vec![putfh(handle), Arg::OP_DELEGRETURN(DELEGRETURN4args { deleg_stateid })]
}

#[test]
fn a_later_delegation_of_a_replaced_file_is_recalled() {
    let bench = Bench::default();
    let peer = Peer::meet_own(&bench, 1);
    let replaced = make(&peer, "a");
    make(&peer, "b");
    peer.ok(vec![
        Arg::OP_PUTROOTFH,
        Arg::OP_SAVEFH,
        Arg::OP_RENAME(RENAME4args { oldname: text("b"), newname: text("a") }),
    ]);
    let open = opened(&peer.ok(by_handle(&replaced, READ))[1]);
    let open_delegation4::OPEN_DELEGATE_READ(given) = open.delegation else { panic!("no delegation") };
    peer.ok(close(&replaced, open.stateid));
    bench.pass(Duration::from_secs(2));
    let mut teller = pin!(bench.server.deliver());
    assert!(poll(teller.as_mut()).is_pending());
    assert_eq!(recalls(&bench).len(), 1);
    assert!(bench.server.fs().calls().reaped.is_empty());
    peer.ok(give_back(&replaced, given.stateid));
    assert_eq!(bench.server.fs().calls().reaped.len(), 1);
}

#[test]
fn conflicting_operations_wait_for_the_delegation_to_be_returned() {
    let link = || vec![Arg::OP_SAVEFH, Arg::OP_PUTROOTFH, Arg::OP_LINK(LINK4args { newname: text("b") })];
    let rename = |oldname: &str, newname: &str| {
        let args = RENAME4args { oldname: text(oldname), newname: text(newname) };
        vec![Arg::OP_PUTROOTFH, Arg::OP_SAVEFH, Arg::OP_RENAME(args)]
    };
    let chmod = SetAttrs { mode: Some(0o777), ..SetAttrs::default() };
    type MakeRequest<'a> = &'a dyn Fn(&Bytes) -> Vec<Arg>;
    let requests: [(&str, u32, MakeRequest); 10] = [
        ("opens for reading", BOTH, &|_| opening("a", READ)),
        ("opens for writing", READ, &|_| opening("a", OPEN4_SHARE_ACCESS_WRITE)),
        ("opens and cuts", READ, &|_| {
            let cut = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(attrs::encode_set(&size(0))));
            vec![Arg::OP_PUTROOTFH, Arg::OP_OPEN(open("a", READ, cut))]
        }),
        ("reads without an open", BOTH, &|handle| read(handle, ANONYMOUS, 0, 1)),
        ("writes without an open", READ, &|handle| write(handle, ANONYMOUS, 0, b"x")),
        ("changes an attribute", READ, &|handle| setattr(handle, ANONYMOUS, chmod)),
        ("links it", READ, &|handle| [vec![putfh(handle)], link()].concat()),
        ("moves it", READ, &|_| rename("a", "b")),
        ("moves another over it", READ, &|_| rename("other", "a")),
        ("removes it", READ, &|_| remove("a")),
    ];
    for (what, access, request) in requests {
        let bench = Bench::default();
        let mut two = Peer::meet(&bench, 2);
        two.cred.uid = 0;
        let one = Peer::meet(&bench, 1);
        make(&one, "other");
        let handle = make(&one, "a");
        let (_, held) = holder(&one, "a", access);
        let mut teller = pin!(bench.server.deliver());
        let mut waits = pin!(two.start(request(&handle)));
        assert!(poll(waits.as_mut()).is_pending(), "{what}");
        assert!(poll(teller.as_mut()).is_pending());
        assert_eq!(recalls(&bench), [CB_RECALL4args { stateid: held, truncate: false, fh: handle.clone() }], "{what}");
        one.ok(give_back(&handle, held));
        let Poll::Ready(reply) = poll(waits) else { panic!("{what}: it is back") };
        assert_eq!(reply.status, NFS4_OK, "{what}");
        assert_eq!(bench.server.inspect(|state| state.counts().delegations), 0);
    }
}

#[test]
fn compatible_operations_do_not_wait_for_a_delegation() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let handle = make(&one, "a");
    let (_, held) = holder(&one, "a", READ);
    // A second client opens the file for reading, and gets a read delegation too.
    holder(&two, "a", READ);
    two.ok(read(&handle, ANONYMOUS, 0, 1));
    assert_eq!(bench.server.inspect(|state| state.counts().delegations), 2);
    // A delegation stateid permits I/O like an open stateid.
    one.ok(read(&handle, held, 0, 1));
    assert_eq!(one.fails(write(&handle, held, 0, b"x")), NFS4ERR_OPENMODE);
    // The holder of a read delegation may write the file and remove it without a recall of its own delegation.
    let handle = make(&two, "b");
    let (_, held) = holder(&two, "b", READ);
    two.ok(opening("b", OPEN4_SHARE_ACCESS_WRITE));
    two.ok(setattr(&handle, ANONYMOUS, size(0)));
    two.ok(remove("b"));
    two.ok(give_back(&handle, held));
    assert!(bench.server.callbacks().taken().is_empty());
}

#[test]
fn an_unreturned_delegation_is_revoked() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let handle = make(&one, "a");
    let (_, held) = holder(&one, "a", READ);
    let mut teller = pin!(bench.server.deliver());
    let waits = || {
        let mut waits = pin!(two.start(opening("a", BOTH)));
        (0..9).find_map(|_| match poll(waits.as_mut()) {
            Poll::Ready(reply) => Some(reply.status),
            Poll::Pending => None,
        })
    };
    assert_eq!(waits(), Some(NFS4ERR_DELAY));
    // The first CB_RECALL gets no reply, the second gets BAD_STATEID, and the third succeeds.
    bench.server.callbacks().next(None);
    bench.server.callbacks().next(Some(NFS4ERR_BAD_STATEID));
    (0..9).for_each(|_| assert!(poll(teller.as_mut()).is_pending()));
    assert_eq!(recalls(&bench).len(), 3);
    assert_eq!(waits(), Some(NFS4ERR_DELAY));
    assert!(poll(teller).is_pending());
    assert!(recalls(&bench).is_empty(), "it has understood");
    bench.pass(LEASE / 2);
    one.ok(vec![]);
    two.ok(vec![]);
    bench.pass(LEASE / 2 + Duration::from_secs(1));
    assert_eq!(bench.server.fs().owners(), ["client 2"], "it must not reclaim what it has lost");
    assert_eq!(waits(), Some(NFS4_OK));
    assert_eq!(one.fails(read(&handle, held, 0, 1)), NFS4ERR_DELEG_REVOKED);
    assert_eq!(one.fails(give_back(&handle, held)), NFS4ERR_DELEG_REVOKED);
    one.ok(vec![Arg::OP_FREE_STATEID(FREE_STATEID4args { fsa_stateid: held })]);
    assert_eq!(bench.server.fs().owners().len(), 2);
}

#[test]
fn the_holder_can_open_the_file_before_it_returns_a_delegation() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let handle = make(&one, "a");
    let (stateid, held) = holder(&one, "a", READ);
    one.ok(close(&handle, stateid));
    let mut waits = pin!(two.start(remove("a")));
    assert!(poll(waits.as_mut()).is_pending());
    let claimed = |claim, access| vec![putfh(&handle), Arg::OP_OPEN(OPEN4args { claim, ..open("", access, PLAIN) })];
    let by_handle = |stateid| claimed(open_claim4::CLAIM_DELEG_CUR_FH(stateid), READ);
    assert_eq!(one.fails(by_handle(stateid)), NFS4ERR_BAD_STATEID);
    assert_eq!(one.fails(claimed(open_claim4::CLAIM_DELEG_CUR_FH(held), BOTH)), NFS4ERR_OPENMODE);
    assert_eq!(one.fails(claimed(open_claim4::CLAIM_DELEG_PREV_FH, READ)), NFS4ERR_NOTSUPP);
    let reopened = opened(&one.ok(by_handle(held))[1]);
    assert_eq!(reopened.delegation, open_delegation4::OPEN_DELEGATE_NONE);
    let cur = open_claim_delegate_cur4 { delegate_stateid: held, file: text("a") };
    let by_name = OPEN4args { claim: open_claim4::CLAIM_DELEGATE_CUR(cur), ..open("", READ, PLAIN) };
    one.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_OPEN(by_name)]);
    one.ok(give_back(&handle, held));
    let Poll::Ready(reply) = poll(waits) else { panic!("it is back") };
    assert_eq!(reply.status, NFS4_OK);
    // The file has no name any more, but the client that has opened the file again can still read the file.
    one.ok(read(&handle, stateid4 { seqid: 0, ..reopened.stateid }, 0, 1));
    assert!(bench.server.fs().calls().reaped.is_empty());
}

#[test]
fn a_delegation_keeps_a_removed_file_until_it_is_returned() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let handle = make(&peer, "a");
    let (stateid, held) = holder(&peer, "a", BOTH);
    peer.ok(remove("a"));
    // The server recalls the delegation from the client that removed the file. Until its DELEGRETURN the client may use
    // the delegation.
    assert!(poll(pin!(bench.server.deliver())).is_pending());
    assert_eq!(recalls(&bench), [CB_RECALL4args { stateid: held, truncate: false, fh: handle.clone() }]);
    peer.ok(close(&handle, stateid));
    peer.ok(write(&handle, held, 0, b"x"));
    assert!(bench.server.fs().calls().reaped.is_empty());
    peer.ok(give_back(&handle, held));
    assert_eq!(bench.server.fs().calls().reaped.len(), 1);
}

#[test]
fn getattr_asks_the_write_delegation_holder_for_size_and_change() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let handle = make(&one, "a");
    holder(&one, "a", BOTH);
    let wanted = Mask::of(&[FATTR4_CHANGE, FATTR4_SIZE]);
    let ask = |mask: Mask| vec![putfh(&handle), Arg::OP_GETATTR(GETATTR4args { attr_request: mask.to_bitmap() })];
    let look = |peer: &Peer| match &peer.ok(ask(wanted))[1] {
        Res::OP_GETATTR(GETATTR4res::NFS4_OK(ok)) => {
            let values = attrs::decode(&ok.obj_attributes).unwrap();
            (values.change.unwrap(), values.size.unwrap())
        }
        other => panic!("no attributes: {other:?}"),
    };
    let known = look(&one);
    assert!(bench.server.callbacks().taken().is_empty(), "it is not asked for its own sake");
    two.ok(ask(Mask::of(&[FATTR4_TYPE, FATTR4_MODE])));
    assert!(bench.server.callbacks().taken().is_empty(), "nor for what it cannot change unseen");
    let tell = |change, size| {
        let values = Values { change: Some(change), size: Some(size), ..Values::default() };
        bench.server.callbacks().attributes(attrs::encode(wanted, &values));
    };
    tell(known.0, known.1);
    assert_eq!(look(&two), known, "nothing has changed");
    assert_eq!(bench.server.callbacks().taken().len(), 1);
    tell(known.0 + 1, 5000);
    let (first, second) = (look(&two), look(&two));
    assert_eq!((first.1, second.1), (5000, 5000));
    assert!(known.0 < first.0 && first.0 < second.0, "the writer goes on");
    // If the holder of a write delegation does not answer CB_GETATTR, the server recalls the delegation.
    bench.server.callbacks().next(None);
    let mut waits = pin!(two.start(ask(wanted)));
    let status = (0..9).find_map(|_| match poll(waits.as_mut()) {
        Poll::Ready(reply) => Some(reply.status),
        Poll::Pending => None,
    });
    assert_eq!(status, Some(NFS4ERR_DELAY));
    assert_eq!(bench.server.inspect(|state| state.counts().recalls), 1);
}

#[test]
fn an_unanswered_callback_is_sent_again_on_the_next_session() {
    let bench = Bench::default();
    let (mut one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    make(&one, "a");
    holder(&one, "a", READ);
    let mut teller = pin!(bench.server.deliver());
    bench.server.callbacks().hang();
    let mut waits = pin!(two.start(opening("a", BOTH)));
    assert!(poll(waits.as_mut()).is_pending());
    (0..3).for_each(|_| assert!(poll(teller.as_mut()).is_pending()));
    assert_eq!(recalls(&bench).len(), 1, "not answered");
    let destroy = DESTROY_SESSION4args { dsa_sessionid: one.session };
    assert_eq!(one.send(vec![Arg::OP_DESTROY_SESSION(destroy)]).status, NFS4_OK);
    let (fore, back) = crate::testing::bench::linux_channels();
    one.new_session(2, fore, back).unwrap();
    (0..3).for_each(|_| assert!(poll(teller.as_mut()).is_pending()));
    assert_eq!(recalls(&bench).len(), 1, "asked again");
    assert!(bench.server.calling.lock().unwrap().is_empty(), "a waker is left behind");
}
