//! End-to-end tests of the `weir` binary: each test runs a cluster and commands as processes.

#[path = "end_to_end/administration.rs"]
mod administration;
#[path = "end_to_end/backup.rs"]
mod backup;
#[path = "end_to_end/bad_input.rs"]
mod bad_input;
#[path = "end_to_end/cluster.rs"]
mod cluster;
#[path = "end_to_end/content.rs"]
mod content;
#[path = "end_to_end/crashes.rs"]
mod crashes;
#[path = "end_to_end/daemons.rs"]
mod daemons;
#[path = "end_to_end/deprecated.rs"]
mod deprecated;
#[path = "end_to_end/disks.rs"]
mod disks;
#[path = "end_to_end/flood.rs"]
mod flood;
#[path = "end_to_end/fsck.rs"]
mod fsck;
#[path = "end_to_end/hostile.rs"]
mod hostile;
#[path = "end_to_end/in_doubt.rs"]
mod in_doubt;
#[path = "end_to_end/interrupted.rs"]
mod interrupted;
#[path = "end_to_end/lab.rs"]
mod lab;
#[path = "end_to_end/names.rs"]
mod names;
#[path = "end_to_end/permissions.rs"]
mod permissions;
#[path = "../../client/tests/support/proxy.rs"]
mod proxy;
#[path = "end_to_end/quick_start.rs"]
mod quick_start;
#[path = "end_to_end/real_tree.rs"]
mod real_tree;
#[path = "end_to_end/replaced_disk.rs"]
mod replaced_disk;
#[path = "end_to_end/replay.rs"]
mod replay;
#[path = "end_to_end/round_trip.rs"]
mod round_trip;
#[path = "end_to_end/scrub.rs"]
mod scrub;
#[path = "end_to_end/semantics.rs"]
mod semantics;
#[path = "end_to_end/tree.rs"]
mod tree;
#[path = "end_to_end/tune.rs"]
mod tune;
