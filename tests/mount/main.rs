//! Tests of a mounted Weir file system through paths and system calls, as programs use it.
//!
//! The tests need `/dev/fuse` and root; otherwise they print that they did not run. All tests run over `/dev/fuse`, and
//! again over io_uring (`rings.rs`). Most tests run a third time with write-back caching (`write_back.rs`). With
//! `WEIR_TEST_SCALE=full`, the tests with write-back caching run over both transports.

#[path = "../../crates/weir/tests/end_to_end/cluster.rs"]
#[allow(dead_code)]
mod cluster;
mod coherence;
mod deaths;
mod descriptors;
mod files;
#[path = "../../crates/client/tests/support/histories.rs"]
mod histories;
mod holes;
#[path = "../../crates/weir/tests/end_to_end/lab.rs"]
#[allow(dead_code)]
mod lab;
mod mappings;
mod memory;
mod names;
mod policy;
#[path = "../../crates/client/tests/support/proxy.rs"]
#[allow(dead_code)]
mod proxy;
mod rings;
#[path = "../../crates/client/tests/support/seeded_random.rs"]
mod seeded_random;
mod shared_process;
mod sharing;
mod test_mount;
mod users;
mod write_back;
