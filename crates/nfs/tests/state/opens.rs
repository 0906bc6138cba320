//! Tests of opens in the state tables: all pairs of share reservations, and every short history of two clients against
//! a model.

use crate::helpers::*;
use bytes::Bytes;
use nfs::state::opens::{Access, Permit};
use nfs::state::stateids::{ANONYMOUS, BYPASS, CURRENT, INVALID};
use nfs::state::{ClientId, Effect, Result, State};
use types::FileId;
use wire::nfs4::nfsstat4::*;
use wire::nfs4::*;

const FILE: FileId = FileId(10);
const OTHER_FILE: FileId = FileId(11);

fn owner(name: &'static str) -> Bytes {
    Bytes::from_static(name.as_bytes())
}

fn two_clients() -> (State, ClientId, ClientId) {
    let mut state = new_state();
    let (a, _) = connect(&mut state, "a", at(0));
    let (b, _) = connect(&mut state, "b", at(0));
    state.take_effects();
    (state, a, b)
}

#[test]
fn every_pair_of_share_reservations_conflicts_as_specified() {
    for (a1, d1) in shares() {
        for (a2, d2) in shares() {
            for same_owner in [false, true] {
                let (mut state, a, b) = two_clients();
                let first = state.open(a, &owner("x"), FILE, a1, d1).unwrap();
                let second = state.open(if same_owner { a } else { b }, &owner("x"), FILE, a2, d2);
                // Share reservations also conflict between two opens of the same open-owner (§9.7).
                if a1 & d2 != 0 || a2 & d1 != 0 {
                    assert_eq!(second, Err(NFS4ERR_SHARE_DENIED), "{a1}/{d1} then {a2}/{d2}");
                    continue;
                }
                let second = second.unwrap();
                assert_eq!(second.upgraded, same_owner);
                assert_eq!(second.stateid.other == first.stateid.other, same_owner);
                assert_eq!(second.stateid.seqid, if same_owner { 2 } else { 1 });
                assert_eq!(state.open_count(FILE), if same_owner { 1 } else { 2 });
            }
        }
    }
}

fn shares() -> impl Iterator<Item = (u32, u32)> {
    (1..=3).flat_map(|access| (0..=3).map(move |deny| (access, deny)))
}

#[test]
fn invalid_share_bits_are_refused() {
    let (mut state, a, _) = two_clients();
    for (access, deny) in [(0, 0), (4, 0), (1, 4), (0x101, 0)] {
        assert_eq!(state.open(a, &owner("x"), FILE, access, deny), Err(NFS4ERR_INVAL));
    }
}

#[test]
fn open_stateids_are_valid_for_one_client_file_and_server_start() {
    let (mut state, a, b) = two_clients();
    let open = state.open(a, &owner("x"), FILE, 3, 0).unwrap().stateid;
    let check = |state: &State, client, file, stateid: &stateid4| state.check_io(client, file, stateid, Access::Read);
    assert_eq!(check(&state, a, FILE, &open), Ok(Permit::Open));
    assert_eq!(check(&state, b, FILE, &open), Err(NFS4ERR_BAD_STATEID));
    assert_eq!(check(&state, a, OTHER_FILE, &open), Err(NFS4ERR_BAD_STATEID));
    let mut earlier = open;
    earlier.other[3] -= 1;
    let mut unknown = open;
    unknown.other[11] += 1;
    let mut kind = open;
    kind.other[4] = 77;
    for bad in [earlier, unknown, kind, CURRENT, INVALID, stateid4 { seqid: 2, ..ANONYMOUS }] {
        assert_eq!(check(&state, a, FILE, &bad), Err(NFS4ERR_BAD_STATEID), "{bad:?}");
        assert_eq!(state.test_stateid(a, &bad), NFS4ERR_BAD_STATEID);
        assert_eq!(state.free_stateid(a, &bad), Err(NFS4ERR_BAD_STATEID));
    }
    assert_eq!(state.test_stateid(a, &ANONYMOUS), NFS4ERR_BAD_STATEID, "special ones are never valid there");
    assert_eq!(state.test_stateid(a, &open), NFS4_OK);
    assert_eq!(state.free_stateid(a, &open), Err(NFS4ERR_LOCKS_HELD));
}

#[test]
fn old_and_future_seqids_are_refused() {
    let (mut state, a, _) = two_clients();
    let first = state.open(a, &owner("x"), FILE, 1, 0).unwrap().stateid;
    let second = state.open(a, &owner("x"), FILE, 2, 0).unwrap().stateid;
    let with = |seqid| stateid4 { seqid, ..first };
    assert_eq!(second, with(2));
    assert_eq!(state.check_io(a, FILE, &with(0), Access::Write), Ok(Permit::Open), "0 is the current one");
    assert_eq!(state.check_io(a, FILE, &with(1), Access::Read), Err(NFS4ERR_OLD_STATEID));
    assert_eq!(state.check_io(a, FILE, &with(3), Access::Read), Err(NFS4ERR_BAD_STATEID));
    assert_eq!(state.test_stateid(a, &with(1)), NFS4ERR_OLD_STATEID);
    assert_eq!(state.close(a, FILE, &with(1)), Err(NFS4ERR_OLD_STATEID));
    assert!(state.close(a, FILE, &with(2)).is_ok());
    assert_eq!(state.check_io(a, FILE, &with(2), Access::Read), Err(NFS4ERR_BAD_STATEID));
    let again = state.open(a, &owner("x"), FILE, 1, 0).unwrap().stateid;
    assert_ne!(again.other, first.other, "never reused");
}

#[test]
fn special_stateids_obey_share_denials() {
    for deny in 0..=3 {
        let (mut state, a, b) = two_clients();
        assert_eq!(state.check_io(b, FILE, &ANONYMOUS, Access::Write), Ok(Permit::Special));
        state.open(a, &owner("x"), FILE, 1, deny).unwrap();
        let expect = |bit| if deny & bit != 0 { Err(NFS4ERR_LOCKED) } else { Ok(Permit::Special) };
        assert_eq!(state.check_io(b, FILE, &ANONYMOUS, Access::Read), expect(1));
        assert_eq!(state.check_io(b, FILE, &ANONYMOUS, Access::Write), expect(2));
        assert_eq!(state.check_io(b, FILE, &BYPASS, Access::Read), Ok(Permit::Special));
        assert_eq!(state.check_io(b, FILE, &BYPASS, Access::Write), expect(2));
    }
}

/// The access bits and deny bits of an OPEN.
type Asked = (u32, u32);

#[derive(Clone)]
struct World {
    state: State,
    clients: [ClientId; 2],
    /// The share bits of each client's OPENs, and the open stateid that the server last returned.
    held: [Option<(Vec<Asked>, stateid4)>; 2],
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Open(usize, u32, u32),
    Downgrade(usize, u32, u32),
    Close(usize),
    /// A CLOSE whose stateid has the sequence number before the current sequence number.
    CloseOld(usize),
}

fn union(asked: &[Asked]) -> Asked {
    asked.iter().fold((0, 0), |u, a| (u.0 | a.0, u.1 | a.1))
}

/// Returns whether `target` is the union of the share bits of some of the OPENs in `asked`.
fn some_subset(asked: &[Asked], target: Asked) -> bool {
    (1..1_u32 << asked.len()).any(|pick| {
        let picked: Vec<_> = (0..asked.len()).filter(|i| pick & 1 << i != 0).map(|i| asked[i]).collect();
        union(&picked) == target
    })
}

impl World {
    fn apply(&mut self, call: Call) {
        match call {
            Call::Open(who, access, deny) => {
                let clash = |h: &Option<(Vec<Asked>, stateid4)>| {
                    h.as_ref().is_some_and(|(asked, _)| {
                        let (a, d) = union(asked);
                        access & d != 0 || deny & a != 0
                    })
                };
                let got = self.state.open(self.clients[who], &owner("x"), FILE, access, deny);
                if self.held.iter().any(clash) {
                    assert_eq!(got, Err(NFS4ERR_SHARE_DENIED));
                    return;
                }
                let got = got.unwrap();
                match &mut self.held[who] {
                    Some((asked, stateid)) => {
                        asked.push((access, deny));
                        assert_eq!(got.stateid, stateid4 { seqid: stateid.seqid + 1, ..*stateid });
                        *stateid = got.stateid;
                    }
                    none => *none = Some((vec![(access, deny)], got.stateid)),
                }
            }
            Call::Downgrade(who, access, deny) => {
                let Some((asked, stateid)) = &mut self.held[who] else { return };
                let got = self.state.open_downgrade(self.clients[who], FILE, stateid, access, deny);
                if !some_subset(asked, (access, deny)) {
                    assert_eq!(got, Err(NFS4ERR_INVAL));
                    return;
                }
                asked.retain(|(a, d)| a & !access == 0 && d & !deny == 0);
                stateid.seqid += 1;
                assert_eq!(got, Ok(*stateid));
            }
            Call::Close(who) => {
                let Some((asked, stateid)) = self.held[who].take() else { return };
                let got = self.state.close(self.clients[who], FILE, &stateid).unwrap();
                assert_eq!(got.wrote, union(&asked).0 & 2 != 0);
                assert!(got.last_of_client);
                assert_eq!(got.last, self.held.iter().all(Option::is_none));
                let told = self.state.take_effects().contains(&Effect::LastClose(FILE));
                assert_eq!(got.last, told);
            }
            Call::CloseOld(who) => {
                let Some((_, stateid)) = self.held[who].as_ref() else { return };
                let old = stateid4 { seqid: stateid.seqid - 1, ..*stateid };
                if old.seqid > 0 {
                    assert_eq!(self.state.close(self.clients[who], FILE, &old), Err(NFS4ERR_OLD_STATEID));
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.state.open_count(FILE), self.held.iter().flatten().count());
        assert_eq!(self.state.is_open(FILE), self.held.iter().any(Option::is_some));
        for (client, held) in self.clients.iter().zip(&self.held) {
            let open: Vec<_> = self.state.opens_of(*client).map(|o| (o.access, o.deny)).collect();
            let expected: Vec<_> = held.iter().map(|(asked, _)| union(asked)).collect();
            assert_eq!(open, expected);
            if let Some((asked, stateid)) = held {
                for (access, bit) in [(Access::Read, 1), (Access::Write, 2)] {
                    let allowed = union(asked).0 & bit != 0;
                    let expected: Result<_> = if allowed { Ok(Permit::Open) } else { Err(NFS4ERR_OPENMODE) };
                    assert_eq!(self.state.check_io(*client, FILE, stateid, access), expected);
                }
            }
        }
    }
}

fn world() -> World {
    let (state, a, b) = two_clients();
    World { state, clients: [a, b], held: [None, None] }
}

#[test]
fn one_owner_matches_the_model_in_every_short_history() {
    let mut calls: Vec<_> = shares().map(|(a, d)| Call::Open(0, a, d)).collect();
    calls.extend(shares().map(|(a, d)| Call::Downgrade(0, a, d)));
    calls.extend([Call::Close(0), Call::CloseOld(0)]);
    walk(&world(), &calls, 3, World::apply);
    // Use only OPENs whose share bits do not conflict, so that one open-owner can send many of them.
    let mut calls: Vec<_> = (1..=3).map(|a| Call::Open(0, a, 0)).collect();
    calls.extend([Call::Open(0, 1, 2), Call::Downgrade(0, 1, 0), Call::Downgrade(0, 2, 0), Call::Downgrade(0, 1, 2)]);
    calls.push(Call::Close(0));
    walk(&world(), &calls, 5, World::apply);
}

#[test]
fn two_clients_match_the_model_in_every_short_history() {
    let mut calls = Vec::new();
    for who in 0..2 {
        calls.extend([(1, 0), (2, 0), (1, 2), (3, 0)].map(|(a, d)| Call::Open(who, a, d)));
        calls.extend([Call::Downgrade(who, 1, 0), Call::Close(who)]);
    }
    walk(&world(), &calls, 5, World::apply);
}

#[test]
fn open_owners_of_one_client_have_separate_opens() {
    let (mut state, a, _) = two_clients();
    let x = state.open(a, &owner("x"), FILE, 3, 0).unwrap().stateid;
    let y = state.open(a, &owner("y"), FILE, 1, 0).unwrap().stateid;
    assert_ne!(x.other, y.other);
    let closed = state.close(a, FILE, &x).unwrap();
    assert!(closed.wrote && !closed.last_of_client && !closed.last);
    let closed = state.close(a, FILE, &y).unwrap();
    assert!(!closed.wrote && closed.last_of_client && closed.last);
}
