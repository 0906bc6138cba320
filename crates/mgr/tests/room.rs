//! The mgr with real iods, all in one process: proxied I/O, layouts, failures, restarts, what it answers on its port.

#[path = "room/allocate.rs"]
mod allocate;
#[path = "room/check.rs"]
mod check;
#[path = "room/cluster.rs"]
mod cluster;
#[path = "room/copy.rs"]
mod copy;
#[path = "room/exports.rs"]
mod exports;
#[path = "room/failures.rs"]
mod failures;
#[path = "../../iod/tests/serving/false_iod.rs"]
mod false_iod;
#[path = "room/gather.rs"]
mod gather;
#[path = "room/inline.rs"]
mod inline;
#[path = "room/intents.rs"]
mod intents;
#[path = "room/layouts.rs"]
mod layouts;
#[path = "room/lengths.rs"]
mod lengths;
#[path = "room/lost.rs"]
mod lost;
#[path = "room/model.rs"]
mod model;
#[path = "room/names.rs"]
mod names;
#[path = "room/policy.rs"]
mod policy;
#[path = "room/port.rs"]
mod port;
#[path = "room/rights.rs"]
mod rights;
#[path = "room/space.rs"]
mod space;
#[path = "room/start.rs"]
mod start;
