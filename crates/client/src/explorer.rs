//! The explorer of unit tests: walks every short history of calls on a pure state machine.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Walks every history of up to `depth` calls from a small alphabet. `apply` returns `false` if the call is impossible
/// in this state; the histories that continue with it are skipped. A panic in `apply` ends the walk and prints its
/// history. Returns the number of possible histories.
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
