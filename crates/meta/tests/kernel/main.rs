//! Differential test of permission checks: compares the namespace with the running kernel.
//!
//! The test builds the same tree in a scratch directory and in a namespace. It runs the same random operations as the
//! same users on both trees, and compares the results of the operations and the resulting trees.
//!
//! `WEIR_TEST_SCALE=full` runs 100,000 cases. `WEIR_TEST_SEED` sets the seed of the random numbers. The test needs root
//! to act as other users. Without root, it prints a message and checks nothing.

#[path = "../common/block.rs"]
mod block;
mod local;
mod namespace_side;
mod plan;
mod seeded_random;

use local::Local;
use namespace_side::NamespaceSide;
use plan::{Actor, Change, Op};
use seeded_random::SeededRandom;
use std::collections::BTreeMap;

/// Number of test cases that use the same tree. After these cases the test builds a new tree.
const CASES_OF_TREE: u64 = 60;

/// The attributes of a file that the test compares between kernel and namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    kind: char,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    /// Size in bytes of a regular file; 0 for other kinds.
    size: u64,
}

/// All files of a tree by path, relative to the scratch directory. The path of the scratch directory itself is empty.
pub type Tree = BTreeMap<String, Seen>;

/// The outcome of an operation: the names for a directory listing, an empty list for every other successful operation,
/// or an error.
pub type Answer = Result<Vec<String>, Errno>;

/// The errors that the comparison distinguishes, named after the POSIX error codes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs)] // the names are those of POSIX
pub enum Errno {
    Perm,
    Access,
    NoEnt,
    Exist,
    NotDir,
    IsDir,
    NotEmpty,
    Inval,
    Loop,
    Busy,
    Other(i32),
}

/// Returns whether two errors are equal, or differ in a way that SEMANTICS.md documents.
fn same_failure(op: &Op, kernel: Errno, ours: Errno) -> bool {
    let refusals = [Errno::Access, Errno::Perm];
    kernel == ours
        || match op {
            // Weir checks the file kind before the permission to remove the entry; the kernel checks the permission
            // first.
            Op::Unlink { .. } | Op::Rmdir { .. } => {
                matches!(ours, Errno::IsDir | Errno::NotDir) && refusals.contains(&kernel)
            }
            // If an operation has two paths and both fail, POSIX allows the error of either path.
            Op::Rename { .. } | Op::Link { .. } => {
                kernel == Errno::Access && matches!(ours, Errno::NotDir | Errno::NoEnt)
            }
            _ => false,
        }
}

/// How many times each operation ended with each outcome.
type Counts = BTreeMap<(&'static str, String), u64>;

/// Changes the permissions of a random file, runs a random operation in the kernel's tree and in the namespace, and
/// compares the outcomes. Skips operations that a sysctl of this machine may forbid.
fn case(random: &mut SeededRandom, kernel: &Local, ours: &NamespaceSide, counts: &mut Counts) {
    let before = kernel.tree();
    let change = Change::random(random, &before);
    kernel.change(&change);
    ours.change(&change);
    let before = kernel.tree();
    assert_eq!(before, ours.tree(), "after {change:?}");
    let (actor, op) = (Actor::random(random), Op::random(random, &before));
    if local::policy_refuses(&actor, &op, &before) {
        return;
    }
    let (theirs, mine) = (kernel.run(&actor, &op), ours.run(&actor, &op));
    let told = theirs.as_ref().map_or_else(|e| format!("{e:?}"), |_| "ok".into());
    *counts.entry((op.name(), told)).or_default() += 1;
    let agree = match (&theirs, &mine) {
        (Ok(a), Ok(b)) => a == b,
        (Err(a), Err(b)) => same_failure(&op, *a, *b),
        _ => false,
    };
    assert!(agree, "{actor:?} {op:?}: the kernel says {theirs:?}, the namespace {mine:?}\nin {before:#?}");
    assert_eq!(kernel.tree(), ours.tree(), "{actor:?} {op:?} left something else (kernel left)\nin {before:#?}");
}

#[test]
fn the_namespace_decides_as_the_kernel_does() {
    let Some(scratch) = local::Scratch::new() else {
        println!("not checked: only root can try what other users may do");
        return;
    };
    let full = std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let cases = if full { 100_000 } else { 4_000 };
    let seed = std::env::var("WEIR_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64));
    println!("WEIR_TEST_SEED={seed}, {cases} cases");
    let mut counts = Counts::new();
    let succeeded = |counts: &Counts, op: &'static str| counts.contains_key(&(op, "ok".into()));
    for tree in 0.. {
        // Some operations seldom succeed, so run more cases until each operation has succeeded at least once.
        let all = plan::NAMES.iter().all(|op| succeeded(&counts, op));
        let done: u64 = counts.values().sum();
        if done >= cases && (all || done >= 20 * cases) {
            break;
        }
        let mut random = SeededRandom::new(seed.wrapping_add(tree));
        let kernel = scratch.fresh(tree);
        let ours = NamespaceSide::fresh();
        plan::first_tree().iter().for_each(|make| {
            kernel.make(make);
            ours.make(make);
        });
        for _ in 0..CASES_OF_TREE {
            case(&mut random, &kernel, &ours, &mut counts);
        }
    }
    for ((op, told), count) in &counts {
        println!("{op:>10} {told:<10} {count}");
    }
    // The test is only meaningful if every operation has succeeded at least once and failed at least once.
    for op in plan::NAMES {
        assert!(succeeded(&counts, op), "{op} never succeeded");
    }
}
