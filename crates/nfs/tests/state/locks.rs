//! Tests of byte-range locks in the state tables, against a model with a separate entry for each byte.

use crate::helpers::*;
use bytes::Bytes;
use nfs::spans::{LockKind, Span};
use nfs::state::locks::{Denied, Locked, Locker};
use nfs::state::opens::{Access, Permit};
use nfs::state::{ClientId, Effect, Result, State};
use proptest::prelude::*;
use types::{FileId, limits};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::stateid4;

const FILES: [FileId; 2] = [FileId(10), FileId(11)];
const KINDS: [LockKind; 2] = [LockKind::Read, LockKind::Write];
/// Number of bytes in the model. The last byte of the model stands for all bytes from there to the end of the file.
const BYTES: usize = 5;

fn span(from: usize, to: usize) -> Span {
    Span { first: from as u64, last: if to == BYTES { u64::MAX } else { to as u64 - 1 } }
}

fn name(name: &'static str) -> Bytes {
    Bytes::from_static(name.as_bytes())
}

/// The model: three lock-owners, two files, and the lock on each byte.
///
/// The first two lock-owners belong to one client and use different open-owners. The third lock-owner belongs to
/// another client and has the same owner string as the first lock-owner.
#[derive(Clone)]
struct World {
    state: State,
    owners: [(ClientId, Bytes); 3],
    /// The stateid of the open under which each lock-owner locks a file, by file and lock-owner.
    opens: [[stateid4; 3]; 2],
    /// The lock stateids, by file and lock-owner; `None` before the first lock.
    locks: [[Option<stateid4>; 3]; 2],
    /// The lock on each byte, by file, lock-owner and byte.
    bytes: [[[Option<LockKind>; BYTES]; 3]; 2],
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Lock(usize, usize, LockKind, usize, usize),
    Unlock(usize, usize, usize, usize),
    Close(usize, usize),
    Free(usize, usize),
}

impl World {
    fn new() -> Self {
        let mut state = new_state();
        let a = connect(&mut state, "a", at(0)).0;
        let b = connect(&mut state, "b", at(0)).0;
        let owners = [(a, name("x")), (a, name("y")), (b, name("x"))];
        let opens = FILES.map(|file| {
            [(a, "p"), (a, "q"), (b, "p")].map(|(c, owner)| state.open(c, &name(owner), file, 3, 0).unwrap().stateid)
        });
        World { state, owners, opens, locks: Default::default(), bytes: Default::default() }
    }

    fn apply(&mut self, call: Call) {
        match call {
            Call::Lock(file, who, kind, from, to) => self.lock(file, who, kind, from, to),
            Call::Unlock(file, who, from, to) => self.unlock(file, who, from, to),
            Call::Close(file, who) => self.close(file, who),
            Call::Free(file, who) => self.free(file, who),
        }
        self.check();
    }

    /// Returns whether a lock-owner other than `who` holds a conflicting lock on one of these bytes.
    fn in_the_way(&self, file: usize, who: usize, kind: LockKind, from: usize, to: usize) -> bool {
        let others = (0..3).filter(|other| *other != who);
        others.flat_map(|other| &self.bytes[file][other][from..to]).flatten().any(|held| held.conflicts(kind))
    }

    fn lock(&mut self, file: usize, who: usize, kind: LockKind, from: usize, to: usize) {
        let (client, owner) = self.owners[who].clone();
        let held = self.locks[file][who];
        let locker = match &held {
            Some(stateid) => Locker::Held(stateid),
            None => Locker::Open { stateid: &self.opens[file][who], owner: &owner },
        };
        let got = self.state.lock(client, FILES[file], locker, (span(from, to), kind), false, at(0)).unwrap();
        if self.in_the_way(file, who, kind, from, to) {
            let Locked::Denied(by) = got else { panic!("given although others hold it") };
            self.check_denied(file, who, kind, span(from, to), &by);
            return;
        }
        let Locked::Granted(stateid) = got else { panic!("{got:?}, but nobody holds it") };
        match held {
            Some(held) => assert_eq!(stateid, stateid4 { seqid: held.seqid + 1, ..held }),
            None => assert_eq!(stateid.seqid, 1),
        }
        self.locks[file][who] = Some(stateid);
        self.bytes[file][who][from..to].fill(Some(kind));
    }

    /// Checks that the denial names a conflicting lock that another lock-owner holds in the model.
    fn check_denied(&self, file: usize, who: usize, kind: LockKind, span: Span, by: &Denied) {
        let holder = self.owners.iter().position(|o| *o == (by.client, by.owner.clone())).unwrap();
        assert!(holder != who && by.kind.conflicts(kind) && by.span.overlaps(span));
        for byte in by.span.first..=by.span.last.min(BYTES as u64 - 1) {
            assert_eq!(self.bytes[file][holder][byte as usize], Some(by.kind));
        }
    }

    fn unlock(&mut self, file: usize, who: usize, from: usize, to: usize) {
        let Some(held) = self.locks[file][who] else { return };
        let client = self.owners[who].0;
        let got = self.state.unlock(client, FILES[file], &held, span(from, to));
        let next = stateid4 { seqid: held.seqid + 1, ..held };
        assert_eq!(got, Ok(next));
        self.locks[file][who] = Some(next);
        self.bytes[file][who][from..to].fill(None);
    }

    /// Closes the file, which releases the locks of the lock-owner, and opens the file again.
    fn close(&mut self, file: usize, who: usize) {
        let client = self.owners[who].0;
        let open = std::mem::take(&mut self.opens[file][who]);
        self.state.close(client, FILES[file], &open).unwrap();
        if let Some(gone) = self.locks[file][who].take() {
            assert_eq!(self.state.test_stateid(client, &gone), NFS4ERR_BAD_STATEID);
        }
        self.bytes[file][who] = Default::default();
        self.opens[file][who] =
            self.state.open(client, &name(["p", "q", "p"][who]), FILES[file], 3, 0).unwrap().stateid;
    }

    fn free(&mut self, file: usize, who: usize) {
        let Some(held) = self.locks[file][who] else { return };
        let client = self.owners[who].0;
        let got = self.state.free_stateid(client, &held);
        if self.bytes[file][who].iter().any(Option::is_some) {
            assert_eq!(got, Err(NFS4ERR_LOCKS_HELD));
        } else {
            assert_eq!(got, Ok(()));
            assert_eq!(self.state.test_stateid(client, &held), NFS4ERR_BAD_STATEID);
            self.locks[file][who] = None;
        }
    }

    fn check(&self) {
        let mut runs = 0;
        for (file, id) in FILES.into_iter().enumerate() {
            let mut bytes = [[None; BYTES]; 3];
            let held = self.state.locks_on(id);
            runs += held.len();
            for lock in held {
                let who = self.owners.iter().position(|o| *o == (lock.client, lock.owner.clone())).unwrap();
                for byte in lock.span.first..=lock.span.last.min(BYTES as u64 - 1) {
                    let byte = &mut bytes[who][byte as usize];
                    assert_eq!(byte.replace(lock.kind), None, "held twice");
                }
            }
            assert_eq!(bytes, self.bytes[file]);
            for (who, (client, owner)) in self.owners.iter().enumerate() {
                for (kind, byte) in KINDS.into_iter().flat_map(|kind| (0..BYTES).map(move |byte| (kind, byte))) {
                    let found = self.state.test_lock(*client, id, owner, span(byte, byte + 1), kind);
                    assert_eq!(found.is_some(), self.in_the_way(file, who, kind, byte, byte + 1));
                }
                if let Some(stateid) = self.locks[file][who] {
                    assert_eq!(self.state.test_stateid(*client, &stateid), NFS4_OK);
                    for access in [Access::Read, Access::Write] {
                        // Locks are advisory, so locks of other lock-owners do not prevent I/O.
                        assert_eq!(self.state.check_io(*client, id, &stateid, access), Ok(Permit::Open));
                    }
                }
            }
        }
        assert_eq!(self.state.counts().locks, runs);
    }
}

#[test]
fn locks_on_one_file_match_the_model_in_every_short_history() {
    let mut calls = Vec::new();
    for who in 0..3 {
        for (from, to) in [(0, 5), (1, 3), (2, 4)] {
            calls.extend(KINDS.map(|kind| Call::Lock(0, who, kind, from, to)));
            calls.push(Call::Unlock(0, who, from, to));
        }
    }
    calls.extend([Call::Close(0, 0), Call::Free(0, 0)]);
    walk(&World::new(), &calls, 3, World::apply);
}

#[test]
fn splits_and_joins_of_one_owner_match_the_model() {
    let mut calls = vec![Call::Free(0, 0)];
    for (from, to) in [(0, 5), (0, 2), (1, 2), (2, 4), (3, 5)] {
        calls.extend(KINDS.map(|kind| Call::Lock(0, 0, kind, from, to)));
        calls.push(Call::Unlock(0, 0, from, to));
    }
    walk(&World::new(), &calls, 3, World::apply);
}

#[test]
fn locks_on_two_files_match_the_model_in_every_short_history() {
    let mut calls = Vec::new();
    for file in 0..2 {
        for who in [0, 2] {
            calls.extend([Call::Lock(file, who, LockKind::Write, 0, 2), Call::Unlock(file, who, 1, 5)]);
        }
        calls.extend([Call::Lock(file, 1, LockKind::Read, 1, 5), Call::Close(file, 1)]);
    }
    walk(&World::new(), &calls, 4, World::apply);
}

fn call() -> impl Strategy<Value = Call> {
    let range = (0..BYTES, 1..=BYTES).prop_map(|(from, len)| (from, (from + len).min(BYTES)));
    (0..2usize, 0..3usize, 0..10, any::<bool>(), range).prop_map(|(file, who, what, write, (from, to))| match what {
        0..6 => Call::Lock(file, who, KINDS[usize::from(write)], from, to),
        6..8 => Call::Unlock(file, who, from, to),
        8 => Call::Free(file, who),
        _ => Call::Close(file, who),
    })
}

proptest! {
    #[test]
    fn long_histories(calls in prop::collection::vec(call(), 1..60)) {
        let mut world = World::new();
        calls.into_iter().for_each(|call| world.apply(call));
    }

    /// Every waiter that keeps retrying gets its lock in the end, if lock holders release their locks. This holds for
    /// every order of the LOCKs and every overlap of their ranges.
    #[test]
    fn every_waiter_that_asks_again_gets_its_lock(
        wishes in prop::collection::vec((0..2usize, any::<bool>(), 0..BYTES, 1..=BYTES), 3),
        held in prop::collection::vec(call(), 0..6),
        order in prop::collection::vec(0..3usize, 3..30),
    ) {
        let mut world = World::new();
        held.into_iter().for_each(|call| world.apply(call));
        let mut now = 0;
        let mut left: Vec<_> = wishes.into_iter().enumerate().collect();
        let ask = |world: &mut World, who: usize, wish: &(usize, bool, usize, usize), now: i64| {
            let (file, write, from, len) = *wish;
            let (client, owner) = world.owners[who].clone();
            let locker = Locker::Open { stateid: &stateid4 { seqid: 0, ..world.opens[file][who] }, owner: &owner };
            let lock = (span(from, (from + len).min(BYTES)), KINDS[usize::from(write)]);
            let got = world.state.lock(client, FILES[file], locker, lock, true, at(now)).unwrap();
            matches!(got, Locked::Granted(_))
        };
        for who in order {
            now += 1;
            if let Some(at) = left.iter().position(|(w, _)| *w == who) && ask(&mut world, who, &left[at].1, now) {
                left.remove(at);
            }
        }
        // In this phase of the test, lock-owners request no new locks and only retry the LOCK that the server denied. A
        // lock-owner whose LOCK succeeds then releases all its locks.
        for who in 0..3 {
            if !left.iter().any(|(w, _)| *w == who) {
                give_back(&mut world, who);
            }
        }
        let mut rounds = 0_usize;
        while !left.is_empty() {
            now += 1;
            rounds += 1;
            let before = left.len();
            left.retain(|(who, wish)| {
                let got = ask(&mut world, *who, wish, now);
                if got {
                    give_back(&mut world, *who);
                }
                !got
            });
            // Two lock-owners that wait for each other's locks are deadlocked, which the server does not resolve. So
            // the test lets one of the two release its locks.
            if left.len() == before && rounds.is_multiple_of(4) {
                let who = left[rounds / 4 % left.len()].0;
                give_back(&mut world, who);
            }
            prop_assert!(rounds < 40, "{left:?} wait for ever");
        }
        prop_assert_eq!((world.state.counts().locks, world.state.counts().lock_waits), (0, 0));
    }
}

fn give_back(world: &mut World, who: usize) {
    let client = world.owners[who].0;
    for (file, opens) in FILES.into_iter().zip(&mut world.opens) {
        world.state.close(client, file, &stateid4 { seqid: 0, ..opens[who] }).unwrap();
        opens[who] = world.state.open(client, &name(["p", "q", "p"][who]), file, 3, 0).unwrap().stateid;
    }
}

/// Creates three clients, each with an open of the file.
fn three() -> (State, [(ClientId, stateid4); 3]) {
    let mut state = new_state();
    let clients = ["a", "b", "c"].map(|owner| {
        let (client, _) = connect(&mut state, owner, at(0));
        (client, state.open(client, &name("p"), FILES[0], 3, 0).unwrap().stateid)
    });
    (state, clients)
}

fn ask(state: &mut State, who: (ClientId, stateid4), lock: (Span, LockKind), wait: bool, now: i64) -> Result<Locked> {
    state.lock(who.0, FILES[0], Locker::Open { stateid: &who.1, owner: &name("x") }, lock, wait, at(now))
}

const ALL: (Span, LockKind) = (Span::ALL, LockKind::Write);

#[test]
fn the_waiter_that_asked_first_gets_the_lock_first() {
    let (mut state, [a, b, c]) = three();
    let Ok(Locked::Granted(held)) = ask(&mut state, a, ALL, false, 0) else { panic!() };
    let denied = |got: Result<Locked>| matches!(got, Ok(Locked::Denied(_)));
    assert!(denied(ask(&mut state, b, ALL, true, 1)));
    assert!(denied(ask(&mut state, c, ALL, true, 2)));
    assert_eq!(state.counts().lock_waits, 2);
    state.unlock(a.0, FILES[0], &held, Span::ALL).unwrap();
    let Ok(Locked::Denied(by)) = ask(&mut state, c, ALL, true, 2) else { panic!("b was there before") };
    assert_eq!((by.client, by.span, by.kind), (b.0, Span::ALL, LockKind::Write));
    assert!(denied(ask(&mut state, a, (Span { first: 3, last: 4 }, LockKind::Read), false, 2)));
    let Ok(Locked::Granted(held)) = ask(&mut state, b, ALL, true, 3) else { panic!("its turn") };
    state.unlock(b.0, FILES[0], &held, Span::ALL).unwrap();
    assert!(denied(ask(&mut state, a, ALL, false, 3)), "c is next");
    assert!(matches!(ask(&mut state, c, ALL, true, 4), Ok(Locked::Granted(_))));
    assert_eq!(state.counts().lock_waits, 0);
}

#[test]
fn a_waiter_that_does_not_ask_again_loses_its_turn() {
    let (mut state, [a, b, c]) = three();
    let Ok(Locked::Granted(held)) = ask(&mut state, a, ALL, false, 0) else { panic!() };
    for now in [1, 5] {
        ask(&mut state, b, ALL, true, now).unwrap();
    }
    ask(&mut state, c, ALL, true, 6).unwrap();
    state.unlock(a.0, FILES[0], &held, Span::ALL).unwrap();
    state.take_effects();
    // Client b retried after four seconds, so the server keeps client b's position in the queue for three times this
    // interval: twelve seconds.
    assert!(matches!(ask(&mut state, a, ALL, false, 17), Ok(Locked::Denied(by)) if by.client == b.0));
    assert!(matches!(ask(&mut state, a, ALL, false, 18), Ok(Locked::Granted(_))));
    // The server has sent client c no CB_NOTIFY_LOCK, so it keeps client c in the queue for 40 s after the last LOCK
    // request of client c.
    state.expire(at(18));
    assert_eq!(state.counts().lock_waits, 1);
    state.expire(at(47));
    assert_eq!(state.counts().lock_waits, 0);
}

/// Returns the clients that the server has notified of a free lock since the previous call of this helper.
fn told(state: &mut State) -> Vec<ClientId> {
    let told = |effect| match effect {
        Effect::LockFree { client, file, owner } => {
            assert_eq!((file, owner), (FILES[0], name("x")));
            Some(client)
        }
        _ => None,
    };
    state.take_effects().into_iter().filter_map(told).collect()
}

#[test]
fn a_waiter_is_notified_when_its_lock_is_free() {
    let (mut state, [a, b, c]) = three();
    let (low, high) = (Span { first: 0, last: 9 }, Span { first: 10, last: 19 });
    let Ok(Locked::Granted(held)) = ask(&mut state, a, ALL, false, 0) else { panic!() };
    let held = stateid4 { seqid: 0, ..held };
    ask(&mut state, b, (low, LockKind::Write), true, 1).unwrap();
    ask(&mut state, c, (Span { first: 5, last: 14 }, LockKind::Write), true, 1).unwrap();
    assert!(told(&mut state).is_empty());
    state.unlock(a.0, FILES[0], &held, high).unwrap();
    assert!(told(&mut state).is_empty(), "nobody is free to go");
    state.unlock(a.0, FILES[0], &held, low).unwrap();
    assert_eq!(told(&mut state), [b.0], "the other would be in its way");
    state.unlock(a.0, FILES[0], &held, low).unwrap();
    assert!(told(&mut state).is_empty(), "told already");
    let Ok(Locked::Granted(mine)) = ask(&mut state, b, (low, LockKind::Write), true, 2) else { panic!("free") };
    state.unlock(b.0, FILES[0], &mine, low).unwrap();
    assert_eq!(told(&mut state), [c.0]);
    // When a CLOSE releases the last conflicting lock, the server also notifies the client that waits for the lock.
    let all = (Span::ALL, LockKind::Write);
    state.unlock(a.0, FILES[0], &held, Span::ALL).unwrap();
    ask(&mut state, c, (low, LockKind::Read), false, 3).unwrap();
    let Ok(Locked::Granted(_)) = ask(&mut state, b, (low, LockKind::Read), false, 3) else {
        panic!("reads go together")
    };
    assert!(matches!(ask(&mut state, a, all, true, 3), Ok(Locked::Denied(_))));
    state.close(b.0, FILES[0], &stateid4 { seqid: 0, ..b.1 }).unwrap();
    assert!(told(&mut state).is_empty());
    state.close(c.0, FILES[0], &stateid4 { seqid: 0, ..c.1 }).unwrap();
    assert_eq!(told(&mut state), [a.0]);
}

#[test]
fn a_request_that_does_not_wait_ends_an_earlier_wait() {
    let (mut state, [a, b, c]) = three();
    let Ok(Locked::Granted(held)) = ask(&mut state, a, ALL, false, 0) else { panic!() };
    ask(&mut state, b, ALL, true, 1).unwrap();
    ask(&mut state, b, ALL, false, 1).unwrap();
    assert_eq!(state.counts().lock_waits, 0);
    // When the server removes a client, the client's waits for locks end too.
    ask(&mut state, c, ALL, true, 1).unwrap();
    for session in state.client(c.0).unwrap().sessions.clone() {
        state.destroy_session(session, CONNECTION).unwrap();
    }
    state.close(c.0, FILES[0], &c.1).unwrap();
    state.destroy_clientid(c.0, ALICE).unwrap();
    assert_eq!(state.counts().lock_waits, 0);
    state.unlock(a.0, FILES[0], &held, Span::ALL).unwrap();
    assert!(matches!(ask(&mut state, a, ALL, false, 1), Ok(Locked::Granted(_))));
}

#[test]
fn a_lock_needs_an_open_with_the_matching_access() {
    for (access, read, write) in [(1, true, false), (2, false, true), (3, true, true)] {
        let mut state = new_state();
        let (client, _) = connect(&mut state, "a", at(0));
        let open = state.open(client, &name("p"), FILES[0], access, 0).unwrap().stateid;
        for (kind, allowed) in [(LockKind::Read, read), (LockKind::Write, write)] {
            let got = ask(&mut state, (client, open), (Span::ALL, kind), false, 0);
            assert_eq!(got.err(), (!allowed).then_some(NFS4ERR_OPENMODE));
        }
    }
}

#[test]
fn lock_stateids_are_valid_for_one_client_file_and_seqid() {
    let (mut state, [a, b, _]) = three();
    let Ok(Locked::Granted(first)) = ask(&mut state, a, ALL, false, 0) else { panic!() };
    let part = Span { first: 0, last: 0 };
    assert_eq!(state.unlock(b.0, FILES[0], &first, part), Err(NFS4ERR_BAD_STATEID));
    assert_eq!(state.unlock(a.0, FILES[1], &first, part), Err(NFS4ERR_BAD_STATEID));
    assert_eq!(state.unlock(a.0, FILES[0], &a.1, part), Err(NFS4ERR_BAD_STATEID), "an open has no locks");
    let lock = |state: &mut State, stateid| {
        state.lock(a.0, FILES[0], Locker::Held(stateid), (part, LockKind::Read), false, at(0))
    };
    assert_eq!(lock(&mut state, &a.1), Err(NFS4ERR_BAD_STATEID));
    let under_lock = Locker::Open { stateid: &first, owner: &name("z") };
    let got = state.lock(a.0, FILES[0], under_lock, (part, LockKind::Read), false, at(0));
    assert_eq!(got, Err(NFS4ERR_BAD_STATEID));
    let second = state.unlock(a.0, FILES[0], &first, part).unwrap();
    assert_eq!(second, stateid4 { seqid: 2, ..first });
    assert_eq!(lock(&mut state, &first), Err(NFS4ERR_OLD_STATEID));
    assert_eq!(state.test_stateid(a.0, &first), NFS4ERR_OLD_STATEID);
    let any = stateid4 { seqid: 0, ..first };
    assert_eq!(lock(&mut state, &any), Ok(Locked::Granted(stateid4 { seqid: 3, ..first })));
    // A lock stateid outlives its last lock: a LOCK with the open and the lock-owner uses the same stateid again.
    state.unlock(a.0, FILES[0], &any, Span::ALL).unwrap();
    assert_eq!(ask(&mut state, a, ALL, false, 0), Ok(Locked::Granted(stateid4 { seqid: 5, ..first })));
    assert_eq!(state.close(a.0, FILES[0], &first).unwrap_err(), NFS4ERR_BAD_STATEID, "CLOSE is for opens");
}

#[test]
fn one_owner_under_two_opens_has_one_set_of_locks() {
    let mut state = new_state();
    let (client, _) = connect(&mut state, "a", at(0));
    let [p, q] = ["p", "q"].map(|owner| (client, state.open(client, &name(owner), FILES[0], 3, 0).unwrap().stateid));
    let Ok(Locked::Granted(under_p)) = ask(&mut state, p, ALL, false, 0) else { panic!() };
    let middle = Span { first: 10, last: 19 };
    let Ok(Locked::Granted(under_q)) = ask(&mut state, q, (middle, LockKind::Read), false, 0) else { panic!() };
    assert_ne!(under_p.other, under_q.other);
    assert_eq!(state.test_stateid(client, &under_p), NFS4_OK, "its number stays (§9.5)");
    assert_eq!(state.counts().locks, 3);
    // An unlock with the stateid of one open also releases bytes that the lock-owner locked under another open.
    state.unlock(client, FILES[0], &under_p, Span { first: 15, last: 24 }).unwrap();
    let spans: Vec<_> = state.locks_on(FILES[0]).iter().map(|l| (l.span.first, l.span.last, l.kind)).collect();
    let (read, write) = (LockKind::Read, LockKind::Write);
    assert_eq!(spans, [(0, 9, write), (10, 14, read), (25, u64::MAX, write)]);
    // CLOSE releases the ranges whose last LOCK was under the closed open.
    state.close(client, FILES[0], &p.1).unwrap();
    let spans: Vec<_> = state.locks_on(FILES[0]).iter().map(|l| (l.span.first, l.span.last)).collect();
    assert_eq!(spans, [(10, 14)]);
    state.close(client, FILES[0], &q.1).unwrap();
    assert_eq!((state.counts().locks, state.counts().opens), (0, 0));
}

#[test]
fn the_number_of_locks_of_a_client_is_limited() {
    let (mut state, [a, b, _]) = three();
    let at_byte = |byte: u64| (Span { first: 2 * byte, last: 2 * byte }, LockKind::Read);
    let most = limits::LOCKS_PER_CLIENT_MAX as u64 - 1; // the lock stateid counts towards the limit too
    for byte in 0..most {
        assert!(matches!(ask(&mut state, a, at_byte(byte), false, 0), Ok(Locked::Granted(_))));
    }
    assert_eq!(ask(&mut state, a, at_byte(most), false, 0), Err(NFS4ERR_DELAY));
    assert!(matches!(ask(&mut state, b, at_byte(most), false, 0), Ok(Locked::Granted(_))), "others have their own");
    // A lock that merges ranges reduces the number of locked ranges. At the limit on locked ranges, a client may
    // release a range but not split a range.
    let Ok(Locked::Granted(held)) = ask(&mut state, a, (Span { first: 0, last: 4 }, LockKind::Read), false, 0) else {
        panic!("fewer locks than before");
    };
    for byte in [100_000, 200_000] {
        ask(&mut state, a, (Span { first: byte, last: byte }, LockKind::Read), false, 0).unwrap();
    }
    let any = stateid4 { seqid: 0, ..held };
    assert_eq!(state.unlock(a.0, FILES[0], &any, Span { first: 1, last: 1 }), Err(NFS4ERR_LOCK_RANGE));
    state.unlock(a.0, FILES[0], &any, Span { first: 4, last: 4 }).unwrap();
    state.unlock(a.0, FILES[0], &any, Span::ALL).unwrap();
    assert_eq!(state.counts().locks, 1);
}
