//! A request of the mount's own, so that the kernel looks after requests that it has put aside.
//!
//! A request for which there is no entry is put aside by the kernel, and given to the next entry whose reply is handed back; not to an entry
//! that is new (Linux 6.14 to 6.18). If all the others are held by requests that wait for locks, it would lie there until somebody else
//! happens to ask something by the same queue. So somebody does: a thread on the queue's processor asks for an extended attribute that is
//! answered without the servers.

use crate::asking;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Extended attribute of every file of a mount (`control.rs`).
const ATTRIBUTE: &str = "user.weir.mount.access";

/// Has a request come by the queue of this processor, of the file system that is mounted here. Each has a thread of its own: what it asks may
/// be put aside as well, until the next one comes.
pub(super) fn nudge(queue: u16, place: &Arc<Path>) {
    // The thread that asks is not to give way to anybody, from its beginning.
    crate::thread_begins();
    let place = place.clone();
    // Where it cannot be on that processor, requests of it may have to wait.
    let ask = move || drop(ask(queue, &place));
    if let Err(error) = asking::spawn(format!("fuse-nudge-{queue}"), ask) {
        tracing::warn!(queue, "requests may have to wait for others: {error}");
    }
}

fn ask(queue: u16, place: &Path) -> io::Result<()> {
    super::stay_on(queue.into())?;
    // Whatever is answered: it was asked.
    let _ = rustix::fs::getxattr(place, ATTRIBUTE, &mut [0u8; 64]);
    Ok(())
}
