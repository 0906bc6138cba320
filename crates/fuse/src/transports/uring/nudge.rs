//! A request that the mount makes to itself, so that the kernel delivers requests that it has queued.
//!
//! The kernel queues a request for which there is no entry. It gives the request to the next entry whose reply is
//! handed back, not to a new entry (Linux 6.14 to 6.18). If requests that wait for locks hold all other entries, the
//! queued request would wait until some program makes another request through the same queue. So a thread on the
//! queue's processor asks for an extended attribute, which the mount answers without the servers.

use crate::self_requests;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// An extended attribute of every file of a mount (`control.rs`).
const ATTRIBUTE: &str = "user.weir.mount.access";

/// Makes a request arrive through the queue of this processor, of the file system mounted at `place`. Each request has
/// a thread of its own: the kernel may queue this request as well, until the next one arrives.
pub(super) fn nudge(queue: u16, place: &Arc<Path>) {
    let place = place.clone();
    // If the thread cannot be bound to that processor, requests of the queue may have to wait.
    let ask = move || drop(ask(queue, &place));
    if let Err(error) = self_requests::spawn(format!("fuse-nudge-{queue}"), ask) {
        tracing::warn!(queue, "cannot start a thread; requests of this queue may wait for each other: {error}");
    }
}

fn ask(queue: u16, place: &Path) -> io::Result<()> {
    super::stay_on(queue.into())?;
    // The answer does not matter; the request does.
    let _ = rustix::fs::getxattr(place, ATTRIBUTE, &mut [0u8; 64]);
    Ok(())
}
