//! The limit on the number of inodes that the kernel keeps of a mount, and the pruning of inodes above this limit.
//!
//! The kernel keeps every inode that it has looked up until memory is short. The kernel also keeps names that other
//! clients have removed, and never checks them again. Each inode takes memory in this process, and about a kilobyte in
//! the kernel. Above the limit, the mount notifies the kernel to drop the inodes whose entries the kernel received
//! longest ago (`FUSE_NOTIFY_PRUNE`, Linux 6.18). The kernel keeps inodes in use, and drops the others with FORGET
//! requests.

use crate::abi;
use crate::fs::FileSystem;
use crate::reply::Body;
use std::io;
use std::sync::Weak;
use std::time::Duration;

/// Largest number of inodes in one prune notification.
const AT_ONCE: usize = 512;
/// The pause after a prune notification, in which the kernel drops inodes. The pause doubles each time that the kernel
/// has dropped no inode.
const REST: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(64);

/// Notifies the kernel to drop inodes whenever the kernel has more inodes than the limit. Returns when the file system
/// ends, or if the kernel does not support prune notifications.
pub(crate) async fn watch(fs: Weak<FileSystem>) {
    loop {
        let Some(crowded) = fs.upgrade().map(|fs| fs.nodes.crowded()) else { return };
        // Wait until the kernel has too many inodes. The wait has a timeout, so that this task ends some time after
        // the file system has ended.
        let _ = tokio::time::timeout(REST_MAX, crowded.notified()).await;
        let mut rest = REST;
        // Repeat the prune notification, because inodes in use may become unused, and the kernel does not report that.
        while let Some(here) = fs.upgrade().filter(|fs| fs.nodes.are_too_many()) {
            let (oldest, before) = (here.nodes.oldest(), here.nodes.count());
            // Notify the kernel in a blocking thread. The kernel may first write back pages of the inodes in the
            // notification, and other threads of this mount must execute these writes.
            match tokio::task::spawn_blocking(move || let_go(&here, &oldest)).await {
                Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                    return tracing::debug!("this kernel cannot limit its inodes of the mount: {error}");
                }
                Ok(Err(error)) => tracing::debug!("cannot make the kernel drop unused inodes: {error}"),
                _ => {}
            }
            tokio::time::sleep(rest).await;
            let fewer = fs.upgrade().is_some_and(|fs| fs.nodes.count() < before);
            rest = if fewer { REST } else { (rest * 2).min(REST_MAX) };
        }
    }
}

fn let_go(fs: &FileSystem, files: &[u64]) -> io::Result<()> {
    let Some(transport) = fs.transport() else { return Ok(()) };
    for files in files.chunks(AT_ONCE) {
        let mut body = Body::with_capacity(16 + 8 * files.len()).u32(files.len() as u32).u32(0).u64(0);
        for file in files {
            body = body.u64(*file);
        }
        match transport.notify(abi::notify::PRUNE, &body.into_vec()) {
            // The kernel dropped some inodes of the notification before it received the notification, which is no
            // error.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            told => told?,
        }
    }
    Ok(())
}
