//! How many files the kernel knows, and what is done when they become too many.
//!
//! The kernel keeps what it has looked up until memory is short, also names that others have removed in the meantime: it looks at them no more.
//! All of them take room here, and there a kilobyte each. Beyond a bound it is asked to let go of those that it was told of longest ago
//! (`FUSE_NOTIFY_PRUNE`, Linux 6.18); it keeps what is in use, and forgets the rest, by FORGET as always.

use crate::abi;
use crate::fs::FileSystem;
use crate::reply::Body;
use std::io;
use std::sync::Weak;
use std::time::Duration;

/// Files of one message.
const AT_ONCE: usize = 512;
/// How long nothing is asked after it was, in which the kernel forgets; longer each time that it could not.
const REST: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(64);

/// Asks the kernel to let go of files whenever it knows too many, until the file system ends or the kernel turns out not to understand.
pub(crate) async fn watch(fs: Weak<FileSystem>) {
    loop {
        let Some(crowded) = fs.upgrade().map(|fs| fs.nodes.crowded()) else { return };
        // Now and then it is looked whether there is anything to watch.
        let _ = tokio::time::timeout(REST_MAX, crowded.notified()).await;
        let mut rest = REST;
        // What was in use may be in use no more, of which nobody tells.
        while let Some(here) = fs.upgrade().filter(|fs| fs.nodes.are_too_many()) {
            let (oldest, before) = (here.nodes.oldest(), here.nodes.count());
            // The kernel may have to write back what it has of them before it answers, by requests that others here answer.
            match tokio::task::spawn_blocking(move || let_go(&here, &oldest)).await {
                Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                    return tracing::debug!("the kernel knows as many files as it likes: {error}");
                }
                Ok(Err(error)) => tracing::debug!("asking the kernel to let go of files: {error}"),
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
            // Some of them it has forgotten meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            told => told?,
        }
    }
    Ok(())
}
