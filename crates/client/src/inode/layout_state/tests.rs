//! Tests of the layout state: every short history of requests, grants, recalls, returns, losses and I/O, against a
//! model of an mgr whose messages may arrive in another order than it sent them.

use super::*;
use crate::explorer::walk;
use std::collections::BTreeSet;

const KIND: KindId = KindId::new(7, "seven");

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// The client sends a LAYOUTGET without an OPEN.
    Ask,
    /// The client sends an OPEN and a LAYOUTGET in one COMPOUND.
    Open,
    /// The mgr executes the LAYOUTGET that the client sent without an OPEN.
    Execute,
    /// The mgr executes the LAYOUTGET that the client sent together with an OPEN.
    ExecuteOpen,
    /// The client receives the reply to the LAYOUTGET that it sent without an OPEN.
    Answer,
    /// The client receives the reply to the COMPOUND with OPEN and LAYOUTGET.
    AnswerOpen,
    /// The mgr sends a recall of the layout.
    Recall,
    /// The client receives the recall.
    ReceiveRecall,
    BeginUse,
    EndUse,
    /// An iod refuses a request under the layout that the client used last.
    Stale,
    /// The mgr fences the layout on request of the client.
    Fence,
    /// The client begins to answer the recall. It sends LAYOUTRETURN if no request uses a layout.
    Return,
    /// The mgr executes the LAYOUTRETURN, and the client receives the reply.
    ExecuteReturn,
    /// The last open ends, and the client returns the layout.
    Close,
    /// The mgr revokes the layout.
    Revoke,
    /// The client learns that the mgr has revoked the layout or has restarted.
    Lose,
}

const CALLS: [Call; 17] = [
    Call::Ask,
    Call::Open,
    Call::Execute,
    Call::ExecuteOpen,
    Call::Answer,
    Call::AnswerOpen,
    Call::Recall,
    Call::ReceiveRecall,
    Call::BeginUse,
    Call::EndUse,
    Call::Stale,
    Call::Fence,
    Call::Return,
    Call::ExecuteReturn,
    Call::Close,
    Call::Revoke,
    Call::Lose,
];

/// A LAYOUTGET in flight.
#[derive(Clone, Copy, Debug)]
enum Request {
    Sent,
    Granted(stateid4),
    Refused,
}

/// The mgr's record of the layout that it has granted.
#[derive(Clone, Copy, Debug)]
struct Record {
    other: u8,
    seqid: u32,
    /// The sequence number of the last grant that the mgr sent.
    granted: u32,
    recalled: bool,
}

#[derive(Clone, Debug, Default)]
struct Model {
    state: LayoutState<stateid4>,
    record: Option<Record>,
    others: u8,
    asked: Option<Request>,
    /// The OPEN in flight: its number and the state of its LAYOUTGET.
    open: Option<(u64, Request)>,
    opens: u64,
    /// The recall in flight to the client.
    recall: Option<stateid4>,
    /// The recall that the client has received and has to answer.
    owed: Option<stateid4>,
    /// The LAYOUTRETURN in flight to the mgr.
    returning: Option<stateid4>,
    uses: Vec<stateid4>,
    /// The number of the layout that the client used last.
    last: Option<u64>,
    /// Layouts that no new request may use: the field `other` of the stateid, and the greatest sequence number that is
    /// no longer valid.
    dead: BTreeSet<(u8, u32)>,
}

fn stateid(other: u8, seqid: u32) -> stateid4 {
    stateid4 { seqid, other: [other; 12] }
}

impl Model {
    fn apply(&mut self, call: Call) -> bool {
        let possible = self.execute(call);
        if possible {
            self.check();
            self.clone().come_to_rest();
        }
        possible
    }

    /// Lets the mgr execute a LAYOUTGET. The mgr grants no layout while a recall is unanswered.
    fn grant(&mut self) -> Request {
        if self.record.is_some_and(|record| record.recalled) {
            return Request::Refused;
        }
        let fresh = self.record.is_none();
        self.others += u8::from(fresh);
        let (other, seqid) = self.record.map_or((self.others, 1), |record| (record.other, record.seqid + 1));
        self.record = Some(Record { other, seqid, granted: seqid, recalled: false });
        Request::Granted(stateid(other, seqid))
    }

    fn receive(&mut self, request: Request, open: Option<u64>) -> bool {
        match request {
            Request::Sent => return false,
            Request::Refused => {}
            Request::Granted(stateid) => {
                let generation = Generation::default();
                let grant = Grant { layout: stateid, generation, kind: KIND, stateid, write: true, read: true, open };
                let overtaken = self.owed.is_some_and(|owed| owed.other == stateid.other);
                let before = self.state.held().map(Held::stateid).filter(|before| before.other == stateid.other);
                let granted = self.state.granted(grant);
                let after = self.state.held().map(Held::stateid);
                assert!(
                    before.is_none_or(|before| after.unwrap().seqid >= before.seqid),
                    "an earlier grant replaces it"
                );
                if overtaken {
                    assert!(!matches!(granted, Granted::Usable { .. }), "a recall overtook the grant");
                    self.dead.insert((stateid.other[0], stateid.seqid));
                }
                let dead = self.is_dead(stateid);
                assert!(!dead || !matches!(granted, Granted::Usable { .. }), "{granted:?}");
            }
        }
        true
    }

    fn is_dead(&self, stateid: stateid4) -> bool {
        self.dead.iter().any(|(other, seqid)| *other == stateid.other[0] && stateid.seqid <= *seqid)
    }

    /// Records that no request may begin from now on under this layout, nor under an earlier grant of the layout with
    /// the same stateid.
    fn kill(&mut self, stateid: stateid4) {
        self.dead.insert((stateid.other[0], stateid.seqid));
    }

    fn execute(&mut self, call: Call) -> bool {
        match call {
            Call::Ask | Call::Open => return self.ask(call),
            Call::Execute | Call::ExecuteOpen => return self.execute_request(call),
            Call::Answer | Call::AnswerOpen => return self.answer(call),
            Call::Recall => return self.recall(),
            Call::ReceiveRecall => {
                let Some(stateid) = self.recall.take() else { return false };
                self.state.recalled(Recall { kind: KIND.number(), stateid });
                self.owed = Some(stateid);
            }
            Call::BeginUse => return self.begin_use(),
            Call::EndUse => {
                let ended = self.uses.pop().is_some();
                if ended {
                    assert_eq!(self.state.end_use(), self.uses.is_empty());
                }
                return ended;
            }
            Call::Stale => {
                let Some(number) = self.last.take() else { return false };
                self.state.refused_by_iods(number);
                assert!(!self.state.is_current(number));
            }
            Call::Fence => {
                if self.asked.is_some() || self.returning.is_some() || self.state.reportable().is_none() {
                    return false;
                }
                self.state.fenced();
                assert!(self.state.wants(true, true), "no I/O uses a fenced layout");
            }
            Call::Return => return self.send_return(),
            Call::ExecuteReturn => return self.execute_return(),
            Call::Close => return self.close(),
            Call::Revoke => {
                // The mgr forgets the layout, and from now on the iods refuse it. The client learns of the revocation
                // later.
                return self.record.take().is_some();
            }
            Call::Lose => self.lose(),
        }
        true
    }

    fn ask(&mut self, call: Call) -> bool {
        if call == Call::Open {
            if self.open.is_some() {
                return false;
            }
            self.open = Some((self.opens, Request::Sent));
            self.opens += 1;
            return true;
        }
        // The client sends only one operation on the layout stateid at a time, so it sends no LAYOUTGET while a
        // LAYOUTRETURN is in flight.
        if self.returning.is_some() {
            return false;
        }
        let begins = self.state.begin_asking();
        assert_eq!(begins, self.asked.is_none(), "one request is in flight");
        if begins {
            self.asked = Some(Request::Sent);
        }
        begins
    }

    fn execute_request(&mut self, call: Call) -> bool {
        if call == Call::ExecuteOpen {
            let Some((number, Request::Sent)) = self.open else { return false };
            self.open = Some((number, self.grant()));
        } else {
            let Some(Request::Sent) = self.asked else { return false };
            self.asked = Some(self.grant());
        }
        true
    }

    fn answer(&mut self, call: Call) -> bool {
        if call == Call::AnswerOpen {
            let Some((number, request)) = self.open else { return false };
            let answered = self.receive(request, Some(number));
            if answered {
                self.open = None;
            }
            return answered;
        }
        let Some(request) = self.asked else { return false };
        let answered = self.receive(request, None);
        if answered {
            self.asked = None;
            self.state.end_asking();
        }
        answered
    }

    fn lose(&mut self) {
        if let Some(held) = self.state.held() {
            let stateid = held.stateid();
            self.kill(stateid);
        }
        if let Some(Request::Granted(stateid)) = self.asked {
            self.kill(stateid);
        }
        if let Some((_, Request::Granted(stateid))) = self.open {
            self.kill(stateid);
        }
        self.state.lose(self.opens);
        assert!(self.state.held().is_none());
    }

    fn recall(&mut self) -> bool {
        let Some(record) = self.record.as_mut().filter(|record| !record.recalled) else { return false };
        if self.recall.is_some() {
            return false;
        }
        record.recalled = true;
        record.seqid += 1;
        self.recall = Some(stateid(record.other, record.seqid));
        true
    }

    fn begin_use(&mut self) -> bool {
        let Some((layout, number)) = self.state.begin_use(true, true) else { return false };
        assert!(!self.is_dead(layout), "{layout:?} is returned, recalled or revoked");
        let held = self.state.held().map(Held::stateid);
        assert_eq!(held, Some(layout), "no request uses an earlier layout");
        self.uses.push(layout);
        self.last = Some(number);
        true
    }

    fn send_return(&mut self) -> bool {
        if self.asked.is_some() || self.returning.is_some() {
            return false;
        }
        let begun = self.state.begin_return();
        assert_eq!(begun, self.owed.is_some());
        let Some(owed) = self.owed.filter(|_| begun) else { return false };
        // From now on, no request may begin under the recalled layout.
        self.kill(owed);
        let taken = self.state.take_recalled();
        assert_eq!(taken.is_some(), self.uses.is_empty(), "the answer waits for the requests");
        if let Some((kind, stateid)) = taken {
            assert_eq!((kind, stateid), (KIND.number(), owed));
            (self.owed, self.returning) = (None, Some(stateid));
        }
        true
    }

    fn execute_return(&mut self) -> bool {
        let Some(stateid) = self.returning.take() else { return false };
        // If the mgr has granted a layout to an OPEN since the recall, the stateid in the LAYOUTRETURN is too old. The
        // mgr then refuses the LAYOUTRETURN (NFS4ERR_OLD_STATEID).
        self.record.take_if(|record| record.other == stateid.other[0] && stateid.seqid >= record.granted);
        self.state.returned(self.opens);
        true
    }

    fn close(&mut self) -> bool {
        if self.asked.is_some() || self.returning.is_some() {
            return false;
        }
        let held = self.state.held().map(Held::stateid);
        let taken = self.state.take_for_close();
        assert_eq!(taken.is_some(), held.is_some() && self.uses.is_empty());
        let Some((_, stateid)) = taken else { return false };
        self.owed = self.owed.filter(|owed| owed.other != stateid.other);
        self.kill(stateid);
        self.returning = Some(stateid);
        true
    }

    fn check(&self) {
        assert_eq!(self.state.is_in_use(), !self.uses.is_empty());
        assert_eq!(self.state.recall.is_some(), self.owed.is_some());
        if let Some(held) = self.state.held() {
            let usable = !self.state.wants(true, true);
            assert!(!usable || !self.is_dead(held.stateid()), "a dead layout is usable");
        }
    }

    /// Checks that every history can end: all replies arrive, all requests end, and the client answers each recall.
    fn come_to_rest(&mut self) {
        for call in [Call::Execute, Call::ExecuteOpen, Call::Answer, Call::AnswerOpen, Call::ExecuteReturn] {
            self.execute(call);
        }
        while self.execute(Call::EndUse) {}
        for call in [Call::ReceiveRecall, Call::Return, Call::ExecuteReturn] {
            self.execute(call);
        }
        assert!(self.owed.is_none() && self.state.recall.is_none(), "a recall is left");
        for call in [Call::Recall, Call::ReceiveRecall, Call::Return, Call::ExecuteReturn] {
            self.execute(call);
        }
        assert!(self.record.is_none(), "the mgr gets every layout back: {:?}", self.record);
        while self.execute(Call::Close) {
            self.execute(Call::ExecuteReturn);
        }
        assert!(self.state.held().is_none() && self.state.recall.is_none() && !self.state.is_in_use());
    }
}

#[test]
fn no_request_uses_a_layout_that_is_gone() {
    let count = walk(&Model::default(), &CALLS, 9, Model::apply);
    assert!(count > 100_000, "{count} histories");
}

#[test]
fn a_refused_kind_is_followed_by_the_next() {
    let mut state = LayoutState::<()>::default();
    state.refuse(0, 2);
    assert!(state.kind() == 1 && !state.is_refused());
    // The mgr refuses the first layout kind twice if a LAYOUTGET and an OPEN requested this kind at the same time.
    state.refuse(0, 2);
    assert!(state.kind() == 1 && !state.is_refused());
    state.refuse(1, 2);
    assert!(state.is_refused());
}

fn grant(seqid: u32, generation: u32, write: bool, read: bool) -> Grant<u32> {
    let stateid = stateid(1, seqid);
    Grant { layout: seqid, generation: Generation(generation), kind: KIND, stateid, write, read, open: None }
}

#[test]
fn a_layout_allows_what_it_was_granted_for() {
    let mut state = LayoutState::default();
    state.granted(grant(1, 0, false, true));
    assert!(state.begin_use(true, true).is_none() && state.begin_use(false, true).is_some());
    assert!(state.wants(false, true) && !state.wants(true, false) && state.reportable().is_none());
    state.granted(grant(2, 0, true, false));
    assert!(state.begin_use(true, true).is_some() && state.begin_use(false, true).is_none());
    assert!(state.begin_use(false, false).is_some(), "no open reads");
    assert!(state.wants(true, false) && !state.wants(false, true) && state.reportable().is_some());
}

#[test]
fn a_late_answer_may_grant_a_layout_that_was_returned_before_the_last() {
    let mut state = LayoutState::default();
    let first = Grant { open: Some(0), ..grant(1, 0, true, true) };
    // The reply to an OPEN arrives late: before this reply, the client gets and returns two other layouts.
    for other in [1, 2] {
        state.granted(Grant { stateid: stateid(other, 1), ..grant(1, 0, true, true) });
        assert_eq!(state.take_for_close(), Some((KIND.number(), stateid(other, 1))));
        state.returned(1);
    }
    assert_eq!(state.granted(first), Granted::Doubtful);
    assert!(state.begin_use(true, true).is_none() && state.wants(true, true));
}

#[test]
fn sequence_numbers_wrap_around() {
    let mut state = LayoutState::default();
    state.granted(grant(u32::MAX, 0, true, true));
    assert_eq!(state.granted(grant(1, 0, true, true)), Granted::Usable { continues: true });
    assert_eq!(state.granted(grant(u32::MAX, 0, true, true)), Granted::Outdated);
}

#[test]
fn a_grant_continues_the_layout_unless_the_mgr_forgot_it() {
    let mut state = LayoutState::default();
    assert_eq!(state.granted(grant(1, 4, true, true)), Granted::Usable { continues: false });
    assert_eq!(state.granted(grant(2, 4, true, true)), Granted::Usable { continues: true });
    assert_eq!(state.granted(grant(3, 5, true, true)), Granted::Usable { continues: false }, "another client's fence");
    state.fenced();
    assert_eq!(state.granted(grant(4, 6, true, true)), Granted::Usable { continues: true }, "a fence of this client");
}

#[test]
fn a_failed_renewal_pauses_and_a_recalled_layout_is_not_renewed() {
    let (mut state, start) = (LayoutState::default(), Instant::now());
    state.granted(grant(1, 0, true, true));
    let (_, number) = state.begin_use(true, true).unwrap();
    assert_eq!(state.begin_renewal(number, start), Some(true));
    assert_eq!(state.begin_renewal(number, start + 9 * RENEW_PAUSE), None, "one attempt at a time");
    state.end_renewal(number, start);
    assert_eq!(state.begin_renewal(number, start + RENEW_PAUSE / 2), None);
    assert_eq!(state.begin_renewal(number, start + RENEW_PAUSE), Some(true));
    state.granted(grant(2, 0, true, true));
    state.end_renewal(number, start);
    let (_, next) = state.begin_use(true, true).unwrap();
    assert_eq!(state.begin_renewal(number, start), None);
    state.recalled(Recall { kind: KIND.number(), stateid: stateid(1, 3) });
    assert_eq!(state.begin_renewal(next, start), None);
}
