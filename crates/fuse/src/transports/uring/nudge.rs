//! A request that the mount makes to itself, so that the kernel delivers the requests that it has queued.
//!
//! The kernel queues a request if its queue has no free entry. The kernel puts the request into the next entry that
//! returns with a reply, not into a new entry (Linux 6.14 to 6.18). If requests that wait for locks hold all other
//! entries, the queued request waits until some program makes another request through the same queue. So a thread on
//! the queue's processor requests an extended attribute, which the mount returns without the servers.

use crate::self_requests;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The extended attribute that the nudge request reads. Every file of a mount has this attribute, and the mount returns
/// its value without a request to a server.
const ATTRIBUTE: &str = "user.weir.mount.access";

/// Makes a request to the file system mounted at `place`, through the kernel queue `queue`. The request has its own
/// thread, because the kernel may queue this request too, until the next request arrives.
pub(super) fn nudge(queue: u16, place: &Arc<Path>) {
    let place = place.clone();
    // Ignore errors of the thread: if the thread cannot run on the processor of the queue, requests in the queue only
    // have to wait longer.
    let ask = move || drop(ask(queue, &place));
    if let Err(error) = self_requests::spawn(format!("fuse-nudge-{queue}"), ask) {
        tracing::warn!(queue, "cannot start a thread; requests of this queue may wait for each other: {error}");
    }
}

fn ask(queue: u16, place: &Path) -> io::Result<()> {
    super::stay_on(queue.into())?;
    // The GETXATTR request itself makes the kernel deliver its queued requests, so ignore the result.
    let _ = rustix::fs::getxattr(place, ATTRIBUTE, &mut [0u8; 64]);
    Ok(())
}
