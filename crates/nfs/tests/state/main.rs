//! Tests of the state tables of the NFS server.
//!
//! Most files compare the state tables with a simple model of the RFC, in every short history (a sequence of calls).

mod clients;
mod delegations;
mod grace_period;
mod helpers;
mod layouts;
mod limits;
mod locks;
mod names;
mod opens;
mod partitions;
mod reply_cache;
mod sessions;
