//! The explorer of unit tests: executes every short sequence of calls (history) on a pure state machine.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Executes every history of at most `depth` calls, where each call is one of `calls`, and returns the number of
/// possible histories.
///
/// `apply` executes one call; it returns `false` if the call is impossible in this state, which excludes all histories
/// that begin in this way. If `apply` panics, the function prints the history and passes the panic on.
pub(crate) fn walk<W: Clone, C: Copy + Debug>(
    world: &W,
    calls: &[C],
    depth: u32,
    apply: impl Fn(&mut W, C) -> bool + Copy,
) -> u64 {
    walk_from(world, calls, depth, apply, &mut Vec::new())
}

fn walk_from<W: Clone, C: Copy + Debug>(
    world: &W,
    calls: &[C],
    depth: u32,
    apply: impl Fn(&mut W, C) -> bool + Copy,
    history: &mut Vec<C>,
) -> u64 {
    let mut count = 0;
    for call in calls {
        history.push(*call);
        let mut next = world.clone();
        let possible = catch_unwind(AssertUnwindSafe(|| apply(&mut next, *call))).unwrap_or_else(|panic| {
            eprintln!("after {history:?}");
            resume_unwind(panic)
        });
        if possible {
            count += 1;
            if depth > 1 {
                count += walk_from(&next, calls, depth - 1, apply, history);
            }
        }
        history.pop();
    }
    count
}
