//! Tests of file delegations in the state tables: single rules, and every short history of two or three clients against
//! a model.

use crate::helpers::*;
use bytes::Bytes;
use nfs::fs::Iomode;
use nfs::state::delegations::{DelegationKind, DelegationRecall, Use, Want, WhyNoDelegation};
use nfs::state::layouts::{Filter, Segment};
use nfs::state::opens::{Access, Permit};
use nfs::state::{ClientId, Effect, Gone, State};
use std::time::Duration;
use types::{ByteRange, FileId, Timestamp};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::*;

const FILE: FileId = FileId(10);
const KIND: layouttype4 = 1;
const READ: u32 = OPEN4_SHARE_ACCESS_READ;
const WRITE: u32 = OPEN4_SHARE_ACCESS_WRITE;
const BOTH: u32 = OPEN4_SHARE_ACCESS_BOTH;

fn owner() -> Bytes {
    Bytes::from_static(b"owner")
}

/// Opens the file, and requests a delegation with `want` (`OPEN4_SHARE_ACCESS_WANT_*`). Returns the open stateid, and
/// the delegation or the reason why the server grants none.
fn open_and_ask(
    state: &mut State,
    client: ClientId,
    access: u32,
    want: Want,
) -> (stateid4, Result<(stateid4, DelegationKind), WhyNoDelegation>) {
    let open = state.open(client, &owner(), FILE, access, 0).unwrap().stateid;
    (open, state.delegate(client, FILE, (access, want), 1, at(0)))
}

#[test]
fn the_wanted_delegation_is_granted_if_it_fits_the_open() {
    let cases = [
        (READ, Want::None, Ok(DelegationKind::Read)),
        (BOTH, Want::None, Ok(DelegationKind::Write)),
        (WRITE, Want::None, Err(WhyNoDelegation::Unfit)),
        (READ, Want::Any, Ok(DelegationKind::Read)),
        (BOTH, Want::Any, Ok(DelegationKind::Write)),
        (BOTH, Want::Exactly(DelegationKind::Read), Ok(DelegationKind::Read)),
        (READ, Want::Exactly(DelegationKind::Write), Err(WhyNoDelegation::Unfit)),
        (WRITE, Want::Exactly(DelegationKind::Write), Err(WhyNoDelegation::Unfit)),
        (WRITE, Want::Exactly(DelegationKind::Read), Err(WhyNoDelegation::Unfit)),
        (READ, Want::Data, Ok(DelegationKind::Read)),
        (WRITE, Want::Data, Ok(DelegationKind::Write)),
        (BOTH, Want::Data, Ok(DelegationKind::Write)),
    ];
    for (access, want, expected) in cases {
        let (mut state, [(a, _)]) = clients();
        let (_, given) = open_and_ask(&mut state, a, access, want);
        assert_eq!(given.map(|(_, kind)| kind), expected, "{access} {want:?}");
        assert_eq!(state.counts().delegations, usize::from(expected.is_ok()));
    }
}

#[test]
fn no_delegation_is_granted_that_cannot_be_recalled() {
    let (mut state, [(a, session), (b, _)]) = clients();
    state.connection_lost(CONNECTION);
    assert_eq!(open_and_ask(&mut state, a, READ, Want::Any).1, Err(WhyNoDelegation::Resource));
    renew_lease(&mut state, session, 1, at(1));
    assert_eq!(state.delegate(a, FILE, (READ, Want::Any), 1, at(1)), Err(WhyNoDelegation::Resource), "no backchannel");
    let bind = BIND_CONN_TO_SESSION4args {
        bctsa_sessid: session,
        bctsa_dir: CDFC4_FORE_OR_BOTH,
        bctsa_use_conn_in_rdma_mode: false,
    };
    state.bind_conn_to_session(&bind, CONNECTION).unwrap();
    let (stateid, _) = state.delegate(a, FILE, (READ, Want::Any), 1, at(1)).unwrap();
    assert_eq!(state.delegate(a, FILE, (READ, Want::Any), 1, at(1)), Err(WhyNoDelegation::Resource), "it has one");
    state.return_delegation(a, FILE, &stateid).unwrap();
    state.freeze_delegations(FILE);
    assert_eq!(state.delegate(a, FILE, (READ, Want::Any), 1, at(1)), Err(WhyNoDelegation::Contention));
    state.thaw_delegations(FILE);
    // During the recall cooldown of 60 seconds, an OPEN without a WANT flag gets no delegation.
    state.delegate(a, FILE, (READ, Want::Any), 1, at(1)).unwrap();
    let recall = state.recall_delegations(FILE, Use::Write, Some(b), at(2)).remove(0);
    state.return_delegation(a, FILE, &recall.stateid).unwrap();
    assert_eq!(state.delegate(a, FILE, (READ, Want::None), 1, at(3)), Err(WhyNoDelegation::Contention));
    assert_eq!(state.delegate(a, FILE, (READ, Want::None), 1, at(63)).map(|(_, kind)| kind), Ok(DelegationKind::Read));
}

#[test]
fn a_delegation_keeps_the_file_open_and_permits_io() {
    let (mut state, [(a, _), (b, _)]) = clients();
    let (open, given) = open_and_ask(&mut state, a, BOTH, Want::None);
    let (stateid, _) = given.unwrap();
    let closed = state.close(a, FILE, &open).unwrap();
    assert!(!closed.last && !closed.last_of_client && state.take_effects().is_empty(), "it keeps the file open");
    assert!(state.is_open(FILE) && state.may_read(a, FILE) && state.may_write(a, FILE));
    for access in [Access::Read, Access::Write] {
        assert_eq!(state.check_io(a, FILE, &stateid, access), Ok(Permit::Open));
        assert_eq!(state.check_io(b, FILE, &stateid, access), Err(NFS4ERR_BAD_STATEID));
        assert_eq!(state.check_io(a, FileId(11), &stateid, access), Err(NFS4ERR_BAD_STATEID));
    }
    assert_eq!(state.test_stateid(a, &stateid), NFS4_OK);
    assert_eq!(state.free_stateid(a, &stateid), Err(NFS4ERR_LOCKS_HELD));
    let goes = Segment { iomode: Iomode::ReadWrite, range: ByteRange::ALL, return_on_close: true };
    state.grant_layout(a, FILE, KIND, &stateid, goes).unwrap();
    assert_eq!(state.destroy_clientid(a, ALICE), Err(NFS4ERR_CLIENTID_BUSY));
    assert_eq!(state.return_delegation(b, FILE, &stateid), Err(NFS4ERR_BAD_STATEID));
    assert_eq!(state.return_delegation(a, FILE, &stateid), Ok(DelegationKind::Write));
    let gone = Effect::LayoutGone {
        client: a,
        file: FILE,
        iomode: Iomode::ReadWrite,
        range: ByteRange::ALL,
        why: Gone::Forgotten,
    };
    assert_eq!(state.take_effects(), [gone, Effect::DelegationGone(FILE), Effect::LastClose(FILE)]);
    assert_eq!(state.return_delegation(a, FILE, &stateid), Err(NFS4ERR_BAD_STATEID));
    let (_, given) = open_and_ask(&mut state, a, READ, Want::None);
    let (reading, _) = given.unwrap();
    assert_eq!(state.check_io(a, FILE, &reading, Access::Write), Err(NFS4ERR_OPENMODE));
    let writing = Filter { iomode: Some(Iomode::ReadWrite), range: ByteRange::ALL };
    assert_eq!(state.check_layoutget(a, FILE, KIND, &reading, writing), Err(NFS4ERR_OPENMODE));
}

#[test]
fn an_unreturned_delegation_is_revoked_after_its_client_record_is_gone() {
    let (mut state, [(a, session), (b, other)]) = clients();
    let (open, given) = open_and_ask(&mut state, a, BOTH, Want::None);
    let (stateid, _) = given.unwrap();
    let whole = Segment { iomode: Iomode::ReadWrite, range: ByteRange::ALL, return_on_close: false };
    state.grant_layout(a, FILE, KIND, &stateid, whole).unwrap();
    let recalls = state.recall_delegations(FILE, Use::Read, Some(b), at(10));
    assert_eq!(recalls, [DelegationRecall { client: a, file: FILE, stateid }]);
    assert!(state.recall_delegations(FILE, Use::Read, Some(b), at(11)).is_empty(), "asked already");
    assert_eq!(renew_lease(&mut state, session, 1, at(60)), 0);
    assert_eq!(renew_lease(&mut state, other, 1, at(60)), 0);
    state.expire(at(99));
    assert!(state.take_effects().is_empty() && state.is_recalled(&recalls[0]));
    state.expire(at(100));
    assert_eq!(state.take_effects(), [Effect::Distrust { client: a, owner: Bytes::from_static(b"a") }]);
    assert!(state.is_delegated(FILE, Use::Read, Some(b)), "not before its record is gone");
    state.expire(at(101));
    assert_eq!(state.take_effects().len(), 1, "asked for again");
    state.distrusted(a, at(101));
    assert!(!state.is_delegated(FILE, Use::Write, None) && !state.is_recalled(&recalls[0]));
    let fenced = Effect::LayoutGone {
        client: a,
        file: FILE,
        iomode: Iomode::ReadWrite,
        range: ByteRange::ALL,
        why: Gone::Revoked,
    };
    assert_eq!(state.take_effects(), [fenced, Effect::DelegationGone(FILE)]);
    // The status flags of SEQUENCE report the revocation of the delegation until the client frees the stateid of the
    // delegation. Then the server stores the client's record again, so that the client may reclaim after a restart.
    assert_eq!(renew_lease(&mut state, session, 2, at(102)), SEQ4_STATUS_RECALLABLE_STATE_REVOKED);
    assert_eq!(state.check_io(a, FILE, &stateid, Access::Read), Err(NFS4ERR_DELEG_REVOKED));
    assert_eq!(state.return_delegation(a, FILE, &stateid), Err(NFS4ERR_DELEG_REVOKED));
    assert_eq!(state.test_stateid(a, &stateid), NFS4ERR_DELEG_REVOKED);
    assert!(!state.take_effects().iter().any(Effect::is_of_record));
    assert_eq!(state.free_stateid(a, &stateid), Ok(()));
    assert!(matches!(&state.take_effects()[..], [Effect::Persist(record)] if record.owner == "a"));
    assert!(state.close(a, FILE, &open).unwrap().last, "the open is its own");
}

#[test]
fn a_holder_that_flushes_data_gets_up_to_eight_leases_to_return() {
    let (mut state, [(a, session), (b, other)]) = clients();
    let (stateid, _) = open_and_ask(&mut state, a, BOTH, Want::None).1.unwrap();
    state.flushes(a, FILE, at(5));
    let recalls = state.recall_delegations(FILE, Use::Write, Some(b), at(10));
    let heard = |state: &mut State, number: u32| {
        let now = at(10 + 80 * i64::from(number));
        renew_lease(state, session, number, now);
        renew_lease(state, other, number, now);
        state.expire(now);
        (now, state.take_effects().iter().any(Effect::is_of_record))
    };
    // Each write by the holder of the delegation extends the deadline of the recall, to at most eight lease periods.
    for number in 1..=8 {
        let (now, taken) = heard(&mut state, number);
        assert!(!taken, "{now:?}");
        state.flushes(a, FILE, now);
    }
    let end = at(10 + 8 * 90);
    renew_lease(&mut state, session, 9, end);
    state.flushes(a, FILE, end);
    state.expire(end);
    assert_eq!(state.take_effects(), [Effect::Distrust { client: a, owner: Bytes::from_static(b"a") }]);
    state.distrusted(a, end);
    assert!(!state.is_recalled(&recalls[0]));
    assert_eq!(state.test_stateid(a, &stateid), NFS4ERR_DELEG_REVOKED);
}

#[test]
fn writes_by_other_clients_or_to_other_files_extend_no_recall() {
    let (mut state, [(a, session), (b, other)]) = clients();
    open_and_ask(&mut state, a, BOTH, Want::None).1.unwrap();
    state.recall_delegations(FILE, Use::Write, Some(b), at(10));
    state.flushes(b, FILE, at(50));
    state.flushes(a, FileId(FILE.0 + 1), at(50));
    renew_lease(&mut state, session, 1, at(60));
    renew_lease(&mut state, other, 1, at(60));
    state.expire(at(100));
    assert_eq!(state.take_effects(), [Effect::Distrust { client: a, owner: Bytes::from_static(b"a") }]);
}

#[test]
fn a_return_during_record_deletion_stores_the_record_again() {
    let (mut state, [(a, session), (b, other)]) = clients();
    let (open, given) = open_and_ask(&mut state, a, READ, Want::None);
    let (stateid, _) = given.unwrap();
    renew_lease(&mut state, other, 1, at(80));
    state.recall_delegations(FILE, Use::Write, Some(b), at(0));
    renew_lease(&mut state, session, 1, at(80));
    state.expire(at(90));
    assert!(matches!(&state.take_effects()[..], [Effect::Distrust { .. }]));
    state.return_delegation(a, FILE, &stateid).unwrap();
    state.close(a, FILE, &open).unwrap();
    assert!(!state.take_effects().iter().any(Effect::is_of_record), "the removal may be under way");
    state.distrusted(a, at(91));
    assert!(matches!(&state.take_effects()[..], [Effect::Persist(record)] if record.owner == "a"));
}

#[test]
fn a_conflicting_use_revokes_a_lapsed_delegation_at_once() {
    // The holder of a write delegation that lets it lock without the server (all but `Want::Data`) may hold byte-range
    // locks that the server does not know. If the lease of such a holder has expired and the server revokes its
    // delegation, these locks are lost too, so the server removes the client with all its state.
    for (access, want, tested) in [
        (READ, Want::None, NFS4ERR_DELEG_REVOKED),
        (BOTH, Want::None, NFS4ERR_BAD_STATEID),
        (READ, Want::Data, NFS4ERR_DELEG_REVOKED),
        (BOTH, Want::Data, NFS4ERR_DELEG_REVOKED),
    ] {
        let (mut state, [(a, _), (b, session)]) = clients();
        let (_, given) = open_and_ask(&mut state, a, access, want);
        let (stateid, _) = given.unwrap();
        renew_lease(&mut state, session, 1, at(91));
        state.expire(at(91));
        assert_eq!(state.take_effects(), [Effect::Lapse { client: a, owner: Bytes::from_static(b"a") }]);
        state.lapsed(a);
        assert!(state.is_delegated(FILE, Use::Write, Some(b)), "nobody wants it");
        assert!(state.recall_delegations(FILE, Use::Write, Some(b), at(92)).is_empty());
        assert!(!state.is_delegated(FILE, Use::Write, Some(b)));
        assert_eq!(state.test_stateid(a, &stateid), tested);
        assert_eq!(state.counts().clients, if tested == NFS4ERR_BAD_STATEID { 1 } else { 2 });
    }
}

#[test]
fn a_data_delegation_covers_only_the_data() {
    let (mut state, [(a, _), (b, _)]) = clients();
    let (_, given) = open_and_ask(&mut state, a, WRITE, Want::Data);
    let (stateid, _) = given.unwrap();
    assert!(!state.is_delegated(FILE, Use::Metadata, Some(b)), "names and modes may change");
    assert!(state.is_delegated(FILE, Use::Read, Some(b)) && state.is_delegated(FILE, Use::Write, Some(b)));
    assert_eq!(state.check_io(a, FILE, &stateid, Access::Write), Ok(Permit::Open));
    assert_eq!(
        state.check_io(a, FILE, &stateid, Access::Read),
        Err(NFS4ERR_OPENMODE),
        "it was opened for writing alone"
    );
    assert!(!state.may_read(a, FILE) && state.may_write(a, FILE));
    assert_eq!(
        state.delegate(a, FILE, (BOTH, Want::Data), 1, at(1)),
        Ok((stateid, DelegationKind::Write)),
        "the same again"
    );
    assert_eq!(state.check_io(a, FILE, &stateid, Access::Read), Ok(Permit::Open));
    assert_eq!(
        state.delegate(a, FILE, (READ, Want::Data), 1, at(1)),
        Ok((stateid, DelegationKind::Write)),
        "more than enough"
    );
    assert_eq!(state.delegate(a, FILE, (BOTH, Want::Any), 1, at(1)), Err(WhyNoDelegation::Resource));
    let recall = state.recall_delegations(FILE, Use::Read, Some(b), at(2)).remove(0);
    assert_eq!(
        state.delegate(a, FILE, (BOTH, Want::Data), 1, at(3)),
        Err(WhyNoDelegation::Contention),
        "it is on its way back"
    );
    state.return_delegation(a, FILE, &recall.stateid).unwrap();
    // The recall cooldown does not apply to an OPEN that asks for a delegation with a WANT flag.
    let (after, _) = state.delegate(a, FILE, (BOTH, Want::Data), 1, at(4)).unwrap();
    assert_ne!(after, stateid);
    state.return_delegation(a, FILE, &after).unwrap();
    let (_, given) = open_and_ask(&mut state, a, BOTH, Want::Any);
    given.unwrap();
    assert!(state.is_delegated(FILE, Use::Metadata, Some(b)), "others rely on everything");
}

#[test]
fn a_data_delegation_without_backchannel_is_revoked_in_five_seconds() {
    for comes_back in [false, true] {
        let (mut state, [(a, session), (b, _)]) = clients();
        let (_, given) = open_and_ask(&mut state, a, BOTH, Want::Data);
        given.unwrap();
        state.connection_lost(CONNECTION);
        let recall = state.recall_delegations(FILE, Use::Read, Some(b), at(10)).remove(0);
        state.expire(at(14));
        assert!(state.take_effects().is_empty());
        if comes_back {
            let bind = BIND_CONN_TO_SESSION4args {
                bctsa_sessid: session,
                bctsa_dir: CDFC4_FORE_OR_BOTH,
                bctsa_use_conn_in_rdma_mode: false,
            };
            state.bind_conn_to_session(&bind, CONNECTION).unwrap();
            state.expire(at(15));
            assert!(state.take_effects().is_empty(), "it has a lease now");
            renew_lease(&mut state, session, 1, at(60));
            state.expire(at(104));
            assert!(state.is_recalled(&recall));
            state.expire(at(105));
        } else {
            state.expire(at(15));
        }
        assert!(state.take_effects().contains(&Effect::Distrust { client: a, owner: Bytes::from_static(b"a") }));
        state.distrusted(a, at(106));
        assert!(!state.is_delegated(FILE, Use::Read, Some(b)));
    }
}

/// Returns the arguments with which a client reclaims a delegation of this kind.
fn held(kind: DelegationKind) -> (DelegationKind, u32, Want) {
    (kind, BOTH, Want::None)
}

#[test]
fn a_delegation_can_be_reclaimed_with_each_open() {
    let (mut state, [(a, _), (b, _)]) = clients();
    let (stateid, recall) = state.reclaim_delegation(a, FILE, held(DelegationKind::Read), 1, at(0)).unwrap();
    assert!(!recall);
    assert_eq!(
        state.reclaim_delegation(a, FILE, held(DelegationKind::Read), 1, at(0)),
        Ok((stateid, false)),
        "once more"
    );
    assert_eq!(state.reclaim_delegation(a, FILE, held(DelegationKind::Write), 1, at(0)), Err(NFS4ERR_RECLAIM_CONFLICT));
    assert_eq!(state.reclaim_delegation(b, FILE, held(DelegationKind::Write), 1, at(0)), Err(NFS4ERR_RECLAIM_CONFLICT));
    assert!(state.reclaim_delegation(b, FILE, held(DelegationKind::Read), 1, at(0)).is_ok());
    state.open(b, &owner(), FileId(11), WRITE, 0).unwrap();
    assert_eq!(
        state.reclaim_delegation(a, FileId(11), held(DelegationKind::Read), 1, at(0)),
        Err(NFS4ERR_RECLAIM_CONFLICT)
    );
    state.connection_lost(CONNECTION);
    let (_, recall) = state.reclaim_delegation(a, FileId(12), held(DelegationKind::Write), 1, at(0)).unwrap();
    assert!(recall, "it cannot be called back, and knows it with the answer");
    assert_eq!(state.counts().recalls, 1);
    let gone = ClientId(a.0 + 100);
    assert_eq!(
        state.reclaim_delegation(gone, FileId(13), held(DelegationKind::Write), 1, at(0)),
        Err(NFS4ERR_STALE_CLIENTID)
    );
}

/// A client of the model: its open with access bits, and its delegation.
#[derive(Clone, Default)]
struct Peer {
    open: Option<(u32, stateid4)>,
    held: Option<(DelegationKind, stateid4)>,
    recalled: bool,
    revoked: Option<stateid4>,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    /// An OPEN with these access bits: recalls conflicting delegations, or opens the file and requests a delegation if
    /// there are none.
    Open(usize, u32),
    Close(usize),
    Return(usize),
    /// A SETATTR of the size: recalls conflicting delegations.
    Change(usize),
    /// A lease period passes, and the server revokes all recalled delegations.
    TimeOut,
    Free(usize),
}

#[derive(Clone)]
struct World {
    want: Want,
    state: State,
    clients: [ClientId; 3],
    peers: [Peer; 3],
    now: Timestamp,
}

impl World {
    /// Recalls the delegations of other clients that conflict with a use of the file, and compares the recalls with
    /// the model. Returns whether no delegation conflicts.
    fn make_way(&mut self, who: usize, what: Use) -> bool {
        let mut expected = Vec::new();
        let mut free = true;
        for (i, peer) in self.peers.iter_mut().enumerate().filter(|(i, _)| *i != who) {
            let Some((kind, stateid)) = peer.held else { continue };
            if what == Use::Read && kind == DelegationKind::Read {
                continue;
            }
            free = false;
            if !std::mem::replace(&mut peer.recalled, true) {
                expected.push((self.clients[i], stateid));
            }
        }
        assert_eq!(self.state.is_delegated(FILE, what, Some(self.clients[who])), !free);
        let recalls = self.state.recall_delegations(FILE, what, Some(self.clients[who]), self.now);
        let got: Vec<_> = recalls.iter().map(|r| (r.client, r.stateid)).collect();
        assert_eq!(got.len(), expected.len());
        assert!(expected.iter().all(|e| got.contains(e)));
        free
    }

    fn open(&mut self, who: usize, access: u32) {
        if !self.make_way(who, Use::of_open(access, 0)) {
            return;
        }
        let stateid = self.state.open(self.clients[who], &owner(), FILE, access, 0).unwrap().stateid;
        let access = access | self.peers[who].open.map_or(0, |(access, _)| access);
        self.peers[who].open = Some((access, stateid));
        let got = self.state.delegate(self.clients[who], FILE, (access, self.want), 1, self.now);
        let others = || self.peers.iter().enumerate().filter(|(i, _)| *i != who).map(|(_, peer)| peer);
        let data = self.want == Want::Data;
        let writes = access == BOTH || data && access == WRITE;
        let kind = if writes { DelegationKind::Write } else { DelegationKind::Read };
        let fits = match access {
            _ if writes => others().all(|p| p.open.is_none() && p.held.is_none()),
            READ => others().all(|p| {
                p.open.is_none_or(|(a, _)| a & WRITE == 0)
                    && p.held.is_none_or(|(kind, _)| kind == DelegationKind::Read)
            }),
            _ => false,
        };
        let recalled = self.peers[who].recalled;
        match self.peers[who].held {
            None if fits => self.peers[who].held = Some((kind, got.unwrap().0)),
            // A write delegation replaces the read delegation that the client holds. In all other cases, the client
            // receives the delegation that it already holds.
            Some((DelegationKind::Read, before)) if data && fits && !recalled && kind == DelegationKind::Write => {
                let after = got.unwrap().0;
                assert_ne!(after, before);
                self.peers[who].held = Some((kind, after));
            }
            Some(held) if data && fits && !recalled => assert_eq!(got, Ok((held.1, held.0))),
            _ => assert!(got.is_err()),
        }
    }

    fn apply(&mut self, call: Call) {
        self.now = self.now.after(Duration::from_secs(1));
        match call {
            Call::Open(who, access) => self.open(who, access),
            Call::Close(who) => {
                let Some((_, stateid)) = self.peers[who].open.take() else { return };
                self.state.close(self.clients[who], FILE, &stateid).unwrap();
            }
            Call::Return(who) => {
                let Some((kind, stateid)) = self.peers[who].held.take() else { return };
                self.peers[who].recalled = false;
                assert_eq!(self.state.return_delegation(self.clients[who], FILE, &stateid), Ok(kind));
            }
            Call::Change(who) => {
                self.make_way(who, Use::Write);
            }
            Call::TimeOut => {
                self.now = self.now.after(LEASE);
                for (peer, client) in self.peers.iter_mut().zip(self.clients) {
                    if std::mem::take(&mut peer.recalled) {
                        peer.revoked = peer.held.take().map(|(_, stateid)| stateid);
                    }
                    self.state.distrusted(client, self.now);
                }
            }
            Call::Free(who) => {
                let Some(stateid) = self.peers[who].revoked.take() else { return };
                assert_eq!(self.state.free_stateid(self.clients[who], &stateid), Ok(()));
            }
        }
        self.check();
    }

    fn check(&mut self) {
        let effects = self.state.take_effects();
        let is_open = self.peers.iter().any(|p| p.open.is_some() || p.held.is_some());
        assert_eq!(self.state.is_open(FILE), is_open);
        let last = effects.iter().any(|effect| *effect == Effect::LastClose(FILE));
        assert!(!last || !is_open);
        let counts = self.state.counts();
        assert_eq!(counts.delegations, self.peers.iter().filter(|p| p.held.is_some()).count());
        assert_eq!(counts.recalls, self.peers.iter().filter(|p| p.recalled).count());
        // The invariant: while a client holds a read delegation, no other client has the file open for writing. While
        // the client holds a write delegation, no other client has the file open at all.
        for (i, peer) in self.peers.iter().enumerate() {
            let others: Vec<_> = (0..3).filter(|j| *j != i).map(|j| &self.peers[j]).collect();
            match peer.held {
                Some((DelegationKind::Write, _)) => {
                    assert!(others.iter().all(|p| p.open.is_none() && p.held.is_none()))
                }
                Some((DelegationKind::Read, _)) => {
                    assert!(others.iter().all(|p| p.open.is_none_or(|(access, _)| access & WRITE == 0)));
                }
                Some((DelegationKind::Names, _)) => unreachable!("none is asked for with an open"),
                None => {}
            }
            if let Some((kind, stateid)) = peer.held {
                assert_eq!(self.state.find_delegation(self.clients[i], FILE, &stateid), Ok(kind));
            }
            if let Some(stateid) = peer.revoked {
                assert_eq!(self.state.test_stateid(self.clients[i], &stateid), NFS4ERR_DELEG_REVOKED);
            }
        }
    }
}

fn world(want: Want) -> World {
    let (state, clients) = clients();
    World { want, state, clients: clients.map(|(client, _)| client), peers: Default::default(), now: at(0) }
}

#[test]
fn two_clients_match_the_model_in_every_short_history() {
    let mut calls = vec![Call::TimeOut];
    for who in 0..2 {
        calls.extend([READ, WRITE, BOTH].map(|access| Call::Open(who, access)));
        calls.extend([Call::Close(who), Call::Return(who), Call::Change(who), Call::Free(who)]);
    }
    for want in [Want::Any, Want::Data] {
        walk(&world(want), &calls, 4, World::apply);
    }
}

#[test]
fn three_clients_match_the_model_in_every_short_history() {
    let mut calls = vec![Call::TimeOut, Call::Change(0)];
    for who in 0..3 {
        calls.extend([READ, BOTH].map(|access| Call::Open(who, access)));
        calls.extend([Call::Close(who), Call::Return(who)]);
    }
    for want in [Want::Any, Want::Data] {
        walk(&world(want), &calls, 4, World::apply);
    }
}
