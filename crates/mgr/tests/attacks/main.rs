//! Attacks by clients that have only a socket: the mgr and its iods refuse each, and no other client suffers.

mod callers;
#[path = "../volume/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "../hostile/dice.rs"]
#[allow(dead_code)]
mod dice;
mod exports;
#[path = "../hostile/link.rs"]
#[allow(dead_code)]
mod link;
mod operations;
mod peer;
