//! The mgr with real iods in one process: I/O on the direct path and the mgr path, layouts, failures, restarts, and the
//! mgr's port.

#[path = "volume/allocate.rs"]
mod allocate;
#[path = "volume/check.rs"]
mod check;
#[path = "volume/cluster.rs"]
mod cluster;
#[path = "volume/copy.rs"]
mod copy;
#[path = "volume/exports.rs"]
mod exports;
#[path = "volume/failures.rs"]
mod failures;
#[path = "../../iod/tests/serving/false_iod.rs"]
mod false_iod;
#[path = "volume/gather.rs"]
mod gather;
#[path = "volume/inline.rs"]
mod inline;
#[path = "volume/intents.rs"]
mod intents;
#[path = "volume/layouts.rs"]
mod layouts;
#[path = "volume/lengths.rs"]
mod lengths;
#[path = "volume/log_files.rs"]
mod log_files;
#[path = "volume/lost.rs"]
mod lost;
#[path = "volume/model.rs"]
mod model;
#[path = "volume/moves_in_place.rs"]
mod moves_in_place;
#[path = "volume/names.rs"]
mod names;
#[path = "volume/policy.rs"]
mod policy;
#[path = "volume/port.rs"]
mod port;
#[path = "volume/rights.rs"]
mod rights;
#[path = "volume/space.rs"]
mod space;
#[path = "volume/start.rs"]
mod start;
#[path = "volume/swap_layout.rs"]
mod swap_layout;
