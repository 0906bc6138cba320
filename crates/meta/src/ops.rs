//! The operations on the namespace, one in each file. An operation is a pure function: it reads a view of the store and
//! builds a batch.

pub(crate) mod access;
pub(crate) mod create;
pub(crate) mod doomed;
pub(crate) mod fence;
pub(crate) mod files;
pub(crate) mod forget_doomed;
pub(crate) mod getxattr;
pub(crate) mod info;
pub(crate) mod intents;
pub(crate) mod link;
pub(crate) mod listxattr;
pub(crate) mod lookup;
pub(crate) mod lookup_parent;
pub(crate) mod mkdir;
pub(crate) mod mknod;
pub(crate) mod names;
pub(crate) mod orphans;
pub(crate) mod policy;
pub(crate) mod raise_generation;
pub(crate) mod read_inline;
pub(crate) mod readdir;
pub(crate) mod readlink;
pub(crate) mod reap;
pub(crate) mod registry;
pub(crate) mod remove;
pub(crate) mod removexattr;
pub(crate) mod rename;
pub(crate) mod repair;
pub(crate) mod set_layout;
pub(crate) mod set_size;
pub(crate) mod setattr;
pub(crate) mod setxattr;
pub(crate) mod statfs;
pub(crate) mod swap_layout;
pub(crate) mod symlink;
pub(crate) mod unused;
pub(crate) mod write_inline;

use crate::tx::Settled;
use types::Status;

/// A closure that computes the result of an operation from the results of the merges in the operation's committed
/// batch.
pub(crate) type Answer<T> = Box<dyn FnOnce(&Settled) -> Result<T, Status> + Send>;

/// The plan of an operation that changes the namespace. The transaction contains the batch of the operation. The
/// closure in the plan computes the operation's result after the commit.
pub(crate) type Plan<T> = Result<Answer<T>, Status>;

/// Returns a plan for an operation whose result does not depend on the committed batch.
pub(crate) fn known<T: Send + 'static>(value: T) -> Plan<T> {
    Ok(Box::new(move |_| Ok(value)))
}
