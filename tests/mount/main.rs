//! A running Weir, mounted, and used through paths as programs use it.
//!
//! Needs `/dev/fuse` and root, and says so otherwise. All of it is done over `/dev/fuse` and again over io_uring (`rings.rs`).

#[path = "../../crates/weir/tests/end_to_end/cluster.rs"]
#[allow(dead_code)]
mod cluster;
mod deaths;
mod files;
mod memory;
mod place;
mod policy;
mod rings;
mod sharing;
mod users;
