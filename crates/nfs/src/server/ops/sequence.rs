//! SEQUENCE in any position but the first, which is an error (RFC 8881 §18.46). The module `compound` executes a
//! SEQUENCE in first position.

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};
use wire::nfs4::*;

pub(super) async fn run<F: FileSystem, C: Callbacks>(_: &mut Compound<'_, F, C>, _: SEQUENCE4args) -> Answer<Void> {
    Err(NFS4ERR_SEQUENCE_POS.into())
}
