//! Fuzz target for the NFS server: sequences of valid and damaged operations on the state tables and a file system in
//! memory.
#![cfg_attr(fuzzing, no_main)]

/// Sends the sequence of requests that `data` encodes to the server.
pub fn run(data: &[u8]) {
    nfs::testing::bench::play(data);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
