//! Model test of exactly-once execution: every short history of lost, duplicated and delayed messages and broken
//! connections.
//!
//! The server must execute each request exactly once, and the client must receive the reply to this request. The test
//! runs with one slot and with two slots.

use crate::helpers::*;
use bytes::Bytes;
use nfs::client::compound::Results;
use nfs::client::session::{Outcome, Session};
use nfs::client::slots::Ticket;
use nfs::state::State;
use nfs::state::sessions::{Sequence, Sequenced};
use std::panic::{AssertUnwindSafe, catch_unwind};
use wire::nfs4::*;

/// A request or reply in flight. A reply has the connection and the `xid` of its request.
#[derive(Clone)]
struct Message {
    connection: u32,
    xid: u32,
    bytes: Bytes,
}

/// A request that waits for its reply.
#[derive(Clone)]
struct Waiting {
    id: u8,
    ticket: Ticket,
    bytes: Bytes,
    xid: u32,
}

/// A request that the server is executing.
#[derive(Clone)]
struct Running {
    request: Message,
    sequenced: Sequenced,
    id: u8,
}

#[derive(Clone)]
struct World {
    state: State,
    session: Session,
    once: bool,
    /// Size of the replies in bytes; the server caches only small replies, unless the client asks for caching.
    reply_size: usize,
    waiting: Vec<Waiting>,
    to_server: Vec<Message>,
    running: Vec<Running>,
    to_client: Vec<Message>,
    connection: u32,
    next_xid: u32,
    next_id: u8,
    executed: Vec<u8>,
    answered: Vec<u8>,
    given_up: Vec<u8>,
    /// Requests that the server executed without caching the reply, so that the retries of these requests got
    /// RETRY_UNCACHED_REP.
    gone: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send,
    /// The server receives the request with this index in `to_server`.
    Arrive(usize),
    Duplicate(usize),
    LoseRequest(usize),
    /// The server completes the execution with this index in `running`.
    Finish(usize),
    /// The client receives the reply with this index in `to_client`.
    Reply(usize),
    /// The connection breaks. Replies on the connection are lost, requests on the connection may still reach the
    /// server, and the client sends all waiting requests again.
    Break,
    /// The client abandons its oldest waiting request.
    GiveUp,
}

impl World {
    fn new(slots: u32, once: bool, reply_size: usize) -> Self {
        let (state, session) = connect(slots);
        World {
            state,
            session,
            once,
            reply_size,
            waiting: Vec::new(),
            to_server: Vec::new(),
            running: Vec::new(),
            to_client: Vec::new(),
            connection: 0,
            next_xid: 0,
            next_id: 0,
            executed: Vec::new(),
            answered: Vec::new(),
            given_up: Vec::new(),
            gone: Vec::new(),
        }
    }

    fn enabled(&self, step: Step) -> bool {
        match step {
            Step::Send => self.session.clone().acquire().is_some() && self.next_id < 3,
            Step::Arrive(i) | Step::Duplicate(i) | Step::LoseRequest(i) => i < self.to_server.len(),
            Step::Finish(i) => i < self.running.len(),
            Step::Reply(i) => i < self.to_client.len(),
            Step::Break | Step::GiveUp => !self.waiting.is_empty(),
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Send => {
                let id = self.next_id;
                self.next_id += 1;
                self.send(id);
            }
            Step::Arrive(i) => {
                let message = self.to_server.remove(i);
                self.serve(message);
            }
            Step::Duplicate(i) => self.to_server.push(self.to_server[i].clone()),
            Step::LoseRequest(i) => {
                self.to_server.remove(i);
            }
            Step::Finish(i) => {
                let Running { request, sequenced, id } = self.running.remove(i);
                self.executed.push(id);
                let bytes = reply(sequenced.result, id, self.reply_size);
                self.state.finish(sequenced.token, Some(&bytes));
                self.to_client.push(Message { bytes, ..request });
            }
            Step::Reply(i) => {
                let message = self.to_client.remove(i);
                self.take(message);
            }
            Step::Break => {
                self.connection += 1;
                self.to_client.clear();
                for i in 0..self.waiting.len() {
                    self.transmit(i);
                }
            }
            Step::GiveUp => {
                let waiting = self.waiting.remove(0);
                self.session.give_up(waiting.ticket, true);
                self.given_up.push(waiting.id);
            }
        }
        self.check();
    }

    fn send(&mut self, id: u8) {
        let ticket = self.session.acquire().expect("a free slot");
        let bytes = encode(&self.session, ticket, id, self.once);
        self.waiting.push(Waiting { id, ticket, bytes, xid: 0 });
        self.transmit(self.waiting.len() - 1);
    }

    fn transmit(&mut self, i: usize) {
        self.next_xid += 1;
        self.waiting[i].xid = self.next_xid;
        let bytes = self.waiting[i].bytes.clone();
        self.to_server.push(Message { connection: self.connection, xid: self.next_xid, bytes });
    }

    fn serve(&mut self, request: Message) {
        let (args, judged, id) = decode(&request.bytes);
        let bytes = match self.state.sequence(&args, judged, at(0)) {
            Ok(Sequence::New(sequenced)) => return self.running.push(Running { request, sequenced, id }),
            Ok(Sequence::Replay(bytes)) => bytes,
            Ok(Sequence::Uncached(result)) => uncached(result),
            Err(status) => refusal(status),
        };
        self.to_client.push(Message { bytes, ..request });
    }

    fn take(&mut self, message: Message) {
        if message.connection != self.connection {
            return;
        }
        let Some(i) = self.waiting.iter().position(|w| w.xid == message.xid) else { return };
        let waiting = self.waiting.remove(i);
        match self.session.replied(waiting.ticket, message.bytes, at(0)) {
            Outcome::Done { results, status, .. } => {
                let mut results = Results::new(results);
                results.done(OP_PUTFH).unwrap();
                let got: READLINK4resok = results.take(OP_READLINK).unwrap();
                results.finish().unwrap();
                assert_eq!(status, NFS4_OK);
                assert_eq!(got.link[0], waiting.id, "the reply to another request");
                self.answered.push(waiting.id);
            }
            Outcome::Wait => {
                self.waiting.push(waiting);
                self.transmit(self.waiting.len() - 1);
            }
            Outcome::Again => self.send(waiting.id),
            Outcome::Executed => {
                assert!(!self.once, "a reply that was to be kept is gone");
                self.gone.push(waiting.id);
            }
            other => panic!("{other:?}"),
        }
    }

    fn count(&self, id: u8) -> usize {
        self.executed.iter().filter(|e| **e == id).count()
    }

    fn check(&self) {
        for id in 0..self.next_id {
            assert!(self.count(id) <= 1, "request {id} was executed twice");
        }
        for id in self.answered.iter().chain(&self.gone) {
            assert_eq!(self.count(*id), 1, "request {id} was answered but never executed");
        }
    }

    /// Delivers all messages in order, until no request waits for a reply. Breaks the connection if a request waits and
    /// no message is in flight, so that the client sends the request again.
    fn settle(&mut self) {
        for _ in 0..20 {
            if self.waiting.is_empty() {
                break;
            }
            if self.to_server.is_empty() && self.running.is_empty() && self.to_client.is_empty() {
                self.apply(Step::Break);
            }
            while !self.to_server.is_empty() {
                self.apply(Step::Arrive(0));
            }
            while !self.running.is_empty() {
                self.apply(Step::Finish(0));
            }
            while !self.to_client.is_empty() {
                self.apply(Step::Reply(0));
            }
        }
        assert!(self.waiting.is_empty(), "a request is never answered");
        for id in 0..self.next_id {
            let ended = [&self.answered, &self.gone, &self.given_up];
            assert_eq!(ended.iter().map(|e| e.iter().filter(|x| **x == id).count()).sum::<usize>(), 1);
        }
    }
}

/// Runs every history of at most `depth` steps. At the end of each history, delivers the messages that are still in
/// flight. Returns the number of histories.
fn walk(world: &World, steps: &[Step], depth: u32, history: &mut Vec<Step>) -> u32 {
    let mut walked = 0;
    for step in steps.iter().filter(|s| world.enabled(**s)) {
        history.push(*step);
        let mut next = world.clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| next.apply(*step)));
        assert!(outcome.is_ok(), "after {history:?}");
        let below = if depth > 1 { walk(&next, steps, depth - 1, history) } else { 0 };
        if below == 0 {
            let outcome = catch_unwind(AssertUnwindSafe(|| next.settle()));
            assert!(outcome.is_ok(), "when settling after {history:?}");
        }
        walked += 1 + below;
        history.pop();
    }
    walked
}

const FAULTS: [Step; 8] = [
    Step::Send,
    Step::Arrive(0),
    Step::Arrive(1),
    Step::Duplicate(0),
    Step::LoseRequest(0),
    Step::Finish(0),
    Step::Reply(0),
    Step::Break,
];

#[test]
fn one_slot_with_cached_replies_executes_requests_exactly_once() {
    assert!(walk(&World::new(1, true, 1), &FAULTS, 9, &mut Vec::new()) > 10_000);
    assert!(walk(&World::new(1, true, 2000), &FAULTS, 7, &mut Vec::new()) > 1000);
}

#[test]
fn one_slot_with_uncached_replies_executes_requests_exactly_once() {
    assert!(walk(&World::new(1, false, 2000), &FAULTS, 8, &mut Vec::new()) > 1000);
}

#[test]
fn two_slots_execute_requests_exactly_once() {
    let steps = [FAULTS.as_slice(), &[Step::Finish(1), Step::Reply(1)]].concat();
    assert!(walk(&World::new(2, true, 1), &steps, 7, &mut Vec::new()) > 10_000);
}

#[test]
fn abandoned_requests_leave_the_slot_usable() {
    let steps = [FAULTS.as_slice(), &[Step::GiveUp]].concat();
    assert!(walk(&World::new(1, true, 1), &steps, 8, &mut Vec::new()) > 10_000);
}
