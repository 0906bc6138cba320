//! A deterministic simulator of a whole cluster in one thread.
//!
//! The simulator runs the code of the real mgr, iods and clients. It simulates the clock, the network and the disks.
//!
//! One seed determines everything: sizes, settings, the operations of the clients, the faults, and every random number.
//! [`run()`] runs a seed and checks the promises of `docs/SEMANTICS.md`. `docs/TESTING.md` says which bugs the
//! simulator can find and which it cannot.

mod checks;
mod cluster;
mod faults;
mod fsck;
mod hosts;
mod model;
mod names;
mod network;
mod old_images;
pub mod plan;
mod pool;
pub mod random;
mod run;
mod storage;
pub mod trace;
mod watch;
mod workload;

pub use pool::Pool;
pub use run::{Focus, Verdict, run, run_plan};
