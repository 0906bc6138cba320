//! Test support for the NFS server: an in-memory file system and scripted clients.

pub mod bench;
pub mod memory;
