//! Test support for the NFS server: an in-memory file system, and a bench with scripted clients.

pub mod bench;
pub mod memory;
