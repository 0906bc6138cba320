//! Attacks of accounts that have nothing but a socket, on a running mgr and its iods: each is refused, and harms nobody else.

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
