//! A request of the mount's own, so that the kernel looks after requests that it has put aside.
//!
//! A request for which there is no entry is put aside by the kernel, and given to the next entry whose reply is handed back; not to an entry
//! that is new (Linux 6.14 to 6.18). If all the others are held by requests that wait for locks, it would lie there until somebody else
//! happens to ask something by the same queue. So somebody does: a thread on the queue's processor asks for an extended attribute that is
//! answered without the servers.

use std::io;
use std::path::Path;
use std::sync::Arc;

/// Extended attribute of every file of a mount (`control.rs`).
const ATTRIBUTE: &str = "user.weir.mount.access";

/// Has a request come by the queue of this processor, of the file system that is mounted here. Each has a thread of its own: what it asks may
/// be put aside as well, until the next one comes.
pub(super) fn nudge(queue: u16, place: &Arc<Path>) {
    let place = place.clone();
    let ask = move || {
        if let Err(error) = ask(queue, &place) {
            tracing::debug!(queue, "requests of a processor that is not ours may have to wait: {error}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name(format!("fuse-nudge-{queue}")).spawn(ask) {
        tracing::warn!(queue, "requests may have to wait for others: {error}");
    }
}

/// Whoever waits for a reply of its own process, by a request that was handed out, waits on when that is killed: the kernel ends such waits when
/// nobody has the device open any more. So the thread must not have it open: it gets a table of descriptors of its own, with next to nothing in it.
fn let_go_of_descriptors() -> io::Result<()> {
    // SAFETY: numbers. What is closed is this thread's copies, which nothing here uses; all others keep theirs.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn ask(queue: u16, place: &Path) -> io::Result<()> {
    super::stay_on(queue.into())?;
    let_go_of_descriptors()?;
    // Whatever is answered: it was asked.
    let _ = rustix::fs::getxattr(place, ATTRIBUTE, &mut [0u8; 64]);
    Ok(())
}
