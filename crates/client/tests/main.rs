//! Tests of the client with real servers: each test starts an mgr and iods in its own process. All test files are
//! linked into one program. With one program for each file, linking the servers took minutes.

#[path = "support/cluster.rs"]
mod cluster;
mod coherence;
mod copy;
mod damage;
mod data;
mod deferred_close;
mod delegation;
mod durable;
#[path = "../../iod/tests/serving/false_iod.rs"]
mod false_iod;
#[path = "support/histories.rs"]
mod histories;
mod links;
mod load;
mod locks;
mod log_files;
#[path = "support/memory_mgr.rs"]
mod memory_mgr;
mod mixed;
mod moving;
mod names;
mod negative;
mod path_expectations;
mod policy;
#[path = "support/proxy.rs"]
mod proxy;
mod rare_replies;
mod read_ahead;
mod recalls;
mod restarts;
#[path = "support/restored_cluster.rs"]
mod restored_cluster;
mod rights;
#[path = "support/seeded_random.rs"]
mod seeded_random;
mod setattr_during_close;
mod short_circuit;
