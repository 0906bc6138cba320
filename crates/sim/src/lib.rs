//! A whole cluster in one thread: the real mgr, iods and clients on a simulated clock, network and disks.
//!
//! Everything that happens follows from one seed: sizes, settings, the work of the clients, the faults, and every random
//! number. [`run()`] carries a seed out and checks what `docs/SEMANTICS.md` promises; `docs/TESTING.md` says what this
//! sees and what it cannot see.

mod checks;
mod cluster;
mod faults;
mod fsck;
mod hosts;
mod model;
mod names;
mod network;
mod older;
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
