//! Tests with stock Linux kernels as NFS clients of a running Weir, in virtual machines.

mod access_methods;
#[path = "../../crates/weir/tests/end_to_end/cluster.rs"]
#[allow(dead_code)]
mod cluster;
mod deaths;
mod delegations;
mod exports;
mod guest;
mod handles;
mod image;
#[path = "../../crates/weir/tests/end_to_end/lab.rs"]
#[allow(dead_code)]
mod lab;
mod many_iods;
mod mount;
mod mountstats;
mod pnfs;
#[path = "../../crates/client/tests/support/proxy.rs"]
#[allow(dead_code)]
mod proxy;
mod relay;
mod relayed;
mod requests;
mod saved;
mod servers;
mod sharing;
mod unresponsive_peers;
