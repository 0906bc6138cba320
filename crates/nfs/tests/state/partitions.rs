//! Model test of lock reclaims: restarts, silent clients and crashes of the server in every order.
//!
//! No client may reclaim or use its lock after another client has held the lock, even under the edge conditions of RFC
//! 8881 §8.4.3.

use crate::helpers::*;
use bytes::Bytes;
use nfs::fs::ClientRecord;
use nfs::spans::{LockKind, Span};
use nfs::state::locks::{Locked, Locker};
use nfs::state::opens::{Access, Permit};
use nfs::state::{ClientId, Config, Effect, Result, State};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use types::FileId;
use wire::nfs4::nfsstat4::*;
use wire::nfs4::{sessionid4, stateid4};

const FILE: FileId = FileId(10);
const OWNERS: [&str; 3] = ["a", "b", "c"];

/// A client of the model, with the stateids that it assumes to be valid.
#[derive(Clone, Default)]
struct Peer {
    session: Option<(ClientId, sessionid4, u32)>,
    open: Option<stateid4>,
    lock: Option<stateid4>,
    /// Whether the client assumes that it holds the lock. After a restart of the server, the client must reclaim the
    /// lock before it uses the lock.
    believes: bool,
    /// Whether the server has granted the lock to another client since this client got the lock.
    other_since: bool,
}

#[derive(Clone)]
struct World {
    state: State,
    boot: u32,
    now: i64,
    /// The client records on disk: client id by client owner.
    disk: BTreeMap<Bytes, u64>,
    peers: [Peer; 3],
    /// The number of effects of the state tables ([`Effect`]) that the server still carries out before it crashes;
    /// `None` if no crash is planned.
    crash_after: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Lock(usize),
    Unlock(usize),
    Use(usize),
    Reclaim(usize),
    Complete(usize),
    Restart,
    /// Two minutes pass in which no client sends a request, except the given client.
    Silence(Option<usize>),
    Tick,
    CrashAfter(usize),
}

/// The error of a request during which the server crashed before it replied.
struct Crashed;

impl World {
    fn new() -> Self {
        let state = State::new(Config::new(1, ROLES, LEASE), Vec::new(), at(0));
        World { state, boot: 1, now: 0, disk: BTreeMap::new(), peers: Default::default(), crash_after: None }
    }

    fn restart(&mut self) {
        self.boot += 1;
        let records = self.disk.iter().map(|(owner, id)| ClientRecord { owner: owner.clone(), clientid: *id });
        self.state = State::new(Config::new(self.boot, ROLES, LEASE), records.collect(), at(self.now));
        self.crash_after = None;
    }

    /// Carries out what the state tables request before the server replies (their effects), such as the storage of a
    /// client record. Stops at the planned crash of the server.
    fn settle(&mut self) -> std::result::Result<(), Crashed> {
        let mut effects = VecDeque::from(self.state.take_effects());
        while let Some(effect) = effects.pop_front() {
            if self.crash_after == Some(0) {
                self.restart();
                return Err(Crashed);
            }
            self.crash_after = self.crash_after.map(|left| left - 1);
            match effect {
                Effect::Persist(record) => self.disk.extend([(record.owner, record.clientid)]),
                Effect::Forget(owner) => self.disk.retain(|o, _| *o != owner),
                Effect::Lapse { client, owner } => {
                    self.disk.retain(|o, _| *o != owner);
                    self.state.lapsed(client);
                }
                Effect::GraceOver(owners) => {
                    self.disk.retain(|o, _| !owners.contains(o));
                    self.state.grace_over(&owners);
                }
                Effect::Distrust { client, owner } => {
                    self.disk.retain(|o, _| *o != owner);
                    self.state.distrusted(client, at(self.now));
                }
                Effect::DelegationGone(_)
                | Effect::LockFree { .. }
                | Effect::LastClose(_)
                | Effect::LayoutGone { .. }
                | Effect::SessionGone(_) => {}
            }
            effects.extend(self.state.take_effects());
        }
        Ok(())
    }

    /// Sends SEQUENCE and returns the client id. If the session is gone, the client first sends EXCHANGE_ID and
    /// CREATE_SESSION, which may change its client id.
    fn sequence_or_reconnect(&mut self, who: usize) -> std::result::Result<ClientId, Crashed> {
        if let Some((client, session, number)) = self.peers[who].session
            && let Ok(sequenced) = sequence(&mut self.state, &sequence_args(session, 0, number, false), at(self.now))
        {
            let nfs::state::sessions::Sequence::New(new) = sequenced else { panic!("a number of its own") };
            self.peers[who].session = Some((client, session, number + 1));
            self.state.finish(new.token, None);
            return self.settle().map(|()| client);
        }
        let id = self.state.exchange_id(&exchange_args(OWNERS[who], 1, 0), ALICE, at(self.now)).unwrap();
        let args = create_args(id.client, id.sequence);
        let session = self.state.create_session(&args, ALICE, CONNECTION, 5, at(self.now)).unwrap();
        self.settle()?;
        let known = self.peers[who].session.is_some_and(|(client, ..)| client == id.client);
        self.peers[who].session = Some((id.client, session.csr_sessionid, 1));
        if !known {
            // The server no longer has the client's state, so the client must reclaim the lock that it assumes to hold.
            (self.peers[who].open, self.peers[who].lock) = (None, None);
        }
        Ok(id.client)
    }

    /// Opens the file and locks all of it. Returns open and lock stateid, or `None` if another client holds the lock.
    fn take(&mut self, who: usize, client: ClientId, reclaim: bool) -> Result<Option<(stateid4, stateid4)>> {
        self.state.check_grace(client, reclaim)?;
        let open = match self.peers[who].open {
            Some(open) => open,
            None => self.state.open(client, &Bytes::from_static(b"o"), FILE, 3, 0)?.stateid,
        };
        let open = stateid4 { seqid: 0, ..open };
        let locker = Locker::Open { stateid: &open, owner: &Bytes::from_static(b"l") };
        match self.state.lock(client, FILE, locker, (Span::ALL, LockKind::Write), false, at(self.now)) {
            Ok(Locked::Granted(lock)) => Ok(Some((open, lock))),
            Ok(Locked::Denied(_)) => Ok(None),
            // The open stateid is invalid, because the server revoked the open or the client's lease expired.
            Err(status) => {
                let _ = self.state.free_stateid(client, &open);
                self.peers[who].open = None;
                Err(status)
            }
        }
    }

    fn step(&mut self, call: Call) -> std::result::Result<(), Crashed> {
        match call {
            Call::Lock(who) => {
                let client = self.sequence_or_reconnect(who)?;
                if self.peers[who].believes {
                    return Ok(());
                }
                let got = self.take(who, client, false);
                self.settle()?;
                if let Ok(Some((open, lock))) = got {
                    self.peers.iter_mut().for_each(|peer| peer.other_since = true);
                    let peer = &mut self.peers[who];
                    (peer.open, peer.lock, peer.believes, peer.other_since) = (Some(open), Some(lock), true, false);
                }
            }
            Call::Unlock(who) => {
                let client = self.sequence_or_reconnect(who)?;
                if let Some(lock) = self.peers[who].lock.filter(|_| self.peers[who].believes) {
                    let _ = self.state.unlock(client, FILE, &stateid4 { seqid: 0, ..lock }, Span::ALL);
                    self.settle()?;
                    self.peers[who].believes = false;
                }
            }
            Call::Use(who) => self.use_lock(who)?,
            Call::Reclaim(who) => {
                let client = self.sequence_or_reconnect(who)?;
                if !self.peers[who].believes || self.peers[who].lock.is_some() {
                    return Ok(());
                }
                let got = self.take(who, client, true);
                self.settle()?;
                let peer = &mut self.peers[who];
                match got {
                    Ok(Some((open, lock))) => {
                        assert!(!peer.other_since, "it has reclaimed what another has had since");
                        (peer.open, peer.lock) = (Some(open), Some(lock));
                    }
                    got => {
                        assert_ne!(got, Ok(None), "another has reclaimed it at the same time");
                        peer.believes = false;
                    }
                }
            }
            Call::Complete(who) => {
                let client = self.sequence_or_reconnect(who)?;
                let _ = self.state.reclaim_complete(client, false);
                self.settle()?;
                let peer = &mut self.peers[who];
                peer.believes &= peer.lock.is_some();
            }
            Call::Restart => self.restart(),
            Call::Silence(save) => {
                for _ in 0..2 {
                    self.now += 60;
                    if let Some(who) = save {
                        self.sequence_or_reconnect(who)?;
                    }
                }
            }
            Call::Tick => {
                self.state.expire(at(self.now));
                self.settle()?;
            }
            Call::CrashAfter(effects) => self.crash_after = Some(effects),
        }
        Ok(())
    }

    /// Sends a WRITE with the stateid of the lock. The write must succeed if and only if no other client has held the
    /// lock since this client got the lock.
    fn use_lock(&mut self, who: usize) -> std::result::Result<(), Crashed> {
        let client = self.sequence_or_reconnect(who)?;
        let Some(lock) = self.peers[who].lock.filter(|_| self.peers[who].believes) else { return Ok(()) };
        let lock = stateid4 { seqid: 0, ..lock };
        match self.state.check_io(client, FILE, &lock, Access::Write) {
            Ok(permit) => {
                assert_eq!(permit, Permit::Open);
                assert!(!self.peers[who].other_since, "it writes under a lock that another has had since");
            }
            Err(status) => {
                assert_eq!(status, NFS4ERR_EXPIRED, "a client that is known is told");
                assert!(self.peers[who].other_since, "nobody wanted it");
                let _ = self.state.free_stateid(client, &lock);
                self.settle()?;
                (self.peers[who].lock, self.peers[who].believes) = (None, false);
            }
        }
        Ok(())
    }

    fn apply(&mut self, call: Call) {
        let _ = self.step(call);
        let holders = self.state.locks_on(FILE).len();
        assert!(holders <= 1, "an exclusive lock");
    }
}

/// Checks every short history of two clients, after client 0 has locked the file and the test has executed the calls
/// `then`.
fn histories_after(then: &[Call]) {
    let mut world = World::new();
    let begin = [Call::Complete(0), Call::Complete(1), Call::Lock(0)];
    begin.iter().chain(then).for_each(|call| world.apply(*call));
    assert!(world.peers[0].believes);
    let mut calls = vec![Call::Restart, Call::Tick, Call::Silence(Some(1)), Call::Silence(None)];
    calls.extend([
        Call::Lock(1),
        Call::Unlock(1),
        Call::Complete(1),
        Call::Use(0),
        Call::Reclaim(0),
        Call::Complete(0),
    ]);
    walk(&world, &calls, 5, World::apply);
}

#[test]
fn two_clients_never_reclaim_a_lock_that_the_other_has_held() {
    histories_after(&[]);
}

#[test]
fn after_a_missed_restart_no_client_reclaims_a_lost_lock() {
    histories_after(&[Call::Restart, Call::Silence(Some(1))]);
}

fn call() -> impl Strategy<Value = Call> {
    let who = 0..OWNERS.len();
    prop_oneof![
        3 => who.clone().prop_map(Call::Lock),
        1 => who.clone().prop_map(Call::Unlock),
        3 => who.clone().prop_map(Call::Use),
        2 => who.clone().prop_map(Call::Reclaim),
        3 => who.clone().prop_map(Call::Complete),
        1 => Just(Call::Restart),
        3 => prop::option::of(who).prop_map(Call::Silence),
        3 => Just(Call::Tick),
        1 => (0..3usize).prop_map(Call::CrashAfter),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn three_clients_never_reclaim_a_lost_lock_in_long_histories(calls in prop::collection::vec(call(), 1..80)) {
        let mut world = World::new();
        calls.into_iter().for_each(|call| world.apply(call));
    }
}
