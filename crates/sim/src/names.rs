//! Whether what clients were told about names can have happened in some order: a search for one that explains it all.
//!
//! An operation takes place at one moment between its beginning and its answer. One whose answer never came, or that
//! failed for a reason which leaves it open, takes place at any later moment or never. So an operation that took place
//! twice, or was denied although it took place, finds no explanation.

use crate::model::Moment;
use std::collections::{BTreeMap, HashSet};

/// Nodes of the search before it is given up without a verdict.
const NODES_MAX: usize = 200_000;
/// Operations of one directory that can be searched.
pub const OPERATIONS_MAX: usize = 128;

/// What was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Make a file; `exclusive`: only if the name is free.
    Create { name: u8, exclusive: bool },
    /// Make a directory.
    Mkdir { name: u8 },
    /// Remove a file or an empty directory.
    Remove { name: u8 },
    /// Rename.
    Rename { from: u8, to: u8 },
    /// Give the file of one name another one.
    Link { file: u64, to: u8 },
    /// Look a name up.
    Lookup { name: u8 },
    /// List everything, while nobody else changes anything.
    List,
}

/// What was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// Done; with the number of the file where one is told.
    Ok(Option<u64>),
    /// The name is taken.
    Exists,
    /// There is no such name.
    Missing,
    /// These names and files.
    Names(BTreeMap<u8, u64>),
    /// Nothing that would tell whether it was done.
    Unknown,
}

/// An operation with its answer.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Who asked, for those who read about it.
    #[allow(dead_code)]
    pub client: u64,
    /// What.
    pub ask: Ask,
    /// When.
    pub began: Moment,
    /// When it was answered; `None` for never.
    pub ended: Option<Moment>,
    /// What was answered.
    pub said: Said,
}

/// A file whose number nobody was told.
const UNTOLD: u64 = 1 << 63;

/// Names and their files; files that were made in doubt have numbers from [`UNTOLD`] on.
type State = BTreeMap<u8, u64>;

fn same(here: u64, told: u64) -> bool {
    here == told || here >= UNTOLD
}

/// The state after the operation, if it can have taken place in this one with this answer.
fn step(state: &State, index: usize, operation: &Operation) -> Option<State> {
    let mut next = state.clone();
    let known = operation.said != Said::Unknown;
    let answer = match &operation.ask {
        Ask::Create { name, exclusive } => match state.get(name) {
            Some(_) if *exclusive => Said::Exists,
            Some(file) => Said::Ok(Some(*file)),
            None => {
                let file = match operation.said {
                    Said::Ok(Some(file)) => file,
                    _ => UNTOLD + index as u64,
                };
                next.insert(*name, file);
                Said::Ok(Some(file))
            }
        },
        Ask::Mkdir { name } if state.contains_key(name) => Said::Exists,
        Ask::Mkdir { name } => {
            let file = match operation.said {
                Said::Ok(Some(file)) => file,
                _ => UNTOLD + index as u64,
            };
            next.insert(*name, file);
            Said::Ok(Some(file))
        }
        Ask::Remove { name } => match next.remove(name) {
            Some(_) => Said::Ok(None),
            None => Said::Missing,
        },
        Ask::Rename { from, to } => match state.get(from) {
            None => Said::Missing,
            Some(file) => {
                if from != to && state.get(to) != Some(file) {
                    next.remove(from);
                    next.insert(*to, *file);
                }
                Said::Ok(None)
            }
        },
        Ask::Link { .. } if matches!(operation.said, Said::Missing) => Said::Missing,
        Ask::Link { file, to } => match state.get(to) {
            Some(_) => Said::Exists,
            None => {
                next.insert(*to, *file);
                Said::Ok(None)
            }
        },
        Ask::Lookup { name } => match state.get(name) {
            Some(file) => Said::Ok(Some(*file)),
            None => Said::Missing,
        },
        Ask::List => Said::Names(state.clone()),
    };
    let fits = match (&answer, &operation.said) {
        (Said::Ok(Some(here)), Said::Ok(Some(told))) => same(*here, *told),
        (Said::Names(here), Said::Names(told)) => {
            here.len() == told.len() && here.iter().zip(told).all(|((a, here), (b, told))| a == b && same(*here, *told))
        }
        (answer, said) => answer == said,
    };
    (!known || fits).then_some(next)
}

/// Searches for an order that explains all operations of one directory, which was empty at first. Tells how far it came
/// when there is none.
pub fn explain(operations: &[Operation]) -> Result<(), String> {
    let mut operations: Vec<&Operation> = operations.iter().collect();
    // What only looks and was not answered says nothing.
    operations.retain(|op| op.said != Said::Unknown || !matches!(op.ask, Ask::Lookup { .. } | Ask::List));
    operations.sort_by_key(|op| op.began);
    if operations.len() > OPERATIONS_MAX {
        return Err(format!("{} operations are too many to be searched", operations.len()));
    }
    let all_answered = operations.iter().enumerate().filter(|(_, op)| op.said != Said::Unknown);
    let goal = all_answered.fold(0u128, |set, (i, _)| set | 1 << i);
    let mut seen: HashSet<(u128, State)> = HashSet::new();
    let mut stack = vec![(0u128, State::new())];
    let mut farthest = (0, 0u128, State::new());
    while let Some((done, state)) = stack.pop() {
        if done & goal == goal || seen.len() > NODES_MAX {
            return Ok(());
        }
        let count = (done & goal).count_ones();
        if count >= farthest.0 {
            farthest = (count, done, state.clone());
        }
        let open = |i: &usize| done & (1 << i) == 0;
        // Nothing can come after an answer that was given before it was asked for.
        let unanswered = (0..operations.len()).filter(open).filter(|i| operations[*i].said != Said::Unknown);
        let horizon = unanswered.filter_map(|i| operations[i].ended).min().unwrap_or(Moment::MAX);
        let mut ready: Vec<usize> =
            (0..operations.len()).filter(open).filter(|i| operations[*i].began < horizon).collect();
        // What was answered first is tried first, what is in doubt last.
        ready.sort_by_key(|i| (operations[*i].said == Said::Unknown, operations[*i].ended));
        for i in ready.into_iter().rev() {
            if let Some(next) = step(&state, i, operations[i]) {
                let node = (done | 1 << i, next);
                if seen.insert(node.clone()) {
                    stack.push(node);
                }
            }
        }
    }
    let (_, done, state) = farthest;
    let left: Vec<String> = (0..operations.len())
        .filter(|i| done & (1 << i) == 0)
        .take(6)
        .map(|i| format!("{:?}", operations[i]))
        .collect();
    Err(format!("no order explains the names: after {state:?} none of these fits: {}", left.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(ask: Ask, span: (Moment, Option<Moment>), said: Said) -> Operation {
        Operation { client: 0, ask, began: span.0, ended: span.1, said }
    }

    fn create(span: (Moment, Option<Moment>), said: Said) -> Operation {
        op(Ask::Create { name: 1, exclusive: true }, span, said)
    }

    fn remove(span: (Moment, Option<Moment>), said: Said) -> Operation {
        op(Ask::Remove { name: 1 }, span, said)
    }

    fn ok(file: u64) -> Said {
        Said::Ok(Some(file))
    }

    #[test]
    fn one_of_two_exclusive_creates_wins() {
        let at = |a, b| (a, Some(b));
        assert!(explain(&[create(at(1, 4), ok(7)), create(at(2, 3), Said::Exists)]).is_ok());
        assert!(explain(&[create(at(1, 4), ok(7)), create(at(2, 3), ok(8))]).is_err());
        assert!(explain(&[create(at(1, 2), Said::Exists)]).is_err());
        let between = remove(at(2, 5), Said::Ok(None));
        assert!(explain(&[create(at(1, 4), ok(7)), create(at(2, 3), ok(8)), between]).is_ok());
    }

    #[test]
    fn what_is_in_doubt_happens_once_or_never() {
        let gone = (5, None);
        let made = create((1, Some(2)), ok(7));
        let lost = remove(gone, Said::Unknown);
        let found = |at, said| op(Ask::Lookup { name: 1 }, (at, Some(at + 1)), said);
        assert!(explain(&[made.clone(), lost.clone(), found(6, ok(7)), found(8, Said::Missing)]).is_ok());
        assert!(explain(&[made.clone(), lost.clone(), found(6, ok(7))]).is_ok());
        assert!(explain(&[made.clone(), lost, found(6, Said::Missing), found(8, ok(7))]).is_err());
        // Carried out twice: the answer to the second is told for the first.
        assert!(explain(&[made, remove((5, Some(9)), Said::Missing)]).is_err());
        let untold = create((1, None), Said::Unknown);
        assert!(explain(&[untold, found(3, ok(9)), found(5, ok(9))]).is_ok());
    }

    #[test]
    fn renames_replace_and_lists_show_all() {
        let make = |name, at, file| op(Ask::Create { name, exclusive: true }, (at, Some(at + 1)), ok(file));
        let rename = op(Ask::Rename { from: 1, to: 2 }, (5, Some(6)), Said::Ok(None));
        let list = |names: &[(u8, u64)]| op(Ask::List, (7, Some(8)), Said::Names(names.iter().copied().collect()));
        let history = [make(1, 1, 11), make(2, 3, 12), rename];
        assert!(explain(&[&history[..], &[list(&[(2, 11)])]].concat()).is_ok());
        assert!(explain(&[&history[..], &[list(&[(1, 11), (2, 12)])]].concat()).is_err());
        assert!(explain(&[&history[..], &[list(&[(2, 12)])]].concat()).is_err());
    }
}
