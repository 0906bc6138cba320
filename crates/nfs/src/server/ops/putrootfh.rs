//! PUTROOTFH: the current filehandle becomes the root's (RFC 8881 §18.21).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, _: Void) -> Answer<Void> {
    let root = cx.fs().root();
    cx.set_file(root);
    Ok(Void)
}
