//! The NFS server: sequences of operations, sound and damaged, against the state tables and a file system in memory.
#![cfg_attr(fuzzing, no_main)]

/// Plays the requests that `data` decides.
pub fn run(data: &[u8]) {
    nfs::testing::bench::play(data);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
