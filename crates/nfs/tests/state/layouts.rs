//! Tests of layouts in the state tables: single rules, and every short history of two clients against a model. The
//! model divides the file into four units.

use crate::helpers::*;
use bytes::Bytes;
use nfs::fs::Iomode;
use nfs::state::layouts::{Filter, Recall, RecallAnswer, Segment};
use nfs::state::stateids::ANONYMOUS;
use nfs::state::{ClientId, Effect, Gone, State};
use std::collections::BTreeSet;
use types::{ByteRange, FileId};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::*;

const FILE: FileId = FileId(10);
const KIND: layouttype4 = 1;
const UNIT: u64 = 100;
const UNITS: u64 = 4;
const MODES: [Iomode; 2] = [Iomode::Read, Iomode::ReadWrite];

fn units(from: u64, to: u64) -> ByteRange {
    let len = if to == UNITS { u64::MAX } else { (to - from) * UNIT };
    ByteRange { offset: from * UNIT, len }
}

fn only(iomode: Iomode, range: ByteRange) -> Filter {
    Filter { iomode: Some(iomode), range }
}

fn segment(iomode: Iomode, range: ByteRange) -> Segment {
    Segment { iomode, range, return_on_close: false }
}

const WHOLE: Segment = Segment { iomode: Iomode::ReadWrite, range: ByteRange::ALL, return_on_close: false };

/// Creates two clients, each with an open of the file for reading and writing.
fn two_clients() -> (State, [(ClientId, stateid4); 2]) {
    let mut state = new_state();
    let clients = ["a", "b"].map(|name| {
        let (client, _) = connect(&mut state, name, at(0));
        (client, state.open(client, &Bytes::from_static(b"o"), FILE, 3, 0).unwrap().stateid)
    });
    state.take_effects();
    (state, clients)
}

#[test]
fn each_layout_grant_return_and_recall_increments_the_seqid() {
    let (mut state, [(a, open), _]) = two_clients();
    let first = state.grant_layout(a, FILE, KIND, &open, segment(Iomode::Read, units(0, 2))).unwrap();
    assert_eq!(first.seqid, 1);
    let second = state.grant_layout(a, FILE, KIND, &first, segment(Iomode::Read, units(2, 4))).unwrap();
    assert_eq!(second, stateid4 { seqid: 2, ..first });
    let parallel = state.grant_layout(a, FILE, KIND, &first, segment(Iomode::Read, units(2, 4))).unwrap();
    assert_eq!(parallel.seqid, 3, "requests in parallel carry the same number");
    let returned = state.return_layout(a, FILE, KIND, &parallel, only(Iomode::Read, units(0, 1))).unwrap();
    assert_eq!(returned.stateid.unwrap().seqid, 4);
    let recall = state.recall_layouts(FILE, Filter::ALL, None, at(0)).remove(0);
    assert_eq!(recall.stateid, stateid4 { seqid: 5, ..first });
    let done = state.return_layout(a, FILE, KIND, &recall.stateid, Filter::ALL).unwrap();
    assert_eq!(done.stateid, None);
    assert_eq!(done.pieces, [(Iomode::Read, units(1, 4))]);
    assert_eq!(state.counts().recalls, 0);
    assert_eq!(state.return_layout(a, FILE, KIND, &recall.stateid, Filter::ALL), Err(NFS4ERR_BAD_STATEID));
    let anew = state.grant_layout(a, FILE, KIND, &open, WHOLE).unwrap();
    assert!(anew.other != first.other && anew.seqid == 1);
}

#[test]
fn a_recall_of_one_layout_type_leaves_the_other_type() {
    const OTHER: u32 = KIND + 1;
    let (mut state, [(a, open_a), (b, open_b)]) = two_clients();
    let first = state.grant_layout(a, FILE, KIND, &open_a, WHOLE).unwrap();
    let second = state.grant_layout(b, FILE, KIND, &open_b, WHOLE).unwrap();
    state.grant_layout(b, FILE, OTHER, &open_b, WHOLE).unwrap();
    assert_eq!(state.files_with_layouts(), [(FILE, KIND), (FILE, OTHER)].into());
    let recalls = state.recall_kind(FILE, KIND, at(0));
    let mut stateids: Vec<_> = recalls.iter().map(|recall| (recall.client, recall.stateid)).collect();
    stateids.sort_by_key(|(client, _)| *client);
    assert_eq!(stateids, [(a, stateid4 { seqid: 2, ..first }), (b, stateid4 { seqid: 2, ..second })]);
    assert!(state.recall_kind(FILE, KIND, at(1)).is_empty(), "asked already");
    let of = |client| recalls.iter().find(|recall| recall.client == client).unwrap().id;
    state.recall_answered(of(a), RecallAnswer::NothingHeld);
    assert!(!state.is_recalling(of(a)) && state.is_recalling(of(b)));
    state.recall_answered(of(b), RecallAnswer::Later);
    assert!(state.is_recalling(of(b)));
    // Client b renews its lease but does not return its layout, so the server revokes the layout.
    let session = state.client(b).unwrap().sessions[0];
    let alive = new_request(&mut state, &sequence_args(session, 0, 1, false), at(60));
    state.finish(alive.token, None);
    state.expire(at(90));
    assert!(!state.is_recalling(of(b)));
    let left: Vec<_> = state.layout_holders(FILE).iter().map(|holder| holder.client).collect();
    assert_eq!(left, [b]);
}

#[test]
fn a_return_with_a_seqid_before_the_last_grant_is_refused() {
    let (mut state, [(a, open), _]) = two_clients();
    let first = state.grant_layout(a, FILE, KIND, &open, segment(Iomode::Read, units(0, 2))).unwrap();
    let second = state.grant_layout(a, FILE, KIND, &first, segment(Iomode::Read, units(2, 4))).unwrap();
    assert_eq!(state.return_layout(a, FILE, KIND, &first, Filter::ALL), Err(NFS4ERR_OLD_STATEID));
    // A client may return a layout with a sequence number from before a recall, because the recall may not have reached
    // the client yet.
    state.recall_layouts(FILE, Filter::ALL, None, at(0));
    assert_eq!(state.return_layout(a, FILE, KIND, &second, Filter::ALL).unwrap().pieces.len(), 1);
}

#[test]
fn layoutget_refuses_unsuitable_stateids() {
    let (mut state, [(a, open), (b, _)]) = two_clients();
    let read_only = state.open(a, &Bytes::from_static(b"reader"), FILE, 1, 0).unwrap().stateid;
    let layout = state.grant_layout(a, FILE, KIND, &open, WHOLE).unwrap();
    let ask = |state: &State, client, file, stateid: &stateid4| {
        state.check_layoutget(client, file, KIND, stateid, Filter { iomode: Some(Iomode::ReadWrite), ..Filter::ALL })
    };
    assert_eq!(ask(&state, a, FILE, &layout), Ok(()));
    assert_eq!(ask(&state, a, FILE, &read_only), Err(NFS4ERR_OPENMODE));
    assert_eq!(ask(&state, b, FILE, &layout), Err(NFS4ERR_BAD_STATEID));
    assert_eq!(ask(&state, a, FileId(11), &layout), Err(NFS4ERR_BAD_STATEID));
    assert_eq!(ask(&state, a, FILE, &ANONYMOUS), Err(NFS4ERR_BAD_STATEID));
    assert_eq!(ask(&state, a, FILE, &stateid4 { seqid: 0, ..layout }), Err(NFS4ERR_BAD_STATEID), "never 0 (§12.5.3)");
    assert_eq!(ask(&state, a, FILE, &stateid4 { seqid: 2, ..layout }), Err(NFS4ERR_BAD_STATEID), "from the future");
    assert_eq!(state.check_layoutget(a, FILE, 4, &layout, Filter::ALL), Err(NFS4ERR_BAD_STATEID), "of another type");
    assert_eq!(state.test_stateid(a, &layout), NFS4_OK);
    assert_eq!(state.free_stateid(a, &layout), Err(NFS4ERR_LOCKS_HELD));
    assert_eq!(state.check_io(a, FILE, &layout, nfs::state::opens::Access::Read), Err(NFS4ERR_BAD_STATEID));
}

#[test]
fn no_layout_is_granted_without_a_backchannel() {
    let (mut state, [(a, open), _]) = two_clients();
    state.connection_lost(CONNECTION);
    assert_eq!(state.grant_layout(a, FILE, KIND, &open, WHOLE), Err(NFS4ERR_LAYOUTTRYLATER));
    let id = state.exchange_id(&exchange_args("c", 1, 0), ALICE, at(0)).unwrap();
    let args = CREATE_SESSION4args { csa_flags: 0, ..create_args(id.client, id.sequence) };
    state.create_session(&args, ALICE, CONNECTION, 5, at(0)).unwrap();
    let open = state.open(id.client, &Bytes::from_static(b"o"), FILE, 3, 0).unwrap().stateid;
    assert_eq!(state.grant_layout(id.client, FILE, KIND, &open, WHOLE), Err(NFS4ERR_LAYOUTUNAVAILABLE));
}

#[test]
fn layoutcommit_needs_a_layout_for_writing() {
    let (mut state, [(a, open), _]) = two_clients();
    let layout = state.grant_layout(a, FILE, KIND, &open, segment(Iomode::ReadWrite, units(1, 2))).unwrap();
    state.grant_layout(a, FILE, KIND, &open, segment(Iomode::Read, units(2, 4))).unwrap();
    let commit = |range| state.check_layoutcommit(a, FILE, KIND, &layout, range);
    assert_eq!(commit(units(1, 2)), Ok(()));
    assert_eq!(commit(units(0, 4)), Ok(()));
    assert_eq!(commit(ByteRange { offset: 0, len: 0 }), Ok(()), "only a new time");
    assert_eq!(commit(units(2, 4)), Err(NFS4ERR_BADLAYOUT));
    assert_eq!(state.check_layoutcommit(a, FILE, KIND, &open, units(1, 2)), Err(NFS4ERR_BAD_STATEID));
}

#[test]
fn return_on_close_layouts_end_with_the_last_close() {
    let (mut state, [(a, open), _]) = two_clients();
    let second = state.open(a, &Bytes::from_static(b"p"), FILE, 1, 0).unwrap().stateid;
    let goes = Segment { return_on_close: true, ..segment(Iomode::ReadWrite, units(0, 2)) };
    state.grant_layout(a, FILE, KIND, &open, goes).unwrap();
    state.grant_layout(a, FILE, KIND, &open, segment(Iomode::Read, units(2, 4))).unwrap();
    state.close(a, FILE, &open).unwrap();
    assert_eq!(state.layout_holders(FILE).len(), 2);
    state.close(a, FILE, &second).unwrap();
    let left: Vec<_> = state.layout_holders(FILE).iter().map(|h| (h.client, h.iomode, h.range)).collect();
    assert_eq!(left, [(a, Iomode::Read, units(2, 4))]);
    let gone = |iomode, range| Effect::LayoutGone { client: a, file: FILE, iomode, range, why: Gone::Forgotten };
    assert_eq!(state.take_effects(), [gone(Iomode::ReadWrite, units(0, 2))]);
}

#[test]
fn a_recall_stops_new_layouts_and_ends_by_return_answer_or_revocation() {
    let (mut state, [(a, open_a), (b, open_b)]) = two_clients();
    let layout = state.grant_layout(a, FILE, KIND, &open_a, WHOLE).unwrap();
    let recalls = state.recall_layouts(FILE, Filter::ALL, Some(b), at(10));
    let [recall] = recalls[..] else { panic!("{recalls:?}") };
    assert_eq!((recall.client, recall.iomode, recall.range), (a, None, ByteRange::ALL));
    assert!(state.recall_layouts(FILE, Filter::ALL, Some(b), at(11)).is_empty(), "asked already");
    assert_eq!(state.grant_layout(a, FILE, KIND, &layout, WHOLE), Err(NFS4ERR_RECALLCONFLICT));
    state.recall_answered(recall.id, RecallAnswer::Later);
    state.recall_answered(recall.id, RecallAnswer::WillReturn);
    assert_eq!(state.grant_layout(a, FILE, KIND, &recall.stateid, WHOLE), Err(NFS4ERR_RETURNCONFLICT));
    assert_eq!(state.grant_layout(a, FILE, KIND, &layout, WHOLE), Err(NFS4ERR_RECALLCONFLICT));
    assert!(state.conflicting_layouts(FILE, Filter::ALL, Some(b)));
    state.freeze_layouts(FILE);
    assert_eq!(state.grant_layout(b, FILE, KIND, &open_b, WHOLE), Err(NFS4ERR_RECALLCONFLICT));
    state.thaw_layouts(FILE);
    state.grant_layout(b, FILE, KIND, &open_b, WHOLE).unwrap();
    // Client a renews its lease but does not return its layout, so the server revokes only the layout.
    state.take_effects();
    let session = state.client(a).unwrap().sessions[0];
    let renew = |state: &mut State, sequence, now| {
        let sequenced = new_request(state, &sequence_args(session, 0, sequence, false), now);
        state.finish(sequenced.token, None);
        sequenced.result.sr_status_flags
    };
    assert_eq!(renew(&mut state, 1, at(60)), 0);
    let other_session = state.client(b).unwrap().sessions[0];
    let alive = new_request(&mut state, &sequence_args(other_session, 0, 1, false), at(60));
    state.finish(alive.token, None);
    state.expire(at(99));
    assert!(state.take_effects().is_empty());
    state.expire(at(100));
    let gone = Effect::LayoutGone {
        client: a,
        file: FILE,
        iomode: Iomode::ReadWrite,
        range: ByteRange::ALL,
        why: Gone::Revoked,
    };
    assert_eq!(state.take_effects(), [gone]);
    assert_eq!(state.test_stateid(a, &layout), NFS4ERR_ADMIN_REVOKED);
    assert_eq!(renew(&mut state, 2, at(101)), SEQ4_STATUS_RECALLABLE_STATE_REVOKED);
    let mut freed = state.clone();
    assert_eq!(freed.free_stateid(a, &layout), Ok(()));
    assert_eq!(freed.test_stateid(a, &layout), NFS4ERR_BAD_STATEID);
    let mut returned = state.clone();
    let done = returned.return_layout(a, FILE, KIND, &layout, Filter::ALL).unwrap();
    assert!(done.stateid.is_none() && done.pieces.is_empty());
    let mut anew = state.clone();
    anew.grant_layout(a, FILE, KIND, &open_a, WHOLE).unwrap();
    state.expire(at(191));
    for state in [&mut freed, &mut returned, &mut anew, &mut state] {
        assert_eq!(renew(state, 3, at(102)), 0, "the client was told and has done its part");
    }
}

#[derive(Clone)]
struct World {
    state: State,
    clients: [(ClientId, stateid4); 2],
    /// The held layouts in the model, as triples of client, iomode and one of the four units of the file.
    held: BTreeSet<(usize, usize, u64)>,
    layouts: [Option<stateid4>; 2],
    recalls: Vec<(usize, Recall)>,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Get(usize, usize, u64, u64),
    Return(usize, Option<usize>, u64, u64),
    ReturnAll(usize),
    Recall(Option<usize>, u64, u64),
    /// The client of the oldest pending layout recall answers this recall with NOMATCHING_LAYOUT.
    NothingHeld,
    /// A lease period passes, and the server revokes all layouts of the clients with a recall in progress.
    Revoke,
    Close(usize),
}

impl World {
    fn new() -> Self {
        let (state, clients) = two_clients();
        World { state, clients, held: BTreeSet::new(), layouts: [None, None], recalls: Vec::new() }
    }

    fn selected(&self, who: Option<usize>, mode: Option<usize>, from: u64, to: u64) -> BTreeSet<(usize, usize, u64)> {
        let matches = |(w, m, u): &(usize, usize, u64)| {
            who.is_none_or(|x| x == *w) && mode.is_none_or(|x| x == *m) && (from..to).contains(u)
        };
        self.held.iter().copied().filter(matches).collect()
    }

    fn recall_clashes(&self, who: usize, mode: usize, from: u64, to: u64) -> bool {
        let asked = only(MODES[mode], units(from, to));
        self.recalls.iter().any(|(w, r)| *w == who && Filter { iomode: r.iomode, range: r.range }.overlaps(asked))
    }

    /// Removes from the model each recall that matches no range of a held layout. Also removes the layout stateid of
    /// each client that holds no range.
    fn settle(&mut self) {
        let held = self.held.clone();
        self.recalls.retain(|(w, r)| {
            held.iter().any(|(who, mode, unit)| {
                let unit = only(MODES[*mode], units(*unit, *unit + 1));
                w == who && Filter { iomode: r.iomode, range: r.range }.overlaps(unit)
            })
        });
        for who in 0..2 {
            if !held.iter().any(|h| h.0 == who) {
                self.layouts[who] = None;
            }
        }
    }

    fn apply(&mut self, call: Call) {
        match call {
            Call::Get(who, mode, from, to) => {
                let (client, open) = self.clients[who];
                let stateid = self.layouts[who].unwrap_or(open);
                let got = self.state.grant_layout(client, FILE, KIND, &stateid, segment(MODES[mode], units(from, to)));
                if self.recall_clashes(who, mode, from, to) {
                    assert_eq!(got, Err(NFS4ERR_RECALLCONFLICT));
                } else {
                    let got = got.unwrap();
                    assert_eq!(got.seqid, self.layouts[who].map_or(1, |l| l.seqid + 1));
                    self.layouts[who] = Some(got);
                    self.held.extend((from..to).map(|u| (who, mode, u)));
                }
            }
            Call::Return(who, mode, from, to) => {
                let Some(stateid) = self.layouts[who] else { return };
                let filter = Filter { iomode: mode.map(|m| MODES[m]), range: units(from, to) };
                let got = self.state.return_layout(self.clients[who].0, FILE, KIND, &stateid, filter).unwrap();
                let gone = self.selected(Some(who), mode, from, to);
                assert_eq!(grid(who, got.pieces), gone);
                self.held = &self.held - &gone;
                self.layouts[who] = got.stateid;
                assert_eq!(got.stateid.is_some(), self.held.iter().any(|h| h.0 == who));
            }
            Call::ReturnAll(who) => {
                let got = self.state.return_all_layouts(self.clients[who].0, KIND, None);
                let gone = self.selected(Some(who), None, 0, UNITS);
                assert_eq!(grid(who, got.into_iter().map(|(_, i, r)| (i, r)).collect()), gone);
                self.held = &self.held - &gone;
            }
            Call::Recall(mode, from, to) => self.recall(mode, from, to),
            Call::NothingHeld => self.nothing_held(),
            Call::Revoke => self.revoke(),
            Call::Close(who) => {
                let (client, open) = self.clients[who];
                if self.state.close(client, FILE, &open).is_ok() {
                    self.clients[who].1 =
                        self.state.open(client, &Bytes::from_static(b"o"), FILE, 3, 0).unwrap().stateid;
                }
                self.state.take_effects();
            }
        }
        self.settle();
        self.check();
    }

    fn recall(&mut self, mode: Option<usize>, from: u64, to: u64) {
        let filter = Filter { iomode: mode.map(|m| MODES[m]), range: units(from, to) };
        for recall in self.state.recall_layouts(FILE, filter, None, at(0)) {
            let who = usize::from(recall.client == self.clients[1].0);
            let last = self.layouts[who].as_mut().expect("only holders are asked");
            last.seqid += 1;
            assert_eq!(recall.stateid, *last);
            self.recalls.push((who, recall));
        }
        for (who, ..) in self.selected(None, mode, from, to) {
            let asked =
                |(w, r): &(usize, Recall)| *w == who && Filter { iomode: r.iomode, range: r.range }.covers(filter);
            assert!(self.recalls.iter().any(asked), "a holder was not asked");
        }
    }

    fn nothing_held(&mut self) {
        let Some((who, recall)) = self.recalls.first().copied() else { return };
        self.state.recall_answered(recall.id, RecallAnswer::NothingHeld);
        let mode = recall.iomode.map(|i| usize::from(i == Iomode::ReadWrite));
        let to = if recall.range.len == u64::MAX { UNITS } else { recall.range.end() / UNIT };
        let gone = self.selected(Some(who), mode, recall.range.offset / UNIT, to);
        self.check_effects(who, &gone, Gone::Forgotten);
        self.held = &self.held - &gone;
    }

    fn revoke(&mut self) {
        let late: BTreeSet<_> = self.recalls.iter().map(|(w, _)| *w).collect();
        let session = |who: usize, state: &State| state.client(self.clients[who].0).unwrap().sessions[0];
        for who in 0..2 {
            // The clients renew their leases, so that the deadlines of the recalls pass but no lease expires.
            let id = session(who, &self.state);
            let mut sequence = 1;
            while sequence_result(&mut self.state, id, sequence).is_err() {
                sequence += 1;
            }
        }
        self.state.expire(at(90));
        let mut effects = self.state.take_effects();
        for who in late {
            let gone = self.selected(Some(who), None, 0, UNITS);
            let mine: Vec<_> = take_effects_of(&mut effects, self.clients[who].0);
            assert_eq!(effect_grid(who, &mine, Gone::Revoked), gone);
            self.held = &self.held - &gone;
        }
        assert!(effects.is_empty());
    }

    fn check_effects(&mut self, who: usize, gone: &BTreeSet<(usize, usize, u64)>, why: Gone) {
        let effects = self.state.take_effects();
        assert_eq!(effect_grid(who, &effects, why), *gone);
    }

    fn check(&self) {
        let mut held = BTreeSet::new();
        for holder in self.state.layout_holders(FILE) {
            let who = usize::from(holder.client == self.clients[1].0);
            held.extend(grid(who, vec![(holder.iomode, holder.range)]));
        }
        assert_eq!(held, self.held);
        assert_eq!(self.state.counts().recalls, self.recalls.len());
        for unit in 0..UNITS {
            for (mode, iomode) in MODES.into_iter().enumerate() {
                let filter = only(iomode, units(unit, unit + 1));
                let others = self.held.iter().any(|h| *h == (1, mode, unit));
                assert_eq!(self.state.conflicting_layouts(FILE, filter, Some(self.clients[0].0)), others);
            }
        }
    }
}

/// Sends the request with this sequence number on slot 0, and completes it.
fn sequence_result(state: &mut State, session: sessionid4, number: u32) -> Result<(), nfsstat4> {
    match sequence(state, &sequence_args(session, 0, number, false), at(90))? {
        nfs::state::sessions::Sequence::New(new) => {
            state.finish(new.token, None);
            Ok(())
        }
        _ => Err(NFS4ERR_SEQ_MISORDERED),
    }
}

fn take_effects_of(effects: &mut Vec<Effect>, who: ClientId) -> Vec<Effect> {
    let (mine, rest) =
        effects.drain(..).partition(|e| matches!(e, Effect::LayoutGone { client, .. } if *client == who));
    *effects = rest;
    mine
}

fn effect_grid(who: usize, effects: &[Effect], reason: Gone) -> BTreeSet<(usize, usize, u64)> {
    let pieces = effects.iter().map(|e| match e {
        Effect::LayoutGone { iomode, range, why, .. } if *why == reason => (*iomode, *range),
        other => panic!("{other:?}"),
    });
    grid(who, pieces.collect())
}

/// Converts layout ranges of a client to units of the model. Panics if two ranges contain the same unit.
fn grid(who: usize, pieces: Vec<(Iomode, ByteRange)>) -> BTreeSet<(usize, usize, u64)> {
    let mut units = BTreeSet::new();
    for (iomode, range) in pieces {
        assert!(range.len > 0);
        let to = if range.len == u64::MAX { UNITS } else { range.end() / UNIT };
        for unit in range.offset / UNIT..to {
            assert!(units.insert((who, usize::from(iomode == Iomode::ReadWrite), unit)), "twice");
        }
    }
    units
}

#[test]
fn one_client_matches_the_model_with_partial_ranges() {
    let mut calls = Vec::new();
    for (from, to) in [(0, 4), (0, 2), (1, 3), (2, 4)] {
        calls.extend([Call::Get(0, 0, from, to), Call::Get(0, 1, from, to)]);
        calls.extend([Call::Return(0, None, from, to), Call::Return(0, Some(1), from, to)]);
    }
    walk(&World::new(), &calls, 4, World::apply);
}

#[test]
fn two_clients_match_the_model_with_recalls() {
    let mut calls = vec![Call::NothingHeld, Call::Revoke, Call::ReturnAll(0), Call::Close(1)];
    for who in 0..2 {
        calls.extend([Call::Get(who, 1, 0, 4), Call::Return(who, None, 0, 4)]);
    }
    calls.extend([Call::Get(0, 0, 1, 3), Call::Return(0, Some(1), 0, 2)]);
    calls.extend([Call::Recall(None, 0, 4), Call::Recall(Some(1), 1, 2)]);
    walk(&World::new(), &calls, 4, World::apply);
}
