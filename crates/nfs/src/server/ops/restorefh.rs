//! RESTOREFH: makes the saved filehandle and stateid current (RFC 8881 §18.27).

use crate::fs::FileSystem;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Compound, Void};

pub(super) async fn run<F: FileSystem, C: Callbacks>(cx: &mut Compound<'_, F, C>, _: Void) -> Answer<Void> {
    cx.saved_file()?;
    cx.restore();
    Ok(Void)
}
