//! Attacks by clients that can only connect to the mgr: the mgr and its iods refuse each attack, and other clients are
//! not affected.

mod callers;
#[path = "../volume/cluster.rs"]
#[allow(dead_code)]
mod cluster;
mod exports;
#[path = "../hostile/link.rs"]
#[allow(dead_code)]
mod link;
mod operations;
mod peer;
#[path = "../hostile/seeded_random.rs"]
#[allow(dead_code)]
mod seeded_random;
