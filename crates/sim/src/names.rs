//! A linearizability checker for names: it searches for an order of the operations that explains every answer.
//!
//! An operation takes effect at one moment between its request and its answer. If an operation has no answer, or its
//! answer leaves the effect unknown, it takes effect at any later moment or never. So the checker finds no order if an
//! operation took effect twice, or if it took effect and its answer says that it did not.
//!
//! `docs/SEMANTICS.md` allows two exceptions. First, an mgr that dies before it answers a creation forgets that it
//! executed the request, and the client creates the file again. If another client has renamed or removed the first
//! file before the second creation, the client has created two files.
//!
//! Second, a power loss of the mgr's host may lose a file that was created without waiting for durability. The file is
//! safe after a sync or close of the file, or after a later durable creation or removal in its directory.

use crate::model::Moment;
use std::collections::{BTreeMap, HashSet};
use types::Renaming;

/// Maximum number of search states that one search visits. After this number, the search ends without a verdict.
const NODES_MAX: usize = 200_000;
/// Maximum number of operations in one directory for which the checker can search an order.
pub const OPERATIONS_MAX: usize = 128;

/// A request that concerns the names in one directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameRequest {
    /// Create a file. With `exclusive`, the request fails if the name exists.
    Create { name: u8, exclusive: bool },
    /// Make a directory.
    Mkdir { name: u8 },
    /// Remove a file or an empty directory.
    Remove { name: u8 },
    /// Rename a file or directory, or exchange two names.
    Rename { from: u8, to: u8, how: Renaming },
    /// Add a hard link `to` to a file.
    Link { file: u64, to: u8 },
    /// Look up a name.
    Lookup { name: u8 },
    /// List all names of the directory. Only the final checks send this request, after all clients have ended.
    List,
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameReply {
    /// The request succeeded. The number identifies the file that the answer names; `None` if the answer names none.
    Ok(Option<u64>),
    /// The request failed, because the name already exists.
    Exists,
    /// The request failed, because the name does not exist.
    Missing,
    /// The names in the directory, each with the number of its file.
    Names(BTreeMap<u8, u64>),
    /// The client has received no answer, or an answer that does not say whether the operation took effect.
    Unknown,
}

/// A request of a client and the answer to it.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The host number of the client, for messages.
    #[allow(dead_code)]
    pub client: u64,
    /// The request of the client.
    pub ask: NameRequest,
    /// The point, in the order of events, at which the client sent the request.
    pub began: Moment,
    /// The point, in the order of events, at which the answer arrived; `None` if no answer arrived.
    pub ended: Option<Moment>,
    /// The answer to this request.
    pub reply: NameReply,
    /// Whether the operation created its file without waiting for durability.
    pub unsynced: bool,
    /// The time, as a position in the sequence of all events of the run, at which a sync or close confirmed that the
    /// created file is durable; `None` if no sync or close did.
    pub kept: Option<Moment>,
}

impl Operation {
    /// Returns an operation that began at `began` and whose answer has not arrived yet.
    pub fn new(client: u64, ask: NameRequest, began: Moment) -> Self {
        Operation { client, ask, began, ended: None, reply: NameReply::Unknown, unsynced: false, kept: None }
    }

    /// Returns whether the answer to this operation implies durability: all operations that were answered before this
    /// operation began are then durable.
    fn is_durable(&self) -> bool {
        matches!(self.ask, NameRequest::Mkdir { .. } | NameRequest::Remove { .. })
            && matches!(self.reply, NameReply::Ok(_))
    }
}

/// The lowest file number that the checker itself assigns. It assigns a number to a file whose creation got no answer,
/// because no client has received the real number of the file.
const UNREPORTED: u64 = 1 << 63;

/// The names in a directory, each with the number of its file. A file whose creation got no answer has a number of
/// [`UNREPORTED`] or more.
type State = BTreeMap<u8, u64>;

fn same(here: u64, told: u64) -> bool {
    here == told || here >= UNREPORTED
}

/// Returns the names after `operation`, if the operation can take effect on the names in `state` and give its recorded
/// answer.
fn step(state: &State, index: usize, operation: &Operation) -> Option<State> {
    let mut next = state.clone();
    let known = operation.reply != NameReply::Unknown;
    let answer = match &operation.ask {
        NameRequest::Create { name, exclusive } => match state.get(name) {
            Some(_) if *exclusive => NameReply::Exists,
            Some(file) => NameReply::Ok(Some(*file)),
            None => {
                let file = match operation.reply {
                    NameReply::Ok(Some(file)) => file,
                    _ => UNREPORTED + index as u64,
                };
                next.insert(*name, file);
                NameReply::Ok(Some(file))
            }
        },
        NameRequest::Mkdir { name } if state.contains_key(name) => NameReply::Exists,
        NameRequest::Mkdir { name } => {
            let file = match operation.reply {
                NameReply::Ok(Some(file)) => file,
                _ => UNREPORTED + index as u64,
            };
            next.insert(*name, file);
            NameReply::Ok(Some(file))
        }
        NameRequest::Remove { name } => match next.remove(name) {
            Some(_) => NameReply::Ok(None),
            None => NameReply::Missing,
        },
        NameRequest::Rename { from, to, how } => match (state.get(from), state.get(to)) {
            (None, _) => NameReply::Missing,
            (Some(_), None) if *how == Renaming::Exchange => NameReply::Missing,
            (Some(_), Some(_)) if *how == Renaming::NoReplace => NameReply::Exists,
            (Some(file), Some(other)) if *how == Renaming::Exchange => {
                next.insert(*from, *other);
                next.insert(*to, *file);
                NameReply::Ok(None)
            }
            (Some(file), _) => {
                if from != to && state.get(to) != Some(file) {
                    next.remove(from);
                    next.insert(*to, *file);
                }
                NameReply::Ok(None)
            }
        },
        NameRequest::Link { .. } if matches!(operation.reply, NameReply::Missing) => NameReply::Missing,
        NameRequest::Link { file, to } => match state.get(to) {
            Some(_) => NameReply::Exists,
            None => {
                next.insert(*to, *file);
                NameReply::Ok(None)
            }
        },
        NameRequest::Lookup { name } => match state.get(name) {
            Some(file) => NameReply::Ok(Some(*file)),
            None => NameReply::Missing,
        },
        NameRequest::List => NameReply::Names(state.clone()),
    };
    let fits = match (&answer, &operation.reply) {
        (NameReply::Ok(Some(here)), NameReply::Ok(Some(told))) => same(*here, *told),
        (NameReply::Names(here), NameReply::Names(told)) => {
            here.len() == told.len() && here.iter().zip(told).all(|((a, here), (b, told))| a == b && same(*here, *told))
        }
        (answer, reply) => answer == reply,
    };
    (!known || fits).then_some(next)
}

/// The result of a search that did not find a contradiction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// An order of the operations explains all answers.
    Explained,
    /// The search ended without a verdict, because the number of possible orders is too large.
    GivenUp,
}

/// An event that the checker orders: an operation, the first of two executions of a creation, or the loss of a file. An
/// event with an answer happens once; an event without an answer happens once or never.
struct Part {
    operation: Operation,
    /// Set for the first of two executions of one creation: the mgr executed the creation, and died before it
    /// answered. The value is the index of the second execution, to which the mgr sent an answer.
    again: Option<usize>,
    /// Set for the loss of a created file. The value is the index of the creation.
    lost: Option<usize>,
}

/// All events that the checker orders.
struct Parts {
    all: Vec<Part>,
    /// The set of events that have an answer, with one bit for each index. Every event in this set has happened.
    answered: u128,
}

impl Parts {
    fn new(operations: &[Operation], (mgr_deaths, power_cuts): (&[Moment], &[Moment])) -> Self {
        // Ignore lookups and lists that have no answer, because they do not restrict the possible orders of the other
        // operations.
        let tells = |op: &&Operation| {
            op.reply != NameReply::Unknown || !matches!(op.ask, NameRequest::Lookup { .. } | NameRequest::List)
        };
        let mut operations: Vec<&Operation> = operations.iter().filter(tells).collect();
        operations.sort_by_key(|op| op.began);
        let mut all: Vec<Part> = Vec::new();
        for operation in operations {
            all.push(Part { operation: operation.clone(), again: None, lost: None });
            let last = all.len() - 1;
            let span = operation.began..operation.ended.unwrap_or(Moment::MAX);
            for death in mgr_deaths.iter().filter(|_| matches!(operation.ask, NameRequest::Create { .. })) {
                if span.contains(death) {
                    let earlier = Operation { ended: Some(*death), reply: NameReply::Unknown, ..operation.clone() };
                    all.push(Part { operation: earlier, again: Some(last), lost: None });
                }
            }
        }
        Self::add_losses(&mut all, power_cuts);
        let took_place = all.iter().enumerate().filter(|(_, part)| part.operation.reply != NameReply::Unknown);
        let answered = took_place.fold(0, |set, (i, _)| set | 1u128.checked_shl(i as u32).unwrap_or(0));
        Parts { all, answered }
    }

    /// Adds a possible loss for each file that was created without waiting for durability, because a power loss may
    /// lose this file.
    fn add_losses(all: &mut Vec<Part>, power_cuts: &[Moment]) {
        for made in 0..all.len() {
            let Part { operation: making, again, .. } = &all[made];
            // After a sync or close has confirmed that the created file is durable, a power loss cannot lose the file.
            let is_kept = making.kept.is_some() && again.is_none();
            if is_kept || !(making.unsynced && matches!(making.ask, NameRequest::Create { .. })) {
                continue;
            }
            let answered = making.ended.filter(|_| making.reply != NameReply::Unknown).unwrap_or(Moment::MAX);
            let after = all.iter().map(|part| &part.operation).filter(|other| other.began > answered);
            let settled = after.filter(|other| other.is_durable()).filter_map(|other| other.ended).min();
            let span = making.began..settled.unwrap_or(Moment::MAX);
            let cuts = power_cuts.iter().filter(|cut| span.contains(cut));
            let loss = |cut: &Moment| Operation {
                began: *cut,
                ended: Some(*cut),
                reply: NameReply::Unknown,
                ..making.clone()
            };
            let losses: Vec<Operation> = cuts.map(loss).collect();
            all.extend(losses.into_iter().map(|operation| Part { operation, again: None, lost: Some(made) }));
        }
    }

    /// Returns the names after the event `index`, if the event can happen with the names in `state`.
    fn step(&self, state: &State, index: usize) -> Option<State> {
        let Part { operation, lost, .. } = &self.all[index];
        let Some(made) = *lost else { return step(state, index, operation) };
        let (NameRequest::Create { name, .. }, making) = (&operation.ask, &self.all[made].operation) else {
            return None;
        };
        let file = match making.reply {
            NameReply::Ok(Some(file)) => file,
            _ => UNREPORTED + made as u64,
        };
        let mut next = state.clone();
        (next.remove(name) == Some(file)).then_some(next)
    }

    /// Returns the events that may follow the events in `done`. The last event in the list has the earliest answer, so
    /// the search tries it first.
    fn ready(&self, done: u128) -> Vec<usize> {
        let is_done = |i: usize| done & (1 << i) != 0;
        let part = |i: usize| &self.all[i].operation;
        // An event that began after the answer to another event cannot precede this other event.
        let missing = (0..self.all.len()).filter(|i| self.answered & !done & (1 << i) != 0);
        let horizon = missing.filter_map(|i| part(i).ended).min().unwrap_or(Moment::MAX);
        let latest = (0..self.all.len()).filter(|i| is_done(*i)).map(|i| part(i).began).max();
        // The first of two executions of a creation ends at the death of the mgr, and the loss of a file happens at the
        // power loss. So neither may follow an event that began later. One power loss may lose several files.
        let in_time = |i: usize| latest.is_none_or(|latest| part(i).ended.is_none_or(|ended| latest <= ended));
        let still = |i: usize| self.all[i].again.is_none_or(|answered| !is_done(answered) && in_time(i));
        let there = |i: usize| self.all[i].lost.is_none_or(|made| is_done(made) && in_time(i));
        let mut ready: Vec<usize> = (0..self.all.len()).filter(|i| !is_done(*i) && still(*i) && there(*i)).collect();
        ready.retain(|i| part(*i).began < horizon);
        // Sort events by decreasing answer time, with unanswered events first. The search tries the last event first.
        ready.sort_by_key(|i| std::cmp::Reverse((part(*i).reply == NameReply::Unknown, part(*i).ended)));
        ready
    }

    fn left(&self, done: u128) -> String {
        let is_own = |i: &usize| self.all[*i].again.is_none() && self.all[*i].lost.is_none();
        let left = (0..self.all.len()).filter(|i| done & (1 << i) == 0 && is_own(i));
        left.take(6).map(|i| format!("{:?}", self.all[i].operation)).collect::<Vec<_>>().join("; ")
    }
}

/// The points, in the order of events, at which the mgr died, and those at which the mgr's host lost power.
pub type Ends<'a> = (&'a [Moment], &'a [Moment]);

/// Searches for an order that explains all operations in one directory, which was empty at the start of the run. If
/// there is no such order, returns a description of the longest order that explains some of the operations.
pub fn explain(operations: &[Operation], ends: Ends<'_>) -> Result<Search, String> {
    explain_within(NODES_MAX, operations, ends)
}

fn explain_within(nodes: usize, operations: &[Operation], ends: Ends<'_>) -> Result<Search, String> {
    if operations.len() > OPERATIONS_MAX {
        return Err(format!("{} operations are too many to be searched", operations.len()));
    }
    let parts = Parts::new(operations, ends);
    if parts.all.len() > u128::BITS as usize {
        return Ok(Search::GivenUp);
    }
    let mut seen: HashSet<(u128, State)> = HashSet::new();
    let mut stack = vec![(0u128, State::new())];
    let mut farthest = (0, 0u128, State::new());
    while let Some((done, state)) = stack.pop() {
        if done & parts.answered == parts.answered {
            return Ok(Search::Explained);
        }
        if seen.len() > nodes {
            return Ok(Search::GivenUp);
        }
        let count = (done & parts.answered).count_ones();
        if count >= farthest.0 {
            farthest = (count, done, state.clone());
        }
        for i in parts.ready(done) {
            if let Some(next) = parts.step(&state, i) {
                let node = (done | 1 << i, next);
                if seen.insert(node.clone()) {
                    stack.push(node);
                }
            }
        }
    }
    let (_, done, state) = farthest;
    Err(format!("no order explains the names: after {state:?} none of these fits: {}", parts.left(done)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(ask: NameRequest, span: (Moment, Option<Moment>), reply: NameReply) -> Operation {
        Operation { ended: span.1, reply, ..Operation::new(0, ask, span.0) }
    }

    fn create(span: (Moment, Option<Moment>), reply: NameReply) -> Operation {
        op(NameRequest::Create { name: 1, exclusive: true }, span, reply)
    }

    fn remove(span: (Moment, Option<Moment>), reply: NameReply) -> Operation {
        op(NameRequest::Remove { name: 1 }, span, reply)
    }

    fn plain(operations: &[Operation]) -> Result<Search, String> {
        explain(operations, (&[], &[]))
    }

    fn ok(file: u64) -> NameReply {
        NameReply::Ok(Some(file))
    }

    #[test]
    fn one_of_two_exclusive_creates_wins() {
        let at = |a, b| (a, Some(b));
        assert!(plain(&[create(at(1, 4), ok(7)), create(at(2, 3), NameReply::Exists)]).is_ok());
        assert!(plain(&[create(at(1, 4), ok(7)), create(at(2, 3), ok(8))]).is_err());
        assert!(plain(&[create(at(1, 2), NameReply::Exists)]).is_err());
        let between = remove(at(2, 5), NameReply::Ok(None));
        assert!(plain(&[create(at(1, 4), ok(7)), create(at(2, 3), ok(8)), between]).is_ok());
    }

    #[test]
    fn an_operation_in_doubt_happens_once_or_never() {
        let gone = (5, None);
        let made = create((1, Some(2)), ok(7));
        let lost = remove(gone, NameReply::Unknown);
        let found = |at, reply| op(NameRequest::Lookup { name: 1 }, (at, Some(at + 1)), reply);
        assert!(plain(&[made.clone(), lost.clone(), found(6, ok(7)), found(8, NameReply::Missing)]).is_ok());
        assert!(plain(&[made.clone(), lost.clone(), found(6, ok(7))]).is_ok());
        assert!(plain(&[made.clone(), lost, found(6, NameReply::Missing), found(8, ok(7))]).is_err());
        // The mgr executes a retried REMOVE only once. Its reply to the retry contains the result of this one
        // execution.
        assert!(plain(&[made, remove((5, Some(9)), NameReply::Missing)]).is_err());
        let untold = create((1, None), NameReply::Unknown);
        assert!(plain(&[untold, found(3, ok(9)), found(5, ok(9))]).is_ok());
    }

    #[test]
    fn renames_replace_and_lists_show_all() {
        let make = |name, at, file| op(NameRequest::Create { name, exclusive: true }, (at, Some(at + 1)), ok(file));
        let rename =
            op(NameRequest::Rename { from: 1, to: 2, how: Renaming::Replace }, (5, Some(6)), NameReply::Ok(None));
        let list = |names: &[(u8, u64)]| {
            op(NameRequest::List, (7, Some(8)), NameReply::Names(names.iter().copied().collect()))
        };
        let history = [make(1, 1, 11), make(2, 3, 12), rename];
        assert!(plain(&[&history[..], &[list(&[(2, 11)])]].concat()).is_ok());
        assert!(plain(&[&history[..], &[list(&[(1, 11), (2, 12)])]].concat()).is_err());
        assert!(plain(&[&history[..], &[list(&[(2, 12)])]].concat()).is_err());
        let with = |how, to, reply| op(NameRequest::Rename { from: 1, to, how }, (5, Some(6)), reply);
        let history = |rename| [make(1, 1, 11), make(2, 3, 12), rename, list(&[(1, 12), (2, 11)])];
        assert!(plain(&history(with(Renaming::Exchange, 2, NameReply::Ok(None)))).is_ok());
        assert!(plain(&history(with(Renaming::Exchange, 3, NameReply::Missing))).is_err());
        assert!(plain(&history(with(Renaming::NoReplace, 2, NameReply::Ok(None)))).is_err());
        let kept = |rename| [make(1, 1, 11), make(2, 3, 12), rename, list(&[(1, 11), (2, 12)])];
        assert!(plain(&kept(with(Renaming::NoReplace, 2, NameReply::Exists))).is_ok());
        assert!(plain(&kept(with(Renaming::Exchange, 3, NameReply::Missing))).is_ok());
        assert!(plain(&kept(with(Renaming::Exchange, 2, NameReply::Ok(None)))).is_err());
    }

    #[test]
    fn a_file_may_be_created_twice_if_the_mgr_died_before_its_answer() {
        let rename = |at| {
            op(NameRequest::Rename { from: 1, to: 2, how: Renaming::Replace }, (at, Some(at + 1)), NameReply::Ok(None))
        };
        let list = |names: &[(u8, u64)]| {
            op(NameRequest::List, (20, Some(21)), NameReply::Names(names.iter().copied().collect()))
        };
        let twice = [create((1, Some(9)), ok(8)), rename(6), list(&[(1, 8), (2, 7)])];
        assert!(explain(&twice, (&[4], &[])).is_ok());
        // In these three cases, no order of the operations explains that one creation made two files: the mgr did not
        // die; the mgr died after it answered the creation; the rename of the first file began after this answer.
        assert!(explain(&twice, (&[], &[])).is_err());
        assert!(explain(&twice, (&[10], &[])).is_err());
        let late = [create((1, Some(9)), ok(8)), rename(10), list(&[(1, 8), (2, 7)])];
        assert!(explain(&late, (&[4], &[])).is_err());
        // A death of the mgr at time 4 cannot explain two executions of the creation: the lookup at time 5 would have
        // found the file of the first execution.
        let found = op(NameRequest::Lookup { name: 1 }, (5, Some(6)), NameReply::Missing);
        let thrice = [create((1, Some(9)), ok(8)), found, remove((7, Some(8)), NameReply::Ok(None)), list(&[(1, 8)])];
        assert!(explain(&thrice, (&[4], &[])).is_err());
        // A death of the mgr at time 6 explains two executions of the creation: the mgr executed the creation after the
        // lookup at time 5 and died before it replied. The client sent the creation again after the restart of the mgr.
        assert!(explain(&thrice, (&[6], &[])).is_ok());
        // A death of the mgr explains only that a creation took effect twice, not that a removal did.
        let removed = [create((1, Some(2)), ok(7)), remove((3, Some(9)), NameReply::Missing)];
        assert!(explain(&removed, (&[5], &[])).is_err());
    }

    #[test]
    fn only_unsynced_files_may_be_lost_in_a_power_cut() {
        let soon = |kept| Operation { unsynced: true, kept, ..create((1, Some(2)), ok(7)) };
        let found = |at, reply| op(NameRequest::Lookup { name: 1 }, (at, Some(at + 1)), reply);
        let explained = |history: &[Operation], cuts: &[Moment]| explain(history, (&[], cuts)).is_ok();
        let gone = [found(3, ok(7)), found(8, NameReply::Missing)];
        assert!(explained(&[&[soon(None)], &gone[..]].concat(), &[6]));
        // One power loss may lose two files that were created without waiting for durability.
        let two = op(NameRequest::Create { name: 2, exclusive: false }, (2, Some(3)), ok(8));
        let second = Operation { unsynced: true, ..two };
        let neither = op(NameRequest::List, (8, Some(9)), NameReply::Names(BTreeMap::new()));
        assert!(explained(&[soon(None), second, neither], &[6]));
        // The checker must reject the loss of a file without a power loss, and a loss before the power loss. It must
        // also reject the loss of a file that was synced, or whose creation waited for durability.
        assert!(!explained(&[&[soon(None)], &gone[..]].concat(), &[]));
        assert!(!explained(&[&[soon(None)], &gone[..]].concat(), &[20]));
        assert!(!explained(&[&[soon(Some(5))], &gone[..]].concat(), &[6]));
        assert!(!explained(&[&[soon(Some(7))], &gone[..]].concat(), &[6]));
        assert!(!explained(&[&[create((1, Some(2)), ok(7))], &gone[..]].concat(), &[6]));
        // The checker must reject a history in which a lookup finds the lost file again, and a history in which a
        // lookup misses the file before the power loss.
        assert!(!explained(&[soon(None), found(8, NameReply::Missing), found(10, ok(7))], &[6]));
        assert!(!explained(&[soon(None), found(4, NameReply::Missing)], &[6]));
        // A file that was created without waiting for durability becomes durable with a later durable creation in its
        // directory, or with its own rename.
        let other = op(NameRequest::Mkdir { name: 2 }, (3, Some(4)), ok(8));
        assert!(!explained(&[soon(None), other, found(8, NameReply::Missing)], &[6]));
        let renamed =
            op(NameRequest::Rename { from: 1, to: 3, how: Renaming::Replace }, (3, Some(4)), NameReply::Ok(None));
        let there = op(NameRequest::Lookup { name: 3 }, (8, Some(9)), NameReply::Missing);
        assert!(!explained(&[soon(None), renamed, there], &[6]));
        // The checker must accept that a power loss before the answer to a creation loses the created file.
        assert!(explained(&[Operation { ended: Some(9), ..soon(None) }, found(10, NameReply::Missing)], &[6]));
        // A second creation of the same name can make a new file only if a power loss has lost the first file.
        let again = Operation { began: 10, ended: Some(11), ..create((10, Some(11)), ok(9)) };
        assert!(explained(&[soon(None), again.clone()], &[6]));
        assert!(!explained(&[soon(None), again], &[]));
    }

    #[test]
    fn a_search_with_too_many_orders_is_given_up() {
        let many = |reply: NameReply| (0..40).map(move |i| create((i, None), reply.clone())).collect::<Vec<_>>();
        let impossible = remove((50, Some(51)), NameReply::Missing);
        let contradiction = [create((41, Some(42)), ok(7)), impossible];
        let removals = (0..40).map(|i| remove((i, None), NameReply::Unknown));
        let lost: Vec<Operation> = many(NameReply::Unknown).into_iter().chain(removals).collect();
        let open = [
            &lost[..],
            &contradiction[..],
            &[op(NameRequest::List, (60, Some(61)), NameReply::Names([(3, 9)].into()))],
        ]
        .concat();
        assert_eq!(explain_within(1000, &open, (&[], &[])), Ok(Search::GivenUp));
    }
}
