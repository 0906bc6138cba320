//! The network messages of Weir as plain types: ONC RPC, NFSv4.1/4.2, NFS callbacks, the native data program, and the
//! admin program.

pub mod admin;
pub mod native;
pub mod nfs4;
pub mod rpc;
