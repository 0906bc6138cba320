//! Tests of directory delegations on the server: changes by other clients wait until the holder returns the delegation,
//! changes by the holder do not wait.

use super::*;
use crate::attrs::Mask;
use crate::name_delegations::{OWN_CHANGES, RELIED_ON};
use crate::testing::bench::{Bench, LEASE};
use futures_util::FutureExt;
use std::pin::pin;
use std::time::Duration;

const READ: u32 = OPEN4_SHARE_ACCESS_READ | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
const BOTH: u32 = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;

/// Filehandles of the directories and files that the first client has created.
struct Tree {
    root: Bytes,
    /// Directory `dir`, with the file `a` and the directory `sub`.
    dir: Bytes,
    sub: Bytes,
    /// File `dir/a`.
    file: Bytes,
    /// Directory `empty`, without entries.
    empty: Bytes,
    /// Directory `other`, with the file `b` and the empty directory `gap`.
    other: Bytes,
    /// File `other/b`.
    stray: Bytes,
}

impl Tree {
    fn new(peer: &Peer) -> Tree {
        let root = handle(&peer.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_GETFH])[1]);
        let [dir, empty, other] =
            ["dir", "empty", "other"].map(|name| made(peer, &root, create(name, createtype4::NF4DIR)));
        let sub = made(peer, &dir, create("sub", createtype4::NF4DIR));
        made(peer, &other, create("gap", createtype4::NF4DIR));
        let (file, stray) = (made(peer, &dir, make("a")), made(peer, &other, make("b")));
        Tree { root, dir, sub, file, empty, other, stray }
    }
}

/// Creates an object with the operation `by` and sets its mode to 0777. Returns the filehandle.
fn made(peer: &Peer, dir: &Bytes, by: Arg) -> Bytes {
    let results = peer.ok(vec![putfh(dir), by, Arg::OP_GETFH]);
    let made = handle(&results[2]);
    peer.ok(setattr(&made, ANONYMOUS, SetAttrs { mode: Some(0o777), ..SetAttrs::default() }));
    if matches!(results[1], Res::OP_OPEN(_)) {
        peer.ok(close(&made, opened(&results[1]).stateid));
    }
    made
}

fn create(name: &str, objtype: createtype4) -> Arg {
    Arg::OP_CREATE(CREATE4args { objtype, objname: text(name), createattrs: mode(0o777) })
}

/// Returns an OPEN that creates the file if it does not exist.
fn make(name: &str) -> Arg {
    Arg::OP_OPEN(open(name, BOTH, unchecked(0o666)))
}

fn within(dir: &Bytes, op: Arg) -> Vec<Arg> {
    vec![putfh(dir), op]
}

fn rename(from: (&Bytes, &str), to: (&Bytes, &str)) -> Vec<Arg> {
    let rename = RENAME4args { oldname: text(from.1), newname: text(to.1) };
    vec![putfh(from.0), Arg::OP_SAVEFH, putfh(to.0), Arg::OP_RENAME(rename)]
}

fn link(file: &Bytes, dir: &Bytes, name: &str) -> Vec<Arg> {
    let link = LINK4args { newname: text(name) };
    vec![putfh(file), Arg::OP_SAVEFH, putfh(dir), Arg::OP_LINK(link)]
}

fn take(dir: &Bytes, name: &str) -> Vec<Arg> {
    within(dir, Arg::OP_REMOVE(REMOVE4args { target: text(name) }))
}

fn ask_for(dir: &Bytes, types: Mask) -> Vec<Arg> {
    let args =
        GET_DIR_DELEGATION4args { gdda_notification_types: types.to_bitmap(), ..GET_DIR_DELEGATION4args::default() };
    within(dir, Arg::OP_GET_DIR_DELEGATION(args))
}

/// Requests a directory delegation as a client that declares [`OWN_CHANGES`]; `None` if the server grants none.
fn ask(peer: &Peer, dir: &Bytes) -> Option<stateid4> {
    use GET_DIR_DELEGATION4res_non_fatal::{GDD4_OK, GDD4_UNAVAIL};
    match &peer.ok(ask_for(dir, Mask::of(&[OWN_CHANGES])))[1] {
        Res::OP_GET_DIR_DELEGATION(GET_DIR_DELEGATION4res::NFS4_OK(GDD4_OK(given))) => {
            assert!(given.gddr_notification.is_empty(), "nothing is told of changes");
            Some(given.gddr_stateid)
        }
        Res::OP_GET_DIR_DELEGATION(GET_DIR_DELEGATION4res::NFS4_OK(GDD4_UNAVAIL(false))) => None,
        other => panic!("not an answer to this: {other:?}"),
    }
}

fn give_back(dir: &Bytes, deleg_stateid: stateid4) -> Vec<Arg> {
    within(dir, Arg::OP_DELEGRETURN(DELEGRETURN4args { deleg_stateid }))
}

fn delegations(bench: &Bench) -> usize {
    bench.server.inspect(|state| state.counts().delegations)
}

/// Which directory an operation of [`REQUESTS`] changes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Of {
    Dir,
    /// The directory `empty`, which the operation removes or replaces.
    Empty,
}

impl Of {
    fn handle(self, tree: &Tree) -> &Bytes {
        match self {
            Of::Dir => &tree.dir,
            Of::Empty => &tree.empty,
        }
    }
}

type MakeRequest = fn(&Tree) -> Vec<Arg>;

/// Operations that change the names in a directory, or the directory itself: description, changed directory, request.
const REQUESTS: [(&str, Of, MakeRequest); 16] = [
    ("makes a file", Of::Dir, |t| within(&t.dir, make("new"))),
    ("opens a file and would make it", Of::Dir, |t| within(&t.dir, make("a"))),
    ("makes a directory", Of::Dir, |t| within(&t.dir, create("new", createtype4::NF4DIR))),
    ("makes a symbolic link", Of::Dir, |t| within(&t.dir, create("new", createtype4::NF4LNK(text("a"))))),
    ("links a file into it", Of::Dir, |t| link(&t.stray, &t.dir, "b")),
    ("moves a file within it", Of::Dir, |t| rename((&t.dir, "a"), (&t.dir, "b"))),
    ("moves a file out of it", Of::Dir, |t| rename((&t.dir, "a"), (&t.other, "a"))),
    ("moves a directory out of it", Of::Dir, |t| rename((&t.dir, "sub"), (&t.other, "sub"))),
    ("moves a file into it", Of::Dir, |t| rename((&t.other, "b"), (&t.dir, "b"))),
    ("moves a file over another in it", Of::Dir, |t| rename((&t.other, "b"), (&t.dir, "a"))),
    ("removes a file from it", Of::Dir, |t| take(&t.dir, "a")),
    ("removes a directory from it", Of::Dir, |t| take(&t.dir, "sub")),
    ("changes an attribute of it", Of::Dir, |t| {
        setattr(&t.dir, ANONYMOUS, SetAttrs { mode: Some(0o755), ..SetAttrs::default() })
    }),
    ("moves the directory", Of::Dir, |t| rename((&t.root, "dir"), (&t.other, "dir"))),
    ("removes the directory", Of::Empty, |t| take(&t.root, "empty")),
    ("moves a directory over it", Of::Empty, |t| rename((&t.other, "gap"), (&t.root, "empty"))),
];

#[test]
fn changes_by_other_clients_wait_for_the_delegation_to_be_returned() {
    for (what, of, request) in REQUESTS {
        let bench = Bench::default();
        let (one, mut two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
        two.cred.uid = 0;
        let tree = Tree::new(&one);
        let dir = of.handle(&tree);
        let held = ask(&one, dir).unwrap();
        let mut teller = pin!(bench.server.deliver());
        let mut waits = pin!(two.start(request(&tree)));
        assert!(waits.as_mut().now_or_never().is_none(), "{what}");
        assert!(teller.as_mut().now_or_never().is_none());
        assert_eq!(recalls(&bench), [CB_RECALL4args { stateid: held, truncate: false, fh: dir.clone() }], "{what}");
        // The holder still sees the old names, because the operation of the other client waits for the return of the
        // delegation.
        one.ok(within(&tree.dir, lookup("a")));
        one.ok(within(&tree.root, lookup("empty")));
        one.ok(give_back(dir, held));
        let reply = waits.now_or_never().unwrap_or_else(|| panic!("{what}: it is back"));
        assert_eq!(reply.status, NFS4_OK, "{what}");
        assert_eq!(delegations(&bench), 0, "{what}");
    }
}

#[test]
fn changes_by_the_holder_do_not_recall_its_delegation() {
    for (what, of, request) in REQUESTS {
        let bench = Bench::default();
        let mut one = Peer::meet(&bench, 1);
        let tree = Tree::new(&one);
        let held = ask(&one, of.handle(&tree)).unwrap();
        one.cred.uid = 0;
        one.ok(request(&tree));
        assert!(pin!(bench.server.deliver()).now_or_never().is_none());
        assert!(bench.server.callbacks().taken().is_empty(), "{what}");
        // If the directory was removed, the delegation has ended. If the directory was only changed, the holder keeps
        // the delegation.
        assert_eq!(delegations(&bench), usize::from(of == Of::Dir), "{what}");
        let stays = if of == Of::Dir { NFS4_OK } else { NFS4ERR_BAD_STATEID };
        let test = Arg::OP_TEST_STATEID(TEST_STATEID4args { ts_stateids: vec![held] });
        let tested = TEST_STATEID4res::NFS4_OK(TEST_STATEID4resok { tsr_status_codes: vec![stays] });
        assert_eq!(one.ok(vec![test]), [Res::OP_TEST_STATEID(tested)], "{what}");
    }
}

#[test]
fn operations_that_change_no_name_do_not_wait() {
    let readdir = |dir: &Bytes| {
        let args =
            READDIR4args { cookie: 0, cookieverf: [0; 8], dircount: 0, maxcount: 4096, attr_request: vec![1 << 1] };
        within(dir, Arg::OP_READDIR(args))
    };
    type MakeRequest<'a> = &'a dyn Fn(&Tree) -> Vec<Arg>;
    let requests: [(&str, MakeRequest); 15] = [
        ("looks a file up", &|t| within(&t.dir, lookup("a"))),
        ("lists it", &|t| readdir(&t.dir)),
        ("looks at it", &|t| within(&t.dir, Arg::OP_GETATTR(GETATTR4args { attr_request: attrs::OBJECT.to_bitmap() }))),
        ("asks what it may do", &|t| within(&t.dir, Arg::OP_ACCESS(ACCESS4args { access: 0x3f }))),
        ("opens a file for reading", &|t| within(&t.dir, Arg::OP_OPEN(open("a", READ, PLAIN)))),
        ("opens a file for writing", &|t| within(&t.dir, Arg::OP_OPEN(open("a", BOTH, PLAIN)))),
        ("writes to a file in it", &|t| write(&t.file, ANONYMOUS, 0, b"x")),
        ("changes an attribute of a file in it", &|t| setattr(&t.file, ANONYMOUS, size(1))),
        ("makes a directory below one in it", &|t| within(&t.sub, create("new", createtype4::NF4DIR))),
        ("links a file in it from elsewhere", &|t| link(&t.file, &t.other, "a")),
        ("makes a file elsewhere", &|t| within(&t.other, make("new"))),
        ("makes a directory elsewhere", &|t| within(&t.other, create("dir", createtype4::NF4DIR))),
        ("moves a file elsewhere", &|t| rename((&t.other, "b"), (&t.root, "b"))),
        ("removes a directory elsewhere", &|t| take(&t.other, "gap")),
        ("removes the link to a file in it", &|t| take(&t.other, "a")),
    ];
    let bench = Bench::default();
    let (one, mut two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    two.cred.uid = 0;
    let tree = Tree::new(&one);
    let held = ask(&one, &tree.dir).unwrap();
    for (what, request) in requests {
        let reply = two.start(request(&tree)).now_or_never().unwrap_or_else(|| panic!("{what}: it waits"));
        assert_eq!(reply.status, NFS4_OK, "{what}");
        assert!(bench.server.callbacks().taken().is_empty(), "{what}");
    }
    // A second client that requests a delegation of the same directory causes no recall.
    assert!(ask(&two, &tree.dir).is_some());
    assert_eq!(delegations(&bench), 2);
    one.ok(give_back(&tree.dir, held));
}

#[test]
fn all_holders_except_the_changing_client_are_recalled() {
    let bench = Bench::default();
    let (one, mut two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let three = Peer::meet(&bench, 3);
    two.cred.uid = 0;
    let tree = Tree::new(&one);
    let dir = &tree.dir;
    let [of_one, of_two, of_three] = [&one, &two, &three].map(|peer| ask(peer, dir).unwrap());
    let mut teller = pin!(bench.server.deliver());
    let mut waits = pin!(two.start(within(dir, make("new"))));
    assert!(waits.as_mut().now_or_never().is_none());
    assert!(teller.as_mut().now_or_never().is_none());
    let mut asked: Vec<_> = recalls(&bench).into_iter().map(|recall| recall.stateid).collect();
    asked.sort_by_key(|stateid| stateid.other);
    let mut expected = [of_one, of_three];
    expected.sort_by_key(|stateid| stateid.other);
    assert_eq!(asked, expected);
    one.ok(give_back(dir, of_one));
    assert_eq!(waits.now_or_never().map(|reply| reply.status), Some(NFS4ERR_DELAY), "another has it still");
    let mut waits = pin!(two.start(within(dir, make("new"))));
    assert!(waits.as_mut().now_or_never().is_none());
    assert!(recalls(&bench).is_empty(), "it is asked already");
    three.ok(give_back(dir, of_three));
    assert_eq!(waits.now_or_never().map(|reply| reply.status), Some(NFS4_OK));
    assert_eq!(delegations(&bench), 1);
    // The client that changed the directory keeps its delegation. The server grants no new delegation of the
    // directory for 60 seconds after the recall (recall cooldown).
    assert!(ask(&one, dir).is_none());
    bench.pass(Duration::from_secs(60));
    assert!(ask(&one, dir).is_some());
    two.ok(give_back(dir, of_two));
}

#[test]
fn a_rename_waits_for_the_delegations_of_both_directories() {
    let bench = Bench::default();
    let (one, mut two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    two.cred.uid = 0;
    let tree = Tree::new(&one);
    let [from, to] = [&tree.dir, &tree.other].map(|dir| ask(&one, dir).unwrap());
    let mut waits = pin!(two.start(rename((&tree.dir, "a"), (&tree.other, "a"))));
    assert!(waits.as_mut().now_or_never().is_none());
    one.ok(give_back(&tree.dir, from));
    assert!(waits.as_mut().now_or_never().is_none(), "the other is not back");
    assert!(ask(&one, &tree.dir).is_none(), "the name is about to move");
    one.ok(give_back(&tree.other, to));
    assert_eq!(waits.now_or_never().map(|reply| reply.status), Some(NFS4_OK));
}

#[test]
fn no_delegation_is_granted_until_the_changing_request_ends() {
    let bench = Bench::default();
    let (one, mut two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    two.cred.uid = 0;
    let tree = Tree::new(&one);
    let held = ask(&one, &tree.other).unwrap();
    let both = [within(&tree.dir, make("new")), take(&tree.other, "b")].concat();
    let mut waits = pin!(two.start(both));
    assert!(waits.as_mut().now_or_never().is_none());
    one.ok(within(&tree.dir, lookup("new")));
    assert!(ask(&one, &tree.dir).is_none(), "nobody has been asked for it, so that nothing cools");
    one.ok(give_back(&tree.other, held));
    assert_eq!(waits.now_or_never().map(|reply| reply.status), Some(NFS4_OK));
    assert!(ask(&one, &tree.dir).is_some());
    // A client that changes a directory gets no delegation of this directory within the same COMPOUND.
    let again = [within(&tree.root, make("new")), ask_for(&tree.root, Mask::of(&[OWN_CHANGES]))].concat();
    let none = GET_DIR_DELEGATION4res_non_fatal::GDD4_UNAVAIL(false);
    assert_eq!(one.ok(again)[3], Res::OP_GET_DIR_DELEGATION(GET_DIR_DELEGATION4res::NFS4_OK(none)));
}

#[test]
fn an_unreturned_directory_delegation_is_revoked() {
    let bench = Bench::default();
    let (one, mut two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    two.cred.uid = 0;
    let tree = Tree::new(&one);
    let held = ask(&one, &tree.dir).unwrap();
    let remove = || {
        let mut waits = pin!(two.start(take(&tree.dir, "a")));
        (0..9).find_map(|_| waits.as_mut().now_or_never()).map(|reply| reply.status)
    };
    assert_eq!(remove(), Some(NFS4ERR_DELAY));
    // The holder renews its lease and keeps its other state, but does not return the delegation, so the server revokes
    // only the delegation.
    for time in [LEASE / 2, LEASE / 2 - Duration::from_secs(1)] {
        bench.pass(time);
        one.ok(vec![]);
        assert_eq!(remove(), Some(NFS4ERR_DELAY));
    }
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.server.fs().owners().len(), 2, "there is nothing of it that could be reclaimed");
    assert_eq!(remove(), Some(NFS4_OK));
    assert_eq!(one.fails(give_back(&tree.dir, held)), NFS4ERR_DELEG_REVOKED);
    one.ok(vec![Arg::OP_FREE_STATEID(FREE_STATEID4args { fsa_stateid: held })]);
    assert!(ask(&one, &tree.dir).is_some());
}

#[test]
fn a_change_does_not_wait_for_a_silent_holder() {
    let bench = Bench::default();
    let (one, mut two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    two.cred.uid = 0;
    let tree = Tree::new(&one);
    let held = ask(&one, &tree.dir).unwrap();
    bench.pass(RELIED_ON);
    two.ok(take(&tree.dir, "a"));
    assert!(bench.server.callbacks().taken().is_empty());
    assert_eq!(one.fails(give_back(&tree.dir, held)), NFS4ERR_DELEG_REVOKED);
    one.ok(vec![Arg::OP_FREE_STATEID(FREE_STATEID4args { fsa_stateid: held })]);
    // The server revoked the delegation without a recall, so no recall cooldown prevents a new grant.
    assert!(ask(&one, &tree.dir).is_some());
}

#[test]
fn only_clients_that_declare_own_changes_get_a_delegation() {
    let bench = Bench::default();
    let one = Peer::meet(&bench, 1);
    let tree = Tree::new(&one);
    let none = GET_DIR_DELEGATION4res_non_fatal::GDD4_UNAVAIL(false);
    let unavailable = Res::OP_GET_DIR_DELEGATION(GET_DIR_DELEGATION4res::NFS4_OK(none));
    // Linux requests no notifications, and other clients request some. No such client declares `OWN_CHANGES`, so none
    // gets a delegation.
    for types in [Mask::NONE, Mask::of(&[0, 1, 2, 3, 4, 5]), Mask::of(&[OWN_CHANGES - 1])] {
        assert_eq!(one.ok(ask_for(&tree.dir, types))[1], unavailable);
    }
    assert_eq!(delegations(&bench), 0);
    let knowing = Mask::of(&[OWN_CHANGES]);
    for types in [Mask::NONE, knowing] {
        assert_eq!(one.fails(ask_for(&tree.file, types)), NFS4ERR_NOTDIR);
    }
    let alone = ask_for(&tree.dir, knowing).pop().unwrap();
    assert_eq!(one.fails(vec![alone]), NFS4ERR_NOFILEHANDLE);
    one.ok(take(&tree.root, "empty"));
    assert_eq!(one.fails(ask_for(&tree.empty, knowing)), NFS4ERR_STALE);
    assert!(ask(&one, &tree.dir).is_some());
    assert!(ask(&one, &tree.dir).is_none(), "it has it");
    assert_eq!(delegations(&bench), 1);
}

#[test]
fn a_directory_delegation_stateid_is_refused_for_io() {
    let bench = Bench::default();
    let one = Peer::meet(&bench, 1);
    let tree = Tree::new(&one);
    let held = ask(&one, &tree.dir).unwrap();
    let claim = open_claim4::CLAIM_DELEG_CUR_FH(held);
    let requests = [
        ("reads", read(&tree.dir, held, 0, 1)),
        ("writes", write(&tree.dir, held, 0, b"x")),
        ("cuts", setattr(&tree.dir, held, size(0))),
        ("asks for a layout", within(&tree.dir, Arg::OP_LAYOUTGET(layoutget(held, LAYOUTIOMODE4_RW)))),
        ("opens", within(&tree.dir, Arg::OP_OPEN(OPEN4args { claim, ..open("", READ, PLAIN) }))),
    ];
    for (what, request) in requests {
        let status = one.fails(request);
        assert!(matches!(status, NFS4ERR_ISDIR | NFS4ERR_INVAL), "{what}: {status:?}");
    }
    // The stateid of a directory delegation is not valid for a file in the directory.
    assert_eq!(one.fails(read(&tree.file, held, 0, 1)), NFS4ERR_BAD_STATEID);
    assert_eq!(delegations(&bench), 1);
}
