//! Tests of directory delegations in the state tables: single rules, and every short history of three clients against a
//! model.

use crate::helpers::*;
use bytes::Bytes;
use nfs::fs::ClientRecord;
use nfs::name_delegations::RELIED_ON;
use nfs::state::delegations::{DelegationKind, DelegationRecall, Use, Want, WhyNoDelegation};
use nfs::state::{ClientId, Config, Effect, State};
use std::time::Duration;
use types::{FileId, Timestamp, limits};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::{
    BIND_CONN_TO_SESSION4args, CDFC4_FORE_OR_BOTH, OPEN4_SHARE_ACCESS_READ, SEQ4_STATUS_RECALLABLE_STATE_REVOKED,
    sessionid4, stateid4,
};

const DIR: FileId = FileId(20);
const OTHER: FileId = FileId(21);
/// The recall cooldown: how long after a recall the server grants no delegation of the directory.
const COOLING: Duration = Duration::from_secs(60);

#[test]
fn none_is_granted_without_a_backchannel_or_to_a_holder() {
    let (mut state, [(a, session), (b, _)]) = clients();
    state.connection_lost(CONNECTION);
    assert_eq!(state.delegate_names(a, DIR, at(1)), Err(WhyNoDelegation::Resource), "no backchannel");
    let bind = BIND_CONN_TO_SESSION4args {
        bctsa_sessid: session,
        bctsa_dir: CDFC4_FORE_OR_BOTH,
        bctsa_use_conn_in_rdma_mode: false,
    };
    state.bind_conn_to_session(&bind, CONNECTION).unwrap();
    assert_eq!(state.delegate_names(b, DIR, at(1)), Err(WhyNoDelegation::Resource), "that of another is not its own");
    let stateid = state.delegate_names(a, DIR, at(1)).unwrap();
    assert_eq!(state.delegate_names(a, DIR, at(1)), Err(WhyNoDelegation::Resource), "it has one");
    state.delegate_names(a, OTHER, at(1)).unwrap();
    state.return_delegation(a, DIR, &stateid).unwrap();
    state.delegate_names(a, DIR, at(1)).unwrap();
    assert_eq!(state.counts().delegations, 2);
}

#[test]
fn none_is_granted_in_grace_or_before_reclaim_complete() {
    let records = vec![ClientRecord { owner: Bytes::from_static(b"late"), clientid: 1 }];
    let mut state = State::new(Config::new(8, ROLES, LEASE), records, at(0));
    let (a, session) = connect(&mut state, "a", at(0));
    state.reclaim_complete(a, false).unwrap();
    assert_eq!(state.delegate_names(a, DIR, at(1)), Err(WhyNoDelegation::Resource), "names may be reclaimed by others");
    // The grace period ends by timeout, because the client `late` has not reclaimed its state.
    renew_lease(&mut state, session, 1, at(100));
    state.expire(at(100));
    let late = state.take_effects().into_iter().find_map(|effect| match effect {
        Effect::GraceOver(late) => Some(late),
        _ => None,
    });
    let late = late.unwrap();
    assert_eq!(late, [Bytes::from_static(b"late")]);
    assert_eq!(
        state.delegate_names(a, DIR, at(100)),
        Err(WhyNoDelegation::Resource),
        "its record is still on the disk"
    );
    state.grace_over(&late);
    state.delegate_names(a, DIR, at(100)).unwrap();
    let (new, _) = connect(&mut state, "new", at(100));
    assert_eq!(state.delegate_names(new, DIR, at(100)), Err(WhyNoDelegation::Resource), "it may be about to reclaim");
    state.reclaim_complete(new, false).unwrap();
    state.delegate_names(new, DIR, at(100)).unwrap();
}

#[test]
fn none_is_granted_during_a_change() {
    let (mut state, [(a, _)]) = clients();
    state.freeze_delegations(DIR);
    state.freeze_delegations(DIR);
    state.delegate_names(a, OTHER, at(1)).unwrap();
    for _ in 0..2 {
        assert_eq!(state.delegate_names(a, DIR, at(1)), Err(WhyNoDelegation::Contention));
        state.thaw_delegations(DIR);
    }
    state.delegate_names(a, DIR, at(1)).unwrap();
}

#[test]
fn none_is_granted_for_a_minute_after_a_recall() {
    let (mut state, [(a, _), (b, _), (c, _)]) = clients();
    state.delegate_names(a, DIR, at(1)).unwrap();
    let recall = state.recall_delegations(DIR, Use::Write, Some(b), at(2)).remove(0);
    state.return_delegation(a, DIR, &recall.stateid).unwrap();
    for client in [a, b, c] {
        assert_eq!(state.delegate_names(client, DIR, at(61)), Err(WhyNoDelegation::Contention));
        state.delegate_names(client, OTHER, at(61)).unwrap();
    }
    for client in [a, b, c] {
        state.delegate_names(client, DIR, at(62)).unwrap();
    }
}

#[test]
fn the_number_of_delegations_of_a_client_is_limited() {
    let (mut state, [(a, _), (b, _)]) = clients();
    let share = limits::DELEGATIONS_PER_CLIENT_MAX as u64;
    let first = state.delegate_names(a, FileId(100), at(1)).unwrap();
    for dir in 1..share {
        state.delegate_names(a, FileId(100 + dir), at(1)).unwrap();
    }
    assert_eq!(state.delegate_names(a, DIR, at(1)), Err(WhyNoDelegation::Resource));
    state.delegate_names(b, DIR, at(1)).unwrap();
    state.return_delegation(a, FileId(100), &first).unwrap();
    state.delegate_names(a, DIR, at(1)).unwrap();
}

#[test]
fn several_clients_may_hold_one_directory_without_opening_it() {
    let (mut state, [(a, _), (b, _)]) = clients();
    let (of_a, of_b) = (state.delegate_names(a, DIR, at(1)).unwrap(), state.delegate_names(b, DIR, at(1)).unwrap());
    assert!(!state.is_open(DIR) && !state.may_write(a, DIR));
    assert!(!state.is_delegated(DIR, Use::Read, None), "who only looks is in nobody's way");
    assert!(state.is_delegated(DIR, Use::Write, Some(a)) && state.is_delegated(DIR, Use::Write, Some(b)));
    assert!(state.delegated_writer(DIR, a).is_none(), "its attributes are known here");
    assert_eq!(state.find_delegation(a, DIR, &of_a), Ok(DelegationKind::Names));
    assert_eq!(state.test_stateid(a, &of_a), NFS4_OK);
    assert_eq!(state.free_stateid(a, &of_a), Err(NFS4ERR_LOCKS_HELD));
    assert_eq!(state.return_delegation(b, DIR, &of_a), Err(NFS4ERR_BAD_STATEID));
    assert_eq!(state.return_delegation(a, OTHER, &of_a), Err(NFS4ERR_BAD_STATEID));
    assert_eq!(state.destroy_clientid(a, ALICE), Err(NFS4ERR_CLIENTID_BUSY));
    assert!(state.take_effects().is_empty());
    assert_eq!(state.return_delegation(a, DIR, &of_a), Ok(DelegationKind::Names));
    assert_eq!(state.take_effects(), [Effect::DelegationGone(DIR)]);
    assert!(!state.is_delegated(DIR, Use::Write, Some(b)), "its own stands in nobody's way but others'");
    state.return_delegation(b, DIR, &of_b).unwrap();
    assert_eq!(state.take_effects(), [Effect::DelegationGone(DIR)], "it was never open");
    assert_eq!(state.counts().delegations, 0);
}

#[test]
fn a_change_revokes_the_delegation_of_a_lapsed_client_at_once() {
    let (mut state, [(a, gone), (b, session)]) = clients();
    let stateid = state.delegate_names(a, DIR, at(1)).unwrap();
    renew_lease(&mut state, session, 1, at(91));
    state.expire(at(91));
    assert_eq!(state.take_effects(), [Effect::Lapse { client: a, owner: Bytes::from_static(b"a") }]);
    state.lapsed(a);
    assert!(state.is_delegated(DIR, Use::Write, Some(b)), "nobody wants to change it");
    assert!(state.recall_delegations(DIR, Use::Write, Some(b), at(92)).is_empty());
    assert!(!state.is_delegated(DIR, Use::Write, Some(b)));
    assert_eq!(state.take_effects(), [Effect::DelegationGone(DIR)]);
    assert_eq!((state.counts().clients, state.counts().delegations), (2, 0), "it keeps all else");
    // The client with the expired lease renews its lease, and the status flags report the revocation of its directory
    // delegation.
    assert_eq!(renew_lease(&mut state, gone, 1, at(93)), SEQ4_STATUS_RECALLABLE_STATE_REVOKED);
    assert_eq!(state.test_stateid(a, &stateid), NFS4ERR_DELEG_REVOKED);
    assert_eq!(state.return_delegation(a, DIR, &stateid), Err(NFS4ERR_DELEG_REVOKED));
    assert_eq!(state.free_stateid(a, &stateid), Ok(()));
    assert_eq!(state.test_stateid(a, &stateid), NFS4ERR_BAD_STATEID);
    assert_eq!(renew_lease(&mut state, gone, 2, at(94)), 0);
    state.delegate_names(a, DIR, at(94)).unwrap();
}

#[test]
fn a_delegation_that_is_not_returned_is_revoked_after_a_lease() {
    let (mut state, [(a, one), (b, two), (c, three)]) = clients();
    let (stateid, back) = (state.delegate_names(a, DIR, at(1)).unwrap(), state.delegate_names(c, DIR, at(1)).unwrap());
    for session in [one, two, three] {
        renew_lease(&mut state, session, 1, at(9));
    }
    let recalls = state.recall_delegations(DIR, Use::Write, Some(b), at(10));
    let recalled = |client, stateid| DelegationRecall { client, file: DIR, stateid };
    assert_eq!(recalls.len(), 2);
    assert!(recalls.contains(&recalled(a, stateid)) && recalls.contains(&recalled(c, back)));
    assert!(state.recall_delegations(DIR, Use::Write, Some(b), at(11)).is_empty(), "asked already");
    state.return_delegation(c, DIR, &back).unwrap();
    assert_eq!(state.take_effects(), [Effect::DelegationGone(DIR)]);
    for session in [one, two, three] {
        renew_lease(&mut state, session, 2, at(98));
    }
    state.expire(at(99));
    assert!(state.take_effects().is_empty() && state.is_recalled(&recalled(a, stateid)));
    assert!(state.is_delegated(DIR, Use::Write, Some(b)));
    state.expire(at(100));
    assert!(!state.is_delegated(DIR, Use::Write, Some(b)) && !state.is_recalled(&recalled(a, stateid)));
    // A directory delegation cannot be reclaimed, so the server revokes the delegation without deleting the client's
    // record. A directory delegation does not count as an open, so its revocation is not a last close and causes no
    // other effect.
    assert_eq!(state.take_effects(), [Effect::DelegationGone(DIR)]);
    assert_eq!(renew_lease(&mut state, one, 3, at(101)), SEQ4_STATUS_RECALLABLE_STATE_REVOKED);
    assert_eq!(state.test_stateid(a, &stateid), NFS4ERR_DELEG_REVOKED);
    assert_eq!(state.free_stateid(a, &stateid), Ok(()));
    assert!(state.take_effects().is_empty());
}

#[test]
fn a_change_revokes_the_delegation_of_a_silent_client_at_once() {
    let (mut state, [(a, one), (b, _)]) = clients();
    let stateid = state.delegate_names(a, DIR, at(1)).unwrap();
    renew_lease(&mut state, one, 1, at(10));
    let late = at(10).after(RELIED_ON);
    let in_time = Timestamp { secs: late.secs - 1, nanos: 999_999_999 };
    let recalls = state.recall_delegations(DIR, Use::Write, Some(b), in_time);
    assert_eq!(recalls, [DelegationRecall { client: a, file: DIR, stateid }]);
    assert!(state.is_delegated(DIR, Use::Write, Some(b)), "it may rely on it");
    assert!(state.recall_delegations(DIR, Use::Write, Some(b), late).is_empty());
    assert!(!state.is_delegated(DIR, Use::Write, Some(b)) && !state.is_recalled(&recalls[0]));
    assert_eq!(state.take_effects(), [Effect::DelegationGone(DIR)]);
    // Client a has sent no request during the time `RELIED_ON`, so it must not rely on its directory delegations until
    // it has received the reply to its next request. This reply reports the revocation.
    assert_eq!(renew_lease(&mut state, one, 2, late), SEQ4_STATUS_RECALLABLE_STATE_REVOKED);
    assert_eq!(state.free_stateid(a, &stateid), Ok(()));
    assert_eq!(renew_lease(&mut state, one, 3, late), 0);
    // The server does not revoke a file delegation for this reason: the delegation conflicts with other requests until
    // client a returns it.
    let file = FileId(22);
    state.open(a, &Bytes::from_static(b"owner"), file, OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    state.delegate(a, file, (OPEN4_SHARE_ACCESS_READ, Want::Any), 1, late).unwrap();
    assert_eq!(state.recall_delegations(file, Use::Write, Some(b), at(80)).len(), 1);
    assert!(state.is_delegated(file, Use::Write, Some(b)));
}

#[test]
fn a_removed_directory_drops_all_but_revoked_delegations() {
    let (mut state, [(a, one), (b, two), (c, three)]) = clients();
    let lost = state.delegate_names(a, DIR, at(1)).unwrap();
    state.recall_delegations(DIR, Use::Write, Some(b), at(1));
    for session in [one, two, three] {
        renew_lease(&mut state, session, 1, at(91));
    }
    state.expire(at(91));
    let held = [b, c].map(|client| (client, state.delegate_names(client, DIR, at(91)).unwrap()));
    let kept = state.delegate_names(b, OTHER, at(91)).unwrap();
    let recall = state.recall_delegations(DIR, Use::Write, Some(b), at(92)).remove(0);
    state.take_effects();
    state.forget_names(DIR);
    assert_eq!(state.take_effects(), [Effect::DelegationGone(DIR), Effect::DelegationGone(DIR)]);
    assert!(!state.is_recalled(&recall) && !state.is_delegated(DIR, Use::Write, None));
    for (client, stateid) in held {
        assert_eq!(state.return_delegation(client, DIR, &stateid), Err(NFS4ERR_BAD_STATEID));
    }
    assert_eq!(state.test_stateid(a, &lost), NFS4ERR_DELEG_REVOKED);
    assert_eq!(state.find_delegation(b, OTHER, &kept), Ok(DelegationKind::Names));
    assert_eq!((state.counts().delegations, state.counts().recalls), (1, 0));
    // `forget_names` drops directory delegations only, not delegations of files.
    state.open(b, &Bytes::from_static(b"owner"), FileId(22), OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    state.delegate(b, FileId(22), (OPEN4_SHARE_ACCESS_READ, Want::Any), 1, at(92)).unwrap();
    state.forget_names(FileId(22));
    assert_eq!(state.counts().delegations, 2);
}

#[test]
fn after_a_restart_clients_may_rely_on_names_for_a_limited_time() {
    let record = ClientRecord { owner: Bytes::from_static(b"a"), clientid: 1 };
    let mut state = State::new(Config::new(8, ROLES, LEASE), vec![record], at(0));
    let relied_on = RELIED_ON.as_secs() as i64;
    assert!(state.may_rely_on_names(at(0)) && state.may_rely_on_names(at(relied_on - 1)));
    assert!(!state.may_rely_on_names(at(relied_on)));
    // Only client a has a client record from before the restart. After its RECLAIM_COMPLETE, no client can rely on a
    // delegation from before the restart.
    let (client, _) = connect(&mut state, "a", at(1));
    assert!(state.may_rely_on_names(at(1)));
    state.reclaim_complete(client, false).unwrap();
    assert!(!state.may_rely_on_names(at(1)));
    assert!(!new_state().may_rely_on_names(at(0)), "there was nobody");
}

/// A client of the model, with its delegation and its last request.
#[derive(Clone)]
struct Peer {
    client: ClientId,
    session: sessionid4,
    held: Option<stateid4>,
    recalled: bool,
    revoked: Vec<stateid4>,
    /// Whether the client is in the middle of a change of the directory.
    changing: bool,
    /// The time of the client's last request, and the number of its requests.
    heard: (Timestamp, u32),
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Ask(usize),
    Return(usize),
    /// The client asks to change names in the directory. If another client holds a delegation of the directory, the
    /// server recalls this delegation, and the change does not happen.
    Begin(usize),
    End(usize),
    /// The recall cooldown passes.
    Wait,
    /// A lease period passes, and the server revokes all recalled delegations.
    TimeOut,
    /// The client frees the stateid of its oldest revoked delegation.
    Free(usize),
}

#[derive(Clone)]
struct World {
    state: State,
    peers: [Peer; 3],
    cools: Timestamp,
    now: Timestamp,
    /// Number of delegations that the current call has ended.
    gone: usize,
}

impl World {
    /// Sends a request of a client. The status flags must report whether the client has a revoked delegation.
    fn renew(&mut self, who: usize) {
        let peer = &mut self.peers[who];
        peer.heard = (self.now, peer.heard.1 + 1);
        let told = renew_lease(&mut self.state, peer.session, peer.heard.1, self.now);
        assert_eq!(told, if peer.revoked.is_empty() { 0 } else { SEQ4_STATUS_RECALLABLE_STATE_REVOKED });
    }

    fn lose(&mut self, who: usize) {
        let peer = &mut self.peers[who];
        peer.recalled = false;
        peer.revoked.extend(peer.held.take());
        self.gone += 1;
    }

    fn ask(&mut self, who: usize) {
        let got = self.state.delegate_names(self.peers[who].client, DIR, self.now);
        let contended = self.peers.iter().any(|p| p.changing || p.recalled) || self.now < self.cools;
        let peer = &mut self.peers[who];
        match (peer.held.is_some(), contended) {
            (true, _) => assert_eq!(got, Err(WhyNoDelegation::Resource)),
            (false, true) => assert_eq!(got, Err(WhyNoDelegation::Contention)),
            (false, false) => peer.held = Some(got.unwrap()),
        }
    }

    fn begin(&mut self, who: usize) {
        if self.peers[who].changing {
            return;
        }
        let client = self.peers[who].client;
        self.state.freeze_delegations(DIR);
        let others: Vec<_> = (0..3).filter(|i| *i != who && self.peers[*i].held.is_some()).collect();
        assert_eq!(self.state.is_delegated(DIR, Use::Write, Some(client)), !others.is_empty());
        let mut expected = Vec::new();
        let mut waits = false;
        for other in others {
            let peer = &mut self.peers[other];
            if self.now >= peer.heard.0.after(RELIED_ON) {
                self.lose(other);
                continue;
            }
            waits = true;
            if !std::mem::replace(&mut peer.recalled, true) {
                expected.push(DelegationRecall { client: peer.client, file: DIR, stateid: peer.held.unwrap() });
            }
        }
        let recalls = self.state.recall_delegations(DIR, Use::Write, Some(client), self.now);
        assert_eq!(recalls.len(), expected.len());
        assert!(expected.iter().all(|recall| recalls.contains(recall) && self.state.is_recalled(recall)));
        if !recalls.is_empty() {
            self.cools = self.now.after(COOLING);
        }
        assert_eq!(self.state.is_delegated(DIR, Use::Write, Some(client)), waits);
        if waits {
            self.state.thaw_delegations(DIR);
        }
        self.peers[who].changing = !waits;
    }

    fn time_out(&mut self) {
        self.now = self.now.after(LEASE);
        (0..3).for_each(|who| self.renew(who));
        assert!(self.state.expire(self.now).is_empty());
        for who in 0..3 {
            if self.peers[who].recalled {
                self.lose(who);
            }
        }
    }

    fn apply(&mut self, call: Call) {
        self.now = self.now.after(Duration::from_secs(1));
        self.gone = 0;
        match call {
            Call::Ask(who) | Call::Begin(who) | Call::Return(who) | Call::End(who) | Call::Free(who) => self.renew(who),
            Call::Wait | Call::TimeOut => {}
        }
        match call {
            Call::Ask(who) => self.ask(who),
            Call::Begin(who) => self.begin(who),
            Call::Return(who) => {
                let peer = &mut self.peers[who];
                if let Some(stateid) = peer.held.take() {
                    assert_eq!(self.state.return_delegation(peer.client, DIR, &stateid), Ok(DelegationKind::Names));
                    peer.recalled = false;
                    self.gone = 1;
                }
            }
            Call::End(who) => {
                if std::mem::take(&mut self.peers[who].changing) {
                    self.state.thaw_delegations(DIR);
                }
            }
            Call::Wait => self.now = self.now.after(COOLING),
            Call::TimeOut => self.time_out(),
            Call::Free(who) => {
                let peer = &mut self.peers[who];
                if !peer.revoked.is_empty() {
                    assert_eq!(self.state.free_stateid(peer.client, &peer.revoked.remove(0)), Ok(()));
                }
            }
        }
        self.check();
    }

    fn check(&mut self) {
        // The state tables report each ended delegation, so that the server wakes the requests that wait for it. They
        // report no last close, because a directory delegation does not count as an open.
        assert_eq!(self.state.take_effects(), vec![Effect::DelegationGone(DIR); self.gone]);
        assert!(!self.state.is_open(DIR));
        let counts = self.state.counts();
        assert_eq!(counts.delegations, self.peers.iter().filter(|p| p.held.is_some()).count());
        assert_eq!(counts.recalls, self.peers.iter().filter(|p| p.recalled).count());
        for (who, peer) in self.peers.iter().enumerate() {
            let client = peer.client;
            if let Some(stateid) = peer.held {
                assert_eq!(self.state.find_delegation(client, DIR, &stateid), Ok(DelegationKind::Names));
            }
            for stateid in &peer.revoked {
                assert_eq!(self.state.test_stateid(client, stateid), NFS4ERR_DELEG_REVOKED);
            }
            // The invariant: while a client changes the directory, no other client holds a delegation of the directory.
            if peer.changing {
                assert!(!self.state.is_delegated(DIR, Use::Write, Some(client)));
                assert!(self.peers.iter().enumerate().all(|(i, other)| i == who || other.held.is_none()));
            }
        }
    }
}

fn world() -> World {
    let (state, clients) = clients();
    let peers = clients.map(|(client, session)| Peer {
        client,
        session,
        held: None,
        recalled: false,
        revoked: Vec::new(),
        changing: false,
        heard: (at(0), 0),
    });
    World { state, peers, cools: at(0), now: at(0), gone: 0 }
}

/// Returns a state in which clients 0 and 1 hold recalled delegations, and client 2 waits to change a name.
fn crowded() -> World {
    let mut world = world();
    [Call::Ask(0), Call::Ask(1), Call::Begin(2)].into_iter().for_each(|call| world.apply(call));
    assert!(world.peers[0].recalled && world.peers[1].recalled && !world.peers[2].changing);
    world
}

#[test]
fn three_clients_match_the_model_in_every_short_history() {
    let mut calls = vec![Call::Wait, Call::TimeOut];
    for who in 0..3 {
        calls.extend([Call::Ask(who), Call::Begin(who), Call::End(who)]);
        calls.extend((who < 2).then_some(Call::Return(who)));
    }
    walk(&world(), &calls, 4, World::apply);
}

#[test]
fn histories_after_a_recall_match_the_model() {
    let mut calls = vec![Call::Wait, Call::TimeOut, Call::Ask(2), Call::Begin(2), Call::End(2)];
    for who in 0..2 {
        calls.extend([Call::Ask(who), Call::Return(who), Call::Begin(who), Call::Free(who)]);
    }
    walk(&crowded(), &calls, 4, World::apply);
}
